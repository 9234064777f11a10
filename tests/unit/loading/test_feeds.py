import sys

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from portico.data.datamodule import EvaluationFeed, TrainFeed


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))


def test_a_training_feed_opens_an_epoch_each_time():
    opened = []

    def open_epoch():
        opened.append(True)
        return iter("ab")

    feed = TrainFeed(2, open_epoch)
    assert len(feed) == 2
    assert opened == []
    assert [list(feed), list(feed)] == [["a", "b"], ["a", "b"]]
    assert len(opened) == 2


def test_a_training_feed_has_no_state_of_its_own():
    feed = TrainFeed(2, lambda: iter("ab"))
    feed.load_state_dict(feed.state_dict())
    assert feed.state_dict() == {}


@pytest.mark.parametrize(("loader", "length"), [([1, 2, 3], 3), (DataLoader(Stream()), sys.maxsize)])
def test_an_evaluation_feed_is_as_long_as_its_loader(loader, length):
    feed = EvaluationFeed(loader)
    assert len(feed) == length
    assert [int(batch) for batch in feed] == [int(batch) for batch in loader]


def test_a_feed_is_no_loader_and_draws_nothing_before_its_first_batch():
    feed = EvaluationFeed(DataLoader(range(4)))
    assert not isinstance(feed, DataLoader)
    before = torch.get_rng_state()
    iter(feed)
    assert torch.equal(torch.get_rng_state(), before)
