"""Which of a model's tensors is the loss that training starts from."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from portico.ipu.emulator.errors import Error

_LOSS_NAMES = (
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cosine_embedding_loss",
    "cross_entropy",
    "ctc_loss",
    "gaussian_nll_loss",
    "hinge_embedding_loss",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "margin_ranking_loss",
    "mse_loss",
    "multi_margin_loss",
    "multilabel_margin_loss",
    "multilabel_soft_margin_loss",
    "nll_loss",
    "poisson_nll_loss",
    "smooth_l1_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
    "triplet_margin_with_distance_loss",
)
_LOSS_FUNCTIONS = frozenset(
    getattr(home, name) for name in _LOSS_NAMES for home in (functional, torch) if hasattr(home, name)
)


class LossTracker:
    """Finds the losses of a forward pass, and which of them is computed from others.

    A loss that goes into another is not the one that training starts from: a model may average two cross-entropies
    and mark the average.
    """

    def __init__(self) -> None:
        self._losses: list[Tensor] = []
        # By identity; the tensors are held, so that no other gets their identity.
        self._origins: dict[int, tuple[Tensor, frozenset[int]]] = {}
        self._absorbed: set[int] = set()

    def mark(self, loss: Tensor, origins: frozenset[int] = frozenset()) -> None:
        """Take ``loss`` for a loss that was computed from those in ``origins``."""
        self._absorbed |= origins
        self._origins[id(loss)] = (loss, frozenset({len(self._losses)}))
        self._losses.append(loss)

    def mark_identity(self, loss: Tensor, source: Tensor) -> None:
        """Take ``loss`` for one that the user marked, computed from ``source``."""
        self.mark(loss, self._origins_of(source))

    def see(self, function: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Follow losses through the call of a torch function."""
        is_loss = function in _LOSS_FUNCTIONS and _is_reduced(kwargs, result)
        if not self._losses and not is_loss:
            return
        inputs = tensors_in((args, kwargs))
        origins: frozenset[int] = frozenset().union(*(self._origins_of(tensor) for tensor in inputs))
        if is_loss:
            self.mark(result, origins)
        elif origins:
            for tensor in tensors_in(result):
                self._origins[id(tensor)] = (tensor, origins)

    def final_loss(self) -> Tensor:
        """Return the one loss that goes into no other.

        Raises:
            Error: If there is none, or there are several.
        """
        final = [loss for number, loss in enumerate(self._losses) if number not in self._absorbed]
        if not final:
            raise Error(
                "Couldn't find a loss in graph! Compute one of torch's losses in the model, or wrap the model's own "
                "in poptorch.identity_loss."
            )
        if len(final) > 1:
            raise Error(
                "Multiple independent losses found in graph. Graph must have one final loss. Wrap final graph loss "
                "in poptorch.identity_loss."
            )
        return final[0]

    def _origins_of(self, tensor: Tensor) -> frozenset[int]:
        return self._origins.get(id(tensor), (None, frozenset[int]()))[1]


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of nested containers."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)


def _is_reduced(kwargs: Any, result: Any) -> bool:
    return isinstance(result, Tensor) and (kwargs or {}).get("reduction") != "none"


_current: LossTracker | None = None


def current_losses() -> LossTracker | None:
    """Return the tracker of the forward pass that is running, if one is."""
    return _current


@contextmanager
def tracked(losses: LossTracker) -> Iterator[None]:
    """Let losses report to ``losses``."""
    global _current
    enclosing, _current = _current, losses
    try:
        yield
    finally:
        _current = enclosing
