"""Errors, warnings and options of a search; its trials are compared with transformers in the parity suite."""

import logging
import os
import pickle
import sys
import weakref

import numpy as np
import optuna
import pytest
from transformers.trainer_utils import HPSearchBackend

import portico
from models import Line, toy_trainer
from portico.distributed.accelerator import Accelerator
from portico.errors import InputError
from portico.hp_search import FiniteObjective, OptunaSearch, RaySearch, WandbSearch, check_directions, select_backend

optuna.logging.set_verbosity(optuna.logging.WARNING)


def searching(output_dir, parts=None, **changes):
    return toy_trainer(output_dir, parts={"model": None, "model_init": Line, **(parts or {})}, max_steps=2, **changes)


def rates(trial):
    return {"learning_rate": trial.suggest_float("learning_rate", 1e-3, 1e-1)}


@pytest.mark.parametrize(
    ("backend", "requirement"),
    [(OptunaSearch, "'portico[optuna]'"), (RaySearch, "'portico[ray]'"), (WandbSearch, "wandb")],
)
def test_missing_backend_is_named(backend, requirement, tmp_path, monkeypatch):
    monkeypatch.setattr(backend, "is_available", lambda self: False)
    with pytest.raises(RuntimeError) as raised:
        searching(tmp_path).hyperparameter_search(backend=backend.name)
    assert str(raised.value) == (
        f"You picked the {backend.name} backend, but it is not installed. Run `pip install {requirement}`."
    )


def test_no_backend_installed(monkeypatch):
    for backend in (OptunaSearch, RaySearch, WandbSearch):
        monkeypatch.setattr(backend, "is_available", lambda self: False)
    with pytest.raises(RuntimeError, match=r"No hyperparameter search backend available. Run one of .*portico\[ray\]"):
        select_backend()


def test_optuna_is_the_default_backend(monkeypatch, caplog):
    caplog.set_level(logging.INFO, logger="portico")
    for backend in (OptunaSearch, RaySearch):
        monkeypatch.setattr(backend, "is_available", lambda self: True)
    assert select_backend().name == "optuna"
    assert "hyperparameter search backends available. Using optuna as the default." in caplog.text


def test_unknown_backend_is_rejected(tmp_path):
    with pytest.raises(ValueError, match="sigopt is not a valid HPSearchBackend, please select one of"):
        searching(tmp_path).hyperparameter_search(backend="sigopt")


def test_model_init_is_required(tmp_path):
    with pytest.raises(RuntimeError, match="you need to pass your model through a model_init function"):
        toy_trainer(tmp_path).hyperparameter_search(backend="optuna")


def test_several_objectives_need_optuna(tmp_path, monkeypatch):
    monkeypatch.setattr(RaySearch, "is_available", lambda self: True)
    with pytest.raises(InputError, match="is a list, but ray optimises one objective; set `direction` to"):
        searching(tmp_path).hyperparameter_search(backend="ray", direction=["minimize", "maximize"])


def test_several_processes_need_optuna(tmp_path, monkeypatch):
    monkeypatch.setattr(RaySearch, "is_available", lambda self: True)
    trainer = searching(tmp_path)
    monkeypatch.setattr(type(trainer.args), "world_size", 2)
    with pytest.raises(InputError, match="2 processes, and ray trains each trial on one; set `backend='optuna'`"):
        trainer.hyperparameter_search(backend="ray")


def as_one_of_two(monkeypatch, from_first_process, *, is_first):
    """Make this process one of two in a search, with the messages of the first process faked."""
    monkeypatch.setattr(Accelerator, "from_first_process", from_first_process)
    monkeypatch.setattr(Accelerator, "is_main_process", is_first)


def test_main_process_shares_trials_and_pruning(tmp_path, monkeypatch):
    shown = []

    def show(accelerator, data):
        shown.append(data)
        return data

    as_one_of_two(monkeypatch, show, is_first=True)
    monkeypatch.setattr(Accelerator, "use_distributed", True)
    pruner = optuna.pruners.ThresholdPruner(upper=-1.0)
    trainer = searching(tmp_path, eval_strategy="steps", eval_steps=1)
    with pytest.raises(ValueError, match="No trials are completed yet"):
        trainer.hyperparameter_search(rates, n_trials=2, backend="optuna", pruner=pruner)
    kinds = [type(data).__name__ for data in shown]
    assert kinds == ["FixedTrial", "bool", "FixedTrial", "bool", "NoneType"]
    assert rates(shown[0]).keys() == {"learning_rate"}
    assert shown[1] is True


