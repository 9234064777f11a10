"""Every command over a zoo of hostile folders: no code of theirs runs, and each refusal is a sentence."""

import copy
import encodings
import functools
import gzip
import json
import os
import pickle
import pkgutil
import re
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from contextlib import contextmanager, nullcontext, suppress
from http import HTTPStatus
from importlib import import_module
from pathlib import Path

import pytest
import yaml
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from starlette.testclient import TestClient
from transformers import TrainerCallback

import hostile_folders
from effects import outside, recorded_effects
from fake_experiment import SearchedExperiment
from fresh_process import environment
from hostile_folders import RUN, canary_of
from hydra_plugins.portico_launchers import log_output
from models import toy_trainer
from portico import InputError
from portico.cli import compose
from portico.cli.composition import config_dir, instantiate_experiment
from portico.commands import demo, replay, report, run, sweep, verify
from portico.compat.releases import is_before
from portico.errors import InputPermissionError
from portico.hub import refuse_missing_model
from portico.loop.model_setup import make_logger
from portico.mrc.config import load_examples
from portico.mrc.models.loading import load_reader
from portico.mrc.models.small_bert import new_reader
from portico.trust.files import load_own
from portico.trust.names import from_folder, resolved

# Imported while the rights of the user are those of the tests: Python itself may be below a home that others may not
# read, and an encoding once not found stays unknown to the process, for all later tests too.
for late in ("sqlite3", *(f"encodings.{module.name}" for module in pkgutil.iter_modules(encodings.__path__))):
    with suppress(ImportError):  # encodings of other systems
        import_module(late)

# What the libraries below warn about is theirs.
pytestmark = pytest.mark.filterwarnings("ignore")

QUIET = (
    *("args.report_to=none", "args.disable_tqdm=true", "args.use_cpu=true", "args.per_device_train_batch_size=4"),
    *("data.num_train=24", "data.num_validation=3", "args.save_strategy=steps", "args.save_steps=1"),
    *("args.logging_steps=1", "callbacks.spike._target_=portico.callbacks.LossSpike", "args.max_steps=3"),
    *("args.load_best_model_at_end=false", "args.eval_strategy=no"),
    "++args.restore_callback_states_from_checkpoint=true",
)
SMALL = (
    *("model.hidden_size=16", "model.num_hidden_layers=1", "model.num_attention_heads=2"),
    "model.intermediate_size=16",
)
TINY = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
ZOO = hostile_folders.zoo()
NOBODY = 65534
PARIS = {"text": ["Paris"], "answer_start": [13]}
WRITERS = {name: one.written for name, one in hostile_folders.EFFECTS.items() if one.written}
WRITERS |= hostile_folders.WRITTEN_TOO
# A search takes seconds.
SLOW_BUT_TWO = [
    way if way in ("a link to nothing", "a pipe") else pytest.param(way, marks=pytest.mark.slow)
    for way in hostile_folders.WAYS
]
WRITERS_AND_WAYS = [
    pytest.param(command, way, marks=pytest.mark.slow)
    if command == "search" and way not in ("a link to nothing", "a pipe")
    else (command, way)
    for command in WRITERS
    for way in hostile_folders.WAYS
]
NOT_ALWAYS = ("0/job.json", "0/train.log")  # of jobs that are part of a search, or log
GROUPS = ("args", "callbacks", "data", "experiment", "metric", "model", "postprocess", "preprocess", "task", "trainer")


@pytest.fixture(scope="module")
def harmless(tmp_path_factory):
    """The folder of a short training."""
    folder = tmp_path_factory.mktemp("harmless") / RUN
    folder.mkdir()
    settings = compose([*QUIET, *SMALL, f"paths.output_dir={folder}"], experiment="text_classification")
    hostile_folders.rewritten(folder, "config.yaml", settings)
    instantiate_experiment(settings, str(folder)).train()
    job = {"number": 0, "overrides": [], "goals": {"eval_f1": "max"}}
    hostile_folders.rewritten(folder, "0/job.json", job)
    return folder


def with_answers(folder):
    """Let the run be one of reading comprehension, for a report."""
    data = {"num_train": 5, "num_validation": 3}
    hostile_folders.rewritten(folder, "config.yaml", {"data": data})
    answers = {example["id"]: "Turku" for example in load_examples(data).validation}
    hostile_folders.rewritten(folder, "eval_predictions.json", answers)


@pytest.fixture
def connections(monkeypatch):
    """The hosts that are asked for; none is reached."""
    found = []

    def refuse(host, *arguments, **keywords):
        found.append(host)
        raise OSError(f"{host} is not asked in tests")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    return found


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    """The folder of a reader, for the demo."""
    folder = tmp_path_factory.mktemp("reader") / RUN
    made = new_reader(["Ada lives in Paris."], vocab_size=60, max_length=32, model=TINY)
    made.model.save_pretrained(folder)
    made.tokenizer.save_pretrained(folder)
    example = {"context": "Ada lives in Paris.", "questions": ["Where does Ada live?"]}
    hostile_folders.rewritten(folder, "report.json", {"example": example})
    return folder


# Copies of folders are made and removed hundreds of times, which takes a third of the time on a disk.
IN_MEMORY = Path("/dev/shm")


