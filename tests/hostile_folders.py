"""A zoo of hostile folders: each would run code, or load what its author chose, if a command read it carelessly.

``ROWS`` is the table of SECURITY.md, which ``docs/security.py`` writes; each "no" in it has animals in the zoo.
"""

import io
import json
import os
import pickle
import shutil
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import torch
import yaml
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save

from damage import Touch
from portico.checkpoint.manifest import MANIFEST_FILE, write_manifest

RUN = "run"
CANARY = "canary"
SECRET = "PORTICO_TEST_SECRET"
"""Environment variable whose value no command may resolve for a folder."""


@dataclass(frozen=True)
class Row:
    """What is loaded, how, and whether it can run code."""

    what: str
    how: str
    answer: str = "no"


ROWS: Mapping[str, Row] = {
    "checkpoint": Row(
        "weights, optimizer and states in `checkpoint-N/`",
        "safetensors, or `torch.load(weights_only=True)`, which is refused where the content would take more than a "
        "hundred times the size of the file, beyond 64 MiB; sizes and XXH3 checksums of `portico_manifest.json` are "
        "compared first, which finds damage, not forgery; a resumed run reads no weights, optimizer or random "
        "states that the manifest does not list",
    ),
    "shards": Row(
        "shards of a model or an optimizer (`optimizer_0/`, `pytorch_model_fsdp_0/`)",
        "`torch.distributed.checkpoint` with a table of contents that may only describe tensors and plain values; a "
        "run whose model is not sharded reads only shards that the manifest lists",
    ),
    "engine": Row(
        "states of DeepSpeed in `global_stepN/`",
        "read under `deepspeed` only, by `torch.load(weights_only=True)` that admits four classes of DeepSpeed, which "
        "hold numbers; the scripts that DeepSpeed adds to a checkpoint (`zero_to_fp32.py`) are never run",
    ),
    "training_args": Row("`training_args.bin`", "written as transformers does, never read"),
    "callbacks": Row("states of callbacks in `trainer_state.json`", "JSON; the classes are those of your callbacks"),
    "ckpt": Row(
        "checkpoints of `TrainerModule` and other `.ckpt`, which no command reads",
        "Lightning's loader: `weights_only` is its default, which is off for a URL",
        "from a URL: yes",
    ),
    "model": Row(
        "models and tokenizers of a folder or the hub",
        "`from_pretrained` without `trust_remote_code`; the regular expressions of a tokenizer run on your texts, and "
        "although each match ends after a number of attempts, the time that they take for a text is not limited",
        "no, unless you answer `y` when transformers asks on the terminal; without a terminal it is refused",
    ),
    "data": Row(
        "data: JSON, JSON lines, CSV, parquet, gzip, a folder of `datasets`",
        "parsed; a gzip file that grows more than a hundredfold, beyond 64 MiB, is refused, and so is a stored "
        "dataset that names files elsewhere; what compressed Arrow or parquet files take is not limited",
    ),
    "hub": Row("data of the hub", "`datasets.load_dataset` without `trust_remote_code`", "no"),
    "report": Row(
        "a run's folder in `portico report`",
        "JSON, and YAML without tags or aliases, of 256 KiB at most; a class or a dataset of the hub that "
        "`config.yaml` names is loaded with `--trust-config` only",
        "no, unless you allow it",
    ),
    "replay": Row(
        "a run's folder in `portico replay RUN`",
        "YAML as above; a class that `config.yaml` names and that does not take data only, or a model or dataset of "
        "the hub, is loaded with `--trust-config` only",
        "no, unless you allow it",
    ),
    "sweep": Row(
        "a sweep's folder in `portico sweep`, or resumed",
        "JSON and YAML; the jobs run with the settings of your command and values that it chooses from; the storage "
        "is a file of the sweep and the pruner one of Optuna's, unless your command names them; "
        "`--experimental-rerun` is refused",
    ),
    "study": Row(
        "the study of a sweep that is continued",
        "a journal of JSON, or a database; a state of `CmaEsSampler`, which Optuna unpickles, may name nothing but "
        "arrays and CMA-ES; values outside of the search space of your command are refused",
    ),
    "pages": Row(
        "`report.html` and other pages",
        "all values are escaped; a content security policy forbids loading and sending; foreign markup is rebuilt "
        "from a list of harmless tags",
        "only the page's own scripts",
    ),
    "configuration": Row(
        "a configuration, the folder of `--config-dir`, an override, `_target_`, a dotted path of AllenNLP",
        "the class that it names is imported and called: that is its purpose",
        "**yes**",
    ),
    "script": Row("`portico run SCRIPT`, `verify`, `preflight`, `replay SCRIPT`", "the script is run", "**yes**"),
    "onnx": Row(
        "`onnx_cache_dir`, by default `~/.cache/portico/onnxruntime`",
        "`torch.compile` reads its cache there with pickle, as it does elsewhere; a replay does not use the folder "
        "that a run names",
        "**yes**, who can write there",
    ),
    "joblib": Row("`confidence_model_path` of PrimeQA's processors", "joblib, that is pickle", "**yes**"),
}


@dataclass(frozen=True)
class Effects:
    """What a command may do to the machine: a line of SECURITY.md, and the same for the audit hook of the tests.

    Args:
        typed: The command.
        files: What it writes.
        more: Connections and processes.
        admitted: Regular expressions of a kind of effect and a path, where RUN is the folder that the command is
            about, OUT another one that the user names and TEMP the folder of temporary files.
        written: Names in the folder that the command writes, at each of which it must not follow a link.
    """

    typed: str
    files: str
    admitted: Sequence[str]
    more: str = "none"
    written: Sequence[str] = ()


