"""Switches of evaluations and predictions."""

from portico.distributed.accelerator import Accelerator
from portico.loop.evaluation import EvaluationSession
from portico.loop.module import TrainerModule


def last_batch_left_whole(patch):
    """A loss counts as often as a full batch has examples, in the last batch too."""
    patch.setattr(Accelerator, "gather_for_metrics", lambda self, data, use_gather_object=False: data)


def dropout_left_on(patch):
    """The model is not put into evaluation mode."""
    start = EvaluationSession.start

    def stay(self):
        start(self)
        self.trainer.model.train()

    patch.setattr(EvaluationSession, "start", stay)


def training_mode_restored(patch):
    """The model is back in training mode after an evaluation, as Lightning has it."""
    patch.setattr(TrainerModule, "on_validation_model_train", lambda self: self.train())
    patch.setattr(TrainerModule, "on_test_model_train", lambda self: self.train())


def padded_with_zero(patch):
    """Short rows are filled with what could be a value."""
    patch.setattr("portico.loop.outputs._PADDING_INDEX", 0)


def names_without_prefix(patch):
    """Metrics keep the names that the user gave."""
    patch.setattr(EvaluationSession, "_prefixed", lambda self, metrics: metrics)
