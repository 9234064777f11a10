"""How long training stands still for a checkpoint: transformers, and portico with ``async_save`` and without.

Run ``python benchmarks/checkpoint_pause.py``. The three save in rotating order, with trainers of the same model and
AdamW.
Printed are medians of the seconds on the clock from the end of a step to the return of its save: of the first
checkpoint of a run and of those that follow, for which ``async_save`` has memory. Between two saves the clock stands,
longer than writing takes.
"""

import argparse
import statistics
import tempfile
import time
from collections import deque
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


# Virtual machines may give memory back that was free for two seconds, and getting it again takes longer than a save.
SECONDS_BEFORE_STEP = 0.5
SAVE_STEPS = 2
NUM_CHECKPOINTS = 3


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

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stand in for the steps between two checkpoints."""
        time.sleep(SECONDS_BEFORE_STEP if state.global_step else 0)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start the clock."""
        self.ended = time.perf_counter()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop the clock."""
        self.seconds.append(time.perf_counter() - self.ended)


def pauses_of(way: str) -> tuple[list[float], int]:
    """Return the seconds of each checkpoint of a run, and the number of parameters in it."""
    library, options = WAYS[way]
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=8000, n_embd=512, n_layer=8, n_head=8, n_positions=64)
    model = transformers.GPT2LMHeadModel(config)
    clock = StandStill()
    with tempfile.TemporaryDirectory() as folder:
        args = library.TrainingArguments(
            folder,
            max_steps=NUM_CHECKPOINTS * SAVE_STEPS,
            per_device_train_batch_size=2,
            save_steps=SAVE_STEPS,
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
    return clock.seconds, sum(parameter.numel() for parameter in model.parameters())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    pauses: dict[str, list[list[float]]] = {way: [] for way in WAYS}
    order = deque(WAYS)
    for _ in range(options.rounds):
        for way in order:
            seconds, size = pauses_of(way)
            pauses[way].append(seconds)
        order.rotate()
    print(f"{size * 12 / 1e6:.0f} MB of weights and optimizer, {options.rounds} runs of each kind")
    for way, runs in pauses.items():
        for title, part in {"first checkpoint": slice(1), "checkpoint": slice(1, None)}.items():
            taken = [statistics.median(run[part]) for run in runs]
            theirs = [statistics.median(run[part]) for run in pauses["transformers"]]
            ratios = [own / peer for own, peer in zip(taken, theirs, strict=True)]
            ratio = statistics.median(ratios)
            print(f"{title:17}{way:22}{statistics.median(taken):7.2f} s, {ratio:.2f} of transformers'")
            if way != "transformers":
                record(f"pause for a {title}, {way}, of transformers'", ratios)


if __name__ == "__main__":
    main()
