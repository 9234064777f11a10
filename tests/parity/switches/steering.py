"""Switches of what steers a run, and of what it takes from a checkpoint."""

import torch

import portico
from portico.checkpoint.resume import load_rng_state
from portico.loop.run import EventBridge, TrainingRun


def nothing_between_steps(patch):
    """No logs, evaluations or checkpoints."""
    patch.setattr(TrainingRun, "_log_save_evaluate", lambda self: None)


def training_not_stopped(patch):
    """Neither side hears that the other wants to stop."""
    patch.setattr(EventBridge, "_agree_on_stopping", lambda self, trainer: None)
    patch.setattr(TrainingRun, "batches", _unheeding(TrainingRun.batches))


def epoch_not_stopped(patch):
    """Nobody hears that an epoch shall end."""
    patch.setattr(TrainingRun, "batches", _unheeding(TrainingRun.batches))


def _unheeding(batches):
    def all_batches(self):
        control = self.trainer.control
        for batch in batches(self):
            yield batch
            control = self.trainer.control
            control.should_epoch_stop = control.should_training_stop = False

    return all_batches


def best_model_left(patch):
    """The last model stays instead of the best."""
    patch.setattr(portico.Trainer, "_load_best_model", lambda self: None)


def model_kept(patch):
    """A second run goes on with the model of the first."""
    patch.setattr(portico.Trainer, "_renew_model", lambda self, trial: None)


def rng_brought_back_early(patch):
    """Random states come back before the first window is fetched."""
    open_epoch = TrainingRun._epoch_loader

    def early(self):
        loader, first_step, late_rng = open_epoch(self)
        if late_rng:
            load_rng_state(self.checkpoint, self.trainer.args)
        return loader, first_step, False

    patch.setattr(TrainingRun, "_epoch_loader", early)


def rng_not_brought_back(patch):
    """Random states stay as they are."""
    patch.setattr(portico.Trainer, "_load_rng_state", lambda self, checkpoint: None)


def optimizer_started_anew(patch):
    """The optimizer of a resumed run knows nothing of the run before."""
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
    """Callbacks of a resumed run start anew."""
    patch.setattr(portico.Trainer, "_load_callback_state", lambda self: None)


def arguments_pickled_as_ours(patch):
    """A checkpoint's arguments need portico to be read."""
    patch.setattr("portico.checkpoint.writer.as_transformers_arguments", lambda args: args)
