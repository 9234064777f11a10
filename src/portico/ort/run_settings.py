"""What the arguments say about ONNX Runtime, handed to the strategy of a run."""

from typing import Any

from portico.loop.run import TrainingRun
from portico.ort.strategy import RunsInORT
from portico.trainer import Trainer


class TellsStrategy(Trainer):
    """Configures the strategy, which Lightning makes of its name alone."""

    args: Any

    def _use_lightning_trainer(self, run: TrainingRun | None = None) -> None:
        super()._use_lightning_trainer(run)
        self._tell_strategy()

    def _tell_strategy(self) -> None:
        strategy = self.lightning_trainer.strategy
        if isinstance(strategy, RunsInORT):
            strategy.configure(
                strict=self.args.strict,
                evaluate_in_ort=self.args.evaluate_in_ort,
                settings=self.args.session_settings,
            )
