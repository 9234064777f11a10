"""The `poptorch` surface that portico uses, computed by torch on the CPU.

It follows `poptorch`'s semantics (batch layout, accumulation, frozen shapes and options, device memory and device
random numbers apart from the host's, pipeline rules), so that what is wrong on IPUs is wrong here. It does not
reproduce time, memory limits, half-precision partials or stochastic rounding.
"""

from portico.ipu.emulator import optim
from portico.ipu.emulator.beam_search import ctc_beam_search_decoder
from portico.ipu.emulator.blocks import BeginBlock, Block, BlockFunction, removeBlocks
from portico.ipu.emulator.compile_hooks import Attribute, NameScope, registerPostCompileHook, registerPreCompileHook
from portico.ipu.emulator.convolutions import MultiConv, MultiConvPartialsType, MultiConvPlanType
from portico.ipu.emulator.custom_arguments import ICustomArgParser, registerCustomArgParser
from portico.ipu.emulator.custom_ops import custom_op, register_custom_op
from portico.ipu.emulator.data.accessor import AsynchronousDataAccessor
from portico.ipu.emulator.data.dataloader import DataLoader
from portico.ipu.emulator.enums import (
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
from portico.ipu.emulator.errors import ConfigFileError, Error, RecoverableError, UnrecoverableError
from portico.ipu.emulator.executor.executor import PoplarExecutor
from portico.ipu.emulator.executor.factories import inferenceModel, trainingModel
from portico.ipu.emulator.exporting import load
from portico.ipu.emulator.faults import Faults, injected
from portico.ipu.emulator.hardware import (
    hasMLIRSupportOnPlatform,
    ipuHardwareIsAvailable,
    ipuHardwareVersion,
    setLogLevel,
)
from portico.ipu.emulator.host_ops import CPU
from portico.ipu.emulator.install import install, installed
from portico.ipu.emulator.ops import (
    cond,
    dynamic_slice,
    dynamic_update,
    for_loop,
    identity_loss,
    ipu_print_tensor,
    nop,
    recomputationCheckpoint,
    serializedMatMul,
    set_available_memory,
    set_overlap_for_input,
    set_overlap_for_output,
)
from portico.ipu.emulator.options.execution import (
    ParallelPhasedExecution,
    Phase,
    PipelinedExecution,
    SerialPhasedExecution,
    ShardedExecution,
    Stage,
)
from portico.ipu.emulator.options.locations import TensorLocationSettings
from portico.ipu.emulator.options.options import Options
from portico.ipu.emulator.points import fps, nearest
from portico.ipu.emulator.running import isRunningOnIpu
from portico.ipu.emulator.settings import EmulatorSettings, configured, settings
from portico.ipu.emulator.version import VERSION

__version__ = VERSION

__all__ = [
    "CPU",
    "AsynchronousDataAccessor",
    "Attribute",
    "AutoStage",
    "BeginBlock",
    "Block",
    "BlockFunction",
    "CommGroupType",
    "ConfigFileError",
    "ConnectionType",
    "DataLoader",
    "DataLoaderMode",
    "EmulatorSettings",
    "Error",
    "Faults",
    "HalfFloatCastingBehavior",
    "ICustomArgParser",
    "Liveness",
    "MatMulSerializationMode",
    "MeanReductionStrategy",
    "MultiConv",
    "MultiConvPartialsType",
    "MultiConvPlanType",
    "NameScope",
    "Options",
    "OutputMode",
    "OverlapMode",
    "ParallelPhasedExecution",
    "Phase",
    "PipelinedExecution",
    "PoplarExecutor",
    "RecoverableError",
    "ReductionType",
    "SerialPhasedExecution",
    "ShardedExecution",
    "SharingStrategy",
    "Stage",
    "SyncPattern",
    "TensorLocationSettings",
    "UnrecoverableError",
    "VariableRetrievalMode",
    "cond",
    "configured",
    "ctc_beam_search_decoder",
    "custom_op",
    "dynamic_slice",
    "dynamic_update",
    "for_loop",
    "fps",
    "hasMLIRSupportOnPlatform",
    "identity_loss",
    "inferenceModel",
    "injected",
    "install",
    "installed",
    "ipuHardwareIsAvailable",
    "ipuHardwareVersion",
    "ipu_print_tensor",
    "isRunningOnIpu",
    "load",
    "nearest",
    "nop",
    "optim",
    "recomputationCheckpoint",
    "registerCustomArgParser",
    "registerPostCompileHook",
    "registerPreCompileHook",
    "register_custom_op",
    "removeBlocks",
    "serializedMatMul",
    "setLogLevel",
    "set_available_memory",
    "set_overlap_for_input",
    "set_overlap_for_output",
    "settings",
    "trainingModel",
]
