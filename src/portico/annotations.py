"""Types that annotations share; none is checked at run time."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import datasets
    import numpy.typing as npt
    import optuna
    import torch
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
    from torchmetrics import Metric, MetricCollection
    from transformers import (
        BaseImageProcessor,
        EvalPrediction,
        FeatureExtractionMixin,
        PreTrainedTokenizerBase,
        ProcessorMixin,
        TrainerCallback,
    )

# Examples: a torch data set, with or without indices, or one of the `datasets` package.
Examples: TypeAlias = "torch.utils.data.Dataset[Any] | datasets.Dataset | datasets.IterableDataset"
EvalExamples: TypeAlias = "Examples | Mapping[str, Examples]"
# One batch as the model's keyword arguments; values are mostly tensors `[batch, ...]`.
Batch: TypeAlias = dict[str, Any]
# What a model returns beside its loss: tensors `[batch, ...]` in any nesting.
Nested: TypeAlias = "torch.Tensor | Sequence[Nested] | Mapping[str, Nested]"
NestedArrays: TypeAlias = "npt.NDArray[Any] | Sequence[NestedArrays] | Mapping[str, NestedArrays]"
# Anything that yields batches: our loaders, or one that a user's override returns.
Loader: TypeAlias = "torch.utils.data.DataLoader[Any]"
ProcessingClass: TypeAlias = "PreTrainedTokenizerBase | BaseImageProcessor | FeatureExtractionMixin | ProcessorMixin"
DataCollator: TypeAlias = Callable[[list[Any]], Batch]
Scheduler: TypeAlias = "LRScheduler | ReduceLROnPlateau"
Optimizers: TypeAlias = "tuple[Optimizer | None, Scheduler | None]"
Callbacks: TypeAlias = "Sequence[TrainerCallback | type[TrainerCallback]]"
ComputeMetrics: TypeAlias = (
    "Callable[[EvalPrediction], Mapping[str, Any]] | Metric | MetricCollection | Mapping[str, Metric]"
)
ComputeLoss: TypeAlias = "Callable[..., torch.Tensor]"
# Number of labels that the losses of an accumulation window are a mean of.
NumItems: TypeAlias = "torch.Tensor | int | None"
# A trial of a hyperparameter search: Optuna's object, or the parameters that Ray or Weights & Biases chose.
Trial: TypeAlias = "optuna.Trial | dict[str, Any] | None"
