"""Stands in for the training: an experiment that costs nothing and leaves behind what it was built with."""

import json
import math
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import torch

from portico.errors import InputError
from portico.mrc.experiment import MRCExperiment

OVERRIDES = ("_target_=fake_experiment.FakeExperiment",)
DIVERGES = 7
BREAKS = 13
IS_INTERRUPTED = 17
IS_STOPPED = 19
DIES = 23
WAITS = 29


@dataclass(kw_only=True)
class FakeExperiment(MRCExperiment):
    """The groups of reading comprehension, without any work."""

    def check_objective(self, name):
        pass

    def train(self):
        args = self.args.keywords
        received = {
            "args": args,
            "strategy": self.placement(),
            "data": vars(self.data),
            "callbacks": [type(callback).__name__ for callback in self.callbacks],
            "logger": [type(one).__name__ for one in self.logger],
            "output_dir": self.output_dir,
            "num_threads": torch.get_num_threads(),
        }
        if self.data.train_file is not None:
            raise InputError(f"{self.data.train_file} is missing.")
        folder = Path(self.output_dir)
        if args.get("save_strategy") != "no":
            (folder / "checkpoint-2").mkdir(exist_ok=True)
        if args.get("seed") == IS_INTERRUPTED:
            raise KeyboardInterrupt
        if args.get("seed") == BREAKS:
            raise RuntimeError("a defect")
        (folder / "all_results.json").write_text(json.dumps(received), encoding="utf-8")
        return {"eval_f1": float("nan") if args.get("seed") == DIVERGES else 80.0, "eval_loss": 1.5}


@dataclass(kw_only=True)
class SearchedExperiment(FakeExperiment):
    """Is best at a learning rate of 1e-3, and evaluates four times; resumes after the evaluations it has had."""

    def train(self):
        args, folder = self.args.keywords, Path(self.output_dir)
        rate = float(args["learning_rate"])
        if args.get("seed") == DIES:
            os.kill(os.getpid(), signal.SIGKILL)
        if args.get("seed") == WAITS and not Path("released").exists():
            (folder / "process.txt").write_text(str(os.getpid()))
            time.sleep(600)
        done = len(list(folder.glob("checkpoint-*"))) if args.get("resume_from_checkpoint") else 0
        with (folder / "starts.txt").open("a") as file:
            print(done, file=file)
        score = 80 - 10 * abs(math.log10(rate) + 3)
        for callback in self.callbacks:
            callback.on_train_begin(None, SimpleNamespace(global_step=10 * done), None)
        for step in range(done + 1, 5):
            for callback in self.callbacks:
                state = SimpleNamespace(global_step=10 * step, max_steps=40, is_world_process_zero=True)
                callback.on_evaluate(None, state, None, metrics={"eval_f1": score - 5 + step})
            (folder / f"checkpoint-{step}").mkdir()
            if args.get("seed") == IS_STOPPED and not done:
                raise KeyboardInterrupt
        metrics = {**super().train(), "eval_f1": float("nan") if args.get("seed") == DIVERGES else score}
        return {**metrics, "train_runtime": 1e4 * rate}


def own_pruner(**options):
    import optuna

    return optuna.pruners.MedianPruner(**options)


def suggest_seed(config, trial):
    trial.suggest_categorical("args.seed", [1, 2])
