"""Controls of the order of the data, and of the moment at which it is fetched."""

import itertools

from torch.utils.data import DataLoader, RandomSampler

from portico.distributed.loaders import DataLoaderShard, SeedableRandomSampler
from portico.loop.corrections import Corrections
from portico.loop.datamodule import TrainFeed
from portico.loop.run import TrainingRun
from portico.trainer import Trainer


def order_not_seeded(patch):
    """Torch's own sampler shuffles, with the global generator."""
    patch.setattr(SeedableRandomSampler, "__iter__", RandomSampler.__iter__)


def same_order_each_epoch(patch):
    """The seed of the order ignores the epoch."""
    draw = SeedableRandomSampler.__iter__

    def first_epoch(self):
        self.epoch = 0
        yield from draw(self)

    patch.setattr(SeedableRandomSampler, "__iter__", first_epoch)


def extra_iterator(patch):
    """A loader is iterated once more than necessary, which draws a base seed."""
    open_epoch = TrainingRun._epoch_loader

    def iterated_twice(self):
        opened = open_epoch(self)
        DataLoader.__iter__(opened[0])
        return opened

    patch.setattr(TrainingRun, "_epoch_loader", iterated_twice)


def no_look_ahead(patch):
    """Each batch is fetched on demand, so the last one is not known to be the last."""

    def on_demand(self):
        self.end_of_dataloader, self.remainder = False, -1
        self.set_epoch(self.epoch)
        with self.announce(self):
            for index, batch in enumerate(DataLoader.__iter__(self)):
                if index >= self.num_batches_to_skip:
                    yield self._prepared(batch, False)
        self.epoch += 1

    patch.setattr(DataLoaderShard, "__iter__", on_demand)


def windows_batch_by_batch(patch):
    """The batches of a window are fetched between its training steps."""

    class Window:
        is_exhausted = False

        def __init__(self, batches, size):
            self.batches, self.size = batches, size

        def __len__(self):
            return self.size

        def __iter__(self):
            yield from itertools.islice(self.batches, self.size)
            self.is_exhausted = True

        def shares(self):
            while not self.is_exhausted:
                yield None

    patch.setattr(Trainer, "get_batch_samples", lambda self, batches, size, device: (Window(batches, size), None))
    patch.setattr(Corrections, "shared_out", lambda self, window, loader, is_summed: (window, window.shares()))


def feed_without_length(patch):
    """Lightning does not know the number of batches."""
    patch.delattr(TrainFeed, "__len__")


def lengths_not_grouped(patch):
    """Batches are not made of examples of similar length or cost."""
    patch.setattr(Trainer, "_get_train_sampler", lambda self, dataset=None: RandomSampler(dataset))
