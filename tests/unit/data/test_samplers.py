import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

from portico.data.samplers import SeedableRandomSampler, SkipBatchSampler


def test_the_order_is_that_of_seed_plus_epoch():
    sampler = SeedableRandomSampler(range(20), seed=3)
    orders = [list(sampler), list(sampler)]
    assert orders[0] != orders[1]
    for epoch, order in enumerate(orders):
        generator = torch.Generator().manual_seed(3 + epoch)
        assert order == list(RandomSampler(range(20), generator=generator))


def test_an_epoch_can_be_chosen():
    sampler = SeedableRandomSampler(range(20), seed=3)
    first, second = list(sampler), list(sampler)
    sampler.set_epoch(1)
    assert list(sampler) == second
    sampler.set_epoch(0)
    assert list(sampler) == first


def test_the_global_generator_is_left_alone():
    before = torch.get_rng_state()
    list(SeedableRandomSampler(range(20), seed=3))
    assert torch.equal(torch.get_rng_state(), before)


def test_without_a_seed_that_of_the_global_generator_is_taken():
    torch.manual_seed(11)
    assert list(SeedableRandomSampler(range(20))) == list(SeedableRandomSampler(range(20), seed=11))


def test_the_counterpart_keeps_what_the_sampler_was_told():
    generator = torch.Generator()
    plain = RandomSampler(range(20), replacement=True, num_samples=50, generator=generator)
    seeded = SeedableRandomSampler.like(plain, 3)
    assert seeded.replacement
    assert len(list(seeded)) == 50
    assert seeded.generator is generator


class Loud:
    """Tells which batch indices were asked for."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        raise AssertionError("data must not be loaded")


def test_skipped_batches_are_drawn_but_not_loaded():
    batches = BatchSampler(SequentialSampler(Loud(10)), batch_size=3, drop_last=False)
    rest = SkipBatchSampler(batches, 2)
    assert list(rest) == [[6, 7, 8], [9]]
    assert len(rest) == 2
    assert rest.batch_size == 3


def test_more_can_be_skipped_than_there_is():
    batches = BatchSampler(SequentialSampler(range(4)), batch_size=2, drop_last=False)
    assert list(SkipBatchSampler(batches, 5)) == []
    assert len(SkipBatchSampler(batches, 5)) == 0