@pytest.fixture(scope="module")
def above():
    is_there = os.access(IN_MEMORY, os.W_OK) and shutil.disk_usage(IN_MEMORY).free > 1 << 30
    with tempfile.TemporaryDirectory(dir=IN_MEMORY if is_there else None) as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def place(above):
    """A new folder that an ordinary user can reach; `tmp_path` is below folders of the user who runs the tests.

    Its path is the same for all tests, so that compositions are.
    """
    folder = above / "place"
    folder.mkdir(mode=0o700)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def answered(harmless, tmp_path_factory):
    """The folder of a run that has answered questions."""
    folder = shutil.copytree(harmless, tmp_path_factory.mktemp("answered") / RUN)
    with_answers(folder)
    return folder


@pytest.fixture
def folder_for(harmless, answered, reader, place):
    """A function that returns a harmless folder which a command can read."""

    def copied(command, name=RUN):
        return shutil.copytree({"demo": reader, "report": answered}.get(command, harmless), place / name)

    return copied


def walk_pages(server, sockets):
    """Ask for the page of the demo and for an answer, in place of serving them."""
    port = sockets[0].getsockname()[1]
    with TestClient(server.config.app, base_url=f"http://127.0.0.1:{port}") as browser:
        form = {"context": "Ada lives in Paris.", "question": "Where does Ada live?"}
        for page in (browser.get("/"), browser.post("/", data=form)):
            assert page.status_code == HTTPStatus.OK
            assert hostile_folders.MARKUP not in page.text


@functools.cache
def composed(mode):
    return compose([*QUIET, *(SMALL if mode == "train" else ()), f"mode={mode}"], experiment="text_classification")


_compositions = {}


@pytest.fixture
def compositions(place, monkeypatch):
    """Let Hydra compose a configuration once for all tests that give it the same words, files and folder.

    It composes twice for a job, which takes four fifths of its time.
    """
    compose_anew = ConfigLoaderImpl.load_configuration

    def could_be_configuration(path):
        """Return whether Hydra would take the file for one of its own, if it looked for those in the folder."""
        inner = path.relative_to(place / RUN) if path.is_relative_to(place / RUN) else path
        return ".hydra" in inner.parts or (path.is_file() and (config_dir() / inner).is_file())

    def load_configuration(loader, config_name, overrides, run_mode, **options):
        found = [path for path in sorted(place.rglob("*.yaml")) if could_be_configuration(path)]
        files = [(str(path), path.read_bytes()) for path in found]
        key = str((config_name, overrides, run_mode, options, Path.cwd(), sys.argv, files))
        if key not in _compositions:
            _compositions[key] = pickle.dumps(compose_anew(loader, config_name, overrides, run_mode, **options))
        return pickle.loads(_compositions[key])  # in a third of the time of a deep copy

    monkeypatch.setattr(ConfigLoaderImpl, "load_configuration", load_configuration)


@pytest.fixture
def commands(place, command_line, compositions, monkeypatch):
    """Each command as a function of a folder."""
    monkeypatch.setattr("portico.mrc.demo.Server.run", walk_pages)

    def classification(mode, group, name, folder):
        settings = copy.deepcopy(composed(mode))
        settings[group][name] = str(folder)
        settings["args"]["save_strategy"] = "no"  # what is written is the matter of `continue`
        out = place / "out"
        out.mkdir()
        getattr(instantiate_experiment(settings, str(out)), mode)()

    def job(folder):
        experiment = f"{SearchedExperiment.__module__}.{SearchedExperiment.__qualname__}"
        return command_line(
            "+experiment=mrc", f"_target_={experiment}", f"paths.output_dir={folder / '0'}", "objective.metric=eval_f1"
        )

    def continued(folder):
        settings = copy.deepcopy(composed("train"))
        settings["paths"]["output_dir"] = str(folder)
        settings["args"]["resume_from_checkpoint"] = True
        settings["args"]["load_best_model_at_end"] = False
        instantiate_experiment(settings, str(folder)).train()

    def search(folder):
        choices = ("args.learning_rate=tag(log, interval(1e-5, 1e-1))", "args.weight_decay=interval(0.0, 1.0)")
        sweep = ("hydra/sweeper=portico_optuna", "hydra/sweeper/sampler=cmaes", "hydra.sweeper.n_trials=2")
        experiment = ("+experiment=mrc", "_target_=fake_experiment.SearchedExperiment")
        return command_line("-m", *experiment, f"hydra.sweep.dir={folder}", *sweep, *choices)

    return {
        "replay": lambda folder: replay.main([str(folder), "--step", "3"]),
        "report": lambda folder: report.main([str(folder)]),
        "sweep": lambda folder: sweep.main([str(folder)]),
        "job": job,
        "continue": continued,
        "search": search,
        "rerun": lambda folder: command_line("--experimental", str(folder / ".hydra/config.pickle")),
        "resume": lambda folder: classification("train", "args", "resume_from_checkpoint", folder / "checkpoint-2"),
        "evaluate": lambda folder: classification("evaluate", "model", "name_or_path", folder),
        "predict": lambda folder: classification("predict", "model", "name_or_path", folder),
        "demo": lambda folder: demo.main([str(folder), "--port", "0", "--device", "cpu"]),
    }


