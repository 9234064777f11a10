"""What a program has on the devices: IPUs, weights, random streams."""

from portico.ipu.emulator.device.memory import DeviceMemory
from portico.ipu.emulator.device.pool import Hold
from portico.ipu.emulator.device.randomness import DeviceRandomness
from portico.ipu.emulator.enums import ConnectionType
from portico.ipu.emulator.errors import Error
from portico.ipu.emulator.executor.compilation import Compiled
from portico.ipu.emulator.executor.shared_weights import WeightReader
from portico.ipu.emulator.executor.timing import CallTimes
from portico.ipu.emulator.options.options import Options
from portico.ipu.emulator.settings import settings


class DeviceSide(CallTimes):
    """Holds IPUs, and weights and random streams on them, once the program is compiled.

    Args:
        options: Frozen options.
    """

    def __init__(self, options: Options) -> None:
        super().__init__(counts_cycles=options.log_cycle_count)
        self._options = options
        seed = options.random_seed
        self._randomness = DeviceRandomness(settings.seed if seed is None else seed)
        self._compiled: Compiled | None = None
        self._memory: DeviceMemory | None = None
        self._hold = Hold()
        self._reader = WeightReader()

    def isCompiled(self) -> bool:
        """Return whether the model was compiled."""
        return self._compiled is not None

    @property
    def compiled(self) -> Compiled:
        """What compiling brought to light.

        Raises:
            Error: If the model was not compiled.
        """
        self._compiled_memory()
        assert self._compiled is not None
        return self._compiled

    # Weights

    def copyWeightsToHost(self) -> None:
        """Overwrite the model's weights with the device's.

        Raises:
            Error: If the model was not compiled.
        """
        self._compiled_memory().download()

    def copyWeightsToHostIfNeeded(self) -> bool:
        """Tell that nothing is needed: the host has the device's weights after every training call."""
        return False

    def copyWeightsToDevice(self) -> None:
        """Overwrite the device's weights with the model's.

        Raises:
            Error: If the model was not compiled.
        """
        self._compiled_memory().upload()

    def copyNamedBuffersToDevice(self) -> None:
        """Overwrite the buffers that ``Options.updatableNamedBuffers`` names."""
        self._compiled_memory().upload_buffers(self._options.updatable_named_buffers)

    def _compiled_memory(self) -> DeviceMemory:
        if self._memory is None:
            raise Error("The model is not compiled yet, so no device holds its weights; call it, or `compile()`.")
        return self._memory

    @property
    def memory(self) -> DeviceMemory | None:
        """What the program has on the device, once it is compiled."""
        return self._memory

    # IPUs

    def isAttachedToDevice(self) -> bool:
        """Return whether the program holds its IPUs."""
        return self._hold.is_held

    def attachToDevice(self) -> None:
        """Take IPUs, and upload weights and optimizer state.

        Raises:
            Error: If the model is not compiled, or too few IPUs are free.
        """
        if self._compiled is None:
            raise Error("The model is not compiled yet; call it, or `compile()`, before it is attached to a device.")
        if self._options.connection_type is ConnectionType.Never:
            raise AssertionError("Trying to attach to an offline device (ConnectionType.Never).")
        if self._hold.is_held:
            raise Error("Device is already attached")
        self._hold.acquire(self._compiled.num_ipus)
        self._compiled_memory().upload()
        self._reader.note(self._compiled_memory())

    def detachFromDevice(self) -> None:
        """Give the IPUs back; weights and optimizer state stay on the host.

        Raises:
            Error: If the program holds none.
        """
        if self._compiled is None:
            raise Error("The model is not compiled yet, so it is attached to no device.")
        if not self._hold.is_held:
            raise Error("Device is not attached")
        self._hold.release()

    # Random streams

    @property
    def rng_state(self) -> list[int]:
        """Random state of the device; set it to continue its streams from there."""
        return self._randomness.state

    @rng_state.setter
    def rng_state(self, state: list[int]) -> None:
        self._randomness.state = state
