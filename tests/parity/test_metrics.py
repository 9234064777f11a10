"""The same metrics, predictions and labels."""

import pytest
import torch
from torch.utils.data import Dataset

from models import Sequences, ToyDataset, ToyStream, pad_everything, tiny_tagger
from parity.peers import compare, untimed

EVALUATED = {"eval_strategy": "steps", "eval_steps": 3}


class Unlabelled(Dataset):
    def __len__(self):
        return 7

    def __getitem__(self, index):
        return {"input_ids": ToyDataset(7, seed=5).tokens[index]}


def described(prediction):
    return {
        "losses": float(prediction.losses.sum()),
        "inputs": float(prediction.inputs.sum()),
        "logits": float(prediction.predictions.sum()),
        "rows": len(prediction.label_ids),
    }


def test_same_metrics_of_inputs_and_losses(tmp_path):
    options = {"trainer_options": {"compute_metrics": described}, "include_for_metrics": ["inputs", "loss"]}
    ours, _ = compare(tmp_path, **options, **EVALUATED)
    assert any("eval_inputs" in entry for entry in ours.history)


class StreamedAccuracy:
    """A metric with a state over the batches of an evaluation, for ``batch_eval_metrics``."""

    def __init__(self):
        self.right = self.seen = 0

    def __call__(self, prediction, compute_result=False):
        self.right += int((prediction.predictions.argmax(-1) == prediction.label_ids).sum())
        self.seen += len(prediction.label_ids)
        if not compute_result:
            return {}
        result = {"accuracy": self.right / self.seen, "seen": self.seen}
        self.right = self.seen = 0
        return result


def test_same_metrics_of_batches(tmp_path):
    def after(trainer):
        output = trainer.predict(ToyDataset(10, seed=5))
        return {"predictions": output.predictions, "metrics": untimed(output.metrics)}

    def options():
        return {"compute_metrics": StreamedAccuracy()}

    ours, _ = compare(tmp_path, trainer_options=options, batch_eval_metrics=True, after=after, **EVALUATED)
    assert ours.history[-2]["eval_seen"] == 11


def test_same_lists_without_concatenation(tmp_path):
    seen = []

    def keep_shapes(prediction):
        seen.append([batch.shape for batch in prediction.predictions])
        return {"batches": len(prediction.predictions)}

    def after(trainer):
        output = trainer.predict(ToyDataset(10, seed=5))
        return {"predictions": output.predictions, "labels": output.label_ids, "metrics": untimed(output.metrics)}

    options = {"trainer_options": {"compute_metrics": keep_shapes}, "eval_do_concat_batches": False, "after": after}
    compare(tmp_path, **options, **EVALUATED)
    half = len(seen) // 2
    assert seen[:half] == seen[half:] != []


def test_same_predictions_without_labels(tmp_path):
    def after(trainer):
        output = trainer.predict(Unlabelled())
        assert output.label_ids is None
        return {"predictions": output.predictions, "metrics": untimed(output.metrics)}

    compare(tmp_path, after=after, max_steps=2)


def test_same_predictions_before_training(tmp_path):
    def base(trainer_class):
        class PredictsFirst(trainer_class):
            def __init__(self, *args, **kwargs):
                super().__init__(*args, **kwargs)
                self.first = self.predict(ToyDataset(10, seed=5))
                self.metrics = untimed(self.evaluate())

        return PredictsFirst

    def after(trainer):
        return {"predictions": trainer.first.predictions, "metrics": trainer.metrics}

    compare(tmp_path, base=base, after=after, max_steps=2)


def test_same_numbers_with_preprocessed_logits(tmp_path):
    def classes(logits, labels):
        return logits.argmax(-1) + labels

    def mean(prediction):
        return {"mean": float(prediction.predictions.mean())}

    options = {"preprocess_logits_for_metrics": classes, "compute_metrics": mean}
    compare(tmp_path, trainer_options=options, **EVALUATED)


class TwoTargets(torch.nn.Module):
    """A model with two label arguments."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(50, 8)
        self.head = torch.nn.Linear(8, 3)

    def forward(self, input_ids, first=None, second=None):
        logits = self.head(self.embedding(input_ids).mean(1))
        if first is None:
            return {"logits": logits}
        cross_entropy = torch.nn.functional.cross_entropy
        return {"loss": cross_entropy(logits, first) + cross_entropy(logits, second), "logits": logits}


def two_targets():
    torch.manual_seed(7)
    return TwoTargets()


class TwoLabels(ToyDataset):
    def __getitem__(self, index):
        return {"input_ids": self.tokens[index], "first": self.labels[index], "second": (self.labels[index] + 1) % 3}


def test_same_numbers_with_label_names(tmp_path):
    def after(trainer):
        output = trainer.predict(TwoLabels(10, seed=5))
        assert len(output.label_ids) == 2
        return {"predictions": output.predictions, "labels": output.label_ids}

    compare(
        tmp_path,
        make_model=two_targets,
        train_dataset=TwoLabels,
        eval_dataset=TwoLabels,
        label_names=["first", "second"],
        after=after,
        **EVALUATED,
    )


def test_same_predictions_of_stream(tmp_path):
    def after(trainer):
        output = trainer.predict(ToyStream(10))
        return {"predictions": output.predictions, "labels": output.label_ids, "metrics": untimed(output.metrics)}

    compare(tmp_path, after=after, max_steps=2)


def talkative_tagger():
    model = tiny_tagger()
    model.config.output_hidden_states = True
    return model


@pytest.mark.parametrize("every", [None, 2])
def test_same_nested_predictions_of_varying_width(every, tmp_path):
    def after(trainer):
        output = trainer.predict(Sequences(ragged=True, classes=3, seed=5))
        logits, hidden_states = output.predictions
        assert len(hidden_states) == 3
        return {"logits": logits, "hidden": hidden_states, "labels": output.label_ids}

    compare(
        tmp_path,
        make_model=talkative_tagger,
        train_dataset=lambda: Sequences(ragged=True, classes=3),
        trainer_options={"data_collator": pad_everything},
        eval_accumulation_steps=every,
        max_steps=2,
        after=after,
    )
