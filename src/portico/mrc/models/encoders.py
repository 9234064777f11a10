"""Models without a head, of any family."""

import inspect
from typing import Any, cast

from transformers import MODEL_MAPPING, PreTrainedConfig, PreTrainedModel

from portico.errors import InputError


def encoder_class(config: PreTrainedConfig) -> type[PreTrainedModel]:
    """Return the class of the encoder that a configuration is of.

    Raises:
        InputError: If transformers has no model without a head for it.
    """
    if type(config) not in MODEL_MAPPING:
        raise InputError(
            f"transformers knows no encoder of a `{type(config).__name__}`; give the configuration of one that "
            "`AutoModel` knows, such as a `RobertaConfig`."
        )
    model_class: type[PreTrainedModel] = cast(Any, MODEL_MAPPING[type(config)])
    return model_class


def new_encoder(config: PreTrainedConfig) -> PreTrainedModel:
    """Return an encoder with random weights."""
    model_class = encoder_class(config)
    # No head reads what a pooling layer would make of the first token.
    pools = "add_pooling_layer" in inspect.signature(model_class.__init__).parameters
    return model_class(config, **({"add_pooling_layer": False} if pools else {}))
