"""The cause of an error in a rehearsal, as a sentence with its cure."""

import re
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from huggingface_hub import HfApi, get_token
from transformers import TrainingArguments

from portico.errors import InputError, reason_of

if TYPE_CHECKING:
    from portico.trainer import Trainer

_PACKAGE = str(Path(__file__).parents[1])
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python", f"{_PACKAGE}/", "<frozen", "<string>")
# What libraries say, and what cures it.
_CURES = (
    (
        r"not JSON serializable",
        "`trainer_state.json` and `config.json` take numbers, strings, lists and dicts; let `compute_metrics`, `log` "
        "and callback states return plain Python values, such as by `float(value)` and `array.tolist()`.",
    ),
    (
        r"shar(e|ed|ing) (memory|tensors)|shared tensors|share memory",
        "Name the tensors that are tied in `_tied_weights_keys` of the model, or clone one of them, so that each is "
        "saved once.",
    ),
    (
        r"to save the configuration|[Gg]eneration ?[Cc]onfig|generation flags|generation parameters",
        "Make `model.generation_config` consistent before the training, for example `do_sample=True` with a "
        "`temperature`, or `temperature=None` without.",
    ),
    (
        r"No space left|disk is full|ENOSPC|Disk quota exceeded|File too large",
        "A rehearsal writes to the temporary folder in place of all others: make room there, or set `TMPDIR` to a "
        "folder of another disk.",
    ),
    (
        r"Input contains NaN|continuous is not supported|Target is multiclass|Classification metrics can't handle",
        "Give the metric labels and predictions of the form that it takes; -100 marks labels to leave out.",
    ),
    (
        r"can't pickle|cannot pickle|Can't pickle|cannot be pickled",
        "A checkpoint keeps this object; leave out of its state what cannot be written, such as locks and lambdas.",
    ),
    (
        r"device-side assert|index out of range in self",
        "An index is outside of a table: compare token ids with the vocabulary, and labels with the classes.",
    ),
    (
        r"Default process group|NCCL|gloo",
        "All processes must make the same calls in the same order; let none of them return earlier.",
    ),
)
_OUT_OF_MEMORY = r"out of memory|OutOfMemory|can't allocate memory"
_EVALUATION_MEMORY = (
    "Set a smaller `per_device_eval_batch_size`, `eval_accumulation_steps`, or reduce the logits in "
    "`preprocess_logits_for_metrics`."
)
_TRAINING_MEMORY = (
    "Set a smaller `per_device_train_batch_size` and more `gradient_accumulation_steps`, "
    "`gradient_checkpointing=True`, or cut the longest examples."
)


def explain_fault(error: BaseException, stage: str, trainer: "Trainer | None") -> str:
    """Return why a stage failed: what was raised where in the user's code, and what cures it."""
    if isinstance(error, InputError):
        return str(error)
    said = reason_of(error)
    message = f"{type(error).__name__}: {said}" if said != type(error).__name__ else said
    place = _place_in_code_of_user(error)
    notes = "".join(f" {note}" for note in getattr(error, "__notes__", ()))
    cure = _cure(f"{type(error).__name__} {error}", stage)
    where = f"{place} raises" if place else "A library raises"
    return f"{where} {message}{'' if message.endswith('.') else '.'}{notes}{f' {cure}' if cure else ''}"


def _cure(said: str, stage: str) -> str:
    if re.search(_OUT_OF_MEMORY, said):
        return _EVALUATION_MEMORY if stage == "evaluation" else _TRAINING_MEMORY
    return next((cure for pattern, cure in _CURES if re.search(pattern, said)), "")


def _place_in_code_of_user(error: BaseException) -> str:
    """Return the innermost function of the user's code that an error passed, with its file and line."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not any(part in frame.filename for part in _LIBRARIES)]
    # A script that only called `train()` did not cause what a library raised in it.
    if not own or (own[-1].name == "<module>" and frames[-1] is not own[-1]):
        return ""
    frame = own[-1]
    name = "The script" if frame.name == "<module>" else f"`{frame.name}`"
    return f"{name} ({Path(frame.filename).name}:{frame.lineno})"


def find_value_without_json(metrics: Mapping[str, Any]) -> str | None:
    """Return which logged value transformers' trainer could not write into a checkpoint; None if it could write all.

    portico writes arrays as lists.
    """
    for name, value in metrics.items():
        if isinstance(value, np.ndarray) or (isinstance(value, torch.Tensor) and value.numel() != 1):
            return (
                f"`compute_metrics` returns an array of shape {list(value.shape)} as `{name}`, and the trainer of "
                "transformers ends at its first checkpoint, since it cannot write it as JSON; return "
                "`value.tolist()`, or a number for each class."
            )
    return None


def explain_missing_login(args: TrainingArguments) -> str | None:
    """Return why an upload at the end would be refused; None if it would not."""
    token = args.hub_token or get_token()
    cure = "Run `hf auth login`, or set `hub_token`, or leave `push_to_hub` out."
    if token is None:
        return f"`push_to_hub=True` uploads the model, and nobody is logged in to the hub here. {cure}"
    try:
        HfApi().whoami(token=token)
    except Exception as error:
        return (
            f"`push_to_hub=True` uploads the model, and the hub does not accept the login ({reason_of(error)}). {cure}"
        )
    return None
