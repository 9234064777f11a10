"""The programs of a model, of which one is attached at a time."""

from typing import Any

from portico.ipu import backend


class ProgramPool:
    """Keeps programs, and gives the IPUs to the one in use."""

    def __init__(self) -> None:
        self._programs: list[Any] = []

    def make_training(self, model: Any, options: Any, optimizer: Any) -> Any:
        """Make a program that trains ``model``."""
        return self._kept(backend.trainingModel(model, options=options, optimizer=optimizer))

    def make_inference(self, model: Any, options: Any) -> Any:
        """Make a program that runs ``model`` forward."""
        return self._kept(backend.inferenceModel(model, options=options))

    def ready(self, program: Any) -> Any:
        """Detach all other programs, attach this one if it was compiled, and return it."""
        for other in self._programs:
            if other is not program:
                _detach(other)
        if program.isCompiled() and not program.isAttachedToDevice():
            program.attachToDevice()
        return program

    def release(self) -> None:
        """Detach all programs."""
        for program in self._programs:
            _detach(program)

    def destroy(self) -> None:
        """Give up all programs; their models can be wrapped again."""
        for program in self._programs:
            program.destroy()
        self._programs.clear()

    def _kept(self, program: Any) -> Any:
        self._programs.append(program)
        return program


def _detach(program: Any) -> None:
    if program.isCompiled() and program.isAttachedToDevice():
        program.detachFromDevice()
