"""Pairs of source and target text from JSON lines, and their tokens."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

from portico.errors import InputError

Pair = tuple[str, str]


def read_pairs(file: str, *, source: str, target: str) -> list[Pair]:
    """Return the pairs of a file with one JSON object a line; empty lines are passed over.

    Args:
        file: UTF-8 text.
        source: Key of the text that is read.
        target: Key of the text that is to be written.

    Raises:
        InputError: If there is no such file, no pair in it, or a line without the two texts.
    """
    if not Path(file).is_file():
        raise InputError(f"There is no file {file}; set it to a file with one JSON object a line.")
    lines = Path(file).read_text(encoding="utf-8").split("\n")
    pairs = [_pair(line, source, target, f"{file}:{number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not pairs:
        raise InputError(f"{file} holds no pair; give a file with one JSON object a line.")
    return pairs


def _pair(line: str, source: str, target: str, place: str) -> Pair:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise InputError(f"{place} is no JSON ({error}); give a file with one JSON object a line.") from error
    read, written = (record.get(key) if isinstance(record, dict) else None for key in (source, target))
    if not (isinstance(read, str) and isinstance(written, str)):
        raise InputError(
            f"{place} has no text under both '{source}' and '{target}'; set `data.source` and `data.target` to keys "
            "that every line has."
        )
    return read, written


class TokenizedPairs(Dataset[Mapping[str, Any]]):
    """Model inputs and labels of pairs, tokenized when they are asked for.

    Args:
        pairs: Source and target texts.
        tokenizer: Tokenizer of the model.
        max_source_length: Tokens of a source that are kept; ``None`` keeps what the tokenizer allows.
        max_target_length: The same for a target.
    """

    def __init__(
        self,
        pairs: Sequence[Pair],
        tokenizer: Any,
        *,
        max_source_length: int | None = None,
        max_target_length: int | None = None,
    ) -> None:
        self.pairs = pairs
        self.tokenizer = tokenizer
        self.max_source_length = max_source_length
        self.max_target_length = max_target_length

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        source, target = self.pairs[index]
        inputs = self.tokenizer(source, max_length=self.max_source_length, truncation=True)
        labels = self.tokenizer(text_target=target, max_length=self.max_target_length, truncation=True)
        return {**inputs, "labels": labels["input_ids"]}
