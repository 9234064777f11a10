"""CPU time of a training step, and of an evaluation batch, under both libraries and in a plain loop, in one run.

Run ``OMP_NUM_THREADS=1 python benchmarks/step_overhead.py``; ``--rounds`` and ``--steps`` make it longer. Each round
trains the same tiny models three times, in rotating order: in a loop that only does the arithmetic, under transformers
and under portico. Printed are, for each model, the medians over the rounds, what each library adds to the plain loop,
and the median of the ratios of what they add. Start-up is left out.
Times are CPU seconds of the main thread, so that other processes do not count.
"""

import argparse
import itertools
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import transformers
from record import record
from torch import nn
from torch.utils.data import DataLoader, Dataset

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
    """A stack of linear layers, so small that a step is nearly all overhead."""

    def __init__(self, num_layers: int) -> None:
        super().__init__()
        hidden = [module for _ in range(num_layers - 1) for module in (nn.Linear(16, 16), nn.ReLU())]
        self.layers = nn.Sequential(*hidden, nn.Linear(16, 4))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return loss and logits."""
        logits = self.layers(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


NUM_WARM_UP_STEPS = 20


def step_time(library: Any, num_layers: int, num_steps: int) -> float:
    """Return the CPU microseconds of a training step under ``library``, without those of the first ones."""
    with tempfile.TemporaryDirectory() as folder:
        clock = Clock()
        trainer = library.Trainer(
            model=Perceptron(num_layers),
            args=library.TrainingArguments(
                output_dir=folder,
                max_steps=num_steps + NUM_WARM_UP_STEPS,
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


def plain_step_time(num_layers: int, num_steps: int) -> float:
    """Return the CPU microseconds of a step that only does the arithmetic of the default arguments."""
    model = Perceptron(num_layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, weight_decay=0.0, fused=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / (2 * num_steps))
    loader = DataLoader(Points(512), batch_size=8, shuffle=True, collate_fn=transformers.default_data_collator)
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    model.train()
    start = 0.0
    for step in range(NUM_WARM_UP_STEPS + num_steps):
        if step == NUM_WARM_UP_STEPS:
            start = time.thread_time()
        model(**next(batches))["loss"].backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        model.zero_grad()
    return (time.thread_time() - start) / num_steps * 1e6


def batch_time(library: Any, num_layers: int, num_batches: int) -> float:
    """Return the CPU microseconds of a batch of 8 of a prediction under ``library``, without those of its start."""
    with tempfile.TemporaryDirectory() as folder:
        args = library.TrainingArguments(output_dir=folder, report_to="none", disable_tqdm=True, use_cpu=True)
        trainer = library.Trainer(model=Perceptron(num_layers), args=args)
        trainer.predict(Points(8 * NUM_WARM_UP_STEPS))
        one, all_points = Points(8), Points(8 * (num_batches + 1))
        start = time.thread_time()
        trainer.predict(one)
        middle = time.thread_time()
        trainer.predict(all_points)
    return (time.thread_time() - middle - (middle - start)) / num_batches * 1e6


def evaluation_start(library: Any, num_layers: int, num_rounds: int) -> float:
    """Return the CPU microseconds of an evaluation of one example under ``library``."""
    with tempfile.TemporaryDirectory() as folder:
        args = library.TrainingArguments(output_dir=folder, report_to="none", disable_tqdm=True, use_cpu=True)
        trainer = library.Trainer(model=Perceptron(num_layers), args=args)
        trainer.predict(Points(1))
        points = Points(1)
        start = time.thread_time()
        for _ in range(num_rounds):
            trainer.predict(points)
    return (time.thread_time() - start) / num_rounds * 1e6


def plain_batch_time(num_layers: int, num_batches: int) -> float:
    """Return the CPU microseconds of a batch of a loop that only computes losses, logits and labels and keeps them."""
    model = Perceptron(num_layers).eval()
    loader = DataLoader(Points(8 * num_batches), batch_size=8, collate_fn=transformers.default_data_collator)
    start = time.thread_time()
    losses, logits, labels = [], [], []
    with torch.no_grad():
        for batch in loader:
            outputs = model(**batch)
            losses.append(outputs["loss"].repeat(8))
            logits.append(outputs["logits"])
            labels.append(batch["labels"])
    for tensors in (losses, logits, labels):
        torch.cat(tensors).numpy()
    return (time.thread_time() - start) / num_batches * 1e6


class Clock(transformers.TrainerCallback):
    """Takes the CPU time between the end of the warm-up and the end of the last step."""

    seconds = 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start or stop the clock."""
        if state.global_step == NUM_WARM_UP_STEPS:
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
    compare("microseconds a training step", step_time, plain_step_time, options)
    compare("microseconds an evaluation batch", batch_time, plain_batch_time, options)
    starts = [(evaluation_start(portico, 1, 5), evaluation_start(transformers, 1, 5)) for _ in range(options.rounds)]
    record("start of an evaluation", [ours / theirs for ours, theirs in starts])
    ours, theirs = (statistics.median(times) for times in zip(*starts, strict=True))
    print(f"start of an evaluation, microseconds: transformers {theirs:.0f}, portico {ours:.0f}")


def compare(title: str, measure: Callable[..., float], plain: Callable[..., float], options: Any) -> None:
    """Print what each library adds to the plain loop, for a small and a larger model."""
    loops = {"plain loop": plain, "transformers": partial(measure, transformers), "portico": partial(measure, portico)}
    for num_layers in (1, 8):
        order = deque(loops)
        rounds = []
        for _ in range(options.rounds):
            rounds.append({name: loops[name](num_layers, options.steps) for name in order})
            order.rotate()
        print(f"{title}, {num_layers} layer(s)")
        added = {name: [times[name] - times["plain loop"] for times in rounds] for name in loops}
        for name in loops:
            total = statistics.median(times[name] for times in rounds)
            print(f"  {name:13}{total:8.0f}{statistics.median(added[name]):+8.0f}")
        ratios = [ours / theirs for ours, theirs in zip(added["portico"], added["transformers"], strict=True)]
        record(f"{title}, {num_layers} layer(s), above a plain loop", ratios)
        print(
            f"  ratio of what is added {statistics.median(ratios):.2f} (from {min(ratios):.2f} to {max(ratios):.2f})"
        )


if __name__ == "__main__":
    main()
