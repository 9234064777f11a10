"""Evaluation and prediction."""

import math
import time
from typing import Any

import numpy as np
from transformers.trainer_utils import EvalLoopOutput, PredictionOutput, speed_metrics

from portico.distributed.workers import in_every_process
from portico.errors import InputKeyError
from portico.evaluation.runner import run_evaluation
from portico.evaluation.session import EvaluationSession
from portico.facade.old_names import OldNames
from portico.facade.reporting import ReportingMethods
from portico.facade.steps import StepMethods
from portico.memory import is_out_of_memory
from portico.optim import steps_after_evaluation
from portico.precision import casting_forward, full_evaluation_dtype


class EvaluationMethods(StepMethods, ReportingMethods, OldNames):
    """How the facade evaluates."""

    @in_every_process
    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Evaluate and return the metrics.

        Args:
            eval_dataset: What to evaluate on instead of the trainer's ``eval_dataset``; a dict of data sets is
                evaluated one by one, with the key in the metrics' names.
            ignore_keys: Model outputs to leave out.
            metric_key_prefix: Prefix of every metric's name.
        """
        override = eval_dataset is not None
        datasets = eval_dataset if override else self.eval_dataset
        if isinstance(datasets, dict):
            metrics: dict[str, float] = {}
            for name, dataset in datasets.items():
                metrics |= self.evaluate(
                    eval_dataset=dataset if override else name,
                    ignore_keys=ignore_keys,
                    metric_key_prefix=f"{metric_key_prefix}_{name}",
                )
            return metrics
        self._memory_tracker.start()
        loader = self.get_eval_dataloader(datasets)
        start_time = time.time()
        output = self._loop_of_evaluations(
            loader,
            description="Evaluation",
            # Without metrics nobody looks at the predictions.
            prediction_loss_only=True if self.compute_metrics is None else None,
            ignore_keys=ignore_keys,
            metric_key_prefix=metric_key_prefix,
        )
        measured = self._with_speed(output, metric_key_prefix, start_time)
        self.log(measured)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, measured)
        self._memory_tracker.stop_and_update_metrics(measured)
        return measured

    @in_every_process
    def predict(
        self, test_dataset: Any, ignore_keys: list[str] | None = None, metric_key_prefix: str = "test"
    ) -> PredictionOutput:
        """Predict on ``test_dataset``, and return predictions, labels and the metrics where there are labels.

        Args:
            test_dataset: Data to predict on.
            ignore_keys: Model outputs to leave out.
            metric_key_prefix: Prefix of every metric's name.
        """
        self._memory_tracker.start()
        loader = self.get_test_dataloader(test_dataset)
        start_time = time.time()
        output = self._loop_of_evaluations(
            loader, description="Prediction", ignore_keys=ignore_keys, metric_key_prefix=metric_key_prefix
        )
        measured = self._with_speed(output, metric_key_prefix, start_time)
        self.control = self.callback_handler.on_predict(self.args, self.state, self.control, measured)
        self._memory_tracker.stop_and_update_metrics(measured)
        return PredictionOutput(predictions=output.predictions, label_ids=output.label_ids, metrics=measured)

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Run ``dataloader`` through Lightning's evaluation loop, for ``evaluate`` and ``predict`` alike.

        Args:
            dataloader: Batches.
            description: ``"Evaluation"`` or ``"Prediction"``.
            prediction_loss_only: Keep the loss alone; by default what the arguments say.
            ignore_keys: Model outputs to leave out.
            metric_key_prefix: Prefix of every metric's name.
        """
        session = self._evaluation_session(
            dataloader,
            description=description,
            prediction_loss_only=prediction_loss_only,
            ignore_keys=ignore_keys,
            metric_key_prefix=metric_key_prefix,
        )
        self.module.take(self.model)
        self._cast_for_full_evaluation()
        with casting_forward(self.model, self.lightning_trainer.strategy):
            output = run_evaluation(session)
        # A user who swapped it for one evaluation gets the usual one back.
        self.gather_function = self.accelerator.gather_for_metrics
        return output

    def _cast_for_full_evaluation(self) -> None:
        """Leave the model in half precision for good, as Hugging Face does; never while it trains."""
        dtype = full_evaluation_dtype(self.args)
        if dtype is not None and not self.is_in_train:
            self.model.to(dtype=dtype, device=self.args.device)

    def _evaluation_session(self, dataloader: Any, **options: Any) -> EvaluationSession:
        return EvaluationSession(self, dataloader, **options)

    def _with_speed(self, output: EvalLoopOutput, prefix: str, start_time: float) -> dict[str, float]:
        metrics = output.metrics
        assert metrics is not None, "an evaluation loop returns metrics, if only an empty dict"
        total_batch_size = self.args.eval_batch_size * self.args.world_size
        metrics.update(
            speed_metrics(
                prefix,
                start_time,
                num_samples=output.num_samples,
                num_steps=math.ceil(output.num_samples / total_batch_size),
            )
        )
        return metrics

    def _evaluate(
        self, trial: Any, ignore_keys_for_eval: list[str] | None, skip_scheduler: bool = False
    ) -> dict[str, float]:
        try:
            metrics = self.evaluate(ignore_keys=ignore_keys_for_eval)
        except RuntimeError as error:
            if self.args.auto_find_batch_size and is_out_of_memory(error):
                # Not an error that a smaller training batch could cure.
                raise RuntimeError(
                    "Evaluation ran out of memory, and `auto_find_batch_size` reduces training batches only; set "
                    f"`per_device_eval_batch_size` (now {self.args.per_device_eval_batch_size}) to less."
                ) from error
            raise
        self._report_to_hp_search(trial, self.state.global_step, metrics)
        if steps_after_evaluation(self.lr_scheduler) and not skip_scheduler:
            self.lr_scheduler.step(self._metric_for_best_model(metrics))
        return metrics

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        """Note a new best value of ``metric_for_best_model``; tell whether there was one."""
        if self.args.metric_for_best_model is None:
            return False
        value = self._metric_for_best_model(metrics)
        is_better = np.greater if self.args.greater_is_better else np.less
        if self.state.best_metric is None:
            self.state.best_metric = float("-inf") if self.args.greater_is_better else float("inf")
        if not is_better(value, self.state.best_metric):
            return False
        self.state.best_metric = value
        if self.args.save_strategy != "no":
            self.state.best_global_step = self.state.global_step
        return True

    def _metric_for_best_model(self, metrics: dict[str, float]) -> float:
        name = self.args.metric_for_best_model
        key = name if name.startswith("eval_") else f"eval_{name}"
        if key not in metrics:
            raise InputKeyError(
                f"`metric_for_best_model={name!r}` is not among the metrics of the evaluation: {sorted(metrics)}; set "
                "it to one of them, or let `compute_metrics` return it."
            )
        return metrics[key]
