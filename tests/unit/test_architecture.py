"""The structure of the packages, and proof on made-up trees that each rule can fail."""

import json
from pathlib import Path

import pytest

import architecture_rules
import portico
from architecture_rules import bases_within, imports_of, violations

PACKAGE = Path(portico.__file__).parent
EMULATOR = PACKAGE.parent / "poptorch_emulator"


def tree(folder: Path, files: dict[str, str]) -> Path:
    for name, source in files.items():
        path = folder / "house" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return folder / "house"


def test_the_package_keeps_the_rules():
    assert violations(PACKAGE) == []


def unnamed_rooms(package: Path, guide: str) -> list[str]:
    """Return the folders and modules of a package that a guide does not name in backticks."""
    modules = [path.name for path in package.glob("*.py") if path.name != "__init__.py"]
    folders = [f"{path.parent.name}/" for path in package.glob("*/*.py")]
    return sorted(name for name in {*modules, *folders} if f"`{name}`" not in guide)


def test_the_contributors_guide_names_every_room():
    guide = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert unnamed_rooms(PACKAGE, guide) == [], 'enter them in "Where things are" of CONTRIBUTING.md'


def test_the_fast_set_names_files_that_exist():
    checkout = Path(__file__).parents[2]
    named = [line.removeprefix("--ignore=") for line in (checkout / "tests/fast.txt").read_text().splitlines()]
    assert [path for path in named if not (checkout / path).exists()] == []


def test_rooms_that_a_guide_does_not_name_are_found(tmp_path):
    package = tree(tmp_path, {"__init__.py": "", "plan.py": "", "loop/run.py": "", "optim.py": ""})
    assert unnamed_rooms(package, "See `loop/run.py` and `optim.py`.") == ["loop/", "plan.py"]


def test_the_emulator_imports_nothing_of_portico():
    assert imports_of(EMULATOR, "portico") == []


def test_the_plugins_leave_names_and_pickles_to_the_gate():
    assert imports_of(PACKAGE.parent / "hydra_plugins", *architecture_rules.DOORS) == []


def test_the_plugins_leave_files_to_the_writer():
    assert architecture_rules.writes_in(PACKAGE.parent / "hydra_plugins") == []


@pytest.mark.parametrize(
    ("name", "most"), [("Trainer", 1), ("MRCTrainer", 3), ("ORTTrainer", 3), ("IPUSeq2SeqTrainer", 4)]
)
def test_trainers_have_few_bases(name, most):
    bases = bases_within(getattr(portico, name), "portico")
    assert len(bases) <= most, bases


def test_bases_of_other_packages_do_not_count():
    class Mixin:
        __module__ = "house.mixin"

    class Strange:
        __module__ = "household"

    class Trainer(Mixin, Strange, dict):
        __module__ = "house"

    assert [name.rpartition(".")[2] for name in bases_within(Trainer, "house")] == ["Trainer", "Mixin"]


