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


def test_lightning_knows_the_names_in_whatever_order_the_imports_come():
    assert_runs_anew(*(f"{imports}{CHECK}" for imports in ORDERS), after=["transformers", "torchmetrics"])
