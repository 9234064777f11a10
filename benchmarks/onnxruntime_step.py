"""Time of a training step and of an evaluation step in eager mode, inductor and ONNX Runtime, side by side.

Run ``python benchmarks/onnxruntime_step.py``. The model is a BERT reader of MiniLM's size; a step is forward, backward
and AdamW. Each round measures every way in turn, so that what else the machine does falls on all of them; printed are
medians over the rounds, and the median and the range of the ratios to eager mode. Times are CPU seconds. ``--memory``
compares peak memory instead, each way in a process of its own; ``--profile`` adds where ONNX Runtime's time goes.

``--first-step`` measures processes until the end of their first step instead, imports included, each way with the
cache that a run before it has filled. ``--products`` measures parts of a training step alone: the matrix products by
torch and by ONNX Runtime, the draws of dropout and the optimizer, which run in torch either way, and one pass over
what is between the products. They bound what a step can gain. ``--model resnet`` takes a ResNet of basic blocks.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import transformers
from record import record

import portico.ort
from portico.ort.api import get_compiled_call

SIZES = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
BLOCKS = {"embedding_size": 32, "hidden_sizes": [32, 64, 128, 256], "depths": [2, 2, 2, 2], "layer_type": "basic"}
WAYS = ["eager", "inductor", "inductor-dynamic", "onnxruntime"]


def network(kind: str, way: str, *, profile: bool = False) -> Any:
    """Return a model that runs in the given way."""
    torch.manual_seed(0)
    if kind == "bert":
        model = transformers.BertForQuestionAnswering(transformers.BertConfig(**SIZES)).train()
    else:
        model = transformers.ResNetForImageClassification(transformers.ResNetConfig(**BLOCKS, num_labels=10)).train()
    if way == "onnxruntime":
        return portico.ort.compile(model, settings=portico.ort.SessionSettings(profile=profile))
    # As inductor chooses, for the sizes of the first batch, or for any size, as portico's graphs are.
    kinds: dict[str, dict[str, Any]] = {"inductor": {}, "inductor-dynamic": {"dynamic": True}}
    return torch.compile(model, **kinds[way]) if way in kinds else model


def images(rows: int, side: int) -> dict[str, torch.Tensor]:
    """Return random images with labels."""
    return {"pixel_values": torch.randn(rows, 3, side, side), "labels": torch.randint(0, 10, (rows,))}


def batch(rows: int, length: int) -> dict[str, torch.Tensor]:
    """Return random questions."""
    ends = {name: torch.randint(0, length, (rows,)) for name in ("start_positions", "end_positions")}
    mask = torch.ones(rows, length, dtype=torch.long)
    return {"input_ids": torch.randint(1000, 30000, (rows, length)), "attention_mask": mask, **ends}


def training_step(model: Any, inputs: dict[str, torch.Tensor]) -> Callable[[], None]:
    """Return a function that takes one training step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

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


def peak_of(way: str, step: Callable[[], None]) -> None:
    """Print the peak memory of a few steps of this process."""
    for _ in range(3):
        step()
    # Linux counts in KiB.
    print(f"{way:12} peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:7.0f} MiB")


def compare_memory(ways: list[str]) -> None:
    """Run this script again for each way, with the same options."""
    for way in ways:
        subprocess.run([sys.executable, __file__, *sys.argv[1:], "--peak-of", way], check=True)


