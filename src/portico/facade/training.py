"""What happens between the steps of a run: clipping, logs, evaluations, checkpoints."""

from typing import Any

import torch
from torch import nn
from transformers.trainer_utils import TrainOutput, speed_metrics

from portico.facade.argument_order import taking_a_norm_or_none
from portico.facade.counts import CountingMethods
from portico.facade.evaluation import EvaluationMethods
from portico.facade.hub import HubMethods
from portico.facade.optimization import OptimizationMethods
from portico.facade.placing import PlacingMethods
from portico.facade.saving import SavingMethods
from portico.facade.search import SearchMethods
from portico.run_log import logger


class TrainingMethods(
    EvaluationMethods, OptimizationMethods, SavingMethods, PlacingMethods, CountingMethods, HubMethods, SearchMethods
):
    """How the facade goes along a run."""

    def end(self) -> None:
        """Part from the other processes, at the very end of a script: nothing that needs them works afterwards."""
        self.accelerator.end_training()

    def _backward_now(self, loss: torch.Tensor) -> None:
        self.lightning_trainer.strategy.backward(loss, None)

    def _finalize_training(self, trial: Any, num_train_samples: float, start_time: float) -> TrainOutput:
        """Log what the run came to, put the best model back and tell the callbacks that training ended.

        The name is fixed: the memory tracker of ``transformers`` knows its stages by the methods that call it.
        """
        logger.info("Training completed.")
        self._total_loss_scalar += self._tr_loss.item()
        num_steps = self.state.global_step - self._initial_global_step
        train_loss = self._total_loss_scalar / max(num_steps, 0.001)
        metrics = speed_metrics(
            "train",
            start_time,
            # The plan counts the whole schedule; this run may have made a part of its steps.
            num_samples=num_train_samples * num_steps / max(self.state.max_steps, 1),
            num_steps=num_steps,
        )
        self.store_flos()
        metrics["total_flos"] = self.state.total_flos
        metrics["train_loss"] = train_loss
        self._memory_tracker.stop_and_update_metrics(metrics)
        self.log(metrics)
        if self.args.load_best_model_at_end and self.state.best_model_checkpoint is not None:
            self._load_best_model()
        self._keep_only_best_and_last(trial)
        self.control = self.callback_handler.on_train_end(self.args, self.state, self.control)
        self._finish_current_push()
        return TrainOutput(self.state.global_step, train_loss, metrics)

    @taking_a_norm_or_none
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
    ) -> None:
        """Log, evaluate and save, each if the control flags ask for it."""
        if self.control.should_log and self.state.global_step > self._globalstep_last_logged:
            self._log_progress(tr_loss, grad_norm, start_time, learning_rate)
        if self.control.should_evaluate:
            metrics = self._evaluate(trial, ignore_keys_for_eval)
            is_best = self._determine_best_metric(metrics=metrics, trial=trial)
            if self.args.save_strategy == "best":
                self.control.should_save = is_best
        if self.control.should_save:
            self._save_checkpoint(model, trial)
            self.control = self.callback_handler.on_save(self.args, self.state, self.control)

    def _log_progress(
        self,
        tr_loss: torch.Tensor,
        grad_norm: torch.Tensor | float | None,
        start_time: float | None,
        learning_rate: float | None,
    ) -> None:
        loss_sum = self.accelerator.gather(tr_loss).mean().item()
        tr_loss -= tr_loss
        logs = {"loss": loss_sum / (self.state.global_step - self._globalstep_last_logged)}
        if grad_norm is not None:
            logs["grad_norm"] = grad_norm.item() if isinstance(grad_norm, torch.Tensor) else grad_norm
        logs["learning_rate"] = self._get_learning_rate() if learning_rate is None else learning_rate
        self._total_loss_scalar += loss_sum
        self._globalstep_last_logged = self.state.global_step
        self.store_flos()
        self.log(logs, start_time)

    def _clip_grad_norm(self, model: nn.Module) -> torch.Tensor:
        return self.accelerator.clip_grad_norm_(model.parameters(), self.args.max_grad_norm)

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        if grad_norm is not None:
            return grad_norm
        # An infinite limit measures without clipping.
        return self.accelerator.clip_grad_norm_(model.parameters(), float("inf"))
