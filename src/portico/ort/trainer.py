"""``ORTTrainer``: training, evaluation and prediction in ONNX Runtime."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.utilities.seed import isolate_rng
from torch import nn
from typing_extensions import override

from portico.compat.transformers import PredictionOutput, TrainOutput
from portico.deprecated import warn_of_old_spelling
from portico.errors import InputError, InputTypeError
from portico.loop.core import TrainerCore
from portico.loop.run import TrainingRun
from portico.ort.api import compile as compile_in_ort
from portico.ort.api import get_compiled_call, running_in_torch
from portico.ort.arguments import ORTOptimizerNames, ORTTrainingArguments
from portico.ort.exporting import example_inputs, export_program, save_onnx
from portico.ort.report import Report
from portico.ort.settings import require
from portico.ort.strategy import RunsInORT
from portico.trainer import Trainer
from portico.trust.disk import staged_folder
from portico.trust.names import data_only

if TYPE_CHECKING:
    from portico.compat import annotations


class ModuleWithLoss(nn.Module):
    """A model and a loss, called with the outputs, the labels and ``num_items_in_batch``, as one module."""

    def __init__(self, model: nn.Module, loss_function: "annotations.ComputeLoss") -> None:
        super().__init__()
        self.model = model
        self.loss_function = loss_function

    def forward(
        self, inputs: dict[str, Any], labels: "annotations.Nested", num_items_in_batch: "annotations.NumItems"
    ) -> tuple[torch.Tensor, Any]:
        outputs = self.model(**inputs)
        return self.loss_function(outputs, labels, num_items_in_batch=num_items_in_batch), outputs


# Arguments of the constructor in optimum 1, and why they have no effect; portico 2 removes them.
_WITHOUT_EFFECT = {
    "feature": "the graphs are traced from the model itself",
    "task": "the graphs are traced from the model itself",
    "onnx_model_path": "evaluation needs no file; `save_onnx=True` writes one",
}


class ORTCore(TrainerCore):
    """Tells the strategy what runs in ONNX Runtime, and runs the loss there too."""

    trainer: "ORTMixin"

    @override
    def use_lightning_trainer(self, run: TrainingRun | None = None) -> None:
        super().use_lightning_trainer(run)
        self.trainer._configure_strategy()

    @override
    def forward_with_loss(
        self,
        model: nn.Module,
        inputs: "annotations.Batch",
        labels: torch.Tensor | None,
        num_items_in_batch: "annotations.NumItems",
    ) -> tuple[torch.Tensor, Any]:
        """Run ``compute_loss_func`` and label smoothing in ONNX Runtime too if ``use_module_with_loss`` is set."""
        call = get_compiled_call(self.trainer.model)
        has_own_loss = labels is not None or self.trainer.compute_loss_func is not None
        if not (self.trainer.args.use_module_with_loss and has_own_loss and call is not None and call.is_on):
            return super().forward_with_loss(model, inputs, labels, num_items_in_batch)
        if self.trainer._module_with_loss is None or self.trainer._module_with_loss.model is not self.trainer.model:
            loss_function = self.trainer.compute_loss_func
            if loss_function is None:
                assert self.trainer.label_smoother is not None, "labels are separate from the inputs"
                loss_function = partial(self.trainer.label_smoother, **self.get_smoothing_options(self.trainer.model))
            self.trainer._module_with_loss = ModuleWithLoss(self.trainer.model, loss_function)
        self.trainer._module_with_loss.train(self.trainer.model.training)
        settings, strict = call.options
        whole = compile_in_ort(self.trainer._module_with_loss, settings=settings, strict=strict, report=call.report)
        loss, outputs = whole(inputs, labels, num_items_in_batch)
        return loss, outputs


class ORTMixin(Trainer, core=ORTCore):
    """A mixin that makes a trainer run its model in ONNX Runtime, as in ``class ORTMRCTrainer(ORTMixin, MRCTrainer)``.

    The trainer's arguments are accepted in optimum's order; ``feature``, ``task`` and ``onnx_model_path`` of
    optimum 1 are accepted without effect.

    Attributes:
        arguments_class: Type that ``args`` must have; the default value of ``args`` is of this type too.

    Raises:
        InputError: If ONNX Runtime is not installed, or ``args`` have the wrong type.
    """

    args: ORTTrainingArguments
    arguments_class: type[ORTTrainingArguments] = ORTTrainingArguments
    _module_with_loss: ModuleWithLoss | None = None

    def __init__(
        self,
        model: nn.Module | None = None,
        args: ORTTrainingArguments | None = None,
        data_collator: "annotations.DataCollator | None" = None,
        train_dataset: "annotations.Examples | None" = None,
        eval_dataset: "annotations.EvalExamples | None" = None,
        processing_class: "annotations.ProcessingClass | None" = None,
        model_init: Callable[..., nn.Module] | None = None,
        compute_metrics: "annotations.ComputeMetrics | None" = None,
        callbacks: "annotations.Callbacks | None" = None,
        optimizers: "annotations.Optimizers" = (None, None),
        preprocess_logits_for_metrics: Callable[..., Any] | None = None,
        **options: Any,
    ) -> None:
        require()
        for name in _WITHOUT_EFFECT.keys() & options.keys():
            del options[name]
            warn_of_old_spelling(f"`{name}` has no effect any more: {_WITHOUT_EFFECT[name]}.")
        args = self.arguments_class(output_dir="tmp_trainer") if args is None else args
        if not isinstance(args, self.arguments_class):
            raise InputTypeError(
                f"`args` is a {type(args).__name__}; give `portico.{self.arguments_class.__name__}`, or train with "
                "`portico.Trainer` and `strategy='ort'`."
            )
        super().__init__(
            model=model,
            args=args,
            data_collator=data_collator,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            model_init=model_init,
            compute_metrics=compute_metrics,
            callbacks=callbacks,
            optimizers=optimizers,
            preprocess_logits_for_metrics=preprocess_logits_for_metrics,
            **options,
        )

    @property
    def ort_report(self) -> Report | None:
        """What ran where, or ``None`` before the model is compiled."""
        # A hyperparameter search leaves the trainer without a model.
        call = None if self.model is None else get_compiled_call(self.model)
        return call.report if call is not None else None

    def train(self, *args: Any, inference_with_ort: bool | None = None, **kwargs: Any) -> TrainOutput:
        """Train like :meth:`portico.Trainer.train`, and write the ONNX file if ``args.save_onnx`` is set.

        ``inference_with_ort`` is an older spelling of ``args.evaluate_in_ort``, for this call.

        Raises:
            InputError: If the model cannot be saved as ONNX; before training.
        """
        saves_onnx = self.args.should_save and self.args.save_onnx
        if saves_onnx and self.train_dataset is not None:
            with running_in_torch(self.model):
                export_program(self.model, self._example_inputs())
        with self._evaluating_in_ort(inference_with_ort):
            output = super().train(*args, **kwargs)
        if saves_onnx:
            self.save_onnx()
        return output

    def evaluate(self, *args: Any, inference_with_ort: bool | None = None, **kwargs: Any) -> dict[str, float]:
        """Evaluate; ``inference_with_ort`` is an older spelling of ``args.evaluate_in_ort``, for this call."""
        with self._evaluating_in_ort(inference_with_ort):
            return super().evaluate(*args, **kwargs)

    def predict(self, *args: Any, inference_with_ort: bool | None = None, **kwargs: Any) -> PredictionOutput:
        """Predict; ``inference_with_ort`` is an older spelling of ``args.evaluate_in_ort``, for this call."""
        with self._evaluating_in_ort(inference_with_ort):
            return super().predict(*args, **kwargs)

    def save_onnx(self, output_dir: str | None = None) -> Path:
        """Write the model as an ONNX file, as ``args.save_onnx`` says, next to its configuration and tokenizer.

        The folder is ``args.output_dir`` unless ``output_dir`` is given. Returns the path of the file.

        Raises:
            InputError: If the model cannot be traced, or uses an operator that cannot be lowered; or without data.
        """
        folder = Path(output_dir or self.args.output_dir or ".")
        with running_in_torch(self.model):
            path = folder / f"{self.args.onnx_prefix or 'model'}.onnx"
            save_onnx(self.model, self._example_inputs(), path, is_standard=self.args.save_onnx == "standard")
        for part in (getattr(self.model, "config", None), self.processing_class):
            if part is not None:
                with staged_folder(folder) as staging:
                    part.save_pretrained(staging)
        return path

    def get_ort_optimizer_cls_and_kwargs(self, args: ORTTrainingArguments) -> tuple[Any, dict[str, Any]]:
        """Return the class of the optimizer that ``args.optim`` names, and its keyword arguments."""
        return self.get_optimizer_cls_and_kwargs(args)

    @staticmethod
    def get_optimizer_cls_and_kwargs(args: Any, model: Any = None) -> tuple[Any, dict[str, Any]]:
        """Return the class of the optimizer that ``args.optim`` names, and its keyword arguments."""
        if args.optim is not ORTOptimizerNames.ADAMW_ORT_FUSED:
            return Trainer.get_optimizer_cls_and_kwargs(args, model)
        from portico.ort.optim import FusedAdamW

        betas = (args.adam_beta1, args.adam_beta2)
        return FusedAdamW, {"lr": args.learning_rate, "betas": betas, "eps": args.adam_epsilon}

    def _example_inputs(self) -> dict[str, torch.Tensor]:
        dataset = self.train_dataset if self.train_dataset is not None else self.eval_dataset
        if dataset is None:
            raise InputError(
                "Saving as ONNX traces the model with a batch, but there is no data; give the trainer a "
                "`train_dataset` or an `eval_dataset`."
            )
        # Collators may draw random numbers; a run must draw the same ones with and without the file.
        with isolate_rng():
            batch = self._prepare_inputs(next(iter(self.get_eval_dataloader(dataset))))
        return example_inputs(self.model, batch, self.label_names)

    # ---- The strategy and the loss ----

    def _configure_strategy(self) -> None:
        # Lightning made the strategy from its name alone.
        strategy = self._portico.lightning_trainer.strategy
        if isinstance(strategy, RunsInORT):
            strategy.configure(
                strict=self.args.strict, evaluate_in_ort=self.args.evaluate_in_ort, settings=self.args.session_settings
            )

    @contextmanager
    def _evaluating_in_ort(self, in_ort: bool | None) -> Iterator[None]:
        if in_ort is None:
            yield
            return
        warn_of_old_spelling(
            "`inference_with_ort` is deprecated and will be removed in portico 2; set `evaluate_in_ort` in "
            "`ORTTrainingArguments`."
        )
        before = self.args.evaluate_in_ort
        self.args.evaluate_in_ort = in_ort
        self._configure_strategy()
        try:
            yield
        finally:
            self.args.evaluate_in_ort = before
            self._configure_strategy()


@data_only
class ORTTrainer(ORTMixin, Trainer):
    """A ``Trainer`` whose model runs forward, and its backward, in ONNX Runtime; see :class:`ORTMixin`."""
