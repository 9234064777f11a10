"""Windows put together from texts that are tokenised once each.

Questions of one article share their context, so that encoding each distinct text once does a fraction of the work of
encoding each pair. Whether a tokenizer allows it is tried, not assumed: see `portico.mrc.features`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from transformers import PreTrainedTokenizerFast

from portico.mrc.arrays import Int32s, Int64s


@dataclass(frozen=True, eq=False)
class EncodedTexts:
    """Distinct texts without special tokens, one after the other.

    Attributes:
        text_index_E: The text of each example, ``int64 [E]``.
        row_starts: Where each text begins and the last one ends, ``int64 [texts + 1]``.
        ids_P: Vocabulary ids, ``int32 [P]``.
        offsets_P2: Characters ``[start, end)`` of each token, ``int32 [P, 2]``.
    """

    text_index_E: Int64s
    row_starts: Int64s
    ids_P: Int32s
    offsets_P2: Int32s

    @property
    def starts_E(self) -> Int64s:
        """First token of the text of each example, ``int64 [E]``."""
        return self.row_starts[self.text_index_E]

    @property
    def lengths_E(self) -> Int64s:
        """Tokens in the text of each example, ``int64 [E]``."""
        return np.diff(self.row_starts)[self.text_index_E]


def encode_texts(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> EncodedTexts:
    """Tokenise every distinct text once."""
    index = {text: i for i, text in enumerate(dict.fromkeys(texts))}
    # The tokenizer's own call takes as long again to put all this into lists. It sets truncation anew every time.
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    encodings = backend.encode_batch(list(index), add_special_tokens=False)
    rows = [encoding.ids for encoding in encodings]
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    offsets = chain.from_iterable(chain.from_iterable(encoding.offsets for encoding in encodings))
    return EncodedTexts(
        np.fromiter((index[text] for text in texts), np.int64, len(texts)),
        np.concatenate(([0], np.cumsum(lengths))),
        np.fromiter(chain.from_iterable(rows), np.int32, lengths.sum()),
        np.fromiter(offsets, np.int32, 2 * lengths.sum()).reshape(-1, 2),
    )


@dataclass(frozen=True)
class PairTemplate:
    """What a tokenizer puts around the two texts of a pair.

    Attributes:
        special_ids: Ids of the special tokens before, between and after the texts.
        special_types: Their segment ids.
        text_types: Segment ids of the first and the second text.
    """

    special_ids: tuple[list[int], list[int], list[int]]
    special_types: tuple[list[int], list[int], list[int]]
    text_types: tuple[int, int]


def pair_template(tokenizer: PreTrainedTokenizerFast, first: str, second: str) -> PairTemplate | None:
    """Read the template off one encoded pair; ``None`` if either text has no tokens."""
    encoding = tokenizer(first, second, return_token_type_ids=True, verbose=False)
    ids, types, sequences = encoding["input_ids"], encoding["token_type_ids"], encoding.sequence_ids()
    if not {0, 1} <= set(sequences):
        return None
    a, b = sequences.index(0), sequences.index(1)
    before, between, after = slice(a), slice(a + sequences.count(0), b), slice(b + sequences.count(1), None)
    return PairTemplate(
        (ids[before], ids[between], ids[after]), (types[before], types[between], types[after]), (types[a], types[b])
    )
