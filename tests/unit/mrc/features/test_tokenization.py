"""Texts that are encoded word by word have the tokens and offsets of the whole text."""

import random

import pytest
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from mrc_data import TOKENIZERS, WORDS
from portico.mrc.features.tokenization import TextEncoder, _WordSplitter

ODD = "\xb4\xa8\xbd\u0141\u017f\u4e2d\u6587\u0301\u0308\u0600\u200b\ufffd\x00\U0001f600"
SPACES = [*"\n\t\r\xa0\u3000\x1c\x85", *" " * 10]
PIECES = [*"abcdeé'.,-Z12", *ODD, *SPACES, "<mask>", "'s"]


def with_mask(tokenizer, **options):
    tokenizer.add_special_tokens([AddedToken("<mask>", normalized=False, **options)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def words(normalizer, pre_tokenizer):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=12))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, pre_tokenizer
    tokenizer.train_from_iterator(WORDS, trainers.WordPieceTrainer(vocab_size=90, special_tokens=["[UNK]"]))
    return with_mask(tokenizer, lstrip=True)


def byte_level(normalizer=None, *, prefix=False, trim=True, pre_tokenizer=None):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer or pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(WORDS, trainer)
    tokenizer.post_processor = processors.RobertaProcessing(
        ("</s>", 1), ("<s>", 0), trim_offsets=trim, add_prefix_space=prefix
    )
    return with_mask(tokenizer, lstrip=True, rstrip=not trim)


BY_WORDS = {
    "BERT": TOKENIZERS["bert"],
    "words": words(normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()]), pre_tokenizers.Whitespace()),
    "parts of words": words(
        normalizers.StripAccents(),
        pre_tokenizers.Sequence(
            [pre_tokenizers.Punctuation(), pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Digits()]
        ),
    ),
    "RoBERTa": byte_level(),
    "prefix": byte_level(normalizers.NFKC(), prefix=True),
    "spaces in offsets": byte_level(trim=False),
}
WHOLE = {
    "accents between spaces": byte_level(normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()])),
    "Metaspace": byte_level(pre_tokenizer=pre_tokenizers.Metaspace()),
    "no words": byte_level(pre_tokenizer=pre_tokenizers.ByteLevel(use_regex=False)),
}


def made_text(rng):
    text = "".join(rng.choices(PIECES, k=rng.randint(0, 40)))
    # Half of the texts have no two spaces of any kind side by side.
    return text if rng.random() < 0.5 else " ".join(text.split())


@pytest.mark.parametrize("name", [*BY_WORDS, *WHOLE])
def test_texts_are_encoded_as_a_whole_or_equally(name):
    tokenizer = {**BY_WORDS, **WHOLE}[name]
    backend = tokenizer.backend_tokenizer
    texts = ["", *(made_text(random.Random(seed)) for seed in range(1000))]
    encoded = TextEncoder(tokenizer).encode(texts)
    for i, expected in enumerate(backend.encode_batch(texts, add_special_tokens=False)):
        tokens = slice(encoded.starts_E[i], encoded.starts_E[i] + encoded.lengths_E[i])
        assert encoded.ids_P[tokens].tolist() == expected.ids, texts[i]
        assert encoded.offsets_P2[tokens].tolist() == [list(pair) for pair in expected.offsets], texts[i]
    num_split = sum(len(words) > 1 for words in _WordSplitter(backend).split(texts))
    assert num_split > 100 if name in BY_WORDS else num_split == 0


def test_each_word_is_encoded_once():
    class Counting:
        def __init__(self, tokenizer):
            self.tokenizer, self.num_words = tokenizer, 0

        def __getattr__(self, name):
            return getattr(self.tokenizer, name)

        def encode_batch(self, texts, **options):
            self.num_words += sum(len(text.split()) for text in texts)
            return self.tokenizer.encode_batch(texts, **options)

    class Fast:
        backend_tokenizer = Counting(BY_WORDS["BERT"].backend_tokenizer)

    encoder = TextEncoder(Fast)
    for _ in range(2):
        encoder.encode([" ".join(WORDS[first:] + WORDS[:first]) for first in range(len(WORDS))])
    # Every word opens one text, and one text of words begins with "x".
    assert Fast.backend_tokenizer.num_words == 2 * len(set(WORDS)) + 1


def test_no_texts_have_no_tokens():
    encoded = TextEncoder(BY_WORDS["BERT"]).encode([])
    assert (encoded.ids_P.shape, encoded.offsets_P2.shape) == ((0,), (0, 2))
