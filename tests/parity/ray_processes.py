"""The scenario "basic" in two workers of Ray Train on this machine: ray_processes.py FOLDER.

Each way to write it has a folder as :mod:`parity.process_scenarios` writes them; FOLDER/reports.json is what the
callbacks of Ray reported to the driver.
"""

import json
import sys
from pathlib import Path
from typing import Any

import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


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


def main(folder: Path) -> None:
    ray.init("local", num_cpus=2, include_dashboard=False)
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
    ray.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
