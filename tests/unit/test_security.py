"""SECURITY.md: files are read without executing what they hold, except where it says so."""

import ast
import stat
from contextlib import suppress
from pathlib import Path
from pickle import UnpicklingError
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
import yaml

import hostile_folders
import portico
from damage import Touch
from portico import TrainerModule
from portico.__main__ import COMMANDS
from portico.distributed import processes
from portico.errors import InputError
from portico.trust.files import plain_yaml, save_tensors

PACKAGE = Path(portico.__file__).parent
# The gate unpickles what portico itself, or the user's own script, has just written; SECURITY.md says so. That nothing
# else imports pickle or joblib is a rule of the architecture.
UNPICKLED = {"trust/files.py": 2}


def calls(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), {one.arg: ast.unparse(one.value) for one in node.keywords}, node


def unsafe(source):
    """Return the calls in a module that could execute what a file holds."""
    found = []
    for name, keywords, node in calls(ast.parse(source)):
        function = name.rpartition(".")[2]
        if name in ("eval", "os.system", "marshal.loads") or "pickle.load" in name:
            found.append(name)
        if function == "load" and ("torch" in name) and keywords.get("weights_only") != "True":
            found.append(name)
        if name.startswith("yaml.") and function in ("load", "full_load", "unsafe_load"):
            loader = ast.unparse(node.args[1]) if len(node.args) > 1 else keywords.get("Loader", "")
            found += [name] * (loader != "_PlainLoader")
        if keywords.get("trust_remote_code", "False") != "False" or keywords.get("allow_pickle", "False") != "False":
            found.append(name)
        if keywords.get("shell", "False") != "False":
            found.append(name)
    return found


def test_nothing_else_can_execute_a_file():
    paths = sorted([*PACKAGE.rglob("*.py"), *(PACKAGE.parent / "hydra_plugins").glob("*.py")])
    found = {path: unsafe(path.read_text(encoding="utf-8")) for path in paths}
    names = {path.relative_to(PACKAGE).as_posix(): len(calls) for path, calls in found.items() if calls}
    assert names == UNPICKLED


def test_the_tables_are_those_of_the_zoo():
    text = (Path(__file__).parents[2] / "SECURITY.md").read_text(encoding="utf-8")
    assert hostile_folders.table() in text, "run python docs/renew.py"
    assert hostile_folders.table_of_effects() in text, "run python docs/renew.py"


def test_the_table_of_effects_has_every_command():
    listed = hostile_folders.EFFECTS.keys() | hostile_folders.EFFECTS_OF_SCRIPTS.keys()
    assert COMMANDS.keys() - listed == {"train"}  # which is there as "evaluate" and "search"


def test_unsafe_calls_are_found():
    lines = [
        "torch.load(file)",
        "torch.load(file, weights_only=False)",
        "pickle.loads(text)",
        "yaml.load(text, yaml.Loader)",
        "AutoModel.from_pretrained(name, trust_remote_code=True)",
        "np.load(file, allow_pickle=True)",
        "subprocess.run(line, shell=True)",
    ]
    assert [len(unsafe(line)) for line in lines] == [1] * len(lines)
    assert unsafe("torch.load(file, weights_only=True); json.loads(text); yaml.safe_load(text)") == []


def test_yaml_of_a_folder_is_bounded():
    """Its parser takes seconds for what is longer than any run writes."""
    longest = f"a: {'b' * ((1 << 18) - 3)}"
    assert plain_yaml(longest) == {"a": longest[3:]}
    with pytest.raises(yaml.YAMLError, match=r"it has 262,145 characters, more than the 262,144 of any run"):
        plain_yaml(f"{longest}b")


def test_checkpoints_of_lightning_are_unpickled_from_a_url_only(tmp_path, monkeypatch):
    """Lightning's default; no command reads such files."""
    torch.save({"state": Touch(tmp_path / "canary")}, tmp_path / "theirs.ckpt")
    with pytest.raises(UnpicklingError, match="weights_only"):
        TrainerModule.load_from_checkpoint(tmp_path / "theirs.ckpt")
    assert not (tmp_path / "canary").exists()
    asked = []
    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", lambda *_, **options: asked.append(options) or {})
    with suppress(KeyError, TypeError, InputError):  # there is no model in it
        TrainerModule.load_from_checkpoint("https://theirs.example/theirs.ckpt")
    assert [options["weights_only"] for options in asked] == [False]


def test_results_of_workers_are_in_a_folder_of_this_user(monkeypatch):
    """They are unpickled."""
    modes = []

    class Launcher:
        procs: ClassVar = []

        def launch(self, function, sent, folder):
            modes.append(stat.S_IMODE(Path(folder).stat().st_mode))
            save_tensors(7, Path(folder) / "result")

    assert processes.call_in_workers(SimpleNamespace(launcher=Launcher(), strategy_name="x"), len) == 7
    assert modes == [0o700]
