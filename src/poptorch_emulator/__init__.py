"""PopTorch's API, computed by torch on the CPU; see the README.

It follows `poptorch`'s rules, so that what fails on IPUs fails here. Scripts that ``import poptorch`` find it after
:func:`install`.
"""

# ruff: noqa: F401 (the public names are what is imported here)

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from poptorch_emulator import optim
from poptorch_emulator.beam_search import ctc_beam_search_decoder
from poptorch_emulator.blocks import BeginBlock, Block, BlockFunction, removeBlocks
from poptorch_emulator.containers import ICustomArgParser, registerCustomArgParser
from poptorch_emulator.dataloader import AsynchronousDataAccessor, DataLoader
from poptorch_emulator.enums import (
    AutoStage,
    CommGroupType,
    ConnectionType,
    DataLoaderMode,
    HalfFloatCastingBehavior,
    Liveness,
    MatMulSerializationMode,
    MeanReductionStrategy,
    OutputMode,
    OverlapMode,
    ReductionType,
    SharingStrategy,
    SyncPattern,
    VariableRetrievalMode,
)
from poptorch_emulator.errors import ConfigFileError, Error, RecoverableError, UnrecoverableError
from poptorch_emulator.execution import (
    ParallelPhasedExecution,
    Phase,
    PipelinedExecution,
    SerialPhasedExecution,
    ShardedExecution,
    Stage,
)
from poptorch_emulator.executor import PoplarExecutor, inferenceModel, load, trainingModel
from poptorch_emulator.faults import Faults, injected
from poptorch_emulator.machine import (
    VERSION,
    EmulatorSettings,
    configured,
    hasMLIRSupportOnPlatform,
    ipuHardwareIsAvailable,
    ipuHardwareVersion,
    isRunningOnIpu,
    setLogLevel,
    settings,
)
from poptorch_emulator.ops import (
    CPU,
    Attribute,
    MultiConv,
    MultiConvPartialsType,
    MultiConvPlanType,
    NameScope,
    cond,
    custom_op,
    dynamic_slice,
    dynamic_update,
    for_loop,
    fps,
    identity_loss,
    ipu_print_tensor,
    nearest,
    nop,
    recomputationCheckpoint,
    register_custom_op,
    serializedMatMul,
    set_available_memory,
    set_overlap_for_input,
    set_overlap_for_output,
)
from poptorch_emulator.options import Options, TensorLocationSettings
from poptorch_emulator.program import registerPostCompileHook, registerPreCompileHook

__version__ = VERSION

_SUBMODULES = ("enums", "optim", "options")


def install() -> ModuleType:
    """Make ``import poptorch`` import the emulator, and return it; for tests, never in a program for hardware."""
    emulator = sys.modules["poptorch"] = sys.modules[__name__]
    for name in _SUBMODULES:
        sys.modules[f"poptorch.{name}"] = sys.modules[f"{__name__}.{name}"]
    return emulator


def uninstall() -> None:
    """Undo :func:`install`."""
    for name in ("poptorch", *(f"poptorch.{submodule}" for submodule in _SUBMODULES)):
        sys.modules.pop(name, None)


@contextmanager
def installed() -> Iterator[ModuleType]:
    """Make ``import poptorch`` import the emulator inside a ``with`` block."""
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "poptorch"}
    try:
        yield install()
    finally:
        uninstall()
        sys.modules.update(before)
