"""Arguments that ``optimum`` 1 gave its ``ORTTrainer``, each taken with one warning."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from portico.deprecated import warn_of_old_spelling
from portico.hf_compat import PredictionOutput, TrainOutput
from portico.ort.module_with_loss import LossInGraph

# What each argument of the constructor told, and why nobody has to be told any more.
_WITHOUT_EFFECT = {
    "feature": "the graphs are traced from the model itself, whatever it is for",
    "task": "the graphs are traced from the model itself, whatever it is for",
    "onnx_model_path": "evaluation runs the weights that were trained, without a file between; `save_onnx=True` "
    "writes one",
}


class OldOptimumArguments(LossInGraph):
    """Takes ``feature``, ``task``, ``onnx_model_path`` and ``inference_with_ort``.

    The first three have no effect any more. ``inference_with_ort`` is ``args.evaluate_in_ort`` for one call.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        for name, reason in _WITHOUT_EFFECT.items():
            if name in options:
                del options[name]
                warn_of_old_spelling(f"`{name}` has no effect any more: {reason}.")
        super().__init__(*args, **options)

    def train(self, *args: Any, inference_with_ort: bool | None = None, **kwargs: Any) -> TrainOutput:
        """Train; see the trainer."""
        with self._evaluating_in_ort(inference_with_ort):
            return super().train(*args, **kwargs)

    def evaluate(self, *args: Any, inference_with_ort: bool | None = None, **kwargs: Any) -> dict[str, float]:
        """Evaluate; see the trainer."""
        with self._evaluating_in_ort(inference_with_ort):
            return super().evaluate(*args, **kwargs)

    def predict(self, *args: Any, inference_with_ort: bool | None = None, **kwargs: Any) -> PredictionOutput:
        """Predict; see the trainer."""
        with self._evaluating_in_ort(inference_with_ort):
            return super().predict(*args, **kwargs)

    @contextmanager
    def _evaluating_in_ort(self, in_ort: bool | None) -> Iterator[None]:
        if in_ort is None:
            yield
            return
        warn_of_old_spelling("`inference_with_ort` is expressed by `ORTTrainingArguments(evaluate_in_ort=...)` now.")
        before = self.args.evaluate_in_ort
        self.args.evaluate_in_ort = in_ort
        self._tell_strategy()
        try:
            yield
        finally:
            self.args.evaluate_in_ort = before
            self._tell_strategy()
