"""What a trainer is given, checked, and the configuration that follows from it."""

import copy
import functools
import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainerCallback
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.trainer_utils import has_length

from portico.contract import Facade
from portico.errors import InputError
from portico.evaluation.session import EvaluationSession
from portico.ipu import backend
from portico.ipu.arguments import IPUTrainingArguments
from portico.ipu.config import IPUConfig
from portico.ipu.data import (
    AheadLoader,
    cut_back,
    filled_up,
    has_float_labels,
    num_rows,
    row_by_row,
    weighted_loss,
    with_ignored_labels,
    without_remainder,
)
from portico.ipu.generation import DeviceGenerator, with_decoder_start
from portico.ipu.optim import OptimizerConversion, rebind_schedule, recut
from portico.ipu.pipelining.placement import Placement, place, unplaced
from portico.ipu.pipelining.report import PlacementReport
from portico.ipu.pipelining.serialization import serialize
from portico.ipu.program import DeviceCall, DeviceProgram, LossFunction, ProgramPool, program_loss
from portico.nested import map_tensors
from portico.trainer import Trainer

logger = logging.getLogger(__name__)


def check_given(model: Any, model_init: Any, args: Any, arguments_class: type) -> None:
    """Refuse what no trainer on IPUs takes.

    Raises:
        RuntimeError: If there is no model.
        TypeError: If ``args`` is of another class.
    """
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


