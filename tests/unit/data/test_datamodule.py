import logging
import sys

import pytest
import torch
import transformers
from torch.utils.data import DataLoader, IterableDataset

import portico
from models import Line, Points, toy_arguments, toy_trainer
from portico.data.datamodule import EvaluationFeed, TrainFeed
from portico.errors import InputError


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))


def test_train_feed_opens_an_epoch_per_iteration():
    opened = []

    def open_epoch():
        opened.append(True)
        return iter("ab")

    feed = TrainFeed(2, open_epoch)
    assert len(feed) == 2
    assert opened == []
    assert [list(feed), list(feed)] == [["a", "b"], ["a", "b"]]
    assert len(opened) == 2


def test_train_feed_is_stateless():
    feed = TrainFeed(2, lambda: iter("ab"))
    feed.load_state_dict(feed.state_dict())
    assert feed.state_dict() == {}


def test_evaluation_does_not_stop_at_the_length_of_a_batch_sampler(tmp_path):
    class MoreThanItSays(list):
        def __len__(self):
            return 1

    sampler = MoreThanItSays([[0, 1], [2], [3, 4, 5]])
    losses = {}
    for library in (transformers, portico):

        class Own(library.Trainer):
            def get_eval_dataloader(self, eval_dataset=None):
                return self.accelerator.prepare(DataLoader(Points(6, seed=1), batch_sampler=sampler))

        args = toy_arguments(tmp_path, library.TrainingArguments)
        trainer = Own(model=Line(), args=args, eval_dataset=Points(6, seed=1))
        losses[library.__name__] = trainer.evaluate()["eval_loss"]
    assert losses["portico"] == losses["transformers"]


@pytest.mark.parametrize(("loader", "length"), [([1, 2, 3], 3), (DataLoader(Stream()), sys.maxsize)])
def test_evaluation_feed_has_the_length_of_its_loader(loader, length):
    feed = EvaluationFeed(loader)
    assert len(feed) == length
    assert [int(batch) for batch in feed] == [int(batch) for batch in loader]


def test_feed_draws_nothing_before_first_batch():
    feed = EvaluationFeed(DataLoader(range(4)))
    assert not isinstance(feed, DataLoader)
    before = torch.get_rng_state()
    iter(feed)
    assert torch.equal(torch.get_rng_state(), before)


datasets = pytest.importorskip("datasets")


def columned(size=8, **extra):
    points = Points(size)
    columns = {"x": points.x.tolist(), "labels": points.y.tolist()}
    return datasets.Dataset.from_dict({**columns, **{name: [value] * size for name, value in extra.items()}})


def test_unused_columns_are_removed_and_logged_once(tmp_path, caplog):
    parts = {"train_dataset": columned(title="x", number=3), "eval_dataset": columned(title="x")}
    trainer = toy_trainer(tmp_path, parts=parts, eval_strategy="epoch")
    with caplog.at_level(logging.INFO, logger="transformers"):
        trainer.train()
    told = [record.message for record in caplog.records if "are left out" in record.message]
    assert told == [
        "Columns of the training set that `Line.forward` does not take are left out: number, title.",
        "Columns of the evaluation set that `Line.forward` does not take are left out: title.",
    ]


def test_columned_dataset_trains(tmp_path):
    columned_run = toy_trainer(tmp_path / "a", parts={"train_dataset": columned(title="x")})
    plain_run = toy_trainer(tmp_path / "b", parts={"train_dataset": Points(8)})
    columned_run.train()
    plain_run.train()
    assert torch.equal(columned_run.model.linear.weight, plain_run.model.linear.weight)


def test_dataset_without_model_columns_is_rejected(tmp_path):
    data = datasets.Dataset.from_dict({"text": ["a", "b"], "title": ["a", "b"]})
    trainer = toy_trainer(tmp_path, parts={"train_dataset": data})
    match = r"signature: \(x, .* have been ignored: \[text, title\].*the training set; rename its columns"
    with pytest.raises(InputError, match=match):
        trainer.train()


def test_remove_unused_columns_off_passes_columns_to_collator(tmp_path):
    seen = set()

    def collate(examples):
        seen.update(examples[0])
        return {name: torch.tensor([example[name] for example in examples]) for name in ("x", "labels")}

    parts = {"train_dataset": columned(title="x"), "data_collator": collate}
    toy_trainer(tmp_path, parts=parts, remove_unused_columns=False, max_steps=1).train()
    assert seen == {"x", "labels", "title"}


def test_named_columned_datasets_are_evaluated(tmp_path):
    sets = datasets.DatasetDict({"a": columned(4, title="x"), "b": columned(6)})
    metrics = toy_trainer(tmp_path, parts={"eval_dataset": sets}).evaluate()
    assert {"eval_a_loss", "eval_b_loss"} <= metrics.keys()


def test_columned_stream_trains(tmp_path):
    stream = columned(8, title="x").to_iterable_dataset()
    trainer = toy_trainer(tmp_path, parts={"train_dataset": stream}, max_steps=6)
    assert trainer.train().global_step == 6
    assert "eval_loss" in trainer.evaluate(columned(4).to_iterable_dataset())
