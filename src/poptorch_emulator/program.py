"""A compiled program: what compiling a model finds out, and how the devices then run it.

A training call, for each device iteration (a weight update)::

    for each replica, for each micro-batch of the accumulation:
        forward and backward on the device's weights, with the random stream of the micro-batch
        accumulate the gradients
    reduce the gradients over micro-batches and replicas, and update the device's weights once
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from poptorch_emulator.batches import Arguments, BatchLayout, MicroBatch, OutputCollector
from poptorch_emulator.containers import map_tensors, tensors_in
from poptorch_emulator.enums import OutputMode
from poptorch_emulator.errors import Error
from poptorch_emulator.execution import PipelinedExecution
from poptorch_emulator.faults import active_faults
from poptorch_emulator.half import HalfArithmetic, HalfNarrowing, is_half
from poptorch_emulator.machine import MAX_IPUS, running, settings
from poptorch_emulator.memory import CompiledStructure, DeviceMemory
from poptorch_emulator.options import Options
from poptorch_emulator.tracing import ProgramTrace, refuse_data_dependence
from poptorch_emulator.weight_updates import DeviceOptimizer, GradientAccumulator, Gradients

# How PopART names tensors.
_GRADIENT = "Gradient___"
_UPDATED = "UpdatedVar___"

_pre_compile_hooks: OrderedDict[int, Callable[[], None]] = OrderedDict()
_post_compile_hooks: OrderedDict[int, Callable[[], None]] = OrderedDict()


def registerPreCompileHook(hook: Callable[[], None]) -> RemovableHandle:
    """Call ``hook`` before each compilation, until the handle's ``remove``; ``RuntimeError`` if it is not callable."""
    return _register(_pre_compile_hooks, "Pre-compile", hook)


def registerPostCompileHook(hook: Callable[[], None]) -> RemovableHandle:
    """Call ``hook`` after each compilation, until the handle's ``remove``; ``RuntimeError`` if it is not callable."""
    return _register(_post_compile_hooks, "Post-compile", hook)


def _register(hooks: OrderedDict[int, Callable[[], None]], kind: str, hook: Callable[[], None]) -> RemovableHandle:
    if not callable(hook):
        raise RuntimeError(f"{kind} hook must be callable; {hook!r} was given")
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle


class DeviceRandomness:
    """The random streams of a program: a function of seed, call, micro-batch and replica."""

    def __init__(self, seed: int) -> None:
        # All of the state, so that two integers restore it.
        self.state = [seed, 0]

    @contextmanager
    def call(self) -> Iterator[None]:
        """Preserve the host's generator during a call, and move on to the streams of the next call after it."""
        with torch.random.fork_rng(devices=[]):
            yield
        self.state[1] += 1

    def enter(self, micro_batch: int, replica: int) -> None:
        """Begin the stream of a micro-batch on a replica, with the host's generator preserved."""
        # Mixed by a hash: with sums, the streams of neighbouring calls would overlap.
        text = ",".join(map(str, (*self.state, micro_batch, replica))).encode()
        digest = hashlib.blake2b(text, digest_size=8).digest()
        torch.default_generator.manual_seed(int.from_bytes(digest, "little", signed=True))


