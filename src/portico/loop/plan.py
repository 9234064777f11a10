"""How many steps a run takes: counted once, before anything is built.

Pure arithmetic (no torch), so that the counts can be tested without a model. The plan, not Lightning, ends a run:
Lightning gets ``max_steps=-1`` and is told when to stop.
"""

import math
import sys
from dataclasses import astuple, dataclass, replace
from typing import Any

from portico.errors import InputError


@dataclass(frozen=True)
class ResumePoint:
    """Where in the data a run continues."""

    epoch: int = 0  # counted from 0
    num_batches_to_skip: int = 0  # loader batches of that epoch that were trained on already
    num_examples_to_skip: int | None = None  # where they were not batches of this size

    @classmethod
    def locate(
        cls, global_step: int, *, num_update_steps_per_epoch: int, gradient_accumulation_steps: int, skips_data: bool
    ) -> "ResumePoint":
        """Return where a run continues after ``global_step`` optimizer steps.

        Without ``skips_data`` (``ignore_data_skip``) the interrupted epoch starts over.
        """
        epoch, step = divmod(global_step, num_update_steps_per_epoch)
        return cls(epoch, step * gradient_accumulation_steps if skips_data else 0)


def limit_batches(num_batches: Any, limit: float, name: str) -> Any:
    """Return how many of ``num_batches`` (``None``: unknown) are left by ``limit``, a number or a fraction.

    ``name`` is the argument of ``lightning.Trainer`` that sets ``limit``.

    Raises:
        InputError: If no batch is left, or ``limit`` is a fraction of an unknown number.
    """
    if isinstance(limit, float) and (limit == 1.0 or num_batches is None):
        if limit != 1.0:
            raise InputError(f"`{name}={limit}` is a part of data that have no length; set it to a number of batches.")
        return num_batches
    limited = int(num_batches * limit) if isinstance(limit, float) else limit
    if limited < 1:
        without = ", or set `eval_strategy='no'` to train without evaluations" if name == "limit_val_batches" else ""
        raise InputError(
            f"`{name}={limit}` leaves none of {num_batches} batches; set it to an int >= 1 or a larger part{without}."
        )
    return limited if num_batches is None else min(limited, num_batches)


@dataclass(frozen=True)
class RunPlan:
    """The counts of one training run, with the meaning they have in ``transformers.Trainer``.

    ``_steps`` are optimizer steps, ``_batches`` loader batches; a pass is one iteration over the training loader.
    """

    # The first seven in the order of `transformers.Trainer.set_initial_training_values`.
    num_train_epochs: int  # passes, at most; the run may stop inside the last one
    num_update_steps_per_epoch: int  # in one pass
    num_examples: int  # in one pass
    num_train_samples: float  # examples in the whole run, for the throughput figures; NaN if unknown
    total_train_batch_size: int  # examples that make one optimizer step, over all processes
    steps_in_epoch: int  # loader batches in one pass (HF's name)
    max_steps: int  # of the whole run
    gradient_accumulation_steps: int  # loader batches in a full accumulation window

    @classmethod
    def make(
        cls,
        *,
        max_steps: int,
        num_train_epochs: float,
        gradient_accumulation_steps: int,
        total_train_batch_size: int,
        num_batches: int | None,
        num_examples: int | None,
    ) -> "RunPlan":
        """Count the steps of a run, as ``transformers.Trainer.set_initial_training_values`` does.

        Epochs, possibly a fraction, decide if ``max_steps`` is not positive. ``num_batches`` is the length of the
        loader and ``num_examples`` the length of the dataset; either may be ``None``. ``InputError`` is raised if
        neither ``max_steps`` nor the length of the loader determines the end.
        """
        if not num_batches:
            if max_steps <= 0:
                what = "is empty" if num_batches == 0 else "has no length"
                raise InputError(
                    "args.max_steps must be set to a positive value if dataloader does not have a length, was "
                    f"{max_steps}. The training data loader {what}; give a dataset with examples, or set `max_steps`."
                )
            # As many passes over the stream as the steps need.
            epochs = sys.maxsize
            per_epoch = max_steps
            num_batches = max_steps * gradient_accumulation_steps
            examples = total_train_batch_size * max_steps
            samples = float(examples)
        else:
            per_epoch = max(math.ceil(num_batches / gradient_accumulation_steps), 1)
            examples = num_examples or 0
            if max_steps > 0:
                # As transformers: slightly too many samples if the last batch of an epoch is smaller.
                epochs, samples = math.ceil(max_steps / per_epoch), float(max_steps * total_train_batch_size)
            else:
                epochs, samples = math.ceil(num_train_epochs), examples * num_train_epochs
                max_steps = math.ceil(num_train_epochs * per_epoch)
        counts = (epochs, per_epoch, examples, samples, total_train_batch_size, num_batches, max_steps)
        return cls(*counts, gradient_accumulation_steps)

    def continue_from(
        self,
        global_step: int,
        epoch: int,
        num_examples: int,
        *,
        size: int,
        is_stream: bool,
        by_epochs: bool,
        drop_last: bool,
    ) -> tuple["RunPlan", ResumePoint]:
        """Return plan and position of a run after ``global_step`` steps that took other numbers of examples.

        A batch of each process has ``size`` examples together. The run has seen ``num_examples`` of ``epoch``. With
        ``by_epochs`` the steps of the remaining epochs are added to the steps that it has made; a stream is given as
        many batches as the steps up to ``max_steps`` need.
        """
        window = self.gradient_accumulation_steps
        if is_stream:
            skip = num_examples // size
            num_steps = max(skip // window + max(self.max_steps - global_step, 0), self.num_update_steps_per_epoch)
            plan = replace(self, num_update_steps_per_epoch=num_steps, steps_in_epoch=num_steps * window)
            return plan, ResumePoint(epoch, skip, num_examples)
        left = self.num_examples - num_examples
        skip = self.steps_in_epoch - (left // size if drop_last else math.ceil(left / size))
        done = epoch * self.num_update_steps_per_epoch + skip // window
        max_steps = global_step + max(self.max_steps - done, 0) if by_epochs else self.max_steps
        return replace(self, max_steps=max_steps), ResumePoint(epoch, skip, num_examples)

    def drops_examples(self, size: int) -> bool:
        """Return whether a pass leaves out the last examples, in batches of all processes of ``size`` examples.

        The loader decides, whatever ``dataloader_drop_last`` says: programs on IPUs train on full batches only, and a
        loader of the user's own may drop the last one.
        """
        return self.steps_in_epoch * size < self.num_examples

    def num_batches_in_window(self, update_step: int) -> int:
        """Return the number of loader batches in step ``update_step`` of an epoch; the last step may have fewer."""
        if update_step != self.num_update_steps_per_epoch - 1:
            return self.gradient_accumulation_steps
        return self.steps_in_epoch % self.gradient_accumulation_steps or self.gradient_accumulation_steps

    def ends_window(self, batch_idx: int) -> bool:
        """Return whether batch ``batch_idx`` of an epoch is the last of its accumulation window."""
        return (batch_idx + 1) % self.gradient_accumulation_steps == 0 or batch_idx + 1 == self.steps_in_epoch

    def as_training_values(self) -> tuple[int, int, int, float, int, int, int]:
        """Return the counts in the order of ``Trainer.set_initial_training_values``."""
        values: Any = astuple(self)[:7]
        return values
