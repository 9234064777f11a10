"""What the report of a sweep reads from the sweep's folder."""

import json
from types import SimpleNamespace

import pytest
import yaml

from portico.cli.jobs import SweepJob
from portico.cli.studies import JobProgress
from portico.cli.sweeps import report_sweep

GRID = {"_target_": "hydra._internal.core_plugins.basic_sweeper.BasicSweeper", "params": None}
SEARCH = {"_target_": "hydra_plugins.portico_optuna.OptunaSweeper", "sampler": None, "pruner": {}, "n_trials": 3}


@pytest.fixture
def reported(tmp_path):
    """Return a function that writes a folder with one job and reports its sweep."""

    def reported(text, overrides=("args.seed=1",)):
        (tmp_path / "0").mkdir()
        (tmp_path / "0/job.json").write_text(json.dumps({"number": 0, "overrides": list(overrides)}))
        (tmp_path / "multirun.yaml").write_text(text)
        return report_sweep(tmp_path)

    return reported


def config(sweeper, task=(), hydra=(), choices=None, sources=()):
    overrides = {"task": list(task), "hydra": list(hydra)}
    runtime = {"choices": choices or {}, "config_sources": list(sources)}
    return yaml.safe_dump({"hydra": {"sweeper": sweeper, "overrides": overrides, "runtime": runtime}})


@pytest.mark.parametrize(
    ("sweeper", "task", "expected"),
    [
        (GRID, ["args.seed=1,2"], ["args.seed", "choice", "1, 2", False]),
        (GRID, ["+args.seed=range(1, 7, 2)"], ["args.seed", "choice", "1, 3, 5", False]),
        (GRID | {"params": {"args.seed": "1,2"}}, ["a=b"], ["args.seed", "choice", "1, 2", False]),
        (SEARCH, ["args.seed=choice(1)"], ["args.seed", "choice", "1", False]),
        (SEARCH, ["args.seed=range(1, 7, 2)"], ["args.seed", "int", "1 to 7, step 2", False]),
        (SEARCH, ["args.seed=int(interval(1, 7))"], ["args.seed", "int", "1 to 7", False]),
        (SEARCH, ["x=tag(log, interval(1e-4, 1))"], ["x", "float", "0.0001 to 1.0", True]),
        (SEARCH | {"params": {"x": "1,2"}}, ["x=3"], None),
        (
            SEARCH | {"search_space": {"x": {"type": "int", "low": 1, "high": 9, "step": 2, "log": True}}},
            [],
            ["x", "int", "1 to 9, step 2", True],
        ),
        (
            SEARCH | {"search_space": {"x": {"type": "categorical", "choices": ["a", 1]}}},
            [],
            ["x", "categorical", "a, 1", False],
        ),
    ],
)
def test_searched_values(reported, sweeper, task, expected):
    found = reported(config(sweeper, task))
    assert found["space"] == ([dict(zip(("name", "kind", "range", "log"), expected, strict=True))] if expected else [])
    assert found["parameters"] == ([expected[0]] if expected else []), "shown even if only one value was drawn"


@pytest.mark.parametrize(
    ("sweeper", "expected"),
    [
        (GRID, {"sampler": "every combination"}),
        (SEARCH, {"sampler": "TPESampler", "pruner": "none", "trials": "3"}),
        (
            SEARCH
            | {"sampler": {"_target_": "optuna.samplers.QMCSampler", "seed": None, "scramble": True}}
            | {"pruner": {"_target_": "mine.Pruner"}, "constraints": ["a <= 1", "b >= 2"]},
            {
                "sampler": "QMCSampler(scramble=True)",
                "pruner": "Pruner",
                "trials": "3",
                "constraints": "a <= 1, b >= 2",
            },
        ),
        ({"_target_": "theirs.Sweeper"}, {"sampler": "theirs.Sweeper"}),
    ],
)
def test_method_of_the_search(reported, sweeper, expected):
    assert reported(config(sweeper))["method"] == expected


@pytest.mark.parametrize(
    ("changes", "overrides", "command"),
    [
        ({}, ["+experiment=mrc", "name='a b'"], """portico train +experiment=mrc 'name='"'"'a b'"'"''"""),
        ({"choices": {"sweep": "grid"}}, ["sweep=grid"], "portico train hydra.mode=RUN sweep=grid"),
        (
            {"hydra": ["hydra.mode=MULTIRUN", "hydra.sweep.dir=x", "hydra.verbose=true"]},
            ["a=$(touch b)"],
            "portico train hydra.verbose=true 'a=$(touch b)'",
        ),
        (
            {"sources": [{"provider": "command-line", "path": "/my conf"}]},
            [],
            "portico train --config-dir '/my conf'",
        ),
    ],
)
def test_command_of_a_run_is_complete(reported, changes, overrides, command):
    (job,) = reported(config(GRID, **changes), overrides)["jobs"]
    assert job["command"] == command


def test_the_terminal_names_the_best_run_and_ties(reported, tmp_path, capsys):
    for number, score in enumerate((2.0, 3.0, 3.0), 1):
        job = {"number": number, "status": "finished", "objective": {"f1": score}, "goals": {"f1": "max"}}
        (tmp_path / str(number)).mkdir()
        (tmp_path / f"{number}/job.json").write_text(json.dumps({"overrides": [], **job}))
    reported("")
    assert "4 runs: 3 finished, 1 running. Runs 2, 3 all reach f1 3.\n" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["", "[]", "hydra: 1", "hydra: {sweeper: {search_space: 3}}", "a: !!python/name:x"])
def test_damaged_configuration_of_a_sweep_is_left_out(reported, text):
    found = reported(text)
    assert (found["space"], found["method"]) == ([], {})
    assert found["jobs"][0]["command"] == "portico train args.seed=1"


@pytest.mark.parametrize("event", ["on_save", "on_evaluate"])
def test_a_start_that_was_killed_counts_until_its_last_evaluation_or_checkpoint(event, tmp_path):
    job = SweepJob(folder=tmp_path, number=0, overrides=[], seconds=100.0)
    job.begin({"metric": "eval_f1", "mode": "max"})
    job.started -= 50
    progress, state = JobProgress(job, dict), SimpleNamespace(global_step=1, max_steps=2, is_world_process_zero=True)
    progress.on_train_begin(None, state, None)
    for _ in range(2):
        getattr(progress, event)(None, state, None, metrics={"eval_f1": 1.0})
    assert SweepJob.read(tmp_path).seconds == pytest.approx(150, abs=20)
