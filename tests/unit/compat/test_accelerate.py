"""accelerate's own functions, loggers and states inside a run."""

import logging

import accelerate
import pytest
import torch
import transformers
from accelerate.logging import get_logger
from accelerate.state import AcceleratorState, GradientState, PartialState

import portico
from models import Line, toy_arguments, toy_trainer
from portico.distributed.accelerator import REFUSED
from portico.errors import InputError

KINDS = (AcceleratorState, PartialState, GradientState)


@pytest.fixture
def fresh_state():
    """Begin as a process does, and leave as it was what other tests share."""
    before = [{**kind._shared_state} for kind in KINDS]
    for kind in KINDS:
        kind._shared_state.clear()
    yield
    for kind, state in zip(KINDS, before, strict=True):
        kind._shared_state.clear()
        kind._shared_state |= state


@pytest.mark.usefixtures("fresh_state")
@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_states_equal_those_under_transformers(precision, tmp_path):
    options = {"bf16": precision == "bf16", "accelerator_config": {"gradient_accumulation_kwargs": {}}}
    seen = []
    for trainer_class, arguments_class in [
        (transformers.Trainer, transformers.TrainingArguments),
        (portico.Trainer, portico.TrainingArguments),
    ]:
        args = toy_arguments(tmp_path, arguments_class, **options)
        seen.append([PartialState().device, {**AcceleratorState._shared_state}])
        trainer_class(model=Line(), args=args)
        seen[-1] += [{**kind._shared_state} for kind in KINDS]
        assert AcceleratorState().mixed_precision == precision
    # The same keys too: accelerate's own methods read all of them.
    assert seen[0] == seen[1]


@pytest.mark.usefixtures("fresh_state")
def test_helpers_work_from_the_arguments_on(tmp_path, caplog):
    toy_arguments(tmp_path)
    with caplog.at_level(logging.WARNING):
        get_logger("client").warning("from the arguments on")
    assert "from the arguments on" in caplog.text
    assert toy_arguments(tmp_path).distributed_state.distributed_type in ["NO"]
    # Under transformers too, the precision is free again.
    toy_trainer(tmp_path)
    toy_arguments(tmp_path)
    assert accelerate.Accelerator(cpu=True, mixed_precision="bf16").mixed_precision == "bf16"


@pytest.mark.usefixtures("fresh_state")
def test_helpers_work_in_a_run(tmp_path):
    class Client(portico.Trainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            assert AcceleratorState().deepspeed_plugin is None
            assert accelerate.utils.gather_object([1]) == [1]
            assert accelerate.utils.broadcast_object_list(["a"]) == ["a"]
            theirs, ours = GradientState(), self.accelerator.gradient_state
            names = ("sync_gradients", "end_of_dataloader", "remainder", "in_dataloader", "active_dataloader")
            seen.append([getattr(theirs, name) for name in names[:4]])
            assert all(getattr(theirs, name) is getattr(ours, name) for name in names)
            return super().training_step(model, inputs, num_items_in_batch)

    seen = []
    toy_trainer(tmp_path, Client, gradient_accumulation_steps=2, num_train_epochs=1).train()
    assert [row[0] for row in seen] == [False, True, False, True, True]
    assert [row[3] for row in seen] == [True] * 5
    # Under transformers too: nobody reads the loader of the training to its end.
    assert GradientState().in_dataloader


@pytest.mark.usefixtures("fresh_state")
def test_accelerator_made_before_or_after_the_trainer(tmp_path):
    weights = []
    for when in ("never", "before", "after"):
        args = toy_arguments(tmp_path)
        accelerators = [accelerate.Accelerator(cpu=True)] if when == "before" else []
        trainer = toy_trainer(tmp_path, parts={"args": args})
        accelerators += [accelerate.Accelerator()] if when == "after" else []
        assert all(one.num_processes == 1 for one in accelerators)
        trainer.train()
        weights.append(trainer.model.linear.weight)
    assert torch.equal(weights[0], weights[1])
    assert torch.equal(weights[0], weights[2])


@pytest.mark.usefixtures("fresh_state")
def test_configured_state_is_kept(tmp_path):
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision="bf16")
    switch = {"accelerator_config": {"use_configured_state": True}}
    args = toy_arguments(tmp_path, bf16=True, **switch)
    assert accelerator.state.mixed_precision == "bf16"
    trainer = portico.Trainer(model=Line(), args=args)
    assert trainer.accelerator.mixed_precision == accelerator.mixed_precision == "bf16"
    differing = toy_arguments(tmp_path, **switch)
    with pytest.raises(InputError, match=r"its `mixed_precision` is 'bf16' and not 'no'.* so that both agree"):
        portico.Trainer(model=Line(), args=differing)
    for kind in KINDS:
        kind._shared_state.clear()
    with pytest.raises(InputError, match="made before, but there is none"):
        portico.Trainer(model=Line(), args=toy_arguments(tmp_path, **switch))


# The surface of `accelerate.Accelerator` ----------------------------------------------------------------------------


def public_names():
    accelerator = accelerate.Accelerator(cpu=True)
    of_accelerator = {name for name in dir(accelerator) if not name.startswith("_")}
    return sorted(of_accelerator), sorted({name for kind in KINDS for name in dir(kind) if not name.startswith("_")})


# Read from an object of another kind.
_OF_ANOTHER_KIND = ("dataloader_config", "gradient_state", "state")


@pytest.fixture(scope="module")
def accelerators(tmp_path_factory):
    """The accelerators of a trainer of transformers and of one of ours."""
    folder = tmp_path_factory.mktemp("accelerators")
    theirs = transformers.Trainer(model=Line(), args=toy_arguments(folder, transformers.TrainingArguments))
    return theirs.accelerator, toy_trainer(folder).accelerator


@pytest.mark.parametrize("name", public_names()[0])
def test_every_attribute_is_offered_or_refused(name, accelerators):
    theirs, ours = accelerators
    if name in REFUSED:
        with pytest.raises(AttributeError, match=rf"`accelerator\.{name}` is not available.*; {REFUSED[name][:20]}"):
            getattr(ours, name)
        return
    value, peer = getattr(ours, name), getattr(theirs, name)
    assert callable(value) == callable(peer)
    if not callable(value) and name not in _OF_ANOTHER_KIND:
        assert (list(value) if isinstance(peer, list) else value) == peer


@pytest.mark.parametrize("name", public_names()[1])
def test_every_attribute_of_the_states_is_offered_or_refused(name, accelerators):
    _, ours = accelerators
    of_gradients = hasattr(GradientState, name) and not hasattr(AcceleratorState, name)
    assert hasattr(ours.gradient_state if of_gradients else ours.state, name) or name in REFUSED


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_refused_attributes_exist(name):
    assert any(name in names for names in public_names())
