"""``IPUTrainingArguments``: Hugging Face's, and what a run on IPUs needs beside them."""

from dataclasses import dataclass, field
from typing import Any

from portico.arguments import TrainingArguments
from portico.ipu.argument_checks import LOADER_MODES, N_IPU_CHOICES, check_arguments


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
