"""``IPUTrainingArguments``: Hugging Face's training arguments plus arguments for IPUs."""

import copy
import logging
import os
from dataclasses import dataclass, field
from typing import Any

from portico.arguments import TrainingArguments
from portico.errors import InputError
from portico.ipu.config import IPUConfig
from portico.rules import Rule, check_values
from portico.trust.names import data_only

logger = logging.getLogger(__name__)

LOADER_MODES = ("sync", "async", "async_rebatched")
_RULES = {
    "ipu_config_overrides": Rule((str, type(None))),
    "per_device_train_batch_size": Rule((int,), 1),
    "per_device_eval_batch_size": Rule((int,), 1),
    "max_grad_norm": Rule((float, type(None)), 0),
    "n_ipu": Rule((int, type(None)), 1),
}
# Arguments that choose the hardware, the values allowed for them, and what to use instead.
_PLACEMENT = {
    "accelerator": ((None, "ipu"), "leave it out, or use another trainer"),
    "strategy": ((None, "ipu"), "leave it out, or use another trainer"),
    "precision": ((None, "32-true"), "leave it out; `fp32` chooses between single and half precision"),
    "devices": ((None, 1), "leave it out; `n_ipu`, or `replication_factor` of the IPUConfig, chooses how many"),
    "num_nodes": ((None, 1), "leave it out; a run on IPUs has one host"),
}
_UNSUPPORTED = {
    "auto_find_batch_size": "leave it out; the placement report says what fits on each IPU",
    "bf16": "leave it out; IPUs compute in half precision, or with `fp32=True` in single precision",
    "fp16": "leave it out; half precision is the default, and `fp32=True` turns it off",
    "torch_compile": "leave it out; the model is compiled for IPUs anyway",
    "ddp_backend": "set `replication_factor` of the IPUConfig, or `n_ipu`",
    "deepspeed": "leave it out; `layers_per_ipu` of the IPUConfig spreads the model",
    "fsdp": "leave it out; `layers_per_ipu` of the IPUConfig spreads the model",
    "gradient_checkpointing_kwargs": "leave it out; `gradient_checkpointing` recomputes from the output of each layer",
}


def _option(default: object, text: str, **metadata: object) -> Any:
    return field(default=default, metadata={"help": text, **metadata})


@data_only
@dataclass
class IPUTrainingArguments(TrainingArguments):
    """Arguments of :class:`~portico.ipu.trainer.IPUTrainer`; ``help`` of each field describes it.

    ``gradient_accumulation_steps``, ``gradient_checkpointing`` and ``auto_loss_scaling`` are passed on to the
    IPUConfig by ``ipu_config_overrides``, and reset: the program follows them, the host must not.

    Raises:
        InputError: If a value cannot be used on IPUs.
    """

    per_device_train_batch_size: int = _option(1, "Rows of a micro-batch on one replica.")
    per_device_eval_batch_size: int = _option(1, "Rows of a micro-batch on one replica in evaluation.")
    gradient_accumulation_steps: int | None = _option(  # type: ignore[assignment]
        None, "Micro-batches of a replica for one weight update; the IPUConfig's if unset."
    )
    max_grad_norm: float | None = _option(  # type: ignore[assignment]
        None, "Norm over all weights to which the program clips gradients."
    )
    accelerator: str | None = _option("ipu", "Lightning accelerator.")
    logging_nan_inf_filter: bool = _option(False, "Leave NaN and inf out of logged losses.")
    # `HfArgumentParser` parses the type only with None first.
    report_to: None | str | list[str] = field(  # noqa: RUF036
        default="none", metadata={"help": "Where logs go."}
    )
    auto_loss_scaling: bool = _option(False, "Adjust the loss scaling to the gradients.")
    ipu_config_name: str | None = _option(None, "Folder or hub name of an IPUConfig, for scripts to load.")
    ipu_config_overrides: str | None = _option(
        None, "Attributes of the IPUConfig: 'device_iterations=4,layers_per_ipu=[2 2]'."
    )
    # poptorch rounds it up to a partition.
    n_ipu: int | None = _option(None, "Total number of IPUs; sets the replication factor.")
    fp32: bool = _option(False, "Single instead of half precision throughout.")
    lamb: bool = _option(False, "Train with LAMB.")
    lamb_no_bias_correction: bool = _option(False, "Train with LAMB without bias correction.")
    loss_scaling: float | None = _option(None, "Factor of the loss.")
    dataloader_mode: str = _option(
        "sync",
        "'async' loads batches ahead of the calls; 'async_rebatched' joins smaller ones of workers.",
        choices=list(LOADER_MODES),
    )
    compile_only: bool = _option(False, "Compile the programs, then exit.")
    pad_on_batch_axis: bool = _option(False, "Train on an incomplete last batch, padded with repeated rows.")

    def __post_init__(self) -> None:
        _check(self)
        self.accelerator = "ipu"
        self.strategy = "ipu"
        self.precision = "32-true"
        overrides = [self.ipu_config_overrides] if self.ipu_config_overrides else []
        if self.gradient_accumulation_steps is not None:
            overrides.append(f"gradient_accumulation_steps={self.gradient_accumulation_steps}")
        if self.gradient_checkpointing or self.activation_checkpointing:
            overrides.append("recompute_checkpoint_every_layer=True")
        if self.auto_loss_scaling:
            overrides.append("auto_loss_scaling=True")
        self.ipu_config_overrides = ",".join(overrides) or None
        # From here on these belong to the program; set on the host, they would take effect twice.
        self.gradient_accumulation_steps = 1
        self.gradient_checkpointing = self.activation_checkpointing = None
        self.max_grad_norm = self.max_grad_norm or 0.0
        super().__post_init__()

    # `transformers` multiplies the two by the number of devices.

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
        """Whether to train with LAMB."""
        return self.lamb or self.lamb_no_bias_correction


