"""What every group of facade methods may rely on."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers.trainer_callback import CallbackHandler, TrainerControl, TrainerState

if TYPE_CHECKING:
    import lightning.pytorch as pl

    from portico.accelerator import FacadeAccelerator
    from portico.datamodule import TrainerDataModule
    from portico.module import TrainerModule


class FacadeBase:
    """The attributes of a facade, with Hugging Face's names; all are set by :class:`portico.trainer.Trainer`."""

    args: Any
    model: Any
    model_wrapped: Any
    model_init: Callable[..., nn.Module] | None
    data_collator: Any
    train_dataset: Any
    eval_dataset: Any
    processing_class: Any
    compute_loss_func: Callable[..., Any] | None
    compute_metrics: Callable[..., Any] | None
    preprocess_logits_for_metrics: Callable[..., Any] | None
    optimizer: Any
    lr_scheduler: Any
    optimizer_cls_and_kwargs: tuple[Any, dict[str, Any]] | None
    callback_handler: CallbackHandler
    state: TrainerState
    control: TrainerControl
    accelerator: "FacadeAccelerator"
    gather_function: Callable[..., Any]
    lightning_trainer: "pl.Trainer"
    module: "TrainerModule"
    datamodule: "TrainerDataModule"
    label_names: list[str]
    can_return_loss: bool
    label_smoother: Any
    model_accepts_loss_kwargs: bool
    is_in_train: bool
    current_flos: float
    current_gradient_accumulation_steps: int
    hp_search_backend: Any
    hp_name: Callable[..., str] | None
    loss_is_scaled_for_ga: bool | None
    _train_batch_size: int
    _created_lr_scheduler: bool
    _loss_shifts_labels: bool
    _signature_columns: list[str] | None
    _memory_tracker: Any
    _tr_loss: torch.Tensor
    _total_loss_scalar: float
    _globalstep_last_logged: int
    _initial_global_step: int
    _initial_num_input_tokens_seen: int
    _loggers: list[Any]

    def _use_present_model(self) -> None:
        """Put the model that the facade holds now, which the user may have replaced, into the module."""
        if self.module.model is not self.model:
            self.module.model = self.model
            self.model_wrapped = self.model
