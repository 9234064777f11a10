"""What is read off one batch: its labels and tokens before the model, the loss and the logits after it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from portico.hf_compat import logger, nested_detach

if TYPE_CHECKING:
    from portico.annotations import Batch, Nested, NumItems, ProcessingClass


def count_labels(batches: Sequence["Batch"], *, shifts_labels: bool) -> "NumItems":
    """Return the number of label positions in an accumulation window that a loss counts, a tensor on its device.

    Args:
        batches: Batches of the window.
        shifts_labels: Whether the loss is causal: it never predicts the first position.

    Returns:
        An int64 scalar, or ``None`` for labels that are no tensors, such as the boxes of object detection.
    """
    try:
        return sum(_scored_labels(batch, shifts_labels).ne(-100).sum() for batch in batches)
    except (TypeError, AttributeError):
        return None


def _scored_labels(batch: "Batch", shifts_labels: bool) -> torch.Tensor:
    labels: torch.Tensor
    if "shift_labels" in batch:
        labels = batch["shift_labels"]
    else:
        labels = batch["labels"][..., 1:] if shifts_labels else batch["labels"]
    return labels


def count_tokens(
    batch: "Batch", main_input: str, processing_class: "ProcessingClass | None", *, padding: bool
) -> torch.Tensor:
    """Return the number of input tokens of a batch, a scalar.

    Args:
        batch: Model inputs.
        main_input: Name of the input that holds the tokens.
        processing_class: Knows the padding token, for batches without an ``attention_mask``.
        padding: Whether padding counts.
    """
    if not padding and "attention_mask" in batch:
        return torch.as_tensor(batch["attention_mask"].sum())
    pad_token_id = getattr(processing_class, "pad_token_id", None)
    if not padding and pad_token_id is not None:
        return torch.as_tensor((batch[main_input] != pad_token_id).sum())
    if not padding:
        logger.warning(
            "`include_num_input_tokens_seen='non_padding'` counts padding too, because there is neither an "
            "`attention_mask` in the batch nor a `pad_token_id`; give the trainer its `processing_class`."
        )
    return torch.tensor(batch[main_input].numel())


def loss_of(outputs: "Nested", inputs: "Batch") -> torch.Tensor:
    """Return the loss that a model computed: the entry ``loss``, or the first one of a tuple.

    Raises:
        ValueError: If the outputs are named and none is the loss.
    """
    named: Any = outputs
    if isinstance(outputs, dict):
        if "loss" not in outputs:
            raise ValueError(
                f"The model returned no loss, only {', '.join(outputs)}; it received {', '.join(inputs)}. Give it "
                "labels under the name it takes, load one of the `AutoModelFor...` classes if it has no head for a "
                "task, or override `compute_loss`."
            )
        loss: torch.Tensor = named["loss"]
    else:
        loss = named[0]
    return loss


def logits_of(outputs: "Nested", ignored: list[str], *, skip_first: bool) -> Any:
    """Return everything a model returned but the outputs named in ``ignored``; detached.

    Args:
        outputs: A mapping, or a tuple.
        ignored: Names to leave out.
        skip_first: Leave out the first entry of a tuple, which is the loss.
    """
    if isinstance(outputs, dict):
        logits: Any = tuple(value for key, value in outputs.items() if key not in ignored)
    else:
        positional: Any = outputs
        logits = positional[1:] if skip_first else positional
    logits = nested_detach(logits)
    return logits[0] if len(logits) == 1 else logits


def labels_of(inputs: "Batch", names: list[str]) -> Any:
    """Return the detached labels of a batch: a tuple where the model takes several."""
    labels = nested_detach(tuple(inputs.get(name) for name in names))
    return labels[0] if len(labels) == 1 else labels
