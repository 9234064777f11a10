import importlib.util
import json
from datetime import timedelta

import pytest
import torch
import transformers
from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy, SingleDeviceStrategy
from torch.distributed.fsdp import BackwardPrefetch, ShardingStrategy

import portico
from models import Line, tiny_bert, toy_arguments, toy_trainer
from portico.distributed import strategies as sharded
from portico.distributed.placement import resolve_strategy, run_placement
from portico.distributed.strategies import (
    ModelDDPStrategy,
    ddp_strategy,
    deepspeed_config,
    fsdp_options,
    refuse_sharded_weights,
    sharded_strategy,
)
from portico.errors import InputError
from portico.model_setup import enable_activation_checkpointing


def options(strategy):
    return strategy._ddp_kwargs


@pytest.mark.parametrize(
    ("name", "start_method"),
    [("ddp", "popen"), ("ddp_spawn", "spawn"), ("ddp_fork", "fork"), ("ddp_notebook", "fork")],
)
def test_ddp_names_of_lightning_are_known(name, start_method, tmp_path):
    strategy = ddp_strategy(name, toy_arguments(tmp_path))
    assert strategy._start_method == start_method
    assert options(ddp_strategy(f"{name}_find_unused_parameters_false", toy_arguments(tmp_path))) == {
        "find_unused_parameters": False
    }
    assert ddp_strategy("fsdp", toy_arguments(tmp_path)) is None


def test_ddp_arguments_reach_strategy(tmp_path):
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


def test_several_devices_use_ddp(tmp_path):
    args = toy_arguments(tmp_path)
    assert isinstance(resolve_strategy(args), SingleDeviceStrategy)
    assert isinstance(resolve_strategy_of(args), ModelDDPStrategy)
    assert (args.world_size, args.process_index) == (1, 0)
    assert toy_arguments(tmp_path, devices=2).world_size == 2


def test_find_unused_parameters_without_gradient_checkpointing(tmp_path):
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


def test_ddp_options_with_strategy_object_are_rejected(tmp_path):
    args = toy_arguments(tmp_path)
    args.strategy, args.devices, args.ddp_bucket_cap_mb = DDPStrategy(), 2, 5
    with pytest.raises(InputError, match="is a DDPStrategy object, which ignores ddp_bucket_cap_mb"):
        run_placement(args)
    args.ddp_bucket_cap_mb = None
    used = run_placement(args)["strategy"]
    assert type(used) is DDPStrategy
    assert used is not args.strategy


def test_strategy_object_is_reused(tmp_path):
    args = toy_arguments(tmp_path)
    args.strategy, args.accelerator = SingleDeviceStrategy(device="cpu"), "cpu"
    trainer = toy_trainer(tmp_path, parts={"args": args})
    assert trainer.train().global_step == 10
    assert trainer.train().global_step == 10


def test_own_backward_uses_wrapped_model(tmp_path):
    class Own(portico.Trainer):
        def training_step(self, *args, **kwargs):
            return super().training_step(*args, **kwargs)

    args = toy_arguments(tmp_path)
    args.strategy = DDPStrategy(start_method="fork")
    args.devices = 2
    with pytest.raises(InputError, match=r"`training_step` is overridden, .* set `strategy='ddp'`"):
        toy_trainer(tmp_path, Own, parts={"args": args})


