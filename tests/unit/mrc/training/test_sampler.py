from collections import Counter

import pytest
from torch.utils.data import BatchSampler, ConcatDataset

from portico.data.sharding import BatchSamplerShard
from portico.mrc import IndividualDomainBatchSampler


def sampler(sizes=(10, 3, 7), batch_size=4, seed=5):
    return IndividualDomainBatchSampler(ConcatDataset([range(size) for size in sizes]), batch_size, seed)


def source(index, sizes=(10, 3, 7)):
    return 0 if index < sizes[0] else 1 if index < sizes[0] + sizes[1] else 2


def batches(indices, size=4):
    return list(BatchSampler(indices, size, drop_last=True))


def test_batches_are_of_one_source_and_take_turns():
    made = batches(sampler())
    assert [{source(index) for index in batch} for batch in made] == [{0}, {1}, {2}] * 3


def test_there_are_as_many_rounds_as_the_largest_has_batches():
    assert len(sampler()) == len(list(sampler())) == 4 * 3 * 3
    assert len(sampler(sizes=(8, 1))) == 4 * 2 * 2


def test_a_small_source_begins_anew_when_all_of_it_was_seen():
    of_second = [index for index in sampler() if source(index) == 1]
    assert len(of_second) == 12
    for start in range(0, 12, 3):
        assert sorted(of_second[start : start + 3]) == [10, 11, 12]
    assert len({tuple(of_second[start : start + 3]) for start in range(0, 12, 3)}) > 1


def test_the_largest_is_seen_whole_before_it_begins_anew():
    of_first = [index for index in sampler() if source(index) == 0]
    assert Counter(of_first[:10]) == Counter(range(10))
    assert of_first[:10] != list(range(10))


def test_the_order_depends_on_seed_and_epoch_alone():
    first, same, other = sampler(), sampler(), sampler(seed=99)
    assert list(first) == list(same)
    assert list(other) != list(same)
    second = list(first)
    assert second != list(sampler())
    fresh = sampler()
    fresh.set_epoch(1)
    assert list(fresh) == second


@pytest.mark.parametrize("num_processes", [2, 3])
def test_each_process_gets_batches_of_one_source(num_processes):
    parts = []
    for rank in range(num_processes):
        whole = BatchSampler(sampler(), 4, drop_last=False)
        part = list(BatchSamplerShard(whole, num_processes=num_processes, process_index=rank))
        assert all(len({source(index) for index in batch}) == 1 for batch in part)
        parts.append(part)
    in_turn = [batch for batch_of_each in zip(*parts, strict=True) for batch in batch_of_each]
    assert in_turn[:9] == batches(sampler())
