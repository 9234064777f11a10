"""What a step, a checkpoint, an evaluation and a resume cost at a size that nobody measures on a laptop.

    python benchmarks/scale.py

A small simulation: sizes of weights, gradients and optimizer states, of what goes over the network in a step, and of
what is read and written, divided by the rates below. Rates of the machine are of an 80 GB accelerator of the H100 kind
in nodes of eight. All rates are options, and all are assumed but that of a drawn index, which was measured on a CPU.
The simulation assumes that nothing overlaps but what it says, so it bounds from above, and that no device waits for a
slower one, so it bounds from below.
"""

import argparse
from dataclasses import dataclass, fields


@dataclass
class Machine:
    """Rates of a machine, and what software costs."""

    flops: float = 400e12
    """Operations a second of a device in bfloat16 that training reaches (40% of the peak)."""
    memory: float = 80e9
    """Bytes of a device."""
    in_node: float = 300e9
    """Bytes a second between the devices of a node."""
    between_nodes: float = 50e9
    """Bytes a second of each device to other nodes."""
    latency: float = 15e-6
    """Seconds of a collective for each doubling of the devices."""
    disk_of_node: float = 2e9
    """Bytes a second that a node writes to or reads from a shared file system."""
    disk_of_all: float = 50e9
    """Bytes a second of the file system, for all nodes together."""
    to_host: float = 25e9
    """Bytes a second from a device to the memory of its host."""
    step: float = 0.5e-3
    """Seconds of this package for each step, on the host, while the device computes."""
    read_batch: float = 1e-3
    """Seconds to read a batch of a stream."""
    drawn_index: float = 300e-9
    """Seconds to draw one index of a random order (measured, of 10^8)."""
    index_bytes: float = 4
    """Bytes of one index of a random order."""
    row: float = 20e-6
    """Seconds to post-process one example of an evaluation, in each process for all."""


@dataclass
class Plan:
    """One run."""

    devices: int
    parameters: float
    examples: float = 1e9
    tokens: int = 2048
    per_device: int = 1

    @property
    def nodes(self) -> int:
        """Machines of eight devices."""
        return max(self.devices // 8, 1)

    @property
    def batch(self) -> int:
        """Examples of a step."""
        return self.devices * self.per_device


STATE = 16  # bytes of a parameter in training: bfloat16 and float32 weights, gradients, two float32 moments
SAVED = 14  # of which a checkpoint holds all but the gradients


def link(plan: Plan, machine: Machine) -> float:
    """Return the rate between devices of the run."""
    return machine.in_node if plan.nodes == 1 else machine.between_nodes


def step_seconds(plan: Plan, machine: Machine, *, sharded: bool) -> tuple[float, float]:
    """Return the seconds of a step that compute, and those of its traffic, most of which can overlap."""
    compute = 6 * plan.parameters * plan.tokens * plan.per_device / machine.flops
    # Bfloat16: an all-reduce of the gradients; sharded, two all-gathers of the weights and a reduce-scatter.
    volume = 2 * plan.parameters * (3 if sharded else 2) * (plan.devices - 1) / plan.devices
    rounds = (3 * 80 if sharded else 20) * machine.latency * max(plan.devices.bit_length() - 1, 1)
    return compute + machine.step, volume / link(plan, machine) + rounds


def checkpoint_seconds(plan: Plan, machine: Machine, *, sharded: bool) -> tuple[float, float]:
    """Return the seconds a checkpoint takes, and those in which training stands still if it is written behind it."""
    total = SAVED * plan.parameters
    if not sharded:
        return total / machine.to_host + total / machine.disk_of_node, total / machine.to_host
    rate = min(machine.disk_of_node * plan.nodes, machine.disk_of_all)
    return total / plan.devices / machine.to_host + total / rate, total / plan.devices / machine.to_host


def resume_seconds(plan: Plan, machine: Machine, *, sharded: bool) -> dict[str, float]:
    """Return the seconds to read a checkpoint, and to find the place in the middle of the data."""
    total = SAVED * plan.parameters
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


def main() -> None:
    """Print one row for each run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for one in fields(Machine):
        parser.add_argument(f"--{one.name}", type=float, default=one.default)
    machine = Machine(**vars(parser.parse_args()))
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
