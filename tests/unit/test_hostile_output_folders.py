"""Commands that run a script, whose `output_dir` somebody sent: nothing in it leads elsewhere, or runs."""

import os
import pickle
import re
import shutil
import stat
import tempfile
from pathlib import Path

import pytest

import hostile_folders
from damage import Touch
from effects import outside, recorded_effects
from forked_commands import run_forked
from hostile_folders import EFFECTS_OF_SCRIPTS, RUN, WAYS, canary_of, detour, elsewhere_of, is_untouched
from portico.commands import preflight, verify

# What the libraries below warn about is theirs.
pytestmark = pytest.mark.filterwarnings("ignore")

SCRIPT = """
import sys
from models import ToyDataset, tiny_bert, tiny_tokenizer, toy_arguments
from transformers import Trainer, TrainingArguments

args = toy_arguments("run", TrainingArguments, max_steps=3, save_strategy="steps", save_steps=1)
data = {"train_dataset": ToyDataset(8), "eval_dataset": ToyDataset(4)}
trainer = Trainer(tiny_bert(), args, processing_class=tiny_tokenizer(), **data)
result = trainer.train(resume_from_checkpoint="--resume" in sys.argv)
trainer.save_model()
trainer.save_state()
trainer.save_metrics("train", result.metrics)
trainer.save_metrics("eval", trainer.evaluate())
trainer.create_model_card()
print("done")
"""
IN_MEMORY = Path("/dev/shm")
WORDS = {
    "run": ["run", "--logger", "csv", "script.py", "--resume"],
    "verify": ["verify", "--once", "--steps", "2", "script.py"],
    "preflight": ["preflight", "--no-data", "script.py"],
}


@pytest.fixture(scope="module")
def harmless(tmp_path_factory):
    """The folder of a short training."""
    folder = tmp_path_factory.mktemp("harmless")
    (folder / "script.py").write_text(SCRIPT.replace("max_steps=3", "max_steps=2"))
    ended = run_forked(["run", "script.py"], folder)
    assert ended.code == 0, ended.printed
    return folder / RUN


@pytest.fixture
def place(harmless):
    """A new folder that an ordinary user can reach, with the script and, below it, what somebody sent."""
    is_there = os.access(IN_MEMORY, os.W_OK) and shutil.disk_usage(IN_MEMORY).free > 1 << 30
    with tempfile.TemporaryDirectory(dir=IN_MEMORY if is_there else None) as above:
        place = Path(above, "place")
        (place / "tmp").mkdir(parents=True)
        (place / "script.py").write_text(SCRIPT)
        shutil.copytree(harmless, place / RUN)
        Path(above).chmod(0o755)
        yield place


def run_on(command, place, *options, **more):
    first, *rest = WORDS[command]
    owned = None if command == "preflight" else place
    return run_forked([first, *options, *rest], place, owned=owned, TMPDIR=str(place / "tmp"), **more)


def admitted(command, place):
    """Return what SECURITY.md lets a command do, as patterns of effects."""
    places = {"RUN": str(place / RUN), "TEMP": str(place / "tmp"), "PLACE": str(place)}
    patterns = EFFECTS_OF_SCRIPTS[command].admitted
    return [re.sub("RUN|TEMP|PLACE", lambda match: re.escape(places[match[0]]), pattern) for pattern in patterns]


def contents(folder):
    """Return what is in a folder, links and pipes included: modes, numbers of files and contents."""
    found = {}
    for path in folder.rglob("*"):
        status = path.lstat()
        kind = path.readlink() if path.is_symlink() else path.read_bytes() if path.is_file() else ""
        found[path] = (status.st_mode, status.st_ino, kind)
    return found


QUICK = {
    "run": ("a link to a folder", "a pipe"),
    "verify": ("a link to a folder",),
    "preflight": ("a hard link",),
}


@pytest.mark.parametrize(
    ("command", "way"),
    [
        pytest.param(command, way, marks=[pytest.mark.slow] * (way not in QUICK[command]))
        for command in EFFECTS_OF_SCRIPTS
        for way in WAYS
    ],
)
def test_what_a_script_writes_stays_in_its_folder(command, way, place):
    """What is at the names is replaced, and not followed or opened; a rehearsal changes nothing at all."""
    # Results of an earlier run have to be ones.
    has_results = way in ("a link to a file", "a hard link")
    names = [name for name in EFFECTS_OF_SCRIPTS[command].written if not (has_results and name == "all_results.json")]
    for name in names:
        detour(Path(os.path.normpath(place / RUN / name)), way)
    has_page = command != "run" and way in ("a link to a file", "a link to nothing", "a hard link")
    page = place / "page.html"
    if has_page:
        detour(page, way)
    before = contents(place)
    ended = run_on(command, place, *["--report", page] * has_page)
    assert ended.code == 0, ended.printed
    assert not outside(ended.effects, admitted(command, place))
    assert is_untouched(elsewhere_of(place / RUN))
    assert not [*(place / "tmp").glob("portico*")]
    if has_page:
        assert is_plain(page)
        assert "<title>" in page.read_text(encoding="utf-8")
    if command == "run":
        written = [place / RUN / name for name in names]
        assert all(path.is_dir() or is_plain(path) for path in written)
        assert not any(path.is_symlink() for path in written)
    elif command == "verify":
        assert "identical for 2 steps, 2 checkpoints, 1 evaluation" in ended.printed
        assert re.search(r"files compared \W+[1-9]", ended.printed)
        assert not [*place.glob("run.portico-verify*")]
    else:
        without_page = {path: what for path, what in contents(place).items() if path != page}
        assert without_page.keys() == before.keys() - {page}
        assert [path for path in without_page if without_page[path] != before[path]] == []


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=[pytest.mark.slow] * (way != "a link to a folder")) for way in WAYS]
)
def test_a_rehearsal_without_a_view_of_the_disk_stays_out_of_the_output_folder(way, place):
    """The processes of the tests that take the rights of an ordinary user get no view from the system."""
    for name in EFFECTS_OF_SCRIPTS["preflight"].written:
        detour(place / RUN / name, way)
    before = contents(place)
    words = ["preflight", "--no-data", "script.py"]
    ended = run_forked(words, place, owned=place, TMPDIR=str(place / "tmp"))
    assert ended.code == 0, ended.printed
    if os.geteuid() == 0:
        assert "so only output folders are replaced" in ended.printed
    assert not outside(ended.effects, admitted("preflight", place))
    assert [path for path, what in contents(place).items() if before.get(path) != what] == []
    assert before.keys() == contents(place).keys()


