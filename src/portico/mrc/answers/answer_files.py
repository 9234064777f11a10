"""JSON as ``json.dumps(..., indent=4)`` writes it, byte for byte, with the n-best lists streamed."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

NBestRecord: TypeAlias = Mapping[str, str | float]

# The C encoder does not indent, and the Python one that does is several times slower. Line breaks therefore come in
# with the separator, and those between records are then widened; no text can hold one, because JSON escapes it.
_SEPARATOR = ",\n" + 12 * " "
_encode_list = json.JSONEncoder(separators=(_SEPARATOR, ": ")).encode
_NEXT_RECORD = "\n        },\n        {\n            "


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
    fields = _encode_list(records).removeprefix("[{").removesuffix("}]").replace(f"}}{_SEPARATOR}{{", _NEXT_RECORD)
    return f"[\n        {{\n            {fields}\n        }}\n    ]"
