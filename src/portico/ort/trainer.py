"""``ORTTrainer``: a ``Trainer`` whose model runs in ONNX Runtime."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.utilities.seed import isolate_rng
from torch import nn
from transformers import TrainerCallback

from portico.errors import InputError, InputTypeError
from portico.hf_compat import TrainOutput
from portico.ort.arguments import ORTTrainingArguments, uses_fused_adamw
from portico.ort.compiling import compiled_call, running_in_torch
from portico.ort.exporting import exported
from portico.ort.old_optimum import OldOptimumArguments
from portico.ort.packages import require
from portico.ort.report import Report
from portico.ort.saving import example_inputs, save_onnx
from portico.trainer import Trainer


class ORTMethods(OldOptimumArguments):
    """Everything a trainer does differently in ONNX Runtime; mixed in before the trainer.

    ``class ORTMRCTrainer(ORTMethods, MRCTrainer)`` trains readers in ONNX Runtime.

    Args: those of the trainer mixed into, in the order in which ``optimum`` had them.

    Attributes:
        arguments_class: What ``args`` has to be; one of it is made where there is none.

    Raises:
        InputError: If ONNX Runtime is not installed, or ``args`` know nothing of it.
    """

    args: ORTTrainingArguments
    arguments_class: type[ORTTrainingArguments] = ORTTrainingArguments

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
        **options: Any,
    ) -> None:
        require()
        args = self.arguments_class(output_dir="tmp_trainer") if args is None else args
        if not isinstance(args, self.arguments_class):
            raise InputTypeError(
                f"`args` is a {type(args).__name__}; give `portico.{self.arguments_class.__name__}`, or train with "
                "`portico.Trainer` and `strategy='ort'`."
            )
        parts: dict[str, Any] = {
            "model": model,
            "args": args,
            "data_collator": data_collator,
            "train_dataset": train_dataset,
            "eval_dataset": eval_dataset,
            "processing_class": processing_class,
            "model_init": model_init,
            "compute_metrics": compute_metrics,
            "callbacks": callbacks,
            "optimizers": optimizers,
            "preprocess_logits_for_metrics": preprocess_logits_for_metrics,
        }
        super().__init__(**parts, **options)

    @property
    def ort_report(self) -> Report | None:
        """What ran where, or ``None`` before the model was called."""
        # A search for hyperparameters leaves no model behind.
        call = None if self.model is None else compiled_call(self.model)
        return call.report if call is not None else None

    def train(self, *args: Any, **kwargs: Any) -> TrainOutput:
        """Train, and write the ONNX file if it is asked for.

        Raises:
            InputError: If it is, and the model cannot be saved as one; before training.
        """
        saves_onnx = self.args.should_save and self.args.save_onnx
        if saves_onnx and self.train_dataset is not None:
            with running_in_torch(self.model):
                exported(self.model, self._example_inputs())
        output = super().train(*args, **kwargs)
        if saves_onnx:
            self.save_onnx()
        return output

    def save_onnx(self, output_dir: str | None = None) -> Path:
        """Write the model as an ONNX file, with configuration and tokenizer beside it.

        Args:
            output_dir: Folder; by default ``args.output_dir``.

        Returns:
            Path of the file.

        Raises:
            InputError: If the model cannot be traced, or uses an operator that cannot be lowered; or without data.
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
        if dataset is None:
            raise InputError(
                "A model is traced with a batch to save it as ONNX, and there is no data; give the trainer a "
                "`train_dataset` or an `eval_dataset`."
            )
        loader = self.get_eval_dataloader(dataset)
        # Collators may draw, and a run is to draw the same with the file and without.
        with isolate_rng():
            batch = self._prepare_inputs(next(iter(loader)))
        return example_inputs(self.model, batch, self.label_names)


class ORTTrainer(ORTMethods, Trainer):
    """A ``Trainer`` whose model runs forward, and its backward, in ONNX Runtime; see :class:`ORTMethods`."""
