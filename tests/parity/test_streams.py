"""The same training on streams that are short, end early or are empty."""

import pytest
import transformers
from transformers import TrainerCallback

import portico
from models import ToyStream
from parity.peers import compare, run

LIBRARIES = [transformers, portico]
SAVED = {"save_strategy": "steps", "save_steps": 1}
EVALUATED = {"eval_strategy": "steps", "eval_steps": 2}
BY_ALL = {"accelerator_config": {"dispatch_batches": False}}


class OneShot(ToyStream):
    """A stream that can be iterated once."""

    def __init__(self, size):
        super().__init__(size)
        self.rest = super().__iter__()

    def __iter__(self):
        return self.rest


@pytest.mark.parametrize("window", [2, 3])
@pytest.mark.parametrize("size", [11, 12, 13])
@pytest.mark.parametrize("drop_last", [False, True])
def test_same_numbers_on_short_stream(size, window, drop_last, tmp_path):
    compare(
        tmp_path,
        train_dataset=lambda: ToyStream(size, draws=True),
        gradient_accumulation_steps=window,
        dataloader_drop_last=drop_last,
        max_steps=4,
        **EVALUATED,
    )


@pytest.mark.filterwarnings("ignore:Length of IterableDataset")
def test_same_evaluation_of_a_stream_that_yields_more_than_its_length(tmp_path):
    class Sized(ToyStream):
        def __len__(self):
            return 10

    # Each of the workers reads the whole stream.
    compare(tmp_path, eval_dataset=lambda: Sized(10), dataloader_num_workers=2, max_steps=2, **EVALUATED)


@pytest.mark.parametrize("ignore_data_skip", [False, True])
def test_same_numbers_after_resume_on_short_stream(ignore_data_skip, tmp_path):
    options = {
        "train_dataset": lambda: ToyStream(13),
        "gradient_accumulation_steps": 2,
        "max_steps": 5,
        "ignore_data_skip": ignore_data_skip,
    }
    # The third step is in the second epoch.
    run(transformers, tmp_path / "first", **SAVED, **options)
    compare(tmp_path, resume=str(tmp_path / "first" / "checkpoint-3"), **options)


def test_training_ends_with_stream_read_by_every_process(tmp_path):
    ours, _ = compare(tmp_path, train_dataset=lambda: OneShot(8), max_steps=7, **BY_ALL)
    assert ours.train_output.global_step == 2


@pytest.mark.parametrize("library", LIBRARIES)
def test_exhausted_stream_is_rejected(library, tmp_path):
    with pytest.raises(ValueError, match=r"(?i)batch"):
        run(library, tmp_path, train_dataset=lambda: OneShot(8), max_steps=7, **SAVED)
    # The weights trained so far are kept.
    assert {folder.name for folder in tmp_path.glob("checkpoint-*")} == {"checkpoint-1", "checkpoint-2"}


@pytest.mark.parametrize("library", LIBRARIES)
def test_empty_evaluation_stream_is_rejected(library, tmp_path):
    with pytest.raises(ValueError, match=r"(?i)batch"):
        run(library, tmp_path, eval_dataset=lambda: ToyStream(0), max_steps=2, **EVALUATED)


class StopAfterEpoch(TrainerCallback):
    def on_epoch_end(self, args, state, control, **kwargs):
        control.should_training_stop = True


def test_run_can_be_stopped_before_first_step(tmp_path):
    """Without the callback transformers never ends, and portico raises (tests/unit/loop/test_validation.py)."""
    options = {"train_dataset": lambda: ToyStream(8), "gradient_accumulation_steps": 3, "max_steps": 2}
    ours, _ = compare(tmp_path, callbacks=[StopAfterEpoch], **options)
    assert ours.train_output.global_step == 0