def admitted(command, folder):
    """Return what SECURITY.md lets a command do, as patterns of effects."""
    places = {
        "RUN": str(folder.resolve()),
        "OUT": str(folder.resolve().with_name("out")),
        "TEMP": str(Path(tempfile.gettempdir()).resolve()),
    }
    patterns = hostile_folders.EFFECTS[hostile_folders.SAME_EFFECTS.get(command, command)].admitted
    return [re.sub("RUN|OUT|TEMP", lambda match: re.escape(places[match[0]]), pattern) for pattern in patterns]


class NotEnded(BaseException):
    """No ``Exception``, which code that waits for a pipe may take for a file that cannot be read."""


@contextmanager
def ended_in_time(seconds=15):
    """Interrupt a block that waits for a pipe or a terminal."""

    def interrupt(*_):
        raise NotEnded(f"it has not ended after {seconds} s")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def as_ordinary_user(folder):
    """Let the block have the rights of an ordinary user, who owns ``folder``; root may do what others may not."""
    if os.geteuid() != 0:
        yield
        return
    for path in (folder, *folder.rglob("*")):
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


@contextmanager
def little_memory():
    """Check that the block takes 256 MiB at most; the animals that are bombs would take more."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak becomes what is taken now
    before = memory()["VmRSS"]
    try:
        yield
    finally:
        taken = memory()["VmHWM"] - before
        assert taken < 1 << 18, f"{taken} KiB"


def memory():
    """Return the memory of this process by the names of the kernel, in KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return {line.partition(":")[0]: int(line.split()[1]) for line in lines if line.endswith("kB")}


@pytest.mark.parametrize(
    ("animal", "command"),
    [
        pytest.param(animal, command, marks=[pytest.mark.slow] * animal.is_slow)
        for animal in ZOO
        for command in animal.commands
    ],
    ids=str,
)
def test_no_code_of_a_folder_runs(animal, command, folder_for, commands, place, monkeypatch, capsys, connections):
    monkeypatch.setenv(hostile_folders.SECRET, "8015271")
    folder = folder_for(command)
    animal.change(folder)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    # transformers checks the values of configurations since 5.4; a model then computes with a wrong kind of value.
    unchecked = (TypeError,) if is_before("5.4") else ()
    suppressed = suppress(InputError, SystemExit, *unchecked)
    with little_memory(), as_ordinary_user(place), suppressed, recorded_effects() as effects:
        commands[command](folder)
    assert not outside(effects, admitted(command, folder))
    assert not canary_of(folder).exists()
    assert not connections
    assert "8015271" not in "".join(capsys.readouterr())
    files = [one for one in place.rglob("*") if one.is_file() and one.stat().st_size < 1 << 30]
    assert not [one for one in files if b"8015271" in one.read_bytes()]


@pytest.mark.parametrize(("command", "way"), WRITERS_AND_WAYS)
def test_what_a_command_writes_stays_in_its_folder(command, way, folder_for, commands, place, monkeypatch):
    """What is at the names that it writes, now or in an earlier release, is replaced, and not followed or opened."""
    folder = folder_for(command)
    not_yet = {"continue": "checkpoint-3", "search": "0"}
    if command in not_yet:
        shutil.rmtree(folder / not_yet[command])
    for name in WRITERS[command]:
        hostile_folders.detour(folder / name, way)
    monkeypatch.chdir(folder)
    # A report replaces only pages of its own; the record of a job, and earlier results, have to be ones.
    may_refuse = command in ("report", "job", "continue") and way != "a link to nothing"
    with as_ordinary_user(place), recorded_effects() as effects, ended_in_time():
        try:
            code = commands[command](folder)
        except (SystemExit, InputError) as ended:
            code = getattr(ended, "code", 1)
    assert code in ((None, 0, 1) if may_refuse else (None, 0))
    assert not outside(effects, admitted(command, folder))
    assert hostile_folders.is_untouched(hostile_folders.elsewhere_of(folder))
    # The names of an earlier release are left alone.
    for name in WRITERS[command] if not code else ():
        if (
            name not in NOT_ALWAYS and ".partial" not in name and os.path.lexists(folder / name)
        ):  # the names of an earlier release, which are left alone
            status = (folder / name).lstat()
            assert stat.S_ISDIR(status.st_mode) or (stat.S_ISREG(status.st_mode) and status.st_nlink == 1), name


def test_an_ordinary_user_has_no_rights_of_root(place):
    """Else the zoo would be read, and written to, with more rights than users have."""
    (place / "theirs").mkdir(mode=0o500)
    with as_ordinary_user(place):
        assert os.geteuid() != 0
        (place / "ours").touch()
        with pytest.raises(PermissionError):
            (place / "theirs" / "new").touch()
        with pytest.raises(PermissionError):
            os.chown(place / "ours", 0, 0)


def test_a_folder_that_an_ordinary_user_cannot_write_to_is_named(folder_for, commands, place, capsys):
    folder = folder_for("report")
    with as_ordinary_user(place):
        folder.chmod(0o500)
        with pytest.raises(SystemExit, match=r"^1$"):
            commands["report"](folder)
    assert f"{folder / 'report.html'}: cannot be written (Permission denied)" in capsys.readouterr().err


