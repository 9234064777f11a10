"""What each setting for speed gains, alone and together, and whether it changes the numbers.

Run ``python benchmarks/recipe.py``; ``--ways`` picks settings, ``--device cuda`` measures there. Each round trains a
BERT, of MiniLM's size unless ``--width`` and ``--layers`` say otherwise, on texts as long as SQuAD's passages, once
under transformers with its defaults and once for each setting under portico, in rotating order. Printed are the median
time of a step, the median of its ratios to portico's defaults, and whether the losses are those of transformers.
Start-up and compilation are left out: the first steps are not timed. Times are CPU seconds of the process on the CPU,
and seconds on other devices.
"""

import argparse
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import transformers
from record import record
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

import portico

WAYS: Mapping[str, Mapping[str, Any]] = {
    "defaults": {},
    "train_sampling_strategy=group_by_length": {"train_sampling_strategy": "group_by_length"},
    "bf16=true": {"bf16": True},
    "bf16=true, attn_implementation=eager": {"bf16": True},
    "torch_compile=true": {"torch_compile": True},
    "strategy=ort": {},
    "dataloader_num_workers=2": {"dataloader_num_workers": 2},
    "optim=adamw_torch": {"optim": "adamw_torch"},
    "fast()": {},
}


class Texts(Dataset[dict[str, Any]]):
    """Random tokens, by default as many as SQuAD's passages have, and a class each."""

    def __init__(self, size: int, typical_length: int) -> None:
        rng = np.random.default_rng(0)
        lengths = np.clip(rng.lognormal(np.log(typical_length), 0.4, size), 20, 384).astype(int)
        self.rows = [{"input_ids": rng.integers(1000, 30_000, n).tolist(), "labels": n % 2} for n in lengths]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.rows[index]


def padded(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Return a batch as wide as its longest row."""
    ids = [torch.tensor(row["input_ids"]) for row in rows]
    return {
        "input_ids": pad_sequence(ids, batch_first=True),
        "attention_mask": pad_sequence([torch.ones_like(one) for one in ids], batch_first=True),
        "labels": torch.tensor([row["labels"] for row in rows]),
    }


class Clock(transformers.TrainerCallback):
    """Takes the time between the end of the warm-up and the end of training."""

    def __init__(self, num_warm_up_steps: int, device: str) -> None:
        self._num_warm_up_steps = num_warm_up_steps
        self._device = device
        self._start = self.seconds = 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start or stop the clock."""
        if state.global_step in (self._num_warm_up_steps, state.max_steps):
            now = self._now()
            self._start, self.seconds = now, now - self._start

    def _now(self) -> float:
        if self._device == "cpu":
            return time.process_time()
        torch.accelerator.synchronize()
        return time.perf_counter()


def trained(way: str, options: argparse.Namespace) -> tuple[float, list[float]]:
    """Return the seconds of a step and the losses of a way; "transformers" is its trainer with its defaults."""
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(
        transformers.BertConfig(
            hidden_size=options.width,
            num_hidden_layers=options.layers,
            num_attention_heads=options.width // 32,
            intermediate_size=4 * options.width,
        )
    )
    if "eager" in way:
        model.set_attn_implementation("eager")
    library, prefix = (transformers if way == "transformers" else portico), "ORT" if way == "strategy=ort" else ""
    arguments = getattr(library, f"{prefix}TrainingArguments")
    clock = Clock(options.warm_up, options.device)
    with tempfile.TemporaryDirectory() as folder:
        trainer = getattr(library, f"{prefix}Trainer")(
            model=model,
            args=(arguments.fast if way == "fast()" else arguments)(
                output_dir=folder,
                max_steps=options.warm_up + options.steps,
                per_device_train_batch_size=options.batch_size,
                logging_steps=1,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                use_cpu=options.device == "cpu",
                **WAYS.get(way, {}),
            ),
            train_dataset=Texts(64 * options.batch_size, options.length),
            data_collator=padded,
            callbacks=[clock],
        )
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return clock.seconds / options.steps, losses


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=16, help="steps timed in a round")
    parser.add_argument("--warm-up", type=int, default=8, help="steps before them")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--length", type=int, default=155, help="median number of tokens")
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    order = deque(["transformers", *dict.fromkeys(["defaults", *options.ways])])
    rounds: list[dict[str, tuple[float, list[float]]]] = []
    for _ in range(options.rounds):
        rounds.append({way: trained(way, options) for way in order})
        order.rotate()
    print(f"{'':42}ms a step  of defaults'")
    for way in rounds[0]:
        seconds = [measured[way][0] for measured in rounds]
        ratios = [measured[way][0] / measured["defaults"][0] for measured in rounds]
        if way != "transformers":
            of_theirs = [measured[way][0] / measured["transformers"][0] for measured in rounds]
            record(f"training step of a BERT, {way}, of transformers'", of_theirs)
        same = rounds[0][way][1] == rounds[0]["transformers"][1]
        print(
            f"{way:42}{statistics.median(seconds) * 1e3:9.0f}  {statistics.median(ratios):.2f} "
            f"({min(ratios):.2f} to {max(ratios):.2f})  {'same losses' if same else 'other losses'}"
        )


if __name__ == "__main__":
    main()
