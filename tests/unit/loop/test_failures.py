"""What an error says about functions, labels and data that do not fit."""

from functools import partial

import pytest
import torch
from datasets import Dataset
from transformers import DataCollatorWithPadding, EarlyStoppingCallback, TrainerCallback

from models import tiny_bert, toy_arguments
from portico import InputError, Trainer

ROWS = [{"input_ids": [1, 2, 3], "labels": number % 3} for number in range(8)]


class WithoutKeywords(TrainerCallback):
    def on_step_end(self, args, state, control):
        pass


class NeedsMore(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None, *, temperature):
        return model(**inputs).loss


class PredictsLess(Trainer):
    def prediction_step(self, model, inputs, *, ignore_keys=None):
        pass


class SchedulesLess(Trainer):
    def create_scheduler(self, steps):
        pass


class WithoutOptimizer(Trainer):
    def create_optimizer(self):
        torch.optim.SGD(self.model.parameters(), lr=0.1)


class Metrics:
    def __call__(self, predictions, references):
        return {}


def run(tmp_path, kind=Trainer, rows=ROWS, **parts):
    args = toy_arguments(tmp_path, max_steps=1, eval_strategy="steps", eval_steps=1)
    kind(tiny_bert(), args, train_dataset=rows, eval_dataset=rows, **parts).train()


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"compute_loss_func": lambda outputs: 0}, "`compute_loss_func` .* no parameter for `labels` and `num_items"),
        ({"compute_loss_func": lambda outputs, labels: 0}, "`compute_loss_func` .* no parameter for `num_items"),
        ({"compute_metrics": lambda: {}}, r"`compute_metrics` is called with .* no parameter for `prediction`"),
        ({"compute_metrics": lambda preds, golds: {}}, "`compute_metrics` is called with .* missing .* 'golds'"),
        ({"compute_metrics": Metrics()}, "`compute_metrics` is called with .* missing .* 'references'"),
        (
            {"compute_metrics": lambda prediction: {}, "preprocess_logits_for_metrics": lambda logits: logits},
            "`preprocess_logits_for_metrics` .* no parameter for `labels`",
        ),
        ({"data_collator": lambda rows, labels: {}}, "`data_collator` is called with .* missing .* 'labels'"),
        ({"data_collator": partial(lambda size, rows, width: {}, 1)}, "`data_collator` is called .* 'width'"),
        ({"callbacks": [WithoutKeywords()]}, r"`WithoutKeywords.on_step_end` .* 'model'.* end with `\*\*kwargs`"),
        ({"kind": NeedsMore}, r"`NeedsMore.compute_loss` is called with .*return_outputs=False.* 'temperature'"),
        ({"kind": PredictsLess}, "`PredictsLess.prediction_step` .* no parameter for `prediction_loss_only`"),
        ({"kind": SchedulesLess}, "`SchedulesLess.create_scheduler` is called with .* 'num_training_steps'"),
    ],
)
def test_parameter_that_does_not_fit_is_named(parts, message, tmp_path):
    with pytest.raises(InputError, match=message) as caught:
        run(tmp_path, **parts)
    assert isinstance(caught.value, TypeError)


def test_errors_inside_of_functions_are_left(tmp_path):
    def other(value):
        return value

    def metrics(prediction):
        return other()

    with pytest.raises(TypeError, match=r"other\(\) missing 1") as caught:
        run(tmp_path, compute_metrics=metrics)
    assert not isinstance(caught.value, InputError)


def test_optimizer_that_is_not_set_is_named(tmp_path):
    with pytest.raises(InputError, match=r"`WithoutOptimizer\.create_optimizer` did not set `self\.optimizer`"):
        run(tmp_path, WithoutOptimizer)


def test_one_hot_labels_are_named(tmp_path):
    rows = [{"input_ids": [1, 2, 3], "labels": [0, 1, 0]} for _ in range(8)]
    with pytest.raises(InputError, match="`labels` holds 3 numbers for each example; give the index of the class"):
        run(tmp_path, rows=rows)


def test_column_that_was_left_out_is_named(tmp_path):
    rows = Dataset.from_list([{"text": "a", **row} for row in ROWS])
    with pytest.raises(InputError, match=r"the column `text` is left out.* `remove_unused_columns=False`"):
        run(tmp_path, rows=rows, data_collator=lambda examples: {"texts": [row["text"] for row in examples]})


def test_collator_without_tokenizer_is_named(tmp_path):
    with pytest.raises(InputError, match="`tokenizer` of the `DataCollatorWithPadding` is None"):
        run(tmp_path, data_collator=DataCollatorWithPadding(None))


def test_early_stopping_without_a_metric_says_what_to_set(tmp_path):
    with pytest.raises(AssertionError, match="requires metric_for_best_model") as caught:
        run(tmp_path, callbacks=[EarlyStoppingCallback(1)])
    assert "such as 'loss', and an `eval_strategy`" in caught.value.__notes__[0]
