"""Imports that wait."""

from fresh_process import assert_runs_anew

LOOK_FOR_LIGHTNING = "import importlib.util; importlib.util.find_spec('lightning.pytorch')"
ORDERS = [
    "import portico, lightning.pytorch",
    "import lightning.pytorch, portico",
    f"import portico; {LOOK_FOR_LIGHTNING}; import lightning.pytorch",
    "import portico.ort.strategy",
    "from portico import ORTTrainer",
]
CHECK = """
import lightning.pytorch
from lightning.pytorch.strategies import StrategyRegistry

assert "ort" in StrategyRegistry
trainer = lightning.pytorch.Trainer(accelerator="ipu", strategy="ipu", logger=False, barebones=True)
assert type(trainer.strategy).__name__ == "IPUStrategy"
"""

ALLENNLP = """
from portico.gradient_descent import Trainer

assert Trainer.list_available() == ["gradient_descent", "no_op"]
"""


def test_names_are_registered_in_any_import_order():
    lightning = (f"{imports}{CHECK}" for imports in ORDERS)
    assert_runs_anew(*lightning, ALLENNLP, after=["transformers", "torchmetrics", "torch._dynamo"])
