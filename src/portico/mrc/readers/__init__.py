"""Questions in the formats of SQuAD, MRQA, TyDi QA, Natural Questions, PrimeQA and ELI5 as flat records."""

from portico.mrc.readers.formats import FORMATS
from portico.mrc.readers.hub import read_hub
from portico.mrc.readers.reader import has_unanswerable, read_examples, read_squad

__all__ = ["FORMATS", "has_unanswerable", "read_examples", "read_hub", "read_squad"]
