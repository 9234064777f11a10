"""Generation whose forward passes are calls of programs: the host searches, the devices compute.

A program takes one shape, so tokens are padded to the longest sequence that may be generated, and nothing is cached
between the steps. Padding after the current position does not matter, as decoders do not look ahead.
"""

import copy
import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import PreTrainedModel

from portico.compat.annotations import Nested
from portico.compat.transformers import BaseModelOutput, Seq2SeqLMOutput
from portico.ipu import backend
from portico.ipu.data import num_rows, pad_rows, select_rows
from portico.ipu.program import DeviceProgram, ProgramPool

Place = Callable[[], None]
Convert = Callable[[dict[str, Any]], dict[str, Any]]
# Inputs of a decoder with a column for each token; for an encoder-decoder their names begin with `decoder_`.
_PER_TOKEN = ("input_ids", "attention_mask", "position_ids", "token_type_ids")
# Inputs that only caches need, which programs do not have.
_CACHE_INPUTS = ("cache_position",)


class DeviceGenerator:
    """Generates with a model of ``transformers`` whose forward passes are programs; ``place`` precedes compilation."""

    def __init__(
        self,
        model: PreTrainedModel,
        programs: ProgramPool,
        options: "backend.Options",
        *,
        convert: Convert,
        place: Place,
        encodes_on_host: bool = False,
    ) -> None:
        self._model: Any = model
        on_devices = functools.partial(_run_in_programs, programs, options, convert, place)
        self._decoder = on_devices(model)
        self._encoder: Convert | None = None
        if model.config.is_encoder_decoder:
            encoder = model.get_encoder()
            self._encoder = _run_on_host(encoder, convert) if encodes_on_host else on_devices(encoder)
        self._max_length = 0

    def generate(self, inputs: dict[str, Any], **options: object) -> Tensor:
        """Return generated tokens, ``int64 [rows, length]``; see ``generate`` of ``transformers`` for the options."""
        # The search runs on a copy that shares everything but the forward passes.
        searcher = copy.copy(self._model)
        # `generate` inspects the signatures of the forward passes.
        searcher.forward = functools.wraps(self._model.forward)(functools.partial(self._step))
        searcher._prepare_generated_length = self._record_length
        if self._encoder is not None:
            encoder = copy.copy(self._model.get_encoder())
            encoder.forward = functools.wraps(encoder.forward)(functools.partial(self._encode))
            searcher.get_encoder = lambda *args, **kwargs: encoder
        with torch.no_grad():
            tokens: Tensor = searcher.generate(**inputs, **{**options, "use_cache": False})
        return tokens

    def _record_length(self, *args: object, **kwargs: object) -> Any:
        # `generate` computes one maximum length here, from everything that limits it, before the first step.
        config = self._model._prepare_generated_length(*args, **kwargs)
        self._max_length = int(config.max_length)
        return config

    def _encode(self, *args: object, **inputs: object) -> BaseModelOutput:
        assert self._encoder is not None
        tensors = {name: value for name, value in inputs.items() if isinstance(value, Tensor)}
        return BaseModelOutput(last_hidden_state=self._encoder(tensors)["last_hidden_state"])

    def _step(self, *args: object, **inputs: Any) -> Seq2SeqLMOutput:
        prefix = "decoder_" if self._encoder is not None else ""
        per_token = [f"{prefix}{name}" for name in _PER_TOKEN]
        length = inputs[per_token[0]].shape[1]
        padded: dict[str, Any] = {
            name: pad(value, (0, self._max_length - value.shape[1])) if name in per_token else value
            for name, value in inputs.items()
            if isinstance(value, Tensor) and name not in _CACHE_INPUTS
        }
        if self._encoder is not None:
            padded["encoder_outputs"] = (inputs["encoder_outputs"][0],)
        return Seq2SeqLMOutput(logits=self._decoder(padded)["logits"][:, :length].float())


def _run_in_programs(
    programs: ProgramPool, options: "backend.Options", convert: Convert, place: Place, module: nn.Module
) -> Convert:
    """Return a function that runs a module on batches of any shape, with a program for each shape."""
    program_of_shape: dict[Any, Any] = {}
    factor = options.replication_factor * options.device_iterations

    def run(inputs: dict[str, Any]) -> dict[str, Any]:
        rows = num_rows(inputs)
        size = -(-rows // factor) * factor
        batch = convert(pad_rows(inputs, size))
        shape = tuple((name, _shape(value)) for name, value in batch.items())
        if shape not in program_of_shape:
            place()
            program_of_shape[shape] = programs.add(backend.inferenceModel(DeviceProgram(module), options))
        return select_rows(programs.attach(program_of_shape[shape])(**batch), size, slice(rows))

    return run


def _run_on_host(module: nn.Module, convert: Convert) -> Convert:
    def run(inputs: dict[str, Any]) -> dict[str, Any]:
        was_training = module.training
        module.eval()
        try:
            return dict(module(**convert(inputs)))
        finally:
            module.train(was_training)

    return run


def add_decoder_start(inputs: Mapping[str, Any], model: PreTrainedModel) -> dict[str, Any]:
    """Return inputs for one forward pass: an encoder-decoder without labels or decoder inputs gets a first token."""
    has_tokens = any(inputs.get(name) is not None for name in ("labels", "decoder_input_ids"))
    if has_tokens or not model.config.is_encoder_decoder:
        return dict(inputs)
    return {**inputs, "decoder_input_ids": torch.zeros(num_rows(inputs), 1, dtype=torch.int64)}


def _shape(value: Nested) -> Any:
    return tuple(map(_shape, value)) if isinstance(value, tuple) else tuple(value.shape)