UNREADABLE = [
    *(("resume", f"checkpoint-2/{name}") for name in ("model.safetensors", "optimizer.pt", "trainer_state.json")),
    *(("resume", f"checkpoint-2/{name}") for name in ("portico_manifest.json", "rng_state.pth", "scheduler.pt")),
    *(("evaluate", name) for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")),
    *(("report", name) for name in ("config.yaml", "eval_predictions.json", "trainer_state.json")),
    *(
        ("replay", name)
        for name in ("config.yaml", "checkpoint-2/model.safetensors", "checkpoint-2/trainer_state.json")
    ),
]


@pytest.mark.parametrize(("command", "name"), UNREADABLE)
def test_a_file_that_may_not_be_read_is_not_called_damaged(command, name, folder_for, commands, place, capsys):
    folder = folder_for(command)
    assert (folder / name).is_file()
    with as_ordinary_user(place):
        (folder / name).chmod(0)
        with suppress(SystemExit):
            try:
                commands[command](folder)
            except InputPermissionError as error:
                print(error, file=sys.stderr)  # as the command line does
    said = capsys.readouterr().err
    assert Path(name).name in said
    assert "ermission" in said
    assert "damaged" not in said
    assert "Traceback" not in said


@pytest.mark.parametrize("way", hostile_folders.WAYS)
def test_a_comparison_stays_in_its_folder(way, folder_for):
    first, second = folder_for("report", name="first"), folder_for("report")
    hostile_folders.detour(second / "comparison-with-first.html", way)
    with recorded_effects() as effects, ended_in_time(), suppress(SystemExit):
        report.main([str(first), str(second)])
    assert not outside(effects, admitted("report", second))
    assert hostile_folders.is_untouched(hostile_folders.elsewhere_of(second))


@pytest.mark.parametrize("way", SLOW_BUT_TWO)
@pytest.mark.parametrize("name", ["study.journal", pytest.param("study.journal.damaged", marks=pytest.mark.slow)])
def test_the_journal_of_a_search_stays_in_its_folder(name, way, folder_for, commands, monkeypatch, capsys):
    """Optuna appends to it in place."""
    folder = folder_for("search")
    shutil.rmtree(folder / "0")
    hostile_folders.rewritten(folder, "multirun.yaml", {"hydra": {}})
    hostile_folders.detour(folder / name, way)
    monkeypatch.chdir(folder)
    with recorded_effects() as effects, ended_in_time():
        code = commands["search"](folder)
    assert not outside(effects, admitted("search", folder))
    if name == "study.journal":
        assert code == 1
        assert "is a link, a pipe or a device, and not a file of the sweep" in capsys.readouterr().err
    assert hostile_folders.is_untouched(hostile_folders.elsewhere_of(folder))


@pytest.mark.parametrize("mode", [0, 0o400])
def test_a_comparison_names_the_run_that_may_not_be_read(mode, folder_for, place, capsys):
    """And not the page, which could be written."""
    first, second = folder_for("report", name="first"), folder_for("report")
    with as_ordinary_user(place):
        second.chmod(mode)
        with pytest.raises(SystemExit, match=r"^1$"):
            report.main([str(first), str(second), "--output", str(place / "page.html")])
        second.chmod(0o700)
    error = capsys.readouterr().err
    assert error.startswith(f"error: {second}: ")
    assert "cannot be read (Permission denied)" in error
    assert "page.html" not in error


@pytest.fixture(scope="module")
def answering(tmp_path_factory):
    """The folder of a short training on questions in its own files."""
    folder = tmp_path_factory.mktemp("answering") / RUN
    folder.mkdir()
    text = "Ada lives in Paris."
    questions = [{"id": str(n), "question": "Where?", "context": text, "answers": PARIS} for n in range(8)]
    for name in ("train", "validation"):
        (folder / f"{name}.json").write_text(json.dumps({"data": questions}))
    chosen = [f"data.{name}_file={folder / name}.json" for name in ("train", "validation")]
    lengths = ("preprocess.max_seq_length=32", "preprocess.doc_stride=8", "preprocess.vocab_size=60")
    cached = f"preprocess.cache_dir={folder.parent / 'cache'}"
    settings = compose(
        [
            *(one for one in QUIET if "num_" not in one),
            *SMALL,
            *chosen,
            *lengths,
            cached,
            f"paths.output_dir={folder}",
        ],
        experiment="mrc",
    )
    hostile_folders.rewritten(folder, "config.yaml", settings)
    instantiate_experiment(settings, str(folder)).train()
    return folder


def test_a_replay_neither_reads_nor_writes_the_cache_that_a_run_names(answering, commands, tmp_path, capsys):
    cache = answering.parent / "cache"
    assert [*cache.glob("*/features.json")]
    for index in cache.glob("*/features.json"):
        index.write_text("{}")  # reading it would fail
    for name in ("cache", "elsewhere"):
        hostile_folders.rewritten(answering, "config.yaml", {"preprocess/cache_dir": str(answering.parent / name)})
        with pytest.raises(SystemExit, match=r"^0$"), recorded_effects() as effects:
            commands["replay"](answering)
        assert not outside(effects, admitted("replay", answering))
    assert not (answering.parent / "elsewhere").exists()
    hostile_folders.rewritten(answering, "config.yaml", {"preprocess/cache_dir": str(cache)})
    with pytest.raises(SystemExit, match=r"^1$"):
        replay.main([str(answering), "--step", "3", "--trust-config"])
    assert "features.json is no index of stored features" in capsys.readouterr().err


@pytest.mark.parametrize("option", [(), pytest.param(("--trust-config",), marks=pytest.mark.slow)])
def test_a_folder_does_not_lift_the_limit_for_compressed_data(option, folder_for, capsys):
    folder = folder_for("report")
    with gzip.open(folder / "data.json.gz", "wb", compresslevel=1) as file:
        for _ in range(80):
            file.write(b" " * (1 << 20))
    data = {f"{name}_file": str(folder / "data.json.gz") for name in ("train", "validation")}
    hostile_folders.rewritten(folder, "config.yaml", {"data": {**data, "max_gzip_ratio": float("inf")}})
    with pytest.raises(SystemExit, match=r"^1$"):
        report.main([str(folder), *option])
    error = capsys.readouterr().err
    assert ("which would be expanded in full; if you trust the run, allow it with --trust-config" in error) != bool(
        option
    )
    assert ("the file is empty" in error) == bool(option)


@pytest.mark.parametrize(
    ("command", "code"),
    [("run", 0), *(pytest.param(name, 2, marks=pytest.mark.slow) for name in ("preflight", "verify"))],
)
def test_a_script_elsewhere_imports_nothing_of_the_working_folder(command, code, tmp_path):
    """Python would not, either; and what a run has left there is no script."""
    for name in ("portico", "torch", "transformers", "json", "yaml", "sitecustomize", "usercustomize", "neighbour"):
        file = tmp_path / RUN / f"{name}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"open({str(canary_of(tmp_path / RUN))!r}, 'w')")
    (tmp_path / "neighbour.py").write_text("print('of the script')")
    (tmp_path / "script.py").write_text("import neighbour")
    options = ["--keep", "../kept"] if command == "verify" else []
    words = [sys.executable, "-P", "-m", "portico", command, *options, "../script.py"]
    ended = subprocess.run(words, cwd=tmp_path / RUN, env=environment(), capture_output=True, text=True, check=False)
    assert ended.returncode == code, ended.stderr
    if command == "preflight":
        assert "\nof the script\n" in ended.stderr
    else:
        said = ended.stdout if command == "run" else (tmp_path / "kept" / "transformers" / "log").read_text()
        assert said == "of the script\n"
    assert "built no Trainer" in ended.stderr
    assert not canary_of(tmp_path / RUN).exists()


@pytest.mark.parametrize(("command", "code"), [(run, 1), (verify, 2)])
def test_the_folder_of_a_run_is_no_script(command, code, harmless, capsys):
    with pytest.raises(SystemExit, match=rf"^{code}$"):
        command.main([str(harmless)])
    assert "run: the folder of a run; give a script, or replay a step of the run with `portico replay`" in (
        capsys.readouterr().err
    )


def test_a_folder_may_be_named_by_a_link(folder_for, commands, place):
    """Its last part is the user's own."""
    folder = folder_for("report")
    (place / "link").symlink_to(folder)
    commands["report"](place / "link")
    assert (folder / "report.html").is_file()


def test_a_replay_does_not_use_the_cache_of_onnx_runtime_that_a_run_names(folder_for, commands, monkeypatch):
    """The compiler of torch reads pickles in it."""
    folder, found = folder_for("replay"), []
    cache = str(folder / "cache")
    hostile_folders.rewritten(folder, "config.yaml", {"args/onnx_cache_dir": cache, "args/weight_decay": 0.25})

    def note(settings, output_dir):
        found.append(settings["args"])
        raise InputError("Noted.")

    monkeypatch.setattr("portico.cli.composition.instantiate_experiment", note)
    with pytest.raises(SystemExit):
        commands["replay"](folder)
    (args,) = found
    assert args["weight_decay"] == 0.25
    assert cache not in args.values()


def test_adapters_do_not_choose_a_model_elsewhere(tmp_path):
    hostile_folders.rewritten(tmp_path, "adapter_config.json", {"base_model_name_or_path": "theirs/model"})
    with (
        from_folder(tmp_path / "config.yaml"),
        pytest.raises(InputError, match=r"base_model_name_or_path=theirs/model`, which would be downloaded"),
    ):
        refuse_missing_model("model.name_or_path", str(tmp_path))


@pytest.mark.parametrize("name", ["weights elsewhere", "tokenizers elsewhere"])
def test_names_in_a_model_stay_below_its_folder(name, reader, tmp_path):
    folder = shutil.copytree(reader, tmp_path / RUN)
    hostile_folders.rewritten(folder, *hostile_folders.MODEL_CHANGES[name])
    with pytest.raises(InputError, match=r"config\.json: `\w+` names '\.\./.*', which is not below it; restore it"):
        load_reader(str(folder))


def test_an_index_that_a_model_names_lists_files_next_to_it(reader, tmp_path):
    folder = shutil.copytree(reader, tmp_path / RUN)
    name = "theirs.safetensors.index.json"
    hostile_folders.rewritten(folder, "config.json", {"transformers_weights": name})
    (folder / name).write_text(json.dumps({"metadata": {}, "weight_map": {"x": "../../elsewhere.safetensors"}}))
    with pytest.raises(InputError, match=r"theirs\.\S+ lists '\.\./\.\./elsewhere\.\w+', which is not next to it"):
        load_reader(str(folder))


@pytest.mark.parametrize("logger", ["csv", "tensorboard"])
def test_a_logger_writes_into_its_folder(logger, tmp_path):
    for name in ("csv", "tensorboard"):
        hostile_folders.detour(tmp_path / RUN / name, "a link to a folder")
    made = make_logger(logger, str(tmp_path / RUN))
    made.log_metrics({"loss": 1.0}, step=1)
    made.save()
    assert [*(tmp_path / RUN / logger).rglob("*")]
    assert hostile_folders.is_untouched(hostile_folders.elsewhere_of(tmp_path / RUN))


def test_all_data_elsewhere_are_refused_in_one_sentence(answering, commands, tmp_path, capsys):
    """A user whose own run was trained on them allows them in one step."""
    folder = shutil.copytree(answering, tmp_path / RUN)
    files = [tmp_path / "my data" / f"{name}.json" for name in ("train", "validation")]
    for file in files:
        file.parent.mkdir(exist_ok=True)
        shutil.copy(answering / file.name, file)
    named = {f"{file.stem}_file": str(file) for file in files}
    hostile_folders.rewritten(folder, "config.yaml", {"data": named, "preprocess/cache_dir": None})
    with pytest.raises(SystemExit, match=r"^1$"):
        commands["replay"](folder)
    error = capsys.readouterr().err
    assert f"names {files[0]}, and {files[1]}, which would be read from outside of its folder; if the run is" in error
    words = shlex.split(re.search(r"allow it with `(.*)`\.", error)[1])
    assert words == [
        *("portico", "replay", "--allow-path", str(files[0]), "--allow-path", str(files[1])),
        *(str(folder), "--step", "3"),
    ]
    with pytest.raises(SystemExit, match=r"^0$"):
        replay.main(words[2:])


def test_a_report_refuses_all_questions_elsewhere_in_one_sentence(folder_for, place, monkeypatch, capsys):
    folder = folder_for("report")
    files = [place / "my data" / f"{number}.json" for number in range(2)]
    examples = load_examples({"num_train": 5, "num_validation": 4}).validation
    for number, file in enumerate(files):
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps({"data": examples[2 * number :][:2]}))
    hostile_folders.rewritten(
        folder,
        "config.yaml",
        {"data": {name: [str(file) for file in files] for name in ("train_file", "validation_file")}},
    )
    hostile_folders.rewritten(folder, "eval_predictions.json", {example["id"]: "Turku" for example in examples})
    monkeypatch.chdir(place)
    with pytest.raises(SystemExit, match=r"^1$"):
        report.main([RUN, "--max-megabytes", "3"])
    error = capsys.readouterr().err
    assert f"names {files[0]}, and {files[1]}, which would be read from outside of its folder; if the run is" in error
    words = shlex.split(re.search(r"allow it with `(.*?)`\.", error)[1])
    assert words[-3:] == [RUN, "--max-megabytes", "3"]
    report.main(words[2:])
    assert (folder / "report.html").is_file()


