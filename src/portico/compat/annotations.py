"""Type aliases for annotations; none is checked at run time."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import torch
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
    from torchmetrics import Metric, MetricCollection
    from transformers import (
        BaseImageProcessor,
        FeatureExtractionMixin,
        PreTrainedTokenizerBase,
        ProcessorMixin,
        TrainerCallback,
    )

# Examples: a torch dataset, with or without indices, or a dataset of the `datasets` package; they share no type.
Examples: TypeAlias = Any
EvalExamples: TypeAlias = "Examples | Mapping[str, Examples]"
# One batch as the model's keyword arguments; values are mostly tensors `[batch, ...]`.
Batch: TypeAlias = dict[str, Any]
# Tensors or arrays `[batch, ...]`, nested in mappings and sequences. A recursive type would need a cast wherever a
# container is entered.
Nested: TypeAlias = Any
# Anything that yields batches: our loaders, or the loader that a user's override returns.
Loader: TypeAlias = "torch.utils.data.DataLoader[Any]"
ProcessingClass: TypeAlias = "PreTrainedTokenizerBase | BaseImageProcessor | FeatureExtractionMixin | ProcessorMixin"
DataCollator: TypeAlias = Callable[[list[Any]], Batch]
Scheduler: TypeAlias = "LRScheduler | ReduceLROnPlateau"
Optimizers: TypeAlias = "tuple[Optimizer | None, Scheduler | None]"
Callbacks: TypeAlias = "Sequence[TrainerCallback | type[TrainerCallback]]"
ComputeMetrics: TypeAlias = "Callable[..., Mapping[str, Any]] | Metric | MetricCollection | Mapping[str, Metric]"
ComputeLoss: TypeAlias = "Callable[..., torch.Tensor]"
# Number of labels that the losses of an accumulation window are averaged over.
NumItems: TypeAlias = "torch.Tensor | int | None"
# A trial of a hyperparameter search: Optuna's object, or a dict of the parameters that Ray or Weights & Biases chose.
Trial: TypeAlias = Any
