"""Runs mean the same on every release of transformers, and what a release cannot do is refused by name."""

import dataclasses
import logging
import pickle

import pytest
import torch
import transformers
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel

import portico
from models import tiny_gpt2, tiny_llama, tiny_tokenizer, toy_arguments, toy_trainer
from portico.compat import releases
from portico.compat import transformers as hf_compat
from portico.compat.older import enable_gradient_checkpointing
from portico.compat.releases import refuse_before, refuse_newer_values
from portico.errors import MissingPackageError

SIZES = {
    "bert": {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16},
    "gpt2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16},
}


def losses(kind, tmp_path, **changes):
    """Train a small model whose weights no release chooses, and return its steps with their losses and gradients."""
    made = {
        "bert": lambda: BertForSequenceClassification(BertConfig(vocab_size=30, **SIZES["bert"])),
        "gpt2": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=30, **SIZES["gpt2"])),
    }
    model = made[kind]()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for _, weight in sorted(model.named_parameters()):
            weight.copy_(torch.randn(weight.shape, generator=generator) / 20)
    rows = []
    for number in range(17):
        ids = torch.randint(30, (6,), generator=generator)
        rows.append({"input_ids": ids, "labels": number % 2 if kind == "bert" else ids.clone()})
        if kind == "gpt2":
            rows[-1]["labels"][: number % 4] = -100
    args = toy_arguments(
        tmp_path, max_steps=5, per_device_train_batch_size=3, logging_steps=1, seed=1, learning_rate=1e-3, **changes
    )
    trainer = portico.Trainer(model, args, train_dataset=rows, eval_dataset=rows[:5])
    torch.manual_seed(2)
    trainer.train()
    kinds = ("loss", "grad_norm", "eval_loss")
    return [
        (row["step"], *(row[kind] for kind in kinds if kind in row))
        for row in trainer.state.log_history
        if not row.keys().isdisjoint(kinds)
    ]


# Recorded with transformers 5.24. The last digits depend on the processor.
RECORDED = {
    "evaluation after the last step": (
        "bert",
        {"eval_strategy": "steps", "eval_steps": 3, "gradient_accumulation_steps": 2},
        [
            (1, 1.389817476, 0.114609465),
            (2, 1.434121251, 0.590748370),
            (3, 1.365549803, 0.170785606),
            (3, 0.707365751),
            (4, 1.390014887, 0.091118842),
            (5, 1.389155149, 0.100868046),
            (5, 0.707171142),
        ],
    ),
    "smoothed labels of accumulated batches": (
        "gpt2",
        {"label_smoothing_factor": 0.1, "gradient_accumulation_steps": 3},
        [
            (1, 3.053316355, 0.041253775),
            (2, 3.401645184, 0.077156119),
            (3, 3.165842772, 0.056053914),
            (4, 3.202568293, 0.055632085),
            (5, 3.229037285, 0.063844346),
        ],
    ),
    "recomputed activations": (
        "bert",
        {"activation_checkpointing": True, "label_smoothing_factor": 0.1},
        [
            (1, 0.675832629, 0.179345846),
            (2, 0.715108454, 0.277745456),
            (3, 0.757224619, 0.714621902),
            (4, 0.675516009, 0.172688171),
            (5, 0.674339056, 0.170879647),
        ],
    ),
}


@pytest.mark.parametrize("name", RECORDED)
def test_numbers_are_those_of_the_newest_trainer(name, tmp_path):
    kind, changes, expected = RECORDED[name]
    assert losses(kind, tmp_path, **changes) == [pytest.approx(row, rel=1e-4) for row in expected]


NEWER = {
    "activation_checkpointing": True,
    "activation_checkpointing_kwargs": {"use_reentrant": False},
    "dataloader_in_order": False,
    "dataloader_multiprocessing_context": "fork",
    "ddp_static_graph": True,
    "train_sampling_strategy": "sequential",
}


def test_arguments_of_the_newest_release_are_taken_by_every_release(tmp_path):
    args = toy_arguments(tmp_path, **NEWER)
    assert NEWER.items() <= args.to_dict().items()
    assert args.gradient_checkpointing
    assert args.gradient_checkpointing_kwargs == {"use_reentrant": False}
    assert dataclasses.replace(args, dataloader_in_order=True).activation_checkpointing
    assert pickle.loads(pickle.dumps(args)).to_dict() == args.to_dict()
    parsed = transformers.HfArgumentParser(portico.TrainingArguments).parse_args_into_dataclasses(
        ["--output_dir", str(tmp_path), "--activation_checkpointing", "--activation_checkpointing_kwargs", '{"a": 1}']
    )
    assert parsed[0].activation_checkpointing_kwargs == {"a": 1}