@pytest.mark.parametrize("other", ["text", [1], {"sources": 3}, {"sources": [7], "train_file": [1, "a\0b"]}], ids=str)
def test_groups_of_another_form_are_answered_with_a_sentence(other, harmless, commands, tmp_path, capsys):
    folder = shutil.copytree(harmless, tmp_path / RUN)
    hostile_folders.rewritten(folder, "config.yaml", {"data": other})
    with pytest.raises(SystemExit, match=r"^1$"):
        commands["replay"](folder)
    says = "error: `data=" if not isinstance(other, dict) else "error: "
    assert (error := capsys.readouterr().err).startswith(says)
    assert isinstance(other, dict) or "is not a mapping; set it to the settings of this group" in error


@pytest.mark.parametrize("group", ["strategy", "preprocess", "model", "args", "callbacks"])
def test_each_group_of_another_form_is_answered_with_a_sentence(group, harmless, commands, tmp_path, capsys):
    folder = shutil.copytree(harmless, tmp_path / RUN)
    hostile_folders.rewritten(folder, "config.yaml", {group: "text"})
    with pytest.raises(SystemExit, match=r"^1$"):
        commands["replay"](folder)
    assert capsys.readouterr().err.startswith("error: ")


def test_effects_outside_are_found(tmp_path):
    """The hook sees what it is to forbid."""
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / RUN).mkdir()
    with recorded_effects() as effects:
        (tmp_path / "link").write_text("")
        (tmp_path / RUN / "inside").write_text("")
        (tmp_path / "link").rename(tmp_path / RUN / "link")
        subprocess.run(["true"], check=True)
        with suppress(OSError), socket.socket() as connection:
            connection.connect(("127.0.0.1", 9))
    found = outside(effects, [rf"\S+ {re.escape(str(tmp_path / RUN))}(/\S*)?"])
    assert ("write", str(tmp_path / "elsewhere")) in found
    assert ("os.rename", str(tmp_path / "link")) in found
    assert {"process", "connection"} <= {kind for kind, _ in found}
    assert not [path for _, path in found if path.startswith(str(tmp_path / RUN))]


