"""Loaders as users make them, turned into loaders of one process of a run."""

from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler

from portico.loading.dispatch import DispatchingLoader
from portico.loading.loaders import LookAheadLoader, batching_options, carried_options
from portico.loading.samplers import SeededRandomSampler
from portico.loading.sharding import BatchSamplerShard, IterableDatasetShard, check_split
from portico.loading.sharing import BatchSharing


def prepare_loader(loader: Any, sharing: BatchSharing) -> Any:
    """Return the look-ahead counterpart of a ``DataLoader``; anything else comes back as it is.

    Args:
        loader: Loader to prepare; its random sampler, if it has one, becomes a seeded one.
        sharing: How the processes share its batches.

    Raises:
        InputError: If batches are to be split and their size is no multiple of the number of processes.
    """
    if not isinstance(loader, DataLoader) or isinstance(loader, LookAheadLoader):
        return loader
    batches = loader.sampler if isinstance(loader.sampler, BatchSampler) else loader.batch_sampler
    if sharing.split_batches:
        check_split(loader.batch_size or getattr(batches, "batch_size", None), sharing.num_processes)
    options: dict[str, Any] = {"sharing": sharing, "keeps_remainder": not loader.drop_last}
    _seed_order(batches, sharing)
    if sharing.reads_in_one_process(loader.dataset):
        carried = carried_options(loader)
        carried.pop("generator", None)
        return DispatchingLoader(loader.dataset, **options, **carried, **batching_options(loader))
    options["shared_generator"] = _shared_generator(loader, batches, sharing)
    return LookAheadLoader(
        _own_examples(loader, sharing), **options, **carried_options(loader), **_shared_batching(loader, sharing)
    )


def _shared_batching(loader: "DataLoader[Any]", sharing: BatchSharing) -> dict[str, Any]:
    options = batching_options(loader)
    if sharing.num_processes == 1:
        return options
    if sharing.split_batches and options.get("batch_size"):
        options["batch_size"] //= sharing.num_processes
    for name in ("sampler", "batch_sampler"):
        if name in options:
            options[name] = BatchSamplerShard(
                options[name],
                num_processes=sharing.num_processes,
                process_index=sharing.process_index,
                split_batches=sharing.split_batches,
                even_batches=sharing.even_batches,
            )
    return options


def _own_examples(loader: "DataLoader[Any]", sharing: BatchSharing) -> Any:
    """Return the examples that this process reads: those of data with indices are chosen by the sampler."""
    dataset: Any = loader.dataset
    is_stream = isinstance(loader.dataset, IterableDataset)
    if sharing.num_processes == 1 or not is_stream:
        return dataset
    if getattr(dataset, "n_shards", 0) >= sharing.num_processes and not sharing.split_batches:
        # A stream of the `datasets` library: every process reads files of its own.
        return dataset.shard(num_shards=sharing.num_processes, index=sharing.process_index)
    return IterableDatasetShard(
        dataset,
        batch_size=loader.batch_size or 1,
        drop_last=loader.drop_last,
        num_processes=sharing.num_processes,
        process_index=sharing.process_index,
        split_batches=sharing.split_batches,
    )


def _seed_order(batches: Any, sharing: BatchSharing) -> None:
    """Make the random order of ``batches``, if they have one, depend on a seed and the epoch alone."""
    sampler = getattr(batches, "sampler", None)
    if sharing.seeded_order and isinstance(sampler, RandomSampler) and not isinstance(sampler, SeededRandomSampler):
        batches.sampler = SeededRandomSampler.like(sampler, sharing.data_seed)


def _shared_generator(loader: "DataLoader[Any]", batches: Any, sharing: BatchSharing) -> torch.Generator | None:
    """Return the generator that all processes must draw the same order from."""
    if sharing.num_processes == 1:
        return None
    if isinstance(loader.dataset, IterableDataset):
        return getattr(loader.dataset, "generator", None)
    sampler: Any = getattr(batches, "sampler", None)
    if sharing.seeded_order or not hasattr(sampler, "generator"):
        return None
    if sampler.generator is None:
        seed = int(torch.empty((), dtype=torch.int64).random_().item())
        sampler.generator = torch.Generator().manual_seed(seed)
    generator: torch.Generator = sampler.generator
    return generator
