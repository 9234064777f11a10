"""Embeddings and projections in pieces are those that are whole."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers import BertForMaskedLM

from ipu_trainers import bert_config, ipu_trainer
from portico.ipu.config import IPUConfig
from portico.ipu.pipelining.serialization import (
    SerializedEmbedding,
    SerializedLinear,
    remove_serialization,
    serialize,
)


@given(rows=st.integers(2, 30), pieces=st.integers(1, 7), padding=st.none() | st.integers(0, 1))
@settings(max_examples=40, deadline=None)
def test_lookups_and_their_gradients_are_those_of_a_whole_table(rows, pieces, padding):
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
def test_projections_are_those_of_a_whole_matrix(bias, pieces):
    whole = nn.Linear(4, 11, bias=bias)
    cut = nn.Linear(4, 11, bias=bias)
    cut.load_state_dict(whole.state_dict())
    cut.__class__, cut.num_pieces = SerializedLinear, pieces
    x = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(whole(x), cut(x), atol=1e-6)


def test_are_undone_without_a_trace():
    model = BertForMaskedLM(bert_config())
    names = set(model.state_dict())
    serialize(model, IPUConfig(embedding_serialization_factor=2, projection_serialization_factor=2))
    assert type(model.get_input_embeddings()) is SerializedEmbedding
    assert type(model.get_output_embeddings()) is SerializedLinear
    assert set(model.state_dict()) == names
    remove_serialization(model)
    assert type(model.get_input_embeddings()) is nn.Embedding
    assert not hasattr(model.get_output_embeddings(), "num_pieces")


def test_train_to_the_same_weights(tmp_path):
    found = []
    for factor in (1, 3):
        config = IPUConfig(layers_per_ipu=[1, 1], gradient_accumulation_steps=4, embedding_serialization_factor=factor)
        trainer = ipu_trainer(tmp_path, config, max_steps=2)
        trainer.train()
        found.append(trainer.model.get_input_embeddings())
    assert type(found[1]) is SerializedEmbedding
    assert torch.allclose(found[0].weight, found[1].weight, atol=1e-6)
