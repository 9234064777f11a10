"""``parallelize_kwargs`` of an ``IPUConfig``: what decides a placement, and what does not."""

import logging
from collections.abc import Mapping
from typing import Any

from torch import nn

from portico.ipu.config.errors import IncompatibleIPUConfigError

logger = logging.getLogger(__name__)

_KNOWN = ("layers", "modules")
# Of optimum-graphcore's models: how they keep what they have generated, which programs here do not.
_OF_GENERATION = (
    "batch_size",
    "max_length",
    "num_beams",
    "on_device_generation_steps",
    "use_cache",
    "use_cross_cache",
    "use_encoder_output_buffer",
)


def check_options(options: Mapping[str, Any], model: nn.Module, num_ipus: int) -> None:
    """Refuse options that place nothing.

    Args:
        options: ``parallelize_kwargs``.
        model: The model.
        num_ipus: IPUs of a replica.

    Raises:
        IncompatibleIPUConfigError: If there is no such option, module or IPU.
    """
    without_effect = sorted(set(options) & set(_OF_GENERATION))
    if without_effect:
        logger.warning(
            "`parallelize_kwargs` has %s, which has no effect here: tokens are generated without caches, in programs "
            "made for each shape.",
            ", ".join(without_effect),
        )
    unknown = sorted(set(options) - set(_KNOWN) - set(_OF_GENERATION))
    if unknown:
        raise IncompatibleIPUConfigError(
            f"`parallelize_kwargs` has {', '.join(unknown)}, and places a model by {' and '.join(_KNOWN)} only."
        )
    names = {name for name, _ in model.named_modules()}
    for name, ipu in (options.get("modules") or {}).items():
        if name not in names:
            raise IncompatibleIPUConfigError(
                f"`parallelize_kwargs` places the module {name!r}, which {type(model).__name__} does not have; name "
                "one of `model.named_modules()`."
            )
        if ipu not in range(num_ipus):
            raise IncompatibleIPUConfigError(
                f"`parallelize_kwargs` puts {name} on IPU {ipu!r}; a replica has the IPUs 0 to {num_ipus - 1}."
            )
