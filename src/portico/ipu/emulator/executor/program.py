"""A compiled program at work: micro-batches, gradients, weight updates."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from portico.ipu.emulator.device.gradients import GradientAccumulator
from portico.ipu.emulator.device.half import half_arithmetic
from portico.ipu.emulator.device.loss_scaling import AutomaticLossScaling
from portico.ipu.emulator.device.memory import DeviceMemory
from portico.ipu.emulator.device.optimizer import DeviceOptimizer
from portico.ipu.emulator.device.randomness import DeviceRandomness
from portico.ipu.emulator.device.structure import CompiledStructure
from portico.ipu.emulator.enums import MeanReductionStrategy, ReductionType
from portico.ipu.emulator.executor.layout import BatchLayout, MicroBatch, map_structure
from portico.ipu.emulator.executor.outputs import OutputCollector
from portico.ipu.emulator.faults import active_faults
from portico.ipu.emulator.options.options import Options
from portico.ipu.emulator.running import running
from portico.ipu.emulator.tracing.position import PipelinePosition
from portico.ipu.emulator.tracing.trace import ProgramTrace

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
LossOf = Callable[[Any], Tensor]


class Program:
    """What the devices run.

    Args:
        module: The model, whose own objects are run.
        options: Frozen options, with an output mode.
        memory: The device's weights.
        randomness: The device's random streams.
        structure: The model as it was compiled.
        layout: The combined batch.
    """

    def __init__(
        self,
        module: nn.Module,
        options: Options,
        *,
        memory: DeviceMemory,
        randomness: DeviceRandomness,
        structure: CompiledStructure,
        layout: BatchLayout,
    ) -> None:
        self._module = module
        self._options = options
        self._memory = memory
        self._randomness = randomness
        self._structure = structure
        self._layout = layout

    def infer(self, arguments: Arguments) -> Any:
        """Run a combined batch forward, and return what the output mode asks for."""
        collector = self._collector()
        with self._running(), torch.no_grad():
            for iteration in range(self._layout.device_iterations):
                for micro_batch in self._layout.iteration(iteration):
                    collector.add(micro_batch, self._forward(micro_batch, arguments))
        return collector.result()

    def train(
        self,
        arguments: Arguments,
        optimizer: DeviceOptimizer,
        scaling: AutomaticLossScaling | None,
        loss_of: LossOf | None,
    ) -> Any:
        """Train on a combined batch, and return what the output mode asks for.

        Args:
            arguments: Arguments of the model, combined.
            optimizer: Updates the weights, once a device iteration.
            scaling: Automatic loss scaling, if it is on.
            loss_of: Finds the loss among the outputs; ``None`` where it is not among them.
        """
        collector = self._collector()
        with self._running(), torch.enable_grad():
            for iteration in range(self._layout.device_iterations):
                accumulator = self._accumulator(optimizer)
                scale = scaling.scaling if scaling is not None else optimizer.loss_scaling
                for micro_batch in self._layout.iteration(iteration):
                    outputs, loss = self._forward_with_loss(micro_batch, arguments, loss_of)
                    _backward(loss, scale)
                    gradients = accumulator.take(micro_batch.replica)
                    if scaling is not None:
                        scaling.limit(loss)
                        scaling.observe(gradients)
                    collector.add(micro_batch, outputs)
                with torch.no_grad():
                    optimizer.update(self._memory.values, accumulator.reduced(scale))
                if scaling is not None:
                    scaling.update()
        return collector.result()

    @contextmanager
    def _running(self) -> Iterator[None]:
        with (
            running(),
            self._randomness.call(),
            self._structure.restored(),
            self._memory.swapped_in(),
            half_arithmetic(self._memory.parameters),
            active_faults(),
        ):
            yield

    def _collector(self) -> OutputCollector:
        return OutputCollector(self._options.output_mode, self._options.output_return_period, self._layout)

    def _accumulator(self, optimizer: DeviceOptimizer) -> GradientAccumulator:
        training = self._options.Training
        strategy = training.meanAccumulationAndReplicationReductionStrategy
        return GradientAccumulator(
            self._memory.parameters,
            self._memory.groups,
            num_accumulated=self._layout.gradient_accumulation,
            takes_mean=training.accumulation_and_replication_reduction_type is ReductionType.Mean,
            running_mean=strategy is MeanReductionStrategy.Running,
            accum_type=optimizer.accum_type,
        )

    def _forward(self, micro_batch: MicroBatch, arguments: Arguments) -> Any:
        self._memory.enter_replica(micro_batch.replica)
        self._randomness.enter(self._stream_of(micro_batch), micro_batch.replica)
        args, kwargs = map_structure(
            lambda leaf: self._layout.part(leaf, micro_batch.index) if isinstance(leaf, Tensor) else leaf, arguments
        )
        outputs = self._module(*args, **kwargs)
        self._memory.check_buffers()
        return outputs

    def _forward_with_loss(
        self, micro_batch: MicroBatch, arguments: Arguments, loss_of: LossOf | None
    ) -> tuple[Any, Tensor]:
        if loss_of is not None:
            outputs = self._forward(micro_batch, arguments)
            return outputs, loss_of(outputs)
        trace = ProgramTrace(PipelinePosition(), self._memory.parameters)
        with trace:
            outputs = self._forward(micro_batch, arguments)
        return outputs, trace.losses.final_loss()

    def _stream_of(self, micro_batch: MicroBatch) -> int:
        return micro_batch.iteration * self._layout.gradient_accumulation + micro_batch.accumulation


def _backward(loss: Tensor, scaling: float) -> None:
    if loss.requires_grad:
        loss.backward(torch.full_like(loss, scaling))


def loss_path(outputs: Any, loss: Tensor) -> LossOf | None:
    """Return how to find ``loss`` among outputs of the same form, or ``None`` if it is not among them."""
    keys = _path_to(outputs, loss)
    if keys is None:
        return None

    def find(values: Any) -> Tensor:
        for key in keys:
            values = values[key]
        found: Tensor = values
        return found

    return find


def _path_to(value: Any, loss: Tensor) -> list[Any] | None:
    if value is loss:
        return []
    items: Any = ()
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    for key, item in items:
        path = _path_to(item, loss)
        if path is not None:
            return [key, *path]
    return None
