"""CPU time of a training step, and of an evaluation batch, under both libraries and in a plain loop, in one run.

Run ``OMP_NUM_THREADS=1 python benchmarks/step_overhead.py``; ``--rounds`` and ``--steps`` make it longer, ``--modes``
chooses among :data:`MODES`. Each round trains the same tiny models three times, in rotating order: in a loop that only
does the arithmetic, under transformers and under portico. Printed are, for each mode, the medians of the rounds, what
each library adds to the plain loop, and the median of the ratios of what they add. Start-up is left out, but of
whole evaluations at the end.
With ``--split`` a profile says instead in whose functions the time of a step goes.
Times are CPU seconds of the main thread of the first process, so that other processes do not count; waiting for the
other process is not counted either.
"""

import argparse
import cProfile
import itertools
import os
import pstats
import socket
import statistics
import tempfile
import time
from collections import Counter, deque
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import transformers
from record import record
from torch import distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import portico


@dataclass(frozen=True)
class Mode:
    """A way of training: its training arguments, and on how many processes."""

    arguments: Mapping[str, Any] = field(default_factory=dict)
    num_processes: int = 1
    num_layers: int = 8

    @property
    def window(self) -> int:
        """The number of batches of an optimizer step."""
        return int(self.arguments.get("gradient_accumulation_steps", 1))

    def autocast(self) -> Any:
        """Return the context of a forward pass."""
        return torch.autocast("cpu", torch.bfloat16) if self.arguments.get("bf16") else nullcontext()


MODES = {
    "1 layer": Mode(num_layers=1),
    "8 layers": Mode(),
    "log each step": Mode({"logging_strategy": "steps", "logging_steps": 1}),
    "accumulation 4": Mode({"gradient_accumulation_steps": 4}),
    "bf16": Mode({"bf16": True}),
    "two processes": Mode(num_processes=2),
    "two processes, bf16": Mode({"bf16": True}, num_processes=2),
}
BATCH_SIZE = 8


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


def training_step_time(library: Any, mode: Mode, num_steps: int, profile: cProfile.Profile | None = None) -> float:
    """Return the CPU microseconds of a training step under ``library``, without those of the first ones."""
    with tempfile.TemporaryDirectory() as folder:
        clock = Clock(profile)
        options = {"logging_strategy": "no", **mode.arguments}
        args = arguments(library, folder, max_steps=num_steps + NUM_WARM_UP_STEPS, save_strategy="no", **options)
        model = Perceptron(mode.num_layers)
        trainer = library.Trainer(model=model, args=args, train_dataset=Points(512), callbacks=[clock])
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
    return clock.seconds / num_steps * 1e6


def plain_training_step_time(mode: Mode, num_steps: int) -> float:
    """Return the CPU microseconds of a step that only does the arithmetic of the default arguments."""
    model = Perceptron(mode.num_layers)
    parallel: nn.Module = model
    points = Points(512)
    sampler = None
    if mode.num_processes > 1:
        parallel = DistributedDataParallel(model, find_unused_parameters=True)  # as transformers
        sampler = DistributedSampler(points)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, weight_decay=0.0, fused=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / (2 * num_steps))
    loader = DataLoader(
        points, BATCH_SIZE, shuffle=sampler is None, sampler=sampler, collate_fn=transformers.default_data_collator
    )
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    history = []
    model.train()
    start = 0.0
    for step in range(NUM_WARM_UP_STEPS + num_steps):
        if step == NUM_WARM_UP_STEPS:
            start = time.thread_time()
        for _ in range(mode.window):
            with mode.autocast():
                loss = parallel(**next(batches))["loss"] / mode.window
            loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        model.zero_grad()
        if "logging_steps" in mode.arguments:
            history.append((loss.item(), norm.item(), scheduler.get_last_lr()[0]))
    return (time.thread_time() - start) / num_steps * 1e6


