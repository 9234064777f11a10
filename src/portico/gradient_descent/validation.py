"""One pass over the validation data, with AllenNLP's metrics and callbacks."""

from typing import Any

import numpy as np
import torch

from portico.gradient_descent.losses import LossSums, batch_metrics, epoch_metrics
from portico.hf_compat import EvalLoopOutput, denumpify_detensorize
from portico.loop.evaluation import EvaluationSession


class ValidationSession(EvaluationSession):
    """Runs the trainer's ``batch_outputs`` on each batch; the model counts its own metrics.

    Args:
        trainer: The loop.
        loader: Validation batches.
        descent: The AllenNLP trainer.
        **options: As of :class:`~portico.loop.evaluation.EvaluationSession`.

    Attributes:
        metrics: Metrics of the whole set, once it is finished.
    """

    def __init__(self, trainer: Any, loader: Any, *, descent: Any, **options: Any) -> None:
        super().__init__(trainer, loader, **options)
        self.descent = descent
        self.sums = LossSums()
        self.metrics: dict[str, Any] = {}

    def step(self, inputs: Any, batch_idx: int) -> None:
        """Run one batch, and tell the callbacks."""
        trainer, descent = self.trainer, self.descent
        with torch.no_grad(), trainer.accelerator.autocast():
            outputs = descent.batch_outputs(inputs, for_training=False)
        self.num_observed_examples += 1
        if outputs.get("loss") is not None:
            self.sums.begin_batch()
            self.sums.add(outputs)
            self.sums.end_batch()
        descent.batch_callbacks(
            trainer=descent,
            batch_inputs=[inputs],
            batch_outputs=[outputs],
            batch_metrics=batch_metrics(descent.model, self.sums),
            epoch=descent.progress.epochs_completed,
            batch_number=self.sums.num_batches,
            is_training=False,
            is_primary=descent.is_primary,
            batch_grad_norm=None,
        )
        trainer.control = trainer.callback_handler.on_prediction_step(trainer.args, trainer.state, trainer.control)

    def finish(self) -> EvalLoopOutput:
        """Compute the metrics of the whole set."""
        self.metrics = epoch_metrics(self.descent.model, self.sums, self.trainer.accelerator)
        prefixed = self._prefixed(denumpify_detensorize(dict(self.metrics)))
        self.output = EvalLoopOutput(
            predictions=np.empty(0), label_ids=None, metrics=prefixed, num_samples=self.num_observed_examples
        )
        return self.output
