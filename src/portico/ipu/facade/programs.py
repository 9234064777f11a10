"""The programs of a trainer: made, compiled, called."""

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from portico.errors import InputError
from portico.ipu.device_program import DeviceProgram, LossFunction
from portico.ipu.executors import ProgramPool
from portico.ipu.facade.device_call import DeviceCall
from portico.ipu.facade.placing import PlacingMethods
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

logger = logging.getLogger(__name__)


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
            logger.info("Compiled the program for %d IPU(s).", self.ipu_config._ipus_per_replica)
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
