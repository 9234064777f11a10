import io
from copy import deepcopy
from types import SimpleNamespace

import pytest
import torch
from accelerate import DistributedType, PartialState
from datasets import Dataset
from lightning.pytorch.strategies import SingleDeviceStrategy
from safetensors.torch import load_file
from torch.utils.data import DataLoader

import portico
from models import Line, toy_trainer
from portico.data.loaders import DataLoaderDispatcher, DataLoaderShard
from portico.data.sharding import DataLoaderConfig
from portico.distributed.accelerator import Accelerator


@pytest.fixture
def accelerator():
    strategy = SingleDeviceStrategy(device="cpu")
    return Accelerator(lambda: strategy, DataLoaderConfig(data_seed=3))


def test_process_facts(accelerator):
    assert accelerator.device == torch.device("cpu")
    assert (accelerator.num_processes, accelerator.process_index, accelerator.local_process_index) == (1, 0, 0)
    assert accelerator.is_main_process
    assert accelerator.is_local_main_process
    accelerator.wait_for_everyone()


def test_print_on_main_process(accelerator, capsys):
    accelerator.print("hello")
    assert capsys.readouterr().out == "hello\n"


def test_training_step_outside_a_run_accumulates_gradients(tmp_path):
    trainer = toy_trainer(tmp_path, max_steps=1)
    batch = next(iter(trainer.get_train_dataloader()))
    for _ in range(2):
        trainer.model.zero_grad()
        for _ in range(2):
            trainer.training_step(trainer.model, batch)
        trainer.evaluate()
        trainer.predict(trainer.eval_dataset)
        assert trainer.model.linear.weight.grad.abs().sum() > 0
        trainer.train()


def test_clip_grad_norm(accelerator):
    weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    weight.grad = torch.tensor([3.0, 4.0])
    assert accelerator.clip_grad_norm_([weight], 1.0) == pytest.approx(5.0)
    assert weight.grad.norm() == pytest.approx(1.0)


def test_unwrap_model(accelerator):
    model = Line()
    assert accelerator.prepare(model) is accelerator.prepare_model(model) is model
    assert accelerator.unwrap_model(torch.nn.DataParallel(model)) is model
    compiled = torch.nn.Module()
    compiled._orig_mod = model
    assert accelerator.unwrap_model(compiled) is model


def test_prepare_loader_and_model(accelerator):
    loader, model = accelerator.prepare(DataLoader(range(4)), Line())
    assert isinstance(loader, DataLoaderShard)
    assert isinstance(model, Line)


def test_collectives_on_one_process(accelerator):
    nested = {"a": [torch.ones(2)], "b": (torch.zeros(1),)}
    assert accelerator.gather(nested) is nested
    assert accelerator.pad_across_processes(nested) is nested
    assert accelerator.reduce(nested) is nested


def test_process_control_on_one_process(accelerator):
    with accelerator.main_process_first(), accelerator.local_main_process_first():
        assert accelerator.is_last_process
    accelerator.end_training()
    assert accelerator.gather_object(["a"]) == ["a"]
    assert accelerator.skip_first_batches([1, 2, 3], 2).num_batches == 2


def test_gather_objects_for_metrics(accelerator):
    loader = accelerator.prepare(DataLoader(range(5), batch_size=4))
    batches = iter(loader)
    assert len([next(batches), next(batches)]) == len(loader)
    assert accelerator.gather_for_metrics(["a", "b", "c"]) == ["a"]
    assert accelerator.gather_for_metrics({"a": "b"}) == {"a": "b"}
    assert accelerator.gather_for_metrics(torch.arange(3), use_gather_object=True).tolist() == [0]


def test_gather_for_metrics_truncates_last_batch(accelerator):
    loader = accelerator.prepare(DataLoader(range(10), batch_size=4))
    repeated = torch.arange(4.0)
    sizes = []
    for _ in loader:
        sizes.append(len(accelerator.gather_for_metrics(repeated)))
    assert sizes == [4, 4, 2]
    assert len(accelerator.gather_for_metrics(repeated)) == 4


