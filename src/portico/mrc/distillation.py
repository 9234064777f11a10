"""What a student loses by scoring otherwise than its teacher."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForQuestionAnswering

from portico.errors import InputError
from portico.mrc.models.task_model import ModelForDownstreamTasks
from portico.trainer import Trainer

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


class DistillationMixin(Trainer):
    """Put before a trainer of extractive readers: its model learns from a teacher.

    Args:
        *args: As in the trainer.
        teacher: A model that reads the same tokens; without one the loss is the usual.
        distillation: How the model learns from it; by default as in PrimeQA.
        **kwargs: As in the trainer.
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
        """Return the loss of a batch; in training, with what the teacher says of it.

        Args:
            model: The model.
            inputs: Model inputs of the batch.
            return_outputs: Return ``(loss, outputs)``.
            num_items_in_batch: See :meth:`portico.Trainer.compute_loss`.

        Raises:
            InputError: If model or teacher return no start and end logits.
        """
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, num_items_in_batch=num_items_in_batch)
        if self.teacher is not None and model.training:
            taught = self._teacher_outputs(inputs)
            for who, scores in (("model", outputs), ("teacher", taught)):
                _check_scores(who, scores)
            loss = self.distillation(loss, outputs, taught)
        return (loss, outputs) if return_outputs else loss

    def _teacher_outputs(self, inputs: Mapping[str, Any]) -> Any:
        assert self.teacher is not None
        # Moved when it is needed, and only once: it is not among the modules that the strategy places.
        self.teacher.to(self.args.device).eval()
        taken = inspect.signature(self.teacher.forward).parameters
        unlabelled = {name: value for name, value in inputs.items() if name in taken and name not in self.label_names}
        with torch.no_grad(), self.accelerator.autocast():
            return self.teacher(**unlabelled)


def _check_scores(who: str, outputs: Any) -> None:
    if not isinstance(outputs, Mapping) or any(name not in outputs for name in POSITION_LOGITS):
        raise InputError(
            f"Distillation compares start and end logits, which the {who} does not return in training; give an "
            "extractive reader (not one that searches by beams) that returns a `ModelOutput`."
        )


def load_teacher(model_path: str, config_path: str | None = None, *, student: Any) -> nn.Module:
    """Load a teacher, under heads of the student's kind where that has exchangeable ones.

    Args:
        model_path: Folder or name of its weights.
        config_path: Folder or name of its configuration; by default that of its weights.
        student: The model that is to learn from it.

    Raises:
        InputError: If there is no such model, or it reads other tokens than the student.
    """
    try:
        config = AutoConfig.from_pretrained(config_path or model_path)
        teacher = _loaded(model_path, config, student)
    except (OSError, ValueError) as error:
        raise InputError(
            f"The teacher `{model_path}` cannot be loaded ({' '.join(str(error).split())[:300]}); give a folder "
            "written by `save_pretrained`, or a name on the hub."
        ) from error
    if config.vocab_size != student.config.vocab_size:
        raise InputError(
            f"The teacher `{model_path}` knows {config.vocab_size} tokens and the student "
            f"{student.config.vocab_size}; a teacher reads the student's tokens: give one with the same tokenizer."
        )
    return teacher.eval().requires_grad_(False)


def _loaded(model_path: str, config: Any, student: Any) -> nn.Module:
    heads = getattr(student, "task_heads", None)
    if heads is None and not getattr(config, "task_heads", None):
        plain: nn.Module = AutoModelForQuestionAnswering.from_pretrained(model_path, config=config)
        return plain
    classes = None if heads is None else {name: type(head) for name, head in heads.items()}
    teacher: ModelForDownstreamTasks = ModelForDownstreamTasks.from_config(config, model_path, task_heads=classes)
    teacher.set_task_head(teacher.config.task_head if heads is None else student.config.task_head)
    return teacher


TEACHER_KEYS = ("teacher", "distillation_loss", "distillation_temperature", "distillation_weight")


def teaching_parts(model: Mapping[str, Any], student: Any) -> dict[str, Any]:
    """Return what a trainer with a :class:`~portico.mrc.distillation.DistillationMixin` is given, if anything.

    Args:
        model: The settings of the model: ``teacher``, a folder or a name, and options of
            :class:`~portico.mrc.distillation.Distillation` as ``distillation_loss`` and so on.
        student: The model that is to learn.

    Raises:
        InputError: If the teacher or an option cannot be used.
    """
    given = [key for key in TEACHER_KEYS[1:] if model.get(key) is not None]
    if model.get("teacher") is None:
        if given:
            raise InputError(
                f"`model.{given[0]}={model[given[0]]}` says how a model learns from a teacher, but there is none; set "
                "`model.teacher` to the folder of a run or a name on the hub, or leave this out."
            )
        return {}
    options = {key.removeprefix("distillation_"): model[key] for key in given}
    return {"teacher": load_teacher(model["teacher"], student=student), "distillation": Distillation(**options)}
