"""Start the processes of a run, connect them, run trainer methods in them, and end them together.

torch's ``elastic_launch`` does not keep the promises of docs/scale.md (torch 2.13, two forked workers): an error
arrives as ``ChildFailedError``, not in its own type; a worker that exits with code 0 leaves the others waiting; and
workers that ignore signals outlive a SIGTERM to their parent by 30 seconds, and a killed parent until they finish by
themselves. Under ``ddp`` the user's script is itself the first process, while an agent is none of them.
"""

import json
import math
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import psutil
import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.multiprocessing.spawn import ProcessException

from portico.compat.accelerate import share_processes
from portico.compat.lightning import (
    forks_workers,
    launches_workers,
    process_group_timeout,
    quiet_lightning,
    relaunches_script,
    set_process_group_timeout,
)
from portico.compat.transformers import logger
from portico.errors import InputError, InputRuntimeError
from portico.trust.disk import write_bytes
from portico.trust.files import load_own, pickled, save_tensors, unpickled

if TYPE_CHECKING:
    from lightning.pytorch.strategies import Strategy
    from torch.distributed import ProcessGroup


# Child processes of this process; the launchers that hold them are dropped with their trainers.
_children: list[subprocess.Popen[bytes]] = []
_kills_children_on_error = False
_lost_children = False  # whether a failed run has killed the child processes
# Lightning sets these variables in the processes that it starts, and in their parent.
_VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "LOCAL_RANK", "WORLD_SIZE", "OMP_NUM_THREADS")
_variables_before: dict[str, str | None] = {}
_num_calls = 0
_SECONDS_TO_AGREE = 5.0
_TOLD_TOGETHER = 20


