import itertools

import numpy as np
import pytest
import torch
import transformers
from torch.utils.data import Dataset, IterableDataset

import portico
from forked import run_in_processes
from models import Line, Points, toy_arguments, toy_trainer
from portico.errors import InputError


def test_metric_key_prefix(tmp_path):
    trainer = toy_trainer(tmp_path, parts={"compute_metrics": lambda prediction: {"one": np.float32(1), "x_two": 2}})
    metrics = trainer.evaluate(metric_key_prefix="x")
    assert metrics["x_one"] == 1.0
    assert isinstance(metrics["x_one"], float)
    assert metrics["x_two"] == 2
    assert {"x_loss", "x_runtime", "x_samples_per_second", "x_steps_per_second"} <= metrics.keys()


@pytest.mark.pinned
@pytest.mark.parametrize("order", ["epet", "ptp", "tep"])  # of evaluate, predict and train
def test_metrics_have_the_names_of_transformers(tmp_path, order):
    names = []
    for library in (transformers, portico):
        parts = {"args": toy_arguments(tmp_path, library.TrainingArguments, eval_strategy="epoch")}
        trainer = toy_trainer(tmp_path, library.Trainer, parts)
        calls = {"e": trainer.evaluate, "p": lambda: trainer.predict(Points()).metrics, "t": trainer.train}  # noqa: B023
        results = [calls[call]() for call in order]
        seen = [set(result) for result in results if isinstance(result, dict)]
        names.append([*seen, *map(set, trainer.state.log_history)])
    assert names[0] == names[1]


def test_named_datasets_are_evaluated(tmp_path):
    sets = {"a": Points(4), "b": Points(6, seed=2)}
    trainer = toy_trainer(tmp_path, parts={"eval_dataset": sets})
    metrics = trainer.evaluate()
    assert {"eval_a_loss", "eval_b_loss"} <= metrics.keys()
    assert metrics["eval_a_loss"] == trainer.evaluate(Points(4))["eval_loss"]
    assert {"eval_c_loss"} <= trainer.evaluate({"c": Points(4)}).keys()


@pytest.mark.parametrize("size", [5, 6])
def test_loss_is_mean_over_examples(size, tmp_path):
    trainer = toy_trainer(tmp_path, per_device_eval_batch_size=4)
    data = Points(size)
    losses = []
    for start in range(0, size, 4):
        batch = slice(start, start + 4)
        loss = trainer.model(data.x[batch], data.y[batch])["loss"].item()
        losses += [loss] * len(data.x[batch])
    assert trainer.evaluate(data)["eval_loss"] == pytest.approx(np.mean(losses))


def test_nonfinite_losses_are_ignored(tmp_path):
    class Breaks(Line):
        def forward(self, x, labels=None):
            outputs = super().forward(x, labels)
            return {**outputs, "loss": outputs["loss"] * (float("nan") if len(x) == 1 else 1)}

    assert np.isfinite(toy_trainer(tmp_path, parts={"model": Breaks()}).evaluate(Points(5))["eval_loss"])
    unfiltered = toy_trainer(tmp_path, parts={"model": Breaks()}, logging_nan_inf_filter=False)
    assert np.isnan(unfiltered.evaluate(Points(5))["eval_loss"])


def test_predictions_keep_data_order(tmp_path):
    trainer = toy_trainer(tmp_path)
    output = trainer.predict(Points(5))
    # On some CPUs the last bits of a matrix product depend on its number of rows.
    torch.testing.assert_close(torch.from_numpy(output.predictions), trainer.model.linear(Points(5).x).detach())
    assert torch.equal(torch.from_numpy(output.label_ids), Points(5).y)
    assert "test_loss" in output.metrics


def test_prediction_loss_only_keeps_no_predictions(tmp_path):
    seen = []
    trainer = toy_trainer(tmp_path, parts={"compute_metrics": seen.append}, prediction_loss_only=True)
    assert "eval_loss" in trainer.evaluate()
    assert trainer.predict(Points(4)).predictions is None
    assert seen == []


class EmptyStream(IterableDataset):
    def __iter__(self):
        return iter(())


def test_empty_dataset_has_no_loss(tmp_path):
    metrics = toy_trainer(tmp_path).evaluate(Points(0))
    assert "eval_loss" not in metrics
    assert metrics["eval_samples_per_second"] == 0


def test_empty_stream_is_rejected(tmp_path):
    with pytest.raises(InputError, match=r"\(`EmptyStream`\) yielded no batch"):
        toy_trainer(tmp_path).evaluate(EmptyStream())


