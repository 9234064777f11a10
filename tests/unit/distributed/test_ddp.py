from datetime import timedelta

import pytest
import transformers
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy

import portico
from parity.peers import tiny_bert
from portico.distributed.placement import resolve_strategy, run_placement
from portico.distributed.strategies import ModelDDPStrategy, ddp_strategy
from portico.errors import InputError
from portico.model_setup import enable_activation_checkpointing
from unit.toy import Line, toy_arguments, toy_trainer


def options(strategy):
    return strategy._ddp_kwargs


@pytest.mark.parametrize(
    ("name", "start_method"),
    [("ddp", "popen"), ("ddp_spawn", "spawn"), ("ddp_fork", "fork"), ("ddp_notebook", "fork")],
)
def test_lightnings_names_are_known(name, start_method, tmp_path):
    strategy = ddp_strategy(name, toy_arguments(tmp_path))
    assert strategy._start_method == start_method
    assert options(ddp_strategy(f"{name}_find_unused_parameters_false", toy_arguments(tmp_path))) == {
        "find_unused_parameters": False
    }
    assert ddp_strategy("fsdp", toy_arguments(tmp_path)) is None


def test_every_ddp_argument_reaches_the_strategy(tmp_path):
    args = toy_arguments(
        tmp_path,
        ddp_find_unused_parameters=False,
        ddp_bucket_cap_mb=7,
        ddp_broadcast_buffers=False,
        ddp_static_graph=True,
        ddp_backend="gloo",
        ddp_timeout=60,
    )
    strategy = resolve_strategy_of(args)
    assert isinstance(strategy, ModelDDPStrategy)
    assert options(strategy) == {
        "find_unused_parameters": False,
        "bucket_cap_mb": 7,
        "broadcast_buffers": False,
        "static_graph": True,
    }
    assert strategy.process_group_backend == "gloo"
    assert strategy._timeout == timedelta(seconds=60)


def resolve_strategy_of(args, **changes):
    args.devices = 2
    for name, value in changes.items():
        setattr(args, name, value)
    return resolve_strategy(args)


def test_several_devices_mean_data_parallelism(tmp_path):
    args = toy_arguments(tmp_path)
    assert isinstance(resolve_strategy(args), SingleDeviceStrategy)
    assert isinstance(resolve_strategy_of(args), ModelDDPStrategy)
    assert (args.world_size, args.process_index) == (1, 0)
    assert toy_arguments(tmp_path, devices=2).world_size == 2


def test_unused_parameters_are_looked_for_unless_activations_are_recomputed(tmp_path):
    args = toy_arguments(tmp_path)

    def looks(model=None):
        return options(ddp_strategy("ddp", args, model))["find_unused_parameters"]

    bert = tiny_bert()
    assert looks()
    assert looks(bert)
    enable_activation_checkpointing(bert, {})
    assert not looks(bert)
    args.gradient_checkpointing = True
    assert not looks(tiny_bert())
    assert looks(Line())


def test_options_beside_a_strategy_of_ones_own_are_refused(tmp_path):
    args = toy_arguments(tmp_path)
    args.strategy, args.devices, args.ddp_bucket_cap_mb = DDPStrategy(), 2, 5
    with pytest.raises(InputError, match="is a DDPStrategy with options of its own, beside ddp_bucket_cap_mb"):
        run_placement(args)
    args.ddp_bucket_cap_mb = None
    used = run_placement(args)["strategy"]
    assert type(used) is DDPStrategy
    assert used is not args.strategy


def test_a_strategy_of_ones_own_serves_every_run(tmp_path):
    args = toy_arguments(tmp_path)
    args.strategy, args.accelerator = SingleDeviceStrategy(device="cpu"), "cpu"
    trainer = toy_trainer(tmp_path, parts={"args": args})
    assert trainer.train().global_step == 10
    assert trainer.train().global_step == 10


def test_own_backward_passes_need_the_model_wrapped(tmp_path):
    class Own(portico.Trainer):
        def training_step(self, *args, **kwargs):
            return super().training_step(*args, **kwargs)

    args = toy_arguments(tmp_path)
    args.strategy = DDPStrategy(start_method="fork")
    args.devices = 2
    with pytest.raises(InputError, match=r"`training_step` is overridden, .* set `strategy='ddp'`"):
        toy_trainer(tmp_path, Own, parts={"args": args})


def test_arguments_of_transformers_are_placed_too(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    args = toy_arguments(tmp_path, transformers.TrainingArguments)
    assert isinstance(run_placement(args)["strategy"], ModelDDPStrategy)
    monkeypatch.setenv("GROUP_WORLD_SIZE", "3")
    assert run_placement(args)["num_nodes"] == 3