_STAGED = r"\S+ RUN/\.portico-\w{16}(/\S*)?"
EFFECTS: Mapping[str, Effects] = {
    "report": Effects(
        "`portico report RUN`, with OTHERS",
        "`report.html` in RUN, or `comparison-*.html` in the last folder; or the file of `--output`",
        (_STAGED, r"os.mkdir RUN", r"os.rename RUN/(report|comparison-\S+)\.html"),
        written=("report.html", ".report.html.partial"),
    ),
    "sweep": Effects(
        "`portico sweep FOLDER`",
        "`sweep.json` and `sweep.html` in FOLDER",
        (_STAGED, r"os.mkdir RUN", r"os.rename RUN/sweep\.(json|html)"),
        written=("sweep.json", "sweep.html", ".sweep.json.partial", ".sweep.html.partial"),
    ),
    "replay": Effects(
        "`portico replay RUN`",
        "nothing but a temporary folder, which it removes; or the file of `--report`",
        (r"\S+ TEMP/portico-replay-\w+(/\S*)?",),
        "no processes and connections, unless `--trust-config` is set",
    ),
    "demo": Effects(
        "`portico demo RUN`",
        "nothing but a temporary folder, which it removes",
        (r"\S+ TEMP/portico-reader-\w+(/\S*)?", r"connection .*'127\.0\.0\.1'.*"),
        "listens on 127.0.0.1",
    ),
    "evaluate": Effects(
        "`portico train`, with any `mode`",
        "files in `paths.output_dir`, where links are replaced, and in folders that your command names, such as "
        "`preprocess.cache_dir`",
        (r"\S+ OUT(/\S*)?",),
        "what your command names: processes of `strategy` and `dataloader_num_workers`, trackers, the hub",
    ),
    "search": Effects(
        "`portico train -m`, and its jobs",
        "files in the folder of the sweep and of its jobs, where links are replaced",
        (r"\S+ RUN(/\S*)?",),
        "as above; launchers start processes",
        written=("multirun.yaml", "optimization_results.yaml", "sweep.json", "sweep.html", "0"),
    ),
}
# Of the commands that run a script, where RUN is the `output_dir` of its trainer.
EFFECTS_OF_SCRIPTS: Mapping[str, Effects] = {
    "run": Effects(
        "`portico run SCRIPT`",
        "what the script writes; of its trainer, files in `output_dir`, where links are replaced",
        (r"\S+ RUN(/\S*)?",),
        "what the script starts and asks for; processes of `--strategy` and `--devices`",
        written=(
            *("config.json", "tokenizer.json", "tokenizer_config.json", "training_args.bin", "model.safetensors"),
            *("trainer_state.json", "train_results.json", "all_results.json", "eval_results.json", "README.md"),
            *("checkpoint-3", "csv"),
        ),
    ),
    "verify": Effects(
        "`portico verify SCRIPT`",
        "folders next to `output_dir` whose names end in `.portico-verify` or `.portico-verify-portico`, and a "
        "temporary folder, all of which it removes, or the folder of `--keep`; the file of `--report`; what the "
        "script itself writes elsewhere",
        (
            r"\S+ RUN\.portico-verify(-portico)?(/\S*)?",
            r"\S+ TEMP(/portico-verify-\w+(/\S*)?)?",
            r"(write|os.mkdir|os.rmdir|os.chmod) PLACE/\.portico-\w{16}(/\S*)?",
            r"os.(rename|mkdir) PLACE(/\.portico-\w{16})?(/page\.html)?",
            r"process .*'portico\.inspection\.recorder'.*",
        ),
        "starts the script, several times",
        written=("../run.portico-verify", "../run.portico-verify-portico"),
    ),
    "preflight": Effects(
        "`portico preflight SCRIPT`",
        "nothing but a temporary folder, in which all ends that the script writes, and which is removed; the file of "
        "`--report`; where the system gives no process its own view of the disk, what the script itself writes "
        "elsewhere",
        (
            r"\S+ TEMP(/portico-preflight-\w+(/\S*)?)?",
            r"(write|os.mkdir|os.rmdir|os.chmod) PLACE/\.portico-\w{16}(/\S*)?",
            r"os.(rename|mkdir) PLACE(/\.portico-\w{16})?(/page\.html)?",
            r"process (\(\)|.*shutil\.rmtree.*|.*'\S*script\.py'.*)",
            r"write /proc/\d+/(setgroups|uid_map|gid_map)",
        ),
        "starts the script, twice, and what removes the temporary folder; trackers are offline, nothing is uploaded",
        written=("config.json", "checkpoint-3", "model.safetensors", "trainer_state.json", "README.md", "csv"),
    ),
}
# Commands of the tests that do what one in the table does.
SAME_EFFECTS = {"predict": "evaluate", "resume": "evaluate", "job": "search", "rerun": "search", "continue": "search"}
_OF_A_JOB = ("config.yaml", "job.json", ".config.yaml.partial", ".job.json.partial", "train.log")
WRITTEN_TOO: Mapping[str, Sequence[str]] = {
    "job": tuple(f"0/{name}" for name in _OF_A_JOB),
    "continue": (
        *("config.json", "tokenizer.json", "tokenizer_config.json", "training_args.bin", "model.safetensors"),
        *("trainer_state.json", "train_results.json", "all_results.json", "eval_results.json", "report.html"),
        *(".all_results.json.partial", ".checkpoint-3.replaced", ".checkpoint-3.deleted", "checkpoint-3"),
    ),
}

WAYS = ("a link to a file", "a link to nothing", "a link to a folder", "a link to a device", "a pipe", "a hard link")


def detour(path: Path, way: str) -> None:
    """Put at ``path`` what leads a careless writer to the file or the folder of :func:`elsewhere_of`, or blocks it."""
    elsewhere = elsewhere_of(path)
    elsewhere.mkdir(exist_ok=True)
    (elsewhere / "theirs.txt").write_text("theirs")
    path.parent.mkdir(exist_ok=True, parents=True)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    if way == "a pipe":
        os.mkfifo(path)
    elif way == "a hard link":
        path.hardlink_to(elsewhere / "theirs.txt")
    else:
        targets = {"file": elsewhere / "theirs.txt", "nothing": elsewhere / "new.txt", "folder": elsewhere}
        path.symlink_to(targets.get(way.rpartition(" ")[2], "/dev/full"))


def elsewhere_of(path: Path) -> Path:
    """Return a folder next to the folder of the run, into which nothing may be written."""
    return canary_of(path).with_name("elsewhere-of-links")


def is_untouched(elsewhere: Path) -> bool:
    """Return whether a folder that :func:`detour` made is as it was."""
    names = [path.name for path in elsewhere.iterdir()]
    return names == ["theirs.txt"] and (elsewhere / "theirs.txt").read_text() == "theirs"


