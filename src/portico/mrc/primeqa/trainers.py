"""PrimeQA's names and arguments of trainers."""

from typing import Any

from portico.mrc.distillation import Distillation, load_teacher
from portico.mrc.generative import Seq2SeqMRCTrainer
from portico.mrc.multi_source import MultiSourceMRCTrainer

MRCSeq2SeqTrainer = Seq2SeqMRCTrainer


class MSKD_MRCTrainer(MultiSourceMRCTrainer):
    """A :class:`~portico.mrc.multi_source.MultiSourceMRCTrainer` that loads its teacher.

    The arguments below can also be attributes of the training arguments, where PrimeQA's scripts put them. Further
    arguments are passed on to the parent class.

    Args:
        kd_teacher_model_path: Folder or name of the teacher's weights; without it nothing is distilled.
        kd_teacher_config_path: Folder or name of the teacher's configuration; by default ``kd_teacher_model_path``.
        kd_temperature: Divisor of the teacher's logits.
    """

    def __init__(
        self,
        *args: Any,
        kd_teacher_model_path: str | None = None,
        kd_teacher_config_path: str | None = None,
        kd_temperature: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)

        def resolve(name: str, argument: object) -> Any:
            return getattr(self.args, name, None) if argument is None else argument

        model_path = resolve("kd_teacher_model_path", kd_teacher_model_path)
        if model_path is None:
            return
        config_path = resolve("kd_teacher_config_path", kd_teacher_config_path)
        temperature = resolve("kd_temperature", kd_temperature)
        student: Any = self.model
        self.teacher = load_teacher(model_path, config_path, student=student)
        self.distillation = Distillation("mse", temperature=1.0 if temperature is None else float(temperature))
