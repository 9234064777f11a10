"""Generation whose forward passes are calls of programs: the host searches, the devices compute.

A program takes one shape, so tokens are padded to the longest that may be generated, and nothing is cached between the
steps. Positions after the present one do not matter: decoders do not look ahead.
"""

import copy
import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from portico.ipu.data import cut_back, filled_up, num_rows
from portico.ipu.program import DeviceProgram, ProgramPool

Prepare = Callable[[dict[str, Any]], dict[str, Any]]
Encode = Callable[[dict[str, Any]], dict[str, Any]]
# What a decoder gets for every token; of a model with an encoder, under names that begin with `decoder_`.
_PER_TOKEN = ("input_ids", "attention_mask", "position_ids", "token_type_ids")
# What only matters to caches, which programs do not have.
_OF_CACHES = ("cache_position",)


class ProgramCalls:
    """Runs a module on batches of any shape: each shape is a program of its own.

    Args:
        module: The module.
        programs: Where the programs are kept, and which is attached.
        options: Of the programs.
        prepare: Brings inputs into the programs' precision.
        place: Lets the model lie where inference has it; called before a program is compiled.
    """

    def __init__(
        self, module: nn.Module, programs: ProgramPool, options: Any, *, prepare: Prepare, place: Callable[[], None]
    ) -> None:
        self._module = module
        self._programs = programs
        self._options = options
        self._prepare = prepare
        self._place = place
        self._by_shape: dict[Any, Any] = {}

    def __call__(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return the outputs of the module by name."""
        rows = num_rows(inputs)
        factor = self._options.replication_factor * self._options.device_iterations
        size = -(-rows // factor) * factor
        batch = self._prepare(filled_up(inputs, size))
        shape = tuple((name, _shape(value)) for name, value in batch.items())
        if shape not in self._by_shape:
            self._place()
            self._by_shape[shape] = self._programs.make_inference(DeviceProgram(self._module), self._options)
        return cut_back(dict(self._programs.ready(self._by_shape[shape])(**batch)), rows, size)


class HostCalls:
    """Runs a module on the host, for inference.

    Args:
        module: The module.
        prepare: Brings inputs into the module's precision.
    """

    def __init__(self, module: nn.Module, prepare: Prepare) -> None:
        self._module = module
        self._prepare = prepare

    def __call__(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return the outputs of the module by name."""
        was_training = self._module.training
        self._module.eval()
        try:
            return dict(self._module(**self._prepare(inputs)))
        finally:
            self._module.train(was_training)


class DeviceGenerator:
    """Generates with a model of ``transformers``, whose forward passes run as programs.

    Args:
        model: The model.
        programs: Where the programs are kept.
        options: Of inference programs.
        prepare: Brings inputs into the programs' precision.
        place: Lets the model lie where inference has it.
        encodes_on_host: Whether the encoder, if there is one, runs on the host instead of in a program.
    """

    def __init__(
        self,
        model: Any,
        programs: ProgramPool,
        options: Any,
        *,
        prepare: Prepare,
        place: Callable[[], None],
        encodes_on_host: bool = False,
    ) -> None:
        self._model = model
        self._decoder = ProgramCalls(model, programs, options, prepare=prepare, place=place)
        self._encoder: Encode | None = None
        if model.config.is_encoder_decoder and encodes_on_host:
            self._encoder = HostCalls(model.get_encoder(), prepare)
        elif model.config.is_encoder_decoder:
            self._encoder = ProgramCalls(model.get_encoder(), programs, options, prepare=prepare, place=place)
        self._longest = 0

    def generate(self, inputs: dict[str, Any], **options: Any) -> Tensor:
        """Return generated tokens, ``int64 [rows, length]``; see ``transformers``' ``generate`` for the options.

        Args:
            inputs: Inputs of the model.
            **options: Keywords of ``generate``.

        """
        # The search runs on a copy that shares everything but its forward passes.
        searcher = copy.copy(self._model)
        searcher.forward = _signed_as(self._model.forward, self._step)
        # Of all that says how long a text may become, `generate` makes one number here, before the first step.
        searcher._prepare_generated_length = self._noting_length(self._model._prepare_generated_length)
        if self._encoder is not None:
            encoder = copy.copy(self._model.get_encoder())
            encoder.forward = _signed_as(self._model.get_encoder().forward, self._encode)
            searcher.get_encoder = lambda *args, **kwargs: encoder
        with torch.no_grad():
            tokens: Tensor = searcher.generate(**inputs, **{**options, "use_cache": False})
        return tokens

    def _noting_length(self, prepare_length: Callable[..., Any]) -> Callable[..., Any]:
        def prepare_and_note(*args: Any, **kwargs: Any) -> Any:
            config = prepare_length(*args, **kwargs)
            self._longest = int(config.max_length)
            return config

        return prepare_and_note

    def _encode(self, *args: Any, **inputs: Any) -> BaseModelOutput:
        assert self._encoder is not None
        given = {name: value for name, value in inputs.items() if isinstance(value, Tensor)}
        return BaseModelOutput(last_hidden_state=self._encoder(given)["last_hidden_state"])

    def _step(self, *args: Any, **inputs: Any) -> Seq2SeqLMOutput:
        prefix = "decoder_" if self._encoder is not None else ""
        per_token = [f"{prefix}{name}" for name in _PER_TOKEN]
        length = inputs[per_token[0]].shape[1]
        given: dict[str, Any] = {
            name: self._lengthened(value) if name in per_token else value
            for name, value in inputs.items()
            if isinstance(value, Tensor) and name not in _OF_CACHES
        }
        if self._encoder is not None:
            given["encoder_outputs"] = (inputs["encoder_outputs"][0],)
        return Seq2SeqLMOutput(logits=self._decoder(given)["logits"][:, :length].float())

    def _lengthened(self, tokens: Tensor) -> Tensor:
        return pad(tokens, (0, self._longest - tokens.shape[1]))


def with_decoder_start(inputs: Mapping[str, Any], model: Any) -> dict[str, Any]:
    """Return inputs that a model runs on as it is: a decoder without labels or tokens gets a token to begin with."""
    has_tokens = any(inputs.get(name) is not None for name in ("labels", "decoder_input_ids"))
    if has_tokens or not model.config.is_encoder_decoder:
        return dict(inputs)
    return {**inputs, "decoder_input_ids": torch.zeros(num_rows(inputs), 1, dtype=torch.int64)}


def _signed_as(original: Any, function: Any) -> Any:
    """Return ``function`` with the signature of ``original``, which ``generate`` looks at."""
    return functools.wraps(original)(functools.partial(function))


def _shape(value: Any) -> Any:
    return tuple(map(_shape, value)) if isinstance(value, tuple) else tuple(value.shape)
