import json
import os
import re
from pathlib import Path

import pytest
import record
import run_all

FOLDER = Path(run_all.__file__).parent
OLD = {"median": 1.0, "least": 0.95, "most": 1.05, "command": "start_up.py"}


@pytest.mark.parametrize(
    ("median", "least", "most", "expected"),
    [(1.04, 1.0, 1.08, "same"), (1.2, 1.18, 1.22, "WORSE"), (0.8, 0.79, 0.81, "better"), (1.2, 0.9, 1.5, "same")],
)
def test_a_change_counts_beyond_the_spread_of_either_run(median, least, most, expected):
    assert run_all.verdict({**OLD, "median": median, "least": least, "most": most}, OLD) == expected
    assert run_all.verdict(OLD, None) == "new"


def test_a_benchmark_records_its_ratios_by_name(monkeypatch, tmp_path):
    script = tmp_path / "half.py"
    script.write_text("import sys; from record import record; record(sys.argv[1], [0.5, 0.4, 0.7])")
    monkeypatch.setattr(run_all, "HERE", tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FOLDER), os.environ.get("PYTHONPATH", "")]))
    row = {"median": 0.5, "least": 0.4, "most": 0.7, "command": "half.py 'a step'"}
    assert run_all.results_of("half.py 'a step'") == {"a step": row}


def test_nothing_is_recorded_unless_it_was_asked_for(monkeypatch):
    monkeypatch.delenv(record.RECORD, raising=False)
    record.record("a step", [1.0])


def test_the_table_is_that_of_the_stored_figures():
    stored = json.loads(run_all.RESULTS.read_text(encoding="utf-8"))
    page = run_all.TABLE.read_text(encoding="utf-8")
    assert page == run_all.with_table(page, run_all.markdown(stored["rows"], stored["machine"]))


def test_every_command_is_a_script_that_records_and_every_figure_has_one():
    for command in run_all.COMMANDS:
        text = (FOLDER / command.split()[0]).read_text(encoding="utf-8")
        assert re.search(r"\brecord\(|\bimport compare\b", text), command
    stored = json.loads(run_all.RESULTS.read_text(encoding="utf-8"))
    assert {row["command"] for row in stored["rows"].values()} <= set(run_all.COMMANDS)
