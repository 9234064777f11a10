"""What every run of the command line does alike, whatever it trains."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

from portico.arguments import TrainingArguments
from portico.deprecated import RENAMED
from portico.errors import InputError

if TYPE_CHECKING:
    from portico.trainer import Trainer

STRATEGY_KEYS = ("strategy", "accelerator", "devices", "num_nodes", "precision")


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What a run is configured with: a field for each group of the configuration.

    What the keys of a group are, the function that runs says.

    Args:
        args: Fields of the training arguments.
        model: The model, new or pretrained.
        data: The examples.
        preprocess: From examples to features.
        postprocess: From outputs to answers.
        metric: How answers are scored.
        strategy: Where it runs: Lightning's ``strategy``, ``accelerator``, ``devices``, ``num_nodes``, ``precision``.
        callbacks: Callbacks of Hugging Face.
        logger: Lightning loggers.
        output_dir: Folder of the run.
    """

    args: Mapping[str, Any]
    model: Mapping[str, Any]
    data: Mapping[str, Any]
    preprocess: Mapping[str, Any]
    postprocess: Mapping[str, Any]
    metric: Mapping[str, Any]
    strategy: Mapping[str, Any]
    callbacks: Sequence[Any] = ()
    logger: Sequence[Any] = ()
    output_dir: str


Arguments = TypeVar("Arguments", bound=TrainingArguments)


def argument_keys(arguments_class: type[TrainingArguments]) -> list[str]:
    """Return the keys of the group `args`: all fields but those that the strategy group and the command line set.

    Older spellings of fields are among them.
    """
    decided = {"output_dir", *STRATEGY_KEYS}
    names = [*(field.name for field in fields(arguments_class) if field.init), *RENAMED]
    return [name for name in names if name not in decided]


def training_arguments(
    arguments_class: type[Arguments], args: Mapping[str, Any], strategy: Mapping[str, Any], output_dir: str
) -> Arguments:
    """Return the training arguments of a run.

    Raises:
        InputError: If they do not go together.
    """
    try:
        return arguments_class(output_dir=output_dir, **{**args, **strategy})
    except (TypeError, ValueError, ImportError) as error:
        raise InputError(f"These training arguments cannot be used: {' '.join(str(error).split())}") from error


def train_and_evaluate(trainer: "Trainer") -> dict[str, float]:
    """Train, evaluate, write model, metrics and state into the trainer's folder, and return all metrics."""
    trained = trainer.train(resume_from_checkpoint=trainer.args.resume_from_checkpoint)
    trainer.save_model()
    train_metrics = {**trained.metrics, "train_samples": len(trainer.train_dataset)}
    trainer.save_metrics("train", train_metrics)
    metrics = {**trainer.evaluate(), "eval_samples": len(trainer.eval_dataset)}
    trainer.save_metrics("eval", metrics)
    trainer.save_state()
    return {**train_metrics, **metrics}
