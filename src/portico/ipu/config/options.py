"""From an ``IPUConfig`` to ``poptorch.Options``."""

import logging
from typing import Any

import torch

from portico.ipu import backend

logger = logging.getLogger(__name__)

# Mk2 hardware, as the driver numbers it.
_MK2 = (2, 21)
_PATTERNS = {"TiedGather": True, "TiedGatherAccumulate": True, "UpdateInplacePrioritiesForIpu": True}
_ENGINE_OPTIONS = {"opt.useAutoloader": "true", "target.syncReplicasIndependently": "true"}
_COMPILER_OPTIONS: dict[str, Any] = {
    "disableGradAccumulationTensorStreams": True,
    "scheduleNonWeightUpdateGradientConsumersEarly": True,
    "subgraphCopyingStrategy": 1,
}


def make_options(config: Any, *, for_inference: bool, compile_only: bool) -> Any:
    """Return the options of a program.

    Args:
        config: The ``IPUConfig``.
        for_inference: For inference: sharded, without accumulation, returning everything. For training: pipelined.
        compile_only: For a program that is compiled without IPUs, and not run.

    Raises:
        RuntimeError: If the hardware is of another kind.
    """
    if not compile_only and backend.ipuHardwareVersion() not in _MK2:
        raise RuntimeError("This requires an IPU Mk2 system to run.")
    mode = config.mode
    config.mode = "inference" if for_inference else "training"
    try:
        options = _batching(config)
        _place(config, options)
    finally:
        config.mode = mode
    _precision(config, options, training=not for_inference)
    if for_inference:
        options.outputMode(backend.OutputMode.All)
        options._Popart.set("enableExplicitIR", config.explicit_ir_inference)
    else:
        options.outputMode(_output_mode(config.output_mode))
        options.Training.setAutomaticLossScaling(config.auto_loss_scaling)
    if config.seed is not None:
        options.randomSeed(config.seed)
    if compile_only:
        options.useOfflineIpuTarget(2)
    if config.executable_cache_dir not in ("", "disabled"):
        options.enableExecutableCaching(config.executable_cache_dir)
    options._Popart.setPatterns(dict(_PATTERNS))
    options._Popart.setEngineOptions(dict(_ENGINE_OPTIONS))
    for name, value in _COMPILER_OPTIONS.items():
        options._Popart.set(name, value)
    return options


def _batching(config: Any) -> Any:
    options = backend.Options()
    options.autoRoundNumIPUs(True)
    options.replicationFactor(config._replication_factor)
    options.deviceIterations(config._device_iterations)
    if config.mode == "training":
        options.Training.gradientAccumulation(config.gradient_accumulation_steps)
        options.Training.accumulationAndReplicationReductionType(backend.ReductionType.Mean)
        options.setExecutionStrategy(backend.PipelinedExecution(backend.AutoStage.AutoIncrement))
    else:
        options.setExecutionStrategy(backend.ShardedExecution(backend.AutoStage.AutoIncrement))
    return options


def _place(config: Any, options: Any) -> None:
    shards = config.replicated_tensor_sharding and config._replication_factor > 1
    if config.replicated_tensor_sharding and config.mode == "training" and not shards:
        logger.warning(
            "`replicated_tensor_sharding=True` has no effect on one replica; set `replication_factor` to 2 or more."
        )
    location = backend.TensorLocationSettings().useOnChipStorage(not config.optimizer_state_offchip)
    options.TensorLocations.setOptimizerLocation(location.useReplicatedTensorSharding(shards))
    proportion = config._matmul_proportion
    shares = proportion if isinstance(proportion, list) else [proportion] * config._ipus_per_replica
    options.setAvailableMemoryProportion({f"IPU{number}": share for number, share in enumerate(shares)})


def _precision(config: Any, options: Any, *, training: bool) -> None:
    options.Precision.enableStochasticRounding(training)
    options.Precision.setPartialsType(torch.float16 if config.enable_half_partials else torch.float32)


def _output_mode(name: str) -> Any:
    modes = backend.OutputMode
    return {"all": modes.All, "sum": modes.Sum, "final": modes.Final, "default": modes.Default}[name]