@pytest.mark.parametrize(
    ("name", "source", "why"),
    [
        ("trainer.py", "import hydra", "imports hydra: only cli"),
        ("mrc/run.py", "from omegaconf import OmegaConf", "imports omegaconf.OmegaConf: only cli"),
        ("trainer.py", "def f():\n    import hydra.utils", "imports hydra.utils: only cli"),
        ("trainer.py", "from house.mrc import run", "generic parts do not know"),
        ("trainer.py", "from . import mrc", "generic parts do not know"),
        ("loop/evaluation.py", "from ..ipu.strategy import IPUStrategy", "generic parts do not know"),
        ("loop/evaluation.py", "import house.ort", "generic parts do not know"),
        ("optim.py", "def f():\n    from house.gradient_descent import average", "generic parts do not know"),
        ("loop/datamodule.py", "from house.loop.module import TrainerModule", "meet in the trainer"),
        ("loop/module.py", "from house.loop import datamodule", "meet in the trainer"),
        ("ipu/strategy.py", "import poptorch", "inside functions"),
        ("ort/compiler/graph.py", "class A:\n    import onnxruntime.training", "inside functions"),
        ("ort/strategy.py", "try:\n    import torch_ort\nexcept ImportError:\n    pass", "inside functions"),
        ("ipu/data.py", "from lightning.pytorch.loops.progress import _BatchProgress", "private names of Lightning"),
        ("optim.py", "def f():\n    import lightning.fabric._graveyard", "private names of Lightning"),
        ("optim.py", "from transformers.trainer_utils import has_length", "below the top level of transformers"),
        ("mrc/heads.py", "import transformers.activations", "below the top level of transformers"),
        ("loop/run.py", "def f():\n    from transformers.utils import hub", "below the top level of transformers"),
        ("mrc/utils.py", "", "vague name 'utils'"),
        ("callback_manager.py", "", "vague name 'manager'"),
        ("common/table.py", "", "vague name 'common'"),
        ("loop/plan.py", "import torch", "plan is pure"),
        ("loop/plan.py", "def f():\n    from lightning.pytorch import Trainer", "plan is pure"),
        ("mrc/postprocess/spans.py", "import torch", "numpy only"),
        ("mrc/postprocess.py", "from transformers import AutoTokenizer", "numpy only"),
        ("loop/run.py", "from house.trainer import Trainer\nTrainer.train = print", "assigns onto the class Trainer"),
        ("loop/run.py", "class Loop:\n    pass\nsetattr(Loop, 'x', 1)", "assigns onto the class Loop"),
        ("loop/run.py", "a, b, c = f(), g(), h()", "assigns 3 values in one line"),
        ("loop/run.py", "def f(trainer):\n    trainer._fit()", "uses the trainer's _fit: give it a public name"),
        ("loop/run.py", "def f(self):\n    self.hf_trainer._fit()", "uses the trainer's _fit"),
        (
            "loop/run.py",
            "from typing import Protocol\nclass Hooks(Protocol):\n" + "".join(f"    m{n}: int\n" for n in range(16)),
            "is a protocol of 16 names",
        ),
        ("loop/run.py", "from importlib import import_module\nimport_module('torch')", "imports by name"),
        ("cli/app.py", "from hydra.utils import instantiate", "only the gate builds what data name"),
        ("cli/app.py", "def f():\n    import hydra.utils as u", "only the gate builds what data name"),
        ("loop/run.py", "import pickle", "only the gate builds what data name"),
        ("loop/run.py", "def f():\n    from joblib import load", "only the gate builds what data name"),
        (
            "loop/run.py",
            "from torch.distributed.checkpoint.filesystem import FileSystemReader",
            "only the gate builds",
        ),
        ("loop/run.py", "torch.load(file, weights_only=True)", "calls torch.load: use trust.files"),
        ("loop/run.py", "np.load(file)", "calls np.load: use trust.files"),
        ("loop/run.py", "Path('a').write_text('x')", "calls Path('a').write_text: use trust.disk"),
        ("loop/run.py", "path.write_bytes(b'x')", "calls path.write_bytes: use trust.disk"),
        (
            "loop/run.py",
            "def f():\n    with path.open('w', encoding='utf-8') as file:\n        pass",
            "path.open: use",
        ),
        ("loop/run.py", "open(path, mode='ab')", "calls open: use trust.disk"),
        ("loop/run.py", "path.open('r+b')", "calls path.open: use trust.disk"),
        ("loop/run.py", "os.open(path, os.O_WRONLY)", "calls os.open: use trust.disk"),
        ("loop/run.py", "np.save(path, array)", "calls np.save: use trust.disk"),
        ("loop/run.py", "np.memmap(path, 'f4', 'w+')", "calls np.memmap: use trust.disk"),
        ("loop/run.py", "shutil.copy(a, b)", "calls shutil.copy: use trust.disk"),
        ("loop/run.py", "torch.save(state, path)", "calls torch.save: use trust.disk"),
        ("loop/run.py", "save_file(tensors, path)", "calls save_file: use trust.disk"),
        ("loop/run.py", "tokenizer.save_pretrained(folder)", "calls tokenizer.save_pretrained: use trust.disk"),
        ("loop/run.py", "FileLock(path)", "calls FileLock: use trust.disk"),
        ("loop/run.py", "link.symlink_to(path)", "calls link.symlink_to: use trust.disk"),
        ("known.json", json.dumps({"trainer.py": 32 * "0"}), "known.json holds digests"),
        ("loop/run.py", "class RunningMethods:\n    pass", "class RunningMethods is a part of another class"),
        ("loop/run.py", "def f():\n" + 70 * "    pass\n", "f has 71 lines, more than 70"),
        ("loop/run.py", "class A:\n    async def f():\n" + 70 * "        pass\n", "f has 71 lines, more than 70"),
        ("loop/run.py", "def f():\n    for one in (1, 2):\n        pass", "run.py:2 has a loop `for one in`"),
        ("loop/run.py", "ones = [one for one in (1, 2)]", "run.py:1 has a loop `for one in`"),
    ],
)
def test_violation_is_found(tmp_path, name, source, why):
    (found,) = violations(tree(tmp_path, {name: source}))
    assert name in found
    assert why in found


