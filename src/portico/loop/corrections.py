"""Where ``transformers.Trainer`` is wrong: a name for each deviation, a warning when it matters, and the correction.

Without ``corrections`` every number is the same as in transformers. ``docs/corrections.md`` shows each deviation.

Read in order: the names; :class:`BatchShare`, the part of a batch in a mean; :class:`Corrections`, which the trainer
asks; :class:`EvaluationLoss`; :class:`WatchedCount`, which detects whether a loss uses the count of labels.
"""

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
import torch
from torch.utils.data import IterableDataset

from portico.arguments import correction_names, metric_key
from portico.checkpoint.resume import read_position, restore_order
from portico.compat.transformers import find_batch_size, has_length, logger
from portico.compat.tree import is_per_example, map_tensors
from portico.data.loaders import (
    DataLoaderDispatcher,
    DataLoaderShard,
    generators_of,
    num_examples_in_round,
    sampler_of_its_own_order,
    skip_first_examples,
)
from portico.data.sharding import IterableDatasetShard
from portico.errors import InputRuntimeError
from portico.loop.outputs import count_labels
from portico.loop.plan import ResumePoint
from portico.observers import RUN_VARIABLE

if TYPE_CHECKING:
    from portico.compat.annotations import Batch, Loader, Nested, NumItems
    from portico.loop.hooks import TrainerHooks
    from portico.loop.plan import RunPlan

_T = TypeVar("_T")


@dataclass(frozen=True)
class BatchShare:
    """What the batch of a process contributes to a mean over several batches.

    Args:
        num_items: Labels that its loss is averaged over, or examples if it has no labels; a scalar.
        num_examples: Examples in it, not counting examples repeated to complete it.
        weight: Factor that turns the mean over the processes into a mean over all items.
    """

    num_items: torch.Tensor
    num_examples: int
    weight: torch.Tensor | float = 1.0

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        # The mean over no label is NaN, and so is NaN times a weight of zero.
        return torch.where(self.num_items > 0, loss * self.weight, 0.0)


