"""Which hooks of ``transformers.Trainer`` are never called here, since Lightning does their work."""

from portico.contract import Facade
from portico.errors import InputError

_STEP_HOOKS = (
    "`training_step`, `get_batch_samples` or a callback's `on_epoch_begin`, `on_step_begin` and `on_step_end`"
)
_PLACEMENT = "nothing, and choose a Lightning `strategy` in the training arguments"

INSTEAD = {
    "_build_accelerator_args": _PLACEMENT,
    "_defer_fsdp_gradient_reduction": _PLACEMENT,
    "_has_mixed_mesh_grads": "`_clip_grad_norm` and `_get_grad_norm`",
    "_mixed_mesh_grad_norm": "`_clip_grad_norm` and `_get_grad_norm`",
    "_prepare_context_parallel_inputs": "`_prepare_inputs`",
    "_prepare_for_training": "`_wrap_model`, `create_optimizer` or `_load_optimizer_and_scheduler`",
    "_run_epoch": _STEP_HOOKS,
    "_sync_replicated_trainable_parameters": _PLACEMENT,
    "_update_auto_batch_size": "`_inner_training_loop`, which gets the batch size",
}


def refuse_uncalled_hooks(facade_class: type[Facade]) -> None:
    """Refuse a subclass that overrides what no code here calls: its override would be dropped in silence.

    Raises:
        InputError: Names the method and what to override instead.
    """
    for name, instead in INSTEAD.items():
        if hasattr(facade_class, name):
            raise InputError(
                f"`{facade_class.__name__}` overrides `{name}`, which is never called here, since Lightning runs the "
                f"loops; override {instead} instead."
            )
