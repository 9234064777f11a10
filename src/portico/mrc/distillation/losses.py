"""What a student loses by scoring otherwise than its teacher."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from torch import Tensor, nn

from portico.errors import InputError

DistillationLoss = Literal["mse", "kl"]
POSITION_LOGITS = ("start_logits", "end_logits")


@dataclass(frozen=True)
class Distillation:
    """How a student learns the start and end logits of its teacher.

    Args:
        loss: ``"mse"``: the mean squared difference from the teacher's logits divided by the temperature, as in
            PrimeQA. ``"kl"``: the divergence of the two distributions, both at the temperature, times its square (the
            usual loss, arXiv:1503.02531).
        temperature: Above 1 the teacher's scores differ less.
        weight: Share of this loss, between 0 and 1; the loss of the labels has the rest. With 1, as in PrimeQA, the
            labels count for nothing.

    Raises:
        InputError: If one of them is out of range.
    """

    loss: DistillationLoss = "mse"
    temperature: float = 1.0
    weight: float = 1.0

    def __post_init__(self) -> None:
        if self.loss not in get_args(DistillationLoss):
            raise InputError(f"The distillation loss {self.loss!r} is unknown; set it to 'mse' or 'kl'.")
        if not self.temperature > 0:
            raise InputError(f"The distillation temperature {self.temperature} is not positive; set it above 0.")
        if not 0 <= self.weight <= 1:
            raise InputError(f"The distillation weight {self.weight} is no share; set it between 0 and 1.")

    def __call__(self, label_loss: Tensor, student: Mapping[str, Any], teacher: Mapping[str, Any]) -> Tensor:
        """Return the loss to train with, a scalar.

        Args:
            label_loss: Loss of the labels, a scalar.
            student: Outputs with start and end logits, ``float [B, L]`` each.
            teacher: Likewise.
        """
        losses = [self._position_loss(student[name], teacher[name]) for name in POSITION_LOGITS]
        loss = sum(losses[1:], losses[0]) / len(losses)
        return loss if self.weight == 1 else self.weight * loss + (1 - self.weight) * label_loss

    def _position_loss(self, student_BL: Tensor, teacher_BL: Tensor) -> Tensor:
        targets_BL = teacher_BL / self.temperature
        if self.loss == "mse":
            return nn.functional.mse_loss(student_BL, targets_BL)
        divergence = nn.functional.kl_div(
            (student_BL / self.temperature).log_softmax(dim=-1),
            targets_BL.log_softmax(dim=-1),
            reduction="batchmean",
            log_target=True,
        )
        # The square keeps the size of the gradients at any temperature.
        return divergence * self.temperature**2
