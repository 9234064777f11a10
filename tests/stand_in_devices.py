"""Two stand-ins for a GPU, as accelerators of Lightning.

torch's meta device computes nothing. Operations check devices, shapes and dtypes as on any accelerator: a tensor left
on the CPU cannot be mixed with tensors of the device, and reading a value back (``.item()``, ``bool(tensor)``,
``.cpu()``), for which a step would wait on a GPU, raises.

The device ``"standin"`` has values, on torch's backend for devices in Python. Its tensors lie in the memory of the
host, where every operation is done, so that results can be compared with the CPU's. What a GPU refuses is refused:
operations on tensors of both. What makes a step wait for a GPU, reading a value or copying to the CPU, is written down
in ``waits``. It is registered with torch for as long as the process lives: :func:`register` belongs in a process of
its own.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, ClassVar

import torch
from lightning.pytorch.accelerators import Accelerator
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

# ---- The meta device ----

DEVICE = torch.device("meta")


class MetaAccelerator(Accelerator):
    """Lightning's view of the device."""

    device: ClassVar[torch.device] = DEVICE

    def setup_device(self, device: torch.device) -> None:
        assert device == self.device

    def get_device_stats(self, device: Any) -> dict[str, Any]:
        return {}

    def teardown(self) -> None:
        """Nothing was allocated."""

    @staticmethod
    def parse_devices(devices: Any) -> list[int]:
        return [0]

    @classmethod
    def get_parallel_devices(cls, devices: Any) -> list[torch.device]:  # type: ignore[override]
        return [cls.device]

    @staticmethod
    def auto_device_count() -> int:
        return 1

    @staticmethod
    def is_available() -> bool:
        return True

    @classmethod
    def name(cls) -> str:  # type: ignore[override]
        return cls.device.type


class MetaStrategy(SingleDeviceStrategy):
    """Places a run on the device."""

    def __init__(self) -> None:
        super().__init__(device=DEVICE, accelerator=MetaAccelerator())


# ---- The device with values ----

NAME = "standin"
waits: list[str] = []
_aten = torch.ops.aten
# A GPU takes tensors of the CPU in these.
_TAKE_BOTH = (_aten.copy_.default, _aten._to_copy.default, _aten.index.Tensor, _aten.index_put_.default)
_libraries: list[torch.library.Library] = []


class StandInTensor(torch.Tensor):
    """A tensor of the device; ``held`` has its values."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> StandInTensor:
        made: StandInTensor = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=torch.device(NAME, 0),
        )
        made.held = held
        return made

    # Tensors that leave the device are no longer of this class.
    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(operation, *args, **(kwargs or {}))

    def __reduce_ex__(self, protocol: Any) -> Any:
        # As torch pickles tensors of devices that have no storage of torch's.
        parts = (self.held, self.dtype, str(self.device), self.requires_grad)
        return torch._utils._rebuild_device_tensor_from_cpu_tensor, parts

    def untyped_storage(self) -> Any:
        return self.held.untyped_storage()


class StandInAccelerator(MetaAccelerator):
    """Lightning's view of the device."""

    device = torch.device("cpu")


class StandInStrategy(SingleDeviceStrategy):
    """Places a run on the device."""

    def __init__(self) -> None:
        super().__init__(device=StandInAccelerator.device, accelerator=StandInAccelerator())


def register() -> None:
    """Make ``"standin"`` a device of torch."""
    _setup_privateuseone_for_python_backend(rename=NAME, backend_module=_Functions())
    StandInAccelerator.device = torch.device(NAME, 0)
    anything, known = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    anything.fallback(_run, "PrivateUse1")  # type: ignore[no-untyped-call]
    # `torch.tensor` copies without the subclass, which torch's fallback in Python cannot do.
    known.impl("copy_", lambda *args, **kwargs: _run(_aten.copy_.default, *args, **kwargs), "PrivateUse1")
    _libraries.extend([anything, known])
    # `torch.load(map_location="standin")` leaves tensors on the CPU: the device has no memory of its own.
    torch.serialization.register_package(
        0, lambda storage: None, lambda storage, location: storage if str(location).startswith(NAME) else None
    )


class _Functions:
    """``torch.standin``, of which torch asks what it asks of ``torch.cuda``."""

    def __init__(self) -> None:
        self.is_available = self.is_initialized = lambda: True
        self._is_in_bad_fork = lambda: False
        self.device_count, self.current_device = lambda: 1, lambda: 0
        self.manual_seed_all = lambda seed: None
        self.device = nullcontext
        self.get_amp_supported_dtype = lambda: [torch.bfloat16]


def _run(operation: Any, *args: Any, **kwargs: Any) -> Any:
    """Do ``operation`` on the values, and return tensors of the device."""
    tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
    if operation not in _TAKE_BOTH and any(not isinstance(one, StandInTensor) and one.dim() for one in tensors):
        raise RuntimeError(f"{operation}: expected all tensors to be on the same device, but found cpu and {NAME}")
    stays = isinstance(args[0], StandInTensor) if operation is _aten.copy_.default else bool(tensors)
    if kwargs.get("device") is not None:
        stays = torch.device(kwargs["device"]).type == NAME
        kwargs = {**kwargs, "device": torch.device("cpu")}
    if operation is _aten._local_scalar_dense.default or not stays:
        waits.append(str(operation))
    if "pin_memory" in kwargs:
        kwargs = {**kwargs, "pin_memory": None}
    given = {id(one.held): one for one in tensors if isinstance(one, StandInTensor)}
    args, kwargs = tree_map_only(StandInTensor, lambda tensor: tensor.held, (args, kwargs))
    made = operation(*args, **kwargs)
    if not stays:
        return made
    # Operations in place return what they were given.
    return tree_map_only(
        torch.Tensor, lambda held: given[id(held)] if id(held) in given else StandInTensor(held), made
    )
