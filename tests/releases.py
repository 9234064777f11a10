"""Marks of tests that need a newer release than the lowest that is allowed."""

import pytest
import torch

from portico.compat.releases import is_before


def since_transformers(release: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(is_before(release), reason=f"needs transformers {release}")


def since_torch(release: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(torch.__version__ < release, reason=f"needs torch {release}")
