"""An evaluation whose outputs become answers."""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from transformers.trainer_utils import EvalLoopOutput, EvalPrediction

from portico.evaluation.arrays import to_arrays
from portico.evaluation.session import EvaluationSession

if TYPE_CHECKING:
    from portico.contract import Facade


EXTRACTIVE_FILES: Mapping[str, str] = {
    "predictions": "predictions",
    "predictions_processed": "processed_predictions",
    "references": "label_ids",
}


class AnswerSession(EvaluationSession):
    """Post-processes while the evaluation runs where the post-processing can stream, else when it is over.

    Args:
        facade: The trainer.
        loader: Batches of the features, in their order.
        examples: The examples that the features are windows of.
        features: The features.
        post_process_function: Turns logits into answers; see :class:`~portico.mrc.trainer.MRCTrainer`.
        on_answered: Gets what the post-processing returned.
        file_suffix: Last part of the names of the files, for one of several data sets.
        **options: Options of :class:`~portico.evaluation.session.EvaluationSession`.
    """

    file_parts = EXTRACTIVE_FILES

    def __init__(
        self,
        facade: "Facade",
        loader: Any,
        *,
        examples: Sequence[Mapping[str, Any]],
        features: Any,
        post_process_function: Any,
        on_answered: Callable[[Any], None],
        file_suffix: str = "",
        **options: Any,
    ) -> None:
        # Answers are wanted whether or not there are metrics of them.
        super().__init__(facade, loader, **{**options, "prediction_loss_only": None})
        self.examples = examples
        self.features = features
        self.post_process_function = post_process_function
        self.on_answered = on_answered
        self.file_suffix = file_suffix
        begin = getattr(post_process_function, "begin", None)
        self._num_kept = 0
        self._streamed = begin(examples, features) if begin is not None else None
        # The metrics are those of the answers, so no batch of logits goes to them.
        self._answer_metrics = self.stream
        self.stream = None
        self.keeps_arrays = True

    def keep(self, loss: Any, logits: Any, labels: Any, inputs: Any) -> None:
        """Hand the logits of a batch to the post-processing; keep no more than the loss."""
        if self._streamed is None:
            super().keep(loss, logits, labels, inputs)
            return
        self.keep_loss(loss)
        # The processes' batches, put together, go on in the order of the features.
        padded = self.facade.accelerator.pad_across_processes(logits, dim=1, pad_index=-100)
        rows = to_arrays(self.facade.gather_function(padded))
        if not isinstance(rows, tuple | list):
            rows = (rows,)
        # What fills up the last batch of several processes may come along, at its end.
        first = self._num_kept
        self._num_kept = min(first + len(rows[0]), len(self.features))
        kept = [array[: self._num_kept - first] for array in rows]
        self._streamed.update(kept, np.arange(first, self._num_kept))

    def compute_metrics(self, logits: Any, labels: Any, losses: Any, inputs: Any) -> Mapping[str, Any]:
        """Finish the post-processing, write its files once, and return the user's metrics of the answers."""
        stage = "predict" if self.description == "Prediction" else self.metric_key_prefix
        if self._streamed is not None:
            answered = self._streamed.compute()
        else:
            answered = self._post_processed(self.whole_output(logits, labels, losses), stage)
        self.on_answered(answered)
        if self.facade.args.should_save:
            write_answers(answered, self.facade.args.output_dir, stage, self.file_suffix, parts=self.file_parts)
        has_references = getattr(answered, "label_ids", None) is not None
        if self.facade.compute_metrics is None or not has_references:
            return {}
        if self._answer_metrics is None:
            return self.facade.compute_metrics(answered)
        self._answer_metrics.update(_as_scored(answered))
        return self._answer_metrics.compute()

    def whole_output(self, logits: Any, labels: Any, losses: Any) -> Any:
        """Return what a post-processing that does not stream is called with."""
        return logits

    def _post_processed(self, output: Any, stage: str) -> Any:
        function = self.post_process_function
        if stage == "predict" and takes_stage(function):
            return function(self.examples, self.features, output, stage)
        return function(self.examples, self.features, output)


def write_answers(
    answered: Any, folder: str, prefix: str, suffix: str = "", *, parts: Mapping[str, str] = EXTRACTIVE_FILES
) -> None:
    """Write what a post-processing returned: by its own ``write``, or as PrimeQA's files.

    Args:
        answered: Has ``write(folder, prefix)``, or the attributes that ``parts`` names; of anything else nothing is
            written.
        folder: Output folder of the run.
        prefix: First word of the file names.
        suffix: Last part of the file names.
        parts: Attribute that each file holds, by the middle word of the file's name.
    """
    if hasattr(answered, "write"):
        answered.write(folder, f"{prefix}{suffix}")
    elif all(hasattr(answered, attribute) for attribute in parts.values()):
        Path(folder).mkdir(parents=True, exist_ok=True)
        for name, attribute in parts.items():
            text = json.dumps(getattr(answered, attribute), indent=4, default=_to_list)
            Path(folder, f"{prefix}_{name}{suffix}.json").write_text(text, encoding="utf-8")


def _to_list(value: Any) -> Any:
    return np.asarray(value).tolist()


def _as_scored(answered: Any) -> EvalPrediction:
    """Return what metrics take; PrimeQA's post-processing has that beside all candidates."""
    processed = getattr(answered, "processed_predictions", None)
    return answered if processed is None else EvalPrediction(processed, answered.label_ids)


def takes_stage(function: Callable[..., Any]) -> bool:
    """Tell whether a post-processing is told that it predicts: Hugging Face's are, PrimeQA's are not."""
    parameters = inspect.signature(function).parameters
    return "stage" in parameters or len(parameters) > 3


GENERATIVE_FILES: Mapping[str, str] = {"predictions": "predictions", "references": "label_ids"}


class GeneratedAnswerSession(AnswerSession):
    """An :class:`~portico.mrc.evaluation.AnswerSession` whose post-processing gets the whole output of the evaluation.

    A post-processing that streams gets the tokens batch by batch, ``int64 [B, T]``, as the only array.
    """

    file_parts = GENERATIVE_FILES

    def whole_output(self, logits: Any, labels: Any, losses: Any) -> EvalLoopOutput:
        """Return the generated tokens with what an evaluation has beside them."""
        metrics = {} if losses is None else {f"{self.metric_key_prefix}_loss": float(np.mean(losses))}
        return EvalLoopOutput(predictions=logits, label_ids=labels, metrics=metrics, num_samples=self.num_samples())
