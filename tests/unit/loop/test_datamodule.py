import gc
import inspect
import logging
import multiprocessing
import re
import sys
from collections import Counter
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
import transformers
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.core.hooks import CheckpointHooks, DataHooks, ModelHooks
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

import portico
from models import (
    Bag,
    Line,
    Points,
    PointStream,
    ToyDataset,
    pad_everything,
    tiny_bert,
    tiny_bert_config,
    tiny_llama,
    toy_arguments,
    toy_trainer,
)
from portico.distributed.accelerator import Accelerator
from portico.errors import InputError
from portico.loop.datamodule import EvaluationFeed, TrainFeed
from releases import since_transformers


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
    cure = "; set `remove_unused_columns=False` to keep them."
    told = [record.message for record in caplog.records if "are left out" in record.message]
    assert told == [
        f"Columns of the training set that `Line.forward` does not take are left out: number, title{cure}",
        f"Columns of the evaluation set that `Line.forward` does not take are left out: title{cure}",
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


# Loaders of the user's own -------------------------------------------------------------------------------------------


def test_loaders_are_used_as_they_are(tmp_path, caplog):
    train, evaluation = DataLoader(Points(), batch_size=5), DataLoader(Points(7, seed=1), batch_size=3)
    parts = {"train_dataset": train, "eval_dataset": evaluation}
    trainer = toy_trainer(tmp_path, parts=parts, eval_strategy="epoch", dataloader_drop_last=True)
    plain = toy_trainer(
        tmp_path,
        parts={"eval_dataset": Points(7, seed=1)},
        per_device_train_batch_size=5,
        per_device_eval_batch_size=3,
        train_sampling_strategy="sequential",
        eval_strategy="epoch",
    )
    with caplog.at_level(logging.WARNING, logger="transformers"):
        trainer.train()
        plain.train()
    assert trainer.state.global_step == 4
    for key in ("loss", "eval_loss"):
        assert [one[key] for one in trainer.state.log_history if key in one] == [
            one[key] for one in plain.state.log_history if key in one
        ]
    assert [record.message for record in caplog.records if "is used as it is" in record.message] == [
        "The training loader is used as it is, with batches of 5: per_device_train_batch_size=2, "
        "dataloader_drop_last=True has no effect on it; set it in the loader.",
        "The evaluation loader is used as it is, with batches of 3: per_device_eval_batch_size=2 has no effect on it; "
        "set it in the loader.",
    ]
    assert trainer.predict(DataLoader(Points(7), batch_size=4)).predictions.shape == (7, 1)
    assert {"eval_a_loss"} <= trainer.evaluate({"a": evaluation}).keys()


@pytest.mark.pinned
def test_own_loader_trains_as_under_transformers(tmp_path):
    def loader():
        return DataLoader(ToyDataset(), batch_size=4, shuffle=True, collate_fn=transformers.default_data_collator)

    class Theirs(transformers.Trainer):
        def get_train_dataloader(self):
            return self.accelerator.prepare(loader())

    options = {"report_to": "none", "use_cpu": True, "disable_tqdm": True, "logging_steps": 1, "save_strategy": "no"}
    histories = []
    for library, kind, data in ((transformers, Theirs, ToyDataset()), (portico, portico.Trainer, loader())):
        args = library.TrainingArguments(str(tmp_path), num_train_epochs=2, gradient_accumulation_steps=3, **options)
        trainer = kind(tiny_bert(), args, train_dataset=data)
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
        histories.append([(one["step"], one["loss"], one["grad_norm"]) for one in trainer.state.log_history[:-1]])
    assert histories[0] == histories[1]
    assert len(histories[0]) == 6


@pytest.mark.parametrize("accumulation", [1, 2])
def test_run_over_own_loader_resumes_in_an_epoch(accumulation, tmp_path):
    def trainer(folder):
        parts = {"train_dataset": DataLoader(Points(), batch_size=2, shuffle=True)}
        options = {"save_strategy": "steps", "save_steps": 1, "gradient_accumulation_steps": accumulation}
        return toy_trainer(folder, parts=parts, **options)

    whole, resumed = trainer(tmp_path), trainer(tmp_path / "resumed")
    whole.train()
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert torch.equal(resumed.model.linear.weight, whole.model.linear.weight)


def test_loader_without_a_length_needs_max_steps(tmp_path):
    data = {"train_dataset": DataLoader(PointStream(), batch_size=2)}
    with pytest.raises(InputError, match="Set `max_steps` to an int"):
        toy_trainer(tmp_path, parts=data)
    assert toy_trainer(tmp_path, parts=data, max_steps=7).train().global_step == 7


def test_loader_whose_batches_must_not_change_is_refused(tmp_path):
    data = {"train_dataset": DataLoader(Points(), batch_size=2)}
    trainer = toy_trainer(tmp_path, parts=data, auto_find_batch_size=True)
    trainer.evaluate()
    with pytest.raises(InputError, match="`auto_find_batch_size=True` makes batches smaller, which a given"):
        trainer.train()


def test_loader_that_divides_the_data_itself_is_refused_in_several_processes(tmp_path, monkeypatch):
    data = DataLoader(Points(), batch_size=2, sampler=DistributedSampler(Points(), num_replicas=2, rank=0))
    trainer = toy_trainer(tmp_path, parts={"train_dataset": data, "eval_dataset": data})
    assert trainer.train().global_step == 6  # 5 of 10 points
    monkeypatch.setattr(Accelerator, "data_parallel_size", 2)
    for kind, call in {"training": trainer.train, "evaluation": trainer.evaluate}.items():
        with pytest.raises(InputError, match=f"The {kind} loader divides its data over 2 processes, and the trainer"):
            call()


@since_transformers("5.17")
def test_processes_that_share_each_layer_see_the_same_batches(tmp_path, monkeypatch):
    trainer = toy_trainer(tmp_path, parts={"train_dataset": ToyDataset()}, train_sampling_strategy="batch_rebalance")
    monkeypatch.setattr(type(trainer.accelerator), "processes_per_batch", 2)
    monkeypatch.setattr(type(trainer.args), "world_size", 4)
    seen = []
    for rank in range(4):
        monkeypatch.setattr(type(trainer.args), "process_index", rank)
        seen.append(list(trainer._get_train_sampler()))
    assert seen[0] == seen[1] != seen[2] == seen[3]
    assert {index for batch in seen[0] + seen[2] for index in batch} == set(range(29))


class PointModule(pl.LightningDataModule):
    def __init__(self, validation=1, train=DataLoader):
        super().__init__()
        self.calls = []
        self.validation = validation
        self.train_kind = train

    def prepare_data(self):
        self.calls.append("prepare")

    def setup(self, stage):
        self.calls.append(stage)
        self.data = Points()

    def train_dataloader(self):
        return self.train_kind(self.data, batch_size=5)

    def val_dataloader(self):
        loaders = [DataLoader(Points(4 + index), batch_size=4) for index in range(self.validation)]
        return loaders if self.validation > 1 else loaders[0]

    def test_dataloader(self):
        return DataLoader(Points(3), batch_size=2)


@pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:.*LeafSpec:FutureWarning")
@pytest.mark.filterwarnings(r"ignore:Found \d+ module\(s\) in eval mode")
def test_data_module_gives_its_loaders(tmp_path):
    data = PointModule()
    trainer = toy_trainer(tmp_path, parts={"train_dataset": data, "eval_dataset": data}, eval_strategy="epoch")
    assert data.calls == ["prepare", "fit"]
    assert trainer.train().global_step == 4
    assert trainer.predict(data).predictions.shape == (3, 1)
    assert data.calls == ["prepare", "fit", "prepare", "test"]  # torn down after each
    assert data.trainer is not None
    plain = pl.Trainer(max_epochs=2, accelerator="cpu", barebones=True)
    other = toy_trainer(tmp_path, parts={"train_dataset": data})
    plain.fit(other.module, PointModule())
    assert torch.equal(other.model.linear.weight, trainer.model.linear.weight)


# Every hook of a data module, as Lightning calls it -----------------------------------------------------------------

# All methods that a subclass may override, but two that make objects.
DATA_HOOKS = sorted(
    name
    for kind in (DataHooks, pl.LightningDataModule)
    for name, method in vars(kind).items()
    if inspect.isfunction(method) and not name.startswith("_") and name != "from_datasets"
)


class WatchedPoints(pl.LightningDataModule):
    """Notes each call of a hook, with the stage of the ``lightning.Trainer`` that it can read."""

    def __init__(self):
        super().__init__()
        self.calls = Counter()

    def train_dataloader(self):
        return DataLoader(Points(), batch_size=5)

    def val_dataloader(self):
        return DataLoader(Points(4, seed=1), batch_size=4)

    def test_dataloader(self):
        return DataLoader(Points(6, seed=2), batch_size=2)

    predict_dataloader = test_dataloader

    def state_dict(self):
        return {"calls": 1}


def watching(name, hook):
    def watched(self, *args, **kwargs):
        stage = next((getattr(arg, "value", arg) for arg in [*args, *kwargs.values()] if isinstance(arg, str)), None)
        if "transfer" in name:
            stage = self.trainer.state.stage.value.replace(
                "test", "predict"
            )  # portico predicts in Lightning's test loop
        self.calls[name, stage] += 1
        return hook(self, *args, **kwargs)

    return watched


for hook_name in DATA_HOOKS:
    setattr(WatchedPoints, hook_name, watching(hook_name, getattr(WatchedPoints, hook_name)))


class PlainLine(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = Line()

    def training_step(self, batch, batch_idx):
        return self.model(**batch)["loss"]

    def validation_step(self, batch, batch_idx):
        return self.model(**batch)["loss"]

    test_step = predict_step = validation_step

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def plain_lightning(folder, **options):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    saves = ModelCheckpoint(folder, "{step}", save_top_k=-1)
    return pl.Trainer(accelerator="cpu", max_epochs=2, callbacks=[saves], num_sanity_val_steps=0, **quiet, **options)


def runs_of_lightning(folder, module, data):
    """Run everything that a ``lightning.Trainer`` can do with a data module; then break."""
    for _ in range(2):
        runner = plain_lightning(folder)
        runner.fit(module, data)
        runner.test(module, data, verbose=False)
    plain_lightning(folder).fit(module, data, ckpt_path=folder / "step=2.ckpt")
    yield
    runner.validate(module, data, verbose=False)
    runner.predict(module, data)
    yield
    module.training_step = lambda batch, batch_idx: batch["x"].nothing()
    with pytest.raises(AttributeError):
        plain_lightning(folder).fit(module, data)
    yield


def trainer_of(data, folder, **parts):
    data = {"train_dataset": data, "eval_dataset": data}
    return toy_trainer(folder, parts={**data, **parts}, eval_strategy="epoch", save_strategy="epoch")


def runs_of_portico(folder, data):
    trainer = trainer_of(data, folder)
    for _ in range(2):
        trainer.train()
        trainer.predict(data)
    trainer.train(resume_from_checkpoint=str(folder / "checkpoint-2"))
    yield
    yield
    trainer.compute_loss = lambda model, inputs, **options: inputs["x"].nothing()
    with pytest.raises(AttributeError):
        trainer.train()
    yield


def counted(data, runs):
    """Return the calls of the hooks after each part of ``runs``."""
    return [Counter({call: num for call, num in data.calls.items() if call[0] != "state_dict"}) for _ in runs]


LIGHTNINGS_ADVICE = [
    "ignore:.*does not have many workers",
    "ignore:.*LeafSpec:FutureWarning",
    r"ignore:Found \d+ module\(s\) in eval mode",
    "ignore:The number of training batches",
    "ignore:Checkpoint directory .* exists",
    "ignore:Be aware that when using `ckpt_path`",
]


@pytest.mark.filterwarnings(*LIGHTNINGS_ADVICE)
def test_every_hook_of_a_data_module_is_called_as_under_lightning(tmp_path):
    data = WatchedPoints()
    trained, _, failed = expected = counted(data, runs_of_lightning(tmp_path / "lightning", PlainLine(), data))
    assert {name for name, _ in data.calls} == set(DATA_HOOKS)
    data = WatchedPoints()
    own = trainer_of(data, tmp_path)
    assert counted(data, runs_of_lightning(tmp_path / "own", own.module, own.datamodule)) == expected
    assert data.calls["state_dict", None] > 0
    data = WatchedPoints()
    under_portico = counted(data, runs_of_portico(tmp_path / "portico", data))
    assert under_portico[0] == trained
    assert under_portico[2] - under_portico[1] == failed - expected[1]
    assert data.calls["state_dict", None] > 0


@pytest.mark.filterwarnings(*LIGHTNINGS_ADVICE)
def test_data_module_changes_batches_on_the_device_as_under_lightning(tmp_path):
    class Doubled(PointModule):
        def on_after_batch_transfer(self, batch, dataloader_idx):
            return {**batch, "x": 2 * batch["x"]} if self.trainer.training else batch

    class DoubledPoints(Points):
        def __getitem__(self, index):
            return {**super().__getitem__(index), "x": 2 * self.x[index]}

    trainer = toy_trainer(tmp_path, parts={"train_dataset": Doubled(), "eval_dataset": Doubled()}, save_steps=3)
    trainer.train()
    expected = toy_trainer(tmp_path, parts={"train_dataset": DataLoader(DoubledPoints(), 5)})
    expected.train()
    assert torch.equal(trainer.model.linear.weight, expected.model.linear.weight)
    assert trainer.evaluate()["eval_loss"] == expected.evaluate(DataLoader(Points(4), 4))["eval_loss"]


# All methods of a module that a subclass may override, but those of a trainer's model: `forward`, and torch's own.
MODULE_HOOKS = sorted(
    name
    for kind in (CheckpointHooks, DataHooks, ModelHooks, pl.LightningModule)
    for name, method in vars(kind).items()
    if inspect.isfunction(method) and not name.startswith("_") and name != "forward"
)


def test_hooks_of_a_lightning_module_that_is_the_model_are_named(tmp_path, caplog):
    called = []

    class Own(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = Line()

        def forward(self, x, labels=None):
            return self.model(x, labels)

    def noting(name):
        return lambda self, *args, **kwargs: called.append(name)

    for name in MODULE_HOOKS:
        setattr(Own, name, noting(name))
    trainer = toy_trainer(tmp_path, parts={"model": Own()}, eval_strategy="epoch", save_strategy="epoch")
    assert trainer.train().global_step == 10
    trainer.predict(Points(4))
    trainer.train(resume_from_checkpoint=True)
    assert called == []
    (warning,) = [record.message for record in caplog.records if "`model` is a LightningModule" in record.message]
    assert warning.count("`") == 2 * (3 + len(MODULE_HOOKS))
    assert {name for name in MODULE_HOOKS if f"`{name}`" not in warning} == set()


def test_guide_says_what_becomes_of_every_hook():
    guide = (Path(__file__).parents[3] / "docs/guides/from_lightning.md").read_text()
    of_data, of_module = (
        re.findall("`(.*?)`", " ".join(row.split("|")[1] for row in table.split("\n\n")[0].splitlines()[1:]))
        for table in re.split(r"\| Hook of a `Lightning\w*Module` ", guide)[1:]
    )
    assert sorted(of_data) == DATA_HOOKS
    # What is no hook has a row of all others.
    assert set(of_module) <= set(MODULE_HOOKS)


def test_several_loaders_of_a_data_module_are_evaluated_by_number(tmp_path):
    trainer = toy_trainer(tmp_path, parts={"eval_dataset": PointModule(validation=2)})
    metrics = trainer.evaluate()
    assert metrics["eval_0_loss"] == toy_trainer(tmp_path).evaluate(DataLoader(Points(4), batch_size=4))["eval_loss"]
    assert "eval_1_loss" in metrics


def test_data_module_with_several_training_loaders_is_refused(tmp_path):
    def several(data, batch_size):
        return [DataLoader(data), DataLoader(data)]

    with pytest.raises(InputError, match=r"train_dataloader\(\)` returned a dict, and training takes one"):
        toy_trainer(tmp_path, parts={"train_dataset": PointModule(train=several)})


# Why a batch failed --------------------------------------------------------------------------------------------------


WORDS = [{"input_ids": [1], "label": "good"}, {"input_ids": [1], "label": "bad"}]


@pytest.mark.parametrize(
    ("examples", "num_workers", "reason"),
    [
        ([(1, 2), (3, 4)], 0, "its first example is a tuple, and not a dict"),
        ([(1, 2), (3, 4)], 1, "its first example is a tuple, and not a dict"),
        ([{"input_ids": [1] * 3, "labels": 0}, {"input_ids": [1], "labels": 1}], 0, "`input_ids` has rows of 1 to 3"),
        (
            [{"input_ids": [1], "labels": 0}, {"input_ids": [1], "labels": None}],
            0,
            "`labels` is None in some examples; fill them",
        ),
        (WORDS, 0, r"`label` holds strings \('good'\); give .*`data.class_encode_column\('label'\)`"),
    ],
)
def test_examples_that_make_no_batch_are_explained(examples, num_workers, reason, tmp_path):
    parts = {"model": tiny_bert(), "train_dataset": examples, "eval_dataset": examples}
    trainer = toy_trainer(tmp_path, parts=parts, max_steps=1, dataloader_num_workers=num_workers)
    for argument, action in (("train", trainer.train), ("eval", trainer.evaluate)):
        with pytest.raises(InputError, match=f"`{argument}_dataset` cannot be made into batches .*{reason}"):
            action()


def test_workers_are_told_to_end_when_a_trainer_is_collected(tmp_path, monkeypatch):
    options = {"dataloader_num_workers": 1, "dataloader_persistent_workers": True}
    parts = {"model": tiny_bert(), "train_dataset": ToyDataset(), "eval_dataset": ToyDataset()}
    trainer = toy_trainer(tmp_path, parts=parts, max_steps=1, **options)
    trainer.train()
    trainer.evaluate()
    workers = multiprocessing.active_children()
    assert len(workers) == 2
    # torch ends by a signal what does not end in 5 seconds.
    for worker in workers:
        monkeypatch.setattr(worker, "terminate", lambda: pytest.fail("a worker did not know that it should end"))
    del trainer
    gc.collect()
    assert not multiprocessing.active_children()


def test_labels_in_words_that_the_collator_leaves_out_are_named(tmp_path):
    examples = [{"input_ids": one["input_ids"], "labels": one["label"]} for one in WORDS]
    trainer = toy_trainer(tmp_path, parts={"model": tiny_bert(), "train_dataset": examples}, max_steps=1)
    with pytest.raises(InputError, match=r"with labels: `labels` holds strings \('good'\); .*class_encode_column"):
        trainer.train()


def tiny_roberta():
    config = tiny_bert_config().to_dict() | {"pad_token_id": 1}
    return transformers.RobertaForSequenceClassification(transformers.RobertaConfig(**config))


@pytest.mark.parametrize(
    ("model", "tokens", "labels", "reason"),
    [
        (
            tiny_bert,
            [1, 2000],
            [0],
            "`input_ids` holds 2000, and its `vocab_size` is 50; use the tokenizer of the model",
        ),
        (tiny_bert, [1] * 600, [0], "`input_ids` has rows of 600 tokens, and it has positions for 16; let the tok"),
        (tiny_roberta, [2] * 15, [0], "`input_ids` has rows of 15 tokens, and it has positions for 14; let the tok"),
        (tiny_bert, [1], [0] * 40 + [7], "`labels` holds 7, and its `num_labels` is 3; load it with `num_labels=8`"),
        (tiny_bert, [1], [-1], "`labels` holds -1, and .*; give -100 to leave one out, or count labels from 0"),
        (tiny_bert, [1], [0.5], "`labels` holds a fraction for each example, and .*; give the index of each class"),
    ],
)
def test_numbers_that_the_model_cannot_have_are_named(model, tokens, labels, reason, tmp_path):
    examples = [{"input_ids": tokens, "labels": label} for label in labels * 2]
    trainer = toy_trainer(tmp_path, parts={"model": model(), "train_dataset": examples}, num_train_epochs=1)
    match = f"`train_dataset` cannot be made into batches that .*[Bb]ert.*For.* takes .*{reason}"
    with pytest.raises(InputError, match=match):
        trainer.train()


@pytest.mark.parametrize(
    ("columns", "got", "advice"),
    [
        ({"text": ["a", "b"], "label": [0, 1]}, "labels, and not the columns text", ""),
        (
            {"input_ids": [[1], [1]], "sentiment": ["good", "bad"]},
            "input_ids, and not the columns sentiment",
            "labels are numbers in a column `labels`; ",
        ),
    ],
)
def test_columns_that_the_model_misses_are_named(columns, got, advice, tmp_path):
    data = datasets.Dataset.from_dict(columns)
    trainer = toy_trainer(tmp_path, parts={"model": tiny_bert(), "train_dataset": data}, max_steps=1)
    with pytest.raises(ValueError, match="input_ids") as failure:
        trainer.train()
    assert failure.value.__notes__ == [
        f"`train_dataset`: the model got {got}. A tokenizer makes inputs of text; {advice}columns that `forward` does "
        "not take stay with `remove_unused_columns=False`."
    ]


@pytest.mark.parametrize("tokens", [[1], [1] * 600])
def test_other_failures_are_left_alone(tokens, tmp_path):
    class Failing(portico.Trainer):
        def training_step(self, *args):
            raise ValueError("something else")

    parts = {"model": tiny_bert(), "train_dataset": [{"input_ids": tokens, "labels": 0}] * 2}
    with pytest.raises(ValueError, match=r"^something else$") as failure:
        toy_trainer(tmp_path, Failing, parts=parts).train()
    assert not isinstance(failure.value, InputError)
    assert not hasattr(failure.value, "__notes__")


def add_sizes(trainer, model, inputs, return_outputs=False, num_items_in_batch=None):
    return torch.zeros(3) + torch.zeros(4)


def read_list(trainer, model, inputs, return_outputs=False, num_items_in_batch=None):
    return [0, 1][int(inputs["labels"].max())]


def fill_disk(trainer, model, inputs, return_outputs=False, num_items_in_batch=None):
    raise OSError("No space left on device")


@pytest.mark.parametrize(
    ("compute_loss", "model", "example", "message"),
    [
        # Its positions are rotated, so that rows may be of any length.
        (add_sizes, tiny_llama, {"input_ids": [1] * 600, "labels": [1] * 600}, "The size of tensor a"),
        (read_list, tiny_bert, {"input_ids": [1], "labels": 7}, "list index out of range"),
        (fill_disk, tiny_bert, {"input_ids": [1], "labels": "good"}, "No space left"),
    ],
)
def test_failures_of_other_code_keep_their_error(compute_loss, model, example, message, tmp_path):
    own = type("Own", (portico.Trainer,), {"compute_loss": compute_loss})
    trainer = toy_trainer(tmp_path, own, parts={"model": model(), "train_dataset": [example] * 2}, max_steps=1)
    with pytest.raises(Exception, match=f"^{message}") as failure:
        trainer.train()
    assert not isinstance(failure.value, InputError)


def test_batch_size_is_found_for_data_whose_labels_are_strings(tmp_path, caplog):
    class Own(portico.Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            if len(inputs["input_ids"]) > 2:
                raise RuntimeError("CUDA out of memory.")
            return model(**inputs).logits.sum()

    examples = [{"input_ids": [1], "labels": "good"}] * 4
    changes = {"per_device_train_batch_size": 4, "auto_find_batch_size": True, "max_steps": 2}
    trainer = toy_trainer(tmp_path, Own, parts={"model": tiny_bert(), "train_dataset": examples}, **changes)
    assert trainer.train().global_step == 2
    assert "Memory ran out with batches of 4 examples; training starts again with batches of 3" in caplog.text
    assert "batches of 3 examples; training starts again with batches of 2" in caplog.text


class Endless(Dataset):
    """Data that never raise an IndexError, so that a loop over them does not end."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return {"input_ids": torch.ones(1 + index % 3, dtype=torch.long), "labels": 0}


@pytest.mark.parametrize(
    "strategy", ["group_by_length", pytest.param("batch_rebalance", marks=since_transformers("5.17"))]
)
def test_lengths_are_measured_up_to_the_length_of_the_data(strategy, tmp_path):
    parts = {"model": Bag(), "train_dataset": Endless(), "data_collator": pad_everything}
    trainer = toy_trainer(tmp_path, parts=parts, train_sampling_strategy=strategy, max_steps=1)
    assert len(trainer.get_train_dataloader()) == 4
