"""Write the large files of a checkpoint at once, or while training continues, from copies (``async_save``)."""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

from portico.compat.tree import map_tensors
from portico.distributed.processes import limit_collectives

Job = Callable[["dist.ProcessGroup | None"], None]


class BackgroundWriter:
    """Runs the jobs that write a checkpoint: at once, or after :meth:`start` in a thread of their own.

    A job gets the process group for its collectives: ``None``, the usual one, unless it runs in the background,
    where the collectives of the training would be mixed up with them.
    """

    def __init__(self) -> None:
        self._jobs: list[Job] | None = None
        self._thread: threading.Thread | None = None
        self._reservation: threading.Thread | None = None
        self._error: BaseException | None = None
        self.copies = False  # whether jobs run after training has continued, so that they need copies
        self._storages: dict[int, torch.UntypedStorage] = {}
        self._reusable: dict[int, torch.UntypedStorage] = {}  # of the last checkpoint; new memory costs twice the copy
        self._groups: tuple[Any, dist.ProcessGroup, dict[tuple[int, ...], DeviceMesh]] | None = None

    @property
    def is_pending(self) -> bool:
        """Whether jobs have been started, and not yet waited for."""
        return self._thread is not None

    def reserve(self, state: Any) -> None:
        """Get memory for copies of nested tensors in a thread: new memory takes longer than the first copy itself."""
        sizes: dict[int, int] = {}

        def note(tensor: torch.Tensor) -> None:
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()

        def work() -> None:
            for key, num_bytes in sizes.items():
                self._reusable[key] = torch.empty(num_bytes, dtype=torch.uint8).fill_(0).untyped_storage()

        map_tensors(note, state)
        self._reservation = threading.Thread(target=work, name="checkpoint-memory", daemon=True)
        self._reservation.start()

    def collect(self) -> None:
        """Keep the jobs that come until :meth:`start`, and copy what they write."""
        self._join_reservation()
        self._jobs, self.copies = [], True

    def run(self, job: Job) -> None:
        """Run ``job``, or keep it."""
        if self._jobs is None:
            job(None)
        else:
            self._jobs.append(job)

    def copied(self, state: Any) -> Any:
        """Return nested tensors as a job should hold them: copied to host memory if the job runs later.

        Tensors that share memory share the copy.
        """
        return map_tensors(self._on_host, state) if self.copies else state

    def start(self, *, uses_collectives: bool, finish: Job, timeout: timedelta | None = None) -> None:
        """Run the jobs, and ``finish`` after them, in a thread; all processes call this.

        A collective of theirs may take ``timeout``; the thread outlives the main one.
        """
        assert self._jobs is not None
        jobs = [*self._jobs, finish]
        self._reusable = self._storages
        self.discard()
        group = self._background_groups()[0] if uses_collectives else None
        if group is not None and timeout is not None:
            assert self._groups is not None
            meshes = self._groups[2].values()
            limit_collectives([group, *(one for mesh in meshes for one in mesh.get_all_groups())], timeout)

        def work() -> None:
            try:
                for job in jobs:
                    job(group)
            except BaseException as error:  # raised by `wait`
                self._error = error

        self._thread = threading.Thread(target=work, name="checkpoint", daemon=False)
        self._thread.start()

    def discard(self) -> None:
        """Forget the jobs kept since :meth:`collect`."""
        self._jobs, self.copies, self._storages = None, False, {}

    def release(self) -> None:
        """Free the memory of the copies, which is kept for the next checkpoint."""
        self._join_reservation()
        self._reusable = {}

    def _join_reservation(self) -> None:
        if self._reservation is not None:
            self._reservation.join()
            self._reservation = None

    def wait(self) -> None:
        """Wait for the jobs; raise the error that ended them."""
        if self._thread is not None:
            self._thread.join()
        error, self._thread, self._error = self._error, None, None
        if error is not None:
            raise error

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]  # nothing is pending in the process that unpickles a trainer

    def _on_host(self, tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, DTensor):
            local, mesh = self._on_host(tensor.to_local()), self._background_groups()[1](tensor.device_mesh)
            return DTensor.from_local(
                local, mesh, tensor.placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
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

    def _background_groups(self) -> tuple[dist.ProcessGroup, Callable[[DeviceMesh], DeviceMesh]]:
        """Return a group of all processes, and a function that makes a mesh like another of groups of its own."""
        world = dist.group.WORLD
        if self._groups is None or self._groups[0] is not world:
            self._groups = world, dist.new_group(backend="gloo"), {}
        _, group, meshes = self._groups

        def like(mesh: DeviceMesh) -> DeviceMesh:
            whole = mesh._get_root_mesh()
            key = tuple(whole.mesh.shape)
            names = whole.mesh_dim_names or ()
            if key not in meshes:
                own = dict.fromkeys(names, "gloo")
                meshes[key] = init_device_mesh("cpu", key, mesh_dim_names=names, backend_override=own)  # type: ignore[arg-type]
            return meshes[key][mesh.mesh_dim_names]  # type: ignore[index]

        return group, like
