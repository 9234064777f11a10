"""`portico verify`, with recorded runs in place of processes."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from portico.commands import verify
from portico.inspection.comparison import RecordedRun
from portico.inspection.records import RecordSettings, redirected
from portico.inspection.script import Script
from portico.inspection.verification import Verification


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

        monkeypatch.setattr(Verification, "_recorded", recorded)
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