def own_config(ipu_config: IPUConfig | None, args: Any) -> IPUConfig:
    """Return a copy of the configuration, with what the arguments say about it.

    Raises:
        TypeError: If it is no configuration.
        InputError: If ``n_ipu`` is no multiple of the IPUs of a replica.
    """
    if not isinstance(ipu_config, IPUConfig | None):
        raise TypeError(
            f"`ipu_config` is a {type(ipu_config).__name__}; give a `portico.IPUConfig`, which stands before `args`."
        )
    config = IPUConfig() if ipu_config is None else copy.deepcopy(ipu_config)
    if args.n_ipu is not None:
        factors = {}
        for prefix in ("", "inference_"):
            each = getattr(config, f"{prefix}ipus_per_replica")
            if args.n_ipu % each:
                raise InputError(
                    f"`n_ipu={args.n_ipu}` is no multiple of `{prefix}ipus_per_replica={each}`, so replicas do not "
                    "fit; change one of them."
                )
            factors[f"{prefix}replication_factor"] = args.n_ipu // each
            before = getattr(config, f"{prefix}replication_factor")
            if before not in (1, args.n_ipu // each):
                logger.warning(
                    "`n_ipu=%d` overwrites `%sreplication_factor=%d` by %d.",
                    args.n_ipu,
                    prefix,
                    before,
                    args.n_ipu // each,
                )
        config.update(**factors)
    if args.ipu_config_overrides:
        config.update_from_string(args.ipu_config_overrides)
    config.seed = args.seed
    if config.replication_factor > 1:
        os.environ["TOKENIZERS_PARALLELISM"] = "true"
    return config


class PlacingMethods(Facade):
    """How the facade spreads its model over IPUs.

    Attributes:
        ipu_config: How the model is spread over IPUs.
        placement: Where the layers of the program made last lie; ``None`` on one IPU, or before there is a program.
        placement_report: What the training placement comes to; ``None`` as long as there is none.
    """

    ipu_config: IPUConfig
    placement: Placement | None
    placement_report: PlacementReport | None
    # Whether the model lies where the training program has it, or (False) where those of inference have it.
    _is_placed_for_training: bool | None

    @property
    def combined_train_batch_size(self) -> int:
        """Rows of a call that trains: micro-batch x replicas x accumulation x device iterations."""
        return int(self.args.per_device_train_batch_size) * self.ipu_config.batch_size_factor()

    @property
    def combined_eval_batch_size(self) -> int:
        """Rows of a call that evaluates: micro-batch x replicas x device iterations."""
        return int(self.args.per_device_eval_batch_size) * self.ipu_config.batch_size_factor(for_inference=True)

    def _place_for(self, training: bool, model: nn.Module, sample_batch: Mapping[str, Any] | None) -> None:
        """Let the model lie where the programs of a stage have it.

        A program takes the model as it lies when it is compiled, which may be long after it was made.

        Args:
            training: The stage.
            model: The model.
            sample_batch: A combined batch, to see in which order the model runs; by default the first of the loader.
        """
        if self._is_placed_for_training is training:
            return
        self._is_placed_for_training = None
        config = self.ipu_config.train() if training else self.ipu_config.eval()
        unplaced(model)
        serialize(model, config)
        self.placement = self._placement(model, config, training, sample_batch)
        self._is_placed_for_training = training
        if training and self.placement is not None and self.placement_report is None:
            self._report_placement(self.placement, model, config)

    def _placement(
        self, model: nn.Module, config: IPUConfig, training: bool, sample_batch: Mapping[str, Any] | None
    ) -> Placement | None:
        if config._ipus_per_replica == 1:
            return None
        batch = self._first_batch(training) if sample_batch is None else sample_batch
        size = int(self.args.per_device_train_batch_size if training else self.args.per_device_eval_batch_size)
        micro_batch = map_tensors(lambda tensor: tensor[:size] if tensor.dim() else tensor, dict(batch))
        return place(model, micro_batch, config)

    def _report_placement(self, placement: Placement, model: nn.Module, config: IPUConfig) -> None:
        self.placement_report = PlacementReport.of(
            placement,
            model,
            config,
            micro_batch_size=int(self.args.per_device_train_batch_size),
            optimizer=self.optimizer,
        )
        if self.is_world_process_zero():
            self.placement_report.save(self.args.output_dir)
            print(self.placement_report.text())

    def _first_batch(self, training: bool) -> Any:
        loader = self.get_train_dataloader() if training else self.get_eval_dataloader()
        size = self.combined_train_batch_size if training else self.combined_eval_batch_size
        return self._on_device(filled_up(next(iter(loader)), size))

    def _on_device(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return a plain batch in the program's precision."""
        if self.args.fp32:
            return batch
        halved: dict[str, Any] = map_tensors(
            lambda tensor: tensor.half() if tensor.dtype is torch.float32 else tensor, batch
        )
        return halved


logger_programs = logging.getLogger(__name__)


class ProgramMethods(PlacingMethods):
    """How the facade runs its model.

    Attributes:
        opts: Options of the training program.
        eval_opts: Options of the inference program.
        programs: All programs of this trainer.
        training_model: The program that trains; ``None`` before there is one.
        inference_model: The program that evaluates; ``None`` before there is one.
        loss_function: Computes the loss inside the program; ``None`` leaves it to the model.
    """

    opts: Any
    eval_opts: Any
    programs: ProgramPool
    training_model: Any
    inference_model: Any
    loss_function: LossFunction | None
    _pending_device_rng: list[int] | None
    _generator: DeviceGenerator | None

    def _wrap_model(self, model: nn.Module, training: bool = True, dataloader: Any = None) -> nn.Module:
        return DeviceCall(self.call_model, model, training=training)

    def wrap_model(self, model: Any, training: bool = True, sample_batch: Any = None) -> Any:
        """Return the program of the model, made at the first call.

        Args:
            model: The model; a program comes back as it is.
            training: Whether the program trains.
            sample_batch: A combined batch, which the model is run on to find its layers where several IPUs share it;
                by default the first of the loader.
        """
        if hasattr(model, "isCompiled"):
            return model
        existing = self.training_model if training else self.inference_model
        if existing is not None:
            return existing
        self._place_for(training, model, sample_batch)
        program = DeviceProgram(model, loss_function=self.loss_function, training=training)
        if training:
            self.training_model = self.programs.make_training(program, self.opts, self.optimizer)
            return self.training_model
        self.inference_model = self.programs.make_inference(program, self.eval_opts)
        return self.inference_model

    def compile_model(self, model: Any, sample_batch: Mapping[str, Any], log: bool = False) -> Any:
        """Compile the program that ``model`` is, for batches like ``sample_batch``.

        Args:
            model: A program of :meth:`wrap_model`.
            sample_batch: A combined batch.
            log: Say that it was compiled.
        """
        if not model.isCompiled():
            batch = self._on_device(dict(sample_batch))
            self._before_compilation(model, batch)
            model.compile(**batch)
        if log:
            logger_programs.info("Compiled the program for %d IPU(s).", self.ipu_config._ipus_per_replica)
        return model

    def _before_compilation(self, program: Any, batch: Mapping[str, Any]) -> None:
        """Bring the model back to what it was made a program as, in case another one was made since."""
        is_training = program is self.training_model
        self._place_for(is_training, self.model, batch)
        program.train(is_training)

    def call_model(self, model: nn.Module, inputs: Mapping[str, Any], is_training: bool = False) -> dict[str, Any]:
        """Run a combined batch, or a part of one, and return what is real of the outputs.

        Args:
            model: The model.
            inputs: Its inputs.
            is_training: Train on them.

        Returns:
            Outputs by name; ``loss`` is the mean over real rows.
        """
        size = self.combined_train_batch_size if is_training else self.combined_eval_batch_size
        rows = num_rows(inputs)
        self._check_rows(rows, size, is_training)
        batch = self._on_device(filled_up(inputs, size))
        if not is_training and rows < size:
            batch = with_ignored_labels(batch, rows, self.label_names)
        program = self.wrap_model(model, training=is_training, sample_batch=batch)
        if is_training:
            program.setOptimizer(self.optimizer)
        if not program.isCompiled():
            self._before_compilation(program, batch)
        self._restore_device_rng(program, is_training)
        outputs = dict(self.programs.ready(program)(**batch))
        if "loss" in outputs:
            loss = outputs["loss"]
            outputs["loss"] = loss.float().mean() if is_training else self._evaluation_loss(program, loss, inputs)
        return outputs if is_training else cut_back(outputs, rows, size)

    def _evaluation_loss(self, program: Any, losses: Tensor, inputs: Mapping[str, Any]) -> Tensor:
        """Return the mean loss over real rows, from those of the micro-batches of a filled-up batch."""
        rows, size = num_rows(inputs), self.combined_eval_batch_size
        micro_batch_size = int(self.args.per_device_eval_batch_size)
        whole = rows - rows % micro_batch_size
        if whole == rows or not has_float_labels(inputs, self.label_names):
            return weighted_loss(losses, rows, size)
        total = whole * weighted_loss(losses, whole, size) if whole else torch.zeros(())
        batches = row_by_row(inputs, range(whole, rows), size=size, micro_batch_size=micro_batch_size)
        for batch, num_losses in batches:
            total = total + program(**self._on_device(batch))["loss"].float().reshape(-1)[:num_losses].sum()
        return total / rows

    def _check_rows(self, rows: int, size: int, is_training: bool) -> None:
        if rows == size or (rows < size and (not is_training or self.args.pad_on_batch_axis)):
            return
        verb = "trains" if is_training else "evaluates"
        cure = "without a last batch that is not full (`dataloader_drop_last=True`)" if is_training else "or fewer"
        raise InputError(
            f"A batch has {rows} rows, but one call of the program that {verb} takes {size}; let the loader give "
            f"batches of {size} rows, {cure}."
        )

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Return the loss that the program computed.

        Raises:
            ValueError: If it computed none.
        """
        outputs = model(**inputs)
        if "loss" not in outputs:
            raise ValueError(
                f"The model did not return a loss from the inputs, only the following keys: {','.join(outputs)}. For "
                f"reference, the inputs it received are {','.join(inputs)}."
            )
        return (outputs["loss"], outputs) if return_outputs else outputs["loss"]

    def generate(self, inputs: dict[str, Any], **options: Any) -> Tensor:
        """Return generated tokens, ``int64 [rows, length]``, computed on the devices.

        Args:
            inputs: Inputs of the model.
            **options: Keywords of ``generate`` of ``transformers``.
        """
        if self._generator is None:
            sample = self._on_device(with_decoder_start(inputs, self.model))
            self._generator = DeviceGenerator(
                self.model,
                self.programs,
                self.eval_opts,
                prepare=self._on_device,
                place=partial(self._place_for, False, self.model, sample),
                encodes_on_host=self.ipu_config.execute_encoder_on_cpu_for_generation,
            )
        return self._generator.generate(inputs, **options)

    def _restore_device_rng(self, program: Any, is_training: bool) -> None:
        if is_training and self._pending_device_rng is not None:
            program.rng_state, self._pending_device_rng = self._pending_device_rng, None


class LoadingMethods(ProgramMethods):
    """How the facade loads combined batches.

    Attributes:
        eval_data_collator: Makes the batches of evaluations and predictions.
    """

    eval_data_collator: Any

    def get_train_dataloader(self) -> Any:
        """Return the training loader.

        Raises:
            InputError: If the data are too few for one call.
        """
        loader = super().get_train_dataloader()  # type: ignore[safe-super]
        if has_length(loader) and len(loader) == 0:
            config = self.ipu_config
            raise InputError(
                f"Couldn't get first sample from dataloader, as the training data have {len(self.train_dataset)} "
                f"examples and one call takes {self.combined_train_batch_size}: micro-batch "
                f"{self.args.per_device_train_batch_size} x gradient accumulation "
                f"{config.gradient_accumulation_steps} x replicas {config.replication_factor} x device iterations "
                f"{config.device_iterations}. Lower one of these, give more data, or set `pad_on_batch_axis=True`."
            )
        return loader

    def _get_dataloader(
        self,
        dataset: Any,
        description: str,
        batch_size: int,
        sampler_fn: Callable[[Any], Any] | None = None,
        is_training: bool = False,
        dataloader_key: str | None = None,
    ) -> Any:
        size = self.combined_train_batch_size if is_training else self.combined_eval_batch_size
        mode = self.args.dataloader_mode if is_training else "sync"
        rebatches = mode == "async_rebatched"
        with self._collating_with(self.data_collator if is_training else self.eval_data_collator):
            loader = self.datamodule.build_loader(
                dataset,
                description=description,
                batch_size=self._worker_batch_size(size) if rebatches else size,
                sampler_fn=sampler_fn,
                is_training=is_training,
            )
        drops_last = is_training and not self.args.pad_on_batch_axis
        prepared = self.accelerator.prepare(without_remainder(loader) if drops_last and not rebatches else loader)
        if mode == "sync":
            return prepared
        return AheadLoader(prepared, batch_size=size, rebatches=rebatches, drop_last=drops_last)

    def _worker_batch_size(self, combined: int) -> int:
        """Return the rows that a worker loads at once, at most a combined batch."""
        workers = self.args.dataloader_num_workers
        return min(max(2 * (combined // workers), 1), combined) if workers else combined

    @contextmanager
    def _collating_with(self, collator: Any) -> Iterator[None]:
        usual, self.data_collator = self.data_collator, collator
        try:
            yield
        finally:
            self.data_collator = usual

    def _init_training_state(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        point: tuple[int, int] = super()._init_training_state(*args, **kwargs)  # type: ignore[misc]
        # A resumed run compares it with the argument, which counts rows of a micro-batch.
        self.state.train_batch_size = self.args.train_batch_size
        return point

    def _evaluation_session(self, dataloader: Any, **options: Any) -> EvaluationSession:
        session: EvaluationSession = super()._evaluation_session(dataloader, **options)  # type: ignore[misc]
        # The loss of a batch counts once for each of its rows.
        session.batch_size = self.combined_eval_batch_size
        return session


class OptimizerMethods(Facade):
    """How the facade makes the optimizer of its program."""

    original_model: Any

    def create_optimizer(self, model: nn.Module | None = None) -> Any:
        """Make AdamW, or LAMB if the arguments say so, unless there is an optimizer."""
        if self.optimizer is None:
            self.optimizer = self._lamb() if self.args.uses_lamb else self._adamw()
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
        return OptimizerConversion(model, pipelined_model).counterpart(optimizer, self._optimizer_options())

    def _take_optimizer(self, model: nn.Module) -> None:
        """Let the user's optimizer train the copy of the model; bind the user's schedule to what became of it."""
        if self.optimizer is None:
            return
        if isinstance(self.optimizer, backend.optim.Optimizer):
            conversion = OptimizerConversion(model, self.model)
            for group in self.optimizer.param_groups:
                group["params"] = conversion.trained_parameters(group["params"])
            return
        users, self.optimizer = self.optimizer, self.pytorch_optimizer_to_poptorch(self.optimizer, model, self.model)
        if isinstance(self.lr_scheduler, functools.partial):
            self.lr_scheduler = self.lr_scheduler(self.optimizer)
        elif getattr(self.lr_scheduler, "optimizer", None) is users:
            rebind_schedule(self.lr_scheduler, self.optimizer)

    def _adamw(self) -> Any:
        args = self.args
        decayed = set(self.get_decay_parameter_names(self.model))
        trainable = [(name, parameter) for name, parameter in self.model.named_parameters() if parameter.requires_grad]
        groups = [
            {"params": [p for name, p in trainable if name in decayed], "weight_decay": args.weight_decay},
            {"params": [p for name, p in trainable if name not in decayed], "weight_decay": 0.0},
        ]
        optimizer = backend.optim.AdamW(
            groups,
            lr=args.learning_rate,
            betas=(args.adam_beta1, args.adam_beta2),
            eps=args.adam_epsilon,
            bias_correction=False,
            **self._optimizer_options(),
        )
        optimizer.variable_attrs.markAsConstant("weight_decay")
        return optimizer

    def _lamb(self) -> Any:
        args = self.args
        decayed = set(self.get_decay_parameter_names(self.model))
        trainable = [(name, parameter) for name, parameter in self.model.named_parameters() if parameter.requires_grad]
        biases = [p for name, p in trainable if "bias" in name]
        rest = [p for name, p in trainable if name not in decayed and "bias" not in name]
        options = self._optimizer_options()
        # LAMB scales its steps by norms instead of clipping by them.
        options.pop("max_grad_norm")
        optimizer = backend.optim.LAMB(
            [
                {"params": [p for name, p in trainable if name in decayed], "weight_decay": args.weight_decay},
                {"params": biases, "weight_decay": 0.0, "max_weight_norm": 0.0},
                {"params": rest, "weight_decay": 0.0},
            ],
            lr=args.learning_rate,
            eps=args.adam_epsilon,
            bias_correction=not args.lamb_no_bias_correction,
            **options,
        )
        for name in ("weight_decay", "max_weight_norm"):
            optimizer.variable_attrs.markAsConstant(name)
        return optimizer

    def _optimizer_options(self) -> dict[str, Any]:
        dtype = torch.float32 if self.args.fp32 else torch.float16
        return {
            "loss_scaling": self.args.loss_scaling,
            "accum_type": dtype,
            "first_order_momentum_accum_type": dtype,
            "second_order_momentum_accum_type": torch.float32,
            "max_grad_norm": self.args.max_grad_norm or None,
        }

    def _clip_grad_norm(self, model: nn.Module) -> Any:
        # The program clips, and its gradients never reach the host.
        return None

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        return None


RNG_FILE = "ipu_rng_state.json"


class IPUSavingMethods(ProgramMethods):
    """How the facade saves and restores configuration and device random state."""

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        super()._save(output_dir, state_dict)  # type: ignore[misc]
        if not self.args.should_save:
            return
        folder = Path(self.args.output_dir if output_dir is None else output_dir)
        self.ipu_config.save_pretrained(folder)
        if self.training_model is not None:
            (folder / RNG_FILE).write_text(json.dumps(self.training_model.rng_state), encoding="utf-8")

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)  # type: ignore[misc]
        file = Path(resume_from_checkpoint) / RNG_FILE
        if file.is_file():
            self._pending_device_rng = json.loads(file.read_text(encoding="utf-8"))
        self._upload_weights()

    def _optimizer_state_to_load(self, state: dict[str, Any]) -> dict[str, Any]:
        # The weights of the checkpoint may have been in other pieces.
        assert self.optimizer is not None
        return recut(state, self.optimizer, self.model)

    def _load_best_model(self) -> None:
        super()._load_best_model()  # type: ignore[misc]
        self._upload_weights()

    def _upload_weights(self) -> None:
        """Let programs that are on IPUs have the weights that were just loaded; others get them when attached."""
        for program in (self.training_model, self.inference_model):
            if program is not None and program.isCompiled() and program.isAttachedToDevice():
                program.copyWeightsToDevice()


class IPUMixin(LoadingMethods, OptimizerMethods, IPUSavingMethods):
    """Everything a trainer does differently on IPUs; mixed in before the trainer.

    ``class IPUMRCTrainer(IPUMixin, MRCTrainer)`` trains readers on IPUs.

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


class IPUTrainer(IPUMixin, Trainer):
    """Hugging Face's ``Trainer`` on IPUs; see :class:`IPUMixin` for the arguments."""
