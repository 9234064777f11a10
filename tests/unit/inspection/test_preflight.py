"""`portico.preflight`: a zoo of late faults, each named by its cause, and sound trainers without an alarm."""

import errno
import logging
import os
import re
import warnings

import pytest
import torch

import portico
from late_faults import FAULTS, SOUND, Changed, classifier
from models import ToyDataset
from portico import observers
from portico.inspection.causes import explain_fault


def every(zoo, most):
    """Return the names of a zoo: the first of each part of it by default, all with ``-m slow``."""
    step = -(-len(zoo) // most)
    return [
        name if number % step == 0 else pytest.param(name, marks=pytest.mark.slow) for number, name in enumerate(zoo)
    ]


@pytest.fixture(autouse=True)
def no_login(monkeypatch):
    monkeypatch.setattr("portico.inspection.causes.get_token", lambda: None)


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_disk_that_is_full_of_the_rehearsal_is_not_blamed_on_the_run(number):
    said = explain_fault(OSError(number, os.strerror(number), "out/checkpoint-2"), "checkpoint", None)
    assert said.endswith(" make room there, or set `TMPDIR` to a folder of another disk.")


def test_the_place_of_an_error_is_named_in_a_folder_that_is_called_portico_too(tmp_path):
    script = tmp_path / "portico" / "metrics.py"
    script.parent.mkdir()
    script.write_text("def compute_metrics(prediction):\n    return 1 / 0\n")
    names = {}
    exec(compile(script.read_text(), script, "exec"), names)
    with pytest.raises(ZeroDivisionError) as raised:
        names["compute_metrics"](None)
    said = explain_fault(raised.value, "evaluation", None)
    assert said == "`compute_metrics` (metrics.py:2) raises ZeroDivisionError: division by zero."


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", every(FAULTS, 14))
def test_late_faults_are_named_by_their_cause(name, tmp_path):
    make, sentence = FAULTS[name]
    trainer = make(tmp_path)
    before = contents(tmp_path)
    preflight = portico.preflight(trainer)
    said = [fault.sentence for fault in preflight.faults]
    assert any(re.search(sentence, one) for one in said), said
    assert contents(tmp_path) == before
    assert observers.active == ()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", every(SOUND, 7))
def test_sound_trainers_raise_no_alarm(name, tmp_path):
    trainer = SOUND[name](tmp_path)
    before = contents(tmp_path)
    weights = {key: value.clone() for key, value in trainer.model.state_dict().items()}
    state = torch.get_rng_state()
    show, handlers = warnings.showwarning, list(logging.getLogger("transformers").handlers)
    preflight = portico.preflight(trainer)
    assert (warnings.showwarning, logging.getLogger("transformers").handlers) == (show, handlers)
    assert [fault.sentence for fault in preflight.faults] == []
    assert contents(tmp_path) == before
    assert all(torch.equal(value, weights[key]) for key, value in trainer.model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


def test_what_a_rehearsal_says_of_the_real_run(tmp_path):
    preflight = portico.preflight(SOUND["best_model"](tmp_path))
    (forecast,) = preflight.rehearsed.forecasts
    evaluation, checkpoint = forecast.repeated
    assert (forecast.num_steps, evaluation.times, checkpoint.times) == (32, 2, 2)
    assert forecast.num_kept == 2
    assert preflight.disk_bytes == 2 * forecast.checkpoint_bytes > 0
    assert "32 steps of" in preflight.lead
    for shown in (repr(preflight), preflight._repr_html_(), preflight.page()):
        assert "rotation" in shown
    assert '"num_steps": 32' in preflight.to_json()


def test_the_first_five_rows_of_a_kind_are_named_and_all_counted(tmp_path):
    rows = {f"row{row}": lambda example: {**example, "labels": torch.tensor(3)} for row in range(40, 48)}
    preflight = portico.preflight(classifier(tmp_path, Changed(ToyDataset(61), **rows)))
    (said,) = [fault.sentence for fault in preflight.faults if fault.stage == "data"]
    assert said.startswith("`train_dataset`: 8 rows with labels that the model does not have: row 40 has the label 3")
    assert "row 44" in said
    assert "row 45" not in said
    assert "and 3 more" in said


def test_data_are_not_read_unless_asked(tmp_path):
    make, _ = FAULTS["row_of_the_evaluation_that_raises"]
    preflight = portico.preflight(make(tmp_path), data=False)
    assert all(stage.name != "data" for stage in preflight.rehearsed.stages)
