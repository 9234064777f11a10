"""``ORTTrainer``: a ``Trainer`` whose model runs in ONNX Runtime."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import TrainerCallback
from transformers.trainer_utils import TrainOutput

from portico.ort.arguments import ORTTrainingArguments, uses_fused_adamw
from portico.ort.compiling import compiled_call, running_in_torch
from portico.ort.packages import require
from portico.ort.report import Report
from portico.ort.saving import save_onnx
from portico.ort.strategy import RunsInORT
from portico.state import TrainingRun
from portico.trainer import Trainer


class ORTMethods(Trainer):
    """Everything a trainer does differently in ONNX Runtime; mixed in before the trainer.

    ``class ORTMRCTrainer(ORTMethods, MRCTrainer)`` trains readers in ONNX Runtime.
    """

    args: ORTTrainingArguments

    @property
    def ort_report(self) -> Report | None:
        """What ran where, or ``None`` before the model was called."""
        call = compiled_call(self.model)
        return call.report if call is not None else None

    def train(self, *args: Any, **kwargs: Any) -> TrainOutput:
        """Train, and write the ONNX file if it is asked for."""
        output = super().train(*args, **kwargs)
        if self.args.should_save and self.args.save_onnx:
            self.save_onnx()
        return output

    def save_onnx(self, output_dir: str | None = None) -> Path:
        """Write the model as an ONNX file, with configuration and tokenizer beside it.

        Args:
            output_dir: Folder; by default ``args.output_dir``.

        Returns:
            Path of the file.

        Raises:
            InputError: If the model uses an operator that cannot be lowered.
        """
        folder = Path(output_dir or self.args.output_dir or ".")
        with running_in_torch(self.model):
            path = save_onnx(self.model, self._example_inputs(), folder / f"{self.args.onnx_prefix or 'model'}.onnx")
        for part in (getattr(self.model, "config", None), self.processing_class):
            if part is not None:
                part.save_pretrained(folder)
        return path

    def get_ort_optimizer_cls_and_kwargs(self, args: Any) -> tuple[Any, dict[str, Any]]:
        """Return the class of the optimizer that ``args.optim`` names, and its keyword arguments."""
        return self.get_optimizer_cls_and_kwargs(args)

    @staticmethod
    def get_optimizer_cls_and_kwargs(args: Any, model: Any = None) -> tuple[Any, dict[str, Any]]:
        """Return the class of the optimizer that ``args.optim`` names, and its keyword arguments."""
        if not uses_fused_adamw(args):
            return Trainer.get_optimizer_cls_and_kwargs(args, model)
        from portico.ort.optim import FusedAdamW

        betas = (args.adam_beta1, args.adam_beta2)
        return FusedAdamW, {"lr": args.learning_rate, "betas": betas, "eps": args.adam_epsilon}

    def _example_inputs(self) -> dict[str, torch.Tensor]:
        dataset = self.train_dataset if self.train_dataset is not None else self.eval_dataset
        loader = self.get_eval_dataloader(dataset)
        batch = self._prepare_inputs(next(iter(loader)))
        inputs = {name: value for name, value in batch.items() if isinstance(value, torch.Tensor)}
        # A size of 1 would be taken for a constant.
        return {name: torch.cat([value, value]) for name, value in inputs.items() if name not in self.label_names}

    def _use_lightning_trainer(self, run: TrainingRun | None = None) -> None:
        super()._use_lightning_trainer(run)
        strategy = self.lightning_trainer.strategy
        if isinstance(strategy, RunsInORT):
            strategy.configure(
                strict=self.args.strict,
                evaluate_in_ort=self.args.evaluate_in_ort,
                settings=self.args.session_settings,
            )


class ORTTrainer(ORTMethods):
    """A ``Trainer`` whose model runs forward, and its backward, in ONNX Runtime.

    Args: those of :class:`portico.Trainer`, in the order in which ``optimum`` had them, with ``tokenizer`` as older
    spelling of ``processing_class``.

    Raises:
        InputError: If ONNX Runtime is not installed.
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        args: Any = None,
        data_collator: Callable[[list[Any]], Any] | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        model_init: Callable[..., nn.Module] | None = None,
        compute_metrics: Callable[..., Any] | None = None,
        callbacks: list[TrainerCallback | type[TrainerCallback]] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        preprocess_logits_for_metrics: Callable[..., Any] | None = None,
        *,
        tokenizer: Any = None,
        **kwargs: Any,
    ) -> None:
        require()
        if tokenizer is not None:
            warnings.warn("`tokenizer` is now called `processing_class`.", FutureWarning, stacklevel=2)
            processing_class = tokenizer
        super().__init__(
            model,
            ORTTrainingArguments(output_dir="tmp_trainer") if args is None else args,
            data_collator,
            train_dataset,
            eval_dataset,
            processing_class,
            model_init,
            compute_metrics=compute_metrics,
            callbacks=callbacks,
            optimizers=optimizers,
            preprocess_logits_for_metrics=preprocess_logits_for_metrics,
            **kwargs,
        )
