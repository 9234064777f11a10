"""Options of the programs of a Lightning run: given, of a configuration, or plain."""

from typing import Any

from portico.errors import InputError
from portico.ipu import backend
from portico.ipu.config import IPUConfig


class StrategyOptions:
    """Makes the options of programs, once for each stage.

    Args:
        ipu_config: Options are made of it, where none are given.
        training_opts: For training.
        inference_opts: For everything else.

    Attributes:
        num_replicas: Replicas, where nothing else says how many.
        accumulation: What Lightning was told to accumulate.
    """

    def __init__(self, ipu_config: IPUConfig | None, training_opts: Any, inference_opts: Any) -> None:
        self._config = ipu_config
        self._given = {True: training_opts, False: inference_opts}
        self._made: dict[bool, Any] = {}
        self.num_replicas = 1
        self.accumulation = 1

    def of(self, *, training: bool) -> Any:
        """Return the options of training programs, or of all others."""
        if training not in self._made:
            given = self._given[training]
            self._made[training] = self._new(training) if given is None else given
        return self._made[training]

    def take_accumulation(self, number: int) -> None:
        """Let the program accumulate what Lightning was told to.

        Raises:
            InputError: If the options say something else.
        """
        options = self._given[True]
        given = self._config.gradient_accumulation_steps if self._config is not None else 1
        if options is not None:
            given = options.Training.gradient_accumulation
        if given not in (1, number) or (options is not None and given != number):
            raise InputError(
                f"`accumulate_grad_batches={number}` and the options of the program, which accumulate {given}, "
                "contradict each other; set one of them."
            )
        self.accumulation = number

    def _new(self, training: bool) -> Any:
        if self._config is not None:
            options = self._config.to_options(for_inference=not training)
        else:
            options = backend.Options().autoRoundNumIPUs(True)
            options.replicationFactor(self.num_replicas)
        if training and self.accumulation > 1:
            options.Training.gradientAccumulation(self.accumulation)
        return options
