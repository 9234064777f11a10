"""What is known of a run before its first step."""

from typing import TYPE_CHECKING, Any

from transformers.trainer_callback import TrainerState
from transformers.trainer_utils import has_length

from portico.checkpoint.callback_states import exportable_callbacks
from portico.plan import RunPlan

if TYPE_CHECKING:
    from portico.contract import Facade


def count_run(facade: "Facade", args: Any, loader: Any) -> RunPlan:
    """Count the steps of a run of ``facade`` over ``loader``."""
    num_batches = len(loader) if has_length(loader) else None
    return RunPlan.make(
        max_steps=args.max_steps,
        num_train_epochs=args.num_train_epochs,
        gradient_accumulation_steps=args.gradient_accumulation_steps,
        total_train_batch_size=facade.get_total_train_batch_size(args),
        num_batches=num_batches,
        num_examples=facade.num_examples(loader) if num_batches else None,
    )


def fresh_state(facade: "Facade") -> TrainerState:
    """Return the state of a run that has not made a step."""
    return TrainerState(
        is_local_process_zero=facade.is_local_process_zero(),
        is_world_process_zero=facade.is_world_process_zero(),
        stateful_callbacks=exportable_callbacks(facade),
    )
