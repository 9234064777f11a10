"""Which trainer a run uses."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from portico.arguments import TrainingArguments
from portico.configured_run import RunSettings
from portico.errors import InputError
from portico.mrc.multi_source import MultiSourceMRCTrainer
from portico.mrc.trainer import MRCTrainer


def _no_sections(trainer: MRCTrainer) -> Mapping[str, str]:
    return {}


@dataclass(frozen=True)
class ReaderTraining:
    """How a reader is trained.

    Args:
        arguments_class: Class of the training arguments.
        make_trainer: Makes the trainer of the keywords of :class:`~portico.mrc.trainer.MRCTrainer`.
        make_multi_source_trainer: Makes it of those of
            :class:`~portico.mrc.multi_source.MultiSourceMRCTrainer`; ``None`` where that cannot run.
        report_sections: Returns what the report shows beside the answers: HTML by heading.
        fixed_shapes: Whether all batches must have one shape.
    """

    arguments_class: type[TrainingArguments] = TrainingArguments
    make_trainer: Callable[..., MRCTrainer] = MRCTrainer
    make_multi_source_trainer: Callable[..., MRCTrainer] | None = MultiSourceMRCTrainer
    report_sections: Callable[[MRCTrainer], Mapping[str, str]] = _no_sections
    fixed_shapes: bool = False

    def trainer_class(self, settings: RunSettings) -> Callable[..., MRCTrainer]:
        """Return what makes the trainer of a run, of one source or of several, with a teacher or without.

        Raises:
            InputError: If there are several sources, or a teacher, where they cannot be used.
        """
        wanted = {"data.sources": settings.data.get("sources"), "model.teacher": settings.model.get("teacher")}
        given = [f"`{name}`" for name, value in wanted.items() if value is not None]
        if not given:
            return self.make_trainer
        if self.make_multi_source_trainer is None:
            raise InputError(
                f"{' and '.join(given)} cannot be used on this accelerator; leave it out, or train with `trainer=mrc`."
            )
        return self.make_multi_source_trainer