class CompiledProgram:
    """A model that is compiled by running its first micro-batch once on copies, and checking what it does."""

    def __init__(
        self,
        module: nn.Module,
        arguments: Arguments,
        options: Options,
        *,
        layout: BatchLayout,
        randomness: DeviceRandomness,
        optimizer: torch.optim.Optimizer | None,
    ) -> None:
        self._module = module
        self._options = options
        self._layout = layout
        self._randomness = randomness
        self.memory = DeviceMemory(
            module, num_replicas=options.replication_factor, broadcasts_buffers=options.broadcast_buffers
        )
        for hook in list(_pre_compile_hooks.values()):
            hook()
        self._compile(arguments, training=optimizer is not None)
        for hook in list(_post_compile_hooks.values()):
            hook()
        self._structure = CompiledStructure(module)
        self.optimizer: DeviceOptimizer | None = None
        if optimizer is not None:
            self.optimizer = DeviceOptimizer(
                optimizer, module.named_parameters(), scales_automatically=options.Training.auto_loss_scaling
            )
        # By the names that the user chose.
        self.anchored: dict[str, Tensor] = {}
        self._check_anchors()

    # ---- Compilation ----

    def _compile(self, arguments: Arguments, *, training: bool) -> None:
        _check_return_period(self._options)
        args, kwargs = map_tensors(Tensor.clone, self._layout.part(arguments, 0))
        if settings.strict:
            with running():
                refuse_data_dependence(self._module, (args, kwargs))
        execution = self._options.execution_strategy
        trace = ProgramTrace(self.memory.parameters, execution.stages, is_trial=True)
        has_halves = any(map(is_half, (*self.memory.parameters.values(), *tensors_in((args, kwargs)))))
        with (
            running(),
            torch.random.fork_rng(devices=[]),
            self.memory.swapped_in(),
            HalfArithmetic() if has_halves else nullcontext(),
            HalfNarrowing() as narrowing,
        ):
            self.memory.enter_replica(0)
            self._randomness.enter(0, 0)
            with self.memory.trial(), torch.set_grad_enabled(training):
                with trace:
                    outputs = self._module(*args, **kwargs)
                self.memory.check_buffers()
        # What is not needed would be slower.
        self._has_halves = has_halves or narrowing.has_halves
        self._has_mixed = narrowing.has_mixed
        # `poptorch` checks the number of IPUs before the stages.
        self.num_ipus = _num_ipus(trace.position.num_ipus, self._options)
        self.num_stages = trace.position.num_stages
        trace.refuse_split_parameters()
        if isinstance(execution, PipelinedExecution):
            _check_stages(self.num_stages, self._options, training)
        self.ipu_of_parameter = {name: min(ipus) for name, ipus in trace.ipus_of_parameter.items()}
        # Keys that lead to the loss among the outputs; `None` if it is not among them.
        self._loss_path = _path_to(trace.losses.final_loss(), outputs) if training else None

    @property
    def tensor_names(self) -> list[str]:
        """Names of the tensors that ``Options.anchorTensor`` takes; none without training."""
        if self.optimizer is None:
            return []
        return [prefix + name for prefix in (_GRADIENT, _UPDATED) for name in self.memory.parameters]

    def _check_anchors(self) -> None:
        unknown = [name for name in self._options.anchored_tensors.values() if name not in self.tensor_names]
        if unknown:
            raise Error(
                f"anchorTensor was given the unknown name {unknown[0]!r}; this program has "
                f"{', '.join(self.tensor_names) or 'no tensors with names, because it does not train'}."
            )

    def _keep_anchored(self, gradients: Gradients) -> None:
        named = {_GRADIENT + name: values for name, values in gradients.items()}
        named |= {_UPDATED + name: values for name, values in self.memory.values.items()}
        for short_name, name in self._options.anchored_tensors.items():
            values = named.get(name, [])
            if values:
                self.anchored[short_name] = torch.stack(values) if len(values) > 1 else values[0].clone()

    # ---- Calls ----

    def infer(self, arguments: Arguments) -> Any:
        """Run a combined batch forward, and return what the output mode selects."""
        collector = self._collector()
        with self._running(), torch.no_grad():
            for iteration in range(self._layout.device_iterations):
                for micro_batch in self._layout.iteration(iteration):
                    collector.add(micro_batch, self._forward(micro_batch, arguments))
        return collector.result()

    def train(self, arguments: Arguments) -> Any:
        """Train on a combined batch, and return what the output mode selects."""
        optimizer = self.optimizer
        assert optimizer is not None
        collector = self._collector()
        with self._running(), torch.enable_grad():
            for iteration in range(self._layout.device_iterations):
                accumulator = GradientAccumulator(self.memory, self._options.Training, optimizer.accum_type)
                scale = optimizer.loss_scaling
                for micro_batch in self._layout.iteration(iteration):
                    outputs, loss = self._forward_with_loss(micro_batch, arguments)
                    if loss.requires_grad:
                        loss.backward(torch.full_like(loss, scale))
                    gradients = accumulator.take(micro_batch.replica)
                    if optimizer.scaling is not None:
                        optimizer.scaling.observe(loss, gradients)
                    collector.add(micro_batch, outputs)
                with torch.no_grad():
                    gradients_of_update = accumulator.reduce(scale)
                    optimizer.update(self.memory.values, gradients_of_update)
                    self._keep_anchored(gradients_of_update)
        return collector.result()

    @contextmanager
    def _running(self) -> Iterator[None]:
        with (
            running(),
            self._randomness.call(),
            self._structure.restored(),
            self.memory.swapped_in(),
            HalfNarrowing() if self._has_mixed else nullcontext(),
            HalfArithmetic() if self._has_halves else nullcontext(),
            active_faults(),
        ):
            yield

    def _collector(self) -> OutputCollector:
        return OutputCollector(self._options.output_mode, self._options.output_return_period, self._layout)

    def _forward(self, micro_batch: MicroBatch, arguments: Arguments) -> Any:
        self.memory.enter_replica(micro_batch.replica)
        number = micro_batch.iteration * self._layout.gradient_accumulation + micro_batch.accumulation
        self._randomness.enter(number, micro_batch.replica)
        args, kwargs = self._layout.part(arguments, micro_batch.index)
        outputs = self._module(*args, **kwargs)
        self.memory.check_buffers()
        return outputs

    def _forward_with_loss(self, micro_batch: MicroBatch, arguments: Arguments) -> tuple[Any, Tensor]:
        if self._loss_path is None:
            with ProgramTrace(self.memory.parameters) as trace:
                outputs = self._forward(micro_batch, arguments)
            return outputs, trace.losses.final_loss()
        loss = outputs = self._forward(micro_batch, arguments)
        for key in self._loss_path:
            loss = loss[key]
        return outputs, loss


