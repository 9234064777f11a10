import re

_TYPE_OF_WORD = {
    "how many": "how many",
    "how much": "how many",
    "how": "how",
    "who": "who",
    "whom": "who",
    "whose": "who",
    "when": "when",
    "what year": "when",
    "which year": "when",
    "what date": "when",
    "which date": "when",
    "where": "where",
    "why": "why",
    "which": "which",
    "what": "what",
}
# Longer phrases first, so that "how many" is not read as "how".
_QUESTION_WORD = re.compile(rf"\b({'|'.join(sorted(_TYPE_OF_WORD, key=len, reverse=True))})\b", re.IGNORECASE)


def question_type(question: str) -> str:
    """Return the group an English question belongs to by its first question word, "other" if it has none."""
    match = _QUESTION_WORD.search(question)
    return _TYPE_OF_WORD[match[1].lower()] if match else "other"