def _check(args: IPUTrainingArguments) -> None:
    check_values("", {name: getattr(args, name) for name in _RULES}, _RULES)
    if args.loss_scaling is not None and not (
        Rule((float,), is_finite=True).allows(args.loss_scaling) and args.loss_scaling > 0
    ):
        raise InputError(
            f"`loss_scaling={args.loss_scaling!r}` cannot be used; set it to a number above 0, such as 128."
        )
    for name, (allowed, instead) in _PLACEMENT.items():
        if getattr(args, name) not in allowed:
            raise InputError(f"`{name}={getattr(args, name)!r}` does not choose IPUs; {instead}.")
    optim = str(getattr(args.optim, "value", args.optim))
    if "adamw" not in optim:
        raise InputError(
            f"`optim={optim!r}` does not exist on IPUs; leave it out for AdamW, set `lamb=True` for LAMB, or pass "
            "`optimizers` to the trainer."
        )
    if args.uses_lamb and args.max_grad_norm:
        logger.warning(
            "`max_grad_norm=%s` has no effect with LAMB, which scales its steps by norms instead of clipping; leave "
            "it out.",
            args.max_grad_norm,
        )
    for name, instead in _UNSUPPORTED.items():
        if getattr(args, name, None):
            raise InputError(f"`{name}={getattr(args, name)!r}` is not supported on IPUs; {instead}.")
    if args.dataloader_mode not in LOADER_MODES:
        raise InputError(
            f"Unknown `dataloader_mode={args.dataloader_mode!r}`; expected one of {', '.join(LOADER_MODES)}."
        )


def resolve_config(ipu_config: IPUConfig | None, args: IPUTrainingArguments) -> IPUConfig:
    """Return a copy of a configuration, updated by the training arguments.

    Raises:
        TypeError: If ``ipu_config`` has the wrong type.
        InputError: If ``n_ipu`` is not a multiple of the IPUs of a replica.
    """
    if not isinstance(ipu_config, IPUConfig | None):
        raise TypeError(
            f"`ipu_config` is a {type(ipu_config).__name__}; give a `portico.IPUConfig`, which stands before `args`."
        )
    config = IPUConfig() if ipu_config is None else copy.deepcopy(ipu_config)
    if args.n_ipu is not None:
        for prefix in ("", "inference_"):
            name = f"{prefix}replication_factor"
            ipus_per_replica = getattr(config, f"{prefix}ipus_per_replica")
            factor, rest = divmod(args.n_ipu, ipus_per_replica)
            if rest:
                raise InputError(
                    f"`n_ipu={args.n_ipu}` is not a multiple of `{prefix}ipus_per_replica={ipus_per_replica}`, so "
                    "replicas do not fit; change one of them."
                )
            before = getattr(config, name)
            if before not in (1, factor):
                logger.warning("`n_ipu=%d` changes `%s` from %d to %d.", args.n_ipu, name, before, factor)
            setattr(config, name, factor)
    if args.ipu_config_overrides:
        config.update_from_string(args.ipu_config_overrides)
    config.seed = args.seed
    if config.replication_factor > 1:
        # As optimum-graphcore does.
        os.environ["TOKENIZERS_PARALLELISM"] = "true"
    return config
