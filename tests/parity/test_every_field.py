"""Every training argument has the same effect as under transformers.

A scenario sets fields that can be told apart in one short run. What a run shows is compared: history, events, weights,
files, tracked scalars, predictions, the model's configuration.
"""

import dataclasses
import os
import warnings

import numpy as np
import pytest
import torch
import transformers
from datasets import Dataset as ArrowDataset
from training_arguments import documented

import portico
from models import ToyDataset
from parity.peers import assert_identical, run, untimed
from portico.checkpoint.manifest import OWN_FILES
from portico.loop.validation import WITHOUT_EFFECT

TENSORBOARD = "tensorboard.backend.event_processing.event_accumulator"
EVALUATED = {"eval_strategy": "steps", "eval_steps": 1}
SAVED = {"save_strategy": "steps", "save_steps": 1}
SCENARIOS = {
    "counts": {"num_train_epochs": 0.6, "gradient_accumulation_steps": 2, "average_tokens_across_devices": False},
    "batches": {"per_device_train_batch_size": 3, "per_device_eval_batch_size": 5, "auto_find_batch_size": True},
    "adam": {
        "optim": "adamw_torch",
        "learning_rate": 3e-3,
        "weight_decay": 0.3,
        "adam_beta1": 0.5,
        "adam_beta2": 0.7,
        "adam_epsilon": 1e-3,
        "max_grad_norm": 0.1,
    },
    "sgd": {"optim": "sgd", "optim_args": "momentum=0.9", "optim_target_modules": ["dense"]},
    "schedule": {
        "lr_scheduler_type": "cosine_with_min_lr",
        "lr_scheduler_kwargs": {"min_lr": 1e-3},
        "warmup_steps": 2,
    },
    "regularisation": {"label_smoothing_factor": 0.2, "neftune_noise_alpha": 5.0},
    "bfloat16": {"bf16": True, "bf16_full_eval": True, "tf32": False},
    "float16": {"fp16_full_eval": True},
    "checkpointing": {"activation_checkpointing": True, "activation_checkpointing_kwargs": {"use_reentrant": False}},
    "old checkpointing": {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}},
    "compilation": {"torch_compile": True, "torch_compile_backend": "eager", "torch_compile_mode": "default"},
    "model": {"use_cache": True, "torch_empty_cache_steps": 1},
    "logs by epoch": {"logging_strategy": "epoch", "include_num_input_tokens_seen": "non_padding"},
    "logs by step": {
        "logging_steps": 2,
        "logging_first_step": True,
        "logging_nan_inf_filter": False,
        "include_num_input_tokens_seen": True,
        "log_level": "error",
        "log_level_replica": "error",
        "log_on_each_node": False,
        "disable_tqdm": False,
    },
    "trackers": {
        "report_to": "tensorboard",
        "run_name": "name",
        "project": "project",
        "trackio_space_id": "space",
        "trackio_bucket_id": "bucket",
        "trackio_static_space_id": "static",
    },
    "evaluation": {
        "eval_strategy": "steps",
        "eval_steps": 1,
        "eval_delay": 2,
        "eval_on_start": True,
        "eval_do_concat_batches": False,
        "eval_accumulation_steps": 1,
        "eval_use_gather_object": True,
        "include_for_metrics": ["inputs", "loss"],
    },
    "loss alone": {"prediction_loss_only": True, **EVALUATED},
    "metrics by batch": {"batch_eval_metrics": True, **EVALUATED},
    "saving": {"save_total_limit": 1, "save_only_model": True, "save_on_each_node": True, **SAVED},
    "best": {
        "load_best_model_at_end": True,
        "metric_for_best_model": "first_logit",
        "greater_is_better": False,
        **SAVED,
        **EVALUATED,
    },
    "termination": {"enable_jit_checkpoint": True},
    "uploads that do not happen": {
        "hub_model_id": "name",
        "hub_strategy": "end",
        "hub_token": "token",
        "hub_private_repo": True,
        "hub_always_push": True,
        "hub_revision": "branch",
    },
    "resume": {"ignore_data_skip": True, "restore_callback_states_from_checkpoint": True, **SAVED},
    "seeds": {"seed": 11, "data_seed": 5},
    "determinism": {"full_determinism": True},
    "loaders": {
        "dataloader_drop_last": True,
        "dataloader_num_workers": 1,
        "dataloader_pin_memory": False,
        "dataloader_persistent_workers": True,
        "dataloader_prefetch_factor": 3,
        "dataloader_multiprocessing_context": "fork",
        "dataloader_in_order": False,
        **EVALUATED,
    },
    "columns": {
        "remove_unused_columns": False,
        "label_names": ["labels"],
        "train_sampling_strategy": "group_by_length",
        "length_column_name": "size",
    },
    "one process": {
        "ddp_find_unused_parameters": False,
        "ddp_bucket_cap_mb": 5,
        "ddp_broadcast_buffers": False,
        "ddp_static_graph": True,
        "ddp_timeout": 60,
    },
    "watching": {"debug": "underflow_overflow", "skip_memory_metrics": False},
    "scripts": {"do_train": True, "do_eval": True, "do_predict": True, "resume_from_checkpoint": "folder"},
}
# Fields whose effect does not show in a short run on a CPU, and where each is tested instead.
UNSEEN = {
    "checkpointing",
    "compilation",
    "determinism",
    "old checkpointing",
    "one process",
    "scripts",
    "termination",
    "trackers",
    "uploads that do not happen",
}
ELSEWHERE = {
    "the arguments of every run": "max_steps output_dir use_cpu",
    "tests/unit/distributed/test_placement.py, since a CPU has none": "fp16",
    "tests/unit/loop/test_model_setup.py": "use_liger_kernel liger_kernel_config",
    "tests/unit/test_arguments.py": "accelerator strategy devices num_nodes precision",
    "tests/unit/loop/test_corrections.py": "corrections stop_on_nan",
    "tests/unit/checkpoint/test_background.py": "async_save",
    "refused in tests/unit/loop/test_validation.py": "accelerator_config",
    "tests/parity/test_deepspeed.py": "deepspeed",
    "tests/parity/test_hub.py": "push_to_hub",
    "runs on several processes": "ddp_backend fsdp fsdp_config parallelism_config",
    "the trainer that generates": (
        "predict_with_generate generation_max_length generation_num_beams generation_config"
    ),
}