def locked_tree(folder: Path) -> Path:
    """Make a folder as an archive may hold one, whose content its owner cannot remove, with links out of it."""
    (folder / "mine.txt").write_text("mine")
    (folder / "mine.txt").chmod(0o644)
    inner = folder / "tree" / "inner" / "empty"
    inner.mkdir(parents=True)
    (inner.parent / "theirs.pt").touch()
    (inner.parent / "link").symlink_to(folder / "mine.txt")
    (inner.parent / "link to a folder").symlink_to(folder)
    for path, mode in ((inner, 0), (inner.parent, 0o500), (folder / "tree", 0o500)):
        path.chmod(mode)
    return folder / "tree"


# Rows with a "no" whose tests are elsewhere, since no folder of a run is read.
TESTED_ELSEWHERE: Mapping[str, str] = {
    "data": "tests/unit/mrc/datasets/test_damaged_files.py",
    "hub": "tests/unit/test_security.py",
}


@dataclass(frozen=True)
class Animal:
    """A change that makes a harmless folder hostile, and the commands that are to read the folder.

    One that ``is_slow`` has a close relative that is not.
    """

    row: str
    name: str
    commands: Sequence[str]
    change: Callable[[Path], object]
    is_slow: bool = False

    def __str__(self) -> str:
        return f"{self.row}: {self.name}"


def canary_of(folder: Path) -> Path:
    """Return the file, next to the folder of the run, that code of the folder would create."""
    run = next((one for one in (folder, *folder.parents) if one.name == RUN), folder)
    return run.parent / CANARY


# ---- Files that could be pickles ----


def pickled(folder: Path, name: str, *, by_torch: bool, listed: bool | None) -> None:
    """Put a pickle into a checkpoint whose manifest lists it, does not list it, or (None) is removed."""
    file = folder / name
    file.parent.mkdir(exist_ok=True, parents=True)
    content = Touch(canary_of(folder))
    if by_torch:
        archive = io.BytesIO()  # torch writes no file whose name begins with a dot
        torch.save({"state": content}, archive)
        file.write_bytes(archive.getvalue())
    else:
        file.write_bytes(pickle.dumps(content))
    if listed is None:
        (folder / MANIFEST_FILE).unlink()
    elif listed:
        write_manifest(folder)


def valid_shards(folder: Path) -> None:
    """Write shards of an optimizer whose table of contents is right, with an option that is a pickle."""
    state = {"state.weight.exp_avg": torch.ones(2), "param_groups.classifier.bias.lr": Touch(canary_of(folder))}
    save({"optimizer": state}, storage_writer=FileSystemWriter(folder / "optimizer_0"), no_dist=True)
    write_manifest(folder)


def only_pickled_weights(folder: Path, file: str) -> None:
    (folder / "model.safetensors").unlink()
    pickled(folder, file, by_torch=True, listed=None if (folder / MANIFEST_FILE).is_file() else False)


# ---- Small files that would fill the memory ----

GIGABYTE = 1 << 30
SHARD = "pytorch_model-00001-of-00001.bin"
_SO_MANY_BYTES = b"\x80\x02cbuiltins\nbytearray\n\x8a\x05" + GIGABYTE.to_bytes(5, "little") + b"\x85R."
_TEXT = b"X" + struct.pack("<I", 1 << 19) + b"a" * (1 << 19) + b"q\x01"
_COPIES = b"\x80\x02c_codecs\nencode\nq\x00" + _TEXT + b"]("
_COPIES += b"h\x00h\x01\x85R" * (GIGABYTE >> 19) + b"e."
_LONG_MEMO = b"\x80\x02Nr" + struct.pack("<I", GIGABYTE >> 3) + b"."


@cache
def _archive(*, compressed: bool = False, table: bytes | None = None) -> bytes:
    """Return an archive of torch, made of zeros if it is to be compressed, or with another table of contents."""
    stored, changed = io.BytesIO(), io.BytesIO()
    # Somewhat more than the tests allow: to make it takes far longer than to refuse it.
    torch.save({"state": torch.zeros(5 * GIGABYTE >> 6 if compressed else 1)}, stored)
    with (
        ZipFile(stored) as source,
        ZipFile(changed, "w", ZIP_DEFLATED if compressed else 0, compresslevel=1) as target,
    ):
        for one in source.namelist():
            is_table = one.endswith("data.pkl") and table is not None
            target.writestr(one, table if is_table else source.read(one))
    return changed.getvalue()


def _legacy(table: bytes) -> bytes:
    """Return a file as torch before 1.6 wrote it."""
    head = (torch.serialization.MAGIC_NUMBER, torch.serialization.PROTOCOL_VERSION, {})
    return b"".join(pickle.dumps(one, 2) for one in head) + table + pickle.dumps([], 2)


def _expanded() -> bytes:
    """Return a file with one number that is to be a tensor of many, which a change of its type would make."""
    file = io.BytesIO()
    state = {0: {name: torch.zeros(1).expand(GIGABYTE >> 2) for name in ("exp_avg", "exp_avg_sq", "step")}}
    torch.save({"state": state, "param_groups": []}, file)
    return file.getvalue()


BOMBS: Mapping[str, Callable[[], bytes]] = {
    "a compressed archive": partial(_archive, compressed=True),
    "a number of bytes": partial(_archive, table=_SO_MANY_BYTES),
    "copies of a text": partial(_archive, table=_COPIES),
    "a number of bytes, of an older torch": partial(_legacy, _SO_MANY_BYTES),
    "copies of a text, of an older torch": partial(_legacy, _COPIES),
    "an expanded tensor": _expanded,
}


def bomb(folder: Path, name: str, content: Callable[[], bytes]) -> None:
    """Put a file into a checkpoint whose manifest lists it; if it holds weights, it is the only one that does."""
    if name in ("pytorch_model.bin", SHARD):
        (folder / "model.safetensors").unlink()
    if name == SHARD:
        rewritten(folder, "pytorch_model.bin.index.json", {"metadata": {}, "weight_map": {"classifier.bias": name}})
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(content())
    if (folder / MANIFEST_FILE).is_file():
        write_manifest(folder)