@pytest.mark.parametrize(
    "source",
    [
        "with replaced(path) as staging:\n    torch.save(state, staging)",
        "with staged_folder(path) as staging:\n    tokenizer.save_pretrained(staging)",
        "with open_new(staging) as file:\n    file.write('x')",
        "path.open('rb')",
        "np.memmap(path, 'f4', 'r')",
        "write_text(path, 'x')",
    ],
)
def test_staged_files_and_readers_are_no_violation(tmp_path, source):
    assert violations(tree(tmp_path, {"loop/run.py": source})) == []


@pytest.mark.parametrize(
    ("pure", "through", "why"),
    [
        ({"loop/plan.py": "from house.steps import count"}, {"steps.py": 40 * "import torch\n"}, "plan is pure"),
        ({"loop/plan.py": "from house import steps"}, {"steps.py": 40 * "from torch import nn\n"}, "plan is pure"),
        (
            {"mrc/postprocess/spans.py": "from ..rank import top"},
            {"mrc/rank.py": 40 * "import pandas\n"},
            "numpy only",
        ),
    ],
)
def test_indirect_imports_of_a_pure_module_are_found(tmp_path, pure, through, why):
    found = violations(tree(tmp_path, {**pure, **through}))
    assert len(found) == 40
    assert all("reaches" in line and why in line for line in found)


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("cli/app.py", "import hydra\nfrom omegaconf import DictConfig"),
        ("cli.py", "import hydra"),
        ("__init__.py", "from house.mrc import MRCTrainer"),
        ("mrc/trainer.py", "from house.trainer import Trainer\nimport torch"),
        ("ipu/strategy.py", "def start():\n    import poptorch"),
        ("hydrate.py", "import hydrant"),
        ("mrc/postprocess/spans.py", "import math\nimport numpy as np\nfrom house.errors import InputError"),
        (
            "mrc/postprocess.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from datasets import Dataset",
        ),
        ("loop/plan.py", "import math\nfrom dataclasses import dataclass"),
        ("loop/modules.py", "from house.loop.datamodule import TrainerDataModule"),
        ("compat/lightning.py", "from lightning.pytorch.loops.progress import _BatchProgress"),
        ("optim.py", "from lightning.pytorch import __version__"),
        ("compat/transformers.py", "from transformers.trainer_utils import has_length"),
        ("optim.py", "from transformers import logging\nimport transformers"),
        ("methods.py", "class MethodsTable:\n    pass"),
        ("loop/run.py", "def f():\n" + 69 * "    pass\n"),
    ],
)
def test_allowed_module_passes(tmp_path, name, source):
    assert violations(tree(tmp_path, {name: source})) == []


