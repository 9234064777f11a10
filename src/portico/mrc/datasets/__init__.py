"""Dataset readers: SQuAD, MRQA, TyDi QA, Natural Questions, PrimeQA's base schema and ELI5 as flat examples."""

from portico.mrc.datasets.examples import has_unanswerable
from portico.mrc.datasets.reader import FORMATS, read_examples, read_hub, read_squad

__all__ = ["FORMATS", "has_unanswerable", "read_examples", "read_hub", "read_squad"]
