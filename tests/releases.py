"""Marks of tests that need a newer release than the lowest that is allowed, or another build."""

from importlib.metadata import version

import pytest
import torch
from packaging.version import Version

from portico.compat.releases import is_before


def since_transformers(release: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(is_before(release), reason=f"needs transformers {release}")


def since_torch(release: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(torch.__version__ < release, reason=f"needs torch {release}")


def since_onnxruntime(release: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        Version(version("onnxruntime")) < Version(release), reason=f"needs onnxruntime {release}"
    )


# Built for CUDA, the first backward pass starts threads, also where there is no GPU, and autograd refuses to work in a
# process that is forked after that. Training in such processes needs a fresh parent, which a test run is not.
forks_after_training = pytest.mark.skipif(
    torch.version.cuda is not None, reason="torch is built for CUDA and cannot train in a fork of this process"
)