def test_untyped_parameters_are_found(tmp_path):
    functions = "def f(x: Any, y: int): ...\n" + 24 * "def f(x: str, y: int): ...\n"
    assert violations(tree(tmp_path, {"loop/run.py": functions})) == []
    (tmp_path / "house/loop/run.py").write_text(25 * "def f(x: Any, y: int): ...\n")
    room, package = violations(tmp_path / "house")
    assert "25 of 50 parameters in loop are Any, more than 12%" in room
    assert "25 of 50 parameters in the package are Any, more than 8%" in package


@pytest.mark.parametrize(
    "name", ["padded", "_shown", "padding_token", "kept", "of_spans", "_in_words", "without_autocast"]
)
def test_functions_without_a_verb_are_found(tmp_path, monkeypatch, name):
    monkeypatch.setattr(architecture_rules, "MOST_NAMES_WITHOUT_A_VERB", 1)
    package = tree(tmp_path, {"loop/run.py": f"def {name}(): ...\ndef pad(): ..."})
    assert violations(package) == []
    (package / "loop/run.py").write_text(f"class A:\n    def {name}(self): ...\n    async def {name}(self): ...")
    (found,) = violations(package)
    assert found.startswith("2 functions begin with a participle or a preposition, more than 1: begin with a verb.")
    assert found.endswith(f"house/loop/run.py:2 {name}, house/loop/run.py:3 {name}")


@pytest.mark.parametrize(
    "source",
    [
        "def pad_length(): ...",
        "def need_padding(): ...",
        "def is_padded(): ...",
        "def tokens_of(): ...",
        "@contextmanager\ndef padded(): ...",
        "def padded() -> AbstractContextManager[None]: ...",
        "class A:\n    @property\n    def padded(self): ...",
        "class A:\n    @override\n    def padded(self): ...",
        "class A:\n    def from_pretrained(self): ...",
        "class A:\n    def __init__(self): ...",
    ],
)
def test_verbs_and_names_that_may_lack_one_pass(tmp_path, monkeypatch, source):
    monkeypatch.setattr(architecture_rules, "MOST_NAMES_WITHOUT_A_VERB", 0)
    assert violations(tree(tmp_path, {"loop/run.py": source})) == []


def test_functions_of_one_name_are_found(tmp_path):
    sources = {"loop/run.py": "def open_run(): ...", "data/run.py": "def open_run(): ..."}
    (found,) = violations(tree(tmp_path, sources))
    assert found.startswith("house/data/run.py, house/loop/run.py each define a function open_run")


def test_large_circle_of_imports_for_types_is_found(tmp_path):
    imports = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from house.loop.m{} import f\n"
    files = {f"loop/m{n}.py": imports.format((n + 1) % 6) + 40 * "\n" for n in range(6)}
    (found,) = violations(tree(tmp_path, files))
    assert "in a circle of more than 5 modules" in found


def test_a_room_that_uses_the_command_line_is_found(tmp_path):
    files = {"mrc/run.py": "from house.cli.jobs import job\n" + 40 * "\n", "cli/jobs.py": 40 * "\n"}
    (found,) = violations(tree(tmp_path, files))
    assert found.endswith("imports house.cli.jobs.job: the command line is the door: only commands use it")


def test_a_task_that_borrows_from_reading_comprehension_is_found(tmp_path):
    files = {"tasks/task.py": "from house.mrc.rouge import split\n" + 40 * "\n", "mrc/rouge.py": 40 * "\n"}
    (found,) = violations(tree(tmp_path, files))
    assert found.endswith("what tasks and reading comprehension share is in a room below both")


