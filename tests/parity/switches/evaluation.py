"""Controls of evaluation and prediction."""

from portico.distributed.accelerator import Accelerator
from portico.loop.evaluation import EvaluationSession
from portico.loop.module import TrainerModule
from portico.loop.outputs import GrowingArray


def last_batch_left_whole(patch):
    """The last batch of an evaluation is not truncated to its real examples."""
    patch.setattr(Accelerator, "gather_for_metrics", lambda self, data, use_gather_object=False: data)


def dropout_left_on(patch):
    """The model stays in training mode during an evaluation."""
    start = EvaluationSession.start

    def stay(self):
        start(self)
        self.trainer.model.train()

    patch.setattr(EvaluationSession, "start", stay)


def training_mode_restored(patch):
    """The model returns to training mode after an evaluation, as under Lightning."""
    patch.setattr(TrainerModule, "on_validation_model_train", lambda self: self.train())
    patch.setattr(TrainerModule, "on_test_model_train", lambda self: self.train())


def padded_with_zero(patch):
    """Short rows are padded with 0, which is also a valid value."""
    result = GrowingArray.result

    def with_zeros(self):
        array = result(self)
        array[array == -100] = 0
        return array

    patch.setattr(GrowingArray, "result", with_zeros)


def names_without_prefix(patch):
    """Metric names do not get the prefix."""
    patch.setattr(EvaluationSession, "_prefixed", lambda self, metrics: metrics)
