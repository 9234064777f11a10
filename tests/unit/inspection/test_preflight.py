"""`portico.preflight`: a zoo of late faults, each named by its cause, and sound trainers without an alarm."""

import re

import pytest
import torch

import portico
from late_faults import FAULTS, SOUND


@pytest.fixture(autouse=True)
def no_login(monkeypatch):
    monkeypatch.setattr("portico.inspection.causes.get_token", lambda: None)


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FAULTS)
def test_late_faults_are_named_by_their_cause(name, tmp_path):
    make, sentence = FAULTS[name]
    trainer = make(tmp_path)
    before = contents(tmp_path)
    preflight = portico.preflight(trainer)
    said = [fault.sentence for fault in preflight.faults]
    assert any(re.search(sentence, one) for one in said), said
    assert contents(tmp_path) == before


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SOUND)
def test_sound_trainers_raise_no_alarm(name, tmp_path):
    trainer = SOUND[name](tmp_path)
    before = contents(tmp_path)
    weights = {key: value.clone() for key, value in trainer.model.state_dict().items()}
    state = torch.get_rng_state()
    preflight = portico.preflight(trainer)
    assert [fault.sentence for fault in preflight.faults] == []
    assert contents(tmp_path) == before
    assert all(torch.equal(value, weights[key]) for key, value in trainer.model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