def first_step(options: argparse.Namespace) -> None:
    """Print the CPU and wall seconds of fresh processes until the end of the first step, with a warm cache."""
    command = [sys.executable, __file__, *sys.argv[1:], "--peak-of"]
    with tempfile.TemporaryDirectory() as folder:
        caches = {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "PORTICO_ORT_CACHE_DIR": f"{folder}/onnxruntime"}
        measured: dict[str, list[tuple[float, float]]] = {way: [] for way in options.ways}
        for turn in range(options.rounds + 1):
            for way in options.ways:
                before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
                subprocess.run([*command, way], check=True, stdout=subprocess.DEVNULL, env={**os.environ, **caches})
                after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - start
                cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
                if turn:
                    measured[way].append((cpu, wall))
                else:
                    print(f"{way:16} {cpu:6.1f} CPU s {wall:6.1f} s with an empty cache", flush=True)
    for way, pairs in measured.items():
        cpu, wall = map(statistics.median, zip(*pairs, strict=True))
        print(f"{way:16} {cpu:6.1f} CPU s {wall:6.1f} s with a full one")
    for peer in [way for way in measured if way.startswith("inductor") and "onnxruntime" in measured]:
        for index, kind in enumerate(("CPU", "wall")):
            rounds = zip(measured["onnxruntime"], measured[peer], strict=True)
            ratios = [own[index] / its[index] for own, its in rounds]
            spread = f"{statistics.median(ratios):.2f} (from {min(ratios):.2f} to {max(ratios):.2f})"
            print(f"onnxruntime, {kind} time of that of {peer}: {spread}")
            if kind == "CPU":
                record(f"ONNX Runtime, cached start to the end of the first step, of {peer}'s", ratios)


