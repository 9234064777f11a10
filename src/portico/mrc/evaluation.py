"""Evaluation sessions that turn the outputs of a model into answers."""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from transformers import EvalPrediction

from portico.hf_compat import EvalLoopOutput
from portico.loop.evaluation import EvaluationSession
from portico.loop.outputs import to_arrays


@dataclass(eq=False, repr=False, kw_only=True)
class AnswerSession(EvaluationSession):
    """Post-processes during the evaluation if the post-processing can stream, else at its end.

    ``loader`` yields the features in their order, ``on_answered`` is called with the result, and the names of its
    files end in ``file_suffix``. For ``post_process_function`` see :class:`~portico.mrc.trainer.MRCTrainer`.
    """

    # Files in PrimeQA's form: middle word of the file name, and attribute of the answers in the file.
    file_attributes: ClassVar[Mapping[str, str]] = {
        "predictions": "predictions",
        "predictions_processed": "processed_predictions",
        "references": "label_ids",
    }

    examples: Sequence[Mapping[str, Any]]
    features: Any
    post_process_function: Any
    on_answered: Callable[[Any], None]
    file_suffix: str = ""

    def __post_init__(self) -> None:
        self.prediction_loss_only = None  # answers are needed even if there are no metrics of them
        super().__post_init__()
        self._num_kept = 0
        can_stream = hasattr(self.post_process_function, "begin")
        self._streamed = self.post_process_function.begin(self.examples, self.features) if can_stream else None
        # The metrics are computed from the answers, not from batches of logits.
        self._answer_metrics = self.batch_metrics
        self.batch_metrics = None
        self.keeps_arrays = True

    def keep(self, loss: Any, logits: Any, labels: Any, inputs: Any) -> None:
        if self._streamed is None:
            super().keep(loss, logits, labels, inputs)
            return
        self.keep_loss(loss)
        # -100 is the padding of transformers' `Trainer.evaluation_loop`.
        padded = self.trainer.accelerator.pad_across_processes(logits, dim=1, pad_index=-100)
        rows = to_arrays(self.trainer.gather_function(padded))
        if not isinstance(rows, tuple | list):
            rows = (rows,)
        # Gathered batches are in the order of the features; the last one may end with rows that repeat the first.
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
            stages = [stage] if stage == "predict" and takes_stage(self.post_process_function) else []
            output = self.whole_output(logits, labels, losses)
            answered = self.post_process_function(self.examples, self.features, output, *stages)
        self.on_answered(answered)
        if self.trainer.args.should_save:
            self._write(answered, stage)
        compute_metrics: Any = self.trainer.compute_metrics
        if compute_metrics is None or getattr(answered, "label_ids", None) is None:
            return {}
        if self._answer_metrics is None:
            return compute_metrics(answered)
        processed = getattr(answered, "processed_predictions", None)  # PrimeQA's predictions are all candidates
        scored = answered if processed is None else EvalPrediction(processed, answered.label_ids)
        self._answer_metrics.update(scored)
        return self._answer_metrics.compute()

    def whole_output(self, logits: Any, labels: Any, losses: Any) -> Any:
        """Return the argument of a post-processing that does not stream."""
        return logits

    def _write(self, answered: Any, stage: str) -> None:
        """Write answers with their ``write(folder, prefix)``, or as PrimeQA's files if they have its attributes."""
        folder = self.trainer.args.output_dir
        if hasattr(answered, "write"):
            answered.write(folder, f"{stage}{self.file_suffix}")
        elif all(hasattr(answered, attribute) for attribute in self.file_attributes.values()):
            Path(folder).mkdir(parents=True, exist_ok=True)
            for name, attribute in self.file_attributes.items():
                value = getattr(answered, attribute)
                text = json.dumps(value, indent=4, default=lambda array: np.asarray(array).tolist())
                Path(folder, f"{stage}_{name}{self.file_suffix}.json").write_text(text, encoding="utf-8")


class GeneratedAnswerSession(AnswerSession):
    """An :class:`AnswerSession` whose post-processing gets the whole output of the evaluation.

    A post-processing that streams gets the tokens batch by batch, ``int64 [B, T]``, as the only array.
    """

    file_attributes: ClassVar = {"predictions": "predictions", "references": "label_ids"}

    def whole_output(self, logits: Any, labels: Any, losses: Any) -> EvalLoopOutput:
        metrics = {} if losses is None else {f"{self.metric_key_prefix}_loss": float(np.mean(losses))}
        return EvalLoopOutput(predictions=logits, label_ids=labels, metrics=metrics, num_samples=self.num_samples())


def takes_stage(function: Callable[..., Any]) -> bool:
    """Return whether a post-processing takes the stage, as Hugging Face's do and PrimeQA's do not."""
    # transformers' examples (trainer_qa.py, trainer_seq2seq_qa.py) pass "predict" as the fourth argument.
    parameters = inspect.signature(function).parameters
    return "stage" in parameters or len(parameters) > 3
