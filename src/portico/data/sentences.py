"""Splitting texts into sentences."""

import logging
import re
from collections.abc import Callable
from functools import cache

from portico.errors import MissingPackageError

logger = logging.getLogger(__name__)

_AFTER_SENTENCE = re.compile(r"(?<=[.!?])\s+")


@cache
def get_sentence_splitter() -> Callable[[str], list[str]]:
    """Return NLTK's sentence splitter; if its data ("punkt_tab") is missing, warn once and split after ``.!?``.

    Raises:
        MissingPackageError: If NLTK is not installed.
    """
    try:
        import nltk
    except ImportError as error:
        raise MissingPackageError(
            "nltk, which splits sentences, is not installed; install it with `pip install 'portico[rouge]'`."
        ) from error
    try:
        nltk.sent_tokenize("One. Two.")
    except LookupError:
        logger.warning(
            "The data of NLTK's sentence splitter is not installed, so every full stop, question mark or exclamation "
            "mark before whitespace ends a sentence, which can change rougeLsum slightly; install the data with "
            "`python -m nltk.downloader punkt_tab`."
        )
        return _split_at_stops
    return nltk.sent_tokenize


def _split_at_stops(text: str) -> list[str]:
    return [sentence for sentence in _AFTER_SENTENCE.split(text.strip()) if sentence]