def evaluation_batch_time(library: Any, mode: Mode, num_batches: int) -> float:
    """Return the CPU microseconds of a batch of 8 of a prediction under ``library``, without those of its start."""
    with tempfile.TemporaryDirectory() as folder:
        args = arguments(library, folder, **mode.arguments)
        trainer = library.Trainer(model=Perceptron(mode.num_layers), args=args)
        size = BATCH_SIZE * mode.num_processes
        trainer.predict(Points(size * NUM_WARM_UP_STEPS))
        one, all_points = Points(size), Points(size * (num_batches + 1))
        start = time.thread_time()
        trainer.predict(one)
        middle = time.thread_time()
        trainer.predict(all_points)
    return (time.thread_time() - middle - (middle - start)) / num_batches * 1e6


def evaluation_time(library: Any, num_batches: int, num_rounds: int) -> float:
    """Return the CPU microseconds of an evaluation with its start under ``library``."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = library.Trainer(model=Perceptron(1), args=arguments(library, folder))
        points = Points(BATCH_SIZE * num_batches)
        trainer.predict(points)
        start = time.thread_time()
        for _ in range(num_rounds):
            trainer.predict(points)
    return (time.thread_time() - start) / num_rounds * 1e6


def plain_evaluation_batch_time(mode: Mode, num_batches: int) -> float:
    """Return the CPU microseconds of a batch of a loop that only computes losses, logits and labels and keeps them.

    On several processes it gathers each of the three.
    """
    model = Perceptron(mode.num_layers).eval()
    points = Points(BATCH_SIZE * mode.num_processes * num_batches)
    sampler = DistributedSampler(points, shuffle=False) if mode.num_processes > 1 else None
    loader = DataLoader(points, BATCH_SIZE, sampler=sampler, collate_fn=transformers.default_data_collator)
    start = time.thread_time()
    losses, logits, labels = [], [], []
    with torch.no_grad():
        for batch in loader:
            with mode.autocast():
                outputs = model(**batch)
            losses.append(_of_all_processes(outputs["loss"].repeat(BATCH_SIZE), mode))
            logits.append(_of_all_processes(outputs["logits"].float(), mode))
            labels.append(_of_all_processes(batch["labels"], mode))
    for tensors in (losses, logits, labels):
        torch.cat(tensors).numpy()
    return (time.thread_time() - start) / num_batches * 1e6


def _of_all_processes(tensor: torch.Tensor, mode: Mode) -> torch.Tensor:
    if mode.num_processes == 1:
        return tensor
    gathered = tensor.new_empty(mode.num_processes * len(tensor), *tensor.shape[1:])
    distributed.all_gather_into_tensor(gathered, tensor.contiguous())
    return gathered


def arguments(library: Any, folder: str, **options: Any) -> Any:
    """Return training arguments without output of ``library``."""
    return library.TrainingArguments(output_dir=folder, report_to="none", disable_tqdm=True, use_cpu=True, **options)


class Clock(transformers.TrainerCallback):
    """Takes the CPU time between the end of the warm-up and the end of the last step."""

    seconds = 0.0

    def __init__(self, profile: cProfile.Profile | None = None) -> None:
        self.profile = profile

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start or stop the clock."""
        if state.global_step == NUM_WARM_UP_STEPS:
            self._start = time.thread_time()
            if self.profile is not None:
                self.profile.enable()
        elif state.global_step == state.max_steps:
            self.seconds = time.thread_time() - self._start
            if self.profile is not None:
                self.profile.disable()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--split", action="store_true")
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=MODES)
    options = parser.parse_args()
    chosen = {name: MODES[name] for name in options.modes}
    compare_modes({name: mode for name, mode in chosen.items() if mode.num_processes == 1}, options)
    several = {name: mode for name, mode in chosen.items() if mode.num_processes > 1}
    if several:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        multiprocessing.spawn(measure_together, (port, several, options), nprocs=2)
    if "1 layer" in chosen and not options.split:
        for num_batches in (1, 6, 12, 24):
            pairs = [
                [evaluation_time(one, num_batches, 5) for one in (portico, transformers)]
                for _ in range(options.rounds)
            ]
            record(f"evaluation of {num_batches} batches with its start", [ours / theirs for ours, theirs in pairs])
            ours, theirs = (statistics.median(times) for times in zip(*pairs, strict=True))
            print(f"evaluation of {num_batches} batches, microseconds: transformers {theirs:.0f}, portico {ours:.0f}")


