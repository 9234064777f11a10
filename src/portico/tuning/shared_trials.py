"""The trials of an optuna study that several processes train together: the first one chooses, the others follow."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from portico.distributed.processes import ending_together

if TYPE_CHECKING:
    from portico.contract import Facade


@contextmanager
def trials_shared_by(facade: "Facade") -> Iterator[Callable[[Any], None]]:
    """Give the first process the function that shows a trial to the others, and tell them when there are no more.

    Args:
        facade: The trainer; its ``hp_space`` asks a trial for its parameters.
    """

    def share(trial: Any) -> None:
        import optuna

        if _is_alone(facade):
            return
        # A trial has its parameters when it was asked for them.
        facade.hp_space(trial)
        facade.accelerator.from_first_process(optuna.trial.FixedTrial(trial.params, trial.number))

    # After a failure nobody is left to be told: the others failed alike, or are ended.
    with ending_together():
        yield share
        facade.accelerator.from_first_process(None)


def follow_trials(
    facade: "Facade", train: Callable[["Facade", Any], Any], *, survived: type | tuple[type, ...] = ()
) -> None:
    """Train the trials that the first process chooses, until it chooses no more.

    Args:
        facade: The trainer.
        train: Trains one trial.
        survived: Exceptions that end a trial and not the search, as ``catch`` of ``Study.optimize``.
    """
    import optuna

    survived = survived if isinstance(survived, tuple) else (survived,)
    while (trial := facade.accelerator.from_first_process(None)) is not None:
        with suppress(optuna.TrialPruned, *survived):
            train(facade, trial)


def _is_alone(facade: "Facade") -> bool:
    return bool(facade.accelerator.num_processes == 1)
