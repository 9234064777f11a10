from collections.abc import Iterable
from itertools import groupby
from typing import Any

from portico.mrc.corpus.generator import Example


def to_squad(examples: Iterable[Example]) -> dict[str, Any]:
    """Nest examples as in a SQuAD 2.0 file; ``question_type`` is kept beside each question.

    Args:
        examples: Flat records; those of one passage must follow one another.
    """
    data = []
    for (title, context), group in groupby(examples, key=lambda example: (example["title"], example["context"])):
        paragraph = {"context": context, "qas": [_question(example) for example in group]}
        data.append({"title": title, "paragraphs": [paragraph]})
    return {"version": "v2.0", "data": data}


def _question(example: Example) -> dict[str, Any]:
    texts, starts = example["answers"]["text"], example["answers"]["answer_start"]
    return {
        "id": example["id"],
        "question": example["question"],
        "question_type": example["question_type"],
        "answers": [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)],
        "is_impossible": not texts,
    }
