"""Random numbers of the devices: streams of their own, a function of seed, update and replica."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class DeviceRandomness:
    """The random state of a program; two integers say all of it.

    Args:
        seed: Seed of the devices.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.num_calls = 0

    @contextmanager
    def call(self) -> Iterator[None]:
        """Keep the host's generator as it is while a call runs, and move on to the next stream after it."""
        with torch.random.fork_rng(devices=[]):
            yield
        self.num_calls += 1

    def enter(self, micro_batch: int, replica: int) -> None:
        """Take up the stream of a micro-batch on a replica, inside :meth:`call`."""
        torch.default_generator.manual_seed(_mixed(self.seed, self.num_calls, micro_batch, replica))

    @property
    def state(self) -> list[int]:
        """Return what brings the streams back to this point."""
        return [self.seed, self.num_calls]

    @state.setter
    def state(self, state: list[int]) -> None:
        self.seed, self.num_calls = (int(number) for number in state)


def _mixed(*numbers: int) -> int:
    """Mix numbers into a seed: sums would make the streams of neighbouring calls overlap."""
    text = ",".join(map(str, numbers)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little", signed=True)