def test_other_process_follows_until_last_trial(tmp_path, monkeypatch):
    trials = [optuna.trial.FixedTrial({"learning_rate": rate}, number) for number, rate in enumerate((0.1, 0.05))]
    # Messages of the first process: a trial, whether it is pruned at its evaluation, and the end of the search.
    said = iter([trials[0], True, trials[1], False, False, None])
    as_one_of_two(monkeypatch, lambda accelerator, data: next(said), is_first=False)
    trainer = searching(tmp_path, eval_strategy="steps", eval_steps=1)
    assert trainer.hyperparameter_search(rates, n_trials=2, backend="optuna") is None
    assert trainer.state.global_step == 2
    assert trainer.args.learning_rate == 0.05
    assert list(said) == []


def test_follower_catches_configured_errors(tmp_path, monkeypatch):
    said = iter([optuna.trial.FixedTrial({}, 0), optuna.trial.FixedTrial({"learning_rate": 0.1}, 1), None])
    as_one_of_two(monkeypatch, lambda accelerator, data: next(said), is_first=False)
    trainer = searching(tmp_path)
    trainer.hyperparameter_search(rates, n_trials=2, backend="optuna", catch=ValueError)
    assert trainer.args.learning_rate == 0.1


def nan_of_first(study_values):
    def objective(metrics):
        study_values.append(metrics["eval_loss"])
        return float("nan") if len(study_values) == 1 else metrics["eval_loss"]

    return objective


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_nan_objective_is_worst(tmp_path, direction, caplog):
    values = []
    study = optuna.create_study(storage="sqlite:///:memory:", direction=direction)
    storage = study._storage
    best = searching(tmp_path).hyperparameter_search(
        rates,
        nan_of_first(values),
        n_trials=3,
        direction=direction,
        backend="optuna",
        storage=storage,
        study_name=study.study_name,
        load_if_exists=True,
        sampler=optuna.samplers.RandomSampler(seed=1),
    )
    assert best.objective == {"minimize": min, "maximize": max}[direction](values[1:])
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 3
    assert abs(study.trials[0].value) == sys.float_info.max
    assert "The objective of a trial is NaN" in caplog.text


def test_backend_is_reset_after_failed_search(tmp_path):
    trainer = searching(tmp_path)
    with pytest.raises(ZeroDivisionError):
        trainer.hyperparameter_search(lambda trial: 1 / 0, n_trials=1, backend="optuna")
    assert trainer.hp_search_backend is None
    assert trainer.train().global_step == 2


def test_unknown_option_is_rejected_before_any_trial(tmp_path):
    with pytest.raises(TypeError, match="samplers"):
        searching(tmp_path).hyperparameter_search(rates, n_trials=1, backend="optuna", samplers=3)


def test_study_is_continued(tmp_path):
    options = {"storage": f"sqlite:///{tmp_path}/study.db", "study_name": "kept", "load_if_exists": True}
    for _ in range(2):
        searching(tmp_path).hyperparameter_search(rates, n_trials=2, backend="optuna", **options)
    trials = optuna.load_study(study_name="kept", storage=options["storage"]).trials
    assert [trial.number for trial in trials] == [0, 1, 2, 3]


def test_optimize_options_are_passed_on(tmp_path):
    class Failing(RuntimeError):
        pass

    seen = []

    def space(trial):
        seen.append(trial.number)
        if trial.number == 0:
            raise Failing
        return rates(trial)

    best = searching(tmp_path).hyperparameter_search(
        space, n_trials=2, backend=HPSearchBackend.OPTUNA, catch=(Failing,), gc_after_trial=True, timeout=600
    )
    assert seen == [0, 1]
    assert best.run_id == "1"


def test_n_jobs_warns(tmp_path, caplog):
    searching(tmp_path).hyperparameter_search(rates, n_trials=2, backend="optuna", n_jobs=2)
    assert (
        "`n_jobs` has no effect: the trials share one trainer and run one after another; leave it out." in caplog.text
    )


def test_hyperparameter_without_field_warns(tmp_path, caplog):
    searching(tmp_path).hyperparameter_search(lambda trial: {"num_layers": 3}, n_trials=1, backend="optuna")
    assert "Trying to set num_layers in the hyperparameter search but" in caplog.text