def _path_to(loss: Tensor, value: Any) -> list[Any] | None:
    if value is loss:
        return []
    items: Any = value.items() if isinstance(value, Mapping) else ()
    if isinstance(value, list | tuple):
        items = enumerate(value)
    for key, item in items:
        path = _path_to(loss, item)
        if path is not None:
            return [key, *path]
    return None


def _check_return_period(options: Options) -> None:
    period = options.output_return_period
    iterations = options.device_iterations
    if options.output_mode is OutputMode.EveryN and iterations % period:
        raise Error(
            f"The return period of OutputMode.EveryN, {period}, must be a factor of poptorch.Options()."
            f"deviceIterations, {iterations}: otherwise other iterations would be returned from each call."
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
    if rounded > MAX_IPUS:
        raise Error(f"The program needs {rounded} IPUs, but no machine has more than {MAX_IPUS}; use fewer replicas.")
    return rounded


def _check_stages(num_stages: int, options: Options, training: bool) -> None:
    # The backward pass doubles the stages, except for the last, which it shares with the forward pass.
    num_stages_of_training = 2 * num_stages - 1
    if training and num_stages > 1 and options.Training.gradient_accumulation < num_stages_of_training:
        raise Error(
            "poptorch.Options().Training.gradientAccumulation must be greater than or equal to the number of pipeline "
            f"stages ({num_stages_of_training}) when using poptorch.PipelinedExecution. Please note that a model with "
            f"{num_stages} pipeline stages in PopTorch will have an additional {num_stages - 1} stages when training."
        )
    if not training and options.device_iterations < num_stages:
        raise Error(
            "poptorch.Options().deviceIterations must be greater than or equal to the number of pipeline stages "
            f"({num_stages}) when using poptorch.PipelinedExecution."
        )
