"""SQuAD v1.1 and v2.0 files as flat records."""

from portico.mrc.squad.reader import has_unanswerable, read_squad

__all__ = ["has_unanswerable", "read_squad"]
