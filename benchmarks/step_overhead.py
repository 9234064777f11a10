"""CPU time of a training step under both libraries, side by side.

Run ``python benchmarks/step_overhead.py``; ``--rounds`` and ``--steps`` make it longer. Each round trains the same
tiny model under both libraries, in alternating order; printed are medians over the rounds and the median of their
ratios.
Times are CPU seconds of the main thread, so that other processes do not count.
"""

import argparse
import statistics
import tempfile
import time
from typing import Any

import torch
import transformers
from torch import nn
from torch.utils.data import Dataset

import portico


class Points(Dataset[dict[str, torch.Tensor]]):
    """Random points with a class each, ``float32 [16]``."""

    def __init__(self, size: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(size, 16, generator=generator)
        self.labels = torch.randint(0, 4, (size,), generator=generator)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": self.x[index], "labels": self.labels[index]}


class Perceptron(nn.Module):
    """Three layers, so small that a step is nearly all overhead."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return loss and logits."""
        logits = self.layers(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def step_time(library: Any, num_steps: int, batch_size: int = 8) -> float:
    """Return the CPU microseconds of a training step, without those of the first ones."""
    with tempfile.TemporaryDirectory() as folder:
        clock = Clock(num_warm_up_steps=20)
        trainer = library.Trainer(
            model=Perceptron(),
            args=library.TrainingArguments(
                output_dir=folder,
                max_steps=num_steps + clock.num_warm_up_steps,
                per_device_train_batch_size=batch_size,
                logging_strategy="no",
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                use_cpu=True,
            ),
            train_dataset=Points(512),
            callbacks=[clock],
        )
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
    return clock.seconds / num_steps * 1e6


class Clock(transformers.TrainerCallback):
    """Takes the CPU time between the end of the warm-up and the end of the last step."""

    def __init__(self, num_warm_up_steps: int) -> None:
        self.num_warm_up_steps = num_warm_up_steps
        self.seconds = 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start or stop the clock."""
        if state.global_step == self.num_warm_up_steps:
            self._start = time.thread_time()
        elif state.global_step == state.max_steps:
            self.seconds = time.thread_time() - self._start


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    torch.set_num_threads(1)
    times: dict[str, list[float]] = {"transformers": [], "portico": []}
    libraries = [("transformers", transformers), ("portico", portico)]
    for _ in range(options.rounds):
        for name, library in libraries:
            times[name].append(step_time(library, options.steps))
        libraries.reverse()
    for name, measured in times.items():
        print(f"{name:13}{statistics.median(measured):8.0f} us a step")
    ratios = [ours / theirs for ours, theirs in zip(times["portico"], times["transformers"], strict=True)]
    print(f"{'ratio':13}{statistics.median(ratios):8.2f} (from {min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
