from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from portico.errors import InputError
from portico.mrc.squad.defects import Defects
from portico.mrc.squad.files import open_text
from portico.mrc.squad.layouts import raw_records
from portico.mrc.squad.records import Example, InvalidRecord, flat_record


def read_squad(path: str | Path, *, skip_invalid: bool = False) -> list[Example]:
    """Read a SQuAD v1.1 or v2.0 file, nested JSON or flat JSON (lines or array), told apart by its content.

    Args:
        path: The file, UTF-8, plain or gzip-compressed.
        skip_invalid: Leave unusable records out, with one warning, instead of raising.

    Returns:
        Records `{"id", "title", "context", "question", "answers": {"text": [...], "answer_start": [...]}}` in file
        order. `answer_start` counts characters; a question without an answer has two empty lists. Other fields of a
        question are kept, except `is_impossible` and `plausible_answers`.

    Raises:
        InputError: If the file cannot be read, is no SQuAD data, holds no usable question or, unless skipped, holds
            an unusable record; the message names the file, the record and the cure.
    """
    path = Path(path)
    defects = Defects(path, skip_invalid=skip_invalid)
    examples: list[Example] = []
    place_of_id: dict[str, str] = {}
    with open_text(path) as stream:
        for place, raw in raw_records(stream, defects):
            place = _with_id(place, raw)
            try:
                example = flat_record(raw)
                _claim_id(example["id"], place, place_of_id)
            except InvalidRecord as error:
                defects.add(place, str(error))
            else:
                examples.append(example)
    if not examples:
        raise InputError(_why_no_examples(defects))
    defects.warn()
    return examples


def has_unanswerable(examples: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether a question has no answer, so that SQuAD v2.0 scoring applies."""
    return any(not example["answers"]["text"] for example in examples)


def _with_id(place: str, raw: Any) -> str:
    identifier = raw.get("id") if isinstance(raw, Mapping) else None
    return f"{place}, id {identifier!r}" if identifier else place


def _claim_id(identifier: str, place: str, place_of_id: dict[str, str]) -> None:
    first = place_of_id.setdefault(identifier, place)
    if first is not place:
        raise InvalidRecord(f"the id was used before ({first}); predictions are stored by id, so each must be unique.")


def _why_no_examples(defects: Defects) -> str:
    if not defects.messages:
        return f"{defects.path}: the data set is empty; give a file that holds at least one question."
    return (
        f"{defects.path}: none of its {len(defects.messages)} record(s) can be used, the first because of "
        f"{defects.messages[0]} Correct the file."
    )
