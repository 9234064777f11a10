"""What a run needs from the trainer: its parts, its state, and the methods that users override.

The loop uses a trainer through this protocol only, so everything that it reads, calls or sets is listed here, and a
test can replace the trainer with a stand-in that has these names.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from torch import nn
from transformers import TrainerControl, TrainerState

from portico.arguments import TrainingArguments
from portico.checkpoint.writer import CheckpointParts
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
from portico.loop.corrections import Corrections
from portico.loop.datamodule import TrainerDataModule
from portico.loop.evaluation import EvaluationSession
from portico.loop.module import TrainerModule
from portico.loop.plan import RunPlan
from portico.loop.run import TrainingRun
from portico.observers import ObservedTrainer


class TrainerHooks(ObservedTrainer, Protocol):
    """The part of :class:`~portico.trainer.Trainer` that the loop uses."""

    # ---- Parts ----

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
    corrections: Corrections
    lightning_trainer: pl.Trainer
    module: TrainerModule
    datamodule: TrainerDataModule
    compute_metrics: ComputeMetrics | None
    compute_loss_func: ComputeLoss | None
    preprocess_logits_for_metrics: Callable[..., Any] | None
    gather_function: Callable[..., Any]
    label_names: list[str]
    place_model_on_device: bool
    scores_logits: bool

    @property
    def loss_shifts_labels(self) -> bool: ...
    @property
    def loss_is_scaled_for_ga(self) -> bool | None: ...

    # ---- State of a run ----

    state: TrainerState
    control: TrainerControl
    is_in_train: bool
    current_flos: float
    current_gradient_accumulation_steps: int

    # ---- Setting up ----

    @property
    def runs_backward_in_step(self) -> bool: ...
    def create_accelerator_and_postprocess(self) -> None: ...
    def move_model_to_its_device(self) -> None: ...
    def lightning_callbacks_of(self, module: TrainerModule, /) -> list[Callback]: ...
    def batches_of(self, size: int, /) -> AbstractContextManager[None]: ...
    def get_train_dataloader(self) -> Loader: ...
    def get_eval_dataloader(self, eval_dataset: Any = None, /) -> Loader: ...
    def get_test_dataloader(self, test_dataset: Any, /) -> Loader: ...
    def num_examples(self, dataloader: Loader, /) -> int: ...
    def is_local_process_zero(self) -> bool: ...
    def is_world_process_zero(self) -> bool: ...
    def set_initial_training_values(
        self, args: TrainingArguments, dataloader: Loader, /
    ) -> tuple[int, int, int, float, int, int, int]: ...
    def set_up_run(self, plan: RunPlan, loader: Loader, /) -> TrainingRun: ...
    def renew_optimizer_and_scheduler(self, num_training_steps: int, /) -> None: ...
    def start_engine(self, num_training_steps: int | None = None, /) -> None: ...
    def adopt_state(self, state: TrainerState, /) -> None: ...
    def restore_optimizer_and_scaler(self, checkpoint: str, /) -> None: ...
    def _load_rng_state(self, checkpoint: str | None, /) -> None: ...

    # ---- A step ----

    def get_batch_samples(
        self, epoch_iterator: Iterator[Batch], num_batches: int, device: torch.device | None = None, /
    ) -> tuple[list[Batch], NumItems]: ...
    def sums_losses(self, num_items_in_batch: NumItems, /) -> bool: ...
    def training_step(
        self, model: nn.Module, inputs: Batch, num_items_in_batch: NumItems = None, /
    ) -> torch.Tensor: ...
    def compute_loss(
        self, model: nn.Module, inputs: Batch, return_outputs: bool = False, num_items_in_batch: NumItems = None, /
    ) -> Any: ...
    def backward_at_once(self, loss: torch.Tensor, **kwargs: Any) -> None: ...
    def floating_point_ops(self, inputs: Batch, /) -> int: ...
    def _track_num_input_tokens(self, inputs: Batch, /) -> None: ...
    def clip_and_measure_gradients(self) -> torch.Tensor | float: ...
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
    def checkpoint_parts(self) -> CheckpointParts: ...

    # ---- An evaluation ----

    def _evaluate(
        self, trial: Trial, ignore_keys_for_eval: list[str] | None, skip_scheduler: bool = False
    ) -> dict[str, float]: ...
    def evaluation_session(self, dataloader: Loader, **options: Any) -> EvaluationSession: ...
    def evaluating_own_data(self, name: str | None, /) -> AbstractContextManager[Any]: ...
    def _wrap_model(self, model: nn.Module, training: bool = True, dataloader: Loader | None = None) -> nn.Module: ...
    def prediction_step(
        self, model: nn.Module, inputs: Batch, prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[torch.Tensor | None, Any, Any]: ...
    def _prepare_input(self, data: Any, /) -> Any: ...

    # ---- The end ----

    def record_in_history(self, logs: dict[str, float], /) -> dict[str, float]: ...
    def _finalize_training(self, trial: Trial, num_train_samples: float, start_time: float, /) -> TrainOutput: ...
