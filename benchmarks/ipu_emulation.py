"""CPU time of an emulated step beside the plain torch steps it stands for.

Run ``python benchmarks/ipu_emulation.py``; ``--rounds`` and ``--calls`` make it longer. A call of the emulated program
makes ``iterations`` weight updates of ``accumulation x replicas`` micro-batches each; the plain loop makes the same
updates from the same micro-batches. Rounds alternate; printed are medians and the median of the ratios.
Times are CPU seconds of the main thread, so that other processes do not count.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from record import record
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification

import poptorch_emulator as poptorch
from portico.ipu.program import DeviceProgram

SHAPES = ((1, 1, 1), (1, 1, 8), (2, 2, 4))


def new_model() -> nn.Module:
    """Return a small BERT without dropout."""
    torch.manual_seed(0)
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=1000,
            hidden_size=128,
            num_hidden_layers=4,
            num_attention_heads=4,
            intermediate_size=512,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )


def new_batch(rows: int) -> dict[str, Tensor]:
    """Return ``rows`` sentences of 64 tokens."""
    generator = torch.Generator().manual_seed(1)
    return {
        "input_ids": torch.randint(1, 1000, (rows, 64), generator=generator),
        "labels": torch.randint(0, 2, (rows,), generator=generator),
    }


def plain_call(batch: dict[str, Tensor], iterations: int, micro_batches: int) -> Callable[[], None]:
    """Return a function that makes the updates in a plain loop."""
    model = new_model().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    parts = [
        dict(zip(batch, values, strict=True))
        for values in zip(*(tensor.chunk(iterations * micro_batches) for tensor in batch.values()), strict=True)
    ]

    def call() -> None:
        for iteration in range(iterations):
            for part in parts[iteration * micro_batches : (iteration + 1) * micro_batches]:
                (model(**part).loss / micro_batches).backward()
            optimizer.step()
            optimizer.zero_grad()

    return call


def emulated_call(batch: dict[str, Tensor], iterations: int, replicas: int, accumulation: int) -> Callable[[], None]:
    """Return a function that makes the updates on the emulator."""
    options = poptorch.Options().deviceIterations(iterations).replicationFactor(replicas)
    options.Training.gradientAccumulation(accumulation)
    model = new_model()
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=1e-4)
    program = poptorch.trainingModel(DeviceProgram(model, training=True), options, optimizer)

    def call() -> None:
        program.setOptimizer(optimizer)
        program(**batch)

    return call


def seconds(call: Callable[[], None], num_calls: int) -> float:
    """Return the CPU seconds of a call."""
    started = time.thread_time()
    for _ in range(num_calls):
        call()
    return (time.thread_time() - started) / num_calls


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--calls", type=int, default=3)
    parsed = parser.parse_args()
    torch.set_num_threads(1)
    for iterations, replicas, accumulation in SHAPES:
        batch = new_batch(4 * iterations * replicas * accumulation)
        plain = plain_call(batch, iterations, replicas * accumulation)
        emulated = emulated_call(batch, iterations, replicas, accumulation)
        plain(), emulated()
        pairs = [(seconds(plain, parsed.calls), seconds(emulated, parsed.calls)) for _ in range(parsed.rounds)]
        ratios = [ours / theirs for theirs, ours in pairs]
        theirs, ours = (statistics.median(column) * 1e3 for column in zip(*pairs, strict=True))
        ratio = statistics.median(ratios)
        shape = f"{iterations} iterations x {replicas} replicas x {accumulation} accumulated"
        print(f"{shape:46} plain {theirs:8.1f} ms, emulated {ours:8.1f} ms, ratio {ratio:.2f}")
        record(f"emulated IPU, {shape}, of plain torch", ratios)


if __name__ == "__main__":
    main()
