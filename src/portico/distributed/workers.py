"""Calls that run in worker processes, which some strategies (``"ddp_spawn"``, in notebooks) make for each call."""

import pickle
import tempfile
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import torch

from portico.lightning_internals import forks_workers, makes_workers

if TYPE_CHECKING:
    from portico.contract import Facade

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound="Facade")

_inside_worker = False


def inside_worker() -> bool:
    """Tell whether this process is such a worker."""
    return _inside_worker


def in_every_process(method: Callable[Concatenate[F, P], R]) -> Callable[Concatenate[F, P], R]:
    """Make a method of the facade run in workers, where the strategy makes them for each call.

    Their first process sends back the result, the model's weights and the attributes that ``_carried_from_workers``
    names; other changes that user code makes in a worker, as to its callbacks, stay there.
    """

    @wraps(method)
    def run(facade: F, *args: P.args, **kwargs: P.kwargs) -> R:
        if not makes_workers(facade.lightning_trainer.strategy):
            return method(facade, *args, **kwargs)
        return _run_in_workers(facade, run, args, kwargs)

    # mypy minds the name of the first argument, which nobody gives.
    return run  # type: ignore[return-value]


def _run_in_workers(facade: Any, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    strategy = facade.lightning_trainer.strategy
    call: Any = (facade, run, args, kwargs)
    if not forks_workers(strategy):
        # As bytes: what the launcher pickles itself it shares, and all processes would train one set of weights.
        call = pickle.dumps(call)
    with tempfile.TemporaryDirectory() as folder:
        # In a file: the launcher reads its queue when the workers have ended, and they would wait for that.
        outcome = Path(folder) / "outcome.pt"
        try:
            strategy.launcher.launch(_work, call, str(outcome))
        except KeyboardInterrupt:
            for worker in strategy.launcher.procs:
                worker.kill()
            raise
        result, attributes, weights = torch.load(outcome, weights_only=False)
    facade.__dict__.update(attributes)
    if weights is None:
        # A search gives up the model of its last trial.
        facade.model = facade.model_wrapped = None
    else:
        facade.model.load_state_dict(weights)
    return result


def _work(call: Any, outcome: str) -> None:
    global _inside_worker
    _inside_worker = True
    facade, run, args, kwargs = pickle.loads(call) if isinstance(call, bytes) else call
    facade._enter_worker()
    result = run(facade, *args, **kwargs)
    if facade.args.process_index == 0:
        attributes = {name: getattr(facade, name) for name in facade._carried_from_workers}
        torch.save((result, attributes, _weights(facade.model)), outcome)
    facade.accelerator.wait_for_everyone()


def _weights(model: torch.nn.Module | None) -> dict[str, torch.Tensor] | None:
    return None if model is None else {name: tensor.cpu() for name, tensor in model.state_dict().items()}
