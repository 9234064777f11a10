"""Questions and contexts to tokenised windows.

Shape suffixes: E pairs of a question and a context (where each example has one: examples), F features (windows),
D distinct texts, W words of texts after the first, Q words of texts, P tokens of the pool that windows are assembled
from, T tokens of all windows, 6 the parts of the pool.
"""

import json
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, count, islice
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer
from tokenizers.processors import PostProcessor
from transformers import BatchEncoding, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from portico.errors import InputError
from portico.mrc.arrays import Int32s, Int64s
from portico.mrc.features.windows import Windows, ranges

_SAMPLE_SIZE = 4  # pairs of each kind on which both ways to encode are compared
_PAIRS_PER_CALL = 1000  # bounds the memory of the tokenizer's Python lists
_WORDS_PER_TEXT = 64

# Rules that look at single words only, so that a text can be encoded word by word.
_WORD_NORMALIZERS = {"Lowercase", "NFC", "NFD", "NFKC", "NFKD"}
_DROPPING_NORMALIZERS = {"BertNormalizer", "StripAccents"}  # of "a \u0301 b" they leave two spaces side by side
_SPACE_DROPPING = {"BertPreTokenizer", "Whitespace", "WhitespaceSplit"}
_WORD_RULES = {"Digits", "Punctuation"}

# The parts of the pool, and the order in which a window holds a piece of each.
_BEFORE, _BETWEEN, _AFTER, _PAD, _QUESTION, _CONTEXT = range(6)
_QUESTION_FIRST = [_BEFORE, _QUESTION, _BETWEEN, _CONTEXT, _AFTER, _PAD]
_CONTEXT_FIRST = [_PAD, _BEFORE, _CONTEXT, _BETWEEN, _QUESTION, _AFTER]


def cut_at_token(questions: Sequence[str], tokenizer: PreTrainedTokenizerFast, longest: int) -> list[str]:
    """Return the questions cut to about ``longest`` tokens, at the end of a token."""
    encoded = TextEncoder(tokenizer).encode(questions)
    too_long_E = encoded.lengths_E > longest
    if not too_long_E.any():
        return list(questions)
    cut_at_E = encoded.offsets_P2[encoded.starts_E + np.minimum(longest, encoded.lengths_E) - 1, 1]
    return [
        question[:cut_at] if too_long else question
        for question, cut_at, too_long in zip(questions, cut_at_E, too_long_E, strict=True)
    ]


