"""The Hugging Face trainer under an AllenNLP trainer: Lightning runs the loops, AllenNLP's rules say what happens."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from portico.arguments import TrainingArguments
from portico.gradient_descent.epoch_plan import count_epochs
from portico.gradient_descent.errors import ConfigurationError
from portico.gradient_descent.run import DescentRun
from portico.gradient_descent.sharing import dealt
from portico.gradient_descent.validation import ValidationSession
from portico.hf_compat import EvalLoopOutput, TrainOutput
from portico.loop.evaluation import EvaluationSession
from portico.loop.run import fresh_state
from portico.model_setup import prepared_for_training
from portico.plan import ResumePoint
from portico.trainer import Trainer

# AllenNLP's rules take the place of these parts of the Hugging Face trainer.
PARTS_TURNED_OFF: dict[str, Any] = {
    "eval_strategy": "no",
    "save_strategy": "no",
    "logging_strategy": "no",
    "report_to": "none",
    "max_grad_norm": 0.0,
    "remove_unused_columns": False,
    "logging_nan_inf_filter": False,
}


def loop_arguments(
    *, output_dir: str, num_epochs: int, num_gradient_accumulation_steps: int, placement: Mapping[str, Any]
) -> TrainingArguments:
    """Return the training arguments of the loop.

    Args:
        output_dir: Folder of the run.
        num_epochs: Passes over the data.
        num_gradient_accumulation_steps: Batches of an optimizer step.
        placement: Lightning's accelerator, strategy, devices, nodes and precision.
    """
    return TrainingArguments(
        output_dir=output_dir,
        num_train_epochs=num_epochs,
        gradient_accumulation_steps=num_gradient_accumulation_steps,
        use_cpu=placement.get("accelerator") == "cpu",
        **PARTS_TURNED_OFF,
        **placement,
    )


class LoopTrainer(Trainer):
    """Runs the batches of an AllenNLP trainer through Lightning.

    Args:
        descent: The AllenNLP trainer.
        args: See :func:`loop_arguments`.
        **parts: Callbacks, loggers and plugins, as of :class:`~portico.trainer.Trainer`.

    Attributes:
        validation: The last validation.
        run_class: Class of a run.
    """

    loss_is_scaled_for_ga = False
    run_class: type[DescentRun] = DescentRun

    def __init__(self, descent: Any, args: TrainingArguments, **parts: Any) -> None:
        self.descent = descent
        self.validation: ValidationSession | None = None
        super().__init__(model=descent.model, args=args, optimizers=(descent.optimizer, None), **parts)
        # AllenNLP's models return means; nothing is scaled by a number of items.
        self.model_accepts_loss_kwargs = False

    def _seed_everything(self) -> None:
        """Leave the generators alone: AllenNLP's command seeds, its trainer does not."""

    # Data

    def get_train_dataloader(self) -> Any:
        """Return the user's loader, or this process's share of it."""
        return dealt(self.descent.data_loader, self.args)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Return the user's validation loader, or ``eval_dataset``, which must be a loader too.

        Raises:
            ConfigurationError: If there is none.
        """
        loader = self.descent.validation_data_loader if eval_dataset is None else eval_dataset
        if loader is None:
            raise ConfigurationError(
                "Validation results cannot be calculated without a `validation_data_loader`; give one to the trainer."
            )
        return dealt(loader, self.args)

    # Steps

    def run_model(self, inputs: Any, *, for_training: bool) -> dict[str, Any]:
        """Run the model on inputs that are on its device.

        Args:
            inputs: The model's inputs by name.
            for_training: Whether a backward pass follows.
        """
        outputs: dict[str, Any] = self.model_wrapped(**inputs)
        return outputs

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> Any:
        """Make none: AllenNLP's schedulers are stepped by the run."""
        return None

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """Return the loss of a training batch with its penalty.

        Raises:
            ValueError: If it is not a number.
        """
        outputs = self.descent.batch_outputs(inputs, for_training=True)
        loss = outputs["loss"]
        if torch.isnan(loss):
            raise ValueError("nan loss encountered")
        run = self.module.run
        assert isinstance(run, DescentRun)
        run.collect(outputs)
        return (loss, outputs) if return_outputs else loss

    @property
    def _runs_own_backward(self) -> bool:
        return bool(self.descent.backward_callbacks)

    def _backward_now(self, loss: torch.Tensor) -> None:
        run = self.module.run
        assert isinstance(run, DescentRun)
        if not self.descent.backward_by_callbacks(run.outputs[-1]):
            super()._backward_now(loss)

    # Evaluation

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        """Evaluate with the moving averages in the place of the weights."""
        with self.descent.averaged_weights():
            return super().evaluation_loop(*args, **kwargs)

    def _evaluation_session(self, dataloader: Any, **options: Any) -> EvaluationSession:
        self.validation = ValidationSession(self, dataloader, descent=self.descent, **options)
        return self.validation

    # A run

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Train from where the AllenNLP trainer stands, which has read its checkpoint.

        Args:
            resume_from_checkpoint: Not used.
            trial: Not used.
            ignore_keys_for_eval: Not used.
        """
        self.is_in_train = True
        try:
            with prepared_for_training(self.model, self.args):
                return self._fit(self._plan_descent())
        finally:
            self.is_in_train = False

    def _plan_descent(self) -> DescentRun:
        loader, progress = self.get_train_dataloader(), self.descent.progress
        plan = count_epochs(
            loader,
            num_epochs=self.descent.num_epochs,
            num_gradient_accumulation_steps=self.args.gradient_accumulation_steps,
            world_size=self.args.world_size,
        )
        self._trial = None
        self.state = fresh_state(self)
        self.state.compute_steps(self.args, plan.max_steps)
        self.state.global_step = progress.total_batches
        self.state.init_training_references(self, plan.max_steps, plan.num_train_epochs, None)
        self.callback_handler.train_dataloader = loader
        done = progress.batches_in_epoch_completed * plan.gradient_accumulation_steps
        return self.run_class(
            self,
            descent=self.descent,
            loader=loader,
            plan=plan,
            resume_point=ResumePoint(progress.epochs_completed, min(done, plan.steps_in_epoch)),
        )

    def _save_checkpoint(self, model: nn.Module, trial: Any, metrics: Any = None) -> None:
        """Write an AllenNLP checkpoint where a callback asks for a checkpoint."""
        self.descent.save_checkpoint()
