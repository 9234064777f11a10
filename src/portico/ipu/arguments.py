"""Training arguments that a run on IPUs cannot follow."""

from dataclasses import dataclass, field
from typing import Any

from portico.arguments import TrainingArguments
from portico.errors import InputError
from portico.value_rules import Rule

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


@dataclass
class IPUTrainingArguments(TrainingArguments):
    """Arguments of :class:`~portico.ipu.trainer.IPUTrainer`.

    Args:
        per_device_train_batch_size: Rows of a micro-batch on one replica.
        per_device_eval_batch_size: The same for evaluation.
        gradient_accumulation_steps: Overrides the IPUConfig's; afterwards 1, as the host accumulates nothing.
        gradient_checkpointing: Sets ``recompute_checkpoint_every_layer`` of the IPUConfig.
        auto_loss_scaling: Sets ``auto_loss_scaling`` of the IPUConfig.
        ipu_config_name: Where scripts find the IPUConfig.
        ipu_config_overrides: Attributes of the IPUConfig, as in ``"device_iterations=4,layers_per_ipu=[2 2]"``.
        n_ipu: IPUs in all; the replication factor follows from it.
        fp32: Single precision throughout, instead of half.
        lamb: Train with LAMB.
        lamb_no_bias_correction: Train with LAMB without bias correction.
        loss_scaling: Factor of the loss.
        dataloader_mode: ``"sync"``, ``"async"`` or ``"async_rebatched"``.
        compile_only: Compile the programs, then exit.
        pad_on_batch_axis: Train on a last batch that is not full, filled up with repeated rows.
        max_grad_norm: Norm over all weights to which the program clips; by default it does not.
    """

    per_device_train_batch_size: int = field(default=1, metadata={"help": "Rows of a micro-batch on one replica."})
    per_device_eval_batch_size: int = field(default=1, metadata={"help": "Rows of a micro-batch on one replica."})
    gradient_accumulation_steps: int | None = field(  # type: ignore[assignment]
        default=None, metadata={"help": "Micro-batches of a replica for one weight update; the IPUConfig's if unset."}
    )
    max_grad_norm: float | None = field(  # type: ignore[assignment]
        default=None, metadata={"help": "Norm to which the program clips gradients."}
    )
    logging_nan_inf_filter: bool = field(default=False, metadata={"help": "Leave NaN and inf out of logged losses."})
    # `HfArgumentParser` reads it in this order only.
    report_to: None | str | list[str] = field(  # noqa: RUF036
        default="none", metadata={"help": "Where logs go."}
    )
    auto_loss_scaling: bool = field(default=False, metadata={"help": "Let the loss scaling follow the gradients."})
    ipu_config_name: str | None = field(default=None, metadata={"help": "Where the IPUConfig is found."})
    ipu_config_overrides: str | None = field(default=None, metadata={"help": "Attributes of the IPUConfig."})
    n_ipu: int | None = field(default=None, metadata={"help": "IPUs in all.", "choices": list(N_IPU_CHOICES)})
    fp32: bool = field(default=False, metadata={"help": "Single precision throughout."})
    lamb: bool = field(default=False, metadata={"help": "Train with LAMB."})
    lamb_no_bias_correction: bool = field(default=False, metadata={"help": "LAMB without bias correction."})
    loss_scaling: float | None = field(default=None, metadata={"help": "Factor of the loss."})
    dataloader_mode: str = field(
        default="sync", metadata={"help": "How batches are loaded.", "choices": list(LOADER_MODES)}
    )
    compile_only: bool = field(default=False, metadata={"help": "Compile the programs, then exit."})
    pad_on_batch_axis: bool = field(default=False, metadata={"help": "Fill up the last training batch."})

    def __post_init__(self) -> None:
        """Check and normalise, as ``transformers`` does; then take what the IPUConfig decides.

        Raises:
            InputError: If a value cannot be used on IPUs.
        """
        check_arguments(self)
        self.accelerator, self.strategy, self.precision = "ipu", "ipu", "32-true"
        overrides = [self.ipu_config_overrides] if self.ipu_config_overrides else []
        if self.gradient_accumulation_steps is not None:
            overrides.append(f"gradient_accumulation_steps={self.gradient_accumulation_steps}")
        if self.gradient_checkpointing or self.activation_checkpointing:
            overrides.append("recompute_checkpoint_every_layer=True")
        if self.auto_loss_scaling:
            overrides.append("auto_loss_scaling=True")
        self.ipu_config_overrides = ",".join(overrides) or None
        self.gradient_accumulation_steps = 1
        # The program recomputes; the host's model must not.
        self.gradient_checkpointing = self.activation_checkpointing = None
        self.max_grad_norm = self.max_grad_norm or 0.0
        super().__post_init__()

    @property
    def train_batch_size(self) -> int:
        """Rows of a micro-batch in training."""
        return int(self.per_device_train_batch_size)

    @property
    def eval_batch_size(self) -> int:
        """Rows of a micro-batch in evaluation."""
        return int(self.per_device_eval_batch_size)

    @property
    def uses_lamb(self) -> bool:
        """Whether LAMB trains."""
        return self.lamb or self.lamb_no_bias_correction

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments as plain values, with secrets blanked."""
        values: dict[str, Any] = super().to_dict()
        return values
