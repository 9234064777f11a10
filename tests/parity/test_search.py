"""The same trials, objectives and best runs of a hyperparameter search."""

from pathlib import Path

import optuna
import pytest
import torch
import transformers
from transformers.trainer_utils import BestRun

import portico
from models import ToyDataset, tiny_bert
from parity.peers import OWN_FIELDS, QUIET, Recorder, assert_same_values, untimed
from parity.test_processes import launch
from portico.checkpoint.manifest import OWN_FILES

SCRIPT = Path(__file__).with_name("search_in_processes.py")
optuna.logging.set_verbosity(optuna.logging.WARNING)


def space(trial):
    return {
        "learning_rate": trial.suggest_float("learning_rate", 1e-4, 1e-1, log=True),
        "per_device_train_batch_size": trial.suggest_categorical("per_device_train_batch_size", [2, 4, 8]),
        "seed": trial.suggest_int("seed", 1, 40),
    }


class ListedPredictions:
    """Return several metrics other than the loss."""

    def __call__(self, prediction):
        right = prediction.predictions.argmax(-1) == prediction.label_ids
        return {"accuracy": float(right.mean()), "first": float(prediction.predictions[0, 0])}


def search(library, output_dir, *, trainer_options=None, hp_space=space, study=None, after=None, **options):
    """Search with ``library`` and return everything observable; options in capitals are training arguments."""
    arguments = {name.lower(): options.pop(name) for name in list(options) if name.isupper()}
    recorder = Recorder()
    trainer = library.Trainer(
        args=library.TrainingArguments(
            output_dir=str(output_dir),
            **{"max_steps": 4, "per_device_eval_batch_size": 4, **QUIET, **arguments},
        ),
        model_init=lambda trial: tiny_bert(),
        train_dataset=ToyDataset(),
        eval_dataset=ToyDataset(11, seed=1),
        callbacks=[recorder],
        **(trainer_options or {}),
    )
    trainer.remove_callback(transformers.PrinterCallback)
    storage = optuna.storages.InMemoryStorage()
    best = trainer.hyperparameter_search(
        hp_space, n_trials=3, backend="optuna", storage=storage, study_name="study", **options
    )
    trials = storage.get_all_trials(0)
    return {
        "best": best,
        "trials": [
            (trial.number, trial.state.name, trial.params, trial.values, trial.intermediate_values) for trial in trials
        ],
        "events": recorder.events,
        "history": [untimed(entry) for entry in trainer.state.log_history],
        "state": (trainer.state.trial_name, trainer.state.trial_params, trainer.state.is_hyper_param_search),
        "args": {key: value for key, value in trainer.args.to_dict().items() if key not in ADDED},
        "left": (trainer.model is None, trainer.hp_search_backend),
        "files": sorted(
            str(path.relative_to(output_dir)) for path in output_dir.rglob("*") if path.name not in OWN_FILES
        ),
    }


ADDED = (*OWN_FIELDS, "accelerator_config")


def compare_searches(tmp_path, *, sampler=optuna.samplers.RandomSampler, **options):
    theirs = search(transformers, tmp_path / "same", sampler=sampler(seed=5), **options)
    (tmp_path / "same").rename(tmp_path / "theirs")
    ours = search(portico, tmp_path / "same", sampler=sampler(seed=5), **options)
    assert_same_values(ours, theirs)
    assert type(ours["best"]) is type(theirs["best"])
    return ours


EVALUATED = {"EVAL_STRATEGY": "steps", "EVAL_STEPS": 2}


@pytest.mark.parametrize("sampler", [optuna.samplers.RandomSampler, optuna.samplers.TPESampler])
def test_same_search(tmp_path, sampler):
    ours = compare_searches(tmp_path, sampler=sampler, **EVALUATED)
    assert len({values[0] for _, _, _, values, _ in ours["trials"]}) == 3


def test_same_search_without_evaluation_during_training(tmp_path):
    compare_searches(tmp_path, direction="maximize")


def test_same_trial_folders(tmp_path):
    saving = {"SAVE_STRATEGY": "steps", "SAVE_STEPS": 2, "LOAD_BEST_MODEL_AT_END": True, **EVALUATED}
    ours = compare_searches(tmp_path, **saving)
    assert {"run-0/checkpoint-2/trainer_state.json", "run-2/checkpoint-4/model.safetensors"} <= set(ours["files"])


def test_same_trial_names(tmp_path):
    def name(trial):
        return f"seed-{trial.params['seed']}"

    ours = compare_searches(tmp_path, hp_name=name, SAVE_STRATEGY="epoch", **EVALUATED)
    chosen = ours["trials"][-1][2]
    assert ours["state"] == (f"seed-{chosen['seed']}", chosen, True)
    assert f"seed-{chosen['seed']}/checkpoint-4" in ours["files"]


def test_same_best_runs_of_several_objectives(tmp_path):
    def both(metrics):
        return metrics["eval_loss"], metrics["eval_accuracy"]

    options = {"trainer_options": {"compute_metrics": ListedPredictions()}, "compute_objective": both}
    ours = compare_searches(tmp_path, direction=["minimize", "maximize"], **options, **EVALUATED)
    assert isinstance(ours["best"], list)


def test_same_default_objective(tmp_path):
    compare_searches(
        tmp_path, direction="maximize", trainer_options={"compute_metrics": ListedPredictions()}, **EVALUATED
    )


def test_same_pruning(tmp_path):
    pruner = optuna.pruners.MedianPruner(n_startup_trials=1, n_warmup_steps=0)
    ours = compare_searches(tmp_path, pruner=pruner, EVAL_STRATEGY="steps", EVAL_STEPS=1)
    assert {state for _, state, *_ in ours["trials"]} == {"COMPLETE", "PRUNED"}


def test_same_conversion_of_hyperparameters(tmp_path, caplog):
    def other_types(trial):
        return {
            "lr_scheduler_type": trial.suggest_categorical("lr_scheduler_type", ["cosine", "constant"]),
            "gradient_accumulation_steps": trial.suggest_float("gradient_accumulation_steps", 1, 3),
            "data_seed": trial.suggest_int("data_seed", 1, 9),
            "weight_decay": trial.suggest_int("weight_decay", 0, 1),
            "max_grad_norm": 0,
            "neftune_noise_alpha": 5.0,  # without effect: the trainer has read it already
            "unheard_of": 3,
        }

    compare_searches(tmp_path, hp_space=other_types, **EVALUATED)
    assert "`neftune_noise_alpha=5.0` was set after the trainer was made, and has no effect" in caplog.text


@pytest.mark.slow
def test_same_search_in_two_processes(tmp_path):
    for library in ("portico", "transformers"):
        launch("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", SCRIPT, tmp_path, library)
    outcomes = {path.stem: torch.load(path, weights_only=False) for path in tmp_path.glob("*.pt")}
    for rank in range(2):
        assert_same_values(outcomes[f"portico-{rank}"], outcomes[f"transformers-{rank}"])
    assert outcomes["portico-1"]["best"] is None


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "ddp_spawn"])
def test_launched_processes_prune_together(strategy, tmp_path):
    launch(SCRIPT, tmp_path, "portico", strategy)
    outcome = torch.load(tmp_path / "portico-0.pt", weights_only=False)
    assert isinstance(outcome["best"], BestRun)
    assert outcome["best"].run_id != "1"
