"""Combined batches: their loaders, and the padding of an incomplete last one."""

import pytest
import torch
import transformers
from transformers import BertForSequenceClassification

from emulator_peers import options
from ipu_trainers import Sentences, bert_config, ipu_trainer
from portico.errors import InputError
from portico.ipu.config import IPUConfig
from portico.ipu.data import drop_last_batch, poptorch_loader


class TestLoaders:
    @pytest.mark.parametrize("workers", [0, 1])
    @pytest.mark.parametrize("mode", ["async", "async_rebatched"])
    def test_prefetching_gives_the_same_batches(self, tmp_path, mode, workers):
        config = IPUConfig(gradient_accumulation_steps=3)
        plain = ipu_trainer(tmp_path, config)
        ahead = ipu_trainer(tmp_path, config, dataloader_mode=mode, dataloader_num_workers=workers)
        expected = [batch["input_ids"].tolist() for batch in plain.get_train_dataloader()]
        loader = ahead.get_train_dataloader()
        assert [batch["input_ids"].tolist() for batch in loader] == expected
        assert len(loader) == len(expected) == 5
        ahead.train()

    def test_order_depends_on_the_seed_alone(self, tmp_path):
        orders = []
        for draws in (0, 5):
            trainer = ipu_trainer(tmp_path)
            torch.rand(draws)
            orders.append([batch["input_ids"].tolist() for batch in trainer.get_train_dataloader()])
        assert orders[0] == orders[1]

    def test_unused_columns_are_removed(self, tmp_path):
        class WithNames(Sentences):
            def __getitem__(self, index):
                return {**super().__getitem__(index), "name": "a string"}

        def collate(rows):
            assert all("name" not in row for row in rows)
            return transformers.default_data_collator(rows)

        trainer = ipu_trainer(
            tmp_path, parts={"train_dataset": WithNames(), "eval_dataset": WithNames(), "data_collator": collate}
        )
        trainer.train()
        trainer.evaluate()


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        data = Sentences(7)
        yield from (data[index] for index in range(7))


@pytest.mark.parametrize("changes", [{}, {"pad_on_batch_axis": True}, {"dataloader_mode": "async"}])
def test_iterable_dataset_trains_on_full_batches(tmp_path, changes):
    trainer = ipu_trainer(tmp_path, parts={"train_dataset": Stream()}, max_steps=5, **changes)
    assert trainer.train().global_step == 5


class Ratings(Sentences):
    """Random tokens with a floating-point label."""

    def __getitem__(self, index):
        return {"input_ids": self.tokens[index], "labels": self.tokens[index, 0].float() / 50}


def rater():
    torch.manual_seed(7)
    return BertForSequenceClassification(bert_config(num_labels=1, problem_type="regression")).eval()


@pytest.mark.parametrize("size", [1, 3, 5, 7, 8, 13])
@pytest.mark.parametrize("factors", [{}, {"inference_replication_factor": 2, "inference_device_iterations": 2}])
def test_losses_of_float_labels_count_each_row_once(tmp_path, size, factors):
    model, data = rater(), Ratings(size, seed=4)
    with torch.no_grad():
        logits = model(input_ids=data.tokens).logits.squeeze(-1)
    expected = (logits - data.tokens[:, 0].float() / 50).square().mean()
    trainer = ipu_trainer(tmp_path, IPUConfig(**factors), model, per_device_eval_batch_size=4)
    prediction = trainer.predict(data)
    assert prediction.metrics["test_loss"] == pytest.approx(float(expected), rel=1e-6)
    assert prediction.predictions.squeeze(-1) == pytest.approx(logits.numpy(), rel=1e-5)


@pytest.mark.parametrize(
    ("is_training", "rows", "message"),
    [
        (
            True,
            3,
            r"A batch has 3 rows, but one call of the program that trains takes 2; .*`dataloader_drop_last=True`",
        ),
        (
            True,
            1,
            r"A batch has 1 rows, but one call of the program that trains takes 2; .*`dataloader_drop_last=True`",
        ),
        (False, 3, "A batch has 3 rows, but one call of the program that evaluates takes 2; .*or fewer"),
    ],
)
def test_batches_of_the_wrong_size_are_refused(tmp_path, is_training, rows, message):
    trainer = ipu_trainer(tmp_path)
    data = Sentences()
    batch = {"input_ids": data.tokens[:rows], "labels": torch.zeros(rows, dtype=torch.int64)}
    with pytest.raises(InputError, match=message):
        trainer.call_model(trainer.model, batch, is_training=is_training)


@pytest.mark.parametrize(
    "prepare", [drop_last_batch, lambda loader: poptorch_loader(loader, options(2), training=True)]
)
@pytest.mark.parametrize("dataset", [Stream(), Sentences()])
def test_loaders_keep_their_options(prepare, dataset):
    changes = {
        "generator": torch.Generator(),
        "in_order": False,
        "num_workers": 2,
        "prefetch_factor": 5,
        "collate_fn": list,
        "timeout": 3,
        "worker_init_fn": print,
    }
    found = prepare(torch.utils.data.DataLoader(dataset, batch_size=2, **changes))
    assert {name: getattr(found, name) for name in changes} == changes