class Corrections:
    """The corrections of a trainer, and the warnings about deviations that are not corrected.

    Args:
        trainer: The trainer, whose arguments name the corrections.

    Attributes:
        corrects_evaluations: Whether the loss of an evaluation is corrected.
        watches_evaluation: Whether the next evaluation is compared with the mean over all labels: the first is.
    """

    def __init__(self, trainer: "TrainerHooks") -> None:
        self._trainer = trainer
        self._names = frozenset(correction_names(trainer.args.corrections))
        self.corrects_evaluations = not self._names.isdisjoint(("loss_scale", "eval_duplicates", "eval_batch_means"))
        self.watches_evaluation = True
        self._warned: set[str] = set()
        # Share of the batch whose loss is being computed; `None` if it is computed as in transformers.
        self.share: BatchShare | None = None
        self._factor = 1  # of the loss that is being computed
        self._watched: WatchedCount | None = None
        self._has_watched = False  # whether a loss was judged by its count of labels: once is enough for the warning
        self._has_diverged = False

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def warn(self, name: str, message: str, advice: str = "") -> None:
        """Warn once, from the first process, about a deviation that is not corrected."""
        if name not in self._names | self._warned and self._trainer.args.process_index == 0:
            # Under `portico run` the script stays as it is.
            option = f", or give `--corrections {name}` to `portico run`" if RUN_VARIABLE in os.environ else ""
            logger.warning(f"{message}; {advice}set `corrections=['{name}']`{option}.")
        self._warned.add(name)

    # The loss of a batch

    def applying(self, share: BatchShare | None, *, inputs: "Batch") -> AbstractContextManager["Batch"]:
        """Inside the block, compute an evaluation loss: a mean for ``share``, or without it as in transformers."""
        if share is self.share is None and (self._has_watched or self._is_alone(1)):
            return nullcontext(inputs)
        return self._applying(share, 1, inputs)

    def _is_alone(self, num_batches: int) -> bool:
        """Return whether one process makes a step of one batch, so that there is nothing to add up."""
        return num_batches == 1 and self._data_parallel_size == 1

    @property
    def _data_parallel_size(self) -> int:
        """What the accelerator says, which a run asks once."""
        if self._trainer.is_in_train and (run := self._trainer._portico.module.run) is not None:
            return run.data_parallel_size
        return self._trainer.accelerator.data_parallel_size

    def counting(
        self, num_items: "NumItems", share: BatchShare | None, *, num_summed: int = 1
    ) -> AbstractContextManager["NumItems"]:
        """Inside the block, compute a training loss; the context yields the count of labels to compute it with.

        With a ``share`` the loss is a mean; without it, as in transformers, which sums ``num_summed`` losses.
        """
        if share is self.share is None and (self._has_watched or self._is_alone(num_summed)):
            return nullcontext(num_items)
        return self._counting(num_items, share, num_summed)

    @contextmanager
    def _counting(self, num_items: "NumItems", share: BatchShare | None, num_summed: int) -> Iterator["NumItems"]:
        with self._applying(share, num_summed, None):
            yield self.count_for_loss(num_items, num_summed=num_summed)

    @contextmanager
    def _applying(self, share: BatchShare | None, num_summed: int, inputs: _T) -> Iterator[_T]:
        before, self.share = self.share, share
        self._watched = None
        self._factor = 1
        try:
            yield inputs
            if self._watched is not None and not (self._watched.uses or WatchedCount.traced):
                self._explain(num_summed, self._factor)
        finally:
            self.share, self._watched = before, None

    def count_for_loss(self, num_items: "NumItems", *, num_summed: int = 1) -> "NumItems":
        """Return the count of labels to compute a loss with; for a share, its batch's count, which makes it a mean."""
        if self.share is not None:
            return self.share.num_items.clamp(min=1)
        trainer = self._trainer
        is_nested = trainer.is_in_train and trainer._portico.module.evaluation is not None
        is_multiplied = num_summed * self._data_parallel_size > 1 and not trainer.loss_is_scaled_for_ga
        if self._has_watched or is_nested or not is_multiplied:
            return num_items
        if num_items is None:
            # There are no labels to count, so the loss must be a mean; it always is where no count is wanted.
            self._has_watched = not trainer.model_accepts_loss_kwargs and trainer.compute_loss_func is None
            self._explain(num_summed, 1)
        elif isinstance(num_items, torch.Tensor):
            self._has_watched = True
            if not is_compiled(trainer.model_wrapped):
                num_items = self._watched = num_items.as_subclass(WatchedCount)
                self._watched.uses = []
        return num_items

    def process_factor(self) -> int:
        """Return the factor that ``compute_loss`` applies to a loss divided by the labels of all processes."""
        self._factor = 1 if self.share is not None else self._data_parallel_size
        return self._factor

    def _explain(self, num_summed: int, num_processes: int) -> None:
        if num_summed * num_processes == 1:
            return
        trainer = self._trainer
        own: Any = None if type(trainer).compute_loss.__module__.startswith("portico.") else type(trainer)
        owner = own or trainer.compute_loss_func or type(trainer.accelerator.unwrap_model(trainer.model))
        counts = {"batches": num_summed, "processes": num_processes}
        over = " and ".join(f"{count} {unit}" for unit, count in counts.items() if count > 1)
        self.warn(
            "loss_scale",
            f"The loss of `{getattr(owner, '__name__', owner)}` is a mean already, yet transformers adds it up over "
            f"{over}: the logged loss and its gradients are {num_summed * num_processes} times too large",
        )

    # Training

    def split_shares(
        self, window: Sequence["Batch"], loader: "Loader", num_items: "NumItems"
    ) -> tuple[list["Batch"], list[BatchShare | None]]:
        """Return the batches to train on, for a window just fetched from ``loader``, and the share of each.

        ``num_items`` is the number of labels in the window, if the model takes it.
        """
        if not self._names and self._is_alone(len(window)):
            return list(window), [None]
        batches, sizes = list(window), [find_batch_size(batch) or 1 for batch in window]
        if not batches:
            return batches, []
        num_own, num_repeated = count_repeats(sizes[-1], loader)
        if num_repeated:
            self.warn(
                "train_duplicates",
                "The last batches of an epoch are completed from its start, so transformers trains on "
                f"{num_repeated} of its examples twice",
            )
        if "train_duplicates" in self and num_own < sizes[-1]:
            batches[-1], sizes[-1] = resize_rows(batches[-1], sizes[-1], num_own or sizes[-1]), num_own
        if self._names & {"loss_scale", "train_duplicates"} and not self._trainer.loss_is_scaled_for_ga:
            return batches, self._shares(batches, sizes)
        if len(set(sizes)) > 1 and not self._trainer._portico.sums_losses(num_items):
            self.warn(
                "loss_scale",
                f"A step gives its batches of {min(sizes)} and of {max(sizes)} examples the same weight, so an "
                f"example of the smaller one counts {max(sizes) / min(sizes):.3g} times as much",
            )
        return batches, [None] * len(batches)

    def _shares(self, batches: Sequence["Batch"], sizes: Sequence[int]) -> list[BatchShare | None]:
        trainer, num_averaged = self._trainer, 1
        counts = [self.num_items(batch, size) for batch, size in zip(batches, sizes, strict=True)]
        total = torch.stack(counts).sum()
        if trainer.args.average_tokens_across_devices:
            num_averaged = trainer.accelerator.data_parallel_size
            total = trainer.accelerator.gather(total).sum()
        weights = [count * num_averaged / total.clamp(min=1) for count in counts]
        return [BatchShare(*share) for share in zip(counts, sizes, weights, strict=True)]

    def num_items(self, batch: "Batch", num_examples: int) -> torch.Tensor:
        """Return the number of labels in a batch, or of examples if it has none that can be counted."""
        count, device = None, self._trainer.args.device
        if num_examples and isinstance(batch, Mapping) and batch.get("labels") is not None:
            count = count_labels([batch], shifts_labels=self._trainer._loss_shifts_labels)
        return torch.as_tensor(num_examples if count is None else count, dtype=torch.float32, device=device)

    @property
    def filters_losses(self) -> bool:
        """Whether losses that are NaN or infinite are left out of the logs."""
        return self._trainer.args.logging_nan_inf_filter and "nan_losses" not in self._names

    def filters(self, loss: torch.Tensor, inputs: "Batch") -> bool:
        """Return whether transformers logs another loss in place of ``loss`` of ``inputs``: it is NaN or infinite."""
        if not (self.filters_losses or self._trainer.args.stop_on_nan) or math.isfinite(loss.item()):
            return False
        self._has_diverged = True
        if self._trainer.accelerator.data_parallel_size == 1:
            self.stop_if_diverged()
        if self.filters_losses and "nan_losses" not in self._warned:
            given = _not_finite(inputs)
            cause = f", as are values of {', '.join(map(repr, given))} in the batch" if given else ""
            cure = "remove them from the data" if given else "lower `learning_rate` or `max_grad_norm`"
            self.warn(
                "nan_losses",
                f"The loss of step {self._trainer.state.global_step + 1} is {loss.item()}{cause}, and transformers "
                "logs the mean of the losses since the last log in its place, 0.0 if there are none",
                f"{cure}, set `stop_on_nan=True` to stop there, or to log it ",
            )
        return self.filters_losses

    def stop_if_diverged(self) -> None:
        """Raise an error in every process if ``stop_on_nan`` is set and any process had a NaN or infinite loss."""
        trainer = self._trainer
        if not trainer.args.stop_on_nan:
            return
        step, found = trainer.state.global_step, torch.tensor(float(self._has_diverged), device=trainer.args.device)
        if trainer.accelerator.gather(found).any():
            raise InputRuntimeError(
                f"The loss of step {step + 1} is NaN or infinite, so training stops before that step, with the "
                f"weights of step {step} (`stop_on_nan=True`); lower `learning_rate` or `max_grad_norm`, use "
                "`bf16` instead of `fp16`, or look for such values in the batch."
            )

    def warn_of_renamed_weights(self, checkpoint: str, num_missing: int) -> None:
        """Warn that the model keeps the values it had for weights that the checkpoint holds under other names."""
        self.warn(
            "renamed_weights",
            f"{num_missing} weights of the model keep the values they had, because `save_pretrained` wrote them into "
            f"{checkpoint} under other names and transformers' trainer does not translate them",
        )

    def sum_unlogged_loss(self, tr_loss: torch.Tensor) -> float:
        """Return the sum of the losses since the last log: over all processes, or of this one as in transformers."""
        own, mean = tr_loss.item(), self._trainer.accelerator.gather(tr_loss).mean().item()
        # No warning about sums that would be printed the same.
        if self._trainer.accelerator.data_parallel_size > 1 and f"{own:.4g}" != f"{mean:.4g}":
            self.warn(
                "train_loss",
                "`train_loss` takes the losses since the last log from the first process alone: their sum is "
                f"{own:.4g}, and that of all processes {mean:.4g}",
            )
        return mean if "train_loss" in self else own

    def resume(
        self, plan: "RunPlan", point: ResumePoint, loader: "Loader", checkpoint: str
    ) -> tuple["RunPlan", ResumePoint]:
        """Return plan and position of a resumed run: by the examples it has seen, or by steps as in transformers."""
        state, args = self._trainer.state, self._trainer.args
        is_stream = not has_length(loader)
        size = num_examples_in_round(loader)
        position = None if size is None else self._position(plan, checkpoint, size=size, is_stream=is_stream)
        if size is None or position is None or skip_first_examples(loader, position[1]) is None:
            return plan, point
        epoch, num_examples = position
        # The position in a stream is counted as if it never ended.
        num_batches = point.num_batches_to_skip + (point.epoch * plan.steps_in_epoch if is_stream else 0)
        by_steps = (0 if is_stream else point.epoch, num_batches * size)
        if position == by_steps:
            return plan, point
        if is_stream and epoch:
            message = (
                f"The checkpoint was written after {num_examples} examples of pass {epoch + 1} over the stream, and "
                "transformers, which counts steps as if a stream never ended, skips "
                f"{by_steps[1]} examples of the first"
            )
            advice = ""
        else:
            message = (
                f"The run of the checkpoint had seen {num_examples} examples of epoch {epoch} (counted from 0), and "
                f"transformers, which counts steps, skips {by_steps[1]} examples of epoch {by_steps[0]}"
            )
            advice = (
                "set `gradient_accumulation_steps` or `per_device_train_batch_size` so that a step has as many "
                "examples as there, or "
            )
        self.warn("resume_by_examples", message, f"{advice}to continue after the examples it had seen ")
        if "resume_by_examples" not in self:
            return plan, point
        options = {"is_stream": is_stream, "by_epochs": args.max_steps <= 0, "drop_last": plan.drops_examples(size)}
        plan, point = plan.continue_from(state.global_step, epoch, num_examples, size=size, **options)
        state.max_steps = plan.max_steps
        return plan, point

    def _position(self, plan: "RunPlan", checkpoint: str, *, size: int, is_stream: bool) -> tuple[int, int] | None:
        """Return the epoch of a checkpoint and how many of its examples were seen; ``None`` if that is unknown."""
        state, args = self._trainer.state, self._trainer.args
        position, num_processes = read_position(checkpoint)
        if position is None:
            # Of transformers, whose checkpoints have the batch size of a process and a file of random states for each,
            # but not the accumulation, with which the steps over a stream would be counted.
            saved = (state.train_batch_size or 0) * num_processes // self._trainer.accelerator.processes_per_batch
            is_usual = size * plan.gradient_accumulation_steps == plan.total_train_batch_size
            if is_stream or not is_usual or not saved or state.epoch is None:
                return None
            drops_last = plan.drops_examples(size)
            rounds = plan.num_examples // saved if drops_last else math.ceil(plan.num_examples / saved)
            position = int(state.epoch), round(state.epoch % 1 * rounds) * saved
        epoch, num_examples = position
        if not is_stream and num_examples >= min(plan.num_examples, plan.steps_in_epoch * size):
            epoch, num_examples = epoch + 1, 0
        if args.ignore_data_skip:
            return None if is_stream else (epoch, 0)
        return epoch, num_examples

    # Checkpoints

    def warn_of_steps_without_checkpoint(self) -> None:
        """Warn before a training that evaluates more often than it saves, and loads the best model at its end."""
        state, args = self._trainer.state, self._trainer.args
        by_steps = args.eval_strategy == args.save_strategy == "steps"
        if args.load_best_model_at_end and by_steps and state.eval_steps != state.save_steps:
            self.warn(
                "best_checkpoint",
                f"There is an evaluation every {state.eval_steps} steps and a checkpoint every {state.save_steps}: if "
                "the best evaluation falls between two checkpoints, `load_best_model_at_end` loads no checkpoint or "
                "that of an earlier best, as under transformers",
                "make `save_steps` equal to `eval_steps`, or to load the best of the checkpoints ",
            )

    def best_step(self) -> float | None:
        """Return the step of the best evaluation, or of the best among the saved ones if that is corrected."""
        state, args = self._trainer.state, self._trainer.args
        if "best_checkpoint" not in self or args.metric_for_best_model is None:
            return state.best_global_step
        key = metric_key(args.metric_for_best_model)
        measured = {logs["step"]: logs[key] for logs in state.log_history if key in logs}
        saved = Path(state.best_model_checkpoint or "").name
        best = next((step for step in measured if saved == f"checkpoint-{step}"), None)
        current = state.global_step
        if current not in measured:
            return best
        is_better = np.greater if args.greater_is_better else np.less
        return current if best is None or is_better(measured[current], measured[best]) else best

    def warn_of_unsaved_best(self) -> None:
        """Warn at the end of a training if the model with the best evaluation was not saved."""
        state, args = self._trainer.state, self._trainer.args
        loaded = Path(state.best_model_checkpoint).name if state.best_model_checkpoint else None
        if args.load_best_model_at_end and state.best_global_step and loaded != f"checkpoint-{state.best_global_step}":
            model = loaded or f"step {state.global_step}, the last"
            self.warn(
                "best_checkpoint",
                f"The best evaluation was at step {state.best_global_step}, of which there is no checkpoint, so the "
                f"model at the end is that of {model}, as under transformers",
                "to load the best of the checkpoints ",
            )

    def restore_order(
        self, checkpoint: str, loader: "Loader", epoch: int, *, restore: Callable[[], None] | None
    ) -> None:
        """Let the rest of a resumed epoch have the order in which it had begun, if that is corrected.

        ``restore`` sets the random states that the checkpoint holds, if it is from inside an epoch.
        """
        args = self._trainer.args
        sampler = sampler_of_its_own_order(loader)
        is_inside_epoch = restore is not None
        is_known = "resume_order" in self and restore_order(checkpoint, loader, args, restore=restore)
        # A new sampler begins the first epoch as the earlier one did.
        differs = is_inside_epoch or generators_of(loader)
        if is_known or sampler is None or not epoch or not differs or args.ignore_data_skip:
            return
        message = (
            f"`{type(sampler).__name__}` draws the order of an epoch from generators that have other states in this "
            f"resumed run, so epoch {epoch} (counted from 0) may hold examples twice and leave out others"
        )
        if "resume_order" in self:
            logger.warning(f"{message}: {checkpoint} does not hold the states, which transformers does not write.")
        else:
            self.warn("resume_order", message)

    def resume_after_last_step(self, plan: "RunPlan", point: ResumePoint) -> ResumePoint:
        """Return where to resume a run that ended inside an epoch: after the end, or as in transformers."""
        self.warn(
            "resume_at_max_steps",
            f"The checkpoint is of step {self._trainer.state.global_step}, and the run ends at step "
            f"{plan.max_steps}, yet transformers makes one more",
        )
        return ResumePoint(plan.num_train_epochs) if "resume_at_max_steps" in self else point


