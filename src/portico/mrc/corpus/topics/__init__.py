"""The topics that passages are about, one module each."""

from portico.mrc.corpus.topics.organisations import ORGANISATIONS
from portico.mrc.corpus.topics.people import PEOPLE
from portico.mrc.corpus.topics.places import PLACES

TOPICS = (PEOPLE, PLACES, ORGANISATIONS)

__all__ = ["TOPICS"]
