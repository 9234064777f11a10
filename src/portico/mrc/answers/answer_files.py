"""JSON as ``json.dumps(..., indent=4)`` writes it, byte for byte, with the n-best lists streamed."""

import json
from collections.abc import Iterable, Mapping
from json.encoder import encode_basestring_ascii as _text_json
from pathlib import Path
from typing import Any, TypeAlias

NBestRecord: TypeAlias = Mapping[str, str | float]

_USUAL = ("start_logit", "end_logit", "text", "probability")


def write_json(path: Path, value: Any) -> None:
    """Write a value with an indent of 4 and a newline at the end."""
    path.write_text(json.dumps(value, indent=4) + "\n", encoding="ascii")


def write_nbest(path: Path, lists: Iterable[tuple[str, list[NBestRecord]]]) -> None:
    """Write n-best lists as ``{id: [record, ...]}`` and hold one at a time.

    Args:
        path: The file.
        lists: Identifier and records of every example, at least one example.
    """
    separator = "{\n"
    with path.open("w", encoding="ascii") as file:
        for example_id, records in lists:
            file.write(f"{separator}    {json.dumps(example_id)}: {_list_json(records)}")
            separator = ",\n"
        file.write("\n}\n")


def _list_json(records: list[NBestRecord]) -> str:
    if not records:
        return "[]"
    written = [_usual_json(record) if tuple(record) == _USUAL else _any_json(record) for record in records]
    return "[\n        " + ",\n        ".join(written) + "\n    ]"


def _usual_json(record: NBestRecord) -> str:
    # Nearly all records are of this form, and json's own indenting encoder takes several times as long for them.
    start, end, text = record["start_logit"], record["end_logit"], _text_json(str(record["text"]))
    return (
        f'{{\n            "start_logit": {start!r},\n            "end_logit": {end!r},\n            "text": {text},\n'
        f'            "probability": {record["probability"]!r}\n        }}'
    )


def _any_json(record: NBestRecord) -> str:
    return json.dumps(record, indent=4).replace("\n", "\n        ")
