import subprocess
import sys

import pytest

LOOK_FOR_LIGHTNING = "import importlib.util; importlib.util.find_spec('lightning.pytorch')"


@pytest.mark.parametrize(
    "imports",
    [
        "import portico, lightning",
        "import lightning, portico",
        f"import portico; {LOOK_FOR_LIGHTNING}; import lightning",
        "import portico.ort.strategy",
        "from portico import ORTTrainer",
    ],
)
def test_lightning_knows_the_names_in_whatever_order_the_imports_come(imports):
    check = "from lightning.pytorch.strategies import StrategyRegistry; assert 'ort' in StrategyRegistry"
    subprocess.run([sys.executable, "-W", "ignore", "-c", f"{imports}; {check}"], check=True)
