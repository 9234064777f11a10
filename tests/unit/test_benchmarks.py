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
    (found,) = run_all.results_of("half.py 'a step'").items()
    assert found[0] == "a step"
    assert found[1].items() >= row.items()
    assert found[1].keys() - row.keys() == {"measured", "seconds"}


def test_benchmarks_run_in_pieces(monkeypatch, tmp_path, capsys):
    for name in ("first", "second", "third"):
        code = f"from record import record; record('{name} of all', [0.5]); record('{name} again', [0.4])"
        (tmp_path / f"{name}.py").write_text(code)
    old = {**OLD, "measured": 1, "seconds": 5}
    rows = {
        "first of all": {**old, "command": "first.py", "measured": 2},
        "renamed since": {**old, "command": "second.py"},
        "third of all": {**old, "command": "third.py", "seconds": 600},
        "removed since": {**old, "command": "first.py --of-old"},
    }
    (tmp_path / "results.json").write_text(json.dumps({"machine": "a machine", "rows": rows}))
    (tmp_path / "README.md").write_text(f"{run_all.TABLE_STARTS}\n{run_all.TABLE_ENDS}\n")
    monkeypatch.setattr(run_all, "COMMANDS", ("first.py", "second.py", "third.py"))
    for name, path in {"HERE": ".", "RESULTS": "results.json", "TABLE": "README.md"}.items():
        monkeypatch.setattr(run_all, name, tmp_path / path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FOLDER), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr("sys.argv", ["run_all.py", "--minutes", "9", "--store"])
    with pytest.raises(SystemExit) as ended:
        run_all.main()
    assert ended.value.code is None
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("---")]
    assert said == ["--- second.py", "--- left out, as it took 600 s: third.py", "--- first.py"]
    stored = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert list(stored) == ["first of all", "first again", "second of all", "second again", "third of all"]
    assert (stored["first of all"]["median"], stored["third of all"]["median"]) == (0.5, 1.0)
    assert "| second again | 0.40 " in (tmp_path / "README.md").read_text()


def test_a_benchmark_that_takes_too_long_is_ended(monkeypatch, tmp_path, capsys):
    (tmp_path / "slow.py").write_text("import time; time.sleep(600)")
    monkeypatch.setattr(run_all, "COMMANDS", ("slow.py",))
    monkeypatch.setattr(run_all, "HERE", tmp_path)
    monkeypatch.setattr(run_all, "RESULTS", tmp_path / "results.json")
    monkeypatch.setattr("sys.argv", ["run_all.py", "--minutes", "0.005"])
    with pytest.raises(SystemExit) as ended:
        run_all.main()
    assert ended.value.code is None
    assert "--- ended, as the time is up: slow.py" in capsys.readouterr().out


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