@pytest.mark.parametrize("name", list(hostile_folders.REACHES))
def test_settings_that_reach_out_are_refused_with_a_sentence(name, harmless, commands, tmp_path, capsys):
    folder = shutil.copytree(harmless, tmp_path / RUN)
    hostile_folders.reaching(folder, name)
    with pytest.raises(SystemExit, match=r"^1$"):
        commands["replay"](folder)
    assert re.search(hostile_folders.REACHES[name][1], capsys.readouterr().err)


@pytest.mark.parametrize("name", ["; mkdir canary", "$(mkdir canary)", "`mkdir canary`", "a\nmkdir canary", "--help"])
def test_names_with_characters_of_a_shell_are_only_names(name, harmless, commands, tmp_path, monkeypatch):
    folder = tmp_path / name
    shutil.copytree(harmless, folder)
    with_answers(folder)
    monkeypatch.chdir(folder)
    for command in ("report", "sweep", "replay", "job", "evaluate"):
        with suppress(InputError, SystemExit):
            commands[command](folder)
    subprocess.run(log_output([sys.executable, "-c", ""], folder / f"{name}.log", num_threads=1), check=True)
    assert (folder / f"{name}.log").is_file()
    assert not [*tmp_path.glob("canary"), *folder.rglob("canary"), *Path().glob("canary")]


