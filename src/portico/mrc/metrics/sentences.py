"""Texts into sentences, for ROUGE."""

import logging
import re
from collections.abc import Callable
from functools import cache

from portico.errors import MissingPackageError

logger = logging.getLogger(__name__)

_AFTER_SENTENCE = re.compile(r"(?<=[.!?])\s+")


@cache
def sentence_splitter() -> Callable[[str], list[str]]:
    """Return the splitter of NLTK; where its data ("punkt_tab") are not installed, one at full stops, announced once.

    Raises:
        MissingPackageError: If NLTK is not installed.
    """
    try:
        import nltk
    except ImportError as error:
        raise MissingPackageError(
            "Sentences are split by nltk, which is not installed; install it with `pip install 'portico[rouge]'`."
        ) from error
    try:
        nltk.sent_tokenize("One. Two.")
    except LookupError:
        logger.warning(
            "The data of NLTK's sentence splitter are not installed, so sentences end at every full stop, question "
            "mark and exclamation mark before a blank, which can change rougeLsum a little; "
            "`python -m nltk.downloader punkt_tab` installs them."
        )
        return _split_at_stops
    splitter: Callable[[str], list[str]] = nltk.sent_tokenize
    return splitter


def _split_at_stops(text: str) -> list[str]:
    return [sentence for sentence in _AFTER_SENTENCE.split(text.strip()) if sentence]