def test_ignore_keys(tmp_path):
    class Talkative(Line):
        def forward(self, x, labels=None):
            return {**super().forward(x, labels), "extra": x}

    trainer = toy_trainer(tmp_path, parts={"model": Talkative()})
    assert isinstance(trainer.predict(Points(4)).predictions, tuple)
    assert trainer.predict(Points(4), ignore_keys=["extra"]).predictions.shape == (4, 1)


def test_gather_function_can_be_replaced_for_one_evaluation(tmp_path):
    trainer = toy_trainer(tmp_path)
    seen = []

    def gather(data):
        seen.append(data)
        return trainer.accelerator.gather_for_metrics(data)

    trainer.gather_function = gather
    trainer.evaluate()
    count = len(seen)
    assert count > 0
    trainer.evaluate()
    assert len(seen) == count


def test_model_stays_in_eval_mode(tmp_path):
    trainer = toy_trainer(tmp_path)
    trainer.model.train()
    trainer.evaluate()
    assert not trainer.model.training


def test_evaluation_tensors_can_be_differentiated_later(tmp_path):
    kept = []

    class Keeps(Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            return {"x": torch.ones(3), "labels": torch.ones(1)}

    class Own(type(toy_trainer(tmp_path))):
        def prediction_step(self, model, inputs, *args, **kwargs):
            kept.append(inputs["x"])
            return super().prediction_step(model, inputs, *args, **kwargs)

    toy_trainer(tmp_path, Own).evaluate(Keeps())
    kept[0].requires_grad_().sum().backward()
    assert kept[0].grad is not None


# Outputs with an entry for each example


class Boxes(Dataset):
    """Pictures with 1 to 5 boxes each, as in detection."""

    def __len__(self):
        return 7

    def __getitem__(self, index):
        boxes = torch.full((1 + index % 5, 4), float(index))
        return {"x": torch.full((3,), float(index)), "labels": boxes}


NESTS = {
    "list of tensors": lambda boxes: list(boxes),
    "tuple of tensors": lambda boxes: tuple(boxes),
    "list of dicts": lambda boxes: [{"boxes": each, "classes": each[:, 0].long()} for each in boxes],
    "list with None": lambda boxes: [None if len(each) == 1 else each for each in boxes],
}


class Detector(torch.nn.Module):
    def __init__(self, nest):
        super().__init__()
        self.linear = torch.nn.Linear(3, 1)
        self.nest = nest

    def forward(self, x, labels=None):
        return {"loss": self.linear(x).mean() * 0, "logits": self.nest([label["boxes"] + 1 for label in labels])}


def evaluate_detector(folder, name, *, concatenates, gathers_objects):
    nest = NESTS[name]

    class Detecting(portico.Trainer):
        def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
            loss, logits, _ = super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
            return loss, logits, nest([label["boxes"] for label in inputs["labels"]])

    def collate(examples):
        return {
            "x": torch.stack([example["x"] for example in examples]),
            "labels": [{"boxes": example["labels"]} for example in examples],
        }

    parts = {"model": Detector(nest), "data_collator": collate, "eval_dataset": Boxes(), "train_dataset": None}
    options = {"eval_do_concat_batches": concatenates, "eval_use_gather_object": gathers_objects}
    trainer = toy_trainer(folder, Detecting, parts=parts, remove_unused_columns=False, **options)
    return trainer.predict(Boxes())


def rows_by_example(outputs, *, concatenates):
    entries = outputs if concatenates else [entry for batch in outputs for entry in batch]
    boxes = [entry["boxes"] if isinstance(entry, dict) else entry for entry in entries]
    return [None if each is None else (len(each), float(each[0, 0])) for each in boxes]


def check_detector(folder):
    for name, concatenates, gathers_objects in itertools.product(NESTS, (True, False), (False, True)):
        options = {"concatenates": concatenates, "gathers_objects": gathers_objects}
        result = evaluate_detector(folder, name, **options)
        sizes = [(1 + index % 5, float(index)) for index in range(7)]
        if "None" in name:
            sizes = [None if size == 1 else (size, value) for size, value in sizes]
        assert rows_by_example(result.label_ids, concatenates=concatenates) == sizes, (name, options)
        moved = [None if size is None else (size[0], size[1] + 1) for size in sizes]
        assert rows_by_example(result.predictions, concatenates=concatenates) == moved, (name, options)


def test_short_last_batch_leaves_outputs_of_examples_whole(tmp_path):
    check_detector(tmp_path)


def test_outputs_of_examples_on_two_processes(tmp_path):
    run_in_processes(2, check_detector, str(tmp_path))
