"""The programs of a trainer: made, compiled, called."""

import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers.trainer_pt_utils import LabelSmoother

from portico.contract import Facade
from portico.errors import InputError
from portico.ipu.config import IPUConfig
from portico.ipu.device_program import DeviceProgram, LossFunction
from portico.ipu.executors import ProgramPool
from portico.ipu.generation import DeviceGenerator, with_decoder_start
from portico.ipu.padding import (
    cut_back,
    filled_up,
    has_float_labels,
    num_rows,
    row_by_row,
    weighted_loss,
    with_ignored_labels,
)
from portico.ipu.pipelining.placement import Placement, place, unplaced
from portico.ipu.pipelining.report import PlacementReport
from portico.ipu.pipelining.serialization import serialize
from portico.nested import map_tensors

logger = logging.getLogger(__name__)


class DeviceCall(nn.Module):
    """Stands where the model stands, and runs it on IPUs.

    Args:
        facade: The trainer whose programs run it.
        model: The model.
        training: Whether a call trains.
    """

    def __init__(self, facade: "ProgramMethods", model: nn.Module, *, training: bool) -> None:
        super().__init__()
        self.module = model
        self._facade = (facade,)
        self._trains = training

    def forward(self, **inputs: Any) -> dict[str, Any]:
        """Run a combined batch, or a part of one."""
        return self._facade[0].call_model(self.module, inputs, is_training=self._trains)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)


class ProgramMethods(Facade):
    """How the facade runs its model.

    Attributes:
        ipu_config: How the model is spread over IPUs.
        opts: Options of the training program.
        eval_opts: Options of the inference program.
        programs: All programs of this trainer.
        training_model: The program that trains; ``None`` before there is one.
        inference_model: The program that evaluates; ``None`` before there is one.
        placement: Where the layers of the program made last lie; ``None`` on one IPU, or before there is a program.
        placement_report: What the training placement comes to; ``None`` as long as there is none.
        loss_function: Computes the loss inside the program; ``None`` leaves it to the model.
    """

    ipu_config: IPUConfig
    opts: Any
    eval_opts: Any
    programs: ProgramPool
    training_model: Any
    inference_model: Any
    placement: Placement | None
    placement_report: PlacementReport | None
    loss_function: LossFunction | None
    _pending_device_rng: list[int] | None
    _generator: DeviceGenerator | None

    @property
    def combined_train_batch_size(self) -> int:
        """Rows of a call that trains: micro-batch x replicas x accumulation x device iterations."""
        return int(self.args.per_device_train_batch_size) * self.ipu_config.batch_size_factor()

    @property
    def combined_eval_batch_size(self) -> int:
        """Rows of a call that evaluates: micro-batch x replicas x device iterations."""
        return int(self.args.per_device_eval_batch_size) * self.ipu_config.batch_size_factor(for_inference=True)

    def _wrap_model(self, model: nn.Module, training: bool = True, dataloader: Any = None) -> nn.Module:
        return DeviceCall(self, model, training=training)

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
        config = self.ipu_config.train() if training else self.ipu_config.eval()
        self._place(model, config, training, sample_batch)
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
            model.compile(**self._on_device(dict(sample_batch)))
        if log:
            logger.info("Compiled the program for %d IPU(s).", self.ipu_config._ipus_per_replica)
        return model

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
        if self.inference_model is None:
            # The programs that generate lie where the one that evaluates does.
            sample = self._on_device(with_decoder_start(inputs, self.model))
            self.wrap_model(self.model, training=False, sample_batch=sample)
        if self._generator is None:
            self._generator = DeviceGenerator(self.model, self.programs, self.eval_opts, self._on_device)
        return self._generator.generate(inputs, **options)

    def _place(self, model: nn.Module, config: IPUConfig, training: bool, sample_batch: Any) -> None:
        unplaced(model)
        serialize(model, config)
        self.placement = None
        if config._ipus_per_replica == 1:
            return
        batch = self._first_batch(training) if sample_batch is None else sample_batch
        size = int(self.args.per_device_train_batch_size if training else self.args.per_device_eval_batch_size)
        micro_batch = map_tensors(lambda tensor: tensor[:size] if tensor.dim() else tensor, dict(batch))
        self.placement = place(model, micro_batch, config)
        if training:
            self._report_placement(model, config, size)

    def _report_placement(self, model: nn.Module, config: IPUConfig, micro_batch_size: int) -> None:
        assert self.placement is not None
        self.placement_report = PlacementReport.of(
            self.placement, model, config, micro_batch_size=micro_batch_size, optimizer=self.optimizer
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

    def _restore_device_rng(self, program: Any, is_training: bool) -> None:
        if is_training and self._pending_device_rng is not None:
            program.rng_state, self._pending_device_rng = self._pending_device_rng, None


def program_loss(
    label_smoother: LabelSmoother | None, compute_loss_func: Any, *, shifts_labels: bool
) -> LossFunction | None:
    """Return the loss that is computed inside the program, of the outputs and the labels; ``None`` for the model's.

    Args:
        label_smoother: Smooths the labels.
        compute_loss_func: The user's; it wins.
        shifts_labels: Whether the loss is that of the next token.
    """
    if compute_loss_func is not None:
        return lambda outputs, labels: compute_loss_func(outputs, labels, num_items_in_batch=None)
    if label_smoother is not None:
        return lambda outputs, labels: label_smoother(outputs, labels, shift_labels=shifts_labels)
    return None
