"""What a model generates with, and how long its generated tokens are made."""

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig

from portico.errors import InputError


def load_generation_config(source: str | Path | GenerationConfig) -> GenerationConfig:
    """Return the generation configuration that training arguments name, checked as strictly as saving checks it.

    Args:
        source: A configuration, of which a copy is returned; a file; a folder; or a name on the hub.

    Raises:
        InputError: If ``source`` is something else, or the settings contradict each other.
        OSError: If there is no configuration at the place.
    """
    if isinstance(source, GenerationConfig):
        config = deepcopy(source)
    elif isinstance(source, str | Path):
        path = Path(source)
        config = GenerationConfig.from_pretrained(*((path.parent, path.name) if path.is_file() else (source,)))
    else:
        raise InputError(
            f"`generation_config` is a {type(source).__name__}; give a `GenerationConfig`, the path of a file or "
            "folder that holds one, or the name of a model on the hub."
        )
    try:
        config.validate(strict=True)
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"`generation_config` cannot be saved with the model: {reason} Fix these issues to train your model."
        ) from error
    return config


def generation_options(given: Mapping[str, Any], args: Any) -> dict[str, Any]:
    """Return the keywords of ``generate`` for one evaluation: what the caller gave, then the training arguments.

    Args:
        given: Keywords of ``evaluate`` or ``predict``.
        args: Training arguments with ``generation_max_length`` and ``generation_num_beams``.
    """
    options = dict(given)
    has_length = options.get("max_length") is not None or options.get("max_new_tokens") is not None
    if not has_length and args.generation_max_length is not None:
        options["max_length"] = args.generation_max_length
    if options.get("num_beams") is None and args.generation_num_beams is not None:
        options["num_beams"] = args.generation_num_beams
    return options


def generation_inputs(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs of ``generate``: without a decoder input made of the labels, which it would only continue."""
    shapes = [getattr(inputs.get(name), "shape", None) for name in ("labels", "decoder_input_ids")]
    from_labels = None not in shapes and shapes[0] == shapes[1]
    left_out = ("decoder_input_ids", "decoder_attention_mask") if from_labels else ()
    return {name: value for name, value in inputs.items() if name not in left_out}


def settled_config(model: Any) -> GenerationConfig:
    """Return the generation configuration of ``model``, in which every setting that was open has its default.

    It is changed in place, so that the model is saved with what it generated with.
    """
    config: GenerationConfig = model.generation_config
    if config._from_model_config:
        # Otherwise `generate` would make it again from the model's configuration, at every batch.
        config._from_model_config = False
    config.update(**config._get_default_generation_params(), defaults_only=True)
    return config


def padded_length(tokens: torch.Tensor, config: GenerationConfig) -> int:
    """Return the length that ``tokens`` (``int64 [examples, length]``) are padded to; their own if it is enough."""
    length = tokens.shape[-1]
    if length < config.max_length:
        return int(config.max_length)
    if config.max_new_tokens is not None:
        # The first token is the decoder's start.
        return max(length, config.max_new_tokens + 1)
    return length


def padding_token(processing_class: Any, model: Any) -> int:
    """Return the token that fills up generated sequences and labels.

    Args:
        processing_class: Asked first, if it knows padding; its end token stands in for a padding token it lacks.
        model: Its configuration is asked otherwise.

    Raises:
        InputError: If neither has one.
    """
    if hasattr(processing_class, "pad_token_id"):
        own, end = processing_class.pad_token_id, processing_class.eos_token_id
        token = own if own is not None else end
        missing = "`processing_class` has neither a padding token nor an end token; set its `pad_token`"
    else:
        token = getattr(getattr(model, "config", None), "pad_token_id", None)
        missing = "Pad_token_id must be set in the configuration of the model, in order to pad tensors; set it"
    if token is None:
        raise InputError(f"{missing}, or leave `predict_with_generate` out.")
    return int(token)


def pad_tokens(tokens: torch.Tensor, length: int, token: int) -> torch.Tensor:
    """Return ``tokens`` (``[examples, shorter]``) filled up on the right to ``[examples, length]``."""
    padded = tokens.new_full((tokens.shape[0], length), token)
    padded[:, : tokens.shape[-1]] = tokens
    return padded
