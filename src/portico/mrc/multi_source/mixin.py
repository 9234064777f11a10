"""What lets a trainer train on several data sets."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch.utils.data import ConcatDataset, Sampler

from portico.errors import InputError
from portico.mrc.multi_source.sampler import IndividualDomainBatchSampler
from portico.trainer import Trainer


class MultiSourceMixin(Trainer):
    """Put before a trainer: batches of a ``ConcatDataset``, or of a list of data sets, hold one of them each."""

    def _init_data(self, data_collator: Any, train_dataset: Any, eval_dataset: Any, processing_class: Any) -> None:
        super()._init_data(data_collator, joined(train_dataset), joined(eval_dataset), processing_class)

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[Any] | None:
        dataset = self.train_dataset if train_dataset is None else train_dataset
        if not isinstance(dataset, ConcatDataset):
            return super()._get_train_sampler(train_dataset)
        strategy = self.args.train_sampling_strategy
        if strategy != "random":
            raise InputError(
                f"`train_sampling_strategy={strategy!r}` orders one data set, and there are {len(dataset.datasets)}, "
                "whose batches take turns, each in random order; set it to 'random', or give one data set."
            )
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        return IndividualDomainBatchSampler(dataset, self._train_batch_size, seed)


def joined(datasets: Any) -> Any:
    """Return a list of data sets as one ``ConcatDataset``, and anything else as it is.

    Raises:
        InputError: If one of them is empty, of which no batch could be made.
    """
    if isinstance(datasets, ConcatDataset):
        sets: Sequence[Any] = datasets.datasets
    elif isinstance(datasets, list | tuple) and datasets and all(map(_is_dataset, datasets)):
        sets = datasets
    else:
        return datasets
    empty = [str(number) for number, dataset in enumerate(sets) if len(dataset) == 0]
    if empty:
        raise InputError(
            f"Of the {len(sets)} data sets number {', '.join(empty)} (from 0) is empty; leave it out, or fill it."
        )
    return ConcatDataset(sets) if sets is datasets else datasets


def _is_dataset(part: Any) -> bool:
    """Tell a data set from an example, as a list of examples is a data set too."""
    return not isinstance(part, Mapping) and hasattr(part, "__len__") and hasattr(part, "__getitem__")