def test_rooms_that_import_each_other_for_types_are_found(tmp_path):
    for_types = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from house.loop.run import Run\n"
    files = {
        "loop/run.py": "from house.data.feeds import feed\n" + 40 * "\n",
        "data/feeds.py": for_types + 40 * "\n",
    }
    assert violations(tree(tmp_path, files)) == ["the rooms data, loop import each other, for types at least"]


def test_eleventh_floor_is_found(tmp_path):
    files = {f"m{n}/a.py": f"from house.m{n + 1}.a import f\n" + 40 * "\n" for n in range(10)}
    assert violations(tree(tmp_path, {**files, "m10/a.py": 40 * "\n"})) == ["m0 is on floor 11, above 10"]


def test_thirteenth_module_at_the_root_is_found(tmp_path):
    files = {f"m{n}.py": 40 * "\n" for n in range(13)}
    assert violations(tree(tmp_path, files)) == ["13 modules are at the root, more than 12"]


def test_circle_of_runtime_imports_is_found(tmp_path):
    sources = {
        "loop/state.py": "from house.loop.optim import step\n" + 40 * "\n",
        "loop/optim.py": "def step():\n    from house.loop.state import State\n" + 40 * "\n",
    }
    (found,) = violations(tree(tmp_path, sources))
    assert "import each other in a circle" in found
    assert {"loop.state", "loop.optim"} <= set(found.split())


def test_type_import_may_close_a_circle(tmp_path):
    sources = {
        "loop/run.py": "from house.loop.optim import step\n" + 40 * "\n",
        "loop/optim.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from house.loop.run import Run\n"
        + 40 * "\n",
    }
    assert violations(tree(tmp_path, sources)) == []


@pytest.mark.parametrize(
    "use",
    [
        "from house.memory import free",
        "from house import memory",
        "import house.memory",
        "def f():\n    from .memory import free",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from house.memory import Free",
    ],
)
def test_small_module_with_one_importer_is_found(tmp_path, use):
    (found,) = violations(tree(tmp_path, {"memory.py": 39 * "\n", "trainer.py": use}))
    assert found == "house/memory.py has 39 lines and a single importer, trainer"


@pytest.mark.parametrize(
    "sources",
    [
        {"memory.py": 40 * "\n", "trainer.py": "import house.memory"},
        {"memory.py": "", "trainer.py": "import house.memory", "optim.py": "import house.memory"},
        {"memory.py": "", "trainer.py": ""},
        {"memory/__init__.py": "", "trainer.py": "import house.memory"},
    ],
    ids=["large", "two importers", "no importer", "package"],
)
def test_large_or_shared_module_passes(tmp_path, sources):
    assert violations(tree(tmp_path, sources)) == []


def test_small_module_with_a_reason_passes(tmp_path, monkeypatch):
    monkeypatch.setattr(architecture_rules, "SMALL_MODULES", {"memory": "it is a backend"})
    assert violations(tree(tmp_path, {"memory.py": "", "trainer.py": "import house.memory"})) == []


def test_class_name_used_twice_is_found(tmp_path):
    sources = {"data/batch.py": "class Batch:\n    pass", "loop/batch.py": "def f():\n    class Batch:\n        pass"}
    (found,) = violations(tree(tmp_path, sources))
    assert found == "house/data/batch.py, house/loop/batch.py each define a class Batch"


def test_each_exception_is_needed():
    names = [path.stem for path in PACKAGE.rglob("*.py")]
    assert all(name.rpartition(".")[2] in names for name in architecture_rules.SMALL_MODULES)


def test_imports_of_a_package_are_found(tmp_path):
    sources = {
        "a.py": "import portico.mrc",
        "b/c.py": "def f():\n    from portico import Trainer",
        "d.py": "import torch",
    }
    assert imports_of(tree(tmp_path, sources), "portico") == [
        "house/a.py:1 imports portico.mrc",
        "house/b/c.py:2 imports portico.Trainer",
    ]
