"""Loaders yield combined batches."""

import logging
import threading
import time

import pytest
import torch
from torch.utils.data import IterableDataset, TensorDataset
from transformers import BatchEncoding

import poptorch_emulator as poptorch
from emulator_peers import Perceptron, options

MODES = poptorch.DataLoaderMode


class Numbers(IterableDataset):
    def __iter__(self):
        return iter(range(10))


def numbers(size=10):
    return TensorDataset(torch.arange(size))


def loaded(loader):
    return [batch[0].tolist() if isinstance(batch, list) else batch.tolist() for batch in loader]


class TestSizes:
    def test_batches_have_the_size_of_a_call(self):
        loader = poptorch.DataLoader(options(2, 2, 3), numbers(30), batch_size=2)
        assert loader.combinedBatchSize == loader.batch_size == 24
        assert len(loader) == 1
        assert loader.options.device_iterations == 2

    def test_replicas_of_an_input_group_count_once(self):
        loader = poptorch.DataLoader(options(1, 4).inputReplicaGrouping(2), numbers(), batch_size=2)
        assert loader.combinedBatchSize == 4

    def test_batched_data_is_passed_through(self):
        loader = poptorch.DataLoader(options(2), numbers(3), batch_size=None)
        assert loader.combinedBatchSize is None
        assert [batch[0].item() for batch in loader] == [0, 1, 2]

    def test_incomplete_batch_is_dropped_or_warned_about(self, caplog):
        assert loaded(poptorch.DataLoader(options(2), numbers(5), batch_size=2)) == [[0, 1, 2, 3]]
        with caplog.at_level(logging.WARNING):
            loader = poptorch.DataLoader(options(2), numbers(5), batch_size=2, drop_last=False)
        assert "5 rows, which is not a multiple of the combined batch size 4: the last batch has 1" in caplog.text
        assert loaded(loader)[-1] == [4]


class TestBatchSampler:
    def test_batches_are_joined(self):
        sampler = torch.utils.data.BatchSampler(range(10), 2, drop_last=False)
        loader = poptorch.DataLoader(options(2), numbers(), batch_sampler=sampler)
        assert loaded(loader) == [[0, 1, 2, 3], [4, 5, 6, 7]]
        assert len(loader) == 2
        assert loader.combinedBatchSize == 4
        rest = poptorch.DataLoader(options(2), numbers(), batch_sampler=sampler, drop_last=False)
        assert loaded(rest)[-1] == [8, 9]
        assert len(rest) == 3


class TestAsynchronous:
    def test_batches_and_their_order_do_not_change(self):
        loader = poptorch.DataLoader(options(2), numbers(12), batch_size=2, mode=MODES.Async)
        assert loaded(loader) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
        assert loaded(loader) == loaded(loader)
        loader.terminate()

    def test_iteration_can_stop_early(self):
        loader = poptorch.DataLoader(options(), numbers(1000), mode=MODES.Async)
        assert [batch[0].item() for batch, _ in zip(loader, range(3), strict=False)] == [0, 1, 2]

    @pytest.mark.parametrize("buffer_size", [1, 3])
    @pytest.mark.parametrize("size", [2, 1000])
    def test_termination_ends_an_iteration(self, size, buffer_size):
        accessor = poptorch.AsynchronousDataAccessor(list(torch.arange(size)), buffer_size=buffer_size)
        batches = iter(accessor)
        assert next(batches).item() == 0
        accessor.terminate()
        assert list(batches) == []
        assert len(list(accessor)) == size

    def test_termination_wakes_a_thread_that_waits_for_a_batch(self):
        loading, found = threading.Event(), []

        def batches():
            yield torch.zeros(1)
            loading.wait()

        accessor = poptorch.AsynchronousDataAccessor(batches())
        consumer = threading.Thread(target=lambda: found.extend(accessor), daemon=True)
        consumer.start()
        while not found:
            time.sleep(0.001)
        accessor.terminate()
        loading.set()
        consumer.join(timeout=60)
        assert not consumer.is_alive()
        assert len(found) == 1

    @pytest.mark.parametrize("workers", [0, 2])
    def test_workers_load_smaller_batches(self, workers):
        loader = poptorch.DataLoader(
            options(2),
            numbers(),
            batch_size=2,
            num_workers=workers,
            mode=MODES.AsyncRebatched,
            rebatched_worker_size=3,
        )
        assert loaded(loader) == [[0, 1, 2, 3], [4, 5, 6, 7]]
        assert len(loader) == 2
        loader.terminate()

    def test_last_incomplete_batch_is_kept_without_drop_last(self):
        loader = poptorch.DataLoader(options(2), numbers(), 2, drop_last=False, mode=MODES.Async)
        assert loaded(loader)[-1] == [8, 9]
        assert len(loader) == 3

    @pytest.mark.parametrize(
        ("arguments", "options_of_mode", "message"),
        [
            ((options(2), 2), {"rebatched_worker_size": 5}, "_worker_size must be at most the combined batch size 4"),
            ((options(), None), {}, "AsyncRebatched needs a batch_size"),
            (({}, 1), {}, "options must be of type Options"),
        ],
    )
    def test_what_makes_no_batches_is_refused(self, arguments, options_of_mode, message):
        chosen, batch_size = arguments
        with pytest.raises(AssertionError, match=message):
            poptorch.DataLoader(chosen, numbers(), batch_size, mode=MODES.AsyncRebatched, **options_of_mode)

    def test_batches_that_are_not_plain_dicts_are_refused(self):
        def collate(rows):
            return BatchEncoding({"x": torch.stack([row[0] for row in rows])})

        loader = poptorch.DataLoader(options(), numbers(), mode=MODES.Async, collate_fn=collate)
        with pytest.raises(poptorch.Error, match="A batch holds a BatchEncoding"):
            next(iter(loader))

    def test_errors_of_the_data_are_raised(self):
        def collate(rows):
            raise KeyError("no such column")

        with pytest.raises(KeyError, match="no such column"):
            next(iter(poptorch.DataLoader(options(), numbers(), mode=MODES.Async, collate_fn=collate)))


