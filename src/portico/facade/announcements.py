"""Training arguments that are set and have no effect: said, so that none is dropped in silence."""

import dataclasses
import logging
from typing import Any

from portico.fields.table import TREATMENTS

logger = logging.getLogger(__name__)


def announce_without_effect(args: Any) -> None:
    """Log a line for each training argument that differs from its default and does nothing here."""
    for field in dataclasses.fields(args):
        treatment = TREATMENTS.get(field.name)
        value = getattr(args, field.name)
        if treatment is not None and not treatment.has_effect and value != field.default:
            logger.warning("`%s=%r` has no effect: %s.", field.name, value, treatment.clause)
