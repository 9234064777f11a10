import pytest
import torch
from transformers import (
    AutoConfig,
    BertConfig,
    BertForMaskedLM,
    DistilBertConfig,
    PreTrainedConfig,
    RobertaConfig,
    RobertaPreTrainedModel,
    XLNetConfig,
)

from portico import InputError
from portico.mrc import (
    BEAM_SEARCH_HEAD,
    EXTRACTIVE_HEAD,
    EXTRACTIVE_WITH_CONFIDENCE_HEAD,
    ExtractiveQAHead,
    ModelForDownstreamTasks,
)
from portico.mrc.models.loading import get_saved_head, question_answering_model

SHAPE = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8, "vocab_size": 40}
ENCODERS = {
    "Bert": BertConfig(**SHAPE),
    "Roberta": RobertaConfig(**SHAPE, max_position_embeddings=30),
    "DistilBert": DistilBertConfig(dim=8, n_layers=1, n_heads=2, hidden_dim=8, vocab_size=40),
    "XLNet": XLNetConfig(d_model=8, n_layer=1, n_head=2, d_inner=8, vocab_size=40),
}
TOKENS = {"input_ids": torch.arange(5, 17).reshape(1, 12), "attention_mask": torch.ones(1, 12, dtype=torch.long)}


def made(config, heads=EXTRACTIVE_HEAD):
    torch.manual_seed(0)
    model = ModelForDownstreamTasks.from_config(config, task_heads=heads)
    model.set_task_head("qa_head")
    return model.eval()


def assert_same(one, other):
    weights = other.state_dict()
    assert one.state_dict().keys() == weights.keys()
    assert all(torch.equal(value, weights[name]) for name, value in one.state_dict().items())
    torch.manual_seed(0)  # confidence features come from dropout
    outputs = one(**TOKENS)
    torch.manual_seed(0)
    # The last bit depends on the memory alignment of the weights.
    torch.testing.assert_close(outputs.to_tuple(), other(**TOKENS).to_tuple())


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("heads", [EXTRACTIVE_HEAD, BEAM_SEARCH_HEAD], ids=["extractive", "beam_search"])
def test_any_encoder_is_saved_and_loaded_with_its_head(name, heads, tmp_path):
    model = made(ENCODERS[name], heads)
    assert type(model).__name__ == f"{name}ModelForDownstreamTasks"
    model.save_pretrained(tmp_path)
    again = ModelForDownstreamTasks.from_pretrained(tmp_path).eval()
    assert_same(again, model)
    given = ModelForDownstreamTasks.from_config(AutoConfig.from_pretrained(tmp_path), tmp_path, task_heads=heads)
    assert_same(given.eval(), model)


def test_the_class_belongs_to_the_family_of_its_encoder():
    model_class = ModelForDownstreamTasks.model_class_from_config(ENCODERS["Roberta"])
    assert issubclass(model_class, ModelForDownstreamTasks)
    assert issubclass(model_class, RobertaPreTrainedModel)
    assert model_class.base_model_prefix == "roberta"


def test_the_weights_of_the_encoder_are_loaded(tmp_path):
    pretrained = BertForMaskedLM(ENCODERS["Bert"])
    pretrained.save_pretrained(tmp_path)
    model = ModelForDownstreamTasks.from_config(ENCODERS["Bert"], tmp_path, task_heads=EXTRACTIVE_HEAD)
    assert model.model_ is model.bert
    words = model.model_.embeddings.word_embeddings.weight
    assert torch.equal(words, pretrained.bert.embeddings.word_embeddings.weight)
    assert model.model_.pooler is None


def test_a_class_without_encoder_cannot_be_instantiated():
    with pytest.raises(TypeError, match="has no encoder; make a model with `from_config"):
        ModelForDownstreamTasks(ENCODERS["Bert"], EXTRACTIVE_HEAD)


def test_a_model_needs_an_active_head():
    with pytest.raises(ValueError, match="would have no head; give `task_heads`"):
        ModelForDownstreamTasks.from_config(ENCODERS["Bert"], task_heads={})
    model = ModelForDownstreamTasks.from_config(ENCODERS["Bert"], task_heads={"a": ExtractiveQAHead})
    model.config.task_head = None
    with pytest.raises(KeyError, match="no head 'b'; set one of: 'a'"):
        model.set_task_head("b")
    model._head_name = None
    with pytest.raises(ValueError, match="No head was chosen; call `set_task_head` with one of: 'a'"):
        model(**TOKENS)


def test_heads_share_the_encoder():
    heads = {"a": ExtractiveQAHead, "b": ExtractiveQAHead}
    model = ModelForDownstreamTasks.from_config(ENCODERS["Bert"], task_heads=heads).eval()
    outputs = []
    for name in heads:
        model.set_task_head(name)
        assert model.task_head is model.task_heads[name]
        outputs.append(model(**TOKENS))
    assert not torch.equal(outputs[0].start_logits, outputs[1].start_logits)


def test_hidden_states_and_tuples_are_passed_on():
    model = made(ENCODERS["Bert"])
    output = model(**TOKENS, output_hidden_states=True, token_type_ids=torch.zeros(1, 12, dtype=torch.long))
    assert len(output.hidden_states) == 2
    assert isinstance(model(**TOKENS, return_dict=False), tuple)


def test_an_unknown_encoder_is_refused():
    with pytest.raises(InputError, match="no encoder for a `PreTrainedConfig`"):
        ModelForDownstreamTasks.model_class_from_config(PreTrainedConfig())


def test_heads_of_unknown_classes_must_be_given(tmp_path):
    class OtherHead(ExtractiveQAHead):
        pass

    made(ENCODERS["Bert"], {"qa_head": OtherHead}).save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"heads of unknown classes \(OtherHead\)"):
        ModelForDownstreamTasks.from_pretrained(tmp_path)
    given = ModelForDownstreamTasks.from_pretrained(tmp_path, task_heads={"qa_head": OtherHead})
    assert isinstance(given.task_head, OtherHead)


@pytest.mark.parametrize("head", ["span", "extractive", "extractive_with_confidence", "beam_search"])
@pytest.mark.parametrize("name", ["Bert", "XLNet"])
def test_models_are_loaded_with_their_saved_head(head, name, tmp_path):
    model = question_answering_model(ENCODERS[name], head).eval()
    model.save_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    assert get_saved_head(config) == head
    again = question_answering_model(config, None, tmp_path).eval()
    assert type(again).__name__ == type(model).__name__
    assert_same(again, model)


def test_a_saved_model_can_get_another_head(tmp_path):
    plain = question_answering_model(ENCODERS["Bert"], "span")
    plain.save_pretrained(tmp_path)
    model = question_answering_model(AutoConfig.from_pretrained(tmp_path), "extractive_with_confidence", tmp_path)
    assert model.config.task_heads == {name: head.__name__ for name, head in EXTRACTIVE_WITH_CONFIDENCE_HEAD.items()}
    assert torch.equal(model.bert.embeddings.LayerNorm.weight, plain.bert.embeddings.LayerNorm.weight)
