import pytest
import torch
from torch.utils.data import DataLoader

from portico.data.loaders import DataLoaderConfig, DataLoaderDispatcher, prepare_data_loader, skip_first_batches
from portico.errors import InputError
from unit.loading.test_loaders import Numbers, NumberStream


def loaders(dataset, batch_size=2, drop_last=False, **options):
    """Return the loaders of two processes, of which the second replays what the first one sent."""
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


def values(loader):
    return [batch.tolist() for batch in loader]


def test_every_process_gets_its_part_of_what_the_first_one_reads():
    first, second = loaders(NumberStream(8))
    assert isinstance(first, DataLoaderDispatcher)
    assert values(first) == [[0, 1], [4, 5]]
    assert values(second) == [[2, 3], [6, 7]]


@pytest.mark.parametrize(
    ("size", "parts"),
    [(7, ([[0, 1], [4, 5]], [[2, 3], [6, 0]])), (5, ([[0, 1], [4]], [[2, 3], [0]])), (1, ([[0]], [[0]]))],
)
def test_the_last_batch_is_completed_from_the_first(size, parts):
    first, second = loaders(NumberStream(size))
    assert (values(first), values(second)) == parts
    assert first.end_of_dataloader
    assert first.remainder == second.remainder == (size % 4 or 4)


def test_an_incomplete_last_batch_can_be_dropped():
    first, second = loaders(NumberStream(7), drop_last=True)
    assert (values(first), values(second)) == ([[0, 1]], [[2, 3]])


def test_batches_can_be_split():
    first, second = loaders(NumberStream(6), batch_size=4, split_batches=True)
    assert (values(first), values(second)) == ([[0, 1], [4]], [[2, 3], [5]])


@pytest.mark.parametrize(("drop_last", "length"), [(False, 3), (True, 2)])
def test_the_length_counts_joint_batches(drop_last, length):
    first, _ = loaders(Numbers(10), dispatch_batches=True, drop_last=drop_last)
    assert len(first) == length
    assert len(loaders(Numbers(10), dispatch_batches=True, split_batches=True)[0]) == 5


def test_batches_are_skipped_after_they_were_sent():
    first, second = (skip_first_batches(loader, 1) for loader in loaders(NumberStream(8)))
    assert (values(first), values(second)) == ([[4, 5]], [[6, 7]])


class Ragged(NumberStream):
    def __iter__(self):
        return iter([torch.ones(2), torch.ones(3)])


def test_batches_that_cannot_be_joined_are_explained():
    first, _ = loaders(Ragged(), batch_size=1)
    with pytest.raises(RuntimeError, match=r"have the shapes \(1, 2\), \(1, 3\); pad .* `dispatch_batches=False`"):
        list(first)


def test_other_things_than_tensors_cannot_be_joined():
    first, _ = loaders(NumberStream(8))
    first.collate_fn = lambda examples: {"names": ["a", "b"]}
    with pytest.raises(TypeError, match=r"A batch holds a str, .* let the collator give tensors"):
        list(first)


def test_data_without_a_batch_are_refused_by_every_process():
    for loader in loaders(NumberStream(0)):
        with pytest.raises(InputError, match=r"`NumberStream`\) gave no batch .*\{'dispatch_batches': False\}"):
            list(loader)
