"""The enumerations of `poptorch`, with its values."""

from enum import Enum, IntEnum


class DataLoaderMode(Enum):
    """How a loader prepares combined batches."""

    Sync = 0
    Async = 1
    AsyncRebatched = 2


class OutputMode(IntEnum):
    """Which micro-batch results a call returns."""

    Final = 0
    EveryN = 1
    All = 2
    Sum = 3
    Default = 4


class ReductionType(IntEnum):
    """How gradients, or the values of a loss, become one."""

    Sum = 0
    Mean = 1
    NoReduction = 2


class ConnectionType(IntEnum):
    """When a program connects to IPUs; ``Never`` only compiles."""

    Always = 0
    OnDemand = 1
    Never = 2


class SyncPattern(IntEnum):
    """How IPUs wait for each other."""

    Full = 0
    SinglePipeline = 1
    ReplicaAndLadder = 2


class AutoStage(IntEnum):
    """How blocks become pipeline stages."""

    SameAsIpu = 0
    AutoIncrement = 1


class MeanReductionStrategy(IntEnum):
    """Whether a mean is kept while accumulating, or divided out afterwards."""

    Running = 0
    Post = 1


class MatMulSerializationMode(Enum):
    """The dimension along which a matrix product is cut."""

    InputChannels = "input_channels"
    ReducingDim = "reducing_dim"
    OutputChannels = "output_channels"
    Disabled = "none"


class SharingStrategy(Enum):
    """How an asynchronous accessor hands over tensors."""

    ForkServer = "forkserver"
    FileSystem = "file_system"
    SharedMemory = "shared_memory"


class Liveness(IntEnum):
    """Which tensors a phased execution keeps on the chip."""

    AlwaysLive = 0
    OffChipAfterFwd = 1
    OffChipAfterFwdNoOverlap = 2
    OffChipAfterEachPhase = 3


class OverlapMode(Enum):
    """Whether input and output overlap with computing."""

    NoOverlap = "no_overlap"
    OverlapAccumulationLoop = "overlap_accumulation_loop"
    OverlapDeviceIterationLoop = "overlap_device_iteration_loop"


class CommGroupType(IntEnum):
    """Which replicas share a weight."""

    All = 0
    Consecutive = 1
    Orthogonal = 2
    NoGrouping = 3


class VariableRetrievalMode(IntEnum):
    """Which copies of a replicated weight come back to the host."""

    OnePerGroup = 0
    AllReplicas = 2


class HalfFloatCastingBehavior(IntEnum):
    """What a mix of half and single precision becomes; only the first is still supported."""

    FloatDowncastToHalf = 0
    HalfUpcastToFloat = 1