def test_model_is_released_before_next_trial(tmp_path):
    made = []

    def model_init(trial):
        assert all(model() is None for model in made[1:])
        made.append(weakref.ref(model := Line()))
        return model

    trainer = searching(tmp_path, {"model_init": model_init})
    trainer.hyperparameter_search(rates, n_trials=3, backend="optuna")
    assert len(made) == 4
    assert trainer.model is None
    assert trainer.train().global_step == 2


def test_default_space_equals_transformers(tmp_path):
    trainer = searching(tmp_path)
    best = trainer.hyperparameter_search(n_trials=1, backend="optuna")
    assert set(best.hyperparameters) == {
        "learning_rate",
        "num_train_epochs",
        "seed",
        "per_device_train_batch_size",
    }


def test_seq2seq_trainer_searches():
    assert portico.Seq2SeqTrainer.hyperparameter_search is portico.Trainer.hyperparameter_search


@pytest.mark.slow
def test_ray_runs_trials(tmp_path, monkeypatch):
    ray = pytest.importorskip("ray")
    from ray import tune

    # The worker processes of the trials import the toy model by name.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    trainer = searching(tmp_path / "run", eval_strategy="steps", eval_steps=1, save_strategy="steps", save_steps=1)
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        best = trainer.hyperparameter_search(
            lambda trial: {"learning_rate": tune.grid_search([1e-3, 1e-1])},
            n_trials=1,
            backend="ray",
            storage_path=str(tmp_path / "ray"),
            name="study",
            verbose=0,
        )
    finally:
        ray.shutdown()
    results = {trial.trial_id: trial.last_result["objective"] for trial in best.run_summary.trials}
    assert best.objective == min(results.values())
    assert best.objective == results[best.run_id]
    assert best.hyperparameters in ({"learning_rate": 1e-3}, {"learning_rate": 1e-1})
    assert (tmp_path / "run" / f"run-{best.run_id}" / "checkpoint-2").is_dir()


def metric(metrics):
    return metrics["metric"]


@pytest.mark.parametrize(("direction", "worst"), [("minimize", sys.float_info.max), ("maximize", -sys.float_info.max)])
@pytest.mark.parametrize("nan", [float("nan"), np.float32("nan")])
def test_nan_becomes_worst_finite_value(direction, worst, nan, caplog):
    caplog.set_level(logging.WARNING, logger="portico")
    assert FiniteObjective(metric, [direction])({"metric": nan}) == worst
    assert "The objective of a trial is NaN; the search gets the worst finite value" in caplog.text


@pytest.mark.parametrize("value", [1.5, 0, float("inf"), None, "kept"])
def test_other_values_are_kept(value, caplog):
    assert FiniteObjective(metric, ["minimize"])({"metric": value}) is value
    assert not caplog.records


def test_worst_value_per_objective():
    objective = FiniteObjective(metric, ["minimize", "maximize"])
    nan = float("nan")
    assert objective({"metric": (nan, nan)}) == [sys.float_info.max, -sys.float_info.max]
    assert objective({"metric": [1.0, nan]}) == [1.0, -sys.float_info.max]


def test_objective_can_be_pickled():
    assert pickle.loads(pickle.dumps(FiniteObjective(metric, ["minimize"])))({"metric": 3}) == 3


def test_directions():
    assert check_directions("maximize") == ["maximize"]
    assert check_directions(["minimize", "maximize"]) == ["minimize", "maximize"]


@pytest.mark.parametrize("direction", ["down", ["minimize", "up"], [], None, ("minimize",)])
def test_unknown_direction_is_rejected(direction):
    with pytest.raises(
        InputError, match=r"Unknown `direction=.*`; set it to 'minimize' or 'maximize', or to a list with one"
    ):
        check_directions(direction)


def test_state_names_the_best_trial_and_other_arguments_are_announced(tmp_path, caplog):
    steps = dict.fromkeys(("eval_strategy", "save_strategy"), "steps")
    trainer = searching(tmp_path, **steps, eval_steps=2, save_steps=2, load_best_model_at_end=True)
    chosen = iter([1e-1, 1e-3, 1e-5])

    def space(trial):
        rate = next(chosen)
        return {"learning_rate": trial.suggest_float("learning_rate", rate, rate)}

    best = trainer.hyperparameter_search(hp_space=space, n_trials=3, direction="minimize", backend="optuna")
    assert best.hyperparameters["learning_rate"] == 1e-1
    assert trainer.state.best_model_checkpoint == str(tmp_path / f"run-{best.run_id}" / "checkpoint-2")
    assert trainer.state.best_metric == best.objective
    assert trainer.args.learning_rate == 1e-5
    assert "training arguments are those of the last trial" in caplog.text