def test_older_name_of_activation_checkpointing_is_announced(tmp_path):
    with pytest.warns(FutureWarning, match=r"`gradient_checkpointing` is deprecated.* `activation_checkpointing`"):
        args = toy_arguments(tmp_path, gradient_checkpointing=True)
    assert args.activation_checkpointing


def test_arguments_that_are_none_any_more_are_silent_and_kept(tmp_path, caplog, recwarn):
    args = toy_arguments(tmp_path, warmup_steps=0.25)
    assert not recwarn.list
    assert "deprecated" not in caplog.text
    assert args.warmup_ratio == 0.25
    assert not {"warmup_ratio", "logging_dir"} & args.to_dict().keys()
    with pytest.warns(FutureWarning, match="`logging_dir` is deprecated"):
        args = toy_arguments(tmp_path, logging_dir="logs")
    assert args.logging_dir == "logs"
    assert "deprecated" not in caplog.text


def test_arguments_of_transformers_get_what_they_lack(tmp_path):
    args = toy_arguments(tmp_path, transformers.TrainingArguments)
    trainer = toy_trainer(tmp_path, parts={"args": args})
    assert trainer.train().global_step == 10
    assert trainer.args is args
    assert args.dataloader_in_order
    assert args.activation_checkpointing is False


@pytest.fixture
def release(monkeypatch):
    """Return a function that pretends that a release of transformers is installed."""
    return lambda number: monkeypatch.setattr(releases.transformers, "__version__", number)


@pytest.mark.parametrize(
    ("number", "changes", "match"),
    [
        (
            "5.3.0",
            {"lr_scheduler_type": "greedy", "eval_strategy": "epoch"},
            r"`lr_scheduler_type='greedy'` needs transformers 5\.4 or newer, but 5\.3",
        ),
        (
            "5.16.1",
            {"train_sampling_strategy": "batch_rebalance"},
            r"`train_sampling_strategy='batch_rebalance'` .* 5\.17",
        ),
        ("5.5.4", {"trackio_bucket_id": "me/runs"}, r"`trackio_bucket_id='me/runs'` needs transformers 5\.6 or newer"),
        ("5.5.4", {"trackio_static_space_id": False}, r"`trackio_static_space_id=False` needs transformers 5\.6"),
    ],
)
def test_what_a_release_cannot_do_is_refused_by_name(number, changes, match, release, tmp_path):
    release(number)
    with pytest.raises(MissingPackageError, match=match):
        toy_arguments(tmp_path, **changes)


@pytest.mark.parametrize(("number", "size"), [("5.22.2", "tp_size"), ("5.3.0", "sp_size"), ("5.3.0", "cp_size")])
def test_ways_to_split_a_model_that_a_release_cannot_are_refused_by_name(number, size, release, tmp_path):
    release(number)
    args = toy_arguments(tmp_path, devices=2, parallelism_config={size: 2})
    with pytest.raises(MissingPackageError, match=rf"`{size}=2` needs transformers 5\.\d+ or newer, but {number}"):
        toy_trainer(tmp_path, parts={"args": args, "model": tiny_llama()})


def test_newer_options_of_activation_checkpointing_are_refused_by_name(release):
    release("5.15.1")
    with pytest.raises(MissingPackageError, match=r"`offload` in `activation_checkpointing_kwargs` .* 5\.16 or newer"):
        enable_gradient_checkpointing(tiny_gpt2(), None, {"offload": True})


def test_development_versions_count_as_their_release(release):
    release("5.24.0.dev0")
    refuse_before("5.24", "nothing")
    with pytest.raises(MissingPackageError, match=r"Nothing needs transformers 5\.25 or newer, but 5\.24\.0\.dev0 is"):
        refuse_before("5.25", "Nothing")


def test_values_of_every_release_are_not_refused(release, tmp_path):
    args = toy_arguments(tmp_path)
    release("5.2.0")
    refuse_newer_values(args)


def test_only_tokens_that_the_tokenizer_defines_are_written(caplog):
    tokenizer, model = tiny_tokenizer(), tiny_gpt2()
    tokenizer.eos_token, tokenizer.bos_token = "[SEP]", None
    eos, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    model.config.eos_token_id, model.config.bos_token_id, model.config.pad_token_id = [9, 8], 7, None
    model.generation_config.eos_token_id, model.generation_config.bos_token_id = 9, 7
    with caplog.at_level(logging.WARNING):
        hf_compat.align_special_tokens(model, tokenizer)
    assert model.config.eos_token_id == [eos, 9, 8]
    assert model.generation_config.eos_token_id == [eos, 9]
    assert (model.config.bos_token_id, model.generation_config.bos_token_id) == (7, 7)
    assert (model.config.pad_token_id, model.generation_config.pad_token_id) == (pad, pad)
    assert "tokens" in caplog.text
