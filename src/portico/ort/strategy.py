"""Strategies that run the submodules of a ``LightningModule`` in ONNX Runtime."""

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import lightning.pytorch as pl
import torch
from lightning.pytorch.accelerators import Accelerator
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy, Strategy
from lightning.pytorch.trainer.states import TrainerFn
from torch import nn

from portico.compat.lightning import set_root_device
from portico.errors import InputError
from portico.ort.api import compile as compile_in_ort
from portico.ort.api import get_compiled_call, restore, running_in_torch
from portico.ort.report import Report
from portico.ort.settings import SessionSettings, require
from portico.trust.disk import write_text

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

REPORT_NAME = "ort_report.json"
# Accelerators, by Lightning's names, whose tensors ONNX Runtime can read.
_READABLE = ("ort", "cpu", "cuda")


def iterate_called_parts(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield the names, which begin with ``prefix``, and modules of the children that are called as a whole.

    Children without parameters are left out: losses, and torchmetrics, whose state a compiler would not see. For
    containers without a ``forward``, such as ``nn.ModuleList``, their own children are yielded.
    """
    for name, part in module.named_children():
        if not any(True for _ in part.parameters()):
            continue
        if type(part).forward is nn.Module.forward:
            yield from iterate_called_parts(part, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", part


class RunsInORT(Strategy):
    """A mixin for a strategy that runs the submodules of a ``LightningModule`` in ONNX Runtime.

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
        """Replace the arguments of the constructor before a run, for a strategy that Lightning made from its name."""
        self.strict = strict
        self.evaluate_in_ort = evaluate_in_ort
        self.settings = settings

    @property
    def reports(self) -> dict[str, Report]:
        """Reports by the name of the submodule."""
        calls = {name: get_compiled_call(part) for name, part in self._compiled.items()}
        return {name: call.report for name, call in calls.items() if call is not None}

    def setup_environment(self) -> None:
        """Check the accelerator and the precision.

        Raises:
            InputError: If ONNX Runtime does not support one of them.
        """
        accelerator: Any = self.accelerator
        if accelerator.name() not in _READABLE:
            raise InputError(
                f"ONNX Runtime does not compute on {type(accelerator).__name__}; set `accelerator='ort'`, 'cpu' or "
                "'cuda', or choose another strategy."
            )
        super().setup_environment()
        plugin = self.precision_plugin
        if isinstance(plugin, MixedPrecision) and self.root_device.type == "cpu":
            if plugin.precision == "16-mixed":
                raise InputError(
                    "`precision='16-mixed'` uses float16, which Lightning does not support on a CPU; set `precision="
                    "'32-true'`, or `'bf16-mixed'` for a model whose operators ONNX Runtime has in bfloat16."
                )
            # Lightning takes accelerators that it does not know for CUDA.
            plugin.device = "cpu"

    def setup(self, trainer: pl.Trainer) -> None:
        """Compile the submodules, before the wrapping of a parallel strategy."""
        assert self.lightning_module is not None
        for name, part in iterate_called_parts(self.lightning_module):
            self._compiled[name] = compile_in_ort(part, settings=self.settings, strict=self.strict)
        super().setup(trainer)

    def validation_step(self, *args: object, **kwargs: object) -> Any:
        return self._run_evaluation(super().validation_step, *args, **kwargs)

    def test_step(self, *args: object, **kwargs: object) -> Any:
        return self._run_evaluation(super().test_step, *args, **kwargs)

    def predict_step(self, *args: object, **kwargs: object) -> Any:
        return self._run_evaluation(super().predict_step, *args, **kwargs)

    def teardown(self) -> None:
        """Restore the submodules to torch; after training, print and write the reports."""
        assert self.lightning_module is not None
        trainer = self.lightning_module.trainer
        if trainer.state.fn == TrainerFn.FITTING and trainer.is_global_zero:
            for name, report in self.reports.items():
                print(f"`{name}`: {report}")
            path = Path(trainer.default_root_dir) / REPORT_NAME
            text = json.dumps({name: report.as_dict() for name, report in self.reports.items()}, indent=2)
            write_text(path, text + "\n")
            if not trainer.interrupted:
                self._warn_of_idle_parts()
        for part in self._compiled.values():
            restore(part)
        self._compiled.clear()
        super().teardown()

    def _warn_of_idle_parts(self) -> None:
        reports = self.reports
        for name, part in self._compiled.items():
            is_trained = any(parameter.requires_grad for parameter in part.parameters())
            if is_trained and all(graph.kind != "forward" for graph in reports[name].graphs):
                logger.warning(
                    "`%s` was not trained in ONNX Runtime: its `forward` was not called, or torch could not trace it, "
                    "which the report would show. Calls of the submodule itself run there; its other methods, and "
                    "other computations of a step, run in torch.",
                    name,
                )

    def _run_evaluation(self, step: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        with running_in_torch(*(() if self.evaluate_in_ort else self._compiled.values())):
            return step(*args, **kwargs)


class ORTStrategy(RunsInORT, SingleDeviceStrategy):
    """``SingleDeviceStrategy`` in ONNX Runtime, with the arguments of :class:`RunsInORT` and of Lightning's class."""

    strategy_name = "ort"

    def __init__(
        self, device: torch.device | str = "cpu", accelerator: Accelerator | None = None, **kwargs: Any
    ) -> None:
        super().__init__(device, accelerator, **kwargs)
        self._parallel_devices: list[torch.device] = []

    @property
    def parallel_devices(self) -> list[torch.device]:
        """The devices of the run, which Lightning sets; setting several raises an ``InputError``."""
        return self._parallel_devices

    @parallel_devices.setter
    def parallel_devices(self, devices: list[torch.device]) -> None:
        if len(devices) > 1:
            raise InputError(
                f"`strategy='ort'` runs in one process, but {len(devices)} devices are requested; set "
                "`strategy='ort_ddp'`, or `devices=1`."
            )
        self._parallel_devices = devices
        if devices:
            set_root_device(self, devices[0])


class ORTDDPStrategy(RunsInORT, DDPStrategy):
    """``DDPStrategy`` in ONNX Runtime, with the arguments of :class:`RunsInORT` and of Lightning's class."""

    strategy_name = "ort_ddp"
