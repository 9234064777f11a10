"""One pass over a data set without training: from batches to an ``EvalLoopOutput``."""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers.trainer_pt_utils import find_batch_size
from transformers.trainer_utils import EvalLoopOutput, EvalPrediction, denumpify_detensorize, has_length

from portico.evaluation.arrays import BatchedArrays

if TYPE_CHECKING:
    from portico.contract import Facade

logger = logging.getLogger(__name__)


class EvaluationSession:
    """Collects what ``prediction_step`` returns and turns it into metrics.

    Lightning's evaluation loop calls :meth:`step` and :meth:`finish`; sessions may be nested (a callback that
    evaluates while an evaluation runs). A subclass that overrides :meth:`keep` and :meth:`compute_metrics` streams.

    Args:
        facade: Whose ``prediction_step``, ``compute_metrics`` and callbacks are called.
        loader: Batches.
        description: ``"Evaluation"`` or ``"Prediction"``.
        prediction_loss_only: Keep the loss alone; ``None`` asks the training arguments.
        ignore_keys: Model outputs to leave out.
        metric_key_prefix: Prefix of every metric's name.
    """

    def __init__(
        self,
        facade: "Facade",
        loader: Any,
        *,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> None:
        args = facade.args
        self.facade = facade
        self.loader = loader
        self.description = description
        self.prediction_loss_only = args.prediction_loss_only if prediction_loss_only is None else prediction_loss_only
        self.ignore_keys = ignore_keys
        self.metric_key_prefix = metric_key_prefix
        self.batch_size = args.eval_batch_size
        self.num_observed_examples = 0
        self.output: EvalLoopOutput | None = None
        options = {"concatenate": args.eval_do_concat_batches, "move_every": args.eval_accumulation_steps}
        self.losses, self.logits, self.labels, self.inputs = (BatchedArrays(**options) for _ in range(4))
        self.batch_metrics: dict[str, Any] | None = None

    def start(self) -> None:
        """Put model and optimizer into evaluation mode and let callbacks see the loader."""
        facade = self.facade
        logger.debug("***** Running %s *****", self.description)
        logger.debug("  Num examples = %s", facade.num_examples(self.loader) if has_length(self.loader) else "unknown")
        logger.debug("  Batch size = %s", self.batch_size)
        facade.model.eval()
        if hasattr(facade.optimizer, "eval") and callable(facade.optimizer.eval):
            facade.optimizer.eval()
        facade.callback_handler.eval_dataloader = self.loader

    def step(self, inputs: Any, batch_idx: int) -> None:
        """Predict one batch and keep the outcome."""
        facade = self.facade
        size = find_batch_size(inputs)
        if size is not None:
            self.num_observed_examples += size
            self.batch_size = self.batch_size or size
        loss, logits, labels = facade.prediction_step(
            facade._wrap_model(facade.model, training=False),
            inputs,
            self.prediction_loss_only,
            ignore_keys=self.ignore_keys,
        )
        self.keep(loss, logits, labels, inputs)
        facade.control = facade.callback_handler.on_prediction_step(facade.args, facade.state, facade.control)

    def keep(self, loss: Any, logits: Any, labels: Any, inputs: Any) -> None:
        """Gather the outcome of one batch over all processes and keep it."""
        facade, args, accelerator = self.facade, self.facade.args, self.facade.accelerator
        batched = args.batch_eval_metrics
        streams = batched and self.description != "Prediction"
        gathered_loss = self.keep_loss(loss)
        if "inputs" in args.include_for_metrics:
            main_input = facade._prepare_input(inputs[getattr(facade.model, "main_input_name", "input_ids")])
            main_input = facade.gather_function(accelerator.pad_across_processes(main_input, dim=1, pad_index=-100))
            if not streams:
                self.inputs.add(main_input)
        if labels is not None:
            labels = accelerator.pad_across_processes(labels, dim=1, pad_index=-100)
        if logits is not None:
            logits = accelerator.pad_across_processes(logits, dim=1, pad_index=-100)
            if facade.preprocess_logits_for_metrics is not None:
                logits = facade.preprocess_logits_for_metrics(logits, labels)
            logits = facade.gather_function(logits)
            if not streams:
                self.logits.add(logits)
        if labels is not None:
            labels = facade.gather_function(labels)
            if not streams:
                self.labels.add(labels)
        if batched and facade.compute_metrics is not None and logits is not None and labels is not None:
            self._update_batch_metrics(gathered_loss, logits, labels, inputs)

    def keep_loss(self, loss: torch.Tensor | None) -> torch.Tensor | None:
        """Keep a batch's mean loss once for each of its examples, so that the mean over all is weighted."""
        if loss is None:
            return None
        gathered: torch.Tensor = self.facade.gather_function(loss.repeat(self.batch_size))
        self.losses.add(gathered)
        return gathered

    def finish(self) -> EvalLoopOutput:
        """Compute the metrics of the whole set."""
        losses, logits = self.losses.result(), self.logits.result()
        labels, inputs = self.labels.result(), self.inputs.result()
        metrics = denumpify_detensorize(dict(self.compute_metrics(logits, labels, losses, inputs)))
        if losses is not None:
            metrics[f"{self.metric_key_prefix}_loss"] = self._mean_loss(losses)
        self.output = EvalLoopOutput(
            predictions=logits, label_ids=labels, metrics=self._prefixed(metrics), num_samples=self.num_samples()
        )
        return self.output

    def compute_metrics(self, logits: Any, labels: Any, losses: Any, inputs: Any) -> Mapping[str, Any]:
        """Return the user's metrics of the collected arrays; none without logits and labels."""
        facade, wanted = self.facade, self.facade.args.include_for_metrics
        if facade.args.batch_eval_metrics:
            return self.batch_metrics or {}
        if facade.compute_metrics is None or logits is None or labels is None:
            return {}
        prediction = EvalPrediction(
            predictions=logits,
            label_ids=labels,
            losses=losses if "loss" in wanted else None,
            inputs=inputs if "inputs" in wanted else None,
        )
        return facade.compute_metrics(prediction)

    def num_samples(self) -> int:
        """Return how many examples were evaluated."""
        dataset = getattr(self.loader, "dataset", None)
        known = 0
        if has_length(dataset):
            known = len(dataset)
        elif has_length(self.loader):
            known = self.facade.num_examples(self.loader)
        return known or self.num_observed_examples

    def _update_batch_metrics(self, losses: Any, logits: Any, labels: Any, inputs: Any) -> None:
        wanted = self.facade.args.include_for_metrics
        prediction = EvalPrediction(
            predictions=logits,
            label_ids=labels,
            losses=losses if "loss" in wanted else None,
            inputs=inputs if "inputs" in wanted else None,
        )
        assert self.facade.compute_metrics is not None
        self.batch_metrics = self.facade.compute_metrics(
            prediction, compute_result=getattr(self.loader, "end_of_dataloader", False)
        )

    def _mean_loss(self, losses: Any) -> float:
        values = np.concatenate(losses) if isinstance(losses, list) else losses
        finite = np.isfinite(values)
        if self.facade.args.logging_nan_inf_filter and finite.any():
            values = values[finite]
        return float(values.mean().item())

    def _prefixed(self, metrics: dict[str, Any]) -> dict[str, Any]:
        prefix = f"{self.metric_key_prefix}_"
        for key in [key for key in metrics if not key.startswith(prefix)]:
            metrics[prefix + key] = metrics.pop(key)
        return metrics
