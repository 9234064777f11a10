"""Ray in processes of its own on this machine: ray_processes.py train|search FOLDER.

"train" runs the scenario "basic" in two workers of Ray Train. Each way to write it has a folder as
:mod:`parity.process_scenarios` writes them; FOLDER/reports.json is what the callbacks of Ray reported to the driver.
"search" searches a learning rate with both libraries, into FOLDER/best.json.
"""

import json
import sys
from pathlib import Path
from typing import Any

import ray
import transformers
from ray import tune
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

import portico
from models import ToyDataset, tiny_bert
from parity.peers import QUIET


def train(config: dict[str, Any]) -> None:
    from parity import process_scenarios as scenarios

    folder, options = Path(config["folder"], config["how"], "basic"), dict(scenarios.SCENARIOS["basic"])
    parts = options["trainer_options"] = dict(options["trainer_options"])
    if config["how"] == "given":
        from ray.train.lightning import RayDDPStrategy, RayLightningEnvironment

        options["strategy"] = RayDDPStrategy(find_unused_parameters=True)
        parts["plugins"] = [RayLightningEnvironment()]
    if config["reports"] == "lightning":
        from ray.train.lightning import RayTrainReportCallback

        parts["lightning_callbacks"] = [RayTrainReportCallback()]
    if config["reports"] == "transformers":
        from ray.train.huggingface.transformers import RayTrainReportCallback

        options |= {"callbacks": [RayTrainReportCallback], "save_strategy": "epoch"}
    scenarios._record(folder, "portico", options)


def train_everywhere(folder: Path) -> None:
    seen = {}
    for how, reports in (("found", None), ("given", "lightning"), ("reported", "transformers")):
        (folder / how / "basic").mkdir(parents=True)
        result = TorchTrainer(
            train,
            train_loop_config={"folder": str(folder), "how": how, "reports": reports},
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(storage_path=str(folder / "ray")),
        ).fit()
        if reports:
            with result.checkpoint.as_directory() as kept:
                files = sorted(str(file.relative_to(kept)) for file in Path(kept).rglob("*") if file.is_file())
            seen[reports] = {"metrics": result.metrics, "files": files}
    (folder / "reports.json").write_text(json.dumps(seen), encoding="utf-8")


def rates(trial: Any) -> dict[str, Any]:
    return {"learning_rate": tune.grid_search([1e-3, 1e-1]), "seed": tune.choice([5])}


def search(folder: Path) -> None:
    best = {}
    for library in (transformers, portico):
        args = {"max_steps": 4, "eval_strategy": "steps", "eval_steps": 2, **QUIET}
        trainer = library.Trainer(
            args=library.TrainingArguments(str(folder / library.__name__), **args),
            model_init=tiny_bert,
            train_dataset=ToyDataset(),
            eval_dataset=ToyDataset(11, seed=1),
        )
        options = {"storage_path": str(folder / "ray"), "resources_per_trial": {"cpu": 1}, "verbose": 0}
        found = trainer.hyperparameter_search(rates, n_trials=1, backend="ray", **options)
        trials = found.run_summary.trials
        best[library.__name__] = [
            found.objective,
            found.hyperparameters,
            [one.last_result["objective"] for one in trials],
        ]
    (folder / "best.json").write_text(json.dumps(best), encoding="utf-8")


if __name__ == "__main__":
    ray.init("local", num_cpus=2, include_dashboard=False)
    {"train": train_everywhere, "search": search}[sys.argv[1]](Path(sys.argv[2]))
    ray.shutdown()
