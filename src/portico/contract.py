"""What the rooms below the facade may ask of it: Hugging Face's names, all of which a user may override or replace.

Data, module, state, checkpoint and evaluation know a trainer by this contract alone, so that imports run one way:
the trainer knows them, and they know nothing of the trainer.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
import torch
from torch import nn
from transformers.trainer_callback import CallbackHandler, TrainerControl, TrainerState
from transformers.trainer_utils import EvalLoopOutput, TrainOutput

if TYPE_CHECKING:
    from portico.accelerator.facade_accelerator import FacadeAccelerator


class Facade(ABC):
    """A trainer, seen from below.

    The attributes have the meaning they have in ``transformers.Trainer``; ``module`` and ``datamodule`` are the
    Lightning objects around model and data.
    """

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
    lightning_trainer: pl.Trainer
    module: Any
    datamodule: Any
    label_names: list[str]
    can_return_loss: bool
    label_smoother: Any
    model_accepts_loss_kwargs: bool
    is_in_train: bool
    current_flos: float
    current_gradient_accumulation_steps: int
    hub_model_id: str | None
    push_in_progress: Any
    hp_search_backend: Any
    hp_name: Callable[..., str] | None
    hp_space: Callable[[Any], Any]
    compute_objective: Callable[[dict[str, float]], Any]
    objective: Any
    loss_is_scaled_for_ga: bool | None
    _trial: Any
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
    _lightning_parts: dict[str, list[Any]]

    # Construction

    @abstractmethod
    def call_model_init(self, trial: Any = None) -> nn.Module:
        """Make a new model."""

    @abstractmethod
    def _seed_everything(self) -> None: ...

    # Data

    @abstractmethod
    def get_train_dataloader(self) -> Any:
        """Return the loader of the training set."""

    @abstractmethod
    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Return the loader of an evaluation set."""

    @abstractmethod
    def num_examples(self, dataloader: Any) -> int:
        """Return the number of examples behind a loader."""

    @abstractmethod
    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device | None = None
    ) -> tuple[list[Any], torch.Tensor | int | None]:
        """Fetch the batches of an accumulation window and count their labels."""

    @abstractmethod
    def _prepare_input(self, data: Any) -> Any: ...

    @abstractmethod
    def _remove_unused_columns(self, dataset: Any, description: str | None = None) -> Any: ...

    @abstractmethod
    def _get_collator_with_removed_columns(self, data_collator: Any, description: str | None = None) -> Any: ...

    @abstractmethod
    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Run an evaluation or a prediction."""

    @abstractmethod
    def _wrap_model(self, model: nn.Module, training: bool = True, dataloader: Any = None) -> nn.Module: ...

    # Steps

    @abstractmethod
    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """Return the loss of a batch."""

    @property
    @abstractmethod
    def _runs_own_backward(self) -> bool: ...

    @abstractmethod
    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: torch.Tensor | int | None = None
    ) -> torch.Tensor:
        """Run one batch forward and have it differentiated."""

    @abstractmethod
    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[torch.Tensor | None, Any, Any]:
        """Run one batch forward without training on it."""

    @abstractmethod
    def floating_point_ops(self, inputs: Any) -> int:
        """Return the operations of a forward and a backward pass."""

    @abstractmethod
    def _track_num_input_tokens(self, inputs: Any) -> None: ...

    @abstractmethod
    def _clip_grad_norm(self, model: nn.Module) -> torch.Tensor: ...

    @abstractmethod
    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any: ...

    # Optimizer

    @abstractmethod
    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """Return the names of the parameters that weight decay applies to."""

    @abstractmethod
    def _create_optimizer_and_scheduler_for(self, num_training_steps: int) -> None: ...

    @abstractmethod
    def _get_learning_rate(self) -> float: ...

    # Hub

    @abstractmethod
    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """Make the repository on the hub."""

    @abstractmethod
    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Upload the model and its card to the hub."""

    @abstractmethod
    def _push_from_checkpoint(self, checkpoint_folder: str) -> None: ...

    @abstractmethod
    def _finish_current_push(self) -> None: ...

    # A run

    @abstractmethod
    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Train, and return step count, mean loss and metrics."""

    @abstractmethod
    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Evaluate and return the metrics."""

    @abstractmethod
    def create_accelerator_and_postprocess(self) -> None:
        """Make ``accelerator`` anew of the arguments."""

    @abstractmethod
    def is_local_process_zero(self) -> bool:
        """Tell whether this is the first process of its machine."""

    @abstractmethod
    def is_world_process_zero(self) -> bool:
        """Tell whether this is the first process of all."""

    @abstractmethod
    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the model so that ``from_pretrained`` reads it."""

    @abstractmethod
    def set_initial_training_values(self, args: Any, dataloader: Any) -> tuple[int, int, int, float, int, int, int]:
        """Count a training run."""

    @abstractmethod
    def get_total_train_batch_size(self, args: Any) -> int:
        """Return how many examples make one optimizer step."""

    @abstractmethod
    def _save_optimizer_and_scheduler(self, output_dir: str) -> None: ...

    @abstractmethod
    def _save_scaler(self, output_dir: str) -> None: ...

    @abstractmethod
    def _save_rng_state(self, output_dir: str) -> None: ...

    @abstractmethod
    def _rotate_checkpoints(self, use_mtime: bool = False, output_dir: str | None = None) -> None: ...

    @abstractmethod
    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None: ...

    @abstractmethod
    def _optimizer_state_to_load(self, state: dict[str, Any]) -> dict[str, Any]: ...

    @abstractmethod
    def _load_scaler(self, checkpoint: str | None) -> None: ...

    @abstractmethod
    def _load_callback_state(self) -> None: ...

    @abstractmethod
    def _load_rng_state(self, checkpoint: str | None) -> None: ...

    @abstractmethod
    def _evaluate(
        self, trial: Any, ignore_keys_for_eval: list[str] | None, skip_scheduler: bool = False
    ) -> dict[str, float]: ...

    @abstractmethod
    def _maybe_log_save_evaluate(
        self,
        tr_loss: torch.Tensor,
        grad_norm: torch.Tensor | float | None,
        model: nn.Module,
        trial: Any,
        epoch: float,
        ignore_keys_for_eval: list[str] | None,
        start_time: float | None = None,
        learning_rate: float | None = None,
    ) -> None: ...

    @abstractmethod
    def _finalize_training(self, trial: Any, num_train_samples: float, start_time: float) -> TrainOutput: ...

    # A hyperparameter search

    @abstractmethod
    def _report_to_hp_search(self, trial: Any, step: int, metrics: dict[str, float]) -> None: ...

    @abstractmethod
    def _tune_save_checkpoint(self, checkpoint_dir: str) -> None: ...
