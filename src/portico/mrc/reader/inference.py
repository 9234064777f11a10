"""A model that reads windows and gives its outputs to a post-processing, on any device."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from portico.arguments import TrainingArguments
from portico.mrc.features.windows import FeatureSet
from portico.mrc.head_needs import head_collator
from portico.mrc.models.loading import head_of
from portico.mrc.reader.placement import placement
from portico.mrc.trainer import MRCTrainer


class PostProcessor(Protocol):
    """What takes the outputs of batches and computes something of all of them."""

    def update(self, outputs: Sequence[Any], feature_indices: npt.NDArray[np.int64], /) -> None:
        """Take the outputs of a batch."""

    def compute(self) -> Any:
        """Return what became of all batches."""


class Inference:
    """Runs a model over features; the trainer that does it is made once.

    Args:
        model: The model.
        tokenizer: Pads the batches.
        args: Where and in what batches it runs.
    """

    def __init__(self, model: Any, tokenizer: Any, args: TrainingArguments) -> None:
        self._streaming = _Streaming()
        self._trainer = MRCTrainer(
            model,
            args,
            processing_class=tokenizer,
            data_collator=head_collator(head_of(model), tokenizer),
            post_process_function=self._streaming,  # type: ignore[arg-type]  # it streams and is never called
        )

    @classmethod
    def on_device(cls, model: Any, tokenizer: Any, *, device: str | int, batch_size: int) -> "Inference":
        """Run on a device.

        Args:
            model: The model.
            tokenizer: Pads the batches.
            device: See :func:`~portico.mrc.reader.placement.placement`.
            batch_size: Windows in a batch.

        Raises:
            InputError: If there is no such device.
        """
        # A trainer makes its folder when it is made; an answer writes nothing into it.
        with tempfile.TemporaryDirectory(prefix="portico-reader-") as folder:
            args = TrainingArguments(
                folder,
                per_device_eval_batch_size=batch_size,
                disable_tqdm=True,
                report_to="none",
                **placement(device),
            )
            return cls(model, tokenizer, args)

    def run(self, features: FeatureSet, post_processor: PostProcessor) -> Any:
        """Return what the post-processor computes of the model's outputs for the features."""
        self._streaming.post_processor = post_processor
        self._trainer.predict(features, [])
        return self._trainer.answered.result


class _Streaming:
    """The post-processing of the next run, as a trainer takes it."""

    post_processor: PostProcessor

    def begin(self, examples: Any, features: Any) -> "_Streaming":
        return self

    def update(self, outputs: Sequence[Any], feature_indices: npt.NDArray[np.int64]) -> None:
        self.post_processor.update(outputs, feature_indices)

    def compute(self) -> "_Result":
        return _Result(self.post_processor.compute())


@dataclass(frozen=True)
class _Result:
    """Keeps the trainer from writing files: it has nothing to write."""

    result: Any
