import pytest
import torch
from transformers import BertConfig, BertForQuestionAnswering, BertTokenizer

from portico.errors import InputError
from portico.mrc.models.small_bert import build_small_bert, small_bert_config

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"word{number}" for number in range(40))]


@pytest.fixture(scope="module")
def plain_tokenizer():
    return BertTokenizer(vocab={piece: number for number, piece in enumerate(PIECES)})


def build(plain_tokenizer, **overrides):
    torch.manual_seed(0)
    return build_small_bert(small_bert_config(plain_tokenizer, **overrides))


def attention_of_first_layer(model):
    """Return the attention, float [heads, from, to], over a question and a passage; token 13 repeats token 5."""
    model.set_attn_implementation("eager")
    question, passage = [5, 6, 7, 8, 9, 10, 11, 12], [20, 21, 22, 23, 24, 10, 25, 26, 27, 28]
    ids = torch.tensor([[*question, *passage]])
    segments = torch.tensor([[0] * len(question) + [1] * len(passage)])
    with torch.no_grad():
        return model.eval()(input_ids=ids, token_type_ids=segments, output_attentions=True).attentions[0][0]


def test_config_follows_the_tokenizer_and_the_overrides(plain_tokenizer):
    config = small_bert_config(plain_tokenizer, hidden_size=64, num_hidden_layers=2)
    assert (config.vocab_size, config.pad_token_id) == (45, 0)
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (64, 2, 4)


def test_unknown_field_is_refused_with_the_nearest(plain_tokenizer):
    with pytest.raises(InputError, match=r"`hiden_size` is not a field of BertConfig; the nearest are hidden_size"):
        small_bert_config(plain_tokenizer, hiden_size=64)


def test_model_is_a_plain_bert_for_question_answering(plain_tokenizer, tmp_path):
    model = build(plain_tokenizer)
    assert type(model) is BertForQuestionAnswering
    assert all(parameter.requires_grad for parameter in model.parameters())
    model.save_pretrained(tmp_path)
    loaded = BertForQuestionAnswering.from_pretrained(tmp_path)
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor)


def test_weights_follow_the_seed(plain_tokenizer):
    first, second = build(plain_tokenizer), build(plain_tokenizer)
    other = build_small_bert(small_bert_config(plain_tokenizer))
    weights = [model.qa_outputs.weight for model in (first, second, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize(("head", "distance"), [(0, -1), (1, 1)])
def test_neighbour_heads_attend_to_the_neighbour(plain_tokenizer, head, distance):
    attention = attention_of_first_layer(build(plain_tokenizer))[head]
    assert attention.diagonal(distance).mean() > 0.5


@pytest.mark.parametrize("head", [2, 3])
def test_same_word_heads_attend_to_equal_words(plain_tokenizer, head):
    attention = attention_of_first_layer(build(plain_tokenizer))[head]
    in_passage, in_question = 13, 5
    assert set(attention[in_passage].topk(2).indices.tolist()) == {in_passage, in_question}
    assert attention[in_passage, in_question] > 0.15


def test_plain_bert_has_no_such_heads(plain_tokenizer):
    torch.manual_seed(0)
    attention = attention_of_first_layer(BertForQuestionAnswering(small_bert_config(plain_tokenizer)))
    assert attention.max() < 0.15


@pytest.mark.parametrize(
    ("hidden_size", "num_attention_heads"), [(16, 1), (48, 3), (64, 2), (64, 8), (128, 1), (192, 12), (768, 12)]
)
def test_every_shape_can_be_built(hidden_size, num_attention_heads):
    config = BertConfig(
        vocab_size=20,
        hidden_size=hidden_size,
        num_attention_heads=num_attention_heads,
        num_hidden_layers=2,
        intermediate_size=32,
    )
    model = build_small_bert(config)
    assert all(parameter.isfinite().all() for parameter in model.parameters())
