import subprocess
import sys

import pytest
from transformers import AutoTokenizer, BertConfig

from portico.errors import InputError
from portico.experiments.from_scratch import (
    SPECIAL_TOKENS,
    SmallModel,
    check_unshaped,
    train_generator_tokenizer,
    train_wordpiece_tokenizer,
)
from portico.experiments.settings import NO_DEFAULT
from portico.mrc.corpus import generate


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


def test_a_vocabulary_of_any_size_may_be_asked_for():
    assert train_wordpiece_tokenizer(["why"], vocab_size=10**18).vocab_size < 20


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
        "from portico.experiments.from_scratch import train_wordpiece_tokenizer\n"
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


def test_the_tokenizer_of_a_generator_ends_sequences_and_joins_words(texts):
    tokenizer = train_generator_tokenizer(texts, vocab_size=500)
    tokens = tokenizer("The passage")["input_ids"]
    assert tokens[-1] == tokenizer.eos_token_id
    assert tokenizer.decode(tokens, skip_special_tokens=True) == "The passage"
    bare = train_generator_tokenizer(texts, vocab_size=500, ends_sequences=False)
    assert bare("The passage")["input_ids"] == tokens[:-1]


def test_a_pretrained_model_is_not_shaped():
    check_unshaped({"hidden_size": None}, "folder", "BERT")
    with pytest.raises(InputError, match=r"`model\.hidden_size=3` would shape a new small BERT"):
        check_unshaped({"hidden_size": 3}, "folder", "BERT")


def test_fields_of_a_configuration():
    fields = SmallModel("BERT", BertConfig, {"hidden_size": 8}).settings(open_fields=["max_position_embeddings"])
    assert (fields["hidden_size"], fields["num_hidden_layers"]) == (8, BertConfig().num_hidden_layers)
    assert fields["max_position_embeddings"] is NO_DEFAULT is fields["vocab_size"]
