"""Time of a training step and of an evaluation step in eager mode, inductor and ONNX Runtime, side by side.

Run ``python benchmarks/onnxruntime_step.py``. The model is a BERT reader of MiniLM's size; a step is forward, backward
and AdamW. Each round measures every way in turn, so that what else the machine does falls on all of them; printed are
medians over the rounds, and the median and the range of the ratios to eager mode. Times are CPU seconds.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import transformers

import portico.ort

SIZES = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}


def reader(way: str) -> Any:
    """Return a model that runs in the given way."""
    torch.manual_seed(0)
    model = transformers.BertForQuestionAnswering(transformers.BertConfig(**SIZES)).train()
    if way == "onnxruntime":
        return portico.ort.compile(model)
    return torch.compile(model) if way == "inductor" else model


def batch(rows: int, length: int) -> dict[str, torch.Tensor]:
    """Return random questions."""
    ends = {name: torch.randint(0, length, (rows,)) for name in ("start_positions", "end_positions")}
    mask = torch.ones(rows, length, dtype=torch.long)
    return {"input_ids": torch.randint(1000, 30000, (rows, length)), "attention_mask": mask, **ends}


def training_step(model: Any, inputs: dict[str, torch.Tensor]) -> Callable[[], None]:
    """Return a function that takes one training step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def step() -> None:
        optimizer.zero_grad()
        model(**inputs)["loss"].backward()
        optimizer.step()

    return step


def evaluation_step(model: Any, inputs: dict[str, torch.Tensor]) -> Callable[[], None]:
    """Return a function that evaluates one batch."""

    def step() -> None:
        with torch.no_grad():
            model(**inputs)

    return step


def seconds(step: Callable[[], None], num_steps: int, clock: Callable[[], float]) -> float:
    """Return the seconds of a step."""
    start = clock()
    for _ in range(num_steps):
        step()
    return (clock() - start) / num_steps


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=2, help="steps a round")
    parser.add_argument("--length", type=int, default=128, help="tokens of a row")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--wall", action="store_true", help="wall time, for a machine that does nothing else")
    parser.add_argument("--evaluation", action="store_true", help="evaluate instead of train")
    parser.add_argument("--ways", nargs="+", default=["eager", "inductor", "onnxruntime"])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    clock = time.perf_counter if options.wall else time.process_time
    inputs = batch(options.rows, options.length)
    make_step = evaluation_step if options.evaluation else training_step
    steps, times = {}, {}
    for way in options.ways:
        model = reader(way)
        steps[way] = make_step(model.eval() if options.evaluation else model, inputs)
        print(f"{way:12} first step {seconds(steps[way], 1, clock):7.1f} s")
        seconds(steps[way], 1, clock)
        times[way] = []
    for _ in range(options.rounds):
        for way, step in steps.items():
            times[way].append(seconds(step, options.steps, clock))
    for way, measured in times.items():
        ratios = [own / eager for own, eager in zip(measured, times["eager"], strict=True)]
        spread = f"{statistics.median(ratios):.2f} (from {min(ratios):.2f} to {max(ratios):.2f})"
        print(f"{way:12} {statistics.median(measured) * 1e3:7.0f} ms a step, of eager mode's {spread}")


if __name__ == "__main__":
    main()
