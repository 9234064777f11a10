"""From a model and its first arguments to what a program needs to know."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from portico.ipu.emulator.device.half import half_arithmetic
from portico.ipu.emulator.device.memory import DeviceMemory
from portico.ipu.emulator.device.randomness import DeviceRandomness
from portico.ipu.emulator.errors import Error
from portico.ipu.emulator.executor.layout import BatchLayout, map_structure
from portico.ipu.emulator.executor.program import Arguments, LossOf, loss_path
from portico.ipu.emulator.options.execution import PipelinedExecution
from portico.ipu.emulator.options.options import Options
from portico.ipu.emulator.running import running
from portico.ipu.emulator.settings import MOST_IPUS, settings
from portico.ipu.emulator.tracing.position import PipelinePosition
from portico.ipu.emulator.tracing.strict import refuse_data_dependence
from portico.ipu.emulator.tracing.trace import ProgramTrace


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
