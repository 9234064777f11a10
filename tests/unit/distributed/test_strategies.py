import json
import re
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import transformers
from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy, ModelParallelStrategy, SingleDeviceStrategy

import portico
from models import Line, tiny_llama, toy_arguments, toy_trainer, two_layer_bert
from portico.compat.transformers import logger
from portico.distributed.model_parallel import ShardedStrategy, Sharding
from portico.distributed.placement import resolve_run_placement, resolve_strategy
from portico.distributed.strategies import (
    ModelDDPStrategy,
    ddp_strategy,
    fsdp_sharding,
    refuse_sharded_weights,
    resolve_sharding,
)
from portico.errors import InputError
from portico.loop import validation
from portico.loop.model_setup import enable_activation_checkpointing
from portico.loop.validation import check_strategy_of_training, refuse_cast_of_shards


@pytest.fixture(autouse=True)
def _announced_anew():
    transformers.utils.logging.warning_once.cache_clear()


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


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("ddp_timeout", "long", "`ddp_timeout='long'` cannot be used; set it to a finite number of seconds"),
        ("ddp_timeout", [60], r"`ddp_timeout=\[60\]` cannot be used; set it to a finite number of seconds"),
        ("ddp_timeout", float("inf"), "`ddp_timeout=inf` cannot be used; set it to a finite number of seconds"),
        ("ddp_bucket_cap_mb", "large", "`ddp_bucket_cap_mb='large'` cannot be used; set it to a finite number of meg"),
    ],
)
def test_numbers_that_only_several_processes_read(name, value, reason, tmp_path):
    alone = toy_arguments(tmp_path, **{name: value})
    assert isinstance(resolve_strategy(alone), SingleDeviceStrategy)
    with pytest.raises(InputError, match=reason):
        resolve_strategy_of(alone)


def test_numbers_of_several_processes_may_be_text(tmp_path):
    strategy = resolve_strategy_of(toy_arguments(tmp_path, ddp_timeout="60", ddp_bucket_cap_mb="0.5"))
    assert (strategy._timeout, options(strategy)["bucket_cap_mb"]) == (timedelta(seconds=60), 0.5)


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

    bert = two_layer_bert()
    assert looks()
    assert looks(bert)
    enable_activation_checkpointing(bert, {})
    assert not looks(bert)
    args.gradient_checkpointing = True
    assert not looks(two_layer_bert())
    assert looks(Line())


def test_ddp_options_with_strategy_object_are_rejected(tmp_path):
    args = toy_arguments(tmp_path)
    args.strategy, args.devices, args.ddp_bucket_cap_mb = DDPStrategy(), 2, 5
    with pytest.raises(InputError, match="is a DDPStrategy object, which ignores ddp_bucket_cap_mb"):
        resolve_run_placement(args)
    args.ddp_bucket_cap_mb = None
    used = resolve_run_placement(args)["strategy"]
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
    trainer = toy_trainer(tmp_path, Own, parts={"args": args})  # which may evaluate
    with pytest.raises(InputError, match=r"`training_step` is overridden, .* set `strategy='ddp'`"):
        trainer.train()


