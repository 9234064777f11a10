"""Serialized and split embeddings and projections compute and save the same as whole ones."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers import BertForMaskedLM

from ipu_trainers import Sentences, bert_config, classifier, ipu_trainer
from portico.ipu.config import IncompatibleIPUConfigError, IPUConfig
from portico.ipu.pipelining.serialization import (
    Piece,
    SerializedEmbedding,
    SerializedLinear,
    SplitEmbedding,
    SplitLinear,
    remove_serialization,
    serialize,
)


class WithBoth(nn.Module):
    def __init__(self, rows=11, padding=None, bias=True, tied=False):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(rows, 3, padding_idx=padding)
        self.head = nn.Linear(3, rows, bias=bias)
        if tied:
            self.head.weight = self.table.weight

    def get_input_embeddings(self):
        return self.table

    def get_output_embeddings(self):
        return self.head

    def forward(self, index):
        return self.head(self.table(index))


class Words(Sentences):
    def __getitem__(self, index):
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def config(num_ipus=2, **changes):
    return IPUConfig(layers_per_ipu=[1] * num_ipus, gradient_accumulation_steps=12, **changes)


def both(embedding, projection=None):
    names = ("serialized_embedding_splits_per_ipu", "serialized_projection_splits_per_ipu")
    given_splits = {name: splits for name, splits in zip(names, (embedding, projection), strict=True) if splits}
    return config(len(embedding or projection), **given_splits)


def gradients(model):
    index = torch.randint(0, 11, (4, 5), generator=torch.Generator().manual_seed(1))
    out = model(index)
    (out * torch.arange(float(out.numel())).reshape(out.shape)).sum().backward()
    return out, [parameter.grad for parameter in model.parameters()]


@given(
    embedding=st.lists(st.integers(1, 4), min_size=2, max_size=2),
    projection=st.lists(st.integers(1, 4), min_size=2, max_size=2),
    padding=st.none() | st.integers(0, 10),
    bias=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_split_modules_compute_like_whole_ones(embedding, projection, padding, bias):
    whole = WithBoth(padding=padding, bias=bias)
    cut = copy.deepcopy(whole)
    serialize(cut, both(embedding, projection))
    assert len(cut.table.pieces) == sum(embedding)
    expected, (table_grad, weight_grad, *bias_grad) = gradients(whole)
    found, piece_grads = gradients(cut)
    assert torch.allclose(expected, found, atol=1e-6)
    table, head = piece_grads[: sum(embedding)], piece_grads[sum(embedding) : sum(embedding) + sum(projection)]
    for pieces, grad in [(table, table_grad), (head, weight_grad), *(([piece_grads[-1]], grad) for grad in bias_grad)]:
        assert torch.allclose(torch.cat(pieces), grad, rtol=1e-4)


class TestStateDict:
    def test_holds_whole_weights_under_their_names(self):
        whole, cut = WithBoth(), WithBoth()
        serialize(cut, both([2, 1], [0, 3]))
        with torch.no_grad():
            cut.table.pieces[1].weight.fill_(7.0)
            whole.table.weight[4:8] = 7.0
        assert cut.state_dict().keys() == whole.state_dict().keys()
        assert all(torch.equal(value, whole.state_dict()[name]) for name, value in cut.state_dict().items())

    def test_is_loaded_into_the_pieces(self):
        cut, other = WithBoth(), WithBoth()
        serialize(cut, both([2, 1], [0, 3]))
        nn.init.constant_(other.table.weight, 3.0)
        nn.init.constant_(other.head.bias, 4.0)
        cut.load_state_dict(other.state_dict())
        assert all(bool((piece.weight == 3.0).all()) for piece in cut.table.pieces)
        assert bool((cut.head.pieces[-1].bias == 4.0).all())

    def test_with_a_missing_weight_is_refused(self):
        cut = WithBoth()
        serialize(cut, both([2, 1]))
        with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "table.weight"'):
            cut.load_state_dict(
                {name: value for name, value in WithBoth().state_dict().items() if "table" not in name}
            )


def test_removing_splits_restores_the_model():
    model = WithBoth()
    before = [(name, id(parameter)) for name, parameter in model.named_parameters()]
    serialize(model, both([1, 2], [2, 1]))
    assert (type(model.table), type(model.head)) == (SplitEmbedding, SplitLinear)
    pieces = [id(parameter) for parameter in model.parameters()]
    remove_serialization(model)
    assert (type(model.table), type(model.head)) == (nn.Embedding, nn.Linear)
    assert [(name, id(parameter)) for name, parameter in model.named_parameters()] == before
    serialize(model, both([1, 2], [2, 1]))
    # An optimizer may hold the pieces.
    assert [id(parameter) for parameter in model.parameters()] == pieces


@pytest.mark.parametrize("splits", [([2, 1], None), (None, [2, 1]), ([2, 1], [2, 1])])
def test_pieces_of_tied_weights_are_tied(splits):
    model = WithBoth(tied=True, bias=False)
    serialize(model, both(*splits))
    for one, other in zip(model.table.pieces, model.head.pieces, strict=True):
        assert one.weight is other.weight
        assert one.ipu_id == other.ipu_id


@pytest.mark.parametrize(
    ("model", "chosen", "message"),
    [
        (WithBoth(tied=True), both([2, 1], [1, 2]), "embedding and projection are tied, so their pieces are too"),
        (classifier(), both(None, [1, 1]), "BertForSequenceClassification, which has no projection; leave it"),
        (WithBoth(rows=2), both([2, 1]), "makes 3 pieces of 2 rows; use at most 2"),
        (nn.Linear(2, 2), both([1, 1]), "cannot be used with Linear, which has no embedding"),
        (
            WithBoth(tied=True),
            config(projection_serialization_factor=3, serialized_embedding_splits_per_ipu=[1, 1]),
            "`projection_serialization_factor=3` contradicts splits of the weight it is tied to",
        ),
    ],
)
def test_impossible_splits_are_refused(model, chosen, message):
    with pytest.raises(IncompatibleIPUConfigError, match=message):
        serialize(model, chosen)


def test_subclass_of_embedding_is_refused():
    model = WithBoth()
    model.table.__class__ = type("Scaled", (nn.Embedding,), {})
    with pytest.raises(IncompatibleIPUConfigError, match="cannot split a Scaled, only a plain Embedding or Linear"):
        serialize(model, both([1, 1]))


class TestTraining:
    def trainer(self, output_dir, parts=None, **changes):
        torch.manual_seed(0)
        model = BertForMaskedLM(bert_config())
        data = {"train_dataset": Words(72), "eval_dataset": Words(9, seed=1)}
        options = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1, **changes.pop("args", {})}
        return ipu_trainer(output_dir, config(**changes), model, parts={**data, **(parts or {})}, **options)

    @pytest.fixture
    def split_trainer(self, tmp_path):
        # Training and evaluation use different pieces.
        trainer = self.trainer(
            tmp_path / "split",
            serialized_embedding_splits_per_ipu=[1, 2],
            inference_serialized_embedding_splits_per_ipu=None,
            args={"eval_strategy": "steps", "eval_steps": 1},
        )
        trainer.train()
        return trainer

    def test_reaches_the_same_weights_and_saves_them_plain(self, tmp_path, split_trainer):
        whole = self.trainer(tmp_path / "whole")
        whole.train()
        expected = whole.model.state_dict()
        split_trainer.save_model(tmp_path / "saved")
        loaded = BertForMaskedLM.from_pretrained(tmp_path / "saved").state_dict()
        assert loaded.keys() == expected.keys()
        assert all(torch.allclose(loaded[name], expected[name], atol=1e-6) for name in expected)
        assert split_trainer.evaluate()["eval_loss"] == pytest.approx(whole.evaluate()["eval_loss"], abs=1e-6)

    def test_is_reported_piece_by_piece(self, split_trainer):
        report = split_trainer.placement_report
        on_ipu = {name: ipu for ipu, names in report.stages for name in names}
        table = "bert.embeddings.word_embeddings.pieces"
        assert [on_ipu[f"{table}.{number}"] for number in range(3)] == [0, 1, 1]
        assert "pieces.0" in report.text()
        # 50 rows in pieces of 17, 17 and 16.
        whole = self.trainer(split_trainer.args.output_dir + "-other", args={"max_steps": 1})
        whole.train()
        moved = whole.placement_report.memory[0].num_parameters - report.memory[0].num_parameters
        assert moved >= 33 * 16

    @pytest.mark.parametrize("splits", [[1, 2], None, [1, 1], [2, 3]])
    def test_resumes_with_the_same_and_with_other_pieces(self, tmp_path, split_trainer, splits):
        again = self.trainer(tmp_path / "again", serialized_embedding_splits_per_ipu=splits)
        again.train(resume_from_checkpoint=str(tmp_path / "split" / "checkpoint-1"))
        tolerance = 0 if splits == [1, 2] else 1e-6
        torch.testing.assert_close(again.model.state_dict(), split_trainer.model.state_dict(), rtol=0, atol=tolerance)

    def test_resumes_from_a_checkpoint_without_pieces(self, tmp_path):
        whole = self.trainer(tmp_path / "whole")
        whole.train()
        cut = self.trainer(tmp_path / "cut", serialized_embedding_splits_per_ipu=[1, 2])
        cut.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-1"))
        expected = whole.model.state_dict()
        assert all(torch.allclose(value, expected[name], atol=1e-6) for name, value in cut.model.state_dict().items())

    def test_accepts_optimizers_of_the_whole_model(self, tmp_path):
        found = []
        for changes in ({}, {"serialized_embedding_splits_per_ipu": [1, 2]}):
            torch.manual_seed(0)
            model = BertForMaskedLM(bert_config())
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            # One step on the host, so that there is a velocity to convert.
            model(**{name: value[None] for name, value in Words(1)[0].items()}).loss.backward()
            optimizer.step()
            parts = {"optimizers": (optimizer, None), "train_dataset": Words(48)}
            trainer = ipu_trainer(tmp_path, config(**changes), model, parts=parts, max_steps=1)
            trainer.train()
            found.append(trainer.model.state_dict())
        assert all(torch.allclose(value, found[1][name], atol=1e-6) for name, value in found[0].items())

    def test_trains_in_half_precision(self, tmp_path):
        changes = {"fp32": False, "max_steps": 1, "loss_scaling": 16.0}
        trainer = self.trainer(tmp_path, serialized_projection_splits_per_ipu=[0, 3], args=changes)
        before = trainer.model.state_dict()["cls.predictions.decoder.weight"].clone()
        trainer.train()
        after = trainer.model.state_dict()["cls.predictions.decoder.weight"]
        assert isinstance(trainer.model.get_input_embeddings().pieces[0], Piece)
        assert after.dtype is torch.float16
        assert not torch.equal(before, after)


@given(rows=st.integers(2, 30), pieces=st.integers(1, 7), padding=st.none() | st.integers(0, 1))
@settings(max_examples=40, deadline=None)
def test_serialized_embedding_equals_a_whole_one(rows, pieces, padding):
    torch.manual_seed(0)
    whole = nn.Embedding(rows, 3, padding_idx=padding)
    cut = nn.Embedding(rows, 3, padding_idx=padding)
    cut.load_state_dict(whole.state_dict())
    cut.__class__, cut.num_pieces = SerializedEmbedding, pieces
    index = torch.randint(0, rows, (4, 5), generator=torch.Generator().manual_seed(1))
    for table in (whole, cut):
        (table(index) * torch.arange(60.0).reshape(4, 5, 3)).sum().backward()
    assert torch.equal(whole(index), cut(index))
    assert torch.allclose(whole.weight.grad, cut.weight.grad)
    if padding is not None:
        assert not cut.weight.grad[padding].any()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("pieces", [2, 3, 5])
def test_serialized_linear_equals_a_whole_one(bias, pieces):
    whole = nn.Linear(4, 11, bias=bias)
    cut = nn.Linear(4, 11, bias=bias)
    cut.load_state_dict(whole.state_dict())
    cut.__class__, cut.num_pieces = SerializedLinear, pieces
    x = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(whole(x), cut(x), atol=1e-6)


def test_removing_serialization_restores_the_model():
    model = BertForMaskedLM(bert_config())
    names = set(model.state_dict())
    serialize(model, IPUConfig(embedding_serialization_factor=2, projection_serialization_factor=2))
    assert type(model.get_input_embeddings()) is SerializedEmbedding
    assert type(model.get_output_embeddings()) is SerializedLinear
    assert set(model.state_dict()) == names
    remove_serialization(model)
    assert type(model.get_input_embeddings()) is nn.Embedding
    assert not hasattr(model.get_output_embeddings(), "num_pieces")


def test_serialized_embedding_trains_to_the_same_weights(tmp_path):
    found = []
    for factor in (1, 3):
        config = IPUConfig(layers_per_ipu=[1, 1], gradient_accumulation_steps=4, embedding_serialization_factor=factor)
        trainer = ipu_trainer(tmp_path, config, max_steps=2)
        trainer.train()
        found.append(trainer.model.get_input_embeddings())
    assert type(found[1]) is SerializedEmbedding
    assert torch.allclose(found[0].weight, found[1].weight, atol=1e-6)
