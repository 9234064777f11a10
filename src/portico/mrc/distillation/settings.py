"""The teacher of a configured run."""

from collections.abc import Mapping
from typing import Any

from portico.errors import InputError
from portico.mrc.distillation.losses import Distillation
from portico.mrc.distillation.teacher import load_teacher

TEACHER_KEYS = ("teacher", "distillation_loss", "distillation_temperature", "distillation_weight")


def teaching_parts(model: Mapping[str, Any], student: Any) -> dict[str, Any]:
    """Return what a trainer with a :class:`~portico.mrc.distillation.mixin.DistillationMixin` is given, if anything.

    Args:
        model: The settings of the model: ``teacher``, a folder or a name, and options of
            :class:`~portico.mrc.distillation.losses.Distillation` as ``distillation_loss`` and so on.
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
