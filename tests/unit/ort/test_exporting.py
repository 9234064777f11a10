"""A model as an ONNX file: its inputs and outputs, and errors before training."""

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from models import Points, ToyDataset, tiny_bert, toy_arguments
from portico import InputError, ORTTrainer, ORTTrainingArguments
from portico.ort import exporting
from portico.ort.exporting import save_onnx


class Pair(nn.Module):
    """Returns a tuple, or one tensor, changes its input, and counts its calls."""

    def __init__(self, num_outputs=2):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(3, 2)
        self.num_outputs = num_outputs
        self.register_buffer("num_calls", torch.zeros(()))

    def forward(self, x, labels=None):
        self.num_calls.add_(1)
        logits = self.linear(x.mul_(2))
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
    np.testing.assert_allclose(session.run(names[:1], {"x": x.numpy()})[0], model.linear(2 * x).detach(), atol=1e-6)


class Echo(nn.Module):
    """Uses one weight twice, returns one tensor twice, and holds what it does not use."""

    def __init__(self):
        super().__init__()
        self.embedding, self.scores, self.unused = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False), nn.Linear(4, 4)
        self.scores.weight = self.embedding.weight

    def forward(self, input_ids):
        logits = self.scores(self.embedding(input_ids))
        return {"logits": logits, "same": logits}


def test_sizes_are_named_and_a_weight_is_stored_once(tmp_path):
    path = save_onnx(Echo(), {"input_ids": torch.randint(9, (2, 5))}, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(path)
    shapes = {value.name: value.shape for value in (*session.get_inputs(), *session.get_outputs())}
    assert shapes == {
        "input_ids": ["batch_size", "sequence_length"],
        "logits": ["batch_size", "sequence_length", 9],
        "same": ["batch_size", "sequence_length", 9],
    }
    assert [each.name for each in onnx.load(path).graph.initializer if list(each.dims) == [9, 4]] == ["scores.weight"]
    assert not [each.name for each in onnx.load(path).graph.initializer if each.name.startswith("unused")]


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))

    def forward(self, pixel_values):
        return {"logits": self.layers(pixel_values)}


def test_images_have_one_dynamic_dimension_and_batch_norm_its_running_statistics(tmp_path):
    model = Images()
    model(torch.randn(6, 3, 8, 8))
    path = save_onnx(model, {"pixel_values": torch.randn(2, 3, 8, 8)}, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(path)
    assert session.get_inputs()[0].shape == ["batch_size", 3, 8, 8]
    assert session.get_outputs()[0].shape == ["batch_size", 2]
    x = torch.randn(5, 3, 8, 8)
    (found,) = session.run(None, {"pixel_values": x.numpy()})
    np.testing.assert_allclose(found, model.eval()(x)["logits"].detach(), atol=1e-6)


@pytest.mark.parametrize(
    ("make_model", "message"),
    [
        (
            NeedsLabels,
            r"called with x only, without labels, it raises TypeError: .*'labels'; make the labels optional",
        ),
        (Branching, r"torch cannot trace it in one piece: (.|\n)*set `save_onnx=False`"),
    ],
)
def test_a_model_that_cannot_be_saved_is_refused_before_training(make_model, message, tmp_path):
    trainer = trainer_of(tmp_path, make_model())
    with pytest.raises(InputError, match=message):
        trainer.train()
    assert trainer.state.global_step == 0


def test_a_file_of_weights_is_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "_LARGEST_MESSAGE", 1000)
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


def test_a_model_is_saved_with_the_data_that_there_is(tmp_path):
    trainer = ORTTrainer(Pair(), toy_arguments(tmp_path, ORTTrainingArguments))
    with pytest.raises(InputError, match="there is no data; give the trainer a `train_dataset` or an `eval_dataset`"):
        trainer.save_onnx()


def operators(path):
    """Return the domains of the operators in a file, and of those it imports."""
    proto = onnx.load(path)
    onnx.checker.check_model(proto)
    return {node.domain for node in proto.graph.node}, {each.domain for each in proto.opset_import}


@pytest.mark.slow
def test_a_standard_file_has_no_operators_of_onnxruntime(tmp_path):
    saved = {}
    for kind in (True, "standard"):
        args = toy_arguments(tmp_path / str(kind), ORTTrainingArguments, save_onnx=kind, max_steps=1)
        trainer = ORTTrainer(tiny_bert(), args, train_dataset=ToyDataset())
        trainer.train()
        path = tmp_path / str(kind) / "model.onnx"
        mask = np.ones((3, 5), np.int64)
        mask[1, 3:] = 0
        inputs = {"input_ids": np.arange(15).reshape(3, 5), "attention_mask": mask}
        session = onnxruntime.InferenceSession(path)
        names = {value.name for value in session.get_inputs()}
        saved[kind] = session.run(["logits"], {name: value for name, value in inputs.items() if name in names})[0]
        assert operators(path) == ({True: {"", "com.microsoft"}, "standard": {""}}[kind],) * 2
    np.testing.assert_allclose(saved["standard"], saved[True], atol=1e-5)
