"""What follows from the attributes of an ``IPUConfig`` that were given."""

import copy
from typing import Any

from portico.ipu.config.attributes import SINGLE, TWINS


def complete(given: dict[str, Any]) -> dict[str, Any]:
    """Return all attributes: what was given, and for the rest what follows from it."""
    values = {name: copy.deepcopy(kind.default) for name, kind in {**TWINS, **SINGLE}.items()}
    values |= {name: value for name, value in given.items() if value is not None}
    own_count = values["ipus_per_replica"] is None
    if own_count:
        values["ipus_per_replica"] = _num_ipus(values["layers_per_ipu"])
    layers = values.setdefault("inference_layers_per_ipu", copy.deepcopy(values["layers_per_ipu"]))
    follows = own_count or given.get("inference_layers_per_ipu") is not None
    values.setdefault("inference_ipus_per_replica", _num_ipus(layers) if follows else values["ipus_per_replica"])
    proportion = values["matmul_proportion"]
    fits = not isinstance(proportion, list) or len(proportion) == values["inference_ipus_per_replica"]
    values.setdefault("inference_matmul_proportion", copy.deepcopy(proportion) if fits else 0.2)
    for name in ("replication_factor", "device_iterations"):
        values.setdefault(f"inference_{name}", 1)
    for prefix in ("", "inference_"):
        values[f"{prefix}parallelize_kwargs"] = values.get(f"{prefix}parallelize_kwargs") or {}
        for part in ("embedding", "projection"):
            splits = values.setdefault(f"{prefix}serialized_{part}_splits_per_ipu", None)
            factor = values.setdefault(f"{prefix}{part}_serialization_factor", None)
            if factor is None and splits is None:
                values[f"{prefix}{part}_serialization_factor"] = 1
    return values


def _num_ipus(layers: Any) -> int:
    # Anything but a list is refused where the attribute is set.
    return len(layers) if isinstance(layers, list) else 1
