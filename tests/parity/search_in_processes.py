"""Hyperparameter searches in two processes: a script that ``torchrun`` or portico launches.

Usage: search_in_processes.py FOLDER LIBRARY [STRATEGY]
Every process writes FOLDER/LIBRARY-RANK.pt. With a strategy, portico starts the processes.
"""

import sys
import warnings
from pathlib import Path

import optuna
import torch
import transformers

import portico
from models import ToyDataset, tiny_bert
from parity.peers import Recorder, untimed
from parity.switches import throw_as_parent

LIBRARIES = {"portico": portico, "transformers": transformers}


def space(trial):
    return {
        "learning_rate": trial.suggest_float("learning_rate", 1e-4, 1e-1, log=True),
        "seed": trial.suggest_int("seed", 1, 40),
    }


def model_init(trial):
    return tiny_bert()


class PruneSecondTrial(optuna.pruners.BasePruner):
    def prune(self, study, trial):
        return trial.number == 1


def search(library, folder, strategy=None, **options):
    """Return everything observable in a process after a search."""
    placement = {"strategy": strategy, "devices": 2} if strategy else {}
    recorder = Recorder()
    trainer = library.Trainer(
        args=library.TrainingArguments(
            output_dir=str(folder / "runs"),
            max_steps=3,
            per_device_train_batch_size=4,
            eval_strategy="steps",
            eval_steps=2,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            **placement,
        ),
        model_init=model_init,
        train_dataset=ToyDataset(),
        eval_dataset=ToyDataset(11, seed=1),
        callbacks=[recorder],
    )
    trainer.remove_callback(transformers.PrinterCallback)
    best = trainer.hyperparameter_search(
        space, n_trials=3, backend="optuna", sampler=optuna.samplers.RandomSampler(seed=5), **options
    )
    outcome = {
        "best": best,
        "events": recorder.events,
        "history": [untimed(entry) for entry in trainer.state.log_history],
        "rate": trainer.args.learning_rate,
    }
    torch.save(outcome, folder / f"{library.__name__}-{trainer.args.process_index}.pt")


def main(folder, library, strategy=None):
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    # Under transformers the other process hangs when a trial is pruned.
    options = {"pruner": PruneSecondTrial()} if strategy else {}
    search(LIBRARIES[library], Path(folder), strategy, **options)


if __name__ == "__main__":
    throw_as_parent()
    main(*sys.argv[1:])
