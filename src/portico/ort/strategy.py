"""Which modules of a ``LightningModule`` run in ONNX Runtime: those that it calls."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.accelerators import Accelerator
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy, Strategy
from lightning.pytorch.trainer.states import TrainerFn
from torch import nn

from portico.errors import InputError
from portico.lightning_compat import set_root_device
from portico.ort.api import compile as compile_in_ort
from portico.ort.api import compiled_call, restore, running_in_torch
from portico.ort.report import Report, write_reports
from portico.ort.settings import SessionSettings, require

logger = logging.getLogger(__name__)


def called_parts(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield the submodules that are called as a whole, with their names.

    Children without parameters are left out: losses, and metrics of torchmetrics, which keep state in ways that a
    compiler would not see. Those that only hold others, such as an ``nn.ModuleList``, have no ``forward``: what they
    hold is called.

    Args:
        module: The module whose children are looked at.
        prefix: What their names begin with.
    """
    for name, part in module.named_children():
        if not any(True for _ in part.parameters()):
            continue
        if type(part).forward is nn.Module.forward:
            yield from called_parts(part, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", part


def warn_of_idle_parts(parts: Mapping[str, nn.Module], reports: Mapping[str, Report]) -> None:
    """Name the trainable parts that a training did not run in ONNX Runtime.

    Args:
        parts: Submodules by name.
        reports: What was built for them, under the same names.
    """
    for name, part in parts.items():
        is_trained = any(parameter.requires_grad for parameter in part.parameters())
        if is_trained and all(graph.kind != "forward" for graph in reports[name].graphs):
            logger.warning(
                "`%s` was not trained in ONNX Runtime: its `forward` was not called, or torch could not trace it, "
                "which the report would tell. Calls of the submodule itself run there; its other methods, and what "
                "a step computes beside it, run in torch.",
                name,
            )


# Accelerators, by Lightning's names, whose tensors ONNX Runtime can read.
_READABLE = ("ort", "cpu", "cuda")


def check_accelerator(accelerator: Any) -> None:
    """Refuse accelerators whose tensors ONNX Runtime cannot read.

    Raises:
        InputError: Names those that can be chosen.
    """
    if accelerator.name() not in _READABLE:
        raise InputError(
            f"ONNX Runtime does not compute on {type(accelerator).__name__}; set `accelerator='ort'`, 'cpu' or "
            "'cuda', or choose another strategy."
        )


def place_mixed_precision(plugin: Any, device: torch.device) -> None:
    """Let mixed precision cast where the model is; Lightning takes an accelerator that it does not know for CUDA.

    Raises:
        InputError: For float16 on a CPU, where Lightning has none.
    """
    if not isinstance(plugin, MixedPrecision) or device.type != "cpu":
        return
    if plugin.precision == "16-mixed":
        raise InputError(
            "`precision='16-mixed'` asks for float16, which Lightning does not mix on a CPU; set "
            "`precision='32-true'`, or `'bf16-mixed'` for a model whose operators ONNX Runtime has in bfloat16."
        )
    plugin.device = device.type


REPORT_NAME = "ort_report.json"


class RunsInORT(Strategy):
    """Mixed into a strategy, runs forward and backward of the parts of a ``LightningModule`` in ONNX Runtime.

    Args:
        args: Arguments of the strategy mixed into.
        strict: Refuse a model of which a part would run in torch.
        evaluate_in_ort: Run evaluation and prediction in ONNX Runtime too; otherwise in torch.
        settings: How ONNX Runtime runs.
        kwargs: Arguments of the strategy mixed into.

    Raises:
        InputError: If ONNX Runtime is not installed.
    """

    def __init__(
        self,
        *args: Any,
        strict: bool = False,
        evaluate_in_ort: bool = True,
        settings: SessionSettings | None = None,
        **kwargs: Any,
    ) -> None:
        require()
        super().__init__(*args, **kwargs)
        self.configure(strict=strict, evaluate_in_ort=evaluate_in_ort, settings=settings)
        self._compiled: dict[str, nn.Module] = {}

    def configure(self, *, strict: bool, evaluate_in_ort: bool, settings: SessionSettings | None) -> None:
        """Change what the constructor was given, before a run is set up; Lightning made this strategy from its name.

        Args: as the class.
        """
        self.strict = strict
        self.evaluate_in_ort = evaluate_in_ort
        self.settings = settings

    @property
    def reports(self) -> dict[str, Report]:
        """What ran where, by the names of the parts of the module that have parameters."""
        calls = {name: compiled_call(part) for name, part in self._compiled.items()}
        return {name: call.report for name, call in calls.items() if call is not None}

    def setup_environment(self) -> None:
        """Check what the run is placed on.

        Raises:
            InputError: If ONNX Runtime does not compute there, or not in the precision that is asked for.
        """
        check_accelerator(self.accelerator)
        super().setup_environment()
        place_mixed_precision(self.precision_plugin, self.root_device)

    def setup(self, trainer: pl.Trainer) -> None:
        """Place the model and hand its parts to ONNX Runtime."""
        assert self.lightning_module is not None
        for name, part in called_parts(self.lightning_module):
            self._compiled[name] = compile_in_ort(part, settings=self.settings, strict=self.strict)
        super().setup(trainer)

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
        """Let the model run in torch again; after a training say what ran where."""
        assert self.lightning_module is not None
        trainer = self.lightning_module.trainer
        if trainer.state.fn == TrainerFn.FITTING and trainer.is_global_zero:
            for name, report in self.reports.items():
                print(f"`{name}`: {report}")
            write_reports(self.reports, Path(trainer.default_root_dir) / REPORT_NAME)
            if not trainer.interrupted:
                warn_of_idle_parts(self._compiled, self.reports)
        for part in self._compiled.values():
            restore(part)
        self._compiled.clear()
        super().teardown()

    def _evaluated(self, step: Any, *args: Any, **kwargs: Any) -> Any:
        with ExitStack() as stack:
            for part in () if self.evaluate_in_ort else self._compiled.values():
                stack.enter_context(running_in_torch(part))
            return step(*args, **kwargs)


class ORTStrategy(RunsInORT, SingleDeviceStrategy):
    """Runs models in ONNX Runtime, in one process.

    Args:
        device: Device of the tensors.
        accelerator: Lightning accelerator.
        kwargs: See :class:`RunsInORT` and Lightning's ``SingleDeviceStrategy``.

    Raises:
        InputError: If ONNX Runtime is not installed.
    """

    strategy_name = "ort"

    def __init__(
        self, device: torch.device | str = "cpu", accelerator: Accelerator | None = None, **kwargs: Any
    ) -> None:
        super().__init__(device, accelerator, **kwargs)
        self._parallel_devices: list[torch.device] = []

    @property
    def parallel_devices(self) -> list[torch.device]:
        """The devices that were asked for, once Lightning has set them.

        Raises:
            InputError: If they are several.
        """
        return self._parallel_devices

    @parallel_devices.setter
    def parallel_devices(self, devices: list[torch.device]) -> None:
        if len(devices) > 1:
            raise InputError(
                f"`strategy='ort'` runs in one process, but {len(devices)} devices were asked for; set "
                "`strategy='ort_ddp'`, or `devices=1`."
            )
        self._parallel_devices = devices
        if devices:
            set_root_device(self, devices[0])


class ORTDDPStrategy(RunsInORT, DDPStrategy):
    """Runs models in ONNX Runtime, in several processes that average their gradients.

    Args: those of :class:`RunsInORT` and of Lightning's ``DDPStrategy``.
    """

    strategy_name = "ort_ddp"