def _bombs() -> list[Animal]:
    found = []
    for name, content in BOMBS.items():
        for file in ("optimizer.pt", "scheduler.pt", "rng_state.pth", "pytorch_model.bin"):
            change = _in_last(partial(bomb, name=file, content=content))
            is_slow = file in ("scheduler.pt", "rng_state.pth")  # which are read as the optimizer is
            found.append(Animal("sizes", f"{file}, {name}", ["resume"], change, is_slow))
        weights = partial(bomb, name="pytorch_model.bin", content=content)
        found.append(Animal("sizes", f"pytorch_model.bin, {name}", ["evaluate", "demo"], weights))
    shard = partial(bomb, name=SHARD, content=BOMBS["a number of bytes"])
    found.append(Animal("sizes", f"{SHARD}, a number of bytes", ["resume"], _in_last(shard)))
    found.append(Animal("sizes", f"{SHARD}, a number of bytes", ["evaluate", "demo"], shard))
    for name, content in (("a number of bytes", _SO_MANY_BYTES), ("a long memo", _LONG_MEMO)):
        change = _in_last(partial(bomb, name="optimizer_0/.metadata", content=lambda content=content: content))
        found.append(Animal("sizes", f"table, {name}", ["resume"], change))
    return found


CHECKPOINT_FILES = (
    "optimizer.pt",
    "scheduler.pt",
    "scaler.pt",
    "rng_state.pth",
    "stream_position.pt",
    "trainer_state.json",
    "config.json",
    "optimizer.bin",
    "pytorch_model.bin",
    "pytorch_model_fsdp.bin",
    "optimizer_0/.metadata",
    "pytorch_model_fsdp_0/.metadata",
    "adapter_model.bin",
    "global_step2/mp_rank_00_model_states.pt",
)


def _checkpoints() -> list[Animal]:
    found = []
    for file in (*CHECKPOINT_FILES, "training_args.bin"):
        row = {"optimizer_0": "shards", "pytorch_model_fsdp_0": "shards", "training_args.bin": "training_args"}
        row["global_step2"] = "engine"
        for listed, how in ((True, "listed"), (False, "unlisted"), (None, "without manifest")):
            for by_torch in (True, False):
                kind = "torch.save" if by_torch else "pickle"
                change = partial(pickled, name=file, by_torch=by_torch, listed=listed)
                name = f"{file}, {kind}, {how}"
                rest = row.get(file.partition("/")[0], "checkpoint"), name, ["resume"], _in_last(change)
                # Each file is of each kind, and in each place.
                found.append(Animal(*rest, is_slow=by_torch is (listed is False)))
    found.append(Animal("shards", "options that are a pickle", ["resume"], _in_last(valid_shards)))
    found.append(Animal("engine", "a script of DeepSpeed", ["resume"], _in_last(_with_engine_script)))
    weights = partial(only_pickled_weights, file="pytorch_model.bin")
    found.append(Animal("checkpoint", "pickled weights alone", ["resume"], _in_last(weights)))
    return found


def _with_engine_script(checkpoint: Path) -> None:
    """Add the script that DeepSpeed puts into a checkpoint, for its user to run."""
    for folder in (checkpoint, checkpoint / "global_step2"):
        folder.mkdir(exist_ok=True)
        (folder / "zero_to_fp32.py").write_text(f"open({str(canary_of(checkpoint))!r}, 'w')\n")
    (checkpoint / "latest").write_text("global_step2")
    write_manifest(checkpoint)


