"""Questions with one or several contexts as features of a model.

Shape suffixes: F features (windows), P pairs of a question and a context.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from portico.errors import InputError
from portico.mrc.features.feature_set import FeatureSet
from portico.mrc.features.featurizer import Featurizer
from portico.mrc.postprocess.token_offsets import TokenOffsets

Contexts: TypeAlias = str | Sequence[str]
"""One text, or several that are searched together."""


@dataclass(frozen=True)
class QuestionWindows:
    """Questions ready for a model.

    Attributes:
        examples: ``id`` and ``context``, a list of texts, of every question.
        features: The windows of all contexts.
        offsets: Which question and context each window belongs to, and where its tokens lie there.
    """

    examples: list[dict[str, Any]]
    features: FeatureSet
    offsets: TokenOffsets


def question_windows(
    featurizer: Featurizer, questions: Sequence[str], contexts: Sequence[Contexts], ids: Sequence[str]
) -> QuestionWindows:
    """Cut every context of every question into windows.

    Raises:
        InputError: If there are no questions, not as many contexts, or one is not a text with something in it.
    """
    _check_lengths(questions, contexts, ids)
    texts = [list(context) if isinstance(context, list | tuple) else [context] for context in contexts]
    for n, (question, own) in enumerate(zip(questions, texts, strict=True)):
        _check_texts(n, question, own)
    pairs = [(n, c) for n, own in enumerate(texts) for c in range(len(own))]
    features = featurizer.eval_features(
        [{"id": f"{n} {c}", "question": questions[n], "context": texts[n][c]} for n, c in pairs]
    )
    assert features.char_offsets is not None
    question_P, context_P = np.array(pairs, np.int64).T
    offsets = TokenOffsets(
        question_P[features.example_index],
        features.row_starts,
        features.char_offsets,
        context_P[features.example_index],
    )
    examples = [{"id": example_id, "context": own} for example_id, own in zip(ids, texts, strict=True)]
    return QuestionWindows(examples, features, offsets)


def _check_lengths(questions: Sequence[str], contexts: Sequence[Contexts], ids: Sequence[str]) -> None:
    if not len(questions) or not len(questions) == len(contexts) == len(ids):
        raise InputError(
            f"There are {len(questions)} questions, {len(contexts)} contexts and {len(ids)} ids; give one or more "
            "questions, and for each of them a context (or a list of contexts) and, if any, an id."
        )


def _check_texts(number: int, question: Any, contexts: Sequence[Any]) -> None:
    if not contexts:
        raise InputError(f"Question {number} has no context; give one or more texts to look for its answer in.")
    for name, text in (("question", question), *(("context", context) for context in contexts)):
        if not isinstance(text, str) or not text.strip():
            raise InputError(f"The {name} of question {number} is {text!r}, but must be a text that is not empty.")
        if not _is_unicode(text):
            raise InputError(
                f"The {name} of question {number} holds half of a character (a lone surrogate), which no tokenizer "
                'reads; decode the text with errors="replace".'
            )


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