class TestProcesses:
    """Every process reads its own rows, in as many batches as the others."""

    def loaders(self, dataset, count=2, batch_size=1, chosen=None, seed=None, **changes):
        for process in range(count):
            own = (chosen or options()).clone()
            if seed is not None:
                own.randomSeed(seed)
            own.Distributed.configureProcessId(process, count)
            yield poptorch.DataLoader(own, dataset, batch_size=batch_size, **changes)

    def test_parts_are_blocks_of_full_combined_batches(self):
        found = [loaded(loader) for loader in self.loaders(numbers(11), batch_size=2, chosen=options(2))]
        assert found == [[[0, 1, 2, 3]], [[4, 5, 6, 7]]]
        assert [loaded(loader) for loader in self.loaders(numbers(4))] == [[[0], [1]], [[2], [3]]]

    def test_parts_are_shares_of_all_rows_without_drop_last(self):
        found = [loaded(loader) for loader in self.loaders(numbers(11), 3, batch_size=3, drop_last=False)]
        assert found == [[[0, 1, 2], [3]], [[4, 5, 6], [7]], [[8, 9, 10]]]

    @pytest.mark.parametrize("workers", [0, 1])
    def test_all_draw_the_same_order_which_changes_with_the_epoch(self, workers):
        first, second = self.loaders(numbers(11), shuffle=True, seed=1, num_workers=workers)
        generator, skipped = torch.Generator().manual_seed(1), 0
        for _ in range(3):
            order = torch.randperm(11, generator=generator).tolist()
            # A row is left over, and is the first or the last of the order in turn.
            skipped = 1 - skipped
            rows = [row for loader in (first, second) for batch in loaded(loader) for row in batch]
            assert rows == order[skipped : skipped + 10]
        first.terminate()
        second.terminate()

    @pytest.mark.parametrize(
        ("dataset", "changes", "message"),
        [
            (numbers(), {"shuffle": True}, r"need poptorch.Options.randomSeed"),
            (numbers(), {"batch_size": None}, "batch_size=None not allowed when using auto_distributed_partitioning"),
            (Numbers(), {}, "auto_distributed_partitioning not supported for IterableDataset"),
        ],
    )
    def test_data_that_cannot_be_divided_are_refused(self, dataset, changes, message):
        with pytest.raises(AssertionError, match=message):
            list(self.loaders(dataset, **changes))

    def test_all_read_everything_without_partitioning(self):
        for loader in self.loaders(Numbers(), auto_distributed_partitioning=False):
            assert len(loaded(loader)) == 10


def test_accessors_join_and_cut_batches_to_a_size():
    rows = torch.arange(10).split(3)
    found = poptorch.AsynchronousDataAccessor(rows, rebatched_size=4)
    assert [batch.tolist() for batch in found] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    with pytest.raises(TypeError, match="unexpected keyword argument 'rebatch'"):
        poptorch.AsynchronousDataAccessor(rows, rebatch=4)


def test_iterable_data_with_several_workers_warns(caplog):
    with caplog.at_level(logging.WARNING):
        poptorch.DataLoader(options(), Numbers(), num_workers=2)
    assert "the 2 workers return each element 2 times" in caplog.text


@pytest.mark.parametrize("mode", list(poptorch.DataLoaderMode))
def test_loaders_feed_programs(mode):
    data = torch.utils.data.TensorDataset(torch.arange(30.0).reshape(10, 3))
    chosen = options(2)
    loader = poptorch.DataLoader(chosen, data, batch_size=2, mode=mode)
    executor = poptorch.inferenceModel(Perceptron(), chosen)
    found = torch.cat([executor(x) for (x,) in loader])
    loader.terminate()
    assert torch.allclose(found, Perceptron()(data.tensors[0][:8]), atol=1e-6)
