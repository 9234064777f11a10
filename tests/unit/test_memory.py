"""What the system's allocator keeps while a model is trained."""

import pytest
from transformers import TrainerCallback

from models import toy_trainer
from portico import memory

TRIM, MMAP = -1, -3  # as in malloc.h


class Allocator:
    """Stands in for glibc."""

    def __init__(self):
        self.calls = []

    def mallopt(self, parameter, value):
        self.calls.append((parameter, value))

    def malloc_trim(self, pad):
        self.calls.append("trim")


class Reader(TrainerCallback):
    def __init__(self, calls):
        self.calls, self.seen = calls, []

    def on_step_end(self, args, state, control, **kwargs):
        self.seen = [*self.calls]


@pytest.fixture
def allocator(monkeypatch):
    allocator = Allocator()
    monkeypatch.setattr(memory, "_glibc", lambda: allocator)
    return allocator


def test_a_training_on_the_cpu_keeps_what_it_frees(allocator, tmp_path):
    reader = Reader(allocator.calls)
    toy_trainer(tmp_path, max_steps=2, parts={"callbacks": [reader]}).train()
    assert reader.seen == [(MMAP, 2**25), (TRIM, 2**29)]
    assert allocator.calls == [*reader.seen, (TRIM, 2**26), "trim"]


@pytest.mark.parametrize("variable", ["MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES", "LD_PRELOAD"])
def test_another_setting_of_the_allocator_is_left_alone(variable, allocator, monkeypatch):
    monkeypatch.setenv(variable, "65536")
    with memory.keeping_freed_memory():
        assert not allocator.calls
