"""`portico verify`, with recorded runs in place of processes."""

import os
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from damage import largest_file
from portico.commands import verify
from portico.errors import InputError
from portico.inspection import recorder
from portico.inspection.comparison import RecordedRun
from portico.inspection.records import (
    RecordSettings,
    ScriptRecord,
    TrainingRecord,
    list_redirected_folders,
    redirected,
)
from portico.inspection.script import Script
from portico.inspection.verification import Verification, _RunningScript


def training(loss):
    step = {
        "step": 1,
        "batches": [1],
        "losses": [loss],
        "learning_rate": [0.1],
        "gradients": {},
        "gradient_norm": loss,
    }
    step |= {"weights": {}, "weights_hash": 1, "random": {}}
    whole = {"initial_weights": 1, "steps": [step], "events": [["on_save", 1]], "draws": {}, "calls": {}}
    return {**whole, "log_history": [], "final_weights": {}}


@pytest.fixture
def verified(tmp_path, monkeypatch, capsys):
    """Verify a script whose runs have these losses, in order; return exit code, names of the runs, and output."""

    def verified(*losses, **options):
        labels, waiting = [], list(losses)

        def recorded(self, label, settings):
            labels.append(label)
            return RecordedRun(label, tmp_path, 0, "", [training(waiting.pop(0))], operators=["put_"])

        monkeypatch.setattr(Verification, "_record", recorded)
        # One core: what follows where two runs at the same time are not identical.
        monkeypatch.setattr(Verification, "_side_by_side", lambda self: (None, None))
        ended = Verification(Script("script.py"), tmp_path, None)
        code = ended.run(tmp_path / "page.html", **{"is_once": False, **options})
        return code, labels, capsys.readouterr().out

    return verified


def test_transformers_runs_twice_first(verified):
    code, labels, out = verified(0.5, 0.5, 0.5)
    assert (code, labels) == (0, ["transformers", "transformers again", "portico"])
    assert out.endswith("identical for 1 step, 1 checkpoint, 0 evaluations\n")
    assert "Not reproducible" not in out


def test_says_what_is_not_reproducible_at_all(verified, tmp_path):
    code, labels, out = verified(0.5, 0.25, 0.5, 0.5)
    assert (code, labels) == (1, ["transformers", "transformers again", "operators", "portico"])
    told = "in two runs under transformers:\n  loss at step 1: 0.5 and 0.25\n  gradient norm at step 1: 0.5 and 0.25\n"
    assert told in out
    assert "an operator is not deterministic (torch names put_)" in out
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Not reproducible under transformers itself" in page
    assert "<td>0.25</td>" in page


def test_a_difference_of_portico_is_not_the_script_s(verified):
    code, _, out = verified(0.5, 0.5, 0.25)
    assert code == 1
    assert "First difference: loss at step 1: 0.5 and 0.25" in out
    assert "Not reproducible" not in out


def test_once_runs_transformers_again_only_on_a_difference(verified):
    assert verified(0.5, 0.5, is_once=True)[:2] == (0, ["transformers", "portico"])
    assert verified(0.5, 0.25, 0.5, is_once=True)[:2] == (1, ["transformers", "portico", "transformers again"])


@pytest.mark.parametrize(
    ("losses", "labels"),
    [
        ([0.5, 0.5], ["transformers", "portico"]),
        ([0.5, 0.7, 0.5, 0.5, 0.5], ["transformers", "portico", "transformers", "transformers again", "portico"]),
    ],
    ids=["identical", "repeated"],
)
def test_runs_side_by_side_are_repeated_alone_unless_identical(tmp_path, monkeypatch, losses, labels):
    started, waiting = [], list(losses)

    def start(self, label, settings, **environment):
        started.append(label)
        run = RecordedRun(label, tmp_path, 0, "", [training(waiting.pop(0))])
        ended = SimpleNamespace(poll=lambda: 0)
        return SimpleNamespace(process=ended, lacked_an_address=lambda: False, finished=lambda: run)

    monkeypatch.setattr(Verification, "_start", start)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    assert Verification(Script("script.py"), tmp_path, None).run(None, is_once=False) == 0
    assert started == labels


def test_an_interrupted_comparison_leaves_nothing_behind(tmp_path):
    (tmp_path / "sleeps.py").write_text("import time\ntime.sleep(600)\n")
    settings = RecordSettings("portico", "")
    with Verification(Script(str(tmp_path / "sleeps.py")), tmp_path / "kept", None) as verification:
        running = verification._start("portico", settings)
        output = Path(redirected(str(tmp_path / "out"), replace(settings, folder=str(running.folder))))
        (output / "checkpoint-1").mkdir(parents=True)
    assert running.process.returncode is not None
    assert not output.exists()
    assert (tmp_path / "kept/portico/output/0/checkpoint-1").is_dir()


