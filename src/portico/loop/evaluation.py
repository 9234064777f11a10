"""One pass over a dataset without training, as ``Trainer.evaluation_loop`` in transformers 5.23."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from transformers import EvalPrediction

from portico import observers
from portico.compat.lightning import (
    SteeringError,
    averaged_weights,
    can_nest_evaluation,
    quiet_lightning,
    run_nested_evaluation,
)
from portico.compat.transformers import EvalLoopOutput, denumpify_detensorize, find_batch_size, has_length, logger
from portico.compat.tree import is_per_example
from portico.data.loaders import DataLoaderShard
from portico.distributed.processes import begin_call, kill_children_on_error
from portico.distributed.signals import ending_plainly
from portico.errors import InputKeyError, InputTypeError
from portico.loop.corrections import EvaluationLoss
from portico.loop.datamodule import EvaluationFeed
from portico.loop.metrics import batch_metrics
from portico.loop.outputs import OutputBuffer, OutputList

if TYPE_CHECKING:
    from portico.compat.annotations import Batch, Loader, Nested
    from portico.loop.hooks import TrainerHooks


@dataclass(eq=False, repr=False)
class EvaluationSession:
    """Collects the results of ``prediction_step`` and turns them into metrics.

    Lightning's evaluation loop calls :meth:`step` and :meth:`finish`; sessions may be nested (a callback that
    evaluates while an evaluation runs). To stream the outputs, override :meth:`keep` and :meth:`compute_metrics`.
    The fields after ``trainer`` are the arguments of ``Trainer.evaluation_loop``.
    """

    trainer: "TrainerHooks"
    loader: "Loader"
    _: KW_ONLY
    description: str
    prediction_loss_only: bool | None = None
    ignore_keys: list[str] | None = None
    metric_key_prefix: str = "eval"

    def __post_init__(self) -> None:
        trainer, args = self.trainer, self.trainer.args
        if self.prediction_loss_only is None:
            self.prediction_loss_only = args.prediction_loss_only
        self.model = trainer.model
        # The user's own loader may have another batch size; 0 if only its batches show it.
        own_batch_size = getattr(self.loader, "own_batch_size", None)
        self.batch_size = args.eval_batch_size if own_batch_size is None else own_batch_size
        self.num_observed_examples = 0
        self.num_in_batch: int | None = None  # examples in the current batch
        self.num_batches: int | None = None  # if fewer are evaluated than the loader has
        self.is_last_batch = False
        self.is_silent = False  # whether callbacks get no events
        # Whether the loader knows how many losses of a full batch count for the last, smaller batch; prepared ones do.
        self.repeats_losses = True
        self.output: EvalLoopOutput | None = None
        self.mean_loss = EvaluationLoss.create_if_needed(trainer, self.loader)
        self.losses = self._arrays()
        self.logits = self._arrays()
        self.labels = self._arrays()
        self.inputs = self._arrays()
        self.batch_metrics = None
        if trainer.compute_metrics is not None:
            self.batch_metrics = batch_metrics(trainer, nested=trainer._portico.module.evaluation is not None)
        # Repeated losses can be a view without memory if only a gather and the buffer, which copy them, read them.
        self._views_losses = (
            self.batch_metrics is None
            and isinstance(self.losses, OutputBuffer)
            and trainer.gather_function == trainer.accelerator.gather_for_metrics
        )
        # `predict` returns its arrays, with or without metrics.
        self.keeps_arrays = self.description == "Prediction" or not (self.batch_metrics or args.batch_eval_metrics)

    def start(self) -> None:
        """Put model and optimizer into evaluation mode and let callbacks see the loader."""
        trainer = self.trainer
        logger.info(f"\n***** Running {self.description} *****")
        num_examples = f" = {trainer.num_examples(self.loader)}" if has_length(self.loader) else ": Unknown"
        logger.info(f"  Num examples{num_examples}")
        logger.info(f"  Batch size = {self.batch_size}")
        self.model = trainer._wrap_model(trainer.model, training=False)
        self.model.eval()
        if hasattr(trainer.optimizer, "eval") and callable(trainer.optimizer.eval):
            trainer.optimizer.eval()
        trainer.callback_handler.eval_dataloader = self.loader

    def step(self, inputs: "Batch", batch_idx: int) -> None:
        trainer = self.trainer
        # As in transformers: of the training loader, if this loader is not prepared.
        ends_loader = trainer.accelerator.gradient_state.end_of_dataloader
        self.is_last_batch = ends_loader or batch_idx + 1 == self.num_batches
        if (size := find_batch_size(inputs)) is not None:
            self.num_observed_examples += size
            self.batch_size = (self.batch_size or size) if self.repeats_losses else size
        mean_loss = self.mean_loss
        with nullcontext(inputs) if mean_loss is None else mean_loss.correcting_batch(inputs) as own_inputs:
            loss, logits, labels = trainer.prediction_step(
                self.model, own_inputs, bool(self.prediction_loss_only), ignore_keys=self.ignore_keys
            )
        if mean_loss is not None:
            logits, labels = mean_loss.complete(logits), mean_loss.complete(labels)
        self.num_in_batch = next((len(value) for value in _iterate_tensors(inputs)), size)
        self.keep(loss, logits, labels, inputs)
        if not self.is_silent:
            trainer.control = trainer.callback_handler.on_prediction_step(trainer.args, trainer.state, trainer.control)

    def keep(
        self, loss: torch.Tensor | None, logits: "Nested | None", labels: "Nested | None", inputs: "Batch"
    ) -> None:
        """Gather the outputs of one batch over all processes; keep them, or update the metrics with them.

        Outputs with an entry for each example are gathered as objects, which may differ in shape.
        """
        trainer = self.trainer
        outcomes: dict[str, Any] = {"losses": self._repeat_loss(loss)}
        if "inputs" in trainer.args.include_for_metrics:
            name = getattr(trainer.model, "main_input_name", "input_ids")
            if name not in inputs:
                raise InputKeyError(
                    f"`include_for_metrics` has 'inputs', but the batch has no {name!r}, only {', '.join(inputs)}; "
                    "set `main_input_name` in the model's class to one of them, or leave 'inputs' out."
                )
            outcomes["inputs"] = trainer._prepare_input(inputs[name])
        outcomes |= {"logits": logits, "labels": labels}
        by_example = {name for name, value in outcomes.items() if is_per_example(value, self.num_in_batch)}
        if trainer.accelerator.num_processes > 1:
            # Padded first, as in `evaluation_loop`: processes may have batches of different widths.
            padded = {name: value for name, value in outcomes.items() if name != "losses" and name not in by_example}
            outcomes |= trainer.accelerator.pad_across_processes(padded, dim=1, pad_index=-100)
        if logits is not None and trainer.preprocess_logits_for_metrics is not None:
            outcomes["logits"] = trainer.preprocess_logits_for_metrics(outcomes["logits"], outcomes["labels"])
            by_example.discard("logits")
            if is_per_example(outcomes["logits"], self.num_in_batch):
                by_example.add("logits")
        outcomes = self._gather(outcomes, by_example)
        if outcomes["losses"] is not None:
            self.losses.add(outcomes["losses"])
        logits, labels = outcomes["logits"], outcomes["labels"]
        if self.keeps_arrays:
            for arrays, name in ((self.inputs, "inputs"), (self.logits, "logits"), (self.labels, "labels")):
                if outcomes.get(name) is not None:
                    arrays.add(outcomes[name], by_example=name in by_example)
        if self.batch_metrics is not None and logits is not None and labels is not None:
            prediction = self._prediction(logits, labels, outcomes["losses"], inputs)
            self.batch_metrics.update(prediction, is_last=self.is_last_batch)

    def keep_loss(self, loss: torch.Tensor | None) -> torch.Tensor | None:
        """Keep a batch's mean loss once per example, so that the mean over all batches is weighted."""
        repeated = self._repeat_loss(loss)
        if repeated is None:
            return None
        gathered: torch.Tensor = self.trainer.gather_function(repeated)
        self.losses.add(gathered)
        return gathered

    def _repeat_loss(self, loss: torch.Tensor | None) -> torch.Tensor | None:
        if loss is None:
            return None
        if self.mean_loss is not None:
            self.mean_loss.add(loss)
        # Repeated to the full batch size; `gather_for_metrics` cuts the last batch, on a single process too.
        repeat = loss.expand if self._views_losses and not loss.dim() else loss.repeat
        return repeat(self.batch_size)

    def _gather(self, outcomes: dict[str, Any], by_example: Collection[str]) -> dict[str, Any]:
        """Return the outcomes of a batch of all processes, those named ``by_example`` gathered as objects.

        Tensors are gathered together, unless the user has replaced ``gather_function``.
        """
        accelerator, gather = self.trainer.accelerator, self.trainer.gather_function
        tensors = {name: value for name, value in outcomes.items() if value is not None and name not in by_example}
        if accelerator.num_processes > 1 and accelerator.gathers_tensors(gather, tensors):
            gathered = gather(tensors)
        else:
            gathered = {name: gather(value) for name, value in tensors.items()}
        objects = {
            name: accelerator.gather_for_metrics(value, use_gather_object=True)
            for name, value in outcomes.items()
            if name in by_example
        }
        return outcomes | gathered | objects

    def finish(self) -> EvalLoopOutput:
        losses, logits = self.losses.result(), self.logits.result()
        labels, inputs = self.labels.result(), self.inputs.result()
        metrics = denumpify_detensorize(dict(self.compute_metrics(logits, labels, losses, inputs)))
        if losses is not None:
            mean = self._mean_loss(losses)
            metrics[f"{self.metric_key_prefix}_loss"] = mean if self.mean_loss is None else self.mean_loss.mean(mean)
        self.output = EvalLoopOutput(
            predictions=logits, label_ids=labels, metrics=self._add_prefix(metrics), num_samples=self.num_samples()
        )
        return self.output

    def compute_metrics(
        self, logits: "Nested | None", labels: "Nested | None", losses: "Nested | None", inputs: "Batch"
    ) -> Mapping[str, Any]:
        """Return the user's metrics of the collected arrays; none without logits and labels."""
        trainer = self.trainer
        if self.batch_metrics is not None:
            return self.batch_metrics.compute()
        if trainer.compute_metrics is None or logits is None or labels is None:
            return {}
        function = cast("Callable[..., Any]", trainer.compute_metrics)
        metrics = function(self._prediction(logits, labels, losses, inputs))
        if not isinstance(metrics, Mapping):
            raise InputTypeError(
                f"`compute_metrics` returned {str(metrics)[:80]!r} ({type(metrics).__name__}); let it return a dict "
                "of numbers by name."
            )
        return metrics

    def num_samples(self) -> int:
        """Return how many examples were evaluated."""
        if self.num_batches is not None:
            return self.num_observed_examples * self.trainer.accelerator.data_parallel_size
        dataset = getattr(self.loader, "dataset", None)
        if has_length(dataset):
            return len(dataset) or self.num_observed_examples
        return (has_length(self.loader) and self.trainer.num_examples(self.loader)) or self.num_observed_examples

    def _arrays(self) -> OutputBuffer | OutputList:
        args = self.trainer.args
        if not args.eval_do_concat_batches:
            return OutputList(move_every=args.eval_accumulation_steps)
        dataset = getattr(self.loader, "dataset", None)
        num_rows = len(dataset) if has_length(dataset) else None
        return OutputBuffer(move_every=args.eval_accumulation_steps, num_rows=num_rows)

    def _prediction(self, logits: "Nested", labels: "Nested", losses: "Nested", inputs: "Nested") -> EvalPrediction:
        wanted = self.trainer.args.include_for_metrics
        return EvalPrediction(
            predictions=logits,
            label_ids=labels,
            losses=losses if "loss" in wanted else None,
            inputs=inputs if "inputs" in wanted else None,
        )

    def _mean_loss(self, losses: "Nested") -> float:
        values = np.concatenate(losses) if isinstance(losses, list) else losses
        finite = np.isfinite(values)
        if self.trainer._portico.corrections.filters_losses and finite.any():
            values = values[finite]
        return float(values.mean().item())

    def _add_prefix(self, metrics: dict[str, Any]) -> dict[str, Any]:
        prefix = f"{self.metric_key_prefix}_"
        for key in [key for key in metrics if not key.startswith(prefix)]:
            metrics[prefix + key] = metrics.pop(key)
        return metrics


