"""One batch: its labels and tokens before the model sees it, the loss and the logits after."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from portico.compat.transformers import logger, nested_detach

if TYPE_CHECKING:
    from portico.compat.annotations import Batch, Nested, NumItems, ProcessingClass


def set_training(model: nn.Module) -> None:
    """Call ``model.train()``, unless every module is in training mode and none defines what that means.

    The look takes a tenth of the time of the call, which sets an attribute of each module at every step.
    """
    modules: list[nn.Module | None] = [model]
    plain = nn.Module.train
    for module in modules:
        if module is None:
            continue
        state = module.__dict__
        if not state.get("training") or "train" in state or type(module).train is not plain:
            model.train()
            return
        if children := state["_modules"]:
            modules += children.values()


def count_labels(batches: Sequence["Batch"], *, shifts_labels: bool) -> "NumItems":
    """Return the number of label positions in an accumulation window that a loss counts, an int64 scalar.

    It is ``None`` for labels that are not tensors, such as the boxes of object detection. A causal loss
    (``shifts_labels``) never predicts the first position.
    """

    def scored(batch: "Batch") -> torch.Tensor:
        labels: torch.Tensor = batch["shift_labels"] if "shift_labels" in batch else batch["labels"]
        return labels[..., 1:] if shifts_labels and "shift_labels" not in batch else labels

    try:
        return sum(scored(batch).ne(-100).sum() for batch in batches)
    except (TypeError, AttributeError):
        return None


def count_tokens(
    batch: "Batch", main_input: str, processing_class: "ProcessingClass | None", *, padding: bool
) -> torch.Tensor:
    """Return the number of tokens in the input ``main_input`` of a batch, a scalar; ``padding`` may count or not.

    ``processing_class`` knows the padding token, for batches without an ``attention_mask``.
    """
    if not padding:
        if "attention_mask" in batch:
            return torch.as_tensor(batch["attention_mask"].sum())
        pad_token_id = getattr(processing_class, "pad_token_id", None)
        if pad_token_id is not None:
            return torch.as_tensor((batch[main_input] != pad_token_id).sum())
        logger.warning(
            "Could not determine method to count non-padding tokens, falling back to counting all tokens. The batch "
            "has no `attention_mask`; give the trainer a `processing_class` with a `pad_token_id`."
        )
    return torch.tensor(batch[main_input].numel())


def loss_of(outputs: "Nested", inputs: "Batch") -> torch.Tensor:
    """Return the loss that a model computed, ``loss`` or the first of a tuple; raise ``ValueError`` without one."""
    if isinstance(outputs, dict) and "loss" not in outputs:
        raise ValueError(
            "The model did not return a loss from the inputs, only the following keys: "
            f"{','.join(outputs)}. For reference, the inputs it received are {','.join(inputs)}. Give it labels under "
            "the name it takes, load one of the `AutoModelFor...` classes if it has no head for a task, or override "
            "`compute_loss`."
        )
    loss: torch.Tensor = outputs["loss"] if isinstance(outputs, dict) else outputs[0]
    return loss


def logits_of(outputs: "Nested", ignored: list[str], *, skip_first: bool) -> Any:
    """Return everything a model returned but the outputs named in ``ignored``; detached.

    ``skip_first`` leaves out the first entry of a tuple, which is the loss.
    """
    if isinstance(outputs, dict):
        outputs = tuple(value for key, value in outputs.items() if key not in ignored)
    elif skip_first:
        outputs = outputs[1:]
    logits = nested_detach(outputs)
    return logits[0] if len(logits) == 1 else logits


def labels_of(inputs: "Batch", names: list[str]) -> Any:
    """Return the detached labels of a batch: a tuple where the model takes several."""
    labels = nested_detach(tuple(inputs.get(name) for name in names))
    return labels[0] if len(labels) == 1 else labels
