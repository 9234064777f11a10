"""Configurations of DeepSpeed, and what is refused next to them; ``tests/parity`` runs the engine."""

import gc
import json

import pytest
import torch

import portico
from models import Line, tiny_bert, toy_arguments, toy_trainer
from portico.distributed import deepspeed as ours
from portico.distributed.deepspeed import EngineConfig, EngineStrategy

AUTO = {
    "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto", "stage3_param_persistence_threshold": "auto"},
    "train_micro_batch_size_per_gpu": "auto",
    "train_batch_size": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "bf16": {"enabled": "auto"},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": "auto", "warmup_num_steps": "auto"}},
}


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    monkeypatch.setattr(ours, "find_spec", lambda name: object())


def arguments(tmp_path, config=AUTO, **changes):
    return toy_arguments(tmp_path, deepspeed=config, **changes)


def test_values_are_filled_from_the_arguments(tmp_path):
    changes = {"gradient_accumulation_steps": 4, "weight_decay": 0.1, "warmup_steps": 3, "bf16": True, "devices": 2}
    args = arguments(tmp_path, **changes)
    filled = EngineConfig(args).fill(tiny_bert(), 50)
    assert filled == {
        "zero_optimization": {"stage": 3, "reduce_bucket_size": 256, "stage3_param_persistence_threshold": 160},
        "train_micro_batch_size_per_gpu": 2,
        "train_batch_size": 16,
        "gradient_accumulation_steps": 4,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "optimizer": {
            "type": "AdamW",
            "params": {"lr": 0.1, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.1},
        },
        "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.1, "warmup_num_steps": 3}},
        "steps_per_print": float("inf"),
    }
    assert args.deepspeed == AUTO


def test_left_out_values_are_those_of_the_arguments(tmp_path, caplog):
    filled = EngineConfig(arguments(tmp_path, {"zero_optimization": {}}, gradient_accumulation_steps=2)).fill()
    assert (filled["train_micro_batch_size_per_gpu"], filled["gradient_accumulation_steps"]) == (2, 2)
    assert "`max_grad_norm=1.0` has no effect, as under transformers, since the DeepSpeed configuration" in caplog.text


def test_strategy_of_the_arguments(tmp_path):
    args = arguments(tmp_path, bf16=True, devices=2)
    strategy = args.lightning_strategy
    assert isinstance(strategy, EngineStrategy)
    assert strategy.zero_stage_3
    assert strategy.world_size == 2
    assert strategy.precision_plugin.precision == "32-true"  # the engine casts
    assert "hf_deepspeed_config" not in vars(args)  # before the processes are connected, each loads a whole model


def test_configuration_in_a_file(tmp_path):
    file = tmp_path / "deepspeed.json"
    file.write_text(json.dumps({"zero_optimization": {"stage": 2}}))
    assert EngineConfig(arguments(tmp_path, str(file))).stage == 2
    with pytest.raises(portico.InputError, match=r"`deepspeed='missing.json'` cannot be read \(.*No such file"):
        arguments(tmp_path, "missing.json")


ZERO = {"zero_optimization": {"stage": 2}}
NVME = {"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}}


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        ({"bf16": {}}, {}, r"has `zero_optimization=None`; set it to an object with a `stage` from 0 to 3"),
        ({"zero_optimization": {"stage": 4}}, {}, r"has `zero_optimization={'stage': 4}`; set it"),
        ({**ZERO, "checkpoint": {"writer": {}}}, {}, r"`checkpoint.writer` .* is not supported here; leave it out"),
        ({**ZERO, "tensor_parallel": {"autotp_size": 2}}, {}, r"`tensor_parallel` .*; leave it out, or set `parallel"),
        (NVME, {}, r"`device='nvme'` .* is not supported here, .*; set it to 'cpu'"),
        (
            ZERO,
            {"async_save": True},
            "`async_save` and `deepspeed` are both set, and do not go together; leave it out",
        ),
        (ZERO, {"precision": "bf16-true"}, r"`precision` and `deepspeed` are both set, .*; set `bf16=True`"),
        (ZERO, {"stop_on_nan": True}, r"`stop_on_nan` and `deepspeed` .* the engine has stepped"),
        (ZERO, {"fsdp": True}, "Using --fsdp xxx together with --deepspeed is not possible"),
        (
            ZERO,
            {
                "save_only_model": True,
                "load_best_model_at_end": True,
                "save_strategy": "epoch",
                "eval_strategy": "epoch",
            },
            "DeepSpeed can't be used with `save_only_model` along with `load_best_model_at_end`; leave one out",
        ),
        (
            {"zero_optimization": {"stage": 3}},
            {"save_on_each_node": True},
            "`save_on_each_node=True` writes weights on",
        ),
    ],
)
def test_what_the_engine_cannot_do_is_rejected(config, changes, message, tmp_path):
    with pytest.raises(portico.InputError, match=message):
        arguments(tmp_path, config, **changes)


def test_deepspeed_of_the_launcher_is_rejected(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    with pytest.raises(
        portico.InputError, match=r"told to use DeepSpeed .* set `deepspeed`, or start the script with"
    ):
        toy_arguments(tmp_path)


def test_missing_deepspeed_is_rejected(tmp_path, monkeypatch):
    monkeypatch.setattr(ours, "find_spec", lambda name: None)
    with pytest.raises(portico.InputError, match=r"DeepSpeed is not installed; .*'portico\[deepspeed\]'"):
        arguments(tmp_path, ZERO)


def test_what_contradicts_the_arguments_is_rejected_before_the_run(tmp_path):
    args = arguments(tmp_path, {**ZERO, "gradient_clipping": 0.5})
    with pytest.raises(portico.InputError, match=r"contradicts .* gradient_clipping=0.5 vs hf max_grad_norm=1.0; set"):
        toy_trainer(tmp_path, parts={"args": args})
    optimizer = torch.optim.SGD((model := Line()).parameters(), 0.1)
    parts = {"args": arguments(tmp_path, ZERO), "model": model, "optimizers": (optimizer, None)}
    with pytest.raises(portico.InputError, match=r"`optimizers` is not allowed .* override `create_optimizer`"):
        toy_trainer(tmp_path, parts=parts)


def test_wrappers_of_lightning_do_not_free_an_optimizer(tmp_path):
    freed = []

    class Freeing(torch.optim.SGD):
        def __del__(self):
            freed.append(type(self).__name__)

    strategy = arguments(tmp_path, {"zero_optimization": {"stage": 2}}).lightning_strategy
    optimizer = Freeing(Line().parameters(), lr=0.1)
    strategy.optimizers = [optimizer]
    assert isinstance(strategy._lightning_optimizers[0], Freeing)
    strategy.optimizers = []
    gc.collect()
    assert freed == []
    del optimizer
    gc.collect()
    assert freed == ["Freeing"]