def _iterate_tensors(inputs: "Batch") -> Iterator[torch.Tensor]:
    """Yield the tensors of a batch that have a row for each example."""
    values = inputs.values() if isinstance(inputs, Mapping) else ()
    return (value for value in values if isinstance(value, torch.Tensor) and value.dim())


class LoopEvaluation:
    """An evaluation that Lightning started by itself: its sanity check, or a call of the user's ``lightning.Trainer``.

    Each of the ``loaders`` (one, a list, or a dict by name) gets a session, one after another. With several loaders,
    metrics are named after their loader; ``prefix`` is ``"eval"`` or ``"test"``.
    """

    def __init__(self, trainer: "TrainerHooks", loaders: Any, *, prefix: str) -> None:
        self.trainer = trainer
        self.prefix = prefix
        self.is_sanity_check = trainer._portico.lightning_trainer.sanity_checking
        if not isinstance(loaders, dict | list | tuple):
            loaders = [] if loaders is None else [loaders]
        named = loaders.items() if isinstance(loaders, dict) else enumerate(loaders)
        self._feeds = [
            loader
            if isinstance(loader, EvaluationFeed)
            else EvaluationFeed(loader, name=str(name) if len(loaders) > 1 else None)
            for name, loader in named
        ]
        self._num_begun = 0
        self._session: EvaluationSession | None = None
        self._metrics: dict[str, float] = {}

    @property
    def is_innermost(self) -> bool:
        """Whether no other evaluation is nested in this one at the moment."""
        return self.trainer._portico.module.evaluation is self._session

    def begin_loader(self, index: int) -> None:
        """Create and start the session of the loader ``index``, unless it is running."""
        while self._num_begun <= index:
            self._end_session()
            feed, trainer = self._feeds[self._num_begun], self.trainer
            # Post-processing needs the whole set, and it must be the trainer's set.
            is_whole = feed.renew is not None and not self.is_sanity_check
            has_metrics = trainer.compute_metrics is not None and (is_whole or trainer._portico.scores_logits)
            with trainer._portico.evaluating_own_data(feed.name) if is_whole else nullcontext():
                self._session = trainer._portico.evaluation_session(
                    feed.loader,
                    description="Evaluation",
                    prediction_loss_only=None if has_metrics else True,
                    metric_key_prefix=self.prefix if feed.name is None else f"{self.prefix}_{feed.name}",
                )
            self._session.num_batches = feed.limited_to
            if self.is_sanity_check:
                steps = trainer._portico.lightning_trainer.num_sanity_val_steps
                self._session.num_batches = int(min(steps, feed.num_batches or len(feed)))
            self._session.is_silent = self.is_sanity_check
            self._session.repeats_losses = isinstance(feed.loader, DataLoaderShard)
            trainer._portico.module.evaluation = self._session
            self._session.start()
            self._num_begun += 1

    def finish(self) -> dict[str, float]:
        """Return the metrics of all loaders, including loaders without a batch."""
        self.begin_loader(len(self._feeds) - 1)
        self._end_session()
        return self._metrics

    def _end_session(self) -> None:
        session, self._session = self._session, None
        self.trainer._portico.module.evaluation = None
        if session is not None:
            self._metrics |= session.finish().metrics or {}