def _not_finite(inputs: "Batch") -> list[str]:
    """Return the names of inputs that hold NaN or infinity."""
    tensors = inputs.items() if isinstance(inputs, Mapping) else ()
    return [
        name
        for name, tensor in tensors
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point() and not tensor.isfinite().all()
    ]


class EvaluationLoss:
    """The mean loss of an evaluation.

    Args:
        trainer: The trainer that evaluates.
        loader: Batches of the evaluation.
        watches: Whether to compare it with the mean over all labels, for a warning.
    """

    def __init__(self, trainer: "TrainerHooks", loader: "Loader", *, watches: bool) -> None:
        self._trainer = trainer
        self._loader = loader
        self._watches = watches
        self._is_corrected = trainer._portico.corrections.corrects_evaluations
        self._is_idle = trainer.accelerator.data_parallel_size == 1 and not self._is_corrected
        self._num_repeated = 0
        self._sizes = (0, 0)  # examples of the current batch that are evaluated, and all
        self._share: BatchShare | None = None
        self._batches: list[tuple[torch.Tensor, torch.Tensor, int]] = []  # loss, items and examples of each
        self._watched = [0.0, 0.0]  # sums of loss x items, and of items

    @classmethod
    def create_if_needed(cls, trainer: "TrainerHooks", loader: "Loader") -> "EvaluationLoss | None":
        """Return the mean loss of an evaluation, ``None`` if the mean that transformers computes is right."""
        # A single process watches its first evaluation, for a warning; counting labels takes about 30 us a batch.
        is_alone = trainer.accelerator.data_parallel_size == 1
        corrections = trainer._portico.corrections
        watches = is_alone and corrections.watches_evaluation
        if is_alone and not watches and not corrections.corrects_evaluations:
            return None
        corrections.watches_evaluation = False
        return cls(trainer, loader, watches=watches)

    def correcting_batch(self, inputs: "Batch") -> AbstractContextManager["Batch"]:
        """Inside the block, compute the loss of a batch; the context yields the batch without repeated examples."""
        corrections = self._trainer._portico.corrections
        labels = inputs.get("labels") if self._watches and isinstance(inputs, Mapping) else None
        watches = isinstance(labels, torch.Tensor) and labels.ndim > 1 and not labels.is_floating_point()
        if self._is_idle and not watches:
            self._share = None
            return nullcontext(inputs)
        size = find_batch_size(inputs) or 1
        num_own, self._num_repeated = count_repeats(size, self._loader)
        evaluated = num_own or size if "eval_duplicates" in corrections else size
        self._sizes = (evaluated, size)
        inputs = resize_rows(inputs, size, evaluated)
        needs_share = self._is_corrected or watches
        self._share = BatchShare(corrections.num_items(inputs, num_own), num_own) if needs_share else None
        return corrections.applying(self._share if self._is_corrected else None, inputs=inputs)

    def complete(self, outputs: "Nested") -> Any:
        """Return the outputs of a batch with as many rows as other processes have, repeating the last row."""
        return resize_rows(outputs, *self._sizes)

    def add(self, loss: torch.Tensor) -> None:
        """Add the mean loss of the batch."""
        if self._share is not None and self._is_corrected:
            self._batches.append((loss.detach().mean(), self._share.num_items, self._share.num_examples))
        elif self._share is not None:
            items = self._share.num_items.item()
            self._watched = [self._watched[0] + items * loss.mean().item(), self._watched[1] + items]

    def mean(self, reported: float) -> float:
        """Return the mean loss: ``reported``, computed as in transformers, unless it is corrected."""
        corrections, accelerator = self._trainer._portico.corrections, self._trainer.accelerator
        if self._num_repeated:
            corrections.warn(
                "eval_duplicates",
                "The last batches of the evaluation are completed from its start, so transformers counts "
                f"{self._num_repeated} of its examples twice",
            )
        if self._watched[1]:
            mean = self._watched[0] / self._watched[1]
            if abs(mean - reported) > 0.01 * abs(mean):
                corrections.warn(
                    "eval_batch_means",
                    f"`eval_loss` is {reported:.4g}, which depends on the size of the batches, since it is the mean "
                    f"of their means; the mean over all labels is {mean:.4g}",
                )
        if not self._batches:
            return reported
        losses, items, examples = map(list, zip(*self._batches, strict=True))
        columns = torch.stack(losses), torch.stack(items), torch.tensor(examples, device=items[0].device)
        table_1B3 = torch.stack([column.float() for column in columns], dim=-1)[None]
        return self._mean_of(accelerator.gather(table_1B3), by_label="eval_batch_means" in corrections)

    def _mean_of(self, table_PB3: torch.Tensor, *, by_label: bool) -> float:
        """Return the mean of the losses of ``P`` processes and ``B`` batches each."""
        loss_PB, items_PB, examples_PB = np.moveaxis(table_PB3.cpu().double().numpy(), -1, 0)
        counts_PB = items_PB > 0
        finite_PB = counts_PB & np.isfinite(loss_PB)
        if self._trainer._portico.corrections.filters_losses and finite_PB.any():
            counts_PB = finite_PB
        items_PB = np.where(counts_PB, items_PB, 0)
        items_B = items_PB.sum(0)
        mean_B = (np.where(counts_PB, loss_PB, 0) * items_PB).sum(0) / np.maximum(items_B, 1)
        # As in transformers, the mean of each round of batches counts once per example.
        weight_B = items_B if by_label else np.where(items_B > 0, examples_PB.sum(0), 0)
        return float(np.average(mean_B, weights=weight_B)) if weight_B.any() else float("nan")


