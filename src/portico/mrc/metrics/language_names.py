"""Names of languages as numbers, so that processes can exchange them.

Shape suffixes: E questions.
"""

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

_END = b"\0"


def language_key(name: str) -> int:
    """Return a number of 64 bits that stands for the name, in every process and run the same."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little", signed=True)


def pack_names(names: Iterable[str]) -> npt.NDArray[np.uint8]:
    """Return the names as bytes, one after the other, ``uint8 [N]``."""
    return np.frombuffer(b"".join(name.encode() + _END for name in sorted(set(names))), np.uint8).copy()


def unpack_names(packed: npt.NDArray[np.uint8]) -> dict[int, str]:
    """Return the names by their keys, in alphabetical order.

    Args:
        packed: What `pack_names` returned, any number of times.
    """
    # The last name has an end too, so nothing comes after it.
    names = sorted({name.decode() for name in packed.tobytes().split(_END)[:-1]})
    return {language_key(name): name for name in names}