def test_transformers_arguments_use_ddp(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    args = toy_arguments(tmp_path, transformers.TrainingArguments)
    assert isinstance(run_placement(args)["strategy"], ModelDDPStrategy)
    monkeypatch.setenv("GROUP_WORLD_SIZE", "3")
    assert run_placement(args)["num_nodes"] == 3


@pytest.fixture
def args(tmp_path, monkeypatch):
    """Return a function that makes arguments on a machine that appears to have CUDA."""
    made = toy_arguments(tmp_path)
    made.use_cpu = False
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    return made


def test_no_sharding_by_default(args):
    assert sharded_strategy(args) is None


@pytest.mark.parametrize(
    ("fsdp", "config", "sharding", "offload"),
    [
        (True, None, "FULL_SHARD", False),
        ("full_shard auto_wrap", None, "FULL_SHARD", False),
        ("shard_grad_op offload", None, "SHARD_GRAD_OP", True),
        (["hybrid_shard"], {"version": 1}, "HYBRID_SHARD", False),
        (True, {"reshard_after_forward": False, "fsdp_cpu_offload": "true"}, "SHARD_GRAD_OP", True),
        (True, {"reshard_after_forward": "no_shard", "version": 1}, "NO_SHARD", False),
    ],
)
def test_fsdp_strategy(fsdp, config, sharding, offload, args):
    args.fsdp, args.fsdp_config = fsdp, config
    strategy = sharded_strategy(args, tiny_bert())
    assert isinstance(strategy, FSDPStrategy)
    assert strategy.sharding_strategy is ShardingStrategy[sharding]
    assert strategy.cpu_offload.offload_params is offload


def test_fsdp_settings(tmp_path):
    config = {
        "transformer_layer_cls_to_wrap": "BertLayer",
        "activation_checkpointing": True,
        "state_dict_type": "SHARDED_STATE_DICT",
        "backward_prefetch": "backward_pre",
        "forward_prefetch": "true",
        "use_orig_params": "false",
        "limit_all_gathers": True,
        "sync_module_states": True,
        "xla": False,
        "cpu_ram_efficient_loading": "false",
    }
    file = tmp_path / "fsdp.json"
    file.write_text(json.dumps(config))
    options = fsdp_options(True, str(file), tiny_bert())
    (layer,) = options.pop("auto_wrap_policy")
    assert layer.__name__ == "BertLayer"
    assert options.pop("activation_checkpointing_policy") == {layer}
    assert options == {
        "sharding_strategy": "FULL_SHARD",
        "cpu_offload": False,
        "state_dict_type": "sharded",
        "backward_prefetch": BackwardPrefetch.BACKWARD_PRE,
        "forward_prefetch": True,
        "use_orig_params": False,
        "limit_all_gathers": True,
        "sync_module_states": True,
    }


def test_fsdp_wrapping_policy():
    assert "auto_wrap_policy" not in fsdp_options(True, {"auto_wrap_policy": "NO_WRAP"}, tiny_bert())
    assert {layer.__name__ for layer in fsdp_options(True, {}, tiny_bert())["auto_wrap_policy"]} >= {"BertLayer"}
    policy = fsdp_options(True, {"auto_wrap_policy": "SIZE_BASED_WRAP", "min_num_params": 7}, None)["auto_wrap_policy"]
    assert policy.keywords == {"min_num_params": 7}


@pytest.mark.parametrize(
    ("fsdp", "config", "match"),
    [
        ("half_shard", None, "has the word 'half_shard'; use full_shard"),
        (True, {"xla": True}, "sets xla, which Lightning's FSDPStrategy does not have"),
        (True, {"colour": 1}, "sets colour"),
        (True, {"reshard_after_forward": "some"}, "`reshard_after_forward='some'` .* is not known"),
        (True, {"auto_wrap_policy": "WRAP"}, "`auto_wrap_policy='WRAP'` .* is not known"),
    ],
)
def test_unsupported_fsdp_setting_is_rejected(fsdp, config, match):
    with pytest.raises(InputError, match=match):
        fsdp_options(fsdp, config, None)


@pytest.mark.parametrize(("name", "kind"), [("fsdp", "FSDPStrategy"), ("deepspeed", "DeepSpeedStrategy")])
def test_sharding_without_devices_is_rejected(name, kind, tmp_path):
    value = {"fsdp": "full_shard", "deepspeed": {"zero_optimization": {"stage": 2}}}[name]
    with pytest.raises(InputError, match=rf"`{name}` becomes Lightning's {kind}, which needs CUDA.*'cpu'"):
        toy_arguments(tmp_path, **{name: value})


def test_two_strategies_are_rejected(args):
    args.fsdp, args.strategy = True, "ddp"
    with pytest.raises(InputError, match="`fsdp` and `strategy` each choose a strategy"):
        sharded_strategy(args)


def test_parallelism_config_is_rejected(tmp_path):
    with pytest.raises(InputError, match=r"set Lightning's `strategy=ModelParallelStrategy\(...\)`"):
        toy_arguments(tmp_path, parallelism_config=object())


def test_missing_deepspeed_is_rejected(args, monkeypatch):
    args.deepspeed = {"zero_optimization": {"stage": 2}}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sharded, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="DeepSpeed is not installed; install it with `pip install deepspeed`"):
        sharded_strategy(args)


def test_deepspeed_strategy(args, monkeypatch):
    made = {}
    monkeypatch.setattr(sharded, "find_spec", lambda name: object())
    monkeypatch.setattr(sharded, "DeepSpeedStrategy", lambda **options: made.update(options))
    args.deepspeed = {"zero_optimization": {"stage": 3, "reduce_bucket_size": "auto"}, "bf16": {"enabled": "auto"}}
    sharded_strategy(args)
    assert made["config"] == {
        "zero_optimization": {"stage": 3},
        "bf16": {},
        "train_micro_batch_size_per_gpu": 2,
        "gradient_clipping": 1.0,
    }
    assert made["timeout"].total_seconds() == args.ddp_timeout


def test_deepspeed_config_file(args, tmp_path):
    args.deepspeed = str(tmp_path / "deepspeed.json")
    (tmp_path / "deepspeed.json").write_text('{"gradient_accumulation_steps": 1}')
    assert deepspeed_config(args) == {"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 1.0}


def test_contradicting_deepspeed_config_is_rejected(args):
    args.deepspeed = {"gradient_accumulation_steps": 4}
    with pytest.raises(InputError, match=r"`gradient_accumulation_steps=4` .* contradicts .* which say 1"):
        deepspeed_config(args)
    args.deepspeed = {"optimizer": {"type": "AdamW"}}
    with pytest.raises(InputError, match=r"a section `optimizer`, but .* set `optim`"):
        deepspeed_config(args)


def test_sharded_weights_are_not_written_by_checkpoint(tmp_path):
    with pytest.raises(InputError, match=r"Under FSDPStrategy .* set `save_strategy='no'`"):
        refuse_sharded_weights(FSDPStrategy())
    refuse_sharded_weights(toy_trainer(tmp_path).lightning_trainer.strategy)