def choose_fill_token(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the token that fills up rows; tokenizers of language models may have none, and then any other will do."""
    tokens = (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id)
    return next((int(token) for token in tokens if token is not None), 0)


@dataclass(frozen=True)
class WindowCutter:
    """Cuts contexts into windows that hold the whole question and a part of the context each.

    The windows equal the pair encoding of the tokenizer: question first, or context first if the tokenizer pads on the
    left. For the arguments see :class:`~portico.mrc.features.featurizer.Featurizer`; ``corrects_offsets`` repairs
    offsets that the tokenizer computes wrongly.
    """

    tokenizer: PreTrainedTokenizerFast
    max_seq_length: int
    doc_stride: int
    pad: bool = False
    corrects_offsets: bool = False

    def __post_init__(self) -> None:
        if not self.tokenizer.is_fast:
            raise InputError(
                f"{type(self.tokenizer).__name__} is not a fast tokenizer, which is needed to map tokens to "
                "characters; load it with AutoTokenizer.from_pretrained(..., use_fast=True)."
            )
        if not 0 <= self.doc_stride < self.max_seq_length:
            raise InputError(
                f"`doc_stride={self.doc_stride}` must be at least 0 and below `max_seq_length={self.max_seq_length}`: "
                "it is the number of tokens that two neighbouring windows share; set a smaller `doc_stride`."
            )

    def cut(
        self, questions: Sequence[str], contexts: Sequence[str | Sequence[str]], max_contexts: int | None = None
    ) -> tuple[Windows, Int64s | None]:
        """Return the windows of every question with its context or contexts, one question after the other.

        The second value is which of its question's contexts each window was cut from, ``int64 [F]``, or ``None`` if
        every context is a string.
        """
        if all(isinstance(context, str) for context in contexts):
            return self._cut_pairs(questions, [str(context) for context in contexts]), None
        listed = [[context] if isinstance(context, str) else list(context)[:max_contexts] for context in contexts]
        windows = self._cut_pairs(
            [question for question, passages in zip(questions, listed, strict=True) for _ in passages],
            [context for passages in listed for context in passages],
        )
        example_index = np.repeat(np.arange(len(listed)), [len(passages) for passages in listed])
        context_index = np.concatenate([np.arange(len(passages)) for passages in listed])
        pair_F = windows.example_index_F
        return replace(windows, example_index_F=example_index[pair_F]), context_index[pair_F]

    def _cut_pairs(self, questions: Sequence[str], contexts: Sequence[str]) -> Windows:
        if not len(questions):
            raise InputError("There are no examples to make features of; give at least one question with its context.")
        if self.corrects_offsets and _trims_too_much(self.tokenizer.backend_tokenizer):
            whole = replace(self, tokenizer=_disable_trimming(self.tokenizer), corrects_offsets=False)
            return _correct_offsets(whole._cut_pairs(questions, contexts), contexts, trims=True)
        encoder = TextEncoder(self.tokenizer)
        encoded_questions = encoder.encode(questions)
        lengths_E = encoded_questions.lengths_E
        longest = int(lengths_E.argmax())
        room = self.max_seq_length - self.tokenizer.num_special_tokens_to_add(pair=True) - lengths_E[longest]
        if self.doc_stride >= room:
            raise InputError(
                f"`doc_stride={self.doc_stride}` does not fit: with `max_seq_length={self.max_seq_length}` "
                f"the longest question ({lengths_E[longest]} tokens: {questions[longest][:80]!r}) leaves "
                f"{max(room, 0)} tokens for the context, and `doc_stride` must be smaller than that; set a smaller "
                "`doc_stride`, a larger `max_seq_length`, or `max_question_length`."
            )
        windows = self._assemble_windows(questions, contexts, encoded_questions, encoder.encode(contexts))
        windows = self._encode_pairs(questions, contexts) if windows is None else windows
        return _correct_offsets(windows, contexts) if self.corrects_offsets else windows

    @property
    def question_first(self) -> bool:
        return self.tokenizer.padding_side == "right"

    def _assemble_windows(
        self,
        questions: Sequence[str],
        contexts: Sequence[str],
        encoded_questions: "EncodedTexts",
        encoded_contexts: "EncodedTexts",
    ) -> Windows | None:
        """Return the windows by encoding each text once, or ``None`` if this tokenizer encodes pairs differently."""
        # The longest contexts, the longest questions, and some evenly spread.
        longest = [np.argsort(-texts.lengths_E)[:_SAMPLE_SIZE] for texts in (encoded_contexts, encoded_questions)]
        spread = np.linspace(0, len(contexts) - 1, _SAMPLE_SIZE, dtype=np.int64)
        sample = np.array(list(dict.fromkeys(np.concatenate([*longest, spread]).tolist())), np.int64)
        pair = questions[sample[0]], contexts[sample[0]]
        pair = pair if self.question_first else pair[::-1]
        encoded_pair = self.tokenizer(*pair, return_token_type_ids=True, verbose=False)
        if not {0, 1} <= set(encoded_pair.sequence_ids()):
            return None  # question or context has no tokens
        pool = _TokenPool(self, encoded_pair, encoded_questions, encoded_contexts)
        expected = self._encode_pairs([questions[e] for e in sample], [contexts[e] for e in sample])
        if not pool.assemble(sample).equals(expected):
            return None
        return pool.assemble(np.arange(len(questions)))

    def _encode_pairs(self, questions: Sequence[str], contexts: Sequence[str]) -> Windows:
        """Return the windows by the pair encoding of the tokenizer, which defines them but is slower."""
        parts = []
        for first in range(0, len(questions), _PAIRS_PER_CALL):
            called = slice(first, first + _PAIRS_PER_CALL)
            pair = (list(questions[called]), list(contexts[called]))
            encoding = self.tokenizer(
                *(pair if self.question_first else pair[::-1]),
                truncation="only_second" if self.question_first else "only_first",
                max_length=self.max_seq_length,
                stride=self.doc_stride,
                padding="max_length" if self.pad else False,
                return_overflowing_tokens=True,
                return_offsets_mapping=True,
                return_attention_mask=True,
                return_token_type_ids=True,
            )
            parts.append(_columns(encoding, first, context=int(self.question_first)))
        example_index_F, lengths_F, *tokens = (np.concatenate(column) for column in zip(*parts, strict=True))
        return Windows(example_index_F, np.concatenate(([0], np.cumsum(lengths_F))), *tokens)


def _columns(encoding: BatchEncoding, first_example: int, *, context: int) -> tuple[np.ndarray[Any, Any], ...]:
    """Return example indices and row lengths, then the columns of ``Windows``; ``context`` is its sequence number."""
    rows = encoding["input_ids"]
    in_context = (sequence == context for f in range(len(rows)) for sequence in encoding.sequence_ids(f))
    return (
        np.asarray(encoding["overflow_to_sample_mapping"], np.int64) + first_example,
        np.array([len(row) for row in rows], np.int64),
        np.fromiter(chain.from_iterable(rows), np.int32),
        np.fromiter(chain.from_iterable(encoding["attention_mask"]), np.uint8),
        np.fromiter(chain.from_iterable(encoding["token_type_ids"]), np.uint8),
        np.array(list(chain.from_iterable(encoding["offset_mapping"])), np.int32).reshape(-1, 2),
        np.fromiter(in_context, np.bool_),
    )


def _trims_too_much(backend: Tokenizer) -> bool:
    """Return whether offsets lack the first character of words that follow no space.

    Where a pre-tokenizer puts a space before each of them, the post-processor takes their first character for it. It
    leaves out only the first word of a text, and only if it is told that this has such a space.
    """
    splitters = _parts(backend.pre_tokenizer)
    prefixes = any(part["type"] == "ByteLevel" and part["add_prefix_space"] for part in splitters)
    trimming = [part for part in _parts(backend.post_processor) if part.get("trim_offsets")]
    return prefixes and bool(trimming) and (len(splitters) > 1 or not trimming[0]["add_prefix_space"])


def _disable_trimming(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """Return a copy of a tokenizer whose offsets contain the spaces before words."""
    rules = json.loads(tokenizer.backend_tokenizer.to_str())
    kept: dict[str, Any] = rules["post_processor"]
    for part in kept.get("processors", [kept]):
        part["trim_offsets"] = False
    copied = deepcopy(tokenizer)
    copied.backend_tokenizer.post_processor = Tokenizer.from_str(json.dumps(rules)).post_processor
    return copied


def _correct_offsets(windows: Windows, contexts: Sequence[str], *, trims: bool = False) -> Windows:
    """Return windows whose context tokens end after the accents and format characters that follow their last one.

    A normalizer may remove these, which then belong to no token. With ``trims``, spaces at both ends of a token are
    left out.
    """
    if not trims and all(map(str.isascii, contexts)):
        return windows
    number: dict[str, int] = _create_numbering()
    text_E = np.fromiter(map(number.__getitem__, contexts), np.int64, len(contexts))
    # A character between two texts belongs to none.
    joined = "\n".join([*number, ""])
    removable = "".join(char for char in set(joined) if unicodedata.category(char)[0] in "MC" and char != "\n")
    if not (removable or trims):
        return windows
    token_n = np.flatnonzero(windows.in_context_T)
    lengths_D = np.fromiter(map(len, number), np.int64, len(number)) + 1
    first_F = (np.cumsum(lengths_D) - lengths_D)[text_E[windows.example_index_F]]
    first_n = np.repeat(first_F, windows.lengths_F)[token_n]
    start_n, end_n = windows.char_offsets_T2[token_n].T + first_n
    char_C = np.frombuffer(joined.encode("utf-32-le"), np.uint32)
    if trims:
        is_space_C = np.isin(char_C, [ord(char) for char in set(joined) if char.isspace()])
        while (more_n := (start_n < end_n) & is_space_C[start_n]).any():
            start_n = start_n + more_n
        while (more_n := (start_n < end_n) & is_space_C[end_n - 1]).any():
            end_n = end_n - more_n
    if removable:
        # How many more tokens begin than end before each character, so that 0 is one without a token.
        depth_C = np.cumsum(np.bincount(start_n, minlength=len(char_C)) - np.bincount(end_n, minlength=len(char_C)))
        is_free_C = np.isin(char_C, [ord(char) for char in removable]) & (depth_C == 0)
        while (more_n := (start_n < end_n) & is_free_C[end_n]).any():
            end_n = end_n + more_n
    offsets_T2 = windows.char_offsets_T2.copy()
    offsets_T2[token_n] = np.stack([start_n - first_n, end_n - first_n], axis=1)
    return replace(windows, char_offsets_T2=offsets_T2)


class TextEncoder:
    """Tokenises texts without special tokens; texts that are equal, in all calls, are tokenised once.

    Where a tokenizer encodes a text word by word, equal words are tokenised once too, which takes a third of the time.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        # Calling the tokenizer itself would spend as long again on lists of all this. It resets truncation every time.
        self._backend = tokenizer.backend_tokenizer
        self._splitter = _WordSplitter(self._backend)
        self._openings = _KnownPieces(partial(_encode, self._backend))
        self._words = _KnownPieces(partial(_encode_words, self._backend))

    def encode(self, texts: Sequence[str]) -> "EncodedTexts":
        index: dict[str, int] = _create_numbering()
        text_index_E = np.fromiter(map(index.__getitem__, texts), np.int64, len(texts))
        self._backend.no_truncation()
        self._backend.no_padding()
        splits = self._splitter.split(list(index))
        num_words_D = np.fromiter(map(len, splits), np.int64, len(splits)) - 1
        opening_D = self._openings.numbers((split[0] for split in splits), len(splits))
        following_W = chain.from_iterable(split[1:] for split in splits)
        word_W = self._words.numbers(following_W, num_words_D.sum())
        openings, words = self._openings.encodings, self._words.encodings
        first_D = np.cumsum(num_words_D) - num_words_D
        piece_Q = np.insert(word_W + len(openings.num_tokens), first_D, opening_D)
        pieces = _concatenate(openings, words)

        first_D += np.arange(len(splits))
        num_chars_Q = pieces.num_chars[piece_Q] + 1
        char_Q = np.cumsum(num_chars_Q) - num_chars_Q
        char_Q -= np.repeat(char_Q[first_D], num_words_D + 1)
        num_tokens_Q = pieces.num_tokens[piece_Q]
        lengths = np.add.reduceat(num_tokens_Q, first_D) if len(splits) else num_tokens_Q
        token_P = ranges((np.cumsum(pieces.num_tokens) - pieces.num_tokens)[piece_Q], num_tokens_Q)
        return EncodedTexts(
            starts_E=(np.cumsum(lengths) - lengths)[text_index_E],
            lengths_E=lengths[text_index_E],
            ids_P=pieces.ids[token_P],
            offsets_P2=pieces.offsets.take(token_P, axis=0)
            + np.repeat(char_Q.astype(np.int32), num_tokens_Q)[:, None],
        )


class EncodedTexts(NamedTuple):
    """The text of each pair, from token ``starts_E`` on, without special tokens.

    ``offsets_P2`` are the characters ``[start, end)`` of each token.
    """

    starts_E: Int64s
    lengths_E: Int64s
    ids_P: Int32s
    offsets_P2: Int32s


class _KnownPieces:
    """Numbers texts in the order of their first appearance, and keeps the encodings that ``encode`` makes of them."""

    def __init__(self, encode: Callable[[list[str]], "_Encodings"]) -> None:
        self._encode = encode
        self._number: dict[str, int] = _create_numbering()
        self.encodings = _NO_ENCODINGS

    def numbers(self, texts: Iterable[str], num_texts: int) -> Int64s:
        """Return the number of each text, and encode those that are new."""
        numbers = np.fromiter(map(self._number.__getitem__, texts), np.int64, num_texts)
        if new := list(islice(self._number, len(self.encodings.num_tokens), None)):
            self.encodings = _concatenate(self.encodings, self._encode(new))
        return numbers


def _create_numbering() -> dict[str, int]:
    """Return a mapping that numbers its keys from 0, in the order of the first look-ups."""
    return defaultdict(count().__next__)


class _WordSplitter:
    """Splits texts at spaces if the rules of the tokenizer are known to allow it.

    The encodings of the words, each with the space before it, then add up to the encoding of the text. Texts of
    tokenizers with other rules are not split.
    """

    def __init__(self, backend: Tokenizer) -> None:
        splitters = _parts(backend.pre_tokenizer)
        types, normalizers = ({part["type"] for part in parts} for parts in (splitters, _parts(backend.normalizer)))
        drops_spaces = bool(_SPACE_DROPPING & types) and types <= _SPACE_DROPPING | _WORD_RULES
        drops_spaces &= normalizers <= _WORD_NORMALIZERS | _DROPPING_NORMALIZERS
        # The expression of ByteLevel puts one space before a word into its token, but treats runs of spaces as one.
        keeps_spaces = types == {"ByteLevel"} and all(part["use_regex"] for part in splitters)
        self._splits = drops_spaces or (keeps_spaces and normalizers <= _WORD_NORMALIZERS)
        self._refused = None if drops_spaces else re.compile(r"\s\s|^\s|\s\Z")
        # Tokens that take spaces next to them, too.
        wide = [t for t in backend.get_added_tokens_decoder().values() if t.lstrip or t.rstrip or " " in t.content]
        self._wide = [token.content for token in wide]
        self._splits &= not any(token.normalized for token in wide)

    def split(self, texts: Sequence[str]) -> list[list[str]]:
        """Return the words of each text, at least one."""
        return [text.split(" ") if self._is_by_words(text) else [text] for text in texts]

    def _is_by_words(self, text: str) -> bool:
        if not self._splits or (self._refused is not None and self._refused.search(text)):
            return False
        return not (self._wide and any(token in text for token in self._wide))


def _parts(rule: Normalizer | PreTokenizer | PostProcessor | None) -> list[dict[str, Any]]:
    """Return the settings of each part of a normalizer, a pre-tokenizer or a post-processor, none for ``None``."""
    settings: dict[str, Any] = {"type": "Sequence"} if rule is None else json.loads(rule.__getstate__())
    if settings["type"] != "Sequence":
        return [settings]
    names = ("normalizers", "pretokenizers", "processors")
    return next((settings[name] for name in names if name in settings), [])


class _Encodings(NamedTuple):
    """Some texts: ``int64 [texts]`` twice, ``int32 [tokens]``, ``int32 [tokens, 2]``."""

    num_chars: Int64s
    num_tokens: Int64s
    ids: Int32s
    offsets: Int32s


_NO_ENCODINGS = _Encodings(
    np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros((0, 2), np.int32)
)


def _encode(backend: Tokenizer, texts: list[str]) -> _Encodings:
    encodings = backend.encode_batch(texts, add_special_tokens=False)
    rows = [encoding.ids for encoding in encodings]
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    offsets = chain.from_iterable(chain.from_iterable(encoding.offsets for encoding in encodings))
    offsets_P2 = np.fromiter(offsets, np.int32, 2 * lengths.sum()).reshape(-1, 2)
    num_chars = np.fromiter(map(len, texts), np.int64, len(texts))
    return _Encodings(num_chars, lengths, np.fromiter(chain.from_iterable(rows), np.int32, lengths.sum()), offsets_P2)


def _encode_words(backend: Tokenizer, words: list[str]) -> _Encodings:
    """Encode words with the space before each; offsets count from the word's first character."""
    # Words are encoded in texts of many words: each text costs as much as several words.
    groups = [words[first : first + _WORDS_PER_TEXT] for first in range(0, len(words), _WORDS_PER_TEXT)]
    _, lengths, ids_P, offsets_P2 = _encode(backend, [" ".join(["x", *group]) for group in groups])
    num_chars_W = np.fromiter(map(len, words), np.int64, len(words))
    text_W = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    # Where each word, and each text of words, is in all of these texts, each of which begins with "x ".
    start_W = np.cumsum(num_chars_W + 1) - num_chars_W - 1 + 2 * (text_W + 1)
    text_start = start_W[::_WORDS_PER_TEXT] - 2
    ends_P = np.repeat(text_start, lengths) + offsets_P2[:, 1]
    word_P = np.searchsorted(start_W, ends_P, side="right") - 1
    opens_P = offsets_P2[:, 1] <= 1
    shift_P = (start_W - text_start[text_W])[word_P]
    num_tokens_W = np.bincount(word_P[~opens_P], minlength=len(words))
    offsets_P2 = (offsets_P2 - shift_P[:, None]).astype(np.int32)
    return _Encodings(num_chars_W, num_tokens_W, ids_P[~opens_P], offsets_P2[~opens_P])


def _concatenate(*parts: _Encodings) -> _Encodings:
    return _Encodings(*map(np.concatenate, zip(*parts, strict=True)))


class _TokenPool:
    """Every token that a window can hold, once: special tokens, padding, all questions, all contexts.

    The special tokens are read from ``pair``, a pair of the texts as the tokenizer encodes it.
    """

    def __init__(
        self, cutter: WindowCutter, pair: BatchEncoding, questions: EncodedTexts, contexts: EncodedTexts
    ) -> None:
        self._cutter = cutter
        self._questions = questions
        self._contexts = contexts
        tokenizer = cutter.tokenizer
        sequences = pair.sequence_ids()
        first, second = sequences.index(0), sequences.index(1)
        gaps = slice(first), slice(first + sequences.count(0), second), slice(second + sequences.count(1), None)
        special_ids, special_types = ([pair[key][gap] for gap in gaps] for key in ("input_ids", "token_type_ids"))
        self._part_order = _QUESTION_FIRST if cutter.question_first else _CONTEXT_FIRST
        text_types = [pair["token_type_ids"][t] for t in (first, second)]
        text_types = text_types if cutter.question_first else text_types[::-1]
        textless_ids = [*special_ids, [choose_fill_token(tokenizer)] * (cutter.max_seq_length if cutter.pad else 0)]
        ids = [*(np.array(part, np.int32) for part in textless_ids), questions.ids_P, contexts.ids_P]
        self._part_sizes_6 = np.array([len(part) for part in ids])
        other_types = np.repeat([tokenizer.pad_token_type_id, *text_types], self._part_sizes_6[_PAD:])
        num_textless = self._part_sizes_6[:_QUESTION].sum()
        part_P = np.repeat(np.arange(6), self._part_sizes_6)
        # In the order of the token columns of `Windows`.
        self._columns_P: tuple[Any, ...] = (
            np.concatenate(ids),
            (part_P != _PAD).astype(np.uint8),
            np.concatenate([*special_types, other_types]).astype(np.uint8),
            np.concatenate([np.zeros((num_textless, 2), np.int32), questions.offsets_P2, contexts.offsets_P2]),
            part_P == _CONTEXT,
        )

    def assemble(self, pairs_E: Int64s) -> Windows:
        """Return the windows of these pairs, which are numbered from 0 in the result."""
        question_length_E = self._questions.lengths_E[pairs_E]
        room_E = self._cutter.max_seq_length - self._part_sizes_6[:_PAD].sum() - question_length_E
        pair_F, cut_F, length_F = _cut(self._contexts.lengths_E[pairs_E], room_E, self._cutter.doc_stride)

        starts_F6 = np.tile(np.cumsum(self._part_sizes_6) - self._part_sizes_6, (len(pair_F), 1))
        starts_F6[:, _QUESTION] += self._questions.starts_E[pairs_E][pair_F]
        starts_F6[:, _CONTEXT] += self._contexts.starts_E[pairs_E][pair_F] + cut_F
        lengths_F6 = np.tile(self._part_sizes_6, (len(pair_F), 1))
        lengths_F6[:, _QUESTION] = question_length_E[pair_F]
        lengths_F6[:, _CONTEXT] = length_F
        lengths_F6[:, _PAD] = 0  # the other parts first: the rest of the window is padding
        if self._cutter.pad:
            lengths_F6[:, _PAD] = self._cutter.max_seq_length - lengths_F6.sum(axis=1)

        pool_T = ranges(starts_F6[:, self._part_order].ravel(), lengths_F6[:, self._part_order].ravel())
        row_starts = np.concatenate(([0], np.cumsum(lengths_F6.sum(axis=1))))
        # Indexing with brackets takes ten times as long for the rows of two.
        return Windows(pair_F, row_starts, *(column_P.take(pool_T, axis=0) for column_P in self._columns_P))


def _cut(length_E: Int64s, room_E: Int64s, doc_stride: int) -> tuple[Int64s, Int64s, Int64s]:
    """Return pair, first context token and number of context tokens of every window, ``int64 [F]`` each."""
    # `stride` of a Hugging Face tokenizer is the overlap, so each window advances by the room minus the stride; the
    # last one is the first to reach the end of the context.
    step_E = room_E - doc_stride
    num_windows_E = 1 + np.maximum(0, -(-(length_E - room_E) // step_E))
    pair_F = np.repeat(np.arange(len(length_E)), num_windows_E)
    first_F = np.repeat(np.cumsum(num_windows_E) - num_windows_E, num_windows_E)
    cut_F = (np.arange(len(pair_F)) - first_F) * step_E[pair_F]
    return pair_F, cut_F, np.minimum(room_E[pair_F], length_E[pair_F] - cut_F)
