"""Training on a stream resumes where its source can start again, and otherwise skips what was seen."""

import datasets
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate
from transformers import BatchEncoding

import portico
from models import ToyDataset, tiny_bert
from parity.peers import QUIET
from portico.checkpoint.resume import load_stream_position, save_stream_position
from portico.data.loaders import prepare_data_loader, skip_first_batches
from portico.data.sharding import DataLoaderConfig


class Seeking(IterableDataset):
    """A stream that knows its position, and counts the examples it has read."""

    def __init__(self, size=29):
        self.data, self.position, self.num_read = ToyDataset(size), 0, 0

    def __iter__(self):
        for index in range(self.position, len(self.data)):
            self.position, self.num_read = index + 1, self.num_read + 1
            yield self.data[index]
        self.position = 0

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


class Skipping(Seeking):
    """The same stream without a state."""

    state_dict = load_state_dict = property()


class StatefulLoader(DataLoader):
    """What torchdata's loader of this name does, with the data in this process."""

    def state_dict(self):
        return {"dataset": self.dataset.state_dict()}

    def load_state_dict(self, state):
        self.dataset.load_state_dict(state["dataset"])


def arrow_stream(size=29):
    data = ToyDataset(size)
    columns = {"input_ids": data.tokens.tolist(), "labels": data.labels.tolist()}
    return datasets.Dataset.from_dict(columns).to_iterable_dataset(num_shards=3)


def trained(folder, dataset, *, resume=None, trainer_class=portico.Trainer, **arguments):
    args = portico.TrainingArguments(
        str(folder),
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        **{**QUIET, "max_steps": 9, "save_strategy": "steps", "save_steps": 1, **arguments},
    )
    trainer = trainer_class(tiny_bert(), args, train_dataset=dataset)
    trainer.train(resume_from_checkpoint=resume and str(resume))
    return trainer


