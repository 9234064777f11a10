"""Programs in files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from portico.ipu.emulator.errors import Error
from portico.ipu.emulator.executor.executor import PoplarExecutor
from portico.ipu.emulator.options.options import Options
from portico.ipu.emulator.version import VERSION


def load(filename: str | Path, edit_opts_fn: Callable[[Options], Any] | None = None) -> PoplarExecutor:
    """Return the program that an executor has saved; it is compiled by its first call.

    Args:
        filename: File that ``PoplarExecutor.save`` or ``compileAndExport`` wrote. Its content is unpickled: load only
            files of a source you trust.
        edit_opts_fn: Changes the options that were saved.

    Raises:
        Error: If another version of the emulator wrote it, or it holds no model.
    """
    content: dict[str, Any] = torch.load(filename, weights_only=False)
    if content["version"] != VERSION:
        raise Error(
            f"{filename} was written by version {content['version']}, and this is {VERSION}; a program can be loaded "
            "by the version that saved it only."
        )
    if content["model"] is None:
        raise Error(f"{filename} holds no model; save it with `export_model=True`.")
    options = content["options"].clone()
    if edit_opts_fn is not None:
        edit_opts_fn(options)
    program = PoplarExecutor(content["model"], options, content["training"], content["optimizer"])
    if content["rng_state"] is not None:
        program.rng_state = content["rng_state"]
    return program
