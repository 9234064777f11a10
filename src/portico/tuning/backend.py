"""What a library for hyperparameter search must do for the facade."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from portico.contract import Facade


class SearchBackend(ABC):
    """One library that chooses hyperparameters, trial by trial.

    Attributes:
        name: Its name in ``hyperparameter_search(backend=...)``.
        requirement: What ``pip install`` takes to install it.
        takes_several_directions: Whether it optimises several objectives at once.
        spans_processes: Whether a trial may be trained by several processes.
    """

    name: ClassVar[str]
    requirement: ClassVar[str]
    takes_several_directions: ClassVar[bool] = False
    spans_processes: ClassVar[bool] = False

    @abstractmethod
    def is_available(self) -> bool:
        """Tell whether the library is installed."""

    @abstractmethod
    def default_hp_space(self, trial: Any) -> dict[str, Any]:
        """Return the search space of transformers."""

    @abstractmethod
    def hyperparameters(self, facade: "Facade", trial: Any) -> Mapping[str, Any]:
        """Return the training arguments that ``trial`` chooses."""

    @abstractmethod
    def run_id(self, trial: Any) -> Any:
        """Return what the library calls the running trial: its folder bears this name."""

    @abstractmethod
    def report(self, facade: "Facade", trial: Any, step: int, metrics: dict[str, Any]) -> None:
        """Tell the library the objective of an evaluation during training, which may end the trial.

        Args:
            facade: The trainer; its ``objective`` was just computed.
            trial: The running trial.
            step: Optimizer steps made.
            metrics: Metrics of the evaluation.
        """

    @abstractmethod
    def run(self, facade: "Facade", n_trials: int, direction: Any, **options: Any) -> Any:
        """Run the whole search.

        Args:
            facade: The trainer.
            n_trials: Trials to run.
            direction: ``"minimize"`` or ``"maximize"``, or a list of them.
            **options: What the library itself takes.

        Returns:
            The ``BestRun``; a list of them for several objectives.
        """
