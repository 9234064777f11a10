"""Training arguments that a run on IPUs cannot follow."""

from typing import Any

from portico.errors import InputError
from portico.settings import Rule

N_IPU_CHOICES = (1, 2, *range(4, 65, 4))
LOADER_MODES = ("sync", "async", "async_rebatched")
# What these ask for is decided by the program.
_REFUSED = {
    "auto_find_batch_size": "leave it out; the placement report says what fits on each IPU",
    "bf16": "leave it out; IPUs compute in half precision, or with `fp32=True` in single precision",
    "fp16": "leave it out; half precision is the default, and `fp32=True` turns it off",
    "torch_compile": "leave it out; the model is compiled for IPUs anyway",
    "ddp_backend": "set `replication_factor` of the IPUConfig, or `n_ipu`",
    "deepspeed": "leave it out; `layers_per_ipu` of the IPUConfig spreads the model",
    "fsdp": "leave it out; `layers_per_ipu` of the IPUConfig spreads the model",
    "include_inputs_for_metrics": "leave it out, and look the inputs up in the data set",
    "gradient_checkpointing_kwargs": "leave it out; `gradient_checkpointing` recomputes from every layer's output on",
}
# What is decided elsewhere, the values that say nothing else, and where.
_DECIDED = {
    "accelerator": ((None, "ipu"), "leave it out, or use another trainer"),
    "strategy": ((None, "ipu"), "leave it out, or use another trainer"),
    "precision": ((None, "32-true"), "leave it out; `fp32` chooses between single and half precision"),
    "devices": ((None, 1), "leave it out; `n_ipu`, or `replication_factor` of the IPUConfig, chooses how many"),
    "num_nodes": ((None, 1), "leave it out; a run on IPUs has one host"),
}
_NUMBERS = {
    "per_device_train_batch_size": Rule((int,), 1),
    "per_device_eval_batch_size": Rule((int,), 1),
    "max_grad_norm": Rule((float, type(None)), 0),
}


def check_arguments(args: Any) -> None:
    """Refuse arguments that a run on IPUs cannot follow.

    Args:
        args: ``IPUTrainingArguments`` as they were given.

    Raises:
        InputError: Names the argument, and what to do instead.
    """
    for name, rule in _NUMBERS.items():
        if not rule.allows(getattr(args, name)):
            raise InputError(f"`{name}={getattr(args, name)!r}` cannot be used; set it to {rule}.")
    if args.loss_scaling is not None and not (Rule((float,)).allows(args.loss_scaling) and args.loss_scaling > 0):
        raise InputError(f"`loss_scaling={args.loss_scaling!r}` is no factor; use a number above 0, such as 128.")
    for name, (neutral, instead) in _DECIDED.items():
        if getattr(args, name) not in neutral:
            raise InputError(f"`{name}={getattr(args, name)!r}` does not choose IPUs; {instead}.")
    if "adamw" not in str(getattr(args.optim, "value", args.optim)):
        raise InputError(
            f"`optim={str(getattr(args.optim, 'value', args.optim))!r}` is not made for IPUs; leave it out for "
            "AdamW, set `lamb=True` for LAMB, or give `optimizers` to the trainer."
        )
    if args.uses_lamb and args.max_grad_norm:
        raise InputError(
            f"`max_grad_norm={args.max_grad_norm}` came with LAMB, which scales its steps by norms and does not "
            "clip; leave one of them out."
        )
    for name, instead in _REFUSED.items():
        if getattr(args, name, None):
            raise InputError(f"`{name}={getattr(args, name)!r}` is not supported on IPUs; {instead}.")
    if args.n_ipu is not None and args.n_ipu not in N_IPU_CHOICES:
        raise InputError(f"`n_ipu={args.n_ipu}` is no size of a partition; use one of {list(N_IPU_CHOICES)}.")
    if args.dataloader_mode not in LOADER_MODES:
        raise InputError(
            f"`dataloader_mode={args.dataloader_mode!r}` is unknown; use one of {', '.join(LOADER_MODES)}."
        )
