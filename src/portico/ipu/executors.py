"""The training and the inference program of a model, of which one is attached at a time."""

from typing import Any

from portico.ipu import backend


class ExecutorPair:
    """Keeps two programs, and gives the IPUs to the one in use.

    Attributes:
        training: The program that trains; ``None`` until there is one.
        inference: The program that runs forward only; ``None`` until there is one.
    """

    def __init__(self) -> None:
        self.training: Any = None
        self.inference: Any = None

    def make_training(self, model: Any, options: Any, optimizer: Any) -> Any:
        """Make the program that trains ``model``."""
        self.training = backend.trainingModel(model, options=options, optimizer=optimizer)
        return self.training

    def make_inference(self, model: Any, options: Any) -> Any:
        """Make the program that runs ``model`` forward."""
        self.inference = backend.inferenceModel(model, options=options)
        return self.inference

    def ready(self, executor: Any) -> Any:
        """Detach the other program, attach this one if it was compiled, and return it."""
        other = self.inference if executor is self.training else self.training
        detach(other)
        if executor.isCompiled() and not executor.isAttachedToDevice():
            executor.attachToDevice()
        return executor

    def release(self) -> None:
        """Detach both programs."""
        detach(self.training)
        detach(self.inference)

    def destroy(self) -> None:
        """Give up both programs; their models can be wrapped again."""
        for executor in (self.training, self.inference):
            if executor is not None:
                executor.destroy()
        self.training = self.inference = None


def detach(executor: Any) -> None:
    """Take a program off its IPUs, if it is on any."""
    if executor is not None and executor.isCompiled() and executor.isAttachedToDevice():
        executor.detachFromDevice()
