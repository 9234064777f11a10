"""Distillation: a model learns from the start and end logits of a teacher."""

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForQuestionAnswering, PreTrainedModel

from portico.checkpoint.manifest import refuse_oversized_model
from portico.errors import InputError, loading_pretrained
from portico.hub import refuse_missing_model
from portico.mrc.models.task_model import ModelForDownstreamTasks
from portico.trainer import Trainer

DistillationLoss = Literal["mse", "kl"]
TEACHER_KEYS = ("teacher", "distillation_loss", "distillation_temperature", "distillation_weight")
_POSITION_LOGITS = ("start_logits", "end_logits")


@dataclass(frozen=True)
class Distillation:
    """Loss of a student against its teacher.

    Args:
        loss: ``"mse"``: the mean squared difference from the teacher's logits divided by the temperature, as in
            PrimeQA. ``"kl"``: the divergence of the two distributions, both at the temperature, times the squared
            temperature (the usual loss, arXiv:1503.02531).
        temperature: Above 1 it reduces the differences between the teacher's scores.
        weight: Share of this loss, between 0 and 1; the loss of the labels has the rest. With 1, as in PrimeQA, the
            labels are ignored.

    Raises:
        InputError: If one of them is out of range.
    """

    loss: DistillationLoss = "mse"
    temperature: float = 1.0
    weight: float = 1.0

    def __post_init__(self) -> None:
        if self.loss not in get_args(DistillationLoss):
            raise InputError(f"The distillation loss {self.loss!r} is unknown; set it to 'mse' or 'kl'.")
        if not 0 < self.temperature < math.inf:
            raise InputError(
                f"The distillation temperature {self.temperature} is not positive and finite; set it above 0."
            )
        if not 0 <= self.weight <= 1:
            raise InputError(f"The distillation weight {self.weight} is out of range; set it between 0 and 1.")

    def __call__(self, label_loss: Tensor, student: Mapping[str, Any], teacher: Mapping[str, Any]) -> Tensor:
        """Return the training loss, a scalar like ``label_loss``, of outputs with start and end logits ``[B, L]``."""
        losses = [self._position_loss(student[name], teacher[name]) for name in _POSITION_LOGITS]
        loss = sum(losses[1:], losses[0]) / len(losses)
        return loss if self.weight == 1 else self.weight * loss + (1 - self.weight) * label_loss

    def _position_loss(self, student_BL: Tensor, teacher_BL: Tensor) -> Tensor:
        targets_BL = teacher_BL / self.temperature
        if self.loss == "mse":
            return nn.functional.mse_loss(student_BL, targets_BL)
        # "batchmean" divides by the rows only; torch's default, "mean", would also divide by the tokens.
        divergence = nn.functional.kl_div(
            (student_BL / self.temperature).log_softmax(dim=-1),
            targets_BL.log_softmax(dim=-1),
            reduction="batchmean",
            log_target=True,
        )
        # The square keeps the scale of the gradients independent of the temperature.
        return divergence * self.temperature**2


class DistillationMixin(Trainer):
    """Adds a teacher to a trainer of extractive models; put it before the trainer, which takes all other arguments.

    Args:
        teacher: A model with the same tokens as the student; without one the loss is the usual one.
        distillation: Loss against the teacher; by default the loss of PrimeQA.
    """

    def __init__(
        self, *args: Any, teacher: nn.Module | None = None, distillation: Distillation | None = None, **kwargs: Any
    ) -> None:
        self.teacher = teacher
        self.distillation = distillation or Distillation()
        super().__init__(*args, **kwargs)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """Return the loss as :meth:`portico.Trainer.compute_loss` does; in training, against the teacher.

        Raises:
            InputError: If model or teacher do not return start and end logits.
        """
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, num_items_in_batch=num_items_in_batch)
        # Evaluation reports the loss of the labels, so that runs with and without a teacher can be compared.
        if self.teacher is not None and model.training:
            targets = self._teacher_outputs(self.teacher, inputs)
            for name, scores in (("model", outputs), ("teacher", targets)):
                if not isinstance(scores, Mapping) or any(key not in scores for key in _POSITION_LOGITS):
                    raise InputError(
                        f"Distillation compares start and end logits, which the {name} does not return in training; "
                        "use an extractive model (without beam search) that returns a `ModelOutput`."
                    )
            loss = self.distillation(loss, outputs, targets)
        return (loss, outputs) if return_outputs else loss

    def _teacher_outputs(self, teacher: nn.Module, inputs: Mapping[str, Any]) -> Any:
        # Moved on first use: the strategy only places the modules of the student.
        teacher.to(self.args.device).eval()
        accepted = inspect.signature(teacher.forward).parameters
        unlabelled = {
            name: value for name, value in inputs.items() if name in accepted and name not in self.label_names
        }
        with torch.no_grad(), self.accelerator.autocast():
            return teacher(**unlabelled)


def load_teacher(model_path: str, config_path: str | None = None, *, student: PreTrainedModel) -> nn.Module:
    """Load a teacher, with the head classes of the student if the student has exchangeable heads.

    Raises:
        InputError: If the teacher cannot be loaded, or its vocabulary differs in size from the student's.
    """
    if config_path is None:
        refuse_missing_model("model.teacher", str(model_path))
    with loading_pretrained(
        f"The teacher `{model_path}` cannot be loaded",
        "give a folder written by `save_pretrained`, or a name on the hub.",
    ):
        refuse_oversized_model(model_path)
        config = AutoConfig.from_pretrained(config_path or model_path)
        heads = getattr(student, "task_heads", None)
        if heads is None and not getattr(config, "task_heads", None):
            teacher: Any = AutoModelForQuestionAnswering.from_pretrained(model_path, config=config)
        else:
            # The student's head classes also load a teacher whose configuration records no heads, as PrimeQA's do not.
            classes = None if heads is None else {name: type(head) for name, head in heads.items()}
            teacher = ModelForDownstreamTasks.from_config(config, model_path, task_heads=classes)
            teacher.set_task_head(teacher.config.task_head if heads is None else student.config.task_head)
    if config.vocab_size != student.config.vocab_size:
        raise InputError(
            f"The teacher `{model_path}` has {config.vocab_size} tokens and the student "
            f"{student.config.vocab_size}; give a teacher with the tokenizer of the student."
        )
    return teacher.eval().requires_grad_(False)


def build_teacher_arguments(model: Mapping[str, Any], student: PreTrainedModel) -> dict[str, Any]:
    """Return the arguments of :class:`DistillationMixin` for a configured run; none without a teacher.

    ``model`` has the keys ``TEACHER_KEYS``: ``teacher``, a folder or a name, and options of :class:`Distillation`.
    """
    given = [key for key in TEACHER_KEYS[1:] if model.get(key) is not None]
    if model.get("teacher") is None:
        if given:
            raise InputError(
                f"`model.{given[0]}={model[given[0]]}` needs a teacher; set `model.teacher` to the folder of a run or "
                "a name on the hub, or leave this out."
            )
        return {}
    options = {key.removeprefix("distillation_"): model[key] for key in given}
    return {"teacher": load_teacher(model["teacher"], student=student), "distillation": Distillation(**options)}