def _in_last(change: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda run: change(run / "checkpoint-2")


# ---- What JSON and YAML name ----


def rewritten(folder: Path, file: str, changes: Mapping[str, Any]) -> None:
    """Set keys of a JSON or YAML file, given by their dotted paths."""
    path = folder / file
    content = yaml.load(path.read_text(), yaml.CSafeLoader) if path.is_file() else {}
    for key, value in changes.items():
        inner = content
        *groups, last = key.split("/")
        for group in groups:
            inner = inner.setdefault(group, {})
        inner[last] = json.loads(json.dumps(value).replace("CANARY", str(canary_of(folder))))
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(json.dumps(content) if path.suffix == ".json" else yaml.dump(content, Dumper=yaml.CSafeDumper))


def with_script(change: Callable[[Path], object]) -> Callable[[Path], object]:
    """Add code to a folder, under the names by which it might be found."""

    def both(folder: Path) -> None:
        code = f"open({str(canary_of(folder))!r}, 'w')\n"
        for name in ("theirs.py", "sitecustomize.py", "modeling_theirs.py", "run.py"):
            (folder / name).write_text(code)
        change(folder)

    return both


_LEAK = f"${{oc.env:{SECRET}}}"
TARGETS: Mapping[str, Mapping[str, Any]] = {
    "a function of shutil": {"callbacks/one": {"_target_": "shutil.copytree", "src": "FOLDER", "dst": "CANARY"}},
    "a function of os": {"callbacks/one": {"_target_": "os.mkdir", "path": "CANARY"}},
    "below a list": {"callbacks/one": {"hooks": [{"_target_": "os.mkdir", "path": "CANARY"}]}},
    "in a group": {"args/run_name": {"_target_": "os.mkdir", "path": "CANARY"}},
    "as a group": {"data/_target_": "os.mkdir", "data/path": "CANARY"},
    "as the experiment": {"_target_": "theirs.Experiment"},
    "a partial": {"trainer/compute_loss_func": {"_target_": "os.mkdir", "_partial_": True, "_args_": ["CANARY"]}},
    "arguments": {"callbacks/one": {"_target_": "os.mkdir", "_args_": ["CANARY"]}},
    "a script, by a command": {
        "callbacks/one": {"_target_": "portico.commands.run.main", "arguments": ["FOLDER/theirs.py"]}
    },
    "a script, by verify": {
        "callbacks/one": {"_target_": "portico.commands.verify.main", "arguments": ["FOLDER/theirs.py"]}
    },
    "a script of the library": {
        "callbacks/one": {"_target_": "portico.inspection.script.Script", "target": "FOLDER/theirs.py"}
    },
    "sitecustomize": {"callbacks/one": {"_target_": "portico.commands.site.sitecustomize.Path"}},
    "a module that runs": {"callbacks/one": {"_target_": "portico.__main__.main", "arguments": ["run", "theirs.py"]}},
    "what a module of ours imports": {
        "callbacks/one": {"_target_": "portico.imports.import_module", "name": "theirs"}
    },
    "a function of ours": {
        "callbacks/one": {"_target_": "portico.imports.import_name", "module": "theirs", "name": "x"}
    },
    "a pickle, by the gate itself": {
        "callbacks/one": {"_target_": "portico.trust.files.load_own", "file": "FOLDER/theirs.pkl"}
    },
    "a pickle, by joblib": {
        "callbacks/one": {
            "_target_": "portico.mrc.primeqa.confidence.ConfidenceScorer",
            "confidence_model_path": "FOLDER/theirs.pkl",
        }
    },
    "a pickle, by torch": {
        "callbacks/one": {"_target_": "torch.load", "f": "FOLDER/theirs.pt", "weights_only": False}
    },
    "a pickle, by numpy": {"callbacks/one": {"_target_": "numpy.load", "file": "FOLDER/a.npy", "allow_pickle": True}},
    "a pickle, by pandas": {
        "callbacks/one": {"_target_": "pandas.read_pickle", "filepath_or_buffer": "FOLDER/theirs.pkl"}
    },
    "an interpolation": {
        "callbacks/one": {
            "_target_": "portico.${.arguments[1]}",
            "arguments": ["FOLDER/theirs.py", "commands.run.main"],
        }
    },
    "an interpolation that makes a target": {
        "callbacks/one": {
            "_target_": "portico.callbacks.LossSpike",
            "action": "${oc.create:'{_target_: os.mkdir, path: CANARY}'}",
        }
    },
    "an escaped interpolation": {
        "callbacks/one": {
            "_target_": "portico.callbacks.LossSpike",
            "action": "\\\\${oc.create:'{_target_: os.mkdir, path: CANARY}'}",
        }
    },
    "an interpolated name": {"name": "os.mkdir", "callbacks/one": {"_target_": "${name}", "path": "CANARY"}},
    "an environment variable": {"callbacks/one": {"_target_": "${oc.env:HOME}"}},
    "a type of AllenNLP": {
        "_target_": "portico.gradient_descent.experiment.GradientDescentExperiment",
        "trainer": {"optimizer": {"type": "os.system"}},
    },
    "a file of AllenNLP": {
        "_target_": "portico.gradient_descent.experiment.GradientDescentExperiment",
        "allennlp_config": "FOLDER/theirs.jsonnet",
    },
    "a writer": {"callbacks/one": {"_target_": "portico.callbacks.ProfilerCallback", "folder": "CANARY"}},
    "a logger": {"logger/one": {"_target_": "os.mkdir", "path": "CANARY"}},
    "a path that is no name": {"callbacks/one": {"_target_": "../theirs"}},
    "a number": {"callbacks/one": {"_target_": 5}},
    "a list": {"callbacks/one": {"_target_": ["os.system"]}},
    "a dataset of the hub": {"data/dataset_name": "FOLDER"},
    "a dataset package": {"data/dataset_name": "pandas"},
    "a model of the hub": {"model": {"_target_": "portico.tasks.models.SmallBert", "name_or_path": "theirs/model"}},
    "an upload": {"args/push_to_hub": True, "args/hub_model_id": "theirs/model"},
    "a tracker": {"args/report_to": ["wandb", "mlflow"]},
    "where a tracker is": {
        "args/report_to": ["wandb", "mlflow", "tensorboard"],
        "args/logging_dir": "CANARY",
        "logger/one": {"_target_": "lightning.pytorch.loggers.MLFlowLogger", "tracking_uri": "http://theirs.example"},
    },
    "a logger that asks a host": {
        "callbacks/one": {
            "_target_": "lightning.pytorch.loggers.MLFlowLogger",
            "tracking_uri": "http://theirs.example",
        }
    },
    "a folder to write to": {"args/output_dir": "CANARY", "paths/output_dir": "CANARY"},
    "a checkpoint elsewhere": {"args/resume_from_checkpoint": "FOLDER/elsewhere"},
    "a secret in the name of the run": {"args/run_name": _LEAK, "tags": [_LEAK]},
    "a secret in a callback": {"callbacks/one": {"_target_": "portico.callbacks.LossSpike", "action": _LEAK}},
    "a secret in the data": {"data/train_file": _LEAK, "data/dataset_name": _LEAK},
    "a secret in the model": {"model/name_or_path": _LEAK},
    "a secret, decoded": {"args/run_name": f"${{oc.decode:{_LEAK}}}", "args/logging_steps": _LEAK},
    "a secret in a path": {"paths/data_dir": _LEAK, "name": _LEAK},
    "settings of Hydra": {
        "hydra": {
            "searchpath": ["file://FOLDER"],
            "launcher": {"_target_": "os.mkdir", "path": "CANARY"},
            "sweeper": {"_target_": "os.mkdir", "path": "CANARY"},
            "callbacks": {"one": {"_target_": "os.mkdir", "path": "CANARY"}},
        }
    },
    "a name that is a command": {
        "name": "$(mkdir CANARY)",
        "tags": ["; mkdir CANARY"],
        "args/run_name": "`mkdir CANARY`",
    },
    "a cache of pickles": {"args/onnx_cache_dir": "FOLDER"},
}
# Settings that reach out of the folder: their values, and what the sentence says.
REACHES: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "data of the system": (
        {"data/train_file": "/usr/**/*.json", "data/validation_file": "/usr/**/*.json"},
        r"names /usr/\*\*/\*.json, which would be read from outside of its folder; "
        r".* with `portico replay --allow-path /usr /\S+ --step 3`\.",
    ),
    "all below a link": (
        {"data/train_file": "FOLDER/**/*.json", "data/validation_file": "FOLDER/**/*.json"},
        r"names .*/\*\*/\*.json, which would be read from outside",
    ),
    "a process": (
        {"data/train_file": "/proc/self/environ", "data/validation_file": "/proc/self/environ"},
        r"names /proc/self/environ, which would be read from outside .*--allow-path /proc/self/environ /",
    ),
    "data above": (
        {"data/train_file": "FOLDER/../x.json", "data/validation_file": "FOLDER/../x.json"},
        r"names .*/\.\./x\.json, which would be read from outside",
    ),
    "data by a link": (
        {"data/train_file": "FOLDER/link.json", "data/validation_file": "FOLDER/link.json"},
        r"names .*/link\.json, which would be read from outside",
    ),
    "data by a link to a folder": (
        {"data/train_file": "FOLDER/linked/*.json", "data/validation_file": "FOLDER/linked/*.json"},
        r"names .*/linked/\*\.json, which would be read from outside",
    ),
    "processes of loaders": (
        {"args/dataloader_num_workers": 300},
        r"names `args.dataloader_num_workers=300`, which would be the number of processes to start; .*--trust-config",
    ),
    "processes of features": (
        {"preprocess": {"num_workers": 40}},
        r"names `preprocess.num_workers=40`, which would be the number of processes to start; .*--trust-config",
    ),
    "processes of a strategy": (
        {"strategy": {"devices": 40, "accelerator": "cpu", "strategy": "ddp_spawn"}},
        r"names `strategy.devices=40`, which would be the number of processes to start; .*--trust-config",
    ),
    "a list of devices": (
        {"strategy": {"devices": [0, 1], "accelerator": "cpu"}},
        r"names `strategy.devices=\[0, 1\]`, which would be the number",
    ),
    "machines": ({"strategy": {"num_nodes": 2}}, r"names `strategy.num_nodes=2`, which would be the number"),
    "a model elsewhere": (
        {"model": {"_target_": "portico.tasks.models.SmallBert", "name_or_path": "/usr/share"}},
        r"names `model.name_or_path=/usr/share`, which would be read from outside",
    ),
    "a file of DeepSpeed": (
        {"args/deepspeed": "/proc/self/environ"},
        r"names `args.deepspeed=/proc/self/environ`, which would be read from outside",
    ),
}
_OF_DATA = ("data of the system", "all below a link", "a process", "data above", "data by a link")


