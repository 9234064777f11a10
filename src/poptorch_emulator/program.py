"""Random numbers of the devices: streams of their own, a function of seed, update and replica."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from poptorch_emulator.batches import BatchLayout, MicroBatch, OutputCollector
from poptorch_emulator.blocks import PipelinePosition
from poptorch_emulator.containers import map_structure
from poptorch_emulator.enums import MeanReductionStrategy, ReductionType
from poptorch_emulator.errors import Error
from poptorch_emulator.execution import PipelinedExecution
from poptorch_emulator.faults import active_faults
from poptorch_emulator.half import half_arithmetic
from poptorch_emulator.machine import MOST_IPUS, running, settings
from poptorch_emulator.memory import CompiledStructure, DeviceMemory
from poptorch_emulator.options import Options
from poptorch_emulator.tracing import ProgramTrace, refuse_data_dependence
from poptorch_emulator.weight_updates import AutomaticLossScaling, DeviceOptimizer, GradientAccumulator


class DeviceRandomness:
    """The random state of a program; two integers say all of it.

    Args:
        seed: Seed of the devices.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.num_calls = 0

    @contextmanager
    def call(self) -> Iterator[None]:
        """Keep the host's generator as it is while a call runs, and move on to the next stream after it."""
        with torch.random.fork_rng(devices=[]):
            yield
        self.num_calls += 1

    def enter(self, micro_batch: int, replica: int) -> None:
        """Take up the stream of a micro-batch on a replica, inside :meth:`call`."""
        torch.default_generator.manual_seed(_mixed(self.seed, self.num_calls, micro_batch, replica))

    @property
    def state(self) -> list[int]:
        """Return what brings the streams back to this point."""
        return [self.seed, self.num_calls]

    @state.setter
    def state(self, state: list[int]) -> None:
        self.seed, self.num_calls = (int(number) for number in state)


def _mixed(*numbers: int) -> int:
    """Mix numbers into a seed: sums would make the streams of neighbouring calls overlap."""
    text = ",".join(map(str, numbers)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little", signed=True)


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


@dataclass(frozen=True)
class Compiled:
    """What compiling a model brought to light.

    Args:
        num_ipus: IPUs of all replicas.
        num_stages: Pipeline stages of the forward pass.
        ipu_of_parameter: IPU of each parameter that the model uses.
        loss_of: Finds the loss among the outputs; ``None`` where it is not among them, or for inference.
    """

    num_ipus: int
    num_stages: int
    ipu_of_parameter: dict[str, int]
    loss_of: LossOf | None


def compile_model(
    module: nn.Module,
    arguments: Arguments,
    options: Options,
    *,
    memory: DeviceMemory,
    randomness: DeviceRandomness,
    layout: BatchLayout,
    training: bool,
) -> Compiled:
    """Run the first micro-batch once, on copies, and check the program that it is.

    Raises:
        Error: If the program cannot run on IPUs.
    """
    micro_batch = map_structure(
        lambda leaf: layout.part(leaf, 0).clone() if isinstance(leaf, Tensor) else leaf, arguments
    )
    if settings.strict:
        with running():
            refuse_data_dependence(module, micro_batch)
    execution = options.execution_strategy
    trace = ProgramTrace(PipelinePosition(execution.stages), memory.parameters)
    with running(), torch.random.fork_rng(devices=[]), memory.swapped_in(), half_arithmetic(memory.parameters):
        memory.enter_replica(0)
        randomness.enter(0, 0)
        with memory.buffers_on_trial(), torch.set_grad_enabled(training):
            args, kwargs = micro_batch
            with trace:
                outputs = module(*args, **kwargs)
            memory.check_buffers()
    num_ipus = _num_ipus(trace.position.num_ipus, options)
    trace.refuse_split_parameters()
    if isinstance(execution, PipelinedExecution):
        _check_stages(trace.position.num_stages, options, training)
    return Compiled(
        num_ipus=num_ipus,
        num_stages=trace.position.num_stages,
        ipu_of_parameter={name: min(ipus) for name, ipus in trace.ipus_of_parameter.items()},
        loss_of=loss_path(outputs, trace.losses.final_loss()) if training else None,
    )


def _num_ipus(ipus_of_replica: int, options: Options) -> int:
    num_ipus: int = ipus_of_replica * options.replication_factor
    rounded = 1 << (num_ipus - 1).bit_length()
    if rounded != num_ipus and not options.auto_round_num_ipus:
        raise Error(
            f"The program needs {ipus_of_replica} IPU(s) for each of {options.replication_factor} replica(s), "
            f"{num_ipus} in all, but the number of IPUs has to be a power of two; use poptorch.Options."
            f"autoRoundNumIPUs(True) to take {rounded} and leave some idle."
        )
    if rounded > MOST_IPUS:
        raise Error(f"The program needs {rounded} IPUs, but no machine has more than {MOST_IPUS}; use fewer replicas.")
    return rounded


def _check_stages(num_stages: int, options: Options, training: bool) -> None:
    accumulation = options.Training.gradient_accumulation
    if training and num_stages > 1 and accumulation < 2 * num_stages - 1:
        raise Error(
            "poptorch.Options().Training.gradientAccumulation must be greater than or equal to the number of pipeline "
            f"stages ({2 * num_stages - 1}) when using poptorch.PipelinedExecution. Please note that a model with "
            f"{num_stages} pipeline stages in PopTorch will have an additional {num_stages - 1} stages when training."
        )
    if not training and options.device_iterations < num_stages:
        raise Error(
            "poptorch.Options().deviceIterations must be greater than or equal to the number of pipeline stages "
            f"({num_stages}) when using poptorch.PipelinedExecution."
        )
