import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from lightning.fabric.plugins.environments import LightningEnvironment
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from transformers import TrainingArguments as HuggingFaceArguments
from transformers.utils import logging as hf_logging

from models import toy_arguments
from portico.distributed.placement import resolve_placement, resolve_strategy
from portico.errors import InputError

ON_THE_CPU = {"accelerator": "cpu", "strategy": "auto", "devices": 1, "num_nodes": 1, "precision": "32-true"}


def test_placement_of_either_arguments_class(tmp_path):
    assert resolve_placement(toy_arguments(tmp_path)) == ON_THE_CPU
    assert resolve_placement(toy_arguments(tmp_path, HuggingFaceArguments)) == ON_THE_CPU


@pytest.mark.parametrize("devices", ["two", "0,x"])
def test_devices_that_are_no_number(devices, tmp_path):
    with pytest.raises(InputError, match=f"`devices='{devices}'` is not a number of devices; use an int"):
        resolve_placement(toy_arguments(tmp_path, devices=devices))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"bf16": True}, {"precision": "bf16-mixed"}),
        ({"precision": "64-true", "bf16": True}, {"precision": "64-true"}),
        ({"devices": 2, "strategy": "ddp", "num_nodes": 3}, {"devices": 2, "strategy": "ddp", "num_nodes": 3}),
        ({"use_cpu": False}, {"accelerator": "auto"}),
    ],
)
def test_placement_of_arguments(changes, expected, tmp_path):
    assert resolve_placement(toy_arguments(tmp_path, **changes)) == {**ON_THE_CPU, **expected}


def test_fp16_becomes_16_mixed(tmp_path, monkeypatch):
    args = toy_arguments(tmp_path)
    args.fp16, args.use_cpu = True, False
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    assert resolve_placement(args)["precision"] == "16-mixed"


def test_fp16_on_a_cpu_trains_in_float32_with_a_warning(tmp_path, caplog):
    hf_logging.warning_once.cache_clear()
    assert resolve_placement(toy_arguments(tmp_path, fp16=True))["precision"] == "32-true"
    assert "`fp16=True` has no effect on a CPU" in caplog.text


def test_devices_from_launcher(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert resolve_placement(toy_arguments(tmp_path))["devices"] == 2


TORCHRUN = {"LOCAL_WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "1", "WORLD_SIZE": "2"}
STEP = {"SLURM_STEP_ID": "0"}
SLURM = {**STEP, "SLURM_NTASKS": "4", "SLURM_NTASKS_PER_NODE": "2", "SLURM_NNODES": "2"}
TASK = {"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NODEID": "1"}


@pytest.mark.parametrize(
    ("variables", "placement", "message"),
    [
        (
            TORCHRUN,
            {"devices": 3},
            r"\(LOCAL_WORLD_SIZE=2, GROUP_WORLD_SIZE=1\) says .* one of 2 on each of 1",
        ),
        (TORCHRUN, {"devices": 1}, r"placed on devices=1 and num_nodes=1; leave both out, or start as many"),
        (TORCHRUN, {"num_nodes": 2}, r"placed on devices=2 and num_nodes=2"),
        (SLURM, {"devices": 3, "num_nodes": 2}, r"\(SLURM_NTASKS_PER_NODE=2, SLURM_NTASKS=4, SLURM_NNODES=2\) says"),
        (SLURM, {"devices": 2, "num_nodes": 1}, r"one of 2 on each of 2 machine\(s\), but the run is placed on"),
        (
            {**STEP, "SLURM_NTASKS": "1"},
            {"devices": 2, "strategy": "ddp"},
            r"\(SLURM_NTASKS=1\) says .* devices=2 and",
        ),
        (
            {**STEP, "SLURM_NTASKS": "4"},
            {},
            r"SLURM has started 4 tasks, .* `--ntasks-per-node`, one task for each device",
        ),
    ],
)
def test_number_of_processes_that_contradicts_the_launcher(variables, placement, message, tmp_path, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=message):
        toy_arguments(tmp_path, **placement)


def test_tasks_of_slurm_are_the_processes(tmp_path, monkeypatch):
    for name, value in (SLURM | TASK).items():
        monkeypatch.setenv(name, value)
    args = toy_arguments(tmp_path)
    assert isinstance(args.lightning_strategy, DDPStrategy)
    assert (args.world_size, args.process_index, args.local_process_index) == (4, 3, 1)
    monkeypatch.setenv("SLURM_JOB_NAME", "bash")
    assert toy_arguments(tmp_path).world_size == 1


@pytest.mark.parametrize("per_node", [{}, {"SLURM_NTASKS_PER_NODE": "4"}], ids=["tasks", "per-node"])
def test_batch_script_of_slurm_without_srun_is_one_process(per_node, tmp_path, monkeypatch):
    for name, value in {"SLURM_NTASKS": "4", "SLURM_NNODES": "1", "SLURM_PROCID": "0", **per_node}.items():
        monkeypatch.setenv(name, value)
    args = toy_arguments(tmp_path)
    assert (args.world_size, args.lightning_strategy.is_global_zero) == (1, True)


def test_workers_of_ray_on_machines_of_different_size(tmp_path, monkeypatch):
    context = SimpleNamespace(get_world_size=lambda: 4)

    class Environment(LightningEnvironment):  # Ray's is one, too
        def world_size(self):
            return 4

        def global_rank(self):
            return 3

        def set_world_size(self, size):
            pass

        set_global_rank = set_world_size

    modules = {"ray": ModuleType("ray"), "ray.train": SimpleNamespace(get_context=lambda: context)}
    modules["ray.train.lightning"] = SimpleNamespace(RayLightningEnvironment=Environment)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    # One of four workers is on this machine.
    variables = {"LOCAL_WORLD_SIZE": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "NODE_RANK": "1", "RANK": "3"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    args = toy_arguments(tmp_path)
    assert isinstance(args.lightning_strategy, DDPStrategy)
    assert (args.world_size, args.process_index) == (4, 3)


def test_strategy_is_resolved_before_a_run(tmp_path):
    strategy = resolve_strategy(toy_arguments(tmp_path))
    assert isinstance(strategy, SingleDeviceStrategy)
    assert strategy.root_device == torch.device("cpu")
    assert isinstance(resolve_strategy(toy_arguments(tmp_path, strategy="ddp", devices=2)), DDPStrategy)


@pytest.mark.skipif(torch.cuda.is_available() or torch.backends.mps.is_available(), reason="has a GPU")
@pytest.mark.parametrize("accelerator", ["gpu", "tpu"])
def test_unavailable_accelerator_is_rejected(tmp_path, accelerator):
    expected = rf"cannot place the run here \(.*\); it got accelerator='{accelerator}'.* `accelerator='cpu'`"
    with pytest.raises(InputError, match=expected):
        resolve_strategy(toy_arguments(tmp_path, accelerator=accelerator))
