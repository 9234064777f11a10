"""How long training stands still for a checkpoint: transformers, and portico with ``async_save`` and without.

Run ``python benchmarks/checkpoint_pause.py``. The three save in turn, with trainers of the same model and AdamW.
Printed are medians of the seconds on the clock from the end of a step to the return of its save.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Mapping
from typing import Any

import torch
import transformers
from record import record
from torch.utils.data import Dataset

import portico

WAYS: Mapping[str, tuple[Any, Mapping[str, Any]]] = {
    "transformers": (transformers, {}),
    "portico": (portico, {}),
    "portico, async_save": (portico, {"async_save": True}),
}


class Words(Dataset[dict[str, Any]]):
    """A few tokens."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": list(range(8)), "labels": list(range(8))}


class StandStill(transformers.TrainerCallback):
    """Takes the time from the end of a step to what follows its checkpoint."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.ended = 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start the clock."""
        self.ended = time.perf_counter()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop the clock."""
        self.seconds.append(time.perf_counter() - self.ended)


def pause(way: str) -> tuple[float, int]:
    """Return the seconds of the first checkpoint, and the number of parameters in it."""
    library, options = WAYS[way]
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=8000, n_embd=512, n_layer=8, n_head=8, n_positions=64)
    model = transformers.GPT2LMHeadModel(config)
    clock = StandStill()
    with tempfile.TemporaryDirectory() as folder:
        args = library.TrainingArguments(
            folder,
            max_steps=2,
            per_device_train_batch_size=2,
            save_steps=1,
            save_total_limit=1,
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            **options,
        )
        trainer = library.Trainer(model, args, train_dataset=Words(), callbacks=[clock])
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
    return clock.seconds[0], sum(parameter.numel() for parameter in model.parameters())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    pauses: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(options.rounds):
        for way, taken in pauses.items():
            seconds, size = pause(way)
            taken.append(seconds)
    print(f"{size * 12 / 1e6:.0f} MB of weights and optimizer, {options.rounds} checkpoints of each kind")
    for way, taken in pauses.items():
        ratios = [own / theirs for own, theirs in zip(taken, pauses["transformers"], strict=True)]
        print(f"{way:22}{statistics.median(taken):7.2f} s, {statistics.median(ratios):.2f} of transformers'")
        if way != "transformers":
            record(f"pause for a checkpoint, {way}, of transformers'", ratios)


if __name__ == "__main__":
    main()