def reaching(folder: Path, name: str) -> None:
    """Let settings of a run reach out of its folder."""
    (folder / "link.json").symlink_to("/proc/self/environ")
    (folder / "linked").symlink_to("/usr/share")
    changes = json.loads(json.dumps(REACHES[name][0]).replace("FOLDER", str(folder)))
    rewritten(folder, "config.yaml", changes)


YAML_TEXTS: Mapping[str, str] = {
    "a tag": "args: !!python/object/apply:os.system ['touch CANARY']\npaths: {}\n_target_: x\n",
    "a tag of a name": "args: !!python/name:os.system\npaths: {}\n_target_: x\n",
    "aliases": "a: &a [x]\nb: &b [*a, *a]\nargs: {}\npaths: {}\n_target_: x\nc: [*b, *b]\n",
    "two documents": "args: {}\n---\nargs: {}\n",
    "no mapping": "[]",
    "bytes": "\x00\x01",
    "depth": "[" * 1000,  # the time grows with the square
    "lists": f"[{'[],' * 1_000_000}[]]",
    "a number of many digits": f"args: {'9' * 100_000}\npaths: {{}}\n_target_: x\n",
}
# Contents of JSON files that take memory, time or depth.
SIZES: Mapping[str, str] = {
    "JSON of great depth": "[" * 200_000,
    "objects of great depth": '{"a":' * 200_000,
    "a number of many digits": f'{{"number": {"9" * 100_000}}}',
    "a number beyond floats": '{"number": 1e400, "global_step": 1e400, "model_type": 1e400}',
}
READ_TOO: Mapping[str, Sequence[str]] = {
    "config.yaml": ["replay", "report"],
    "0/config.yaml": ["job"],
    "multirun.yaml": ["sweep"],
    "study.journal": ["search"],
    "eval_predictions.json": ["report"],
    "trainer_state.json": ["replay", "report"],
    "all_results.json": ["report"],
    "tokenizer.json": ["evaluate", "demo"],
    "tokenizer_config.json": ["evaluate", "demo"],
    "generation_config.json": ["evaluate", "demo"],
    "calibration.json": ["demo"],
    "model.safetensors.index.json": ["evaluate"],
    "pytorch_model.bin": ["evaluate"],
    "checkpoint-2/config.json": ["resume"],
    "checkpoint-2/optimizer.pt": ["resume"],
    "checkpoint-2/rng_state.pth": ["resume"],
    "checkpoint-2/model.safetensors": ["resume"],
    "checkpoint-2/optimizer_0/.metadata": ["resume"],
}
READ_BY: Mapping[str, Sequence[str]] = {
    "0/job.json": ["sweep", "job"],
    "checkpoint-2/trainer_state.json": ["resume", "replay"],
    "checkpoint-2/portico_manifest.json": ["resume", "replay"],
    "eval_predictions.json": ["report"],
    "report.json": ["report", "demo"],
    "config.json": ["evaluate", "demo"],
    "model.safetensors": ["evaluate", "demo"],
}


def _named(folder: Path, changes: Mapping[str, Any]) -> None:
    rewritten(folder, "config.yaml", json.loads(json.dumps(changes).replace("FOLDER", str(folder))))
    torch.save(Touch(canary_of(folder)), folder / "theirs.pt")
    for file in ("theirs.pkl", "data.pkl", "a.npy"):
        (folder / file).write_bytes(pickle.dumps(Touch(canary_of(folder))))
    (folder / "theirs.jsonnet").write_text(json.dumps({"trainer": {"optimizer": {"type": "os.system"}}}))


def _written(folder: Path, file: str, text: str) -> None:
    (folder / file).parent.mkdir(exist_ok=True, parents=True)
    (folder / file).write_text(text.replace("CANARY", str(canary_of(folder))))


def _runs() -> list[Animal]:
    found = []
    for name, changes in TARGETS.items():
        found.append(Animal("replay", name, ["replay"], with_script(partial(_named, changes=changes))))
        # A report reads the group `data` alone, so there the entry stands in it.
        entry = next(iter(changes.values()))
        inside = {"data": entry} if isinstance(entry, dict) else changes
        found.append(Animal("report", name, ["report"], with_script(partial(_named, changes=inside))))
    for name, text in YAML_TEXTS.items():
        written = partial(_written, file="config.yaml", text=text)
        found += [Animal(command, name, [command], written) for command in ("replay", "report")]
    for file in ("trainer_state.json", "eval_predictions.json", "report.json", "train_results.json"):
        change = partial(pickled, name=file, by_torch=False, listed=False)
        found += [Animal(command, f"{file}, pickle", [command], change) for command in ("replay", "report")]
    for name in REACHES:
        change = partial(reaching, name=name)
        found.append(Animal("replay", name, ["replay", "report"] if name in _OF_DATA else ["replay"], change))
    commands = ["replay", "report", "sweep", "job", "resume"]
    found.append(Animal("replay", "a folder of Hydra", commands, _with_hydra))
    found.append(Animal("replay", "files of other programs", [*commands, "evaluate"], _with_other_files))
    found.append(Animal("replay", "a checkpoint that is a link", ["replay"], _linked))
    found.append(Animal("replay", "shards in a checkpoint", ["replay"], _shards_to_replay))
    return found


