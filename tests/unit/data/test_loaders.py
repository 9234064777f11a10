import tracemalloc
from collections import namedtuple

import pytest
import torch
from datasets import Dataset as Rows
from datasets.distributed import split_dataset_by_node
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)
from transformers import BatchEncoding

from portico.data.loaders import (
    DataLoaderDispatcher,
    DataLoaderShard,
    SeedableRandomSampler,
    SkipBatchSampler,
    move_to_device,
    num_examples_in_round,
    prepare_data_loader,
    skip_first_batches,
)
from portico.data.sharding import DataLoaderConfig
from portico.errors import InputError

CPU = torch.device("cpu")


class Numbers(Dataset):
    def __init__(self, size=10):
        self.size = size
        self.looked_at = []

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        self.looked_at.append(index)
        return torch.tensor(index)


class NumberStream(IterableDataset):
    def __init__(self, size=10):
        self.size = size
        self.epochs = []

    def __iter__(self):
        return iter(torch.arange(self.size))

    def set_epoch(self, epoch):
        self.epochs.append(epoch)


def prepared(dataset, **options):
    return prepare_data_loader(DataLoader(dataset, batch_size=4, **options), DataLoaderConfig(device=CPU, data_seed=3))


def values(loader):
    return [batch.tolist() for batch in loader]


def test_next_batch_is_fetched_ahead():
    data = Numbers()
    batches = iter(prepared(data))
    assert next(batches).tolist() == [0, 1, 2, 3]
    assert data.looked_at == list(range(8))


def test_iteration_is_lazy():
    before = torch.get_rng_state()
    data = Numbers()
    iter(prepared(data))
    assert data.looked_at == []
    assert torch.equal(torch.get_rng_state(), before)


def test_iteration_draws_one_base_seed():
    loader = prepared(Numbers(), shuffle=True)
    torch.manual_seed(5)
    list(loader)
    after = torch.get_rng_state()
    torch.manual_seed(5)
    torch.empty((), dtype=torch.int64).random_()
    assert torch.equal(torch.get_rng_state(), after)


@pytest.mark.parametrize("make", [Numbers, NumberStream])
def test_last_batch_is_flagged(make):
    loader = prepared(make())
    ends = [loader.end_of_dataloader for _ in loader]
    assert ends == [False, False, True]
    assert loader.remainder == 2


@pytest.mark.parametrize(("size", "drop_last", "remainder"), [(8, False, 0), (10, True, -1)])
def test_remainder(size, drop_last, remainder):
    loader = prepared(Numbers(size), drop_last=drop_last)
    assert [len(batch) for batch in loader] == [4, 4]
    assert loader.remainder == remainder


def test_empty_loader_yields_nothing():
    assert values(prepared(Numbers(0))) == []


def test_shuffling_depends_on_seed_and_epoch():
    loader = prepared(Numbers(), shuffle=True)
    first, second = values(loader), values(loader)
    assert first != second
    loader.set_epoch(0)
    assert values(loader) == first
    expected = SeedableRandomSampler(range(10), seed=3)
    assert [number for batch in first for number in batch] == list(expected)


def test_set_epoch_reaches_dataset():
    data = NumberStream()
    loader = prepared(data)
    list(loader)
    list(loader)
    assert data.epochs == [0, 1]


def test_loader_options_are_kept():
    def collate(examples):
        return -torch.stack(examples)

    loader = prepared(Numbers(), collate_fn=collate, num_workers=0, timeout=0)
    assert values(loader)[0] == [0, -1, -2, -3]


def test_other_iterables_are_returned_unchanged():
    batches = [1, 2]
    assert prepare_data_loader(batches, DataLoaderConfig()) is batches
    loader = prepared(Numbers())
    assert prepare_data_loader(loader, DataLoaderConfig()) is loader


def test_skipped_batches_are_not_loaded():
    data = Numbers()
    rest = skip_first_batches(prepared(data), 2)
    assert isinstance(rest, DataLoaderShard)
    assert values(rest) == [[8, 9]]
    assert data.looked_at == [8, 9]


def test_skipping_keeps_order_and_epoch():
    whole = prepared(Numbers(), shuffle=True)
    whole.set_epoch(2)
    expected = values(whole)
    loader = prepared(Numbers(), shuffle=True)
    rest = skip_first_batches(loader, 1)
    rest.set_epoch(2)
    assert values(rest) == expected[1:]


def test_skipped_batches_of_a_stream_are_fetched():
    assert values(skip_first_batches(prepared(NumberStream()), 2)) == [[8, 9]]


