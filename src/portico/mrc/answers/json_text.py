"""Values as ``json.dumps(..., indent=4)`` writes them, byte for byte.

With an indent json encodes in Python; without one it encodes in C, several times as fast, and takes any separator.
"""

import json
from collections.abc import Mapping, Sequence

import numpy as np

from portico.mrc.arrays import Floats

Scalar = str | float


def mapping_json(values: Mapping[str, Scalar]) -> str:
    """Return a mapping of plain values as JSON with an indent of 4."""
    if not values:
        return "{}"
    entries = json.dumps(values, separators=(",\n    ", ": "))[1:-1]
    return f"{{\n    {entries}\n}}"


def scalars_json(values: Sequence[Scalar]) -> list[str]:
    """Return every value of a sequence as JSON."""
    if not values:
        return []
    return json.dumps(values, separators=("\n", ": "))[1:-1].split("\n")  # JSON escapes line breaks within texts


def repeated_numbers_json(numbers_N: Floats) -> list[str]:
    """Return every number of an array as JSON, made into a text once for all its places, ``N`` of them."""
    # As bits, because 0.0 and -0.0 are equal but written differently.
    bits, place_N = np.unique(numbers_N.astype(np.float64).view(np.int64), return_inverse=True)
    distinct = np.array(scalars_json(bits.view(np.float64).tolist()), object)
    texts: list[str] = distinct[place_N].tolist()
    return texts