def test_nested_iteration_keeps_outer_loader(accelerator):
    outer, inner = (accelerator.prepare(DataLoader(range(size), batch_size=4)) for size in (10, 5))
    for _ in outer:
        *_, (_, size) = ((one, len(accelerator.gather_for_metrics(torch.arange(4)))) for one in inner)
        assert size == 1
        assert accelerator.gradient_state.active_dataloader is outer


def test_loader_that_is_left_counts_as_iterated(accelerator):
    loader = accelerator.prepare(DataLoader(range(10), batch_size=4))
    for _ in loader:
        if loader.end_of_dataloader:
            break
    assert len(accelerator.gather_for_metrics(torch.arange(4))) == 2
    list(loader)
    assert len(accelerator.gather_for_metrics(torch.arange(4))) == 4


def test_no_sync_and_autocast_in_full_precision(accelerator):
    with accelerator.no_sync(Line()), accelerator.autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.float32
    accelerator.free_memory()


def test_accelerator_in_overridden_training_step(tmp_path):
    seen = []

    class Own(portico.Trainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            accelerator = self.accelerator
            with accelerator.no_sync(model), accelerator.autocast():
                loss = self.compute_loss(accelerator.unwrap_model(model), self._prepare_inputs(inputs))
            accelerator.backward(loss / self.current_gradient_accumulation_steps)
            seen.append(accelerator.sync_gradients)
            return accelerator.gather(loss.detach()) / self.current_gradient_accumulation_steps

    toy_trainer(tmp_path, Own, gradient_accumulation_steps=2, num_train_epochs=1).train()
    assert seen == [False, True, False, True, True]


def rank(process_index, num_processes=2):
    """Return the accelerator of one of several processes."""
    strategy = SimpleNamespace(
        root_device=torch.device("cpu"), world_size=num_processes, global_rank=process_index, local_rank=process_index
    )
    return Accelerator(lambda: strategy)


@pytest.fixture
def trainer_accelerator(tmp_path):
    return toy_trainer(tmp_path).accelerator


def test_state_of_single_process(trainer_accelerator):
    accelerator = trainer_accelerator
    assert accelerator.distributed_type == DistributedType.NO
    assert (accelerator.mixed_precision, accelerator.scaler, accelerator.use_distributed) == (
        "no",
        None,
        False,
    )
    assert accelerator.is_last_process
    assert accelerator.state.num_processes == 1
    assert accelerator.state.deepspeed_plugin is accelerator.state.fsdp_plugin is None
    assert accelerator.gradient_state.sync_gradients
    assert (accelerator.parallelism_config, accelerator.gradient_accumulation_steps) == (None, 1)


def test_mixed_precision_name(tmp_path):
    assert toy_trainer(tmp_path, bf16=True).accelerator.mixed_precision == "bf16"


def test_state_of_several_processes():
    assert rank(0).distributed_type == DistributedType.MULTI_CPU
    assert rank(1).is_last_process
    assert not rank(0).is_last_process
    assert rank(0).use_distributed


@pytest.mark.parametrize(
    ("decorator", "ranks"),
    [("on_main_process", [0]), ("on_local_main_process", [0]), ("on_last_process", [2])],
)
def test_decorators_select_processes(decorator, ranks):
    ran = [index for index in range(3) if getattr(rank(index, 3), decorator)(lambda: True)()]
    assert ran == ranks


def test_on_process():
    ran = [index for index in range(3) if rank(index, 3).on_process(lambda: True, process_index=1)()]
    assert ran == [1]
    assert rank(1, 3).on_process(process_index=1)(lambda: "here")() == "here"


def test_clipping_accumulation_and_saving(trainer_accelerator, tmp_path):
    model = torch.nn.Linear(2, 1)
    model(torch.full((1, 2), 100.0)).sum().backward()
    trainer_accelerator.clip_grad_value_(model.parameters(), 0.5)
    assert model.weight.grad.max() == 0.5
    with trainer_accelerator.accumulate(model):
        assert trainer_accelerator.get_state_dict(model).keys() == {"weight", "bias"}
    trainer_accelerator.save({"x": 1}, tmp_path / "plain.pt")
    trainer_accelerator.save({"x": 1}, opened := io.BytesIO())
    opened.seek(0)
    assert torch.load(opened) == {"x": 1}
    assert torch.load(tmp_path / "plain.pt") == {"x": 1}
    trainer_accelerator.save(trainer_accelerator.get_state_dict(model), tmp_path / "safe", safe_serialization=True)
    assert load_file(tmp_path / "safe").keys() == {"weight", "bias"}
    rank(1).save({"x": 1}, tmp_path / "other.pt")
    assert not (tmp_path / "other.pt").exists()


def test_unavailable_attribute_names_alternative(trainer_accelerator):
    with pytest.raises(AttributeError, match=r"`accelerator\.warp_drive` is not available.*lightning_trainer"):
        _ = trainer_accelerator.warp_drive


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(
    "inputs",
    [
        list("abcde"),
        ["a"],
        torch.arange(5),
        {"x": [1, 2, 3, 4], "y": torch.arange(4)},
        Dataset.from_dict({"x": [1, 2, 3, 4, 5]}),
    ],
)
def test_split_between_processes_equals_accelerate(inputs, padded):
    # To pad tensors accelerate needs connected processes.
    padded = padded and isinstance(inputs, list | Dataset)
    for index in range(3):
        theirs = object.__new__(PartialState)
        theirs.__dict__ = {"num_processes": 3, "process_index": index, "device": torch.device("cpu")}
        with (
            theirs.split_between_processes(deepcopy(inputs), apply_padding=padded) as expected,
            rank(index, 3).split_between_processes(inputs, apply_padding=padded) as part,
        ):
            assert type(part) is type(expected)
            assert str(list(part)) == str(list(expected))
            assert not isinstance(part, dict) or str(part) == str(expected)


def test_split_between_processes_needs_equal_lengths():
    with (
        pytest.raises(ValueError, match=r"must have the same length.*'y': 2"),
        rank(0).split_between_processes({"x": [1], "y": [1, 2]}),
    ):
        pass


def test_trigger_is_seen_once(accelerator):
    assert not accelerator.check_trigger()
    accelerator.set_trigger()
    assert [accelerator.check_trigger() for _ in range(2)] == [True, False]


def test_released_objects_are_replaced_by_none(accelerator):
    model, optimizer = accelerator.free_memory(Line(), object())
    assert model is optimizer is None


def test_on_local_process():
    assert [rank(index).on_local_process(lambda: True, local_process_index=1)() for index in range(2)] == [None, True]
    assert rank(1).on_local_process(local_process_index=1)(lambda: "here")() == "here"


def test_loader_settings_can_be_changed(tmp_path):
    accelerator = toy_trainer(tmp_path, accelerator_config={"split_batches": True}).accelerator
    assert (accelerator.split_batches, accelerator.even_batches, accelerator.dispatch_batches) == (True, True, None)
    accelerator.even_batches = False
    accelerator.dataloader_config.dispatch_batches = True
    loader = accelerator.prepare_data_loader(DataLoader(range(4)))
    assert isinstance(loader, DataLoaderDispatcher)
    assert (loader.config.split_batches, loader.config.even_batches) == (True, False)
    accelerator.even_batches = True
    assert not loader.config.even_batches
    with pytest.raises(AttributeError, match="no attribute 'use_stateful_dataloader'"):
        accelerator.dataloader_config.use_stateful_dataloader = True


def test_accumulation_set_on_the_accelerator_scales_the_loss(accelerator):
    accelerator.gradient_accumulation_steps = 4
    loss = torch.tensor(2.0, requires_grad=True)
    accelerator.backward(loss)
    assert loss.grad == 0.25
    accelerator.gradient_accumulation_steps = 1


def test_device_map_is_recognised(accelerator):
    model = Line()
    assert not accelerator.verify_device_map(model)
    model.linear.hf_device_map = {"a": 0, "b": "cpu"}
    assert accelerator.verify_device_map(model)


def test_end_training(tmp_path):
    trainer = toy_trainer(tmp_path, max_steps=1)
    trainer.train()
    trainer.end()