def run_evaluation(session: "EvaluationSession") -> EvalLoopOutput:
    """Run ``session`` and return its output.

    It can be called at any point of a fit (from any callback or hook), inside another evaluation, and outside a fit.
    SIGTERM ends it with ``SystemExit``, and an interrupt with ``KeyboardInterrupt``.
    """
    trainer = session.trainer
    pl_trainer, module = trainer._portico.lightning_trainer, trainer._portico.module
    for observer in observers.active:
        observer.on_evaluation(session)
    predicts = session.description == "Prediction"
    limit = "limit_test_batches" if predicts else "limit_val_batches"
    feed = EvaluationFeed(session.loader, getattr(pl_trainer, limit), limit)
    session.num_batches = feed.limited_to
    call = f"{'predict' if predicts else 'evaluate'}()"
    call += f" of {len(session.loader)} batches" if has_length(session.loader) else ""
    enclosing, module.evaluation = module.evaluation, session
    try:
        session.start()
        if len(feed) == 0:
            # Lightning would warn, then skip its loop and with it the hook that finishes. The loader is iterated, as
            # transformers does: each `iter(DataLoader)` draws a seed from the global generator, even if it is empty.
            next(iter(session.loader), None)
            session.finish()
        elif enclosing is not None or (trainer.is_in_train and can_nest_evaluation(pl_trainer)):
            begin_call(pl_trainer.strategy, call)
            with averaged_weights(pl_trainer):
                run_nested_evaluation(pl_trainer, feed, predicts=predicts)
        else:
            with (
                kill_children_on_error(),
                quiet_lightning(),
                ending_plainly(pl_trainer),
                module.staying_on_device(),
            ):
                begin_call(pl_trainer.strategy, call)
                run = pl_trainer.test if predicts else pl_trainer.validate
                run(module, dataloaders=feed, verbose=False)
    except SteeringError as error:
        raise error.original from None  # as under transformers
    finally:
        module.evaluation = enclosing
    assert session.output is not None, "the end of the loop finishes the session"
    return session.output