def _with_hydra(folder: Path) -> None:
    """Add what Hydra writes for a run, and what it reads from a folder of configuration files."""
    call = {"_target_": "os.mkdir", "path": "CANARY"}
    hydra = {"searchpath": [f"file://{folder}"], "launcher": call, "sweeper": call, "callbacks": {"one": call}}
    for place in (".hydra", "0/.hydra"):
        for file in ("config.yaml", "hydra.yaml"):
            rewritten(folder, f"{place}/{file}", {"hydra": hydra, "callbacks": {"one": call}})
        _written(folder, f"{place}/overrides.yaml", text=f"- hydra.callbacks.one={json.dumps(call)}\n")
    for file in ("mrc.yaml", "text_classification.yaml"):
        rewritten(folder, f"experiment/{file}", {"hydra": hydra, "callbacks": {"one": call}})


def _with_other_files(folder: Path) -> None:
    """Add what datasets, TensorBoard and Python would find there."""
    for file in ("events.out.tfevents.1", "dataset_info.json", "state.json", "data-00000-of-00001.arrow"):
        pickled(folder, file, by_torch=False, listed=False)
        pickled(folder / "runs", file, by_torch=False, listed=False)
    script = f"open({str(canary_of(folder))!r}, 'w')\n"
    (folder / "dataset_info.json").write_text(json.dumps({"builder_name": "theirs", "features": {}}))
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "../x"}], "_format_type": "theirs"}))
    for file in ("theirs.py", "conftest.py", f"{folder.name}.py", "usercustomize.py"):
        (folder / file).write_text(script)


def _linked(folder: Path) -> None:
    """Replace a checkpoint by a link to a folder elsewhere, with pickles."""
    other = folder.with_name("elsewhere")
    shutil.move(folder / "checkpoint-2", other)
    (folder / "checkpoint-2").symlink_to(other)
    pickled(other, "optimizer.pt", by_torch=True, listed=True)


def _shards_to_replay(folder: Path) -> None:
    pickled(folder / "checkpoint-2", "optimizer_0/.metadata", by_torch=False, listed=True)


MODEL_CHANGES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "auto_map of a configuration": (
        "config.json",
        {"auto_map": {"AutoConfig": "modeling_theirs.X"}, "model_type": "x"},
    ),
    "auto_map of a model": (
        "config.json",
        {"auto_map": {"AutoModelForSequenceClassification": "modeling_theirs.X", "AutoModel": "modeling_theirs.X"}},
    ),
    "auto_map of a tokenizer": (
        "tokenizer_config.json",
        {"auto_map": {"AutoTokenizer": ["modeling_theirs.X", None]}, "tokenizer_class": "X"},
    ),
    "architectures": ("config.json", {"architectures": ["os.system"]}),
    "a tokenizer class": ("tokenizer_config.json", {"tokenizer_class": "os.system"}),
    "a kernel of the hub": ("config.json", {"attn_implementation": "theirs/kernel"}),
    "more layers than can be made": ("config.json", {"num_hidden_layers": 10**9}),
    "more labels than can be named": ("config.json", {"num_labels": 10**8, "id2label": None}),
    "weights elsewhere": ("config.json", {"transformers_weights": "../elsewhere.safetensors"}),
    "tokenizers elsewhere": ("tokenizer_config.json", {"fast_tokenizer_files": ["../../tokenizer.4.0.0.json"]}),
    "task heads": ("config.json", {"task_heads": {"one": "os.system"}, "task_head": "one"}),
}


MARKUP = "<script>theirs()</script>"


def _models() -> list[Animal]:
    commands = ["evaluate", "predict", "demo"]
    found = [
        Animal("model", name, commands, with_script(partial(rewritten, file=file, changes=changes)))
        for name, (file, changes) in MODEL_CHANGES.items()
    ]
    for file in ("pytorch_model.bin", "pytorch_model.pt", "tf_model.h5", "vocab.pkl"):
        found.append(Animal("model", f"{file} alone", commands, partial(only_pickled_weights, file=file)))
    for file in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "calibration.json", "vocab.txt"):
        change = partial(pickled, name=file, by_torch=False, listed=False)
        found.append(Animal("model", f"{file}, pickle", commands, change))
    example = {"context": MARKUP, "questions": [MARKUP, "Where?"], "declined": [MARKUP], "score": MARKUP}
    shown = partial(rewritten, file="report.json", changes={"example": example})
    found.append(Animal("pages", "markup in the example", ["demo"], shown))
    return found


CALLBACK_STATES: Mapping[str, Any] = {
    "a class": {"attributes": {"__class__": "os.system"}},
    "a dict": {"attributes": {"__dict__": {"on_step_end": "x"}}},
    "a value for a method": {"attributes": {"on_step_end": 1}},
    "unknown arguments": {"args": {"command": "touch CANARY"}},
    "no mapping": ["x"],
}
TRIAL = {"storage": "sweep.journal", "study": "x", "id": 0, "pruner": None}
STORAGES: Mapping[str, str] = {
    "a journal elsewhere": "CANARY",
    "a journal in the folder of the job": "0/../../canary",
    "a journal by a link": "link.journal",
    "a database elsewhere": "sqlite:///CANARY",
    "a database with options": "sqlite:///file:CANARY?mode=rwc&uri=true",
    "a database with another driver": "sqlite+pysqlite:///CANARY",
}
JOBS: Mapping[str, Mapping[str, Any]] = {
    "a pruner": {"trial": {**TRIAL, "pruner": {"_target_": "os.mkdir", "path": "CANARY"}}},
    "a pruner inside a pruner": {
        "trial": {
            **TRIAL,
            "pruner": {
                "_target_": "optuna.pruners.PatientPruner",
                "wrapped_pruner": {"_target_": "os.mkdir", "path": "CANARY"},
                "patience": 1,
            },
        }
    },
    "overrides": {"overrides": ["paths.output_dir=CANARY", "+callbacks.one._target_=os.mkdir"]},
    "a study above": {"trial": {**TRIAL, "study": "../../canary"}},
    "a folder of its own": {"folder": "CANARY"},
    "an interpolated pruner": {
        "trial": {**TRIAL, "pruner": {"_target_": "${.name}", "name": "os.mkdir", "path": "CANARY"}}
    },
}


