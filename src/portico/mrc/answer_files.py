"""JSON as ``json.dumps(..., indent=4)`` writes it, byte for byte, with the n-best lists streamed.

Python indents JSON several times slower than it writes plain JSON, and n-best lists are the bulk of what there is to
write; they are therefore put together here.
"""

import json
from collections.abc import Iterable, Mapping
from json.encoder import encode_basestring_ascii as quote
from pathlib import Path
from typing import Any

NBestRecord = Mapping[str, str | float]


def write_json(path: Path, value: Any) -> None:
    """Write a value with an indent of 4 and a newline at the end."""
    path.write_text(json.dumps(value, indent=4) + "\n", encoding="ascii")


def write_nbest(path: Path, lists: Iterable[tuple[str, list[NBestRecord]]]) -> None:
    """Write n-best lists as ``{id: [record, ...]}`` without holding more than one.

    Args:
        path: The file.
        lists: Identifier and records of every example; the values of records are texts and finite floats.
    """
    separator = "{\n"
    with path.open("w", encoding="ascii") as file:
        for example_id, records in lists:
            file.write(f"{separator}    {quote(example_id)}: {_list_json(records)}")
            separator = ",\n"
        file.write("\n}\n")


def _list_json(records: list[NBestRecord]) -> str:
    if not records:
        return "[]"
    return "[\n" + ",\n".join(map(_record_json, records)) + "\n    ]"


def _record_json(record: NBestRecord) -> str:
    fields = (
        f"            {quote(name)}: {quote(value) if isinstance(value, str) else float.__repr__(value)}"
        for name, value in record.items()
    )
    return "        {\n" + ",\n".join(fields) + "\n        }"