def is_plain(path):
    status = path.lstat()
    return stat.S_ISREG(status.st_mode) and status.st_nlink == 1


def test_what_was_left_in_place_of_the_output_folder_is_not_loaded(place):
    """An archive may hold folders whose content an ordinary user cannot remove; files of two runs are compared."""
    for ending, text in (("", "one"), ("-portico", "another")):
        folder = place / f"run.portico-verify{ending}" / "checkpoint-1"
        folder.mkdir(parents=True)
        (folder / "theirs.pt").write_bytes(text.encode() + pickle.dumps(Touch(canary_of(place / RUN))))
        (folder / "optimizer.pt").write_bytes(pickle.dumps(Touch(canary_of(place / RUN))))
        (folder / "link").symlink_to(place / "script.py")
        folder.chmod(0o500)
    mode = (place / "script.py").stat().st_mode
    ended = run_on("verify", place)
    assert not canary_of(place / RUN).exists()
    assert ended.code == 0, ended.printed
    assert "theirs.pt" not in ended.printed
    assert not [*place.glob("run.portico-verify*")]
    assert (place / "script.py").stat().st_mode == mode


@pytest.mark.parametrize("way", WAYS)
def test_a_folder_for_records_that_leads_elsewhere_is_refused(way, tmp_path, capsys):
    kept = tmp_path / RUN / "kept"
    detour(kept, way)
    (tmp_path / "script.py").touch()
    with recorded_effects() as effects, pytest.raises(SystemExit, match=r"^2$"):
        verify.main(["--keep", str(kept), str(tmp_path / "script.py")])
    assert f"`--keep {kept}` is in use; name an empty folder" in capsys.readouterr().err
    assert not effects
    assert is_untouched(elsewhere_of(kept))


@pytest.mark.parametrize("command", [verify, preflight])
@pytest.mark.parametrize("way", ["a link to a folder", "a link to a device", "a pipe"])
def test_a_page_that_cannot_be_a_file_is_refused_before_the_script_runs(way, command, tmp_path, capsys):
    page = tmp_path / RUN / "page.html"
    detour(page, way)
    (tmp_path / "script.py").touch()
    with recorded_effects() as effects, pytest.raises(SystemExit, match=r"^2$"):
        command.main(["--report", str(page), str(tmp_path / "script.py")])
    assert f"`--report {page}` cannot be written; name a file in a folder that exists" in capsys.readouterr().err
    assert not effects


RESUMED = [animal for animal in hostile_folders.zoo() if "resume" in animal.commands]
QUICK_ANIMALS = ("checkpoint: optimizer.pt, torch.save, listed", "sizes: checkpoint-2/trainer_state.json, a pipe")


@pytest.mark.parametrize(
    "animal",
    [pytest.param(animal, marks=[pytest.mark.slow] * (str(animal) not in QUICK_ANIMALS)) for animal in RESUMED],
    ids=str,
)
def test_no_code_of_a_folder_runs_where_a_script_resumes_from_it(animal, place):
    animal.change(place / RUN)
    ended = run_on("run", place, **{hostile_folders.SECRET: "8015271"})
    assert ended.code in (0, 1), ended.printed
    assert not outside(ended.effects, admitted("run", place))
    assert not canary_of(place / RUN).exists()
    assert "8015271" not in ended.printed
    assert ended.code == 0 or "error: " in ended.printed, ended.printed


def test_a_script_resumes_from_a_harmless_folder(place):
    """Else an animal could be refused for what is not hostile in it."""
    ended = run_on("run", place)
    assert ended.code == 0, ended.printed
    assert ended.printed.endswith("done\n")
    assert (place / RUN / "checkpoint-3").is_dir()


@pytest.mark.parametrize("command", ["run", pytest.param("verify", marks=pytest.mark.slow)])
def test_effects_of_what_a_command_starts_are_recorded(command, place):
    """The hook sees what it is to forbid, in a script and in the processes of a command."""
    (place / "script.py").write_text(f"open({str(place / 'elsewhere')!r}, 'w')")
    found = outside(run_on(command, place).effects, admitted(command, place))
    assert ("write", str(place / "elsewhere")) in found