def test_transformers_arguments_use_ddp(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    args = toy_arguments(tmp_path, transformers.TrainingArguments)
    assert isinstance(resolve_run_placement(args)["strategy"], ModelDDPStrategy)
    monkeypatch.setenv("GROUP_WORLD_SIZE", "3")
    assert resolve_run_placement(args)["num_nodes"] == 3


@pytest.fixture
def args(tmp_path, monkeypatch):
    """Return a function that makes arguments on a machine that appears to have CUDA."""
    made = toy_arguments(tmp_path)
    made.use_cpu = False
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    return made


def test_no_sharding_by_default(args):
    assert resolve_sharding(args) is None


@pytest.mark.parametrize(
    ("fsdp", "config", "reshards", "offload"),
    [
        (True, None, True, False),
        ("full_shard auto_wrap", None, True, False),
        ("shard_grad_op offload", None, False, True),
        (["hybrid_shard"], {}, True, False),
        (True, {"reshard_after_forward": False, "fsdp_cpu_offload": "true"}, False, True),
    ],
)
def test_fsdp_sharding(fsdp, config, reshards, offload):
    sharding, has_copies = fsdp_sharding(fsdp, config)
    assert (sharding.reshard_after_forward, sharding.cpu_offload) == (reshards, offload)
    assert has_copies is (fsdp == ["hybrid_shard"])


def test_fsdp_settings(tmp_path, caplog):
    config = {
        "transformer_layer_cls_to_wrap": "BertLayer,BertEmbeddings",
        "activation_checkpointing": True,
        "state_dict_type": "SHARDED_STATE_DICT",
        "version": 1,
        "backward_prefetch": "backward_pre",
        "use_orig_params": "false",
        "xla": False,
        "cpu_ram_efficient_loading": "false",
    }
    file = tmp_path / "fsdp.json"
    file.write_text(json.dumps(config))
    sharding, _ = fsdp_sharding(True, str(file))
    names = frozenset({"BertLayer", "BertEmbeddings"})
    assert sharding == Sharding(transformer_layer_cls_to_wrap=names, activation_checkpointing=True)
    assert "FSDP2 has no backward_prefetch, use_orig_params, version" in caplog.text


# For each key of `fsdp_config` a value other than its default, and what becomes of it: a field of the sharding, or a
# part of the warning or of the error.
FSDP_KEYS = {
    "activation_checkpointing": (True, "activation_checkpointing"),
    "auto_wrap_policy": ("NO_WRAP", "auto_wrap_policy"),
    "cpu_offload": (True, "cpu_offload"),
    "min_num_params": (7, "min_num_params"),
    "reshard_after_forward": (False, "reshard_after_forward"),
    "transformer_layer_cls_to_wrap": (["BertLayer"], "transformer_layer_cls_to_wrap"),
    "cpu_ram_efficient_loading": (True, "changes nothing"),
    "state_dict_type": ("SHARDED_STATE_DICT", "changes nothing"),
    **dict.fromkeys(
        ("backward_prefetch", "forward_prefetch", "limit_all_gathers", "sync_module_states", "use_orig_params"),
        (True, "FSDP2 has no"),
    ),
    "version": (1, "FSDP2 has no version"),
    **dict.fromkeys(("xla", "xla_fsdp_settings", "xla_fsdp_grad_ckpt", "xla_fsdp_v2"), (True, "does not have")),
}


def keys_that_transformers_reads():
    """Return the keys of `fsdp_config` in the documentation and in all code of transformers."""
    documented = transformers.TrainingArguments.__doc__.partition("fsdp_config (`str` or `dict`")[2]
    keys = set(re.findall(r"^ +- (\w+) \(`", documented.partition("> DeepSpeed")[0], re.MULTILINE))
    assert len(keys) > 10
    key = r"""["'](\w+)["']"""
    used = re.compile(
        rf"\bfsdp_config(?:\[|\.(?:get|setdefault|pop)\()\s*{key}|{key} (?:not )?in (?:self\.)?fsdp_config\b"
    )
    for file in Path(transformers.__file__).parent.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        if "fsdp_config" in text:
            keys |= {one or other for one, other in used.findall(text)}
    return keys


@pytest.mark.pinned
def test_every_key_of_transformers_is_known():
    assert keys_that_transformers_reads() <= set(FSDP_KEYS)


def test_unknown_key_has_no_effect(caplog):
    logger.warning_once.cache_clear()
    assert fsdp_sharding(True, {"colour": 1}) == (Sharding(), False)
    assert "sets colour, which is no setting of FSDP2 and has no effect" in caplog.text


def test_switch_that_is_neither_on_nor_off_is_on(caplog):
    logger.warning_once.cache_clear()
    assert fsdp_sharding(True, {"cpu_offload": "maybe"})[0].cpu_offload
    assert "`cpu_offload='maybe'` in `fsdp_config` counts as on" in caplog.text


@pytest.mark.parametrize("key", FSDP_KEYS)
def test_key_is_mapped_announced_or_refused(key, caplog):
    value, outcome = FSDP_KEYS[key]
    if outcome == "does not have":
        with pytest.raises(InputError, match=f"sets {key}, which torch's FSDP2 does not have"):
            fsdp_sharding(True, {key: value})
        return
    sharding, _ = fsdp_sharding(True, {key: value})
    changed = [name for name, one in vars(sharding).items() if one != getattr(Sharding(), name)]
    if outcome == key:
        assert changed == [key]
        assert not caplog.text
    else:
        assert changed == []
        assert outcome in caplog.text
        assert key in caplog.text


@pytest.mark.parametrize(
    ("name", "value", "field", "expected"),
    [
        ("fsdp_offload_params", "true", "cpu_offload", True),
        ("fsdp_sharding_strategy", "SHARD_GRAD_OP", "reshard_after_forward", False),
        ("transformer_cls_names_to_wrap", "A,B", "transformer_layer_cls_to_wrap", {"A", "B"}),
        ("fsdp_transformer_layer_cls_to_wrap", ["A"], "transformer_layer_cls_to_wrap", {"A"}),
    ],
)
def test_names_of_accelerate_are_known(name, value, field, expected, caplog):
    logger.warning_once.cache_clear()
    assert getattr(fsdp_sharding(True, {name: value})[0], field) == expected
    if name.startswith("fsdp_"):  # as in transformers, the prefix counts
        assert getattr(fsdp_sharding(True, {name: value, field: "other"})[0], field) == expected
        assert f"sets {field} twice, and the value of {name} counts" in caplog.text


@pytest.mark.parametrize("given", [{}, {"parallelism_config": {"dp_shard_size": 2}}])
def test_sharding_settings_without_fsdp_are_announced_once(given, tmp_path, caplog):
    args = toy_arguments(tmp_path, devices=2, fsdp_config={"cpu_offload": True}, **given)
    toy_trainer(tmp_path, parts={"args": args})
    assert caplog.text.count("`fsdp_config` has no effect without `fsdp`; set `fsdp=True`") == 1
    toy_arguments(tmp_path, devices=2, fsdp_config={"cpu_offload": True}, strategy="fsdp")
    assert caplog.text.count("has no effect without `fsdp`") == 1


@pytest.mark.parametrize("name", ["fsdp_config", "accelerator_config"])
def test_file_of_settings_that_cannot_be_read_is_rejected(name, tmp_path):
    settings = {"devices": 2, "fsdp": True} if name == "fsdp_config" else {}
    file = tmp_path / "settings.json"
    with pytest.raises(InputError, match=rf"`{name}='.*settings.json'` cannot be read \(.*No such file"):
        toy_arguments(tmp_path, **settings, **{name: str(file)})
    file.write_text("{")
    with pytest.raises(InputError, match=rf"`{name}='.*'` cannot be read \(Expecting .*; give a dict or a JSON"):
        toy_arguments(tmp_path, **settings, **{name: str(file)})
    file.write_text("[1]")
    with pytest.raises(InputError, match=rf"`{name}='.*'` holds a list; write an object of settings"):
        toy_arguments(tmp_path, **settings, **{name: str(file)})


def test_layers_that_are_gathered_one_at_a_time():
    bert = two_layer_bert()

    def layers(**config):
        return [type(layer).__name__ for layer in fsdp_sharding(True, config)[0].layers(bert)]

    assert layers(auto_wrap_policy="NO_WRAP") == []
    assert layers() == ["BertLayer", "BertLayer", "BertEmbeddings"]
    assert layers(transformer_layer_cls_to_wrap=["BertPooler"]) == ["BertPooler"]
    assert layers(transformer_layer_cls_to_wrap="BertPooler, BertEmbeddings") == ["BertPooler", "BertEmbeddings"]
    # Inner ones first; a list of layers has no forward pass of its own to gather it for.
    by_size = layers(auto_wrap_policy="SIZE_BASED_WRAP", min_num_params=2000)
    assert by_size == ["BertLayer", "BertLayer", "BertEncoder", "BertModel"]


@pytest.mark.parametrize(
    ("fsdp", "config", "match"),
    [
        ("half_shard", None, "has the word 'half_shard'; use full_shard"),
        ("no_shard", None, "does not shard the model; set `strategy='ddp'`"),
        (True, {"xla": True}, "sets xla, which torch's FSDP2 does not have"),
        (True, {"reshard_after_forward": "some"}, "`reshard_after_forward='some'` .* is not known; use one of true"),
        (True, {"auto_wrap_policy": "WRAP"}, "`auto_wrap_policy='WRAP'` .* is not known"),
        (True, {"state_dict_type": "LOCAL_STATE_DICT"}, "`state_dict_type='LOCAL_STATE_DICT'` .* is not known"),
        (True, {"transformer_layer_cls_to_wrap": [Line]}, "is not a list of names; write the classes as strings"),
        (True, {"transformer_layer_cls_to_wrap": Line}, "is not a list of names; write the classes as strings"),
    ],
)
def test_unsupported_fsdp_setting_is_rejected(fsdp, config, match):
    with pytest.raises(InputError, match=match):
        fsdp_sharding(fsdp, config)


def test_layer_class_that_the_model_lacks_is_rejected():
    with pytest.raises(InputError, match="names LlamaDecoderLayer, of which BertForSequenceClassification has no"):
        fsdp_sharding(True, {"transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]})[0].layers(two_layer_bert())


def test_fsdp_in_one_process_is_rejected(tmp_path):
    with pytest.raises(InputError, match=r"Using fsdp only works in distributed training\. The run has one process"):
        toy_arguments(tmp_path, fsdp=True)


@pytest.mark.parametrize(
    ("given", "shape"),
    [
        ({"fsdp": True}, (1, 4, 1)),
        ({"strategy": "fsdp"}, (1, 4, 1)),
        ({"strategy": ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=2)}, (1, 2, 2)),
        ({"parallelism_config": {"dp_replicate_size": 2, "dp_shard_size": 2}}, (2, 2, 1)),
        ({"parallelism_config": {"tp_size": 4}}, (1, 1, 4)),
        ({"fsdp": True, "parallelism_config": {"tp_size": 2}}, (1, 2, 2)),
        ({"fsdp": "hybrid_shard"}, (1, 4, 1)),
    ],
)
def test_mesh_of_processes(given, shape, tmp_path):
    strategy = toy_arguments(tmp_path, devices=4, **given).lightning_strategy
    assert isinstance(strategy, ShardedStrategy)
    assert strategy.mesh_shape == shape
    assert strategy.tensor_parallel_size == shape[2]


TWO_BY_TWO = {"dp_replicate_size": 2, "dp_shard_size": 2}


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"parallelism_config": {"dp_shard_size": 3}}, "1 replicate x 3 shard x 1 tensor has 3 places, but .* 4 proc"),
        ({"fsdp": True, "parallelism_config": {"tp_size": 8}}, "has 8 places, but the run has 4 processes; start 8"),
        ({"strategy": ModelParallelStrategy(2, 3)}, "1 replicate x 2 shard x 3 tensor has 6 places"),
        # Of two by two, on three processes, on six and on one.
        ({"parallelism_config": TWO_BY_TWO, "devices": 3}, "has 4 places, but the run has 3 processes; start 4, or"),
        (
            {"parallelism_config": TWO_BY_TWO, "devices": 3, "num_nodes": 2},
            "has 4 places, but the run has 6 processes",
        ),
        ({"parallelism_config": TWO_BY_TWO, "devices": 1}, "has 4 places, but the run has 1 processes"),
        ({"parallelism_config": {"tp_size": -1}}, "`tp_size=-1` in `parallelism_config` is not a number of processes"),
        (
            {"parallelism_config": {"dp_shard_size": 0}},
            "`dp_shard_size=0` .* is not a number of processes; use an int",
        ),
        ({"parallelism_config": {"tp_size": "two"}}, "`tp_size='two'` .* is not a number of processes"),
        (
            {"parallelism_config": {"tensor_size": 2}},
            "sets tensor_size, which is unknown; use dp_replicate_size",
        ),
        (
            {"parallelism_config": {"tp_size": 4}, "strategy": "ddp"},
            "shards the model, and `strategy` is 'ddp'; set",
        ),
        ({"parallelism_config": {"tp_size": 4}, "strategy": DDPStrategy()}, "`strategy` is 'DDPStrategy'; set one of"),
        (
            {"parallelism_config": {"tp_size": 4}, "strategy": ModelParallelStrategy(2, 2)},
            "`strategy` is 'ModelParallelStrategy'; set one of them",
        ),
        ({"parallelism_config": {"dp_replicate_size": 3}}, "`dp_replicate_size=3` .* the run has 4; start 3, or"),
        ({"parallelism_config": {"dp_replicate_size": 2}, "strategy": "ddp"}, "`dp_replicate_size=2` .* run has 4"),
        ({"fsdp": True, "strategy": "ddp"}, "`fsdp` and `strategy` each choose a strategy; set one of them"),
        ({"fsdp": True, "fsdp_config": {"min_num_params": "many"}}, "`min_num_params=many` .* use an int >= 0"),
        ({"fsdp": True, "optim": "adafactor"}, "`optim='adafactor'` keeps moments .* full weights, and the model is"),
        ({"parallelism_config": [2, 2]}, "`parallelism_config` is a list; give a dict of sizes, such as {'tp_size'"),
        ({"parallelism_config": "none.json"}, "`parallelism_config='none.json'` cannot be read .*; give a dict or a"),
        ({"parallelism_config": {"cp_size": 2, "sp_size": 2}}, "`sp_size=2` and `cp_size=2` .* are two ways to share"),
        ({"parallelism_config": {"cp_size": 3}}, "`cp_size=3` .* does not divide the 4 processes of the run; start 3"),
        ({"parallelism_config": {"cp_size": 2, "tp_size": 2}}, "`cp_size=2` and `tp_size=2` .* set one of them"),
        ({"parallelism_config": {"sp_size": 3}}, "`sp_size=3` .* does not divide the 4 processes of the run; start 3"),
        ({"parallelism_config": {"sp_size": 2, "tp_size": 2}}, "`sp_size=2` and `tp_size=2` .* set one of them"),
        (
            {"parallelism_config": {"sp_size": 2}, "strategy": DDPStrategy()},
            "`sp_size=2` .* splits sequences under `strategy='ddp'` or `fsdp`, and the run has a DDPStrategy; leave",
        ),
        ({"parallelism_config": {"dp_replicate_size": 4, "sp_size": 2}}, "`dp_replicate_size=4` .* for 8 processes"),
    ],
)
@pytest.mark.filterwarnings("ignore:When using FSDP, prefer:UserWarning")
@pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated:FutureWarning")
def test_mesh_that_does_not_fit_is_rejected(given, match, tmp_path):
    with pytest.raises(InputError, match=match):
        toy_arguments(tmp_path, **{"devices": 4, **given})


