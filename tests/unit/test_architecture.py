"""The dependency direction of the package, and proof on made-up trees that the check can fail."""

from pathlib import Path

import pytest

import portico
from architecture_rules import violations


def tree(folder: Path, files: dict[str, str]) -> Path:
    for name, source in files.items():
        path = folder / "house" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return folder / "house"


def test_the_package_keeps_the_rules():
    assert violations(Path(portico.__file__).parent) == []


@pytest.mark.parametrize(
    ("name", "source", "why"),
    [
        ("trainer.py", "import hydra", "imports hydra: only cli"),
        ("mrc/run.py", "from omegaconf import OmegaConf", "imports omegaconf.OmegaConf: only cli"),
        ("trainer.py", "def f():\n    import hydra.utils", "imports hydra.utils: only cli"),
        ("trainer.py", "from house.mrc import run", "generic parts do not know"),
        ("trainer.py", "from . import mrc", "generic parts do not know"),
        ("evaluation/loop.py", "from ..ipu.strategy import IPUStrategy", "generic parts do not know"),
        ("evaluation/loop.py", "import house.ort", "generic parts do not know"),
        ("optim.py", "def f():\n    from house.gradient_descent import average", "generic parts do not know"),
        ("datamodule.py", "from house.module import TrainerModule", "meet in the facade"),
        ("module.py", "from house import datamodule", "meet in the facade"),
        ("ipu/strategy.py", "import poptorch", "inside functions"),
        ("ort/compiler/graph.py", "class A:\n    import onnxruntime.training", "inside functions"),
        ("ort/strategy.py", "try:\n    import torch_ort\nexcept ImportError:\n    pass", "inside functions"),
        ("mrc/utils.py", "", "vague name 'utils'"),
        ("callback_manager.py", "", "vague name 'manager'"),
        ("common/table.py", "", "vague name 'common'"),
        ("plan.py", "import torch", "plan is pure"),
        ("plan.py", "def f():\n    from lightning.pytorch import Trainer", "plan is pure"),
        ("mrc/postprocess/spans.py", "import torch", "numpy only"),
        ("mrc/postprocess.py", "from transformers import AutoTokenizer", "numpy only"),
    ],
)
def test_a_violation_is_found(tmp_path, name, source, why):
    (found,) = violations(tree(tmp_path, {name: source}))
    assert name in found
    assert why in found


@pytest.mark.parametrize(
    ("pure", "through", "why"),
    [
        ({"plan.py": "from house.steps import count"}, {"steps.py": "import torch"}, "plan is pure"),
        ({"plan.py": "from house import steps"}, {"steps.py": "from torch import nn"}, "plan is pure"),
        ({"mrc/postprocess/spans.py": "from ..rank import top"}, {"mrc/rank.py": "import pandas"}, "numpy only"),
    ],
)
def test_what_a_pure_module_reaches_through_others_counts(tmp_path, pure, through, why):
    (found,) = violations(tree(tmp_path, {**pure, **through}))
    assert "reaches" in found
    assert why in found


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
        ("modules.py", "from house.datamodule import TrainerDataModule"),
    ],
)
def test_what_is_allowed_passes(tmp_path, name, source):
    assert violations(tree(tmp_path, {name: source})) == []


def test_a_circle_of_run_time_imports_is_found(tmp_path):
    sources = {
        "state.py": "from house.optim import step",
        "optim.py": "def step():\n    from house.state import State",
    }
    (found,) = violations(tree(tmp_path, sources))
    assert "import each other in a circle" in found
    assert {"state", "optim"} <= set(found.split())


def test_an_import_for_types_may_look_back_up(tmp_path):
    sources = {
        "trainer.py": "from house.optim import step",
        "optim.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from house.trainer import Trainer",
    }
    assert violations(tree(tmp_path, sources)) == []