def products(options: argparse.Namespace) -> None:
    """Measure the matrix products of a step, forward and backward, alone, and what runs in torch in any case."""
    rows, hidden, inner = options.rows * options.length, SIZES["hidden_size"], SIZES["intermediate_size"]
    depth, heads, length = SIZES["num_hidden_layers"], SIZES["num_attention_heads"], options.length
    layers = [*[(hidden, hidden)] * 4, (hidden, inner), (inner, hidden)] * depth
    linear = [(1, *shape) for k, n in layers for shape in ((rows, k, n), (rows, n, k), (k, rows, n))]
    # Scores and mixed values, and each one's two derivatives.
    by_head = (length, hidden // heads, length), (length, length, hidden // heads)
    attention = [(options.rows * heads, *shape) for shape in [by_head[0], *[by_head[1]] * 2] * 2 * depth]
    shapes = {"linear layers": linear, "attention": attention}
    sides = {side: torch.randn(side) for g, a, k, n in linear + attention for side in ((g, a, k), (g, k, n))}
    sessions = {
        (g, a, k, n): product(sides[g, a, k], sides[g, k, n], options.threads) for g, a, k, n in linear + attention
    }
    model, step = made_step(options, "eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    kept = [torch.empty(options.rows, heads, length, length)] * depth + [torch.empty(rows, hidden)] * (2 * depth + 1)

    # What is read and written at least, forward and backward, if all operators between two products were one: softmax
    # with its dropout, GELU, and twice dropout, sum and layer norm.
    by_layer = [*[(options.rows * heads, length, length)] * 2, *[(rows, inner)] * 2, *[(rows, hidden)] * 6]
    moved = [(torch.randn(shape), torch.empty(shape)) for shape in by_layer]

    def draw() -> None:
        for tensor in kept:
            tensor.bernoulli_(0.9)

    def move() -> None:
        for _ in range(depth):
            for source, target in moved:
                target.copy_(source)

    in_any_case = {"draws": draw, "optimizer": optimizer.step, "one pass between products": move}
    ways: dict[str, Callable[[], Any]] = {"eager step": step, **in_any_case}
    for kind, some in shapes.items():
        ways[f"{kind}, torch"] = lambda some=some: [sides[g, a, k] @ sides[g, k, n] for g, a, k, n in some]
        ways[f"{kind}, ONNX Runtime"] = lambda some=some: [sessions[shape]() for shape in some]
    clock = time.perf_counter if options.wall else time.process_time
    times: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(options.rounds + 2):
        for way, work in ways.items():
            taken = seconds(work, 1, clock)
            if turn > 1:
                times[way].append(taken)
    for way, measured in times.items():
        share = statistics.median(own / whole for own, whole in zip(measured, times["eager step"], strict=True))
        print(f"{way:30} {statistics.median(measured) * 1e3:7.0f} ms, {share:.2f} of an eager step")
    for library in ("torch", "ONNX Runtime"):
        parts = zip(*(times[part] for part in (*(f"{kind}, {library}" for kind in shapes), *in_any_case)), strict=True)
        least = statistics.median(sum(part) / whole for part, whole in zip(parts, times["eager step"], strict=True))
        print(f"with products by {library}, these parts take {least:.2f} of an eager step together")


def product(x: torch.Tensor, y: torch.Tensor, num_threads: int) -> Callable[[], None]:
    """Return a function that multiplies two tensors in ONNX Runtime."""
    import onnx
    import onnxruntime

    infos = [onnx.helper.make_tensor_value_info(name, 1, of.shape) for name, of in (("x", x), ("y", y))]
    result = onnx.helper.make_tensor_value_info("z", 1, (*x.shape[:2], y.shape[2]))
    node = onnx.helper.make_node("MatMul", ["x", "y"], ["z"])
    opsets = [onnx.helper.make_opsetid("", 20)]
    graph = onnx.helper.make_graph([node], "product", infos, [result])
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = num_threads
    session = onnxruntime.InferenceSession(model, settings, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    binding.bind_cpu_input("x", x.numpy())
    binding.bind_cpu_input("y", y.numpy())
    binding.bind_output("z", "cpu")
    return lambda: session.run_with_iobinding(binding)


def parsed() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=2, help="steps a round")
    parser.add_argument("--length", type=int, default=128, help="tokens of a row")
    parser.add_argument("--model", choices=["bert", "resnet"], default="bert")
    parser.add_argument("--side", type=int, default=64, help="pixels of an image's side")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--wall", action="store_true", help="wall time, for a machine that does nothing else")
    parser.add_argument("--evaluation", action="store_true", help="evaluate instead of train")
    parser.add_argument("--memory", action="store_true", help="peak memory instead of time")
    parser.add_argument("--first-step", action="store_true", help="time of fresh processes to the end of a step")
    parser.add_argument("--products", action="store_true", help="time of the parts of a step")
    parser.add_argument("--peak-of", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--profile", action="store_true", help="show where ONNX Runtime's time goes")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=["eager", "inductor", "onnxruntime"])
    return parser.parse_args()


def made_step(options: argparse.Namespace, way: str) -> tuple[Any, Callable[[], None]]:
    """Return a model and what is measured of it."""
    model = network(options.model, way, profile=options.profile)
    inputs = batch(options.rows, options.length) if options.model == "bert" else images(options.rows, options.side)
    if options.evaluation:
        return model, evaluation_step(model.eval(), inputs)
    return model, training_step(model, inputs)


def main() -> None:
    """Measure and print."""
    options = parsed()
    torch.set_num_threads(options.threads)
    if options.peak_of:
        step = made_step(options, options.peak_of)[1]
        step() if options.first_step else peak_of(options.peak_of, step)
    elif options.first_step:
        first_step(options)
    elif options.products:
        products(options)
    elif options.memory:
        compare_memory(options.ways)
    else:
        compare_time(options)


def compare_time(options: argparse.Namespace) -> None:
    """Measure every way in turn, round by round."""
    clock = time.perf_counter if options.wall else time.process_time
    made, times = {way: made_step(options, way) for way in options.ways}, {}
    for way, (_, step) in made.items():
        print(f"{way:12} first step {seconds(step, 1, clock):7.1f} s")
        seconds(step, 1, clock)
        times[way] = []
    for _ in range(options.rounds):
        for way, (_, step) in made.items():
            times[way].append(seconds(step, options.steps, clock))
    for way, measured in times.items():
        ratios = [own / eager for own, eager in zip(measured, times["eager"], strict=True)]
        if way == "onnxruntime":
            kind = "evaluation" if options.evaluation else "training"
            size = f"at {options.length} tokens" if options.model == "bert" else "of a ResNet"
            record(f"ONNX Runtime, {kind} step {size}, of eager mode", ratios)
        spread = f"{statistics.median(ratios):.2f} (from {min(ratios):.2f} to {max(ratios):.2f})"
        print(f"{way:12} {statistics.median(measured) * 1e3:7.0f} ms a step, of eager mode's {spread}")
    if options.profile:
        print(get_compiled_call(made["onnxruntime"][0]).report)


if __name__ == "__main__":
    main()
