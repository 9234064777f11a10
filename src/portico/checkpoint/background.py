"""Write the large files of a checkpoint at once, or while training continues, from copies (``async_save``)."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

from portico.compat.annotations import Nested
from portico.compat.tree import map_tensors
from portico.distributed.processes import limit_collectives

State = TypeVar("State")
Job = Callable[["dist.ProcessGroup | None"], None]


class BackgroundWriter:
    """Runs the jobs that write a checkpoint: at once, or after :meth:`start` in a thread.

    A job gets the process group for its collectives: ``None``, the default group, if it runs at once. A job in the
    background gets another group, so that its collectives do not mix with the collectives of training.

    Attributes:
        copies: Whether jobs run while training continues, so that they need copies.
        folder: Checkpoint that the jobs write in the background.
    """

    def __init__(self) -> None:
        self.copies = False
        self.folder: Path | None = None
        self._jobs: list[Job] = []
        self._writing: Future[None] | None = None
        self._reservation: Future[None] | None = None
        self._storages: dict[int, torch.UntypedStorage] = {}
        # Memory of the last copies: getting new memory takes twice as long as copying into it.
        self._reusable: dict[int, torch.UntypedStorage] = {}
        self._groups: _BackgroundGroups | None = None

    @property
    def is_pending(self) -> bool:
        """Whether jobs were started, and :meth:`wait` has not returned since."""
        return self._writing is not None

    def reserve(self, state: Nested) -> None:
        """Allocate memory for copies of nested tensors in the background."""
        sizes: dict[int, int] = {}

        def note(tensor: torch.Tensor) -> None:
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()

        def allocate() -> None:
            for key, num_bytes in sizes.items():
                # The system provides memory when it is written to.
                self._reusable[key] = torch.empty(num_bytes, dtype=torch.uint8).fill_(0).untyped_storage()

        map_tensors(note, state)
        self._reservation = _run_in_thread(allocate, "checkpoint-memory")

    def collect(self) -> None:
        """Keep the jobs that follow until :meth:`start`, and copy what they write."""
        self._join_reservation()
        self._jobs, self.copies = [], True

    def run(self, job: Job) -> None:
        """Run ``job``, or keep it after :meth:`collect`."""
        if self.copies:
            self._jobs.append(job)
        else:
            job(None)

    def copy_state(self, state: State) -> State:
        """Return nested tensors as a job should hold them: copied to host memory if the job runs later.

        Tensors that share memory share the copy.
        """
        if not self.copies:
            return state
        return map_tensors(self._on_host, state)

    def start(self, folder: Path, finish: Job, *, uses_collectives: bool, timeout: timedelta | None = None) -> None:
        """Run the jobs that write ``folder``, then ``finish``, in a thread; all processes call this.

        Python waits for the thread before it exits. A collective of the jobs may take ``timeout``.
        """
        assert self.copies
        self.folder = folder
        jobs = [*self._jobs, finish]
        self._reusable = self._storages
        self.discard()
        group = None
        if uses_collectives:
            groups = self._background_groups()
            group = groups.everyone
            if timeout is not None:
                of_meshes = [group for mesh in groups.meshes.values() for group in mesh.get_all_groups()]
                limit_collectives([group, *of_meshes], timeout)

        def write() -> None:
            for job in jobs:
                job(group)

        self._writing = _run_in_thread(write, "checkpoint")

    def discard(self) -> None:
        """Forget the jobs kept since :meth:`collect`."""
        self._jobs = []
        self.copies = False
        self._storages = {}

    def release(self) -> None:
        """Free the memory of the copies, which is kept for the next checkpoint."""
        self._join_reservation()
        self._reusable = {}

    def wait(self) -> None:
        """Wait for the jobs; raise the error that ended them."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def __reduce__(self) -> tuple[type["BackgroundWriter"], tuple[()]]:
        # Nothing is pending in a process that unpickles a trainer.
        return BackgroundWriter, ()

    def _join_reservation(self) -> None:
        if self._reservation is not None:
            # Memory that could not be reserved is allocated when it is needed.
            wait([self._reservation])
            self._reservation = None

    def _on_host(self, tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, DTensor):
            mesh = self._background_groups().mesh_like(tensor.device_mesh)
            return DTensor.from_local(
                self._on_host(tensor.to_local()),
                mesh,
                tensor.placements,
                run_check=False,
                shape=tensor.shape,
                stride=tensor.stride(),
            )
        tensor = tensor.detach()
        storage = tensor.untyped_storage()
        key = storage.data_ptr()
        if key not in self._storages:
            kept = self._reusable.pop(key, None)
            if kept is None or kept.nbytes() != storage.nbytes():
                kept = torch.UntypedStorage(storage.nbytes(), device="cpu")
            self._storages[key] = kept.copy_(storage)
        empty = torch.empty(0, dtype=tensor.dtype)
        return empty.set_(self._storages[key], tensor.storage_offset(), tensor.size(), tensor.stride())

    def _background_groups(self) -> "_BackgroundGroups":
        world = dist.group.WORLD
        if self._groups is None or self._groups.world is not world:
            self._groups = _BackgroundGroups(world, dist.new_group(backend="gloo"))
        return self._groups


@dataclass
class _BackgroundGroups:
    """Process groups for collectives that run while training uses other groups."""

    world: dist.ProcessGroup | None
    """The process group of training; these groups have the same processes."""
    everyone: dist.ProcessGroup
    meshes: dict[tuple[int, ...], DeviceMesh] = field(default_factory=dict)
    """Meshes by their shapes."""

    def mesh_like(self, mesh: DeviceMesh) -> DeviceMesh:
        """Return a mesh of the same processes as ``mesh``, with other groups."""
        root = mesh._get_root_mesh()
        shape = tuple(root.mesh.shape)
        names = root.mesh_dim_names or ()
        if shape not in self.meshes:
            gloo: Any = dict.fromkeys(names, "gloo")  # typed as a dict of numbers or names
            self.meshes[shape] = init_device_mesh("cpu", shape, mesh_dim_names=names, backend_override=gloo)
        assert mesh.mesh_dim_names is not None
        return self.meshes[shape][mesh.mesh_dim_names]


def _run_in_thread(work: Callable[[], None], name: str) -> Future[None]:
    # An executor for each job: a forked process, which has no threads, can use this writer too.
    with_one_thread = ThreadPoolExecutor(1, thread_name_prefix=name)
    running = with_one_thread.submit(work)
    with_one_thread.shutdown(wait=False)
    return running
