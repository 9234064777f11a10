"""Each process gets the same batches as under accelerate."""

import pytest
import torch
from accelerate import data_loader as reference
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler

from portico.data.loaders import prepare_data_loader
from portico.data.sharding import BatchSamplerShard, DataLoaderConfig, IterableDatasetShard
from portico.errors import InputError

PROCESSES = st.integers(1, 5)
SIZES = st.integers(0, 40)


def own_shards(kind, data, num_processes, *, even_batches=True, split_batches=False, **options):
    sharing = {"num_processes": num_processes, "even_batches": even_batches, "split_batches": split_batches}
    return [kind(data, DataLoaderConfig(process_index=rank, **sharing), **options) for rank in range(num_processes)]


def shards_of_accelerate(kind, data, num_processes, **options):
    return [kind(data, num_processes=num_processes, process_index=rank, **options) for rank in range(num_processes)]


@settings(max_examples=300, deadline=None)
@given(SIZES, st.integers(1, 6), PROCESSES, st.booleans(), st.booleans(), st.booleans())
def test_batch_sampler_shard_equals_accelerate(size, batch_size, num_processes, drop_last, even_batches, split):
    if split:
        batch_size *= num_processes
    options = {"split_batches": split, "even_batches": even_batches}

    def batches():
        return BatchSampler(SequentialSampler(range(size)), batch_size, drop_last)

    ours = own_shards(BatchSamplerShard, batches(), num_processes, **options)
    theirs = shards_of_accelerate(reference.BatchSamplerShard, batches(), num_processes, **options)
    assert [list(shard) for shard in ours] == [list(shard) for shard in theirs]
    assert [len(shard) for shard in ours] == [len(shard) for shard in theirs]


class OwnBatches:
    """A user-defined batch sampler with varying batch sizes."""

    def __init__(self, batches):
        self.batches = batches

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        return iter(self.batches)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), max_size=12), PROCESSES, st.booleans())
def test_ragged_batch_sampler_shard_equals_accelerate(batches, num_processes, even_batches):
    ours = own_shards(BatchSamplerShard, OwnBatches(batches), num_processes, even_batches=even_batches)
    theirs = shards_of_accelerate(
        reference.BatchSamplerShard, OwnBatches(batches), num_processes, even_batches=even_batches
    )
    assert [list(shard) for shard in ours] == [list(shard) for shard in theirs]


class Stream(IterableDataset):
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __iter__(self):
        return iter(range(self.size))


@settings(max_examples=200, deadline=None)
@given(SIZES, st.integers(1, 6), PROCESSES, st.booleans(), st.booleans())
def test_iterable_dataset_shard_equals_accelerate(size, batch_size, num_processes, drop_last, split):
    if split:
        batch_size *= num_processes
    options = {"batch_size": batch_size, "drop_last": drop_last, "split_batches": split}
    ours = own_shards(IterableDatasetShard, Stream(size), num_processes, **options)
    theirs = shards_of_accelerate(reference.IterableDatasetShard, Stream(size), num_processes, **options)
    assert [list(shard) for shard in ours] == [list(shard) for shard in theirs]
    assert [len(shard) for shard in ours] == [len(shard) for shard in theirs]


def test_stream_generator_is_reseeded_each_epoch():
    class Draws(Stream):
        generator = torch.Generator()

        def __iter__(self):
            return iter(torch.randperm(self.size, generator=self.generator).tolist())

    shard = IterableDatasetShard(Draws(8), DataLoaderConfig(num_processes=2), batch_size=2)
    shard.set_epoch(1)
    expected = torch.randperm(8, generator=torch.Generator().manual_seed(1)).tolist()
    assert list(shard) == [expected[index] for index in (0, 1, 4, 5)]


def test_set_epoch_reaches_stream():
    class Listens(Stream):
        def set_epoch(self, epoch):
            self.epoch = epoch

    stream = Listens(4)
    IterableDatasetShard(stream, DataLoaderConfig(num_processes=2)).set_epoch(3)
    assert stream.epoch == 3


@pytest.mark.parametrize("data", [range(9), Stream(9)])
def test_indivisible_batch_size_is_rejected(data):
    config = DataLoaderConfig(num_processes=2, split_batches=True)
    match = "each batch of 3 examples over 2 processes, .* set the batch size to a multiple of 2"
    with pytest.raises(InputError, match=match):
        prepare_data_loader(DataLoader(data, batch_size=3), config)
