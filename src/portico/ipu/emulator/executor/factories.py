"""``trainingModel`` and ``inferenceModel``."""

from typing import Any

import torch
from torch import nn

from portico.ipu.emulator.executor.executor import PoplarExecutor
from portico.ipu.emulator.options.options import Options


def trainingModel(
    model: Any, options: Options | None = None, optimizer: torch.optim.Optimizer | None = None
) -> PoplarExecutor:
    """Return an executor that trains ``model`` with ``optimizer`` (SGD with a rate of 0.01 by default).

    Raises:
        RuntimeError: If another executor trains the model already.
    """
    return PoplarExecutor(_inner(model), options, True, optimizer)


def inferenceModel(model: Any, options: Options | None = None) -> PoplarExecutor:
    """Return an executor that runs ``model`` forward."""
    return PoplarExecutor(_inner(model), options, False)


def _inner(model: Any) -> nn.Module:
    inner: nn.Module = model.model if isinstance(model, PoplarExecutor) else model
    return inner
