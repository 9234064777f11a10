"""The enumerations of `poptorch`, with its values."""

from enum import Enum, IntEnum

# How a loader prepares combined batches.
DataLoaderMode = Enum("DataLoaderMode", ["Sync", "Async", "AsyncRebatched"], start=0, module=__name__)

# Which micro-batch results a call returns.
OutputMode = IntEnum("OutputMode", ["Final", "EveryN", "All", "Sum", "Default"], start=0, module=__name__)

# How gradients, or the values of a loss, are combined.
ReductionType = IntEnum("ReductionType", ["Sum", "Mean", "NoReduction"], start=0, module=__name__)

# When a program connects to IPUs; `Never` only compiles.
ConnectionType = IntEnum("ConnectionType", ["Always", "OnDemand", "Never"], start=0, module=__name__)

# How IPUs wait for each other.
SyncPattern = IntEnum("SyncPattern", ["Full", "SinglePipeline", "ReplicaAndLadder"], start=0, module=__name__)

# How blocks become pipeline stages.
AutoStage = IntEnum("AutoStage", ["SameAsIpu", "AutoIncrement"], start=0, module=__name__)

# Whether a mean is updated while accumulating, or a sum is divided afterwards.
MeanReductionStrategy = IntEnum("MeanReductionStrategy", ["Running", "Post"], start=0, module=__name__)

# Which tensors a phased execution keeps on the chip.
Liveness = IntEnum(
    "Liveness",
    ["AlwaysLive", "OffChipAfterFwd", "OffChipAfterFwdNoOverlap", "OffChipAfterEachPhase"],
    start=0,
    module=__name__,
)

# Which replicas share a weight.
CommGroupType = IntEnum("CommGroupType", ["All", "Consecutive", "Orthogonal", "NoGrouping"], start=0, module=__name__)

# The result type of mixed half and single precision; only the first is still supported.
HalfFloatCastingBehavior = IntEnum(
    "HalfFloatCastingBehavior", ["FloatDowncastToHalf", "HalfUpcastToFloat"], start=0, module=__name__
)


class VariableRetrievalMode(IntEnum):
    """Which copies of a replicated weight are copied to the host."""

    OnePerGroup = 0
    AllReplicas = 2


class MatMulSerializationMode(Enum):
    """The dimension along which a matrix product is split."""

    InputChannels = "input_channels"
    ReducingDim = "reducing_dim"
    OutputChannels = "output_channels"
    Disabled = "none"


class SharingStrategy(Enum):
    """How an asynchronous accessor shares tensors between processes."""

    ForkServer = "forkserver"
    FileSystem = "file_system"
    SharedMemory = "shared_memory"


class OverlapMode(Enum):
    """Whether input and output overlap with computing."""

    NoOverlap = "no_overlap"
    OverlapAccumulationLoop = "overlap_accumulation_loop"
    OverlapDeviceIterationLoop = "overlap_device_iteration_loop"
