"""A model that reads windows and gives its outputs to a post-processing, on any device."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from transformers import DataCollatorWithPadding

from portico.arguments import TrainingArguments
from portico.errors import InputError
from portico.mrc.features.feature_set import FeatureSet
from portico.mrc.trainer import MRCTrainer


class PostProcessor(Protocol):
    """What takes the outputs of batches and computes something of all of them."""

    def update_outputs(self, outputs: Sequence[Any], feature_indices: npt.ArrayLike) -> None:
        """Take the outputs of a batch."""

    def compute(self) -> Any:
        """Return what became of all batches."""


class Inference:
    """Runs a model over features; the trainer that does it is made once.

    Args:
        model: The model.
        tokenizer: Pads the batches.
        device: ``"auto"`` (the GPU where there is one), ``"cpu"``, ``"cuda"``, ``"cuda:1"``, ``"ort"`` (ONNX Runtime),
            or a number as Hugging Face's pipelines take it (-1 for the CPU).
        batch_size: Windows in a batch.

    Raises:
        InputError: If there is no such device.
    """

    def __init__(self, model: Any, tokenizer: Any, *, device: str | int, batch_size: int) -> None:
        # A trainer needs a folder, though nothing is written into it.
        self._folder = tempfile.TemporaryDirectory(prefix="portico-reader-")
        args = TrainingArguments(
            self._folder.name,
            per_device_eval_batch_size=batch_size,
            disable_tqdm=True,
            report_to="none",
            **_placement(device),
        )
        self._streaming: Any = _Streaming()
        self._trainer = MRCTrainer(
            model,
            args,
            processing_class=tokenizer,
            data_collator=DataCollatorWithPadding(tokenizer),
            post_process_function=self._streaming,
        )

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
        self.post_processor.update_outputs(outputs, feature_indices)

    def compute(self) -> "_Result":
        return _Result(self.post_processor.compute())


@dataclass(frozen=True)
class _Result:
    """Keeps the trainer from writing files: it has nothing to write."""

    result: Any


def _placement(device: str | int) -> dict[str, Any]:
    """Return the training arguments that choose a device."""
    name = ("cpu" if device < 0 else f"cuda:{device}") if isinstance(device, int) else device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cpu":
        return {"accelerator": "cpu", "devices": 1}
    if name == "ort":
        return {"accelerator": "ort", "strategy": "ort", "devices": 1}
    kind, _, number = name.partition(":")
    if kind != "cuda" or not (number or "0").isdecimal():
        raise InputError(f"`device={device}` is unknown; use auto, cpu, cuda, cuda:<number> or ort.")
    index, count = int(number or 0), torch.cuda.device_count()
    if index >= count:
        raise InputError(f"`device={device}` asks for GPU {index}, but there are {count}; use cpu, or auto.")
    return {"accelerator": "gpu", "devices": [index]}
