"""What is called at the end of each batch."""

from typing import Any

from portico.gradient_descent.memory import gpu_memory_mb, peak_memory_mb
from portico.gradient_descent.registry import Registrable
from portico.gradient_descent.trainer import Trainer


class BatchCallback(Registrable):
    """Called after each optimizer step of training and after each batch of validation; does nothing by itself."""

    def __call__(
        self,
        trainer: Trainer,
        batch_inputs: list[Any],
        batch_outputs: list[dict[str, Any]],
        batch_metrics: dict[str, Any],
        epoch: int,
        batch_number: int,
        is_training: bool,
        is_primary: bool = True,
        **kwargs: Any,
    ) -> None:
        """Look at a batch.

        A callback of your own may leave out parameters that it does not use, and may call ``is_primary`` by its older
        name ``is_master``; parameters are passed by name.

        Args:
            trainer: The trainer.
            batch_inputs: Batches of the step: as many as gradients are accumulated over, one in validation.
            batch_outputs: What the model returned for each.
            batch_metrics: Metrics of the epoch so far.
            epoch: Epoch, from 0.
            batch_number: Steps of the epoch so far, from 1; in validation batches that had a loss.
            is_training: Whether this is training.
            is_primary: Whether this is the first process.
            **kwargs: ``batch_grad_norm``, the norm of the gradients, ``None`` unless it was measured in training.
        """


@BatchCallback.register("tensorboard-memory-usage")
class TensorboardBatchMemoryUsage(BatchCallback):
    """Writes the memory of every process and GPU to TensorBoard, at every batch. Slow; for debugging."""

    def __call__(self, trainer: Trainer, is_primary: bool = True, **kwargs: Any) -> None:  # type: ignore[override]
        """Measure and write; every process must take part in measuring."""
        workers = peak_memory_mb(trainer)
        writer = trainer.tensorboard_writer
        if is_primary and writer is not None:
            writer.log_memory_usage(workers, gpu_memory_mb())


# AllenNLP's spelling.
TensoboardBatchMemoryUsage = TensorboardBatchMemoryUsage

BatchCallback.register("null")(BatchCallback)
