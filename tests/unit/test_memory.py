"""What the system's allocator keeps while a model is trained."""

import resource

import pytest
import torch
from transformers import TrainerCallback

from models import toy_trainer
from portico.memory import _glibc

pytestmark = pytest.mark.skipif(_glibc() is None, reason="the allocator is not that of glibc")


def page_faults():
    """Return how many pages are faulted in by tensors of 128 MiB, as when a training step follows another."""
    for _ in range(2):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        tensors = [torch.zeros(2**20) for _ in range(32)]
        del tensors
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


class Faults(TrainerCallback):
    num_faults = None

    def on_step_end(self, args, state, control, **kwargs):
        self.num_faults = page_faults()


@pytest.mark.parametrize(("variable", "keeps"), [("UNSET", True), ("MALLOC_TRIM_THRESHOLD_", False)])
def test_a_training_on_the_cpu_uses_freed_memory_again(variable, keeps, tmp_path, monkeypatch):
    monkeypatch.setenv(variable, "65536")
    callback = Faults()
    toy_trainer(tmp_path, max_steps=2, parts={"callbacks": [callback]}).train()
    assert (callback.num_faults < page_faults() / 4) is keeps
