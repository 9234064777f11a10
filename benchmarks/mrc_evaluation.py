"""What an evaluation of answers costs as its set grows, beside the collection of logits by transformers.

portico keeps the best tokens of each window while the evaluation runs and finishes with the answers and their scores;
transformers.Trainer collects the logits, from which its QA example would begin to look for answers. The reader is a
table, so that hardly anything is spent on the model. Each measurement has a process of its own; memory is the growth
of its resident part from the end of a warm-up to the highest point.

    OMP_NUM_THREADS=1 python benchmarks/mrc_evaluation.py
    OMP_NUM_THREADS=1 python benchmarks/mrc_evaluation.py --sizes 1000 2000
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from typing import Any

import torch
import transformers
from mrc_made_data import Task, squad_task
from process_memory import forget_peak, peak, resident
from record import record
from torch import nn
from transformers.modeling_outputs import QuestionAnsweringModelOutput

import portico
from portico.mrc import SpanPostProcessing, SquadV2

BATCH_SIZE = 8  # the default of both
WARM_UP = 16 * BATCH_SIZE
NUM_TOKENS = 10_000
WAYS = ("transformers, loss only", "transformers", "portico")


class TableReader(nn.Module):
    """Reads the scores of a token as a start and as an end from a table."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(NUM_TOKENS, 2)

    def forward(self, input_ids: torch.Tensor, **ignored: Any) -> QuestionAnsweringModelOutput:
        """Return logits, ``float32 [batch, tokens]``."""
        start_logits, end_logits = self.table(input_ids).unbind(-1)
        return QuestionAnsweringModelOutput(start_logits=start_logits.contiguous(), end_logits=end_logits.contiguous())


def transformers_evaluation(task: Task, folder: str, *, loss_only: bool) -> Any:
    """Return a function that evaluates so many windows with transformers."""
    arguments = transformers.TrainingArguments(folder, **_settings(), prediction_loss_only=loss_only)
    trainer = transformers.Trainer(TableReader(), arguments, compute_metrics=lambda prediction: {})
    trainer.remove_callback(transformers.PrinterCallback)
    rows = task.features.remove_columns(["example_id", "offset_mapping"])
    return lambda size: trainer.evaluate(torch.utils.data.Subset(rows, range(size)))


def portico_evaluation(folder: str) -> Any:
    """Return a function that evaluates all windows of a task with portico, answers and scores included."""

    def evaluate(task: Task) -> None:
        trainer = portico.MRCTrainer(
            TableReader(),
            portico.TrainingArguments(folder, **_settings()),
            eval_dataset=task.features,
            eval_examples=task.examples,
            post_process_function=SpanPostProcessing(version_2_with_negative=True),
            compute_metrics=SquadV2(),
        )
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.evaluate()

    return evaluate


def measure(way: str, size: int) -> dict[str, float]:
    """Return the windows, the processor seconds, and the MiB that memory grew by at most."""
    task, warm_up = squad_task(size), squad_task(WARM_UP)
    with tempfile.TemporaryDirectory() as folder:
        if way == "portico":
            evaluate = portico_evaluation(folder)
            first, whole = warm_up, task
        else:
            evaluate = transformers_evaluation(task, folder, loss_only=way != "transformers")
            first, whole = WARM_UP, len(task.features)
        evaluate(first)
        before = resident()
        forget_peak()
        start = time.process_time()
        evaluate(whole)
        seconds = time.process_time() - start
    return {"windows": len(task.features), "seconds": seconds, "grown": peak() - before}


def _settings() -> dict[str, Any]:
    return {
        "per_device_eval_batch_size": BATCH_SIZE,
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
    }


def _in_own_process(way: str, size: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--measure", way, "--sizes", str(size)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    measured: dict[str, float] = json.loads(output.splitlines()[-1])
    return measured


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[2_000, 4_000, 8_000, 16_000], help="questions")
    parser.add_argument("--measure", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure, options.sizes[0])))
        return
    print(f"{'':26}{'windows':>9}{'CPU s':>8}{'us a window':>13}{'grown MiB':>11}")
    for size in options.sizes:
        seconds = {}
        for way in WAYS:
            figures = _in_own_process(way, size)
            seconds[way] = figures["seconds"]
            each = 1e6 * figures["seconds"] / figures["windows"]
            print(f"{way:26}{figures['windows']:9}{figures['seconds']:8.2f}{each:13.0f}{figures['grown']:11.0f}")
        ratio = seconds["portico"] / seconds["transformers"]
        record(f"evaluation of {size} questions with answers and scores, of transformers' logits", [ratio])


if __name__ == "__main__":
    main()
