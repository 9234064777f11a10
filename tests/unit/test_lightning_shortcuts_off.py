"""The shortcuts of ``portico.compat.lightning`` save time only: without them the numbers are the same."""

import json
import tempfile

from fresh_process import python
from models import Points, toy_trainer

WITH_AND_WITHOUT_EVALUATION = (
    {"eval_strategy": "steps", "eval_steps": 3},
    {"gradient_accumulation_steps": 2, "max_grad_norm": 0.5},
)


def runs():
    """Return what two short runs log, predict and learn, and whether Lightning's own methods ran them."""
    outcomes = []
    for changes in WITH_AND_WITHOUT_EVALUATION:
        with tempfile.TemporaryDirectory() as folder:
            trainer = toy_trainer(folder, logging_steps=1, **changes)
            trainer.train()
            predictions = trainer.predict(Points(4)).predictions.tolist()
        history = [
            {name: value for name, value in entry.items() if "runtime" not in name and "per_second" not in name}
            for entry in trainer.state.log_history
        ]
        weights = [parameter.tolist() for parameter in trainer.model.parameters()]
        outcomes.append({"history": history, "predictions": predictions, "weights": weights})
    shortcuts = {
        "training loop": _comes_from_portico(trainer.lightning_trainer.fit_loop.epoch_loop, "advance"),
        "evaluation loop": _comes_from_portico(trainer.lightning_trainer.test_loop, "_evaluation_step"),
    }
    return outcomes, shortcuts


def _comes_from_portico(module, name):
    owner = next(kind for kind in type(module).__mro__ if name in vars(kind))
    return owner.__module__.startswith("portico.")


def test_the_numbers_are_the_same_without_the_shortcuts(tmp_path):
    code = f"import json; from {__name__} import runs; print(json.dumps(runs()))"
    child = python("-c", code, folder=tmp_path, PORTICO_LIGHTNING_SHORTCUTS="0")
    assert child.returncode == 0, child.stderr
    outcomes_without, shortcuts_without = json.loads(child.stdout.splitlines()[-1])
    outcomes, shortcuts = json.loads(json.dumps(runs()))
    assert outcomes_without == outcomes
    assert all(shortcuts.values())
    assert not any(shortcuts_without.values())