def test_plain_loaders_and_lists_can_skip_batches():
    plain = DataLoader(Numbers(), batch_size=4)
    assert values(skip_first_batches(plain, 2)) == [[8, 9]]
    assert values(skip_first_batches(DataLoader(NumberStream(), batch_size=4), 2)) == [[8, 9]]
    assert list(skip_first_batches([1, 2, 3], 2)) == [3]


def test_skipping_keeps_remainder():
    rest = skip_first_batches(prepared(Numbers(), drop_last=True), 1)
    list(rest)
    assert rest.remainder == -1


def test_move_to_device_keeps_containers():
    Pair = namedtuple("Pair", "left right")
    tensor = torch.ones(2)
    meta = torch.device("meta")
    moved = move_to_device({"a": [tensor, 1, "x"], "b": Pair(tensor, (tensor,)), "c": None}, meta)
    assert moved["a"][0].device == meta
    assert moved["a"][1:] == [1, "x"]
    assert isinstance(moved["b"], Pair)
    assert moved["b"].right[0].device == meta
    encoding = move_to_device(BatchEncoding({"input_ids": tensor}), meta)
    assert isinstance(encoding, BatchEncoding)
    assert encoding["input_ids"].device == meta


def loaders(dataset, batch_size=2, drop_last=False, **options):
    """Return the loaders of two processes; the second replays the broadcasts of the first."""
    sent = []

    def send(data):
        sent.append(data)
        return data

    def receive(nothing):
        assert nothing is None
        return sent.pop(0)

    return [
        prepare_data_loader(
            DataLoader(dataset, batch_size=batch_size, drop_last=drop_last),
            DataLoaderConfig(num_processes=2, process_index=rank, broadcast=broadcast, **options),
        )
        for rank, broadcast in enumerate((send, receive))
    ]


def test_dispatcher_sends_each_process_its_part():
    first, second = loaders(NumberStream(8))
    assert isinstance(first, DataLoaderDispatcher)
    assert values(first) == [[0, 1], [4, 5]]
    assert values(second) == [[2, 3], [6, 7]]


@pytest.mark.parametrize(
    ("size", "parts"),
    [(7, ([[0, 1], [4, 5]], [[2, 3], [6, 0]])), (5, ([[0, 1], [4]], [[2, 3], [0]])), (1, ([[0]], [[0]]))],
)
def test_dispatcher_completes_last_batch_from_first(size, parts):
    first, second = loaders(NumberStream(size))
    assert (values(first), values(second)) == parts
    assert first.end_of_dataloader
    assert first.remainder == second.remainder == (size % 4 or 4)


def test_dispatcher_drops_incomplete_last_batch():
    first, second = loaders(NumberStream(7), drop_last=True)
    assert (values(first), values(second)) == ([[0, 1]], [[2, 3]])


def test_dispatcher_splits_batches():
    first, second = loaders(NumberStream(6), batch_size=4, split_batches=True)
    assert (values(first), values(second)) == ([[0, 1], [4]], [[2, 3], [5]])


@pytest.mark.parametrize(("drop_last", "length"), [(False, 3), (True, 2)])
def test_dispatcher_length_counts_joint_batches(drop_last, length):
    first, _ = loaders(Numbers(10), dispatch_batches=True, drop_last=drop_last)
    assert len(first) == length
    assert len(loaders(Numbers(10), dispatch_batches=True, split_batches=True)[0]) == 5


def test_dispatcher_skips_batches_after_broadcast():
    first, second = (skip_first_batches(loader, 1) for loader in loaders(NumberStream(8)))
    assert (values(first), values(second)) == ([[4, 5]], [[6, 7]])


class Ragged(NumberStream):
    def __iter__(self):
        return iter([torch.ones(2), torch.ones(3)])


def test_dispatcher_rejects_ragged_batches():
    first, _ = loaders(Ragged(), batch_size=1)
    with pytest.raises(RuntimeError, match=r"have the shapes \(1, 2\), \(1, 3\); pad .* `dispatch_batches=False`"):
        list(first)


def test_dispatcher_rejects_strings():
    first, _ = loaders(NumberStream(8))
    first.collate_fn = lambda examples: {"names": ["a", "b"]}
    with pytest.raises(TypeError, match=r"A batch holds a str, .* let the collator return tensors"):
        list(first)


