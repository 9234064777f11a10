"""What training arguments need of this installation and machine, asked before any work."""

from typing import Any

import torch
from transformers.utils.import_utils import is_liger_kernel_available

from portico.errors import InputError, MissingPackageError


def check_requirements(args: Any) -> None:
    """Refuse kernels and compilers that are not here.

    Raises:
        InputError: Names the field and what to install or set (an ``ImportError`` too where a package is missing).
    """
    if args.use_liger_kernel:
        _check_liger_kernel(args)
    if args.torch_compile:
        _check_compiler(args.torch_compile_backend)


def _check_liger_kernel(args: Any) -> None:
    if not is_liger_kernel_available():
        raise MissingPackageError(
            "`use_liger_kernel=True`, but liger-kernel is not installed; install it with `pip install liger-kernel`, "
            "or set `use_liger_kernel=False`."
        )
    if args.device.type == "cpu":
        raise InputError(
            "`use_liger_kernel=True`, but liger-kernel has no kernels for the CPU, where the run is placed; set "
            "`use_liger_kernel=False`, or `use_cpu=False` on a machine with a GPU."
        )


def _check_compiler(backend: str) -> None:
    backends = torch.compiler.list_backends(exclude_tags=())
    if backend not in backends:
        raise InputError(
            f"`torch_compile_backend={backend!r}` is no compiler of this torch; set one of {', '.join(backends)}."
        )
