"""What a run needs from the trainer: its parts, its state, and the methods that users override.

The loop uses a trainer through this protocol only, so everything that it reads, calls or sets is listed here, and a
test can replace the trainer with a stand-in that has these names.
"""

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import nn
from transformers import TrainerControl, TrainerState

from portico.arguments import TrainingArguments
from portico.compat.annotations import (
    Batch,
    ComputeLoss,
    ComputeMetrics,
    EvalExamples,
    Examples,
    Loader,
    NumItems,
    Trial,
)
from portico.compat.transformers import CallbackHandler, TrainOutput
from portico.distributed.accelerator import Accelerator
from portico.loop.core import TrainerCore
from portico.observers import ObservedTrainer


class TrainerHooks(ObservedTrainer, Protocol):
    """The part of :class:`~portico.trainer.Trainer` that the loop uses."""

    # ---- Parts ----

    _core: TrainerCore
    _loss_shifts_labels: bool

    @property
    def args(self) -> TrainingArguments: ...

    model: nn.Module
    model_wrapped: nn.Module
    neftune_noise_alpha: float | None
    optimizer: Any
    lr_scheduler: Any
    train_dataset: Examples | None
    eval_dataset: EvalExamples | None
    accelerator: Accelerator
    callback_handler: CallbackHandler
    compute_metrics: ComputeMetrics | None
    compute_loss_func: ComputeLoss | None
    preprocess_logits_for_metrics: Callable[..., Any] | None
    gather_function: Callable[..., Any]
    label_names: list[str]
    place_model_on_device: bool

    @property
    def loss_is_scaled_for_ga(self) -> bool | None: ...

    # ---- State of a run ----

    state: TrainerState
    control: TrainerControl
    is_in_train: bool
    current_flos: float
    current_gradient_accumulation_steps: int

    # ---- Setting up ----

    def create_accelerator_and_postprocess(self) -> None: ...
    def get_train_dataloader(self) -> Loader: ...
    def get_eval_dataloader(self, eval_dataset: Any = None, /) -> Loader: ...
    def get_test_dataloader(self, test_dataset: Any, /) -> Loader: ...
    def num_examples(self, dataloader: Loader, /) -> int: ...
    def is_local_process_zero(self) -> bool: ...
    def is_world_process_zero(self) -> bool: ...
    def set_initial_training_values(
        self, args: TrainingArguments, dataloader: Loader, /
    ) -> tuple[int, int, int, float, int, int, int]: ...
    def _load_rng_state(self, checkpoint: str | None, /) -> None: ...

    # ---- A step ----

    def get_batch_samples(
        self, epoch_iterator: Iterator[Batch], num_batches: int, device: torch.device | None = None, /
    ) -> tuple[list[Batch], NumItems]: ...
    def training_step(
        self, model: nn.Module, inputs: Batch, num_items_in_batch: NumItems = None, /
    ) -> torch.Tensor: ...
    def compute_loss(
        self, model: nn.Module, inputs: Batch, return_outputs: bool = False, num_items_in_batch: NumItems = None, /
    ) -> Any: ...
    def floating_point_ops(self, inputs: Batch, /) -> int: ...
    def _track_num_input_tokens(self, inputs: Batch, /) -> None: ...
    def _get_learning_rate(self) -> float: ...
    def _maybe_log_save_evaluate(
        self,
        tr_loss: torch.Tensor,
        grad_norm: torch.Tensor | float | None,
        model: nn.Module,
        trial: Trial,
        epoch: float,
        ignore_keys_for_eval: list[str] | None,
        start_time: float,
        /,
        *,
        learning_rate: float | None = None,
    ) -> None: ...

    # ---- An evaluation ----

    def _evaluate(
        self, trial: Trial, ignore_keys_for_eval: list[str] | None, skip_scheduler: bool = False
    ) -> dict[str, float]: ...
    def _wrap_model(self, model: nn.Module, training: bool = True, dataloader: Loader | None = None) -> nn.Module: ...
    def prediction_step(
        self, model: nn.Module, inputs: Batch, prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[torch.Tensor | None, Any, Any]: ...
    def _prepare_input(self, data: Any, /) -> Any: ...

    # ---- The end ----

    def _finalize_training(self, trial: Trial, num_train_samples: float, start_time: float, /) -> TrainOutput: ...
