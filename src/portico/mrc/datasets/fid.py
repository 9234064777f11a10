"""ELI5 for fusion-in-decoder: a question, retrieved passages, and answers that are not spans of them."""

from collections.abc import Mapping

from portico.data.defects import InvalidRecord, describe
from portico.mrc.datasets.examples import Example
from portico.mrc.datasets.records import Format, RawRecord, check_id, check_label, check_text, read_key

_KIND = "a record for fusion-in-decoder has id, input, output, passages"


def example(raw: RawRecord) -> Example:
    """Parse a record; ``answer_start`` is -1, because the answers are not spans."""
    identifier, question, passages = (read_key(raw, key, _KIND) for key in ("id", "input", "passages"))
    if not isinstance(passages, list) or not passages:
        raise InvalidRecord(f"`passages` must be a list of one or more passages; got {describe(passages)}.")
    given = (answer["answer"] for answer in raw.get("output") or [] if answer.get("answer"))
    texts = [check_text("answer", answer) for answer in given]
    return {
        "id": check_id("id", identifier),
        "title": "",
        "context": [passage_text(passage) for passage in passages],
        "question": check_text("input", question),
        "answers": {"text": texts, "answer_start": [-1] * len(texts)},
        "input": question,
        "output": raw.get("output") or [],
        "passages": passages,
    }


def passage_text(passage: str | Mapping[str, object]) -> str:
    """Return the text of a passage, a string or an object, after its title if it has one."""
    if isinstance(passage, str):
        return check_text("passages", passage)
    text = check_text("passages", read_key(passage, "text", "a passage has text and optionally title"))
    title = check_label("title", passage.get("title"))
    return f"{title} {text}" if title else text


FORMAT = Format(
    "id, input, output, passages",
    lambda entry: {"input", "passages"} <= set(entry) and not {"question", "context"} <= set(entry),
    example,
    unanswered={"output": []},
)
