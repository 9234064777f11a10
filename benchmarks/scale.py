"""What a step, a checkpoint, an evaluation and a resume cost at a size that nobody measures on a laptop.

    python benchmarks/scale.py
    python benchmarks/scale.py --here

A small simulation: sizes of weights, gradients and optimizer states, of what goes over the network in a step, and of
what is read and written, divided by the rates below. Rates of the machine are of NVIDIA's H100 in nodes of eight; each
is printed with its source, and is an option. NVIDIA's figures were read at [1] and [2]; what is called assumed has no
source, and is to be replaced by what a machine measures. The simulation assumes that nothing overlaps but what it
says, so it bounds from above, and that no device waits for a slower one, so it bounds from below.

``--here`` measures every rate that two processes of this machine have, over gloo, and compares the steps and the
checkpoints that the simulation makes of them with those of ``portico.Trainer``.

[1] https://glennklockwood.com/garden/processors/h100
[2] https://docs.nvidia.com/networking/display/MLNXOFEDv590560127/Release+Notes
"""

import argparse
import os
import socket
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


def rate(default: float, source: str) -> Any:
    """Return a field with the source of its value."""
    return field(default=default, metadata={"source": source})


@dataclass
class Machine:
    """Rates of a machine, and what software costs."""

    flops: float = rate(400e12, "40% of the 989e12 of the H100 SXM, dense [1]; the share is assumed")
    """Operations a second of a device in bfloat16 that training reaches."""
    memory: float = rate(80e9, "H100 SXM [1]")
    """Bytes of a device."""
    bandwidth: float = rate(3.35e12, "H100 SXM, at most [1]")
    """Bytes a second that a device reads from and writes to its memory."""
    in_node: float = rate(300e9, "two thirds of NVLink's 450e9 each way [1]; the share is assumed")
    """Bytes a second between the devices of a node."""
    between_nodes: float = rate(50e9, "a 400 Gb/s ConnectX-7 [2]; one for each device is assumed")
    """Bytes a second of each device to other nodes."""
    latency: float = rate(15e-6, "assumed")
    """Seconds of a collective for each doubling of the devices."""
    disk_of_node: float = rate(2e9, "assumed")
    """Bytes a second that a node writes to or reads from a shared file system."""
    disk_of_all: float = rate(50e9, "assumed")
    """Bytes a second of the file system, for all nodes together."""
    to_host: float = rate(25e9, "40% of the 64e9 each way of PCI Express 5.0 x16 [1]; the share is assumed")
    """Bytes a second from a device to the memory of its host."""
    step: float = rate(0.5e-3, "twice what benchmarks/step_overhead.py measured on one CPU core")
    """Seconds of this package for each step, on the host, while the device computes."""
    read_batch: float = rate(1e-3, "assumed; --here measures eight examples of 2,048 tokens from an Arrow file")
    """Seconds to read a batch of a stream."""
    drawn_index: float = rate(300e-9, "measured on one CPU core, of 10^8; --here measures 10^7")
    """Seconds to draw one index of a random order."""
    value_bytes: float = rate(2, "bfloat16")
    """Bytes of a weight, and of its gradient, in a collective."""
    saved_bytes: float = rate(14, "bfloat16 and float32 weights and two float32 moments")
    """Bytes of a parameter in a checkpoint."""
    index_bytes: float = rate(4, "the type of the order")
    """Bytes of one index of a random order."""
    row: float = rate(20e-6, "measured on one CPU core (benchmarks/mrc_post_processing.py)")
    """Seconds to post-process one example of an evaluation, in each process for all."""


