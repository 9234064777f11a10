"""Whether the attributes of an ``IPUConfig`` go together."""

from collections.abc import Mapping
from typing import Any

from portico.ipu.config.errors import IncompatibleIPUConfigError

_EXCLUSIVE = (
    ("embedding_serialization_factor", "serialized_embedding_splits_per_ipu"),
    ("projection_serialization_factor", "serialized_projection_splits_per_ipu"),
)


def check_together(values: Mapping[str, Any], prefix: str) -> None:
    """Refuse attributes that contradict each other.

    Args:
        values: All attributes by name.
        prefix: ``""`` for training, ``"inference_"`` for inference.

    Raises:
        IncompatibleIPUConfigError: Names the attributes.
    """
    num_ipus = values[f"{prefix}ipus_per_replica"]
    layers = values[f"{prefix}layers_per_ipu"]
    if -1 not in layers and len(layers) != num_ipus:
        raise IncompatibleIPUConfigError(
            f"`{prefix}layers_per_ipu` has a non-default value set, but its length does not match "
            f"`{prefix}ipus_per_replica`: {layers} lists {len(layers)} IPU(s), and a replica has {num_ipus}; give one "
            "number of layers for each IPU."
        )
    for name in ("matmul_proportion", *(splits for _, splits in _EXCLUSIVE)):
        value = values[f"{prefix}{name}"]
        if isinstance(value, list) and len(value) != num_ipus:
            raise IncompatibleIPUConfigError(
                f"`{prefix}{name}={value}` lists {len(value)} IPU(s), but `{prefix}ipus_per_replica` is {num_ipus}; "
                "give one value for each IPU."
            )
    for factor, splits in _EXCLUSIVE:
        if values[f"{prefix}{splits}"] is not None and values[f"{prefix}{factor}"] not in (None, 1):
            raise IncompatibleIPUConfigError(
                f"Only one of `{prefix}{factor}` and `{prefix}{splits}` can be set: the one cuts evenly, the other "
                "says where each part lies."
            )