def _sweeps() -> list[Animal]:
    job = {"number": 0, "overrides": [], "goals": {"eval_f1": "max"}}
    found = [
        Animal("sweep", name, ["sweep", "job"], partial(rewritten, file="0/job.json", changes={**job, **changes}))
        for name, changes in JOBS.items()
    ]
    for name, storage in STORAGES.items():
        trial = {**TRIAL, "storage": storage}
        change = partial(_storage, changes={**job, "trial": trial})
        found.append(Animal("sweep", name, ["sweep", "job"], change))
    for name in ("0/job.json", "0/config.yaml", "0", "multirun.yaml"):
        found.append(Animal("sweep", f"{name}, a link", ["sweep", "job"], partial(_linked_to_canary, name=name)))
    for file in ("0/job.json", "0/config.yaml", "multirun.yaml", "study.journal", ".hydra/config.pickle"):
        change = partial(pickled, name=file, by_torch=False, listed=False)
        found.append(Animal("sweep", f"{file}, pickle", ["sweep", "job"], change))
    found.append(Animal("study", "a state of CMA-ES that is a pickle", ["search"], _study))
    rerun = partial(pickled, name=".hydra/config.pickle", by_torch=False, listed=False)
    found.append(Animal("sweep", "a pickled configuration to run", ["rerun"], rerun))
    for name, text in YAML_TEXTS.items():
        is_slow = name not in ("a tag", "aliases", "depth")  # which `replay` and `report` read in the same way
        found.append(Animal("sweep", name, ["job"], partial(_written, file="0/config.yaml", text=text), is_slow))
    return found


def _study(folder: Path) -> None:
    """Write a study whose finished trial holds a state of CMA-ES that is a pickle."""
    import optuna
    from optuna.distributions import FloatDistribution

    from portico.cli.studies import make_storage

    study = optuna.create_study(
        storage=make_storage(str(folder / "study.journal")), study_name="sweep", direction="maximize"
    )
    learning_rate, decay = FloatDistribution(1e-5, 1e-1, log=True), FloatDistribution(0, 1)
    state = pickle.dumps(Touch(canary_of(folder))).hex()
    finished = optuna.trial.create_trial(
        params={"args.learning_rate": 1e-3, "args.weight_decay": 0.5},
        distributions={"args.learning_rate": learning_rate, "args.weight_decay": decay},
        value=1.0,
        system_attrs={"cma:optimizer:0": state[:20], "cma:optimizer:1": state[20:], "cma:generation": 0},
    )
    study.add_trial(finished)


def _linked_to_canary(folder: Path, name: str) -> None:
    """Put a link to the canary, which a command would create by writing through it, in place of a file or folder."""
    place = folder / name
    if place.is_dir():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    place.symlink_to(canary_of(folder))


def _storage(folder: Path, changes: Mapping[str, Any]) -> None:
    (folder / "link.journal").symlink_to(canary_of(folder))
    rewritten(folder, "0/job.json", changes)


def _sizes() -> list[Animal]:
    found = []
    for file, commands in READ_BY.items():
        for name, text in SIZES.items():
            written = partial(_written, file=file, text=text)
            found.append(Animal("sizes", f"{file}, {name}", commands, written))
    for file, commands in {**READ_BY, "config.yaml": ["replay", "report", "job"]}.items():
        found.append(Animal("sizes", f"{file}, a pipe", commands, partial(_pipe, file=file)))
    for file, commands in {**READ_BY, **READ_TOO}.items():
        found.append(Animal("sizes", f"{file}, 5 TB of nothing", commands, partial(_sparse, file=file)))
    for size in (2**63, 10**9, 50_000_000):  # of the header, which precedes it
        change = partial(_claiming, size=size)
        found.append(Animal("sizes", f"model.safetensors, a header of {size} bytes", ["evaluate", "demo"], change))
    return found


def _claiming(folder: Path, size: int) -> None:
    (folder / "model.safetensors").write_bytes(size.to_bytes(8, "little") + b"{}")


def _sparse(folder: Path, file: str) -> None:
    """Let a file be as large as no disk, which an archive may hold in a few bytes."""
    (folder / file).parent.mkdir(exist_ok=True, parents=True)
    with (folder / file).open("wb") as opened:
        opened.truncate(5 << 40)


def _pipe(folder: Path, file: str) -> None:
    """Put a named pipe, which an archive may hold and whose reader would wait for ever, in place of a file."""
    (folder / file).parent.mkdir(exist_ok=True, parents=True)
    (folder / file).unlink(missing_ok=True)
    os.mkfifo(folder / file)


def _callback_state(run: Path, state: Any) -> None:
    rewritten(run / "checkpoint-2", "trainer_state.json", {"stateful_callbacks/LossSpike": state})
    write_manifest(run / "checkpoint-2")


def zoo() -> list[Animal]:
    """Return all animals."""
    states = [
        Animal("callbacks", name, ["resume"], partial(_callback_state, state=state))
        for name, state in CALLBACK_STATES.items()
    ]
    return [*_checkpoints(), *_runs(), *_models(), *states, *_sweeps(), *_sizes(), *_bombs()]


def table_of_effects() -> str:
    """Return the table of SECURITY.md of what commands write and start."""
    lines = ["| Command | Files | Connections and processes |", "| --- | --- | --- |"]
    listed = (*EFFECTS.values(), *EFFECTS_OF_SCRIPTS.values())
    return "\n".join([*lines, *(f"| {one.typed} | {one.files} | {one.more} |" for one in listed)])


def table() -> str:
    """Return the table of SECURITY.md of what is loaded."""
    lines = ["| What | How | Can it run code? |", "| --- | --- | --- |"]
    return "\n".join([*lines, *(f"| {row.what} | {row.how} | {row.answer} |" for row in ROWS.values())])
