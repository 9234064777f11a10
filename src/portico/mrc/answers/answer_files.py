"""JSON files as ``json.dumps(..., indent=4)`` and a newline make them, byte for byte."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from portico.mrc.answers.json_text import Scalar, mapping_json

_BUFFER_BYTES = 1 << 20  # lists have thousands of characters, and the usual buffer of 8 KiB holds one or two


def write_mapping(path: Path, values: Mapping[str, Scalar]) -> None:
    """Write a mapping of plain values."""
    path.write_text(mapping_json(values) + "\n", encoding="ascii")


def write_nbest(path: Path, lists: Iterable[tuple[str, str]]) -> None:
    """Write n-best lists as ``{id: [record, ...]}`` and hold one at a time.

    Args:
        path: The file.
        lists: Identifier and list of every example as JSON, at least one example; see `NBestLists.json_lists`.
    """
    separator = "{\n"
    with path.open("w", encoding="ascii", buffering=_BUFFER_BYTES) as file:
        for example_id, text in lists:
            file.write(f"{separator}    {example_id}: {text}")
            separator = ",\n"
        file.write("\n}\n")