def sized_sentences():
    toy = ToyDataset()
    rows = [{name: value.tolist() for name, value in toy[index].items()} for index in range(len(toy))]
    for index, row in enumerate(rows):
        row["size"] = index % 7
    return ArrowDataset.from_list(rows).with_format("torch", columns=["input_ids", "labels"], output_all_columns=True)


def without_size(examples):
    return transformers.default_data_collator(
        [{name: value for name, value in one.items() if name != "size"} for one in examples]
    )


def metrics(prediction, compute_result=True):
    parts = {"inputs": prediction.inputs, "losses": prediction.losses}
    logits = prediction.predictions[0] if isinstance(prediction.predictions, list) else prediction.predictions
    given = {f"has_{name}": float(part is not None) for name, part in parts.items()}
    return {"first_logit": float(logits[0, 0]), "result": float(compute_result), **given}


def what_shows(trainer):
    measured = untimed(trainer.evaluate())
    return {
        "config": trainer.model.config.to_dict(),
        "evaluation": {name: 0 if "_mem_" in name else value for name, value in measured.items()},
        "predictions": trainer.predict(ToyDataset(6, seed=5)).predictions,
    }


def unmeasured(trainer_class):
    class Unmeasured(trainer_class):
        """Log memory as 0, since it differs from run to run."""

        def log(self, logs, *args, **kwargs):
            super().log({key: 0 if "_mem_" in key else value for key, value in logs.items()}, *args, **kwargs)

    return Unmeasured


