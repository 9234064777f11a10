"""What user code reads and calls on `trainer.accelerator`, one process and (facts faked) several."""

import pytest
import torch
from accelerate import DistributedType
from safetensors.torch import load_file

from portico.distributed.accelerator import AcceleratorSurface
from unit.toy import toy_trainer


class Rank(AcceleratorSurface):
    """One of several processes."""

    device = torch.device("cpu")
    precision_plugin = None

    def __init__(self, process_index, num_processes=2):
        self.index, self.total = process_index, num_processes

    num_processes = property(lambda self: self.total)
    process_index = property(lambda self: self.index)
    is_main_process = is_local_main_process = property(lambda self: self.index == 0)
    is_last_process = property(lambda self: self.index == self.total - 1)


@pytest.fixture
def accelerator(tmp_path):
    return toy_trainer(tmp_path).accelerator


def test_facts_of_a_single_process(accelerator):
    assert accelerator.distributed_type == DistributedType.NO
    assert (accelerator.mixed_precision, accelerator.scaler, accelerator.use_distributed) == ("no", None, False)
    assert accelerator.is_last_process
    assert accelerator.state.num_processes == 1
    assert accelerator.state.deepspeed_plugin is accelerator.state.fsdp_plugin is None
    assert accelerator.gradient_state.sync_gradients
    assert (accelerator.parallelism_config, accelerator.gradient_accumulation_steps) == (None, 1)


def test_mixed_precision_is_named_as_accelerate_does(tmp_path):
    assert toy_trainer(tmp_path, bf16=True).accelerator.mixed_precision == "bf16"


def test_facts_of_several_processes():
    assert Rank(0).distributed_type == DistributedType.MULTI_CPU
    assert Rank(1).is_last_process
    assert not Rank(0).is_last_process
    assert Rank(0).use_distributed


@pytest.mark.parametrize(
    ("decorator", "ranks"),
    [("on_main_process", [0]), ("on_local_main_process", [0]), ("on_last_process", [2])],
)
def test_a_function_runs_on_some_processes(decorator, ranks):
    ran = [index for index in range(3) if getattr(Rank(index, 3), decorator)(lambda: True)()]
    assert ran == ranks


def test_a_function_runs_on_one_process():
    ran = [index for index in range(3) if Rank(index, 3).on_process(lambda: True, process_index=1)()]
    assert ran == [1]
    assert Rank(1, 3).on_process(process_index=1)(lambda: "here")() == "here"


def test_work(accelerator, tmp_path):
    model = torch.nn.Linear(2, 1)
    model(torch.full((1, 2), 100.0)).sum().backward()
    accelerator.clip_grad_value_(model.parameters(), 0.5)
    assert model.weight.grad.max() == 0.5
    with accelerator.accumulate(model):
        assert accelerator.get_state_dict(model).keys() == {"weight", "bias"}
    accelerator.save({"x": 1}, tmp_path / "plain.pt")
    assert torch.load(tmp_path / "plain.pt") == {"x": 1}
    accelerator.save(accelerator.get_state_dict(model), tmp_path / "safe", safe_serialization=True)
    assert load_file(tmp_path / "safe").keys() == {"weight", "bias"}
    Rank(1).save({"x": 1}, tmp_path / "other.pt")
    assert not (tmp_path / "other.pt").exists()


def test_what_is_not_offered_says_where_to_look(accelerator):
    with pytest.raises(AttributeError, match=r"`accelerator\.fp8_backend` is not offered.*lightning_trainer"):
        _ = accelerator.fp8_backend


def test_a_run_can_be_ended(tmp_path):
    trainer = toy_trainer(tmp_path, max_steps=1)
    trainer.train()
    trainer.end()
