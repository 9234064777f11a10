"""The model that another one learns from."""

from typing import Any

from torch import nn
from transformers import AutoConfig, AutoModelForQuestionAnswering

from portico.errors import InputError
from portico.mrc.models.task_model import ModelForDownstreamTasks


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
