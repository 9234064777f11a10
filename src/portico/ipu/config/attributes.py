"""The attributes of an ``IPUConfig``: what each may be, and what it is by default."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

OUTPUT_MODES = ("all", "sum", "final", "default")
_TRUE = ("true", "t", "1", "yes", "y", "on")
_FALSE = ("false", "f", "0", "no", "n", "off")


@dataclass(frozen=True)
class Attribute:
    """What an attribute may be.

    Args:
        kinds: Among ``int``, ``float``, ``bool``, ``str``, ``dict``, ``list[int]``, ``list[float]``, ``None``.
        default: Its value when nothing is said.
        least: Smallest number, also in a list.
        check: Raises for what else cannot be.
    """

    kinds: tuple[Any, ...]
    default: Any = None
    least: float | None = None
    check: Callable[[str, Any], None] | None = None

    def validate(self, name: str, value: Any) -> None:
        """Refuse a value.

        Raises:
            TypeError: If it is of another type.
            ValueError: If it is too small, or no such choice.
        """
        if not any(_is_of(value, kind) for kind in self.kinds):
            allowed = " or ".join(_word(kind) for kind in self.kinds)
            raise TypeError(
                f"Setting `IPUConfig` attribute: `{name}` to {value!r} of type {type(value).__name__} failed; it has "
                f"to be {allowed}."
            )
        if value is None:
            return
        if self.least is not None and isinstance(value, list):
            if any(item < self.least for item in value):
                raise ValueError(f"`IPUConfig` attribute `{name}` must have all elements >= {self.least}: {value}.")
        elif self.least is not None and value < self.least:
            raise ValueError(f"`IPUConfig` attribute `{name}` must be >= {self.least}; got {value}.")
        if self.check is not None:
            self.check(name, value)

    def parse(self, name: str, text: str) -> Any:
        """Read a value from a text such as ``4``, ``true`` or ``[1 2]``, by the types the attribute may have.

        Raises:
            ValueError: If it can be read as none of them.
        """
        for kind in sorted(self.kinds, key=_PARSERS.index):
            try:
                return _parse(text.strip(), kind)
            except ValueError:
                continue
        allowed = " or ".join(_word(kind) for kind in self.kinds)
        raise ValueError(f"`{text}` cannot be read as the value of `{name}`, which has to be {allowed}.")


def _check_output_mode(name: str, value: str) -> None:
    if value not in OUTPUT_MODES:
        raise ValueError(f"`IPUConfig` attribute `{name}` must be one of {', '.join(OUTPUT_MODES)}; got {value!r}.")


def _check_splits(name: str, value: list[int]) -> None:
    used = [index for index, splits in enumerate(value) if splits]
    if not used:
        raise ValueError(f"`IPUConfig` attribute `{name}` must have atleast 1 split; got {value}.")
    if used != list(range(used[0], used[-1] + 1)):
        raise ValueError(f"`IPUConfig` attribute `{name}` must have its splits on consecutive IPUs; got {value}.")


_COUNT = Attribute((int,), 1, 1)
_SWITCH = Attribute((bool,), False)
_FACTOR = Attribute((int, None), None, 1)
_SPLITS = Attribute((list[int], None), None, 0, _check_splits)
_KWARGS = Attribute((dict, None), None)

# An attribute with a twin has another value for inference, under the name `inference_<name>`.
TWINS: Mapping[str, Attribute] = {
    "layers_per_ipu": Attribute((list[int],), [-1], -1),
    "ipus_per_replica": Attribute((int,), None, 1),
    "matmul_proportion": Attribute((float, list[float]), 0.2, 0),
    "replication_factor": _COUNT,
    "device_iterations": _COUNT,
    "gradient_accumulation_steps": _COUNT,
    "embedding_serialization_factor": _FACTOR,
    "serialized_embedding_splits_per_ipu": _SPLITS,
    "projection_serialization_factor": _FACTOR,
    "serialized_projection_splits_per_ipu": _SPLITS,
    "parallelize_kwargs": _KWARGS,
}
# Inference never accumulates, so there is nothing to set.
_WITHOUT_INFERENCE_VALUE = ("gradient_accumulation_steps",)
SINGLE: Mapping[str, Attribute] = {
    "optimizer_state_offchip": _SWITCH,
    "replicated_tensor_sharding": _SWITCH,
    "enable_half_partials": Attribute((bool,), True),
    "recompute_checkpoint_every_layer": _SWITCH,
    "output_mode": Attribute((str,), "final", check=_check_output_mode),
    "seed": Attribute((int, None)),
    "auto_loss_scaling": _SWITCH,
    "executable_cache_dir": Attribute((str,), ""),
    "explicit_ir_inference": _SWITCH,
    "execute_encoder_on_cpu_for_generation": _SWITCH,
}
ATTRIBUTES: Mapping[str, Attribute] = {
    **TWINS,
    **{f"inference_{name}": kind for name, kind in TWINS.items() if name not in _WITHOUT_INFERENCE_VALUE},
    **SINGLE,
}


def _is_of(value: Any, kind: Any) -> bool:
    if kind is None:
        return value is None
    if kind in (list[int], list[float]):
        return isinstance(value, list) and all(_is_of(item, kind.__args__[0]) for item in value)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, kind)


def _word(kind: Any) -> str:
    return "None" if kind is None else str(kind) if kind in (list[int], list[float]) else kind.__name__


# In the order in which they are tried: whatever else it may be, a text is a str.
_PARSERS = [None, bool, int, float, list[int], list[float], dict, str]


def _parse(text: str, kind: Any) -> Any:
    if kind is None:
        return _choose(text.lower() in ("none", "null"), None)
    if kind is bool:
        word = text.lower()
        return _choose(word in (*_TRUE, *_FALSE), word in _TRUE)
    if kind in (list[int], list[float]):
        inner = _choose(text.startswith("[") and text.endswith("]"), text[1:-1])
        return [kind.__args__[0](item) for item in re.split(r"[\s,]+", inner.strip()) if item]
    if kind is dict:
        raise ValueError("dicts have no short form")
    return kind(text)


def _choose(is_readable: bool, value: Any) -> Any:
    if not is_readable:
        raise ValueError
    return value