@dataclass
class Plan:
    """One run."""

    devices: int
    parameters: float
    examples: float = 1e9
    tokens: int = 2048
    per_device: int = 1
    layers: int = 80

    @property
    def nodes(self) -> int:
        """Machines of eight devices."""
        return max(self.devices // 8, 1)

    @property
    def batch(self) -> int:
        """Examples of a step."""
        return self.devices * self.per_device


STATE = 16  # bytes of a parameter in training: bfloat16 and float32 weights, gradients, two float32 moments


def link(plan: Plan, machine: Machine) -> float:
    """Return the rate between devices of the run."""
    return machine.in_node if plan.nodes == 1 else machine.between_nodes


def step_seconds(plan: Plan, machine: Machine, *, sharded: bool) -> tuple[float, float]:
    """Return the seconds of a step that compute, and those of its traffic, most of which can overlap."""
    compute = 6 * plan.parameters * plan.tokens * plan.per_device / machine.flops
    # AdamW reads gradients, weights and two moments in float32, and writes all but the gradients.
    compute += 7 * 4 * plan.parameters / (plan.devices if sharded else 1) / machine.bandwidth
    # An all-reduce of the gradients; sharded, two all-gathers of the weights and a reduce-scatter.
    volume = machine.value_bytes * plan.parameters * (3 if sharded else 2) * (plan.devices - 1) / plan.devices
    rounds = (3 * plan.layers if sharded else 20) * machine.latency * max(plan.devices.bit_length() - 1, 1)
    return compute + machine.step, volume / link(plan, machine) + rounds


def checkpoint_seconds(plan: Plan, machine: Machine, *, sharded: bool) -> tuple[float, float]:
    """Return the seconds a checkpoint takes, and those in which training stands still if it is written behind it."""
    total = machine.saved_bytes * plan.parameters
    if not sharded:
        return total / machine.to_host + total / machine.disk_of_node, total / machine.to_host
    rate = min(machine.disk_of_node * plan.nodes, machine.disk_of_all)
    return total / plan.devices / machine.to_host + total / rate, total / plan.devices / machine.to_host


def resume_seconds(plan: Plan, machine: Machine, *, sharded: bool) -> dict[str, float]:
    """Return the seconds to read a checkpoint, and to find the place in the middle of the data."""
    total = machine.saved_bytes * plan.parameters
    rate = min(machine.disk_of_node * plan.nodes, machine.disk_of_all)
    # Without sharding each process reads the whole.
    seen = plan.examples / 2
    return {
        "weights": total * (1 if sharded else plan.devices) / rate,
        "skipped": seen / plan.per_device * machine.read_batch,  # the first process reads for all
    }


def evaluation_seconds(plan: Plan, machine: Machine, examples: float = 1e6) -> tuple[float, float]:
    """Return the seconds of the forward passes, and those after which each process has the results of all."""
    forward = 2 * plan.parameters * plan.tokens * examples / plan.devices / machine.flops
    return forward, examples * machine.row


# What this machine has


def best(work: Callable[[], Any], times: int = 5) -> float:
    """Return the least seconds of a call: whatever else runs only adds to them."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return min(taken)


def own_rates(folder: Path) -> dict[str, float]:
    """Return the rates that one process can measure."""
    import datasets

    order = torch.arange(10**7)
    rows = datasets.Dataset.from_dict({"ids": torch.randint(9999, (64, 2048)).numpy()})
    rows.save_to_disk(folder / "rows")
    stream = iter(datasets.load_from_disk(folder / "rows").with_format("torch").to_iterable_dataset().batch(8))
    mebibytes = torch.zeros(2**26)
    spare = torch.empty_like(mebibytes)

    def write() -> None:
        with (folder / "written").open("wb") as file:
            file.write(mebibytes.numpy())
            os.fsync(file.fileno())

    copied = best(lambda: spare.copy_(mebibytes))
    return {
        "bandwidth": 2 * 2**28 / copied,
        "disk_of_node": 2**28 / best(write, 3),
        "to_host": 2**28 / copied,
        "read_batch": best(lambda: next(stream)),
        "drawn_index": best(lambda: torch.randperm(len(order), dtype=torch.int32), 3) / len(order),
    }


def shared_rates() -> dict[str, float]:
    """Return the rates of connected processes, and of what they compute at the same time."""
    dist.init_process_group("gloo")
    large, one, square = torch.zeros(2**24), torch.zeros(1), torch.rand(1024, 1024)
    number = dist.get_world_size()
    rates = {
        "in_node": 2 * 2**26 * (number - 1) / number / best(lambda: dist.all_reduce(large)),
        "latency": best(lambda: [dist.all_reduce(one) for _ in range(100)]) / 100,
        "flops": 2 * 1024**3 / best(lambda: square @ square, 20),
    }
    dist.destroy_process_group()
    return rates


SIZES = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 4}
HERE = {"tokens": 128, "per_device": 4, "layers": SIZES["num_hidden_layers"], "devices": 2}


def measured_run(folder: Path, **settings: Any) -> tuple[float, float, float]:
    """Return the seconds of a step and of a checkpoint under ``portico.Trainer``, and the number of parameters."""
    import transformers

    import portico

    class Times(transformers.TrainerCallback):
        """Takes the time of every step but the first ones, and of the checkpoint at the end."""

        def __init__(self) -> None:
            self.steps: list[float] = []
            self.start = self.checkpoint = 0.0

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.start = time.perf_counter()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.steps.append(time.perf_counter() - self.start)
            self.start = time.perf_counter()

        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.checkpoint = time.perf_counter() - self.start

    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=1000, **SIZES))
    ids = torch.randint(1000, (HERE["tokens"],))
    options = {"max_steps": 14, "save_steps": 14, "save_strategy": "steps", "logging_steps": 100, **settings}
    quiet = {"use_cpu": True, "report_to": "none", "disable_tqdm": True}
    args = portico.TrainingArguments(str(folder), per_device_train_batch_size=HERE["per_device"], **quiet, **options)
    data = [{"input_ids": ids, "labels": ids}] * 200
    times = Times()
    portico.Trainer(model, args, train_dataset=data, callbacks=[times]).train()
    number = sum(parameter.numel() for parameter in model.parameters())
    return min(times.steps[4:]), times.checkpoint, number


def _in_process(rank: int, port: int, work: Callable[..., Any], folder: str, settings: dict[str, Any]) -> None:
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in {**places, "MASTER_ADDR": "127.0.0.1"}.items()})
    torch.set_num_threads(1)
    result = work(**settings)
    if rank == 0:
        torch.save(result, Path(folder) / "result")


def in_two_processes(work: Callable[..., Any], place: Path, **settings: Any) -> Any:
    """Return what ``work`` returns in the first of two processes that are connected as torchrun connects them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(_in_process, (port, work, str(place), settings), nprocs=2)
    return torch.load(place / "result")


def compare_here() -> None:
    """Print the rates of this machine, and what the simulation makes of them next to what was measured."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rates = {**own_rates(folder), **in_two_processes(shared_rates, folder)}
        for rate_name, value in rates.items():
            print(f"{rate_name:>13}  {value:.3g}  measured here")
        machine = Machine(**rates, value_bytes=4, saved_bytes=12, disk_of_all=rates["disk_of_node"])
        print("two processes      step s: simulated, measured   checkpoint s: simulated, measured")
        for way, settings in {"ddp": {"ddp_find_unused_parameters": False}, "fsdp": {"fsdp": True}}.items():
            step, saved, number = in_two_processes(measured_run, folder, folder=folder / way, **settings)
            plan, sharded = Plan(parameters=number, **HERE), way == "fsdp"
            own = sum(step_seconds(plan, machine, sharded=sharded))
            written = checkpoint_seconds(plan, machine, sharded=sharded)[0]
            print(f"{way:>5} of {number / 1e6:.1f}M {own:>15.3f} {step:>9.3f} {written:>25.3f} {saved:>9.3f}")


def main() -> None:
    """Print one row for each run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for one in fields(Machine):
        parser.add_argument(f"--{one.name}", type=float, default=one.default, help=one.metadata["source"])
    parser.add_argument("--here", action="store_true", help="measure and compare on this machine")
    given = vars(parser.parse_args())
    if given.pop("here"):
        compare_here()
        return
    machine = Machine(**given)
    for one in fields(Machine):
        value = getattr(machine, one.name)
        print(f"{one.name:>13}  {value:<7.3g} {one.metadata['source'] if value == one.default else 'given'}")
    print("devices  params  sharded  GB/device  compute s  traffic s  checkpoint s  stall s  load s", end="  ")
    print("skip h  read s  eval h")
    for parameters in (7e9, 70e9):
        for devices in (8, 64, 1024):
            for sharded in (False, True):
                plan = Plan(devices, parameters)
                held = STATE * parameters / (devices if sharded else 1)
                fits = held < machine.memory
                compute, traffic = step_seconds(plan, machine, sharded=sharded)
                whole, stall = checkpoint_seconds(plan, machine, sharded=sharded)
                place = resume_seconds(plan, machine, sharded=sharded)
                forward, rest = evaluation_seconds(plan, machine)
                print(
                    f"{devices:>7}  {parameters / 1e9:>5.0f}B  {'yes' if sharded else 'no':7}  "
                    f"{held / 1e9:>8.1f}{' ' if fits else '!'}  {compute:>9.2f}  {traffic:>9.2f}  {whole:>12.0f}  "
                    f"{stall:>7.1f}  {place['weights']:>6.0f}  {place['skipped'] / 3600:>6.0f}  "
                    f"{devices * machine.read_batch:>6.2f}  {(forward + rest) / 3600:>6.2f}"
                )
    print("!: more than a device holds")
    seconds, size = 1e9 * machine.drawn_index, 1e9 * machine.index_bytes / 1e9
    print(f"random order of 10^9 examples: {seconds:.0f} s and {size:.0f} GB in each process")


if __name__ == "__main__":
    main()