@pytest.mark.parametrize("command", ["replay", "report", "sweep", "job", "resume", "evaluate", "predict", "demo"])
def test_a_harmless_folder_is_read(command, folder_for, commands, place, monkeypatch):
    """Else an animal could be refused for what is not hostile in it, or because of the user."""
    folder = folder_for(command)
    monkeypatch.chdir(folder)
    ends = {"replay": pytest.raises(SystemExit, match=r"^0$")}
    with as_ordinary_user(place), recorded_effects() as effects, ends.get(command, nullcontext()):
        commands[command](folder)
    assert not outside(effects, admitted(command, folder))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("a function of os", "config.yaml names os.mkdir, which would be imported and called"),
        ("an interpolation", r"_target_=portico.\$\{.arguments\[1\]\}`, which would be resolved"),
        ("a dataset package", "names `data.dataset_name=pandas`, which would be loaded by the package datasets"),
        ("a model of the hub", "names `model.name_or_path=theirs/model`, which would be downloaded"),
    ],
)
@pytest.mark.parametrize("command", ["replay", "report"])
def test_what_a_folder_names_is_refused_with_a_sentence(command, name, why, harmless, commands, tmp_path, capsys):
    if command == "report" and name in ("a model of the hub", "an interpolation"):
        pytest.skip("a report loads no model, and resolves nothing")
    folder = tmp_path / RUN
    shutil.copytree(harmless, folder)
    if command == "report":
        with_answers(folder)
    (animal,) = (one for one in ZOO if (one.row, one.name) == (command, name))
    animal.change(folder)
    with pytest.raises(SystemExit, match=r"^1$"):
        commands[command](folder)
    error = capsys.readouterr().err
    assert re.search(why, error)
    assert "if you trust the run, allow it with --trust-config" in error


@pytest.mark.parametrize("name", list(hostile_folders.STORAGES))
def test_a_storage_elsewhere_is_refused_with_a_sentence(name, folder_for, commands, capsys, monkeypatch):
    folder = folder_for("job")
    monkeypatch.chdir(folder)
    (animal,) = (one for one in ZOO if (one.row, one.name) == ("sweep", name))
    animal.change(folder)
    assert commands["job"](folder) == 1
    assert "outside of the sweep, which would be opened; name it" in capsys.readouterr().err


def test_a_study_with_a_pickle_is_refused_with_a_sentence(folder_for, commands, capsys, monkeypatch):
    folder = folder_for("search")
    monkeypatch.chdir(folder)
    (animal,) = (one for one in ZOO if one.row == "study")
    animal.change(folder)
    assert commands["search"](folder) == 1
    assert re.search(r"a sampler that could run code \(it names posix\.mkdir, which is not", capsys.readouterr().err)


@pytest.mark.parametrize("state", list(hostile_folders.CALLBACK_STATES))
def test_a_forged_state_of_a_callback_is_refused_with_a_sentence(state, harmless, commands, tmp_path):
    folder = tmp_path / RUN
    shutil.copytree(harmless, folder)
    (animal,) = (one for one in ZOO if (one.row, one.name) == ("callbacks", state))
    animal.change(folder)
    with pytest.raises(InputError, match=r"holds no state of LossSpike .*; restore the file, or set"):
        commands["resume"](folder)


