"""The steps of a Lightning run, as programs."""

from abc import abstractmethod
from typing import Any

from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.trainer.states import RunningStage
from torch import nn
from typing_extensions import override

from portico.errors import InputError
from portico.ipu.executors import ProgramPool
from portico.ipu.traced_step import TracedStep, mean_loss, step_arguments


class ProgramSteps(SingleDeviceStrategy):
    """Runs the step of a module, or the ``ipu_model`` that its step asks for, as a program."""

    _programs: ProgramPool
    # By the name of a step, and of `ipu_model` by whether it trains.
    _made: dict[str | bool, Any]

    @abstractmethod
    def _stage_options(self, *, training: bool) -> Any:
        """Return the options of training programs, or of all others."""

    @override
    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Train on a combined batch."""
        if self._keeps_steps_on_host():
            return super().training_step(*args, **kwargs)
        return mean_loss(self._run_traced("training_step", *args, **kwargs))

    @override
    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate a combined batch."""
        if self._keeps_steps_on_host():
            return super().validation_step(*args, **kwargs)
        return self._run_traced("validation_step", *args, **kwargs)

    @override
    def test_step(self, *args: Any, **kwargs: Any) -> Any:
        """Test a combined batch."""
        if self._keeps_steps_on_host():
            return super().test_step(*args, **kwargs)
        return self._run_traced("test_step", *args, **kwargs)

    @override
    def predict_step(self, *args: Any, **kwargs: Any) -> Any:
        """Predict on a combined batch."""
        if self._keeps_steps_on_host():
            return super().predict_step(*args, **kwargs)
        return self._run_traced("predict_step", *args, **kwargs)

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        """Run ``ipu_model`` of the module on a combined batch; in a training step, train it.

        Raises:
            InputError: If the module has no ``ipu_model``.
        """
        module = self.lightning_module
        model = getattr(module, "ipu_model", None)
        if model is None:
            raise InputError(
                "`strategy.execute` runs the module's `ipu_model`, and there is none; set `self.ipu_model` to the "
                "part of the module that runs on IPUs."
            )
        training = self._stage() is RunningStage.TRAINING
        return self._run(training, model, *args, training=training, **kwargs)

    def _run(self, key: str | bool, model: nn.Module, /, *args: Any, training: bool, **kwargs: Any) -> Any:
        if key not in self._made:
            self._made[key] = (
                self._programs.make_training(model, self._stage_options(training=True), self.optimizers[0])
                if training
                else self._programs.make_inference(model, self._stage_options(training=False))
            )
        program = self._programs.ready(self._made[key])
        if training:
            program.setOptimizer(self.optimizers[0])
        return program(*args, **kwargs)

    def _keeps_steps_on_host(self) -> bool:
        module = self.lightning_module
        return getattr(module, "ipu_model", None) is not None or getattr(module, "runs_steps_on_host", False)

    def _run_traced(self, step_name: str, batch: Any, *indices: int, **named: int) -> Any:
        assert self.lightning_module is not None
        training = step_name == "training_step"
        options = self._stage_options(training=training)
        number = options.device_iterations * options.replication_factor * options.Training.gradient_accumulation
        arguments = step_arguments(self.precision_plugin.convert_input(batch), (*indices, *named.values()), number)
        step = TracedStep(self.lightning_module, step_name)
        return self._run(step_name, step, *arguments, training=training)

    def _stage(self) -> RunningStage | None:
        module = self.lightning_module
        assert module is not None
        return module.trainer.state.stage