def count_launched_processes() -> tuple[int, int] | None:
    """Return how many processes torchrun, Ray or SLURM has started on this machine, and on how many machines.

    ``None`` if none of them has started this process: portico then starts the processes.

    Raises:
        InputError: If SLURM has started several processes and does not say how many on each machine.
    """
    if (here := os.environ.get("LOCAL_WORLD_SIZE")) is not None:
        # Ray does not say how many machines there are, and may have started fewer processes on some of them.
        machines = os.environ.get("GROUP_WORLD_SIZE") or int(os.environ.get("WORLD_SIZE", here)) // int(here)
        return int(here), max(int(machines), 1)
    # Lightning gives these names to shells, where SLURM's variables say nothing about the run.
    is_shell = SLURMEnvironment.job_name() in ("bash", "interactive")
    if "SLURM_NTASKS" not in os.environ or is_shell or is_batch_script():
        return None
    tasks = os.environ["SLURM_NTASKS"]
    on_each = os.environ.get("SLURM_NTASKS_PER_NODE", "1" if tasks == "1" else None)
    if on_each is None:
        raise InputError(
            f"SLURM has started {tasks} tasks, and SLURM_NTASKS_PER_NODE is not set; submit the job with "
            "`--ntasks-per-node`, one task for each device, instead of `--ntasks`."
        )
    return int(on_each), int(os.environ.get("SLURM_NNODES") or int(tasks) // int(on_each))


def is_batch_script() -> bool:
    """Return whether this is a batch script of SLURM itself: only srun starts tasks, and numbers them as a step."""
    return "SLURM_NTASKS" in os.environ and "SLURM_STEP_ID" not in os.environ


def connect(strategy: "Strategy") -> None:
    """Initialise the process group of ``strategy`` once; start the processes first where the strategy does so.

    ``"ddp"`` runs the script again for each process, at the first collective operation; ``torchrun`` and clusters have
    started all processes before.
    """
    if getattr(strategy, "world_size", 1) == 1 or launches_workers(strategy) or torch.distributed.is_initialized():
        return
    with quiet_lightning(), _time_to_start(strategy):
        _join_restarted(strategy)
        if relaunches_script(strategy):
            _refuse_second_start(strategy)
            _variables_before.update({name: os.environ.get(name) for name in _VARIABLES})
            with kill_children_on_error():
                launcher: Any = strategy.launcher
                with _quiet_children():
                    launcher.launch(lambda: _watch_children(launcher.procs))
                strategy.setup_environment()
        else:
            strategy.setup_environment()
    share_processes(strategy)


@contextmanager
def _quiet_children() -> Iterator[None]:
    """Start processes inside the block without the C++ warnings of torch, which the first process prints already."""
    if "TORCH_CPP_LOG_LEVEL" in os.environ:
        yield
        return
    os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"
    try:
        yield
    finally:
        del os.environ["TORCH_CPP_LOG_LEVEL"]


def _refuse_second_start(strategy: "Strategy") -> None:
    """Raise ``InputRuntimeError`` if new processes, which run the script from its start, would miss an earlier run."""
    environment = getattr(strategy, "cluster_environment", None)
    if _lost_children and environment is not None and not environment.creates_processes_externally:
        raise InputRuntimeError(
            "The processes of an earlier run with `strategy='ddp'` ended when it failed, and new ones would run the "
            "script from its start; train in a new process, start the script with `torchrun`, or set "
            "`strategy='ddp_spawn'`."
        )


# Processes import their packages at different speeds; `ddp_timeout` is for what they do together.
_TIME_TO_START = timedelta(minutes=10)


@contextmanager
def _time_to_start(strategy: "Strategy") -> Iterator[None]:
    """Inside the block, give the processes more time to connect than ``ddp_timeout``, which applies afterwards."""
    timeout: timedelta = process_group_timeout(strategy)
    if timeout >= _TIME_TO_START:
        yield
        return
    set_process_group_timeout(strategy, _TIME_TO_START)
    try:
        yield
    finally:
        set_process_group_timeout(strategy, timeout)
    limit_collectives([None], timeout)


# Meshes by shape, each with its process group: a mesh makes further groups, which live as long as that group.
_meshes: dict[tuple[Any, ...], tuple[Any, DeviceMesh]] = {}


def device_mesh(device: torch.device, shape: tuple[int, ...], axes: tuple[str, ...]) -> DeviceMesh:
    """Return the mesh of all processes, which are connected, made once for each process group."""
    world = torch.distributed.group.WORLD
    key = (device.type, shape, axes)
    if key not in _meshes or _meshes[key][0] is not world:
        _meshes[key] = world, init_device_mesh(device.type, shape, mesh_dim_names=axes)
    return _meshes[key][1]


def limit_collectives(groups: "Iterable[ProcessGroup | None]", timeout: timedelta) -> None:
    """Let a collective of ``groups`` take ``timeout``; ``None`` is the group of all processes."""
    # Torch 2.15 deprecates the private name for a public one, which 2.13 lacks.
    set_timeout = getattr(torch.distributed, "set_timeout", None) or distributed_c10d._set_pg_timeout
    for group in groups:
        set_timeout(timeout, group)


def _join_restarted(strategy: "Strategy") -> None:
    """Initialise the process group of processes that torchrun has restarted, under new keys of its store.

    Torch 2.13 keeps the store of torchrun's rendezvous, and with it the addresses of processes that have ended, to
    which the restarted processes try to connect. On several machines torchrun counts the restarts of each machine, and
    each may have another store, so that only a setting of torchrun helps.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if os.environ.get("GROUP_WORLD_SIZE") != "1":
        if os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0" and os.environ["RANK"] == "0":
            logger.warning(
                "`--max-restarts` of torchrun cannot restart processes on several machines as it is: torch gives them "
                "the addresses of those that are gone. Set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 where torchrun starts."
            )
        return
    if attempt == "0":
        return
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    timeout = process_group_timeout(strategy)
    connect_to: Any = torch.distributed.TCPStore  # type: ignore[attr-defined]  # public, but not in its `__all__`
    store = connect_to(host, port, world_size, is_master=False, timeout=timeout)
    backend = getattr(strategy, "process_group_backend", None)
    torch.distributed.init_process_group(
        backend or torch.distributed.get_default_backend_for_device(strategy.root_device),
        store=distributed_c10d.PrefixStore(f"attempt-{attempt}", store),
        rank=rank,
        world_size=world_size,
        timeout=timeout,
    )


def _watch_children(children: list[subprocess.Popen[bytes]]) -> None:
    """End this process if a process that it started fails before all are connected, or while this process hangs.

    Otherwise it would wait long to connect, and an exception does not interrupt a hang.
    """
    _children.extend(children)
    # Lightning's observer reads this list: it would kill this process without a message, even if that handles the
    # failure.
    children.clear()

    def watch() -> None:
        failed_at = math.inf
        is_connected = False
        while codes := [child.poll() for child in list(_children)]:
            is_connected = is_connected or torch.distributed.is_initialized()
            ended = [rank for rank, code in enumerate(codes, start=1) if code or not (is_connected or code is None)]
            if ended and not is_connected:
                _end_all(
                    f"Process {ended[0]} ended before the processes were connected; every process must call the same "
                    "methods of the trainer, and only print or write alone (`trainer.is_world_process_zero()`)."
                )
            failed_at = min(failed_at, time.monotonic()) if ended else math.inf
            if time.monotonic() > failed_at + _KILLED_AFTER:
                _end_all(_describe_exit(ended[0], codes[ended[0] - 1] or 0))
            time.sleep(1 if is_connected else 0.1)

    threading.Thread(target=watch, daemon=True, name="portico-children").start()


def _end_all(message: str) -> None:
    print(message, file=sys.stderr, flush=True)
    kill_children()
    for worker in multiprocessing.active_children():  # of data loaders
        worker.kill()
    os._exit(1)


def begin_call(strategy: "Strategy", call: str) -> None:
    """Connect the processes, and raise if another process has begun a different ``call``, for example "train".

    The collective operations of different calls would wait for each other until ``ddp_timeout``.

    Raises:
        InputRuntimeError: If the calls differ; the other processes end when this process does.
    """
    global _num_calls
    connect(strategy)
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return
    _num_calls += 1
    # The first process to arrive stores its call, and nobody waits for another.
    first = distributed_c10d._get_default_store().compare_set(f"portico/call/{_num_calls}", "", call).decode()
    if first != call:
        raise InputRuntimeError(
            f"Process {torch.distributed.get_rank()} calls `{call}` where another one calls `{first}`; call methods "
            "of the trainer on every process, with data of the same length, and only print or write alone "
            "(`trainer.is_world_process_zero()`)."
        )


class Declarations:
    """Ends a run whose processes do different things, which would wait for each other until ``ddp_timeout``.

    After each step a process declares what it does before the next one: log, evaluate, save, stop. It sends the
    others only what is out of the ordinary, and reads what they have sent only while a step takes long.
    """

    def __init__(self) -> None:
        # The last declarations that told something, by their number.
        self._declared: deque[tuple[int, str]] = deque(maxlen=_TOLD_TOGETHER)
        self._count = 0
        self._store: Any = None  # while other processes are watched
        self._ended = threading.Event()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Compare the declarations of all processes inside the block, if there are several."""
        is_connected = torch.distributed.is_available() and torch.distributed.is_initialized()
        if not is_connected or torch.distributed.get_world_size() == 1:
            yield
            return
        self._store = distributed_c10d._get_default_store()
        self._rank = torch.distributed.get_rank()
        self._key = f"portico/declared/{_num_calls}"
        threading.Thread(target=self._watch, daemon=True, name="portico-declarations").start()
        try:
            yield
        finally:
            self._ended.set()

    def declare(self, step: int, actions: Sequence[str]) -> None:
        """Say what this process does after ``step``, in the same order of calls on every process."""
        number = self._count + 1
        if actions and self._store is not None:
            told = f"{' and '.join(actions)} after step {step}"
            self._declared.append((number, told))
            # The last ones: this process may have told more by the time that another one reads it.
            self._store.set(f"{self._key}/{self._rank}", json.dumps(list(self._declared)))
        self._count = number

    def _compare(self, rank: int, theirs: dict[int, str]) -> None:
        """End all processes at the first declaration of this one and of process ``rank`` that differ."""
        own = dict(self._declared)
        # What both have passed, and neither has forgotten.
        known = [told for told in (own, theirs) if len(told) == _TOLD_TOGETHER]
        first, last = max((min(told) for told in known), default=0), min(self._count, max(theirs))
        for number in sorted({*own, *theirs}):
            if first <= number <= last and own.get(number) != theirs.get(number) and not self._ended.is_set():
                nothing = "goes on to the next step"
                _end_all(
                    f"Process {rank} {theirs.get(number, nothing)}, where process {self._rank} "
                    f"{own.get(number, nothing)}, so each would wait for the other; let callbacks set `control` and "
                    "arguments on every process, and give all processes data of the same length."
                )

    def _watch(self) -> None:
        seen = -1
        while not self._ended.wait(_SECONDS_TO_AGREE):
            if self._count != seen:
                seen = self._count
                continue
            for rank in range(torch.distributed.get_world_size()):
                key = f"{self._key}/{rank}"
                if rank == self._rank or not self._store.check([key]):
                    continue
                self._compare(rank, dict(json.loads(self._store.get(key))))


def connect_early(strategy: "Strategy") -> None:
    """Initialise the process group in a trainer's constructor, if all processes run already."""
    if not isinstance(getattr(strategy, "cluster_environment", None), LightningEnvironment | None):
        connect(strategy)


def connect_launched(strategy: "Strategy") -> None:
    """Initialise the process group of processes that torchrun has started, as transformers does with the arguments.

    Code between arguments and trainer, such as trl's constructors, waits for the others through accelerate's state.
    """
    if isinstance(getattr(strategy, "cluster_environment", None), TorchElasticEnvironment):
        connect(strategy)


def all_gather(strategy: "Strategy", tensor: torch.Tensor) -> torch.Tensor:
    """Stack the tensors of all processes of ``strategy``, without gradients; the shapes must be equal."""
    return torch.stack(_gather_parts(strategy, tensor))


def _gather_parts(strategy: "Strategy", tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensor of each process, in memory of its own."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return [part.clone() for part in strategy.all_gather(tensor)]
    tensor = tensor.detach().contiguous()
    parts = [torch.empty_like(tensor) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(parts, tensor)
    return parts


# Copying a larger tensor would take longer than a collective call of its own.
_MOST_BYTES_TOGETHER = 1 << 18


def all_gather_several(strategy: "Strategy", tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Stack each of ``tensors`` of all processes as :func:`all_gather` does; small ones share a collective call."""
    small = [tensor for tensor in tensors if tensor.nbytes <= _MOST_BYTES_TOGETHER]
    small.sort(key=torch.Tensor.element_size, reverse=True)  # so that each begins at a multiple of its size
    if len(small) < 2 or len({tensor.device for tensor in small}) > 1:
        return [all_gather(strategy, tensor) for tensor in tensors]
    # Copied: one number that was expanded counts as contiguous, but has a stride of 0 and so no view as bytes.
    flat = (tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1) for tensor in small)
    packed = torch.cat([tensor.view(torch.uint8) for tensor in flat])
    sizes = [tensor.nbytes for tensor in small]
    parts = [part.split(sizes) for part in _gather_parts(strategy, packed)]
    together = {
        id(tensor): torch.stack([part[number].view(tensor.dtype).reshape(tensor.shape) for part in parts])
        for number, tensor in enumerate(small)
    }
    return [together[id(tensor)] if id(tensor) in together else all_gather(strategy, tensor) for tensor in tensors]


def disconnect() -> None:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@contextmanager
def kill_children_on_error() -> Iterator[None]:
    """Kill the child processes when the block fails: they would wait for this process forever.

    The process group and the environment are restored. Processes that a launcher such as torchrun started are left
    to it, but resumed if they are stopped. Only the outermost of nested blocks does this: code in it may handle an
    error that all processes raise.

    Raises:
        RuntimeError: Instead of an error about a broken connection, if a child process ended first.
    """
    global _kills_children_on_error, _lost_children
    if _kills_children_on_error:
        yield
        return
    _kills_children_on_error = True
    try:
        yield
    except BaseException as error:
        loses_connection = _LOST_CONNECTION.search(str(error)) is not None
        is_connected = torch.distributed.is_available() and torch.distributed.is_initialized()
        # Under "ddp" the parent of the first process is a shell; the parent of an orphan has the id 1.
        is_launched = is_connected and not _children and os.getppid() > 1
        if is_launched and (loses_connection or _TIMED_OUT.search(str(error))):
            _wake_stopped_processes()
        ended = _find_failed_child() if loses_connection else None
        if kill_children():
            _lost_children = True
            _forget_group()
        if ended is not None:
            raise RuntimeError(_describe_exit(*ended)) from None
        if _TIMED_OUT.search(str(error)):
            error.add_note("Another process hangs, or needs more seconds for something than `ddp_timeout` allows.")
        raise
    finally:
        _kills_children_on_error = False


# Messages of gloo and NCCL when a process is gone.
_LOST_CONNECTION = re.compile(r"Connection (closed|reset)|Broken pipe|remote process exited|Socket (Timeout|closed)")

_TIMED_OUT = re.compile(r"Timed out waiting \d+ms|Application timeout caused pair closure")


def _wake_stopped_processes() -> None:
    """Resume stopped processes of the launcher, such as a sibling or its data loader workers, to handle its SIGTERM.

    torchrun waits for 30 s before it kills a process that does not.
    """
    # The launcher may have just ended.
    with suppress(psutil.Error):
        for process in psutil.Process(os.getppid()).children(recursive=True):
            with suppress(psutil.Error):
                if process.status() == psutil.STATUS_STOPPED:
                    process.resume()


def _family(pid: int) -> list[psutil.Process]:
    """Return the process and its descendants in the same session, such as data loader workers; descendants first.

    Processes in another session, such as the services of experiment trackers, are meant to outlive their parent.
    """
    try:
        process = psutil.Process(pid)
        return [child for child in process.children(recursive=True) if _session(child.pid) == _session(pid)] + [
            process
        ]
    except psutil.NoSuchProcess:
        return []


def _session(pid: int) -> int | None:
    with suppress(OSError):
        return os.getsid(pid)
    return None


def _kill(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.Error):
            process.kill()


def _find_failed_child() -> tuple[int, int] | None:
    """Return rank and exit code of a started process that failed; the connection breaks before the process is gone."""
    end = time.monotonic() + 15
    while _children and time.monotonic() < end:
        for rank, child in enumerate(_children, start=1):
            if child.poll():
                return rank, child.returncode
        time.sleep(0.1)
    return None


def _describe_exit(rank: int, code: int) -> str:
    return f"Process {rank} ended with exit code {code}; its error is above, unless a signal killed it (below 0)."


def _forget_group() -> None:
    """Destroy the group of processes that are gone, and remove what Lightning has set in the environment."""
    # NCCL would wait for them.
    if torch.distributed.is_initialized() and torch.distributed.get_backend() == "gloo":
        disconnect()
    _restore_variables(_variables_before)


def _restore_variables(before: dict[str, str | None]) -> None:
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def kill_children() -> bool:
    """Kill the child processes, and return whether there were any.

    SIGTERM does not reach a process that waits in a collective.
    """
    had_children = bool(_children)
    for child in _children:
        if child.poll() is None:
            _kill(_family(child.pid))  # a data loader worker that hangs would not notice
            child.wait()
    _children.clear()
    return had_children


@contextmanager
def first_process_first(strategy: "Strategy", *, is_first: bool) -> Iterator[None]:
    """Run the block on one process before the others, if they are connected.

    Otherwise the processes run one after another anyway: the first starts the others when it first needs them.
    """
    together = torch.distributed.is_available() and torch.distributed.is_initialized()
    if together and not is_first:
        strategy.barrier("first_process_first")
    try:
        yield
    finally:
        if together and is_first:
            strategy.barrier("first_process_first")


# ---- Workers that a strategy launches for each call ----

T = TypeVar("T")

_inside_worker = False


class _Launcher(Protocol):
    """A launcher of Lightning that starts workers for each call."""

    procs: list[Any]

    def launch(self, function: Callable[..., object], *args: object) -> object: ...


def is_in_worker() -> bool:
    """Return whether this process is a worker launched by :func:`call_in_workers`."""
    return _inside_worker


def call_in_workers(strategy: "Strategy", call: Callable[[], T]) -> T:
    """Run ``call`` in the worker processes of ``strategy``, and return the result of the first worker.

    ``strategy`` must launch workers for each call (:func:`~portico.compat.lightning.launches_workers`), and ``call``
    and its result must be picklable. An error in a worker is raised here.
    """
    launcher = cast(_Launcher, strategy.launcher)
    # As bytes: the launcher would share the memory of tensors it pickles, and all workers would train one copy.
    sent = call if forks_workers(strategy) else pickled(call)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        before = {name: os.environ.get(name) for name in _VARIABLES}
        try:
            with _watched_workers(launcher, folder) as ended:
                launcher.launch(_work, sent, name)
        except ProcessException as failed:
            error, origin = _cause(launcher.procs, folder, ended)
            raise failed if error is None else error from origin
        except KeyboardInterrupt:
            for worker in launcher.procs:
                _kill(_family(worker.pid))
            raise
        finally:
            _restore_variables(before)
        # The result goes to a file: the launcher reads its queue after the workers have ended, but they wait until the
        # queue is read.
        result: T = load_own(folder / "result")
    return result


def _work(call: bytes | Callable[[], object], name: str) -> None:
    global _inside_worker
    _inside_worker = True
    folder = Path(name)
    rank = os.environ["LOCAL_RANK"]
    threading.Thread(target=_exit_with_parent, args=(os.getppid(),), daemon=True, name="portico-parent").start()
    try:
        with kill_children_on_error():
            work = unpickled(call) if isinstance(call, bytes) else call
            result = work()
            if rank == "0":
                save_tensors(result, folder / "result")
    except (Exception, SystemExit) as error:
        write_bytes(folder / f"error-{rank}", _pickle_error(error, rank))
        # Torch takes a process that ends with 0 for one that has finished.
        raise SystemExit(1) from None
    write_bytes(folder / f"finished-{rank}", b"")


class WorkerTraceback(Exception):
    """The traceback of an error in a worker, as the cause of the same error in the process that started it."""


def _pickle_error(error: BaseException, rank: str) -> bytes:
    """Return ``error`` and where it was raised; a ``RuntimeError`` if it cannot be pickled."""
    lines = traceback.format_exception(error)[: -len(traceback.format_exception_only(error))]
    origin = WorkerTraceback(f"in process {rank}\n{''.join(lines)}".rstrip())
    with suppress(Exception):
        unpickled(content := pickled((error, origin)))  # some can be pickled but not unpickled
        return content
    return pickled((RuntimeError(f"{type(error).__name__}: {error}"), origin))


# Seconds from a failure until the other workers are interrupted, which shuts down loggers and semaphores, and killed.
_INTERRUPTED_AFTER = 1.0
_KILLED_AFTER = 5.0


def _exit_with_parent(parent: int) -> None:
    """End this worker when the process that started it is gone.

    Torch lets the system send SIGINT then, but processes that a shell script runs in the background ignore it.
    """
    while os.getppid() == parent:
        time.sleep(1)
    time.sleep(_KILLED_AFTER)
    _kill(_family(os.getpid()))


@contextmanager
def _watched_workers(launcher: _Launcher, folder: Path) -> Iterator[set[int]]:
    """End all workers a few seconds after a worker has failed; yield the indices of the workers that were ended.

    Torch waits for 30 s from the end of the first worker, and forever for one that does not end after its error.
    """
    launcher.procs = []
    ended: set[int] = set()
    family: set[psutil.Process] = set()
    is_over = threading.Event()

    def watch() -> None:
        failed_at = math.inf
        while not is_over.wait(0.1):
            workers = dict(enumerate(launcher.procs))
            running = {index for index, worker in workers.items() if not wait([worker.sentinel], timeout=0)}
            finished = {index for index in workers if (folder / f"finished-{index}").exists()}
            raised = {index for index in workers if (folder / f"error-{index}").exists()}
            if raised or len(running | finished) < len(workers):
                failed_at = min(failed_at, time.monotonic())
                for index in running:
                    family.update(_family(workers[index].pid))
            if time.monotonic() > failed_at + _INTERRUPTED_AFTER:
                for index in running - raised - finished - ended:
                    for signum in (signal.SIGCONT, signal.SIGINT):
                        with suppress(OSError):
                            os.kill(workers[index].pid, signum)
                ended.update(running)
            if time.monotonic() > failed_at + _KILLED_AFTER:
                _kill(family)

    watcher = threading.Thread(target=watch, daemon=True, name="portico-workers")
    watcher.start()
    try:
        yield ended
    finally:
        is_over.set()
        watcher.join()
        # Descendants of a worker that torch ended by SIGTERM.
        workers = {worker.pid for worker in launcher.procs}
        _kill(process for process in family if process.pid not in workers)


def _cause(workers: list[Any], folder: Path, ended: set[int]) -> tuple[BaseException | None, WorkerTraceback | None]:
    """Return the error that ended the workers: the original one, not an error that followed from it, if possible."""
    files = sorted(folder.glob("error-*"), key=lambda file: file.stat().st_mtime_ns)
    errors = [unpickled(file.read_bytes()) for file in files]
    lost = [found for found in errors if _LOST_CONNECTION.search(str(found[0]))]
    timed_out = [found for found in errors if _TIMED_OUT.search(str(found[0]))]
    # Torch sends SIGTERM to those that are left, as it may come from a scheduler.
    terminated = [found for found in errors if _is_exit_by_signal(found[0], signal.SIGTERM)]
    if causes := [found for found in errors if found not in lost + timed_out + terminated]:
        return causes[0]
    for index, worker in enumerate(workers):
        left_word = any((folder / f"{word}-{index}").exists() for word in ("error", "finished"))
        if not (left_word or index in ended or worker.exitcode == -signal.SIGTERM):
            return RuntimeError(_describe_exit(index, worker.exitcode)), None
    return next(iter(terminated + timed_out + lost), (None, None))


def _is_exit_by_signal(error: BaseException, number: signal.Signals) -> bool:
    """Return whether an error ends a process as the signal would end a program."""
    return isinstance(error, SystemExit) and error.code == 128 + number
