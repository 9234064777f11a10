"""What a subclass of the trainer overrides: hooks with an older signature, and methods that nothing calls here."""

import functools
import inspect
import warnings
from collections.abc import Callable
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from portico.compat.transformers import logger

if TYPE_CHECKING:
    from portico.compat.annotations import Batch

# ---- Hooks with an older signature ----

# Arguments that transformers 5 passes to each hook, and 4.31 to none, or in some runs only.
ADDED_ARGUMENTS = {
    "_get_train_sampler": {"train_dataset"},
    "_maybe_log_save_evaluate": {"grad_norm", "start_time", "learning_rate"},
    "compute_loss": {"return_outputs", "num_items_in_batch"},
    "evaluate": {"ignore_keys"},
    "get_batch_samples": {"device"},
    "log": {"start_time"},
    "save_model": {"_internal_call"},
    "training_step": {"num_items_in_batch"},
}
_CATCH_ALL = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
LEFT_OUT = "_left_out_arguments"
"""Attribute of an adapted override: the arguments that it is called without."""


def adapt_overrides(subclass: type, trainer_class: type) -> None:
    """Wrap hooks of ``subclass`` with an older signature so that ``trainer_class`` can call them with the current one.

    Each is announced once, with the signature to give it.
    """
    for hook, added in ADDED_ARGUMENTS.items():
        override, current = getattr(subclass, hook), inspect.signature(getattr(trainer_class, hook))
        names = list(current.parameters)
        missing = _find_left_out(added, override, names)
        if missing and not hasattr(override, LEFT_OUT):
            parameters = current.parameters.values()
            bare = inspect.Signature([parameter.replace(annotation=parameter.empty) for parameter in parameters])
            warnings.warn(
                f"`{subclass.__name__}.{hook}` does not take {', '.join(f'`{name}`' for name in sorted(missing))}, as "
                f"in older versions of transformers; it is called without. Give it the signature `{hook}{bare}`.",
                FutureWarning,
                stacklevel=3,
            )
            adapted = _call_without(missing, override, names)
            setattr(subclass, hook, _add_outputs(adapted) if "return_outputs" in missing else adapted)


def _find_left_out(added: set[str], override: Callable[..., Any], current: list[str]) -> set[str]:
    parameters = inspect.signature(override).parameters.values()
    if any(parameter.kind in _CATCH_ALL for parameter in parameters):
        return set()
    names = [parameter.name for parameter in parameters]
    # An unknown name in the position of a known argument is that argument, renamed by the user.
    renamed = {known for known, own in zip(current, names, strict=False) if own not in current}
    return added - set(names) - renamed


def _call_without(missing: set[str], override: Callable[..., Any], names: list[str]) -> Callable[..., Any]:
    @functools.wraps(override)
    def adapted(*args: object, **kwargs: object) -> Any:
        kept = [value for name, value in zip(names, args, strict=False) if name not in missing]
        named = {name: value for name, value in kwargs.items() if name not in missing}
        return override(*kept, *args[len(names) :], **named)

    setattr(adapted, LEFT_OUT, frozenset(missing))
    return adapted


def _add_outputs(compute_loss: Callable[..., Any]) -> Callable[..., Any]:
    """Let an override that returns only the loss, as 4.31 takes it in training, return the model's outputs too."""

    @functools.wraps(compute_loss)
    def adapted(
        trainer: object, model: Any, inputs: "Batch", return_outputs: bool = False, *args: object, **kwargs: object
    ) -> Any:
        # First: the override may take labels out of the inputs.
        outputs = model(**inputs) if return_outputs else None
        loss = compute_loss(trainer, model, inputs, return_outputs, *args, **kwargs)
        return (loss, outputs) if return_outputs else loss

    return adapted


# ---- Hooks of transformers.Trainer 5.23 that nothing calls here, since Lightning does their work ----

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


def warn_of_misspelt_hooks(trainer_class: type, base: type) -> None:
    """Warn about a method that nothing calls and whose name resembles that of a method of ``base``."""
    own = {
        name: method
        for kind in trainer_class.__mro__
        if not kind.__module__.startswith("portico.")
        for name, method in vars(kind).items()
        if inspect.isfunction(method)
    }
    called = {name for method in own.values() for name in method.__code__.co_names}
    hooks = [name for name, method in inspect.getmembers(base, inspect.isfunction) if name not in own]
    for name in own:
        nearest = get_close_matches(name, hooks, n=1, cutoff=_NEARLY_EQUAL)
        if nearest and name not in called and not hasattr(base, name):
            logger.warning(
                f"`{trainer_class.__name__}.{name}` is called by nothing here; if it is to override "
                f"`{nearest[0]}`, give it that name."
            )


# Of `difflib`: one letter of about ten.
_NEARLY_EQUAL = 0.92
