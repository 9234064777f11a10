"""Fakes of Ray Tune and Weights & Biases that run trials in this process and record the calls."""

import functools
import random
import shutil
import sys
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from transformers.integrations import WandbCallback


def module(name: str, **content: Any) -> ModuleType:
    made = ModuleType(name)
    made.__spec__ = ModuleSpec(name, None, is_package=True)
    vars(made).update(content)
    sys.modules[name] = made
    return made


class Folder:
    """A checkpoint as in Ray: a copy of a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def as_directory(self):
        yield str(self.path)


class Tune:
    """The part of ``ray.tune`` that the trainers use.

    Args:
        folder: Where checkpoints are kept.
        resumed: Trials that are run a second time from their last checkpoint.
    """

    def __init__(self, folder: Path, resumed: tuple[int, ...] = ()) -> None:
        self.folder, self.resumed = folder, resumed
        self.trials: list[SimpleNamespace] = []
        self.reports: list[tuple[str, dict[str, Any], list[str] | None]] = []
        self.kept: dict[str, Path] = {}
        self.checkpoint: Folder | None = None
        self.options: dict[str, Any] = {}

    def install(self) -> None:
        """Replace the package by the fake."""
        offered = ("with_parameters", "get_checkpoint", "get_context", "report", "run")
        checkpoint = SimpleNamespace(from_directory=Path)
        functions = {name: getattr(self, name) for name in offered}
        reporter = SimpleNamespace
        module("ray", tune=module("ray.tune", Checkpoint=checkpoint, CLIReporter=reporter, **functions))
        schedulers = ("ASHAScheduler", "HyperBandForBOHB", "MedianStoppingRule", "PopulationBasedTraining")
        module("ray.tune.schedulers", **{name: type(name, (), {}) for name in schedulers})

    def with_parameters(self, function: Any, **parameters: Any) -> Any:
        return functools.update_wrapper(functools.partial(function, **parameters), function)

    def get_checkpoint(self) -> Folder | None:
        return self.checkpoint

    def get_context(self) -> Any:
        return SimpleNamespace(get_trial_id=lambda: self.trials[-1].trial_id)

    def report(self, metrics: dict[str, Any], checkpoint: Path | None = None) -> None:
        trial = self.trials[-1]
        trial.last_result = metrics
        files = None
        if checkpoint is not None:
            kept = self.folder / f"{trial.trial_id}-{len(self.reports)}"
            shutil.copytree(checkpoint, kept)
            self.kept[trial.trial_id] = kept
            files = sorted(str(path.relative_to(checkpoint)) for path in checkpoint.rglob("*"))
        self.reports.append((trial.trial_id, metrics, files))

    def run(self, trainable: Any, *, config: dict[str, Any], num_samples: int, **options: Any) -> Any:
        self.options = options
        for index in range(num_samples):
            drawn = {name: draw(random.Random(index)) for name, draw in config.items()}
            self.trials.append(SimpleNamespace(trial_id=f"trial{index}", config=drawn, last_result={}))
            trainable(dict(drawn))
            if index in self.resumed:
                self.checkpoint = Folder(self.kept[f"trial{index}"])
                trainable(dict(drawn))
                self.checkpoint = None
        return SimpleNamespace(get_best_trial=self.best_trial)

    def best_trial(self, *, metric: str, mode: str, scope: str) -> Any:
        return {"min": min, "max": max}[mode](self.trials, key=lambda trial: trial.last_result[metric])


class SilentWandbCallback(WandbCallback):
    """A callback that does nothing, so that the trainer does not add its own."""

    def __init__(self) -> None:
        self._wandb = None
        self._initialized = False
        self._log_model = None


class Config(SimpleNamespace):
    def __init__(self, items: dict[str, Any]) -> None:
        super().__init__(_items=items)

    def __iter__(self):
        return iter(self._items.items())

    def update(self, more: dict[str, Any]) -> None:
        self._items.update(more)


class Wandb:
    """The part of ``wandb`` that the trainers use."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def install(self) -> None:
        """Replace the package by the fake."""
        self.env = module("wandb.env", set_entity=self.calls.append, set_project=self.calls.append)
        functions = {name: getattr(self, name) for name in ("init", "sweep", "agent")}
        self.package = module("wandb", run=None, config=None, env=self.env, **functions)

    def init(self) -> Any:
        raise AssertionError("the agent has begun a run")

    def sweep(self, config: dict[str, Any], project: Any = None, entity: Any = None) -> str:
        self.calls.append((config, project, entity))
        self.space = config["parameters"]
        return "sweep7"

    def agent(self, sweep_id: str, function: Any, count: int) -> None:
        for index in range(count):
            drawn = {name: random.Random(index).choice(one["values"]) for name, one in self.space.items()}
            self.package.config = Config(drawn)
            self.package.run = SimpleNamespace(id=f"id{index}", name=f"name{index}", config=self.package.config)
            self.calls.append((sweep_id, drawn, function()))