@pytest.mark.filterwarnings("ignore:When using FSDP, prefer:UserWarning")
@pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated:FutureWarning")
def test_layers_are_recomputed_once(tmp_path, caplog):
    logger.warning_once.cache_clear()
    given = {"fsdp": True, "fsdp_config": {"activation_checkpointing": True}, "gradient_checkpointing": True}
    strategy = toy_arguments(tmp_path, devices=2, **given).lightning_strategy
    assert not strategy.sharding.activation_checkpointing
    assert "both recompute each layer, which is done once" in caplog.text


@pytest.mark.parametrize(
    ("size", "heads"), [(3, "4 heads (`num_attention_heads`)"), (4, "2 heads (`num_key_value_heads`)")]
)
def test_heads_that_cannot_be_shared_are_rejected(size, heads, tmp_path):
    args = toy_arguments(tmp_path, devices=size, parallelism_config={"tp_size": size})
    message = f"`tp_size={size}` does not divide the {heads} of LlamaForCausalLM"
    with pytest.raises(InputError, match=re.escape(message)):
        toy_trainer(tmp_path, parts={"args": args, "model": tiny_llama()})


def test_model_without_a_tensor_parallel_plan_is_rejected(tmp_path):
    args = toy_arguments(tmp_path, devices=2, parallelism_config={"tp_size": 2})
    with pytest.raises(InputError, match=r"`tp_size=2` .* `tp_plan`, which BertForSequenceClassification does not"):
        toy_trainer(tmp_path, parts={"args": args, "model": two_layer_bert()})