def count_repeats(size: int, loader: "Loader") -> tuple[int, int]:
    """Count the examples in the last fetched batch of ``size`` that are not repeats, and the repeats in all processes.

    The last batches of several processes are completed with examples from the start of the data.
    """
    if not isinstance(loader, DataLoaderShard) or not loader.end_of_dataloader or loader.remainder <= 0:
        return size, 0
    config, total = loader.config, size * loader.config.num_processes
    by_index = config.even_batches and not isinstance(loader.dataset, IterableDataset)
    by_all = isinstance(loader.dataset, IterableDatasetShard) and loader.dataset.batch_size == size
    in_turns = by_index and loader.total_batch_size == total
    if not isinstance(loader, DataLoaderDispatcher) and not by_all and not in_turns:
        return size, 0
    num_own = loader.remainder - size * config.process_index
    return min(max(num_own, 0), size), max(total - loader.remainder, 0)


def resize_rows(data: "Nested", size: int, num_rows: int) -> Any:
    """Return nested tensors of ``size`` rows with ``num_rows`` instead: cut off, or with the last row repeated."""
    if num_rows == size:
        return data
    rows = [min(row, size - 1) for row in range(num_rows)]
    if is_per_example(data, size):
        return [data[row] for row in rows]
    return map_tensors(lambda tensor: tensor[rows] if tensor.dim() and len(tensor) == size else tensor, data)


