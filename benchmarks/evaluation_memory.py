"""What an evaluation costs in memory and time, beside transformers, as its set grows.

Each measurement has a process of its own, since memory once used does not all go back. The growth of resident memory
is taken from the end of a warm-up (an evaluation of a few batches) to the highest point of the evaluation; the kernel
is asked for the highest point, so nothing falls between two looks.

    python benchmarks/evaluation_memory.py
    python benchmarks/evaluation_memory.py --ragged --sizes 10000
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

import torch
import transformers
from process_memory import MEBIBYTE, forget_peak, peak, resident
from torch import nn
from torch.utils.data import Dataset, IterableDataset

import portico

SEQUENCE_LENGTH = 128
NUM_LABELS = 16
BATCH_SIZE = 32


class Tokens(Dataset[dict[str, torch.Tensor]]):
    """Made-up examples that take no memory; with ``ragged``, of many lengths."""

    def __init__(self, size: int, ragged: bool) -> None:
        self.size = size
        self.ragged = ragged

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        # All examples of a batch are equally long, as a sampler that groups by length arranges.
        batch = index // BATCH_SIZE
        length = SEQUENCE_LENGTH // 2 + batch * 37 % (SEQUENCE_LENGTH // 2) if self.ragged else SEQUENCE_LENGTH
        return {"x": torch.full((length,), index % 7), "labels": torch.full((length,), index % NUM_LABELS)}


class Stream(IterableDataset[dict[str, torch.Tensor]]):
    """The same examples without a length."""

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens

    def __iter__(self) -> Any:
        return (self.tokens[index] for index in range(len(self.tokens)))


class Tagger(nn.Module):
    """A table of logits: all it costs is to keep what it gives."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, NUM_LABELS)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return loss, ``float32 []``, and logits, ``float32 [batch, tokens, labels]``."""
        logits = self.table(x)
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


def measure(library: Any, size: int, *, ragged: bool, stream: bool) -> dict[str, float]:
    """Return the MiB that were asked for, the MiB that memory grew by at most, and the CPU seconds."""
    asked = 0

    def compute_metrics(prediction: Any) -> dict[str, float]:
        nonlocal asked
        asked = prediction.predictions.nbytes + prediction.label_ids.nbytes
        return {}

    def examples(number: int) -> Any:
        tokens = Tokens(number, ragged)
        return Stream(tokens) if stream else tokens

    with tempfile.TemporaryDirectory() as folder:
        trainer = library.Trainer(
            model=Tagger(),
            args=library.TrainingArguments(
                output_dir=folder,
                per_device_eval_batch_size=BATCH_SIZE,
                report_to="none",
                disable_tqdm=True,
                use_cpu=True,
            ),
            compute_metrics=compute_metrics,
        )
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.evaluate(examples(BATCH_SIZE * 8))
        before = resident()
        forget_peak()
        start = time.process_time()
        trainer.evaluate(examples(size))
        seconds = time.process_time() - start
    return {"asked": asked / MEBIBYTE, "grown": peak() - before, "seconds": seconds}


def _in_own_process(library: str, size: int, options: argparse.Namespace) -> dict[str, float]:
    flags = [flag for flag, is_set in (("--ragged", options.ragged), ("--stream", options.stream)) if is_set]
    command = [sys.executable, __file__, "--measure", library, "--sizes", str(size), *flags]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    output = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    measured: dict[str, float] = json.loads(output.splitlines()[-1])
    return measured


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 20_000, 40_000], help="for both libraries")
    parser.add_argument("--larger", type=int, nargs="*", default=[], help="for portico alone")
    parser.add_argument("--ragged", action="store_true", help="batches of many widths")
    parser.add_argument("--stream", action="store_true", help="a set without a length")
    parser.add_argument("--measure", choices=["transformers", "portico"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        library = {"transformers": transformers, "portico": portico}[options.measure]
        print(json.dumps(measure(library, options.sizes[0], ragged=options.ragged, stream=options.stream)))
        return
    print(f"{'library':13}{'examples':>10}{'asked MiB':>11}{'grown MiB':>11}{'ratio':>7}{'CPU s':>8}")
    cases = [(library, size) for size in options.sizes for library in ("transformers", "portico")]
    for library, size in cases + [("portico", size) for size in options.larger]:
        figures = _in_own_process(library, size, options)
        ratio = figures["grown"] / figures["asked"]
        print(
            f"{library:13}{size:10}{figures['asked']:11.0f}{figures['grown']:11.0f}{ratio:7.2f}{figures['seconds']:8.1f}"
        )


if __name__ == "__main__":
    main()