def observe(library, folder, name, arguments):
    if "report_to" in arguments:
        pytest.importorskip(TENSORBOARD)
    options = {"trainer_options": {"compute_metrics": metrics}}
    if name == "columns":
        options = {"train_dataset": sized_sentences, "trainer_options": {"data_collator": without_size}}
    if name == "resume":
        run(library, folder, max_steps=2, **SAVED)
        options["resume"] = True
    # A scenario overrides the arguments that all runs share.
    outcome = run(
        library, folder, base=unmeasured, after=what_shows, callbacks=(), **{"max_steps": 3, **arguments}, **options
    )
    outcome.train_output.metrics.update({key: 0 for key in outcome.train_output.metrics if "_mem_" in key})
    outcome.extra["files"] = sorted(
        str(file.relative_to(folder))
        for file in folder.rglob("*")
        if "runs" not in file.parts and file.name not in OWN_FILES
    )
    outcome.extra["scalars"] = scalars(folder)
    return outcome


def scalars(folder):
    """Return the values and steps that TensorBoard shows, by tag."""
    read = {}
    for run_folder in sorted((folder / "runs").glob("*")) if (folder / "runs").is_dir() else ():
        reader = pytest.importorskip(TENSORBOARD).EventAccumulator
        events = reader(str(run_folder)).Reload()
        for tag in untimed(dict.fromkeys(events.Tags()["scalars"])):
            read[tag] = [(event.step, event.value) for event in events.Scalars(tag)]
    return read


@pytest.fixture
def _as_before():
    environment, level = dict(os.environ), transformers.logging.get_verbosity()
    with warnings.catch_warnings():
        yield
    os.environ.clear()
    os.environ.update(environment)
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.deterministic = False
    transformers.logging.set_verbosity(level)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return observe(portico, tmp_path_factory.mktemp("plain"), "plain", {})


@pytest.mark.usefixtures("_as_before")
@pytest.mark.filterwarnings("ignore:`gradient_checkpointing.*` is deprecated:FutureWarning")
@pytest.mark.parametrize("name", SCENARIOS)
def test_same_effect_of_fields(name, tmp_path, plain):
    theirs = observe(transformers, tmp_path / "same", name, SCENARIOS[name])
    (tmp_path / "same").rename(tmp_path / "theirs")
    ours = observe(portico, tmp_path / "same", name, SCENARIOS[name])
    assert_identical(ours, theirs)
    if name not in UNSEEN:
        with pytest.raises((AssertionError, KeyError)):
            assert_identical(ours, plain)


def test_tensorboard_values_can_be_read(tmp_path):
    outcome = observe(portico, tmp_path, "trackers", SCENARIOS["trackers"])
    losses = [(entry["step"], float(np.float32(entry["loss"]))) for entry in outcome.history if "loss" in entry]
    assert len(losses) == 3
    assert outcome.extra["scalars"]["train/loss"] == losses


def test_every_field_with_an_effect_is_in_a_scenario():
    covered = {name for scenario in SCENARIOS.values() for name in scenario}
    elsewhere = {name for names in ELSEWHERE.values() for name in names.split()}
    # The docstring of each class describes its own fields only.
    described = [documented(arguments) for arguments in (portico.TrainingArguments, portico.Seq2SeqTrainingArguments)]
    effective = {name for effects in described for name in effects} - WITHOUT_EFFECT.keys()
    assert len(effective) > 100
    assert sorted(effective - covered - elsewhere) == [], "set these fields in a scenario"
    assert sorted(covered & elsewhere) == []


def test_every_scenario_sets_its_fields_away_from_their_defaults():
    defaults = {field.name: field.default for field in dataclasses.fields(transformers.TrainingArguments)}
    same = [
        (name, field)
        for name, scenario in SCENARIOS.items()
        for field in scenario
        if scenario[field] == defaults[field]
    ]
    assert same == [("saving", "save_strategy"), ("best", "save_strategy"), ("resume", "save_strategy")]
