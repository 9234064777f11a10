import pytest

import fake_experiment

EXPERIMENT = ("+experiment=mrc", *fake_experiment.OVERRIDES)


@pytest.fixture
def train(monkeypatch, tmp_path, command_line):
    """Run the command line in an empty working folder; returns the exit code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)

    def train(*overrides, arguments=EXPERIMENT):
        return command_line(*arguments, *overrides)

    return train
