"""``IPUMixin`` turns a trainer into one on IPUs; ``IPUTrainer`` is Hugging Face's ``Trainer`` on IPUs."""

import copy
import functools
import json
import logging
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from portico.compat.annotations import (
    Batch,
    Callbacks,
    ComputeMetrics,
    DataCollator,
    EvalExamples,
    Examples,
    Loader,
    Optimizers,
    ProcessingClass,
)
from portico.compat.transformers import TrainOutput, has_length
from portico.compat.tree import map_tensors
from portico.errors import InputError
from portico.ipu import backend
from portico.ipu.arguments import IPUTrainingArguments, resolve_config
from portico.ipu.config import IPUConfig
from portico.ipu.data import (
    PrefetchLoader,
    drop_last_batch,
    evaluation_loss,
    ignore_padded_labels,
    num_rows,
    pad_rows,
    select_rows,
)
from portico.ipu.generation import DeviceGenerator, add_decoder_start
from portico.ipu.optim import (
    OptimizerConversion,
    make_optimizer,
    optimizer_options,
    rebind_schedule,
    repartition_state,
)
from portico.ipu.pipelining.placement import LayerPlacement, place, remove_placement
from portico.ipu.pipelining.report import PlacementReport
from portico.ipu.pipelining.serialization import serialize
from portico.ipu.precision import IPUPrecision
from portico.ipu.program import DeviceProgram, LossFunction, ModelOnIPUs, ProgramPool
from portico.loop.core import TrainerCore
from portico.loop.evaluation import EvaluationSession
from portico.trainer import Trainer
from portico.trust.disk import read_text, write_text
from portico.trust.names import data_only

logger = logging.getLogger(__name__)

RNG_FILE = "ipu_rng_state.json"


class IPUCore(TrainerCore):
    """Counts the losses of calls, and restores optimizers whose weights may have been cut into other pieces."""

    trainer: "IPUMixin"

    def evaluation_session(self, dataloader: "Loader", **options: Any) -> EvaluationSession:
        if self.trainer.combined_eval_batch_size > self.trainer.args.eval_batch_size:
            # It would compare with a mean of calls, whose losses are means of micro-batch means.
            self.corrections.watches_evaluation = False
        session = super().evaluation_session(dataloader, **options)
        # The loss of a batch counts once for each of its rows.
        session.batch_size = self.trainer.combined_eval_batch_size
        return session

    def convert_optimizer_state(self, state: dict[str, Any]) -> dict[str, Any]:
        # The weights may have been cut into other pieces when the checkpoint was saved.
        assert self.trainer.optimizer is not None
        return repartition_state(state, self.trainer.optimizer, self.trainer.model)


