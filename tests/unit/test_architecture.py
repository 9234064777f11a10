"""The structure of the packages, and proof on made-up trees that each rule can fail."""

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


def test_rooms_that_a_guide_does_not_name_are_found(tmp_path):
    package = tree(tmp_path, {"__init__.py": "", "plan.py": "", "loop/run.py": "", "optim.py": ""})
    assert unnamed_rooms(package, "See `loop/run.py` and `optim.py`.") == ["loop/", "plan.py"]


def test_the_emulator_imports_nothing_of_portico():
    assert imports_of(EMULATOR, "portico") == []


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
        ("plan.py", "import torch", "plan is pure"),
        ("plan.py", "def f():\n    from lightning.pytorch import Trainer", "plan is pure"),
        ("mrc/postprocess/spans.py", "import torch", "numpy only"),
        ("mrc/postprocess.py", "from transformers import AutoTokenizer", "numpy only"),
        ("loop/run.py", "class RunningMethods:\n    pass", "class RunningMethods is a part of another class"),
        ("loop/run.py", "def f():\n" + 70 * "    pass\n", "f has 71 lines, more than 70"),
        ("loop/run.py", "class A:\n    async def f():\n" + 70 * "        pass\n", "f has 71 lines, more than 70"),
    ],
)
def test_violation_is_found(tmp_path, name, source, why):
    (found,) = violations(tree(tmp_path, {name: source}))
    assert name in found
    assert why in found


@pytest.mark.parametrize(
    ("pure", "through", "why"),
    [
        ({"plan.py": "from house.steps import count"}, {"steps.py": 40 * "import torch\n"}, "plan is pure"),
        ({"plan.py": "from house import steps"}, {"steps.py": 40 * "from torch import nn\n"}, "plan is pure"),
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
        ("plan.py", "import math\nfrom dataclasses import dataclass"),
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


def test_circle_of_runtime_imports_is_found(tmp_path):
    sources = {
        "state.py": "from house.optim import step\n" + 40 * "\n",
        "optim.py": "def step():\n    from house.state import State\n" + 40 * "\n",
    }
    (found,) = violations(tree(tmp_path, sources))
    assert "import each other in a circle" in found
    assert {"state", "optim"} <= set(found.split())


def test_type_import_may_close_a_circle(tmp_path):
    sources = {
        "trainer.py": "from house.optim import step\n" + 40 * "\n",
        "optim.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from house.trainer import Trainer\n"
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