def test_missing_accelerate_is_named_before_anything_runs(tmp_path, monkeypatch, capsys):
    (tmp_path / "script.py").write_text("")
    monkeypatch.setattr(verify, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as ended:
        verify.main([str(tmp_path / "script.py")])
    assert ended.value.code == 2
    assert "which needs accelerate; install it with `pip install 'portico[verify]'`" in capsys.readouterr().err


def test_several_processes_are_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    (tmp_path / "script.py").touch()
    with pytest.raises(SystemExit, match="2"):
        verify.main([str(tmp_path / "script.py")])
    assert "was started in 2 processes, and would run the script in each; start it without" in capsys.readouterr().err


ENDED = SimpleNamespace(terminate=lambda: None, wait=lambda: 0, returncode=0)


def test_output_for_which_there_is_no_room_is_removed_and_named(tmp_path, monkeypatch):
    """The records are on another disk than the output, whose files are copied."""
    monkeypatch.setattr("os.rename", lambda *_: (_ for _ in ()).throw(OSError("of another disk")))
    folder = tmp_path / "records"
    settings = RecordSettings("portico", str(folder))
    output = Path(redirected(str(tmp_path / "out"), settings))
    (output / "checkpoint-1").mkdir(parents=True)
    (output / "checkpoint-1" / "model.safetensors").write_bytes(bytes(10_000))
    (folder / "output").mkdir()
    with Verification(Script("script.py"), folder, None) as verification:
        verification._started.append(_RunningScript("portico", folder, ENDED))
        with (
            largest_file(1000),
            pytest.raises(InputError, match=r"What the script wrote cannot be moved to .*File too large.*`TMPDIR` to"),
        ):
            verification._started[0].finished()
    assert not output.exists()


def test_all_scripts_are_ended_if_there_is_no_room_for_the_output_of_one(tmp_path, monkeypatch):
    monkeypatch.setattr("os.rename", lambda *_: (_ for _ in ()).throw(OSError("of another disk")))
    ended = []
    verification = Verification(Script("script.py"), tmp_path, None)
    for label in ("transformers", "portico"):
        folder = tmp_path / label
        (folder / "output").mkdir(parents=True)
        output = Path(redirected(str(tmp_path / f"out-{label}"), RecordSettings(label, str(folder))))
        output.mkdir()
        (output / "model.safetensors").write_bytes(bytes(10_000))
        process = SimpleNamespace(terminate=partial(ended.append, label), wait=lambda: 0)
        verification._started.append(_RunningScript(label, folder, process))
    with largest_file(1000), pytest.raises(InputError, match="cannot be moved"):
        verification.__exit__()
    assert sorted(ended) == ["portico", "transformers"]
    assert not [*tmp_path.glob("out-*")]


def test_a_record_for_which_there_is_no_room_ends_the_run_with_a_sentence(tmp_path):
    """Else the script would be said to build no Trainer."""
    child = os.fork()
    if not child:
        os.dup2(os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT), 2)
        sys.stderr = open(2, "w")  # noqa: SIM115
        with largest_file(2000):
            record = ScriptRecord([TrainingRecord(final_weights={f"weight {number}": 1 for number in range(200)})])
            recorder._finish(RecordSettings("portico", str(tmp_path)), record)
            os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    run = RecordedRun("portico", tmp_path, code, (tmp_path / "log").read_text())
    assert code == 1
    assert run.refusal.startswith("The record of the run cannot be written ([Errno 27] File too large: ")
    assert run.refusal.endswith("set `TMPDIR` to a folder with more room, or name one with `--keep`.")


def test_what_cannot_be_removed_is_not_written_to(ordinary_folder):
    """It may be a link, or hold files that would be compared."""
    (ordinary_folder / "out.portico-verify").symlink_to(ordinary_folder)
    ordinary_folder.chmod(0o500)
    with tempfile.TemporaryDirectory() as records:
        settings = RecordSettings("portico", records)
        with pytest.raises(
            InputError, match=r"out.portico-verify cannot be removed \(Permission denied\), and .*; rem"
        ):
            redirected(str(ordinary_folder / "out"), settings)
        assert list_redirected_folders(Path(records)) == []
    ordinary_folder.chmod(0o700)
    assert (ordinary_folder / "out.portico-verify").is_symlink()


def test_a_verification_leaves_what_a_link_of_its_names_leads_to(tmp_path):
    for ending in ("", "-portico"):
        (tmp_path / f"out.portico-verify{ending}").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "mine.txt").touch()
    folder = tmp_path / "records"
    with Verification(Script("script.py"), folder, None) as verification:
        verification._started.append(_RunningScript("portico", folder, ENDED))
        assert not Path(redirected(str(tmp_path / "out"), RecordSettings("portico", str(folder)))).exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "records"]
    assert (tmp_path / "elsewhere" / "mine.txt").exists()