def assert_same_end(one, other):
    for name, tensor in one.model.state_dict().items():
        assert torch.equal(tensor, other.model.state_dict()[name]), name
    assert [log["loss"] for log in one.state.log_history if "loss" in log] == [
        log["loss"] for log in other.state.log_history if "loss" in log
    ]


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize(
    "make",
    [
        Seeking,
        arrow_stream,
        lambda size: arrow_stream(size).shuffle(seed=1, buffer_size=7),
        lambda size: StatefulLoader(Seeking(size), batch_size=4),
    ],
    ids=["own", "arrow", "buffered", "loader"],
)
def test_resumed_stream_ends_with_same_weights(make, accumulation, tmp_path):
    arguments = {"gradient_accumulation_steps": accumulation, "max_steps": 9 // accumulation}
    whole = trained(tmp_path, make(45), **arguments)
    resumed = trained(tmp_path / "resumed", make(45), resume=tmp_path / "checkpoint-3", **arguments)
    assert_same_end(resumed, whole)


class CountedReads(IterableDataset):
    """A stream whose reads are counted in files, by the processes that read."""

    def __init__(self, folder, size=45):
        self.data, self.folder, self.position = ToyDataset(size), folder, 0

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        for place in range(self.position, len(range(first, len(self.data), step))):
            self.position = place + 1
            with (self.folder / f"reads-{first}").open("a") as reads:
                reads.write(".")
            yield self.data[first + place * step]
        self.position = 0

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("settings", [{}, {"accelerator_config": {"dispatch_batches": False}}], ids=str)
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_torchdatas_loader_reads_on_where_it_was(settings, num_workers, tmp_path):
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    runs, reads = {}, {}
    for name, resume in {"whole": None, "rest": tmp_path / "whole" / "checkpoint-6"}.items():
        (tmp_path / name).mkdir()
        loader = stateful.StatefulDataLoader(CountedReads(tmp_path / name), batch_size=4, num_workers=num_workers)

        class Loading(portico.Trainer):
            def get_train_dataloader(self, loader=loader):
                return self.accelerator.prepare(loader)

        runs[name] = trained(tmp_path / name, loader.dataset, resume=resume, trainer_class=Loading, **settings)
        reads[name] = sum(len(file.read_text()) for file in (tmp_path / name).glob("reads-*"))
    assert (tmp_path / "whole" / "checkpoint-6" / "stream_position.pt").exists()
    assert_same_end(runs["rest"], runs["whole"])
    # Batches ahead are read, two by each worker.
    assert reads["whole"] >= 36
    assert reads["rest"] <= 45 - 24


def test_source_that_seeks_reads_on_where_it_was(tmp_path):
    whole, stream = trained(tmp_path, Seeking(50)), Seeking(50)
    resumed = trained(tmp_path / "resumed", stream, resume=tmp_path / "checkpoint-6")
    assert_same_end(resumed, whole)
    # Six batches of four were seen; three, and one ahead, are read.
    assert stream.num_read == 0  # a copy of the stream is read, and this one starts at its start again
    assert resumed.module.run.epoch_loader.dataset.num_read == 16


def test_other_source_is_skipped_with_progress_bar(tmp_path, capsys):
    stream = Skipping(50)
    trained(tmp_path, Skipping(50))
    assert not (tmp_path / "checkpoint-6" / "stream_position.pt").exists()
    resumed = trained(tmp_path / "resumed", stream, resume=tmp_path / "checkpoint-6", disable_tqdm=False)
    assert "Skipping batches: 100%" in capsys.readouterr().err
    assert resumed.module.run.epoch_loader.dataset.num_read == 40
    assert stream.num_read == 40


def in_named_columns(examples):
    """Collate as the tokenizers of transformers pad."""
    return BatchEncoding(default_collate(examples))


def in_one_tensor(examples):
    return default_collate(examples)["input_ids"]


@pytest.mark.parametrize("collate", [default_collate, in_named_columns, in_one_tensor])
def test_the_process_that_reads_for_all_writes_where_it_stands(collate, tmp_path):
    sent = []

    def send(batch):
        sent.append(batch)
        return batch

    loaders = []
    for index, broadcast in enumerate((send, lambda _: sent.pop(0))):
        config = DataLoaderConfig(num_processes=2, process_index=index, broadcast=broadcast)
        loaders.append(prepare_data_loader(DataLoader(Seeking(17), batch_size=2, collate_fn=collate), config))
        loaders[-1].num_positions_kept = 9
        batches = list(loaders[-1])
        save_stream_position(str(tmp_path), loaders[-1], 2)
    reader = loaders[0]

    reader.config = DataLoaderConfig(num_processes=2)
    position = load_stream_position(str(tmp_path), reader, 2)
    assert position["source"] == {"position": 8}
    rest = list(skip_first_batches(reader, 2, position))
    assert len(rest) == 3
    assert len(batches) == 5
    # The last batch, of one example, is completed with the first of the epoch.
    ids = [batch if isinstance(batch, torch.Tensor) else batch["input_ids"] for batch in rest]
    torch.testing.assert_close(ids[-1], Seeking().data.tokens[16:17])
    last = batches[-1] if isinstance(batches[-1], torch.Tensor) else batches[-1]["input_ids"]
    torch.testing.assert_close(last, Seeking().data.tokens[:1])


class Counting(Seeking):
    """A stream whose state holds an object that is not loaded from files of unknown origin."""

    def state_dict(self):
        return {"position": np.array(self.position)}


def test_state_that_cannot_be_loaded_is_left_out(tmp_path, caplog):
    whole = trained(tmp_path / "whole", Counting(50))
    assert "`state_dict` of the stream `Counting` holds objects that are not loaded from files, so" in caplog.text
    assert not (tmp_path / "whole/checkpoint-6/stream_position.pt").exists()
    resumed = trained(tmp_path / "resumed", Counting(50), resume=tmp_path / "whole/checkpoint-6")
    assert_same_end(resumed, whole)


def test_position_of_other_batches_is_not_used(tmp_path):
    trained(tmp_path, Seeking(60))
    resumed = trained(
        tmp_path / "resumed", Seeking(60), resume=tmp_path / "checkpoint-3", gradient_accumulation_steps=2, max_steps=5
    )
    # By the count of steps, as transformers: 3 steps of 2 batches, where the checkpoint saw 3 batches.
    assert resumed.module.run.epoch_loader.dataset.num_read == 44
    assert resumed.module.run.epoch_loader.num_batches_to_skip == 6
