"""``IPUTrainer``: a ``Trainer`` whose model is a program on IPUs."""

import copy
from collections.abc import Callable
from typing import Any

from torch import nn
from transformers import TrainerCallback

from portico.errors import InputError
from portico.hf_compat import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from portico.ipu.arguments import IPUTrainingArguments
from portico.ipu.config import IPUConfig
from portico.ipu.device_program import program_loss
from portico.ipu.executors import ProgramPool
from portico.ipu.facade.loading import LoadingMethods
from portico.ipu.facade.optimization import OptimizerMethods
from portico.ipu.facade.own_config import check_given, own_config
from portico.ipu.facade.saving import IPUSavingMethods
from portico.ipu.pipelining.serialization import serialize
from portico.trainer import Trainer


class IPUMethods(LoadingMethods, OptimizerMethods, IPUSavingMethods):
    """Everything a trainer does differently on IPUs; mixed in before the trainer.

    ``class IPUMRCTrainer(IPUMethods, MRCTrainer)`` trains readers on IPUs.

    Args:
        model: The model; a copy of it is trained, which is ``trainer.model``.
        ipu_config: How the model is spread over IPUs; copied.
        args: :class:`~portico.ipu.arguments.IPUTrainingArguments`.
        data_collator: Makes the batches.
        eval_data_collator: Makes the batches of evaluations; by default ``data_collator``.
        tokenizer: Older spelling of ``processing_class``.
        optimizers: Optimizer, of ``poptorch.optim`` or of torch, and schedule.
        force_to_pipelined: Kept; every model is spread without a class of its own.
        **kwargs: As the trainer takes them.

    Attributes:
        original_model: The model that was given, untouched.
        training_model: The program that trains, once there is one.
        inference_model: The program that evaluates, once there is one.
        arguments_class: What ``args`` has to be; one of it is made where there is none.
    """

    arguments_class: type[IPUTrainingArguments] = IPUTrainingArguments

    def __init__(
        self,
        model: nn.Module | None = None,
        ipu_config: IPUConfig | None = None,
        args: Any = None,
        data_collator: Callable[[list[Any]], Any] | None = None,
        eval_data_collator: Callable[[list[Any]], Any] | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        tokenizer: Any = None,
        model_init: Callable[..., nn.Module] | None = None,
        compute_metrics: Callable[..., Any] | None = None,
        callbacks: list[TrainerCallback | type[TrainerCallback]] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        preprocess_logits_for_metrics: Callable[..., Any] | None = None,
        force_to_pipelined: bool = False,
        **kwargs: Any,
    ) -> None:
        args = self.arguments_class(output_dir="tmp_trainer") if args is None else args
        check_given(model, model_init, args, self.arguments_class)
        assert model is not None
        self.ipu_config = own_config(ipu_config, args)
        self.opts = self.ipu_config.to_options(compile_only=args.compile_only)
        self.eval_opts = self.ipu_config.to_options(for_inference=True, compile_only=args.compile_only)
        self.programs = ProgramPool()
        self.training_model = self.inference_model = self._generator = None
        self.placement = None
        self.placement_report = None
        self.loss_function = None
        self._pending_device_rng = self._is_placed_for_training = None
        self.original_model = model
        trained = self._model_to_train(model)
        trained = trained if args.fp32 else trained.half()
        # Before there is an optimizer, which then holds the pieces that are trained.
        serialize(trained, self.ipu_config.train())
        if tokenizer is not None:
            kwargs.setdefault("processing_class", tokenizer)
        parts: dict[str, Any] = {
            "model": trained,
            "args": args,
            "data_collator": data_collator,
            "train_dataset": train_dataset,
            "eval_dataset": eval_dataset,
            "compute_metrics": compute_metrics,
            "callbacks": callbacks,
            "optimizers": optimizers,
            "preprocess_logits_for_metrics": preprocess_logits_for_metrics,
        }
        super().__init__(**parts, **kwargs)
        self.eval_data_collator = self.data_collator if eval_data_collator is None else eval_data_collator
        self.module.runs_steps_on_host = True
        # A program's losses are means over micro-batches; there is no window whose items could be counted.
        self.model_accepts_loss_kwargs = False
        causal = type(model).__name__ in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
        self.loss_function = program_loss(self.label_smoother, self.compute_loss_func, shifts_labels=causal)
        self.compute_loss_func = None
        self._train_batch_size = self.combined_train_batch_size
        self._take_optimizer(model)
        if args.compile_only:
            self._compile_and_exit()

    def _model_to_train(self, model: nn.Module) -> nn.Module:
        return copy.deepcopy(model)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train, and return step count, mean loss and metrics; afterwards the IPUs are free.

        Raises:
            ValueError: If a trial of a hyperparameter search is given.
        """
        if kwargs.get("trial") is not None or (len(args) > 1 and args[1] is not None):
            raise ValueError("Hyperparameter tuning is not supported by the IPUTrainer.")
        try:
            return super().train(*args, **kwargs)  # type: ignore[safe-super]
        finally:
            self.programs.release()

    def hyperparameter_search(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse: a model is compiled once for a trainer.

        Raises:
            InputError: Always.
        """
        raise InputError(
            "Hyperparameter search is not supported on IPUs; start a run for each setting, for example with a sweep "
            "on the command line."
        )

    def _compile_and_exit(self) -> None:
        jobs = ((True, self.args.do_train, self.train_dataset), (False, self.args.do_eval, self.eval_dataset))
        for training, is_asked_for, dataset in jobs:
            if not is_asked_for or dataset is None:
                continue
            if training:
                self.create_optimizer()
            batch = self._first_batch(training)
            program = self.wrap_model(self.model, training=training, sample_batch=batch)
            self.compile_model(program, batch, log=True)
        raise SystemExit(0)


class IPUTrainer(IPUMethods, Trainer):
    """Hugging Face's ``Trainer`` on IPUs; see :class:`IPUMethods` for the arguments."""
