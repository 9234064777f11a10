"""What the loop may call on a trainer: the methods and attributes of ``transformers.Trainer``, and nothing else.

A type, and no class: mypy holds what the loop calls against the class of transformers. The core of the trainer
(:mod:`portico.loop.core`) is untyped here, since it makes the objects that take a trainer of this type.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import transformers
    from torch import nn

    from portico.arguments import TrainingArguments
    from portico.distributed.accelerator import Accelerator

    class TrainerHooks(transformers.Trainer):
        """``transformers.Trainer`` as portico's trainer implements it."""

        _portico: Any
        args: TrainingArguments
        model: nn.Module
        accelerator: Accelerator
        optimizer: Any
        lr_scheduler: Any
        preprocess_logits_for_metrics: Callable[..., Any] | None
