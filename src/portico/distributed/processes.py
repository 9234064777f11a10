"""Start the processes of a run, connect them, run trainer methods in them, and end them together."""

import os
import pickle
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment

from portico.accelerate_compat import share_processes
from portico.lightning_compat import forks_workers, launches_workers, quiet_lightning, relaunches_script

if TYPE_CHECKING:
    from lightning.pytorch.strategies import Strategy

    from portico.trainer import Trainer


# Processes that this one started; the launchers that hold them are dropped with their trainers.
_children: list[subprocess.Popen[bytes]] = []
_kills_children_on_error = False


def connect(strategy: "Strategy") -> None:
    """Initialise the process group of ``strategy`` once; start the processes first where the strategy does so.

    ``"ddp"`` runs the script again for each process, at the first collective operation; ``torchrun`` and clusters have
    started all processes before.
    """
    if getattr(strategy, "world_size", 1) == 1 or launches_workers(strategy) or torch.distributed.is_initialized():
        return
    with quiet_lightning():
        if relaunches_script(strategy):
            launcher: Any = strategy.launcher
            launcher.launch(strategy.setup_environment)
            _children.extend(launcher.procs)
        else:
            strategy.setup_environment()
    share_processes(strategy)


def connect_early(strategy: "Strategy") -> None:
    """Initialise the process group in a trainer's constructor, if all processes run already."""
    if not isinstance(getattr(strategy, "cluster_environment", None), LightningEnvironment | None):
        connect(strategy)


def all_gather(strategy: "Strategy", tensor: torch.Tensor) -> torch.Tensor:
    """Stack the tensors of all processes of ``strategy``, which have one shape, without gradients."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return strategy.all_gather(tensor)
    tensor = tensor.detach().contiguous()
    parts = [torch.empty_like(tensor) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(parts, tensor)
    return torch.stack(parts)


def disconnect() -> None:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@contextmanager
def kill_children_on_error() -> Iterator[None]:
    """Kill the processes that this one started when the block fails: they would wait for it forever.

    Only the outermost of nested blocks does so: the code in it may handle an error that all processes raise.
    """
    global _kills_children_on_error
    if _kills_children_on_error:
        yield
        return
    _kills_children_on_error = True
    try:
        yield
    except BaseException:
        kill_children()
        raise
    finally:
        _kills_children_on_error = False


def kill_children() -> None:
    """Kill the processes that this one started; SIGTERM does not reach one that waits in a collective."""
    for child in _children:
        if child.poll() is None:
            # Lightning's observer of the processes would kill this one for any other code.
            child.returncode = 0
            os.kill(child.pid, signal.SIGKILL)
            os.waitpid(child.pid, 0)
    _children.clear()


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


P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound="Trainer")

_inside_worker = False


def inside_worker() -> bool:
    """Return whether this process is a worker launched by :func:`run_in_workers`."""
    return _inside_worker


def run_in_workers(method: Callable[Concatenate[F, P], R]) -> Callable[Concatenate[F, P], R]:
    """Make a method of the trainer run in worker processes, if the strategy launches them for each call.

    The first worker sends back the result, the model's weights and the attributes in ``_carried_from_workers``; other
    changes that user code makes in a worker, for example to callbacks, are lost.
    """

    @wraps(method)
    def run(trainer: F, *args: P.args, **kwargs: P.kwargs) -> R:
        if not launches_workers(trainer.lightning_trainer.strategy):
            return method(trainer, *args, **kwargs)
        return _run_in_workers(trainer, run, args, kwargs)

    # mypy compares the name of the first argument, which is never passed by keyword.
    return run  # type: ignore[return-value]


def _run_in_workers(trainer: "Trainer", run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    strategy: Any = trainer.lightning_trainer.strategy
    call: Any = (trainer, run, args, kwargs)
    if not forks_workers(strategy):
        # As bytes: the launcher would share the memory of tensors it pickles, and all workers would train one copy.
        call = pickle.dumps(call)
    with tempfile.TemporaryDirectory() as folder:
        # In a file: the launcher reads its queue after the workers have ended, but they wait until it is read.
        outcome = Path(folder) / "outcome.pt"
        try:
            strategy.launcher.launch(_work, call, str(outcome))
        except KeyboardInterrupt:
            for worker in strategy.launcher.procs:
                worker.kill()
            raise
        result, attributes, weights = torch.load(outcome, weights_only=False)
    trainer.__dict__.update(attributes)
    if weights is None:
        # A hyperparameter search released the model of its last trial.
        trainer.model = trainer.model_wrapped = None  # type: ignore[assignment]
    else:
        trainer.model.load_state_dict(weights)
    return result


def _work(call: bytes | tuple[Any, ...], outcome: str) -> None:
    global _inside_worker
    _inside_worker = True
    trainer, run, args, kwargs = pickle.loads(call) if isinstance(call, bytes) else call
    trainer._enter_worker()
    result = run(trainer, *args, **kwargs)
    if trainer.args.process_index == 0:
        attributes = {name: getattr(trainer, name) for name in trainer._carried_from_workers}
        state = trainer.model.state_dict() if trainer.model is not None else None
        weights = state and {name: tensor.cpu() for name, tensor in state.items()}
        torch.save((result, attributes, weights), outcome)
    trainer.accelerator.wait_for_everyone()
