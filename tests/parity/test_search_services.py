"""The same searches through fakes of Ray Tune and Weights & Biases."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import transformers

import portico
from fresh_process import environment
from models import ToyDataset, tiny_bert
from parity.peers import assert_same_values, untimed
from parity.search_services import SilentWandbCallback, Tune, Wandb
from portico.checkpoint.manifest import OWN_FILES


@pytest.fixture(autouse=True)
def packages_come_back(monkeypatch):
    for name in ("ray", "ray.tune", "ray.tune.schedulers", "wandb", "wandb.env"):
        monkeypatch.setitem(sys.modules, name, sys.modules.get(name))
    return monkeypatch


def space(trial):
    return {
        "learning_rate": lambda generator: generator.uniform(1e-3, 1e-1),
        "per_device_train_batch_size": lambda generator: generator.choice([2, 4]),
    }


def trainer_of(library, output_dir, **arguments):
    options = {"max_steps": 4, "save_strategy": "no", "report_to": "none", "disable_tqdm": True, "use_cpu": True}
    trainer = library.Trainer(
        args=library.TrainingArguments(output_dir=str(output_dir), **{**options, **arguments}),
        model_init=tiny_bert,
        train_dataset=ToyDataset(),
        eval_dataset=ToyDataset(11, seed=1),
        callbacks=[SilentWandbCallback],
    )
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer


def ray_search(library, folder, *, resumed=(), direction="minimize", **arguments):
    tune = Tune(folder / f"kept-{library.__name__}", resumed)
    tune.install()
    trainer = trainer_of(library, folder / library.__name__, **arguments)
    best = trainer.hyperparameter_search(space, n_trials=3, backend="ray", direction=direction)
    return tune, {
        "best": best[:3],
        "reports": [(name, untimed(metrics), files) for name, metrics, files in tune.reports],
        "resources": tune.options["resources_per_trial"],
        "files": sorted(
            str(path.relative_to(folder / library.__name__))
            for path in folder.rglob(f"{library.__name__}/**/*")
            if path.name not in OWN_FILES
        ),
        "left": (trainer.model is None, trainer.hp_search_backend),
        "tracked": trainer._memory_tracker.skip_memory_metrics,
    }


EVALUATED = {"eval_strategy": "steps", "eval_steps": 2}


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        ({}, {}),
        ({"direction": "maximize"}, EVALUATED),
        ({"resumed": (1,)}, {**EVALUATED, "save_strategy": "steps", "save_steps": 2, "skip_memory_metrics": False}),
    ],
    ids=["evaluated after training", "evaluated", "saved and resumed"],
)
def test_same_search_with_ray(tmp_path, options, arguments):
    theirs = ray_search(transformers, tmp_path, **options, **arguments)[1]
    ours = ray_search(portico, tmp_path, **options, **arguments)[1]
    assert_same_values(ours, theirs)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")
def test_same_search_with_processes_of_ray(tmp_path):
    script = Path(__file__).with_name("ray_processes.py")
    command = [sys.executable, script, "search", tmp_path]
    ended = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=600, check=False)
    assert ended.returncode == 0, ended.stderr[-4000:]
    best = json.loads((tmp_path / "best.json").read_text())
    assert best["portico"] == best["transformers"]
    assert len(set(best["portico"][2])) == 2


def wandb_search(library, folder, **options):
    wandb = Wandb()
    wandb.install()
    trainer = trainer_of(library, folder / library.__name__, **EVALUATED)

    def sweep(trial):
        assert trial is None
        return {
            "metric": {},
            "parameters": {"learning_rate": {"values": [1e-3, 1e-2, 1e-1]}, "seed": {"values": [1, 2]}},
        }

    best = trainer.hyperparameter_search(sweep, n_trials=3, backend="wandb", **options)
    return {"best": best, "calls": wandb.calls, "state": trainer.state.trial_params, "to": trainer.args.report_to}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"direction": "maximize", "metric": "eval/accuracy", "project": "p", "entity": "e", "name": "n"},
    ],
    ids=["plain", "named"],
)
def test_same_search_with_wandb(tmp_path, options):
    theirs = wandb_search(transformers, tmp_path, **options)
    assert_same_values(wandb_search(portico, tmp_path, **options), theirs)
