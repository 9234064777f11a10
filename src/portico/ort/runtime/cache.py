"""Graphs that were prepared before, on disk: a second start of the same run builds none."""

import logging
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import torch

from portico.errors import InputError
from portico.ort.runtime.session import load_session, make_session, optimize
from portico.ort.settings import SessionSettings

logger = logging.getLogger(__name__)

VARIABLE = "PORTICO_ORT_CACHE_DIR"
OFF = "off"


class SessionCache:
    """Keeps the models that ONNX Runtime has optimised, one file a model.

    Files are written under another name and renamed, so that processes that share a folder never see half of one; of
    two that prepare the same model the later one wins, with the same content.

    Args:
        settings: How ONNX Runtime runs, and where the folder is.

    Raises:
        InputError: If a folder that was asked for cannot be written.
    """

    def __init__(self, settings: SessionSettings) -> None:
        self._settings = settings
        self._folder = cache_folder(settings.cache_dir)

    def session(self, key: str, build: Callable[[], onnx.ModelProto], device: torch.device) -> tuple[Any, bool]:
        """Return a session, and whether it had to be built.

        Args:
            key: Equal for equal models only.
            build: Makes the model, if it is not there.
            device: Where the tensors are.

        Raises:
            InputError: If ONNX Runtime cannot run the model there.
        """
        if self._folder is None:
            return make_session(build(), self._settings, device), True
        path = self._folder / f"{device.type}-{key}.onnx"
        session = self._loaded(path, device)
        if session is not None:
            return session, False
        model = build()
        self._write(model, path, device)
        return self._loaded(path, device) or make_session(model, self._settings, device), True

    def _loaded(self, path: Path, device: torch.device) -> Any:
        if not path.is_file():
            return None
        try:
            return load_session(path, self._settings, device)
        except Exception as error:  # ONNX Runtime has an exception of its own for each kind of damage.
            reason = " ".join(str(error).split())
            logger.warning("%s in the cache of ONNX Runtime's graphs is broken and is built again: %s", path, reason)
            return None

    def _write(self, model: onnx.ModelProto, path: Path, device: torch.device) -> None:
        try:
            with tempfile.TemporaryDirectory(dir=path.parent, prefix=".new-") as folder:
                new = Path(folder) / path.name
                optimize(model, new, self._settings, device)
                new.replace(path)
        except OSError as error:
            # The folder could be written when the run began. A full disk is no reason to stop it now.
            logger.warning("The cache of ONNX Runtime's graphs cannot be written (%s); the run goes on.", error)


def cache_folder(chosen: str | Path | None) -> Path | None:
    """Return the folder of the cache, which is made; ``None`` for no cache.

    Args:
        chosen: A folder, or ``"off"``; ``None`` for that of the environment variable ``PORTICO_ORT_CACHE_DIR``, which
            may be ``off`` as well, or else ``~/.cache/portico/onnxruntime``.

    Raises:
        InputError: If a folder that was asked for cannot be written.
    """
    wanted = chosen or os.environ.get(VARIABLE)
    if str(wanted).lower() == OFF:
        return None
    base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    folder = Path(wanted or base / "portico" / "onnxruntime").expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        if wanted:
            name = "onnx_cache_dir" if chosen else VARIABLE
            raise InputError(
                f"`{name}={str(wanted)!r}` cannot be written ({error.strerror}); give a folder that can, or "
                f"`{name}='{OFF}'` to build the graphs anew at each start."
            ) from error
        logger.warning("%s cannot be written, so ONNX Runtime's graphs are built anew at each start.", folder)
        return None
    return folder
