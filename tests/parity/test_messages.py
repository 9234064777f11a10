"""A run logs the same counts at the same levels to the logger of transformers."""

import logging
import re

import pytest
import transformers
from transformers.utils import logging as transformers_logging

import portico
from models import ToyDataset
from parity.peers import run

SAVING = {"eval_strategy": "steps", "eval_steps": 3, "save_strategy": "steps", "save_steps": 3, "num_train_epochs": 1}
SCENARIOS = {
    "training": {},
    "accumulation": {"gradient_accumulation_steps": 3, "max_steps": 2},
    "saving": {**SAVING, "load_best_model_at_end": True, "save_total_limit": 1},
    "prediction": {"max_steps": 1, "after": lambda trainer: trainer.predict(ToyDataset(5)).metrics and {}},
    "tokens": {"max_steps": 2, "include_num_input_tokens_seen": "non_padding"},
}
# Headings, the numbers below them, and folders; the wording of other messages differs between the libraries.
COUNT = re.compile(r"\n?\*\*\*\*\*|  [A-Z].* [=:] |(Saving|Loading|Deleting).* run")


class Listener(logging.Handler):
    """Record level and text of each line, without the folder of the run."""

    def __init__(self, folder):
        super().__init__()
        self.folder = str(folder)
        self.lines = []

    def emit(self, record):
        line = record.getMessage().replace(self.folder, "run")
        if record.name == "transformers.trainer" and COUNT.match(line):
            self.lines.append((record.levelname, line))


@pytest.fixture
def heard(tmp_path):
    """Return a function that trains with a library and returns the lines it logged."""
    level = transformers_logging.get_verbosity()

    def listen(library, **options):
        folder = tmp_path / library.__name__
        listener = Listener(folder)
        transformers_logging.add_handler(listener)
        try:
            run(library, folder, **options)
        finally:
            transformers_logging.remove_handler(listener)
        return listener.lines

    yield listen
    transformers_logging.set_verbosity(level)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_same_messages(scenario, heard):
    ours, theirs = (heard(library, log_level="info", **SCENARIOS[scenario]) for library in (portico, transformers))
    assert ours == theirs
    assert ("INFO", "***** Running training *****") in ours


def test_same_messages_of_resumed_run(heard, tmp_path):
    lines = []
    for library in (portico, transformers):
        heard(library, **SAVING)
        resume = str(tmp_path / library.__name__ / "checkpoint-3")
        lines.append(heard(library, log_level="info", resume=resume, **SAVING))
    assert lines[0] == lines[1]
    assert any("Num examples = 29" in text for _, text in lines[0])


def test_transformers_verbosity_is_respected(heard):
    transformers_logging.set_verbosity_warning()
    assert heard(portico, max_steps=1) == []
    transformers_logging.set_verbosity_info()
    assert ("INFO", "***** Running training *****") in heard(portico, max_steps=1)


@pytest.mark.parametrize(("process", "level"), [(0, logging.ERROR), (1, logging.CRITICAL)])
def test_log_level_per_process(process, level, tmp_path, monkeypatch):
    args = portico.TrainingArguments(
        str(tmp_path), log_level="error", log_level_replica="critical", use_cpu=True, report_to="none"
    )
    monkeypatch.setattr(portico.TrainingArguments, "process_index", process)
    monkeypatch.setattr(portico.TrainingArguments, "local_process_index", process)
    assert args.get_process_log_level() == level
