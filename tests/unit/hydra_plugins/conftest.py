import json

import pytest

EXPERIMENT = ("_target_=fake_experiment.SearchedExperiment", "+experiment=mrc")


@pytest.fixture
def search(monkeypatch, tmp_path, command_line):
    """Run a search in an empty working folder; returns the exit code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)

    def search(*overrides, values="args.learning_rate=tag(log, interval(1e-5, 1e-1))", seeded=True):
        seed = ["hydra.sweeper.sampler.seed=1"] * seeded
        chosen = ("hydra/sweeper=portico_optuna", "hydra.sweep.dir=found", *seed, values)
        return command_line("-m", *EXPERIMENT, *chosen, *overrides)

    return search


@pytest.fixture
def found(tmp_path):
    """Return a function that reads what a search has recorded of a folder's jobs, or a field of each."""

    def found(field=None):
        jobs = json.loads((tmp_path / "found/sweep.json").read_text())["jobs"]
        return jobs if field is None else [job[field] for job in jobs]

    return found
