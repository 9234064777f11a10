"""Several features in one row of a batch, with blocks of attention and positions of their own."""

from portico.mrc.packing.collator import PackingCollator
from portico.mrc.packing.trial import enable_packing

__all__ = ["PackingCollator", "enable_packing"]
