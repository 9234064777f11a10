from contextlib import ExitStack
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.accelerators import Accelerator
from lightning.pytorch.plugins import CheckpointIO, Precision
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import nn

from portico.ort.compiling import compile as compile_in_ort
from portico.ort.compiling import restore, running_in_torch
from portico.ort.packages import require
from portico.ort.runtime.session import SessionSettings


class ORTStrategy(SingleDeviceStrategy):
    """Runs forward and backward of the modules of a ``LightningModule`` in ONNX Runtime.

    Args:
        device: Device of the tensors.
        accelerator: Lightning accelerator.
        checkpoint_io: Lightning plugin.
        precision_plugin: Lightning plugin.
        strict: Refuse a model of which a part would run in torch.
        evaluate_in_ort: Run evaluation and prediction in ONNX Runtime too; otherwise in torch.
        settings: How ONNX Runtime runs.

    Raises:
        MissingPackageError: If ONNX Runtime is not installed.
    """

    strategy_name = "ort"

    def __init__(
        self,
        device: torch.device | str = "cpu",
        accelerator: Accelerator | None = None,
        checkpoint_io: CheckpointIO | None = None,
        precision_plugin: Precision | None = None,
        *,
        strict: bool = False,
        evaluate_in_ort: bool = True,
        settings: SessionSettings | None = None,
    ) -> None:
        require()
        super().__init__(device, accelerator, checkpoint_io, precision_plugin)
        self.strict = strict
        self.evaluate_in_ort = evaluate_in_ort
        self.settings = settings
        self._compiled: list[nn.Module] = []

    def setup(self, trainer: pl.Trainer) -> None:
        """Place the model and hand its parts to ONNX Runtime."""
        super().setup(trainer)
        assert self.lightning_module is not None
        for part in self.lightning_module.children():
            # Losses and metrics of torchmetrics keep state in ways that a compiler would not see.
            if any(True for _ in part.parameters()):
                self._compiled.append(compile_in_ort(part, settings=self.settings, strict=self.strict))

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate a batch where the strategy was told to."""
        return self._evaluated(super().validation_step, *args, **kwargs)

    def test_step(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate a batch where the strategy was told to."""
        return self._evaluated(super().test_step, *args, **kwargs)

    def predict_step(self, *args: Any, **kwargs: Any) -> Any:
        """Predict a batch where the strategy was told to."""
        return self._evaluated(super().predict_step, *args, **kwargs)

    def teardown(self) -> None:
        """Let the model run in torch again."""
        for part in self._compiled:
            restore(part)
        self._compiled.clear()
        super().teardown()

    def _evaluated(self, step: Any, *args: Any, **kwargs: Any) -> Any:
        if self.evaluate_in_ort:
            return step(*args, **kwargs)
        with ExitStack() as stack:
            for part in self._compiled:
                stack.enter_context(running_in_torch(part))
            return step(*args, **kwargs)