class IPUMixin(Trainer, core=IPUCore):
    """Runs the model of a trainer as programs on IPUs; to be mixed in before the trainer.

    ``class IPUMRCTrainer(IPUMixin, MRCTrainer)`` trains readers on IPUs.

    Other arguments, also as keywords, are passed to the trainer mixed into.

    Args:
        model: The model, of which a copy is trained: ``trainer.model``.
        ipu_config: How the model is spread over IPUs; copied.
        args: :class:`~portico.ipu.arguments.IPUTrainingArguments`.
        eval_data_collator: Makes the batches of evaluations and predictions; by default ``data_collator``.
        tokenizer: Older name of ``processing_class``.
        model_init: Not supported.
        optimizers: Optimizer, of ``poptorch.optim`` or of torch, and schedule.
        force_to_pipelined: Run a model whose layers are not found, or are shared, on one IPU of several instead of
            refusing it; every other model is spread without a class written for it.

    Attributes:
        arguments_class: Required class of ``args``; the default ``args`` are of this class.
        ipu_config: The copied configuration.
        opts: Options of the training program.
        eval_opts: Options of the inference program.
        original_model: The model that was given, untouched.
        programs: All programs of this trainer.
        training_model: The program that trains; ``None`` before the first call.
        inference_model: The program that evaluates; ``None`` before the first call.
        loss_function: Computes the loss inside the program; ``None`` for the model's own loss.
        placement: Placement of the latest program; ``None`` on one IPU, or before the first call.
        placement_report: Stages and memory of the training program; ``None`` where ``placement`` is.
    """

    arguments_class: type[IPUTrainingArguments] = IPUTrainingArguments
    args: IPUTrainingArguments
    training_model: "backend.PoplarExecutor | None" = None
    inference_model: "backend.PoplarExecutor | None" = None
    placement: LayerPlacement | None = None
    placement_report: PlacementReport | None = None
    loss_function: LossFunction | None = None
    _generator: DeviceGenerator | None = None
    # Whether the model is placed for training (True), for inference (False) or not at all (None).
    _is_placed_for_training: bool | None = None
    _pending_device_rng: list[int] | None = None

    def __init__(
        self,
        model: nn.Module | None = None,
        ipu_config: IPUConfig | None = None,
        args: IPUTrainingArguments | None = None,
        data_collator: "DataCollator | None" = None,
        eval_data_collator: "DataCollator | None" = None,
        train_dataset: "Examples | None" = None,
        eval_dataset: "EvalExamples | None" = None,
        tokenizer: "ProcessingClass | None" = None,
        model_init: Callable[..., nn.Module] | None = None,
        compute_metrics: "ComputeMetrics | None" = None,
        callbacks: "Callbacks | None" = None,
        optimizers: "Optimizers" = (None, None),
        preprocess_logits_for_metrics: Callable[..., Any] | None = None,
        force_to_pipelined: bool = False,
        **kwargs: Any,
    ) -> None:
        args = self.arguments_class(output_dir="tmp_trainer") if args is None else args
        _check_construction(model, model_init, args, self.arguments_class)
        assert model is not None
        self._is_forced = force_to_pipelined
        self.ipu_config = resolve_config(ipu_config, args)
        self.opts = self.ipu_config.to_options(compile_only=args.compile_only)
        self.eval_opts = self.ipu_config.to_options(for_inference=True, compile_only=args.compile_only)
        self.programs = ProgramPool()
        self.original_model = model
        self._precision = IPUPrecision("32-true" if args.fp32 else "16-true")
        trained = self._precision.convert_module(self._model_to_train(model))
        # Before there is an optimizer, which must hold the pieces of weights that are trained.
        serialize(trained, self.ipu_config.train())
        if tokenizer is not None:
            kwargs.setdefault("processing_class", tokenizer)
        super().__init__(
            model=trained,
            args=args,
            data_collator=data_collator,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            compute_metrics=compute_metrics,
            callbacks=callbacks,
            optimizers=optimizers,
            preprocess_logits_for_metrics=preprocess_logits_for_metrics,
            **kwargs,
        )
        self.eval_data_collator = self.data_collator if eval_data_collator is None else eval_data_collator
        # The strategy runs the steps of such a module on the host; `compute_loss` calls the program.
        self._portico.module.runs_steps_on_host = True
        # A program's losses are means over micro-batches, so `num_items_in_batch` cannot be used.
        self.model_accepts_loss_kwargs = False
        if self.compute_loss_func is not None:
            self.loss_function = functools.partial(self.compute_loss_func, num_items_in_batch=None)
        elif self.label_smoother is not None:
            self.loss_function = functools.partial(self.label_smoother, **self._portico.get_smoothing_options(model))
        # `compute_loss` takes what the program computed.
        self.compute_loss_func = self.label_smoother = None
        self._train_batch_size = self.combined_train_batch_size
        self._adopt_optimizer()
        if args.compile_only:
            self._compile_and_exit()

    def _model_to_train(self, model: nn.Module) -> nn.Module:
        return copy.deepcopy(model)

    # ---- Runs ----

    def train(self, *args: Any, **kwargs: Any) -> TrainOutput:
        """Train, release the IPUs, and return step count, mean loss and metrics.

        Raises:
            ValueError: If a trial of a hyperparameter search is given.
        """
        if kwargs.get("trial") is not None or (len(args) > 1 and args[1] is not None):
            raise ValueError(
                "Hyperparameter tuning is not supported by the IPUTrainer. Use a sweep, `portico train -m`, instead."
            )
        try:
            return super().train(*args, **kwargs)
        finally:
            self.programs.release()

    def hyperparameter_search(self, *args: object, **kwargs: object) -> Any:
        """Not supported: a trainer compiles its model once.

        Raises:
            InputError: Always.
        """
        raise InputError(
            "Hyperparameter search is not supported on IPUs; start a run for each setting, for example with a sweep "
            "on the command line."
        )

    def _compile_and_exit(self) -> None:
        stages = ((True, self.args.do_train, self.train_dataset), (False, self.args.do_eval, self.eval_dataset))
        for training, is_requested, dataset in stages:
            if is_requested and dataset is not None:
                if training:
                    self.create_optimizer()
                batch = self._first_batch(training)
                self.compile_model(self.wrap_model(self.model, training, batch), batch, log=True)
        raise SystemExit(0)

    # ---- Data ----

    @property
    def combined_train_batch_size(self) -> int:
        """Rows of a call that trains: micro-batch x replicas x accumulation x device iterations."""
        return self.args.train_batch_size * self.ipu_config.batch_size_factor()

    @property
    def combined_eval_batch_size(self) -> int:
        """Rows of a call that evaluates: micro-batch x replicas x device iterations."""
        return self.args.eval_batch_size * self.ipu_config.batch_size_factor(for_inference=True)

    def get_train_dataloader(self) -> "Loader":
        """Return the training loader.

        Raises:
            InputError: If there is too little data for one call.
        """
        loader = super().get_train_dataloader()
        if has_length(loader) and len(loader) == 0:
            config = self.ipu_config
            dataset: Any = self.train_dataset
            raise InputError(
                f"Couldn't get first sample from dataloader, as the training data have {len(dataset)} "
                f"examples and one call takes {self.combined_train_batch_size}: micro-batch "
                f"{self.args.per_device_train_batch_size} x gradient accumulation "
                f"{config.gradient_accumulation_steps} x replicas {config.replication_factor} x device iterations "
                f"{config.device_iterations}. Lower one of these, give more data, or set `pad_on_batch_axis=True`."
            )
        return loader

    def _get_dataloader(
        self,
        dataset: Examples,
        description: str,
        batch_size: int,
        sampler_fn: Callable[[Any], Any] | None = None,
        is_training: bool = False,
        dataloader_key: str | None = None,
    ) -> Any:
        size = self._call_size(is_training)
        mode = self.args.dataloader_mode if is_training else "sync"
        rebatches = mode == "async_rebatched"
        # Batches that are joined and cut anyway are loaded by the workers in parts.
        num_parts = self.args.dataloader_num_workers if rebatches else 0
        usual = self.data_collator
        self.data_collator = usual if is_training else self.eval_data_collator
        try:
            loader = self._portico.build_loader(
                dataset,
                description=description,
                batch_size=min(max(2 * (size // num_parts), 1), size) if num_parts else size,
                sampler_fn=sampler_fn,
                is_training=is_training,
            )
        finally:
            self.data_collator = usual
        drops_last = is_training and not self.args.pad_on_batch_axis
        prepared = self.accelerator.prepare(drop_last_batch(loader) if drops_last and not rebatches else loader)
        if mode == "sync":
            return prepared
        return PrefetchLoader(prepared, batch_size=size, rebatches=rebatches, drop_last=drops_last)

    def _call_size(self, training: bool) -> int:
        return self.combined_train_batch_size if training else self.combined_eval_batch_size

    def _first_batch(self, training: bool) -> Batch:
        loader = self.get_train_dataloader() if training else self.get_eval_dataloader()
        return self._precision.convert_input(pad_rows(next(iter(loader)), self._call_size(training)))

    def _init_training_state(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        resume_point = super()._init_training_state(*args, **kwargs)
        # A resumed run compares it with the argument, which counts rows of a micro-batch.
        self.state.train_batch_size = self.args.train_batch_size
        return resume_point

    # ---- Programs ----

    def _wrap_model(self, model: nn.Module, training: bool = True, dataloader: "Loader | None" = None) -> nn.Module:
        return ModelOnIPUs(self.call_model, model, training=training)

    def wrap_model(
        self, model: "nn.Module | backend.PoplarExecutor", training: bool = True, sample_batch: Batch | None = None
    ) -> Any:
        """Return the program of the model, which is made at the first call.

        Args:
            model: The model; a program is returned as it is.
            training: Whether the program trains.
            sample_batch: A combined batch, used to find the order of the layers if the model is spread over several
                IPUs; by default the first of the loader.
        """
        if not isinstance(model, nn.Module):
            return model
        if (self.training_model if training else self.inference_model) is None:
            self._place_for(training, model, sample_batch)
            program = DeviceProgram(model, loss_function=self.loss_function, training=training)
            if training:
                self.training_model = self.programs.add(backend.trainingModel(program, self.opts, self.optimizer))
            else:
                self.inference_model = self.programs.add(backend.inferenceModel(program, self.eval_opts))
        return self.training_model if training else self.inference_model

    def compile_model(
        self, model: "backend.PoplarExecutor", sample_batch: Mapping[str, Any], log: bool = False
    ) -> "backend.PoplarExecutor":
        """Compile a program of :meth:`wrap_model` for combined batches like ``sample_batch``, and return it."""
        if not model.isCompiled():
            batch = self._precision.convert_input(dict(sample_batch))
            self._prepare_compilation(model, batch)
            # Programs are compiled for devices that no other program holds.
            self.programs.attach(model)
            model.compile(**batch)
        if log:
            logger.info("Compiled the program for %d IPU(s).", self.ipu_config._ipus_per_replica)
        return model

    def call_model(self, model: nn.Module, inputs: Mapping[str, Any], is_training: bool = False) -> dict[str, Any]:
        """Run a combined batch, or a part of one, and return the outputs of its rows by name, without padding.

        ``loss`` is the mean over real rows.
        """
        size = self._call_size(is_training)
        rows = num_rows(inputs)
        if rows > size or (rows < size and is_training and not self.args.pad_on_batch_axis):
            verb = "trains" if is_training else "evaluates"
            cure = "without an incomplete last one (`dataloader_drop_last=True`)" if is_training else "or fewer"
            raise InputError(
                f"A batch has {rows} rows, but one call of the program that {verb} takes {size}; let the loader "
                f"return batches of {size} rows, {cure}."
            )
        batch = self._precision.convert_input(pad_rows(inputs, size))
        if not is_training and rows < size:
            batch = ignore_padded_labels(batch, rows, self.label_names)
        program = self.wrap_model(model, training=is_training, sample_batch=batch)
        if is_training:
            # The schedule may have changed the learning rate, which a program does not notice.
            program.setOptimizer(self.optimizer)
        self.compile_model(program, batch)
        if is_training and self._pending_device_rng is not None:
            program.rng_state = self._pending_device_rng
            self._pending_device_rng = None
        outputs = dict(self.programs.attach(program)(**batch))
        if is_training:
            return {**outputs, "loss": outputs["loss"].float().mean()}
        if "loss" in outputs:
            is_finite = outputs["loss"].isfinite()
            if self._portico.corrections.filters_losses and is_finite.any() and not is_finite.all():
                self._portico.corrections.warn(
                    "eval_batch_means",
                    "A micro-batch has a loss that is not finite, as if all of its labels are ignored, so `eval_loss` "
                    "leaves out all micro-batches of its call",
                )
            outputs["loss"] = evaluation_loss(
                outputs["loss"],
                inputs,
                lambda batch: program(**self._precision.convert_input(batch))["loss"],
                size=size,
                micro_batch_size=self.args.eval_batch_size,
                label_names=self.label_names,
                count=self._portico.corrections.num_items if "eval_batch_means" in self._portico.corrections else None,
            )
        return select_rows(outputs, size, slice(rows))

    def generate(self, inputs: dict[str, Any], **options: object) -> Tensor:
        """Return generated tokens, ``int64 [rows, length]``, with the options of ``transformers``' ``generate``."""
        if self._generator is None:
            model: Any = self.model
            sample = self._precision.convert_input(add_decoder_start(inputs, model))
            self._generator = DeviceGenerator(
                model,
                self.programs,
                self.eval_opts,
                convert=self._precision.convert_input,
                place=functools.partial(self._place_for, False, self.model, sample),
                encodes_on_host=self.ipu_config.execute_encoder_on_cpu_for_generation,
            )
        return self._generator.generate(inputs, **options)

    # ---- Placement ----

    def _prepare_compilation(self, program: "backend.PoplarExecutor", batch: Mapping[str, Any]) -> None:
        """Restore the placement and the mode of the program's model, which another program may have changed."""
        is_training = program is self.training_model
        self._place_for(is_training, self.model, batch)
        program.train(is_training)

    def _place_for(self, training: bool, model: nn.Module, sample_batch: Mapping[str, Any] | None) -> None:
        """Place the model as the programs of a stage need it.

        A program takes the placement that the model has at compilation, possibly long after the program was made.
        """
        if self._is_placed_for_training is training:
            return
        # An error below leaves the model between two placements.
        self._is_placed_for_training = None
        config = self.ipu_config.train() if training else self.ipu_config.eval()
        remove_placement(model)
        serialize(model, config)
        self.placement = None
        if config._ipus_per_replica > 1:
            batch = self._first_batch(training) if sample_batch is None else sample_batch
            size = self.args.train_batch_size if training else self.args.eval_batch_size
            micro_batch = map_tensors(lambda tensor: tensor[:size] if tensor.dim() else tensor, dict(batch))
            self.placement = place(model, micro_batch, config, is_forced=self._is_forced)
        self._is_placed_for_training = training
        if training and self.placement is not None and self.placement_report is None:
            self.placement_report = PlacementReport.create(
                self.placement, model, config, micro_batch_size=size, optimizer=self.optimizer
            )
            if self.is_world_process_zero():
                self.placement_report.save(self.args.output_dir or ".")
                print(self.placement_report.text())

    # ---- Optimization ----

    def create_optimizer(self, model: nn.Module | None = None) -> Any:
        """Return the optimizer: the user's, or else AdamW, or LAMB with ``args.lamb``."""
        if self.optimizer is None:
            self.optimizer = make_optimizer(self.model, self.args, set(self.get_decay_parameter_names(self.model)))
        return self.optimizer

    def pytorch_optimizer_to_poptorch(
        self, optimizer: torch.optim.Optimizer, model: nn.Module, pipelined_model: nn.Module
    ) -> Any:
        """Return the counterpart of an optimizer of torch, with its hyperparameters and its state.

        Args:
            optimizer: SGD, Adam, AdamW or RMSprop of torch.
            model: The model whose parameters it has.
            pipelined_model: The model that is trained; parameters are matched by name.

        Raises:
            KeyError: If there is no counterpart.
            InputError: If a hyperparameter has none.
        """
        return OptimizerConversion(model, pipelined_model).counterpart(optimizer, optimizer_options(self.args))

    def _adopt_optimizer(self) -> None:
        """Make the user's optimizer train the copy of the model, and the user's schedule change that optimizer."""
        given = self.optimizer
        if given is None:
            return
        if isinstance(given, backend.optim.Optimizer):
            conversion = OptimizerConversion(self.original_model, self.model)
            for group in given.param_groups:
                group["params"] = conversion.find_trained_parameters(group["params"])
            return
        self.optimizer = self.pytorch_optimizer_to_poptorch(given, self.original_model, self.model)
        if isinstance(self.lr_scheduler, functools.partial):
            self.lr_scheduler = self.lr_scheduler(self.optimizer)
        elif getattr(self.lr_scheduler, "optimizer", None) is given:
            rebind_schedule(self.lr_scheduler, self.optimizer)

    def _clip_grad_norm(self, model: nn.Module) -> Any:
        # The program clips, and its gradients never reach the host.
        return None

    def _get_grad_norm(self, model: nn.Module, grad_norm: Tensor | float | None = None) -> Any:
        return None

    # ---- Checkpoints ----

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        super()._save(output_dir, state_dict)
        if not self.args.should_save:
            return
        folder = Path(output_dir or self.args.output_dir or ".")
        self.ipu_config.save_pretrained(folder)
        if self.training_model is not None and self.training_model.isCompiled():
            write_text(folder / RNG_FILE, json.dumps(self.training_model.rng_state))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        file = Path(resume_from_checkpoint) / RNG_FILE
        if file.is_file():
            self._pending_device_rng = json.loads(read_text(file))
        self.programs.upload_weights()

    def _load_best_model(self) -> None:
        super()._load_best_model()
        self.programs.upload_weights()


@data_only
class IPUTrainer(IPUMixin, Trainer):
    """Hugging Face's ``Trainer`` on IPUs; see :class:`IPUMixin` for the arguments."""


def _check_construction(
    model: object, model_init: object, args: object, arguments_class: type[IPUTrainingArguments]
) -> None:
    if not isinstance(args, arguments_class):
        raise TypeError(f"`args` is a {type(args).__name__}; give `portico.{arguments_class.__name__}`.")
    if model is None and model_init is not None:
        raise RuntimeError(
            "`model_init` is not supported by `IPUTrainer` yet: a program belongs to one model; give `model`."
        )
    if model is None:
        raise RuntimeError("`IPUTrainer` requires a `model`; give one.")
    if model_init is not None:
        warnings.warn(
            "`IPUTrainer` got both `model` and `model_init`; `model_init` has no effect.", FutureWarning, stacklevel=3
        )
