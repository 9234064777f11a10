"""The emulated machine, and the emulator under the name `poptorch`."""

import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import poptorch_emulator as poptorch
from emulator_peers import Perceptron, batches, free_ipus, options


class TestInstallation:
    def test_imports_as_poptorch(self):
        with poptorch.installed():
            import poptorch as taken
            from poptorch.optim import AdamW

            assert taken is poptorch
            assert AdamW is poptorch.optim.AdamW
        with pytest.raises(ImportError):
            import poptorch as gone  # noqa: F401

    def test_install_lasts_until_uninstall(self):
        assert poptorch.install() is poptorch
        import poptorch as taken

        assert taken is poptorch
        poptorch.uninstall()
        assert "poptorch" not in sys.modules
        assert "poptorch.optim" not in sys.modules

    def test_no_hardware_is_claimed(self):
        assert not poptorch.ipuHardwareIsAvailable()
        assert poptorch.ipuHardwareVersion() == 2
        assert not poptorch.isRunningOnIpu()


BATCH = batches(1, 2, torch.float32)[0]


def test_is_running_on_ipu_inside_programs_only():
    seen = []

    class Model(Perceptron):
        def forward(self, x, labels=None):
            seen.append(poptorch.isRunningOnIpu())
            return super().forward(x, labels)

    model = Model()
    executor = poptorch.inferenceModel(model, options(2))
    executor(BATCH[0])
    executor(BATCH[0])
    model(BATCH[0])
    # Once to compile, twice for each call, and once on the host.
    assert seen == [True] * 5 + [False]


@pytest.mark.parametrize("wrap", [poptorch.inferenceModel, poptorch.trainingModel])
def test_programs_that_are_gone_release_their_ipus(wrap):
    with free_ipus(1):
        for _ in range(2):
            wrap(Perceptron())(*BATCH)


@pytest.mark.parametrize("wrong", [{"speed": 1}, {"num_ipus": 2, "speed": 1}])
def test_unknown_settings_are_refused_and_change_nothing(wrong):
    before = poptorch.settings.num_ipus
    with pytest.raises(TypeError, match="speed"), poptorch.configured(**wrong):
        pass
    assert poptorch.settings.num_ipus == before


class Noise(nn.Module):
    def forward(self, x):
        return torch.rand(3) + x


@given(taken=st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=6))
@settings(max_examples=8, deadline=None)
def test_programs_get_free_ipus_only(taken):
    held = []
    with free_ipus(6):
        for number in taken:
            free = 6 - sum(size for size, _ in held)
            program = poptorch.inferenceModel(Noise(), options(1, number))
            if number <= free:
                program(torch.zeros(number, 1))
                held.append((number, program))
            else:
                with pytest.raises(poptorch.Error, match=rf"Failed to acquire {number} IPU.*of which {free} are free"):
                    program(torch.zeros(number, 1))
                for _, other in held:
                    other.detachFromDevice()
                held = []
    for _, program in held:
        program.destroy()