def test_uneven_batches_of_a_shared_model_are_left_to_the_processes_to_compare(tmp_path):
    # Whether a process has fewer steps is known when each has counted its own, and begin_call compares them.
    args = toy_arguments(tmp_path, devices=2, fsdp=True, accelerator_config={"even_batches": False})
    toy_trainer(tmp_path, parts={"args": args, "model": two_layer_bert()})


def test_cast_of_a_sharded_model_is_rejected(tmp_path, caplog, monkeypatch):
    args = toy_arguments(tmp_path, devices=2, fsdp=True, bf16_full_eval=True)
    trainer = toy_trainer(tmp_path, parts={"args": args})
    strategy = trainer.lightning_trainer.strategy
    check_strategy_of_training(args, strategy, runs_backward_in_step=False)
    assert "after it this trainer cannot evaluate: the model is sharded and keeps its type" in caplog.text
    refuse_cast_of_shards(args, trainer.model)  # which is not sharded yet
    monkeypatch.setattr(validation, "is_sharded", lambda model: True)
    with pytest.raises(InputError, match="is sharded for training keeps its type; set `bf16=True`"):
        trainer.evaluate()


def test_sharded_weights_that_cannot_be_saved_are_judged_at_the_training(tmp_path):
    trainer = toy_trainer(tmp_path, save_strategy="steps")
    with pytest.raises(InputError, match="Under FSDPStrategy each process has only a part of the weights"):
        check_strategy_of_training(trainer.args, FSDPStrategy(), runs_backward_in_step=False)
    trainer.args.save_strategy = "no"
    check_strategy_of_training(trainer.args, FSDPStrategy(), runs_backward_in_step=False)


def test_two_strategies_are_rejected(args):
    args.fsdp, args.strategy = True, "ddp"
    with pytest.raises(InputError, match="`fsdp` and `strategy` each choose a strategy"):
        resolve_sharding(args)


def test_sharded_weights_are_not_written_by_checkpoint(tmp_path):
    with pytest.raises(InputError, match=r"Under FSDPStrategy .* set `save_strategy='no'`"):
        refuse_sharded_weights(FSDPStrategy())
    refuse_sharded_weights(toy_trainer(tmp_path).lightning_trainer.strategy)
