import subprocess
import sys

import pytest
import torch
from transformers import AutoTokenizer, BertConfig, BertForQuestionAnswering, BertTokenizer

from portico.errors import InputError
from portico.mrc.corpus import generate
from portico.mrc.models.small_bert import (
    SPECIAL_TOKENS,
    build_small_bert,
    small_bert_config,
    train_wordpiece_tokenizer,
)

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


@pytest.fixture(scope="module")
def corpus():
    return generate(num_train=1500, num_validation=300, seed=0)


@pytest.fixture(scope="module")
def texts(corpus):
    return [text for example in corpus[0] for text in (example["question"], example["context"])]


@pytest.fixture(scope="module")
def tokenizer(texts):
    return train_wordpiece_tokenizer(texts, vocab_size=1000)


def test_special_tokens_come_first_and_padding_is_zero(tokenizer):
    assert tokenizer.convert_ids_to_tokens(list(range(len(SPECIAL_TOKENS)))) == list(SPECIAL_TOKENS)
    assert tokenizer.pad_token_id == 0
    assert len(tokenizer) == 1000


def test_pair_is_framed_as_bert_expects(tokenizer):
    encoding = tokenizer("was", "born")
    assert tokenizer.convert_ids_to_tokens(encoding["input_ids"]) == ["[CLS]", "was", "[SEP]", "born", "[SEP]"]
    assert encoding["token_type_ids"] == [0, 0, 0, 1, 1]


def test_unseen_names_are_split_without_unknown_pieces(tokenizer, corpus):
    for example in corpus[1]:
        assert tokenizer.unk_token_id not in tokenizer(example["question"], example["context"])["input_ids"]


def test_a_name_has_the_same_pieces_in_question_and_passage(tokenizer):
    pieces = tokenizer.tokenize("Bjøhavnår Ževník")
    assert " ".join(pieces) in " ".join(tokenizer.tokenize("It was in 1871 that Bjøhavnår Ževník, aged ten, wrote."))


def test_offsets_are_characters_of_the_original_text(tokenizer):
    text = "Žofía Ёлкин was born in Århus."
    encoding = tokenizer(text, return_offsets_mapping=True, add_special_tokens=False)
    restored = "".join(text[start:end] for start, end in encoding["offset_mapping"])
    assert restored == text.replace(" ", "")


def test_lowercase_false_keeps_case_and_accents(texts):
    cased = train_wordpiece_tokenizer(texts, vocab_size=1000, lowercase=False)
    assert cased.tokenize("The") != cased.tokenize("the")
    assert "".join(piece.removeprefix("##") for piece in cased.tokenize("Žofía")) == "Žofía"


def test_round_trip_through_auto_tokenizer(tokenizer, texts, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.is_fast
    for text in texts[:50]:
        assert loaded(text, text)["input_ids"] == tokenizer(text, text)["input_ids"]


def test_training_does_not_depend_on_the_process(tokenizer):
    code = (
        "from portico.mrc.corpus import generate\n"
        "from portico.mrc.models.small_bert import train_wordpiece_tokenizer\n"
        "train, _ = generate(num_train=1500, num_validation=0, seed=0)\n"
        "texts = [text for example in train for text in (example['question'], example['context'])]\n"
        "print(sorted(train_wordpiece_tokenizer(texts, vocab_size=1000).get_vocab().items()))\n"
    )
    output = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONHASHSEED": "5", "PYTHONPATH": ":".join(sys.path), "PYTHONIOENCODING": "utf-8"},
        check=True,
        capture_output=True,
        text=True,
        encoding="utf-8",
    ).stdout
    assert output.strip() == str(sorted(tokenizer.get_vocab().items()))