def is_compiled(model: torch.nn.Module) -> bool:
    """Return whether a part of ``model`` is compiled, and would be compiled again for a tensor of another class."""
    marks = ("_orig_mod", "_compiled_call_impl")
    return any(getattr(module, mark, None) is not None for module in model.modules() for mark in marks)


class WatchedCount(torch.Tensor):
    """A count of labels that records its uses; the results are the same as with a plain tensor.

    A signature does not show whether a loss is divided by the count, since most models pass keyword arguments on to
    layers that ignore them. A second forward pass would, but it draws random numbers and calls the user's code again.
    """

    uses: list[str]
    traced: ClassVar[list[str]] = []  # calls that were compiled, so that nothing is known about them
    # Functions that return the value as something other than a tensor.
    _reading = frozenset({"item", "tolist", "numpy", "__array__", "__int__", "__float__", "__index__"})

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.compiler.is_compiling():
            cls.traced.append(func.__name__)
            return super().__torch_function__(func, types, args, kwargs or {})
        tensors: list[torch.Tensor] = []
        map_tensors(tensors.append, [args, kwargs or {}])
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        watched = [tensor for tensor in tensors if isinstance(tensor, cls) and "uses" in tensor.__dict__]
        if watched and (len(watched) < len(tensors) or func.__name__ in cls._reading):
            watched[0].uses.append(func.__name__)
        elif watched and isinstance(result, torch.Tensor):
            # Moved to another device, or divided by the number of batches: still the count.
            result = result.as_subclass(cls)
            result.uses = watched[0].uses
        return result