def measure_together(rank: int, port: int, modes: Mapping[str, Mode], options: argparse.Namespace) -> None:
    """Measure in one of two processes, as ``torchrun`` starts them."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    distributed.init_process_group("gloo")
    compare_modes(modes, options, is_first=rank == 0)
    distributed.destroy_process_group()


def compare_modes(modes: Mapping[str, Mode], options: argparse.Namespace, *, is_first: bool = True) -> None:
    """Measure steps and batches in each of ``modes``; the first process prints."""
    torch.set_num_threads(1)
    if options.split:
        for name, mode in modes.items():
            for library in (transformers, portico):
                split_step(name, library, mode, options.steps, is_first=is_first)
        return
    for name, mode in modes.items():
        plain = partial(plain_training_step_time, mode)
        loops = {library.__name__: partial(training_step_time, library, mode) for library in (transformers, portico)}
        compare(f"microseconds a training step, {name}", {"plain loop": plain, **loops}, options, is_first=is_first)
    for name, mode in modes.items():
        if mode.arguments.keys() - {"bf16"}:
            continue  # they act in training only
        plain = partial(plain_evaluation_batch_time, mode)
        loops = {
            library.__name__: partial(evaluation_batch_time, library, mode) for library in (transformers, portico)
        }
        loops = {"plain loop": plain, **loops}
        compare(f"microseconds an evaluation batch, {name}", loops, options, is_first=is_first)


def split_step(title: str, library: Any, mode: Mode, num_steps: int, *, is_first: bool) -> None:
    """Print in whose functions the time of a step goes, and how many Python functions of each are called.

    A profile makes functions slower, most of all small ones. What is written in C counts for torch.
    """
    profile = cProfile.Profile(time.thread_time)
    training_step_time(library, mode, num_steps, profile)
    if not is_first:
        return
    seconds: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    statistics_by_function: Mapping[Any, Any] = pstats.Stats(profile).stats  # type: ignore[attr-defined]  # undocumented
    for (file, _, _), (_, num_calls, own_seconds, *_) in statistics_by_function.items():
        package = file.rpartition("/site-packages/")[2].rpartition("/src/")[2].partition("/")[0]
        owner = package if package in ("accelerate", "lightning", "portico", "transformers") else "torch and others"
        seconds[owner] += own_seconds
        calls[owner] += num_calls * (file != "~")  # which stands for C
    total = sum(seconds.values())
    parts = [
        f"{owner} {seconds[owner] / total:.0%}, {calls[owner] / num_steps:.0f} calls" for owner in sorted(seconds)
    ]
    print(f"{title}, {library.__name__}: {'; '.join(parts)}", flush=True)


def compare(title: str, loops: Mapping[str, Any], options: argparse.Namespace, *, is_first: bool) -> None:
    """Print what each library takes, and adds to the plain loop."""
    order = deque(loops)
    rounds = []
    for _ in range(options.rounds):
        rounds.append({name: loops[name](options.steps) for name in order})
        order.rotate()
    if not is_first:
        return
    print(title)
    added = {name: [times[name] - times["plain loop"] for times in rounds] for name in loops}
    for name in loops:
        total = statistics.median(times[name] for times in rounds)
        print(f"  {name:13}{total:8.0f}{statistics.median(added[name]):+8.0f}")
    ratios = [ours / theirs for ours, theirs in zip(added["portico"], added["transformers"], strict=True)]
    record(f"{title}, above a plain loop", ratios)
    median = statistics.median(ratios)
    print(f"  ratio of what is added {median:.2f} (from {min(ratios):.2f} to {max(ratios):.2f})", flush=True)


if __name__ == "__main__":
    main()
