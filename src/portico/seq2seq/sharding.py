"""Generation where the weights of a model are spread over processes."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy, Strategy
from torch.distributed.fsdp import FullyShardedDataParallel


def shards_weights(strategy: Strategy) -> bool:
    """Tell whether each process holds a part of the weights only, so that all must run forward passes together."""
    if isinstance(strategy, DeepSpeedStrategy):
        return bool(strategy.zero_stage_3)
    return isinstance(strategy, FSDPStrategy | ModelParallelStrategy)


def whole_weights(strategy: Strategy) -> AbstractContextManager[Any]:
    """Return a context in which the model's weights are whole, for code that does not go through its wrapper."""
    if isinstance(strategy.model, FullyShardedDataParallel):
        return FullyShardedDataParallel.summon_full_params(strategy.model)
    return nullcontext()
