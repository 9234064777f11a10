"""A trained model as a file: what it is called with, what may go wrong, and that it does so before training."""

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from portico import InputError, ORTTrainer, ORTTrainingArguments
from portico.ort import saving
from portico.ort.saving import save_onnx
from unit.toy import Points, toy_arguments


class Pair(nn.Module):
    """Returns a tuple, or one tensor."""

    def __init__(self, num_outputs=2):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(3, 2)
        self.num_outputs = num_outputs

    def forward(self, x, labels=None):
        logits = self.linear(x)
        return (logits, None, logits.sum(1)) if self.num_outputs == 2 else logits


class NeedsLabels(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 1)

    def forward(self, x, labels):
        logits = self.linear(x)
        return {"loss": nn.functional.mse_loss(logits, labels), "logits": logits}


class Branching(NeedsLabels):
    def forward(self, x, labels=None):
        logits = self.linear(x)
        if logits.sum() > 0:
            logits = logits * 2
        return {"loss": logits.square().mean(), "logits": logits}


def trainer_of(folder, model, **changes):
    args = toy_arguments(folder, ORTTrainingArguments, **{"save_onnx": True, "max_steps": 1, **changes})
    return ORTTrainer(model, args, train_dataset=Points())


@pytest.mark.parametrize(("num_outputs", "names"), [(2, ["output_0", "output_2"]), (1, ["output_0"])])
def test_outputs_without_names_are_numbered(num_outputs, names, tmp_path):
    model = Pair(num_outputs)
    session = onnxruntime.InferenceSession(save_onnx(model, {"x": torch.randn(2, 3)}, tmp_path / "model.onnx"))
    assert [value.name for value in session.get_outputs()] == names
    x = torch.randn(4, 3)
    np.testing.assert_allclose(session.run(names[:1], {"x": x.numpy()})[0], model.linear(x).detach(), atol=1e-6)


@pytest.mark.parametrize(
    ("make_model", "message"),
    [
        (NeedsLabels, r"called with x alone, without labels, it raises TypeError: .*'labels'; let it do without"),
        (Branching, r"torch cannot trace it in one piece: (.|\n)*set `save_onnx=False`"),
    ],
)
def test_a_model_that_cannot_be_saved_is_refused_before_training(make_model, message, tmp_path):
    trainer = trainer_of(tmp_path, make_model())
    with pytest.raises(InputError, match=message):
        trainer.train()
    assert trainer.state.global_step == 0


def test_a_file_of_weights_is_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr(saving, "_LARGEST_MESSAGE", 1000)
    model, x = nn.Sequential(nn.Linear(300, 2)), torch.randn(2, 300)
    sizes = []
    for _ in range(2):
        path = save_onnx(model, {"input": x}, tmp_path / "model.onnx")
        sizes.append((tmp_path / "model.onnx.data").stat().st_size)
    assert sizes[0] == sizes[1] >= 2400
    assert sorted(each.name for each in tmp_path.iterdir()) == ["model.onnx", "model.onnx.data"]
    onnx.checker.check_model(path)
    (found,) = onnxruntime.InferenceSession(path).run(None, {"input": x.numpy()})
    np.testing.assert_allclose(found, model(x).detach(), atol=1e-5)


def drawing_collator(rows):
    x = torch.stack([row["x"] for row in rows])
    return {"x": x + torch.rand(x.shape), "labels": torch.stack([row["labels"] for row in rows])}


def test_a_run_draws_the_same_with_the_file_and_without(tmp_path):
    states = []
    for saves in (False, True):
        trainer = trainer_of(tmp_path, Pair(), save_onnx=saves)
        trainer.data_collator = drawing_collator
        trainer.compute_loss_func = lambda outputs, labels, num_items_in_batch=None: outputs[0].square().mean()
        trainer.train()
        states.append(torch.get_rng_state())
    assert torch.equal(*states)
