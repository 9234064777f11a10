"""Controls of callbacks that steer a run, and of what is restored from a checkpoint."""

from pathlib import Path

import torch

import portico
from portico.checkpoint.resume import load_rng_state
from portico.loop.run import EventBridge, TrainingRun


def nothing_between_steps(patch):
    """No logs, evaluations or checkpoints."""
    patch.setattr(TrainingRun, "_log_save_evaluate", lambda self, **options: None)


def training_not_stopped(patch):
    """Requests to stop the training are ignored."""
    patch.setattr(EventBridge, "_agree_on_stopping", lambda self, trainer: None)
    patch.setattr(TrainingRun, "batches", _ignoring_stops(TrainingRun.batches))


def epoch_not_stopped(patch):
    """Requests to stop the epoch are ignored."""
    patch.setattr(TrainingRun, "batches", _ignoring_stops(TrainingRun.batches))


def _ignoring_stops(batches):
    def all_batches(self):
        control = self.trainer.control
        for batch in batches(self):
            yield batch
            control = self.trainer.control
            control.should_epoch_stop = control.should_training_stop = False

    return all_batches


def best_model_not_loaded(patch):
    """The run ends with the last model instead of the best."""
    patch.setattr(portico.Trainer, "_load_best_model", lambda self: None)


def model_kept(patch):
    """A second run continues with the model of the first."""
    patch.setattr(portico.Trainer, "_renew_model", lambda self, trial: None)


def rng_restored_early(patch):
    """Random states are restored before the first window is fetched."""
    open_epoch = TrainingRun._epoch_loader

    def early(self):
        loader, first_step, late_rng = open_epoch(self)
        if late_rng:
            load_rng_state(self.checkpoint, self.trainer.args)
        return loader, first_step, False

    patch.setattr(TrainingRun, "_epoch_loader", early)


def rng_not_restored(patch):
    """Random states are not restored."""
    patch.setattr(portico.Trainer, "_load_rng_state", lambda self, checkpoint: None)


def optimizer_not_restored(patch):
    """Optimizer and schedule of a resumed run start fresh."""
    patch.setattr(portico.Trainer, "_load_optimizer_and_scheduler", lambda self, checkpoint: None)


def other_rng_saved(patch):
    """A checkpoint holds random states of another moment."""
    saved = portico.Trainer._save_rng_state

    def save(self, output_dir):
        with torch.random.fork_rng():
            torch.rand(1)
            saved(self, output_dir)

    patch.setattr(portico.Trainer, "_save_rng_state", save)


def callbacks_not_restored(patch):
    """Callbacks of a resumed run start fresh."""
    patch.setattr(portico.Trainer, "_load_callback_state", lambda self: None)


def arguments_pickled_as_ours(patch):
    """The arguments of a checkpoint can only be unpickled where portico is installed."""
    save = portico.Trainer._save

    def save_with_ours(self, output_dir=None, state_dict=None):
        save(self, output_dir, state_dict)
        torch.save(self.args, Path(output_dir or self.args.output_dir) / "training_args.bin")

    patch.setattr(portico.Trainer, "_save", save_with_ours)
