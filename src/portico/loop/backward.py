"""Who runs the backward pass of a training step, and when."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from portico.distributed.accelerator import Accelerator


class BackwardPass:
    """What ``accelerator.backward(loss)`` does during one training run.

    Hugging Face's ``training_step`` calls it and finds the gradients afterwards; Lightning's returns a loss, which
    Lightning differentiates. Which of the two holds is decided once, when the run is set up:

    - In the trainer's own ``training_step`` the call is the last line, so the loss is kept, the step returns it, and
      Lightning runs backward. A strategy may then wrap the whole module (DeepSpeed, FSDP, Lightning's DDP).
    - A ``training_step`` that a subclass overrides may use the gradients in its next line. Backward runs inside the
      call, as often as it is called, and Lightning skips its own pass.

    Outside a run ``accelerator.backward(loss)`` is ``loss.backward()``.

    Args:
        run_backward: Runs backward on a loss through the strategy.
        inside_step: Whether backward runs inside ``training_step``.
    """

    def __init__(self, run_backward: Callable[..., None], *, inside_step: bool) -> None:
        self.inside_step = inside_step
        self._run_backward = run_backward
        self._kept_loss: torch.Tensor | None = None

    @contextmanager
    def serving(self, accelerator: Accelerator) -> Iterator[None]:
        """Be what ``accelerator.backward`` calls during the block."""
        before, accelerator.run_backward = accelerator.run_backward, self
        try:
            yield
        finally:
            accelerator.run_backward = before

    def __call__(self, loss: torch.Tensor, **kwargs: object) -> None:
        if self.inside_step:
            self._run_backward(loss, **kwargs)
        elif self._kept_loss is not None:
            raise RuntimeError(
                "`accelerator.backward` was called twice in one `training_step`; override `training_step` in a "
                "subclass to run several backward passes."
            )
        else:
            self._kept_loss = loss

    def take_loss(self) -> torch.Tensor:
        """Return the loss of the step that just ended, for Lightning to differentiate."""
        loss, self._kept_loss = self._kept_loss, None
        if loss is None:
            raise RuntimeError(
                "`training_step` did not call `accelerator.backward`, so there is no loss to differentiate; call "
                "`self.accelerator.backward(loss)` in it."
            )
        return loss