def test_empty_dataset_is_rejected_on_every_process():
    for loader in loaders(NumberStream(0)):
        with pytest.raises(InputError, match=r"`NumberStream`\) yielded no batch; .*\{'dispatch_batches': False\}"):
            list(loader)


def test_seedable_sampler_order_depends_on_seed_plus_epoch():
    sampler = SeedableRandomSampler(range(20), seed=3)
    orders = [list(sampler), list(sampler)]
    assert orders[0] != orders[1]
    for epoch, order in enumerate(orders):
        generator = torch.Generator().manual_seed(3 + epoch)
        assert order == list(RandomSampler(range(20), generator=generator))


@pytest.mark.parametrize("num_samples", [None, 3, 5000, 10_000, 12_345])
def test_seedable_sampler_draws_the_numbers_of_torchs(num_samples):
    generators = [torch.Generator().manual_seed(3) for _ in range(2)]
    sampler = SeedableRandomSampler(range(5000), seed=3, generator=generators[0], num_samples=num_samples)
    theirs = RandomSampler(range(5000), generator=generators[1], num_samples=num_samples)
    assert list(sampler) == list(theirs)
    assert torch.equal(*(generator.get_state() for generator in generators))


def test_seedable_sampler_holds_no_list_of_its_order():
    order = iter(SeedableRandomSampler(range(200_000), seed=3))
    tracemalloc.start()
    try:
        next(order)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


def test_seedable_sampler_set_epoch():
    sampler = SeedableRandomSampler(range(20), seed=3)
    first, second = list(sampler), list(sampler)
    sampler.set_epoch(1)
    assert list(sampler) == second
    sampler.set_epoch(0)
    assert list(sampler) == first


def test_seedable_sampler_keeps_global_generator():
    before = torch.get_rng_state()
    list(SeedableRandomSampler(range(20), seed=3))
    assert torch.equal(torch.get_rng_state(), before)


def test_seedable_sampler_defaults_to_global_seed():
    torch.manual_seed(11)
    assert list(SeedableRandomSampler(range(20))) == list(SeedableRandomSampler(range(20), seed=11))


def test_data_that_are_divided_already_are_announced(caplog):
    sampler = DistributedSampler(range(8), num_replicas=2, rank=0)
    stream = split_dataset_by_node(Rows.from_dict({"a": [1, 2]}).to_iterable_dataset(), rank=0, world_size=2)
    config = DataLoaderConfig(num_processes=2)
    for loader in (DataLoader(range(8)), DataLoader(range(8), sampler=sampler), DataLoader(stream)):
        prepare_data_loader(loader, config)
    messages = [record.message for record in caplog.records]
    assert len(messages) == 2
    assert "divided over 2 processes already, and the trainer divides them over 2 again" in messages[0]


@pytest.mark.parametrize("data", [Numbers(16), NumberStream(16)])
@pytest.mark.parametrize("dispatches", [True, False])
@pytest.mark.parametrize(("split", "size"), [(False, 8), (True, 4)])
def test_examples_that_all_processes_take_together(data, dispatches, split, size):
    config = DataLoaderConfig(num_processes=2, dispatch_batches=dispatches, split_batches=split)
    assert num_examples_in_round(prepare_data_loader(DataLoader(data, batch_size=4), config)) == size
    assert num_examples_in_round(DataLoader(data, batch_size=4)) is None


def test_seedable_sampler_keeps_options():
    generator = torch.Generator()
    plain = RandomSampler(range(20), replacement=True, num_samples=50, generator=generator)
    seeded = prepare_data_loader(
        DataLoader(range(20), sampler=plain), DataLoaderConfig(data_seed=3)
    ).batch_sampler.sampler
    assert isinstance(seeded, SeedableRandomSampler)
    assert seeded.seed == 3
    assert seeded.replacement
    assert len(list(seeded)) == 50
    assert seeded.generator is generator


class Loud:
    """A batch sampler that records the indices requested."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        raise AssertionError("data must not be loaded")


def test_skip_sampler_draws_skipped_batches():
    batches = BatchSampler(SequentialSampler(Loud(10)), batch_size=3, drop_last=False)
    rest = SkipBatchSampler(batches, 2)
    assert list(rest) == [[6, 7, 8], [9]]
    assert len(rest) == 2
    assert rest.batch_size == 3


def test_skip_sampler_may_skip_everything():
    batches = BatchSampler(SequentialSampler(range(4)), batch_size=2, drop_last=False)
    assert list(SkipBatchSampler(batches, 5)) == []
    assert len(SkipBatchSampler(batches, 5)) == 0
