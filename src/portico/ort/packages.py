"""The optional packages of this part of portico."""

from importlib.util import find_spec

from portico.errors import InputError


def is_available() -> bool:
    """Return whether ONNX Runtime can be imported."""
    return find_spec("onnxruntime") is not None and find_spec("onnx") is not None


def require() -> None:
    """Refuse to go on without ONNX Runtime.

    Raises:
        InputError: Names the extra to install.
    """
    missing = [name for name in ("onnxruntime", "onnx") if find_spec(name) is None]
    if missing:
        raise InputError(
            f"Running models in ONNX Runtime needs {' and '.join(missing)}, not installed here; install with "
            "`pip install 'portico[ort]'`, or choose another accelerator and strategy."
        )
