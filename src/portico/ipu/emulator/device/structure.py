"""What Python was when a model was compiled."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

# Everything that decides which operations a module runs, beside its tensors.
_COMPILED_ATTRIBUTES = ("training", "_modules", "_forward_hooks", "_forward_pre_hooks")


class CompiledStructure:
    """Classes, children, hooks and training flags of a model at compilation.

    Python runs once on a real device, so what changes on the host later is not in the program.

    Args:
        module: The model.
    """

    def __init__(self, module: nn.Module) -> None:
        self._compiled = [(part, type(part), _attributes(part)) for part in module.modules()]

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Bring the modules back to what they were, and leave them as they are now afterwards."""
        changed = [
            (part, part.__class__, {name: part.__dict__[name] for name in attributes})
            for part, kind, attributes in self._compiled
            if type(part) is not kind or any(part.__dict__[name] != value for name, value in attributes.items())
        ]
        kinds = {id(part): (kind, attributes) for part, kind, attributes in self._compiled} if changed else {}
        for part, _, _ in changed:
            kind, attributes = kinds[id(part)]
            part.__class__ = kind
            part.__dict__.update(attributes)
        try:
            yield
        finally:
            for part, kind, attributes in changed:
                part.__class__ = kind
                part.__dict__.update(attributes)


def _attributes(module: nn.Module) -> dict[str, Any]:
    return {
        name: value.copy() if isinstance(value := module.__dict__[name], dict) else value
        for name in _COMPILED_ATTRIBUTES
    }
