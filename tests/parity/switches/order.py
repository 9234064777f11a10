"""Switches of the order in which data come, and of when they are fetched."""

import itertools

from torch.utils.data import DataLoader, RandomSampler

from portico.data.datamodule import TrainFeed
from portico.data.loaders import SeedableRandomSampler
from portico.loop.run import TrainingRun
from portico.trainer import Trainer


def plain_order(patch):
    """The global generator shuffles, as torch's own sampler has it."""
    patch.setattr("portico.data.loaders._seed_order", lambda batches, sharing: None)


def same_order_each_epoch(patch):
    """The order's seed forgets the epoch."""
    draw = SeedableRandomSampler.__iter__

    def first_epoch(self):
        self.epoch = 0
        yield from draw(self)

    patch.setattr(SeedableRandomSampler, "__iter__", first_epoch)


def extra_iterator(patch):
    """A loader is looked into once too often."""
    open_epoch = TrainingRun._epoch_loader

    def looked_into(self):
        opened = open_epoch(self)
        DataLoader.__iter__(opened[0])
        return opened

    patch.setattr(TrainingRun, "_epoch_loader", looked_into)


def no_look_ahead(patch):
    """A batch is fetched when it is asked for, so nobody knows the last one."""
    patch.setattr("portico.data.loaders.with_last_flag", lambda batches: ((batch, False) for batch in batches))


def windows_batch_by_batch(patch):
    """The batches of a window are fetched between its training steps."""

    class Window:
        def __init__(self, batches, size):
            self.batches, self.size = batches, size

        def __len__(self):
            return self.size

        def __iter__(self):
            return itertools.islice(self.batches, self.size)

    patch.setattr(Trainer, "get_batch_samples", lambda self, batches, size, device: (Window(batches, size), None))


def feed_without_length(patch):
    """Lightning does not know how many batches come."""
    patch.delattr(TrainFeed, "__len__")


def costs_unknown(patch):
    """Batches are not made of examples that cost as much together."""
    patch.setattr(Trainer, "_get_train_sampler", lambda self, dataset=None: RandomSampler(dataset))
