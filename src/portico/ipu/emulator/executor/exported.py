"""Programs that write themselves into files."""

from abc import abstractmethod
from pathlib import Path
from typing import Any

import torch
from torch import nn

from portico.ipu.emulator.executor.device_side import DeviceSide
from portico.ipu.emulator.version import VERSION

# Name of a program's file where only the folder is given.
DEFAULT_NAME = "model.poptorch"


class ExportedProgram(DeviceSide):
    """How a program is written into a file, which ``poptorch.load`` reads."""

    _model: nn.Module
    _training: bool

    @abstractmethod
    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile for arguments like these."""

    @property
    @abstractmethod
    def optimizer(self) -> torch.optim.Optimizer | None:
        """The user's optimizer."""

    def compileAndExport(self, filename: str | Path, *args: Any, export_model: bool = True, **kwargs: Any) -> None:
        """Compile for arguments like these, and write the program as :meth:`save` does."""
        self.compile(*args, **kwargs)
        self.save(filename, export_model=export_model)

    def save(self, filename: str | Path, export_model: bool = True, save_rng_state: bool = True) -> None:
        """Write the program into a file.

        Args:
            filename: The file, whose folder is made; or a folder, for ``model.poptorch`` in it.
            export_model: Write the model too, without which nothing can be loaded.
            save_rng_state: Write the random state of the device too, from which a loaded program goes on.

        Raises:
            Error: If the model is not compiled.
        """
        self._compiled_memory()
        file = Path(filename)
        file = file / DEFAULT_NAME if file.is_dir() else file
        file.parent.mkdir(parents=True, exist_ok=True)
        content = {
            "version": VERSION,
            "model": self._model if export_model else None,
            "options": self._options,
            "training": self._training,
            "optimizer": self.optimizer,
            "rng_state": self.rng_state if save_rng_state else None,
        }
        torch.save(content, file)