def test_a_tokenizer_that_panics_is_answered_with_a_sentence(reader, tmp_path, monkeypatch, capsys, command_line):
    folder = shutil.copytree(reader, tmp_path / RUN)
    endless = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Removed", "invert": False}
    hostile_folders.rewritten(folder, "tokenizer.json", {"pre_tokenizer": endless})
    hostile_folders.rewritten(folder, "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})
    text = f"{'a' * 50}b"

    def ask(server, sockets):
        with TestClient(server.config.app, base_url=f"http://127.0.0.1:{sockets[0].getsockname()[1]}") as browser:
            page = browser.post("/", data={"context": text, "question": "Who?"})
        assert page.status_code == HTTPStatus.BAD_REQUEST
        assert "The tokenizer cannot read a text (Onig: " in page.text

    monkeypatch.setattr("portico.mrc.demo.Server.run", ask)
    demo.main([str(folder), "--port", "0", "--device", "cpu"])
    answer = {"id": "1", "question": "Who?", "answers": [{"text": "a", "answer_start": 0}]}
    questions = tmp_path / "questions.json"
    questions.write_text(json.dumps({"data": [{"paragraphs": [{"context": text, "qas": [answer]}]}]}))
    chosen = (f"model.name_or_path={folder}", f"data.validation_file={questions}", f"paths.output_dir={tmp_path}/out")
    quiet = ("args.use_cpu=true", "args.report_to=none", "preprocess.max_seq_length=32", "preprocess.doc_stride=8")
    assert command_line("+experiment=mrc", "mode=evaluate", *chosen, *quiet) == 1
    assert "error: The tokenizer cannot read a text (Onig: " in capsys.readouterr().err


def test_the_refusal_of_a_pickle_does_not_advise_to_load_it(harmless, commands, tmp_path):
    folder = tmp_path / RUN
    shutil.copytree(harmless, folder)
    hostile_folders.only_pickled_weights(folder, "pytorch_model.bin")
    with pytest.raises(InputError, match=r"could run code; .* do not switch `weights_only` off"):
        commands["evaluate"](folder)


@pytest.mark.parametrize("name", ["a function of shutil", "a function of os", "a pickle, by joblib", "arguments"])
def test_a_trusted_folder_does_what_it_names(name, harmless, tmp_path):
    """The canary can appear."""
    folder = tmp_path / RUN
    shutil.copytree(harmless, folder)
    (animal,) = (one for one in ZOO if (one.row, one.name) == ("replay", name))
    animal.change(folder)
    with suppress(InputError, SystemExit, AttributeError):
        replay.main([str(folder), "--step", "3", "--trust-config"])
    assert canary_of(folder).exists()


class EndsSoon(TrainerCallback):
    """SLURM sends the signal before the time of a job is up."""

    def on_step_end(self, *args, **kwargs):
        signal.getsignal(signal.SIGUSR1)(signal.SIGUSR1, None)


def test_a_job_of_slurm_reads_and_writes_no_checkpoint_of_lightning(tmp_path, monkeypatch, caplog):
    """Lightning looks for one in the folder of a run, and would continue from it; it writes one if a job ends soon."""
    folder = tmp_path / RUN
    folder.mkdir()
    hostile_folders.pickled(folder, "hpc_ckpt_1.ckpt", by_torch=True, listed=False)
    (tmp_path / "scontrol").write_text(f"#!/bin/sh\necho $* > {tmp_path}/requeued.txt\n")
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    for name in ("JOB_ID", "NTASKS", "NTASKS_PER_NODE"):
        monkeypatch.setenv(f"SLURM_{name}", "1")
    for name in ("PROCID", "LOCALID", "NODEID", "STEP_ID"):
        monkeypatch.setenv(f"SLURM_{name}", "0")
    monkeypatch.setenv("SLURM_JOB_NAME", "training")
    monkeypatch.setenv("SLURM_NODELIST", "localhost")
    trainer = toy_trainer(folder, max_steps=2)
    trainer.add_callback(EndsSoon)
    assert trainer.train().global_step == 2
    assert not canary_of(folder).exists()
    assert [file.name for file in folder.glob("hpc_ckpt*")] == ["hpc_ckpt_1.ckpt"]
    assert (tmp_path / "requeued.txt").read_text() == "requeue 1\n"
    assert f"Signal {signal.SIGUSR1:d}: SLURM is asked to start this job again" in caplog.text
    assert "hpc_ckpt_1.ckpt is not read; to continue a run, set `resume_from_checkpoint=True`" in caplog.text


def test_the_pickles_of_the_zoo_are_live(tmp_path):
    (tmp_path / RUN).mkdir()
    for by_torch in (True, False):
        hostile_folders.pickled(tmp_path / RUN, "optimizer.pt", by_torch=by_torch, listed=False)
        with suppress(RuntimeError):  # a plain pickle has run before torch misses its own first bytes
            load_own(tmp_path / RUN / "optimizer.pt")
        assert canary_of(tmp_path / RUN).exists()
        canary_of(tmp_path / RUN).rmdir()


def test_every_no_in_the_table_has_animals():
    elsewhere = hostile_folders.TESTED_ELSEWHERE
    assert all(Path(hostile_folders.__file__).parents[1].joinpath(file).is_file() for file in elsewhere.values())
    rows = {one.row for one in ZOO} | set(elsewhere)
    assert {name for name, row in hostile_folders.ROWS.items() if row.answer.startswith("no")} <= rows


def test_a_folder_may_name_the_classes_of_our_configuration(tmp_path):
    files = [path for group in GROUPS for path in (config_dir() / group).glob("*.yaml")]
    named = {(yaml.safe_load(file.read_text()) or {}).get("_target_") for file in files}
    entries = [one for file in files for one in (yaml.safe_load(file.read_text()) or {}).values()]
    named |= {one["_target_"] for one in entries if isinstance(one, dict) and "_target_" in one}
    refused = set()
    for name in named - {None}:
        with from_folder(tmp_path):
            try:
                resolved(name)
            except InputError:
                refused.add(name)
    # Its folder is a path to write to; and nothing of AllenNLP's trainer can be replayed.
    descent = {name for name in named - {None} if "gradient_descent" in name or "GradientDescent" in name}
    assert refused == {"portico.callbacks.ProfilerCallback", *descent}
