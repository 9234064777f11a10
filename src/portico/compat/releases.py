"""Which release of transformers is installed, and what needs a newer one."""

from collections.abc import Mapping

import transformers
from packaging.version import Version

from portico.errors import MissingPackageError

# Names that nothing stands in for, and values of arguments that need a release; of `None`, every value.
SINCE = {"BatchRebalanceSampler": "5.17", "GreedyLR": "5.4"}
_VALUES: Mapping[str, tuple[str | None, str]] = {
    "lr_scheduler_type": ("greedy", "5.4"),
    "train_sampling_strategy": ("batch_rebalance", "5.17"),
    "trackio_bucket_id": (None, "5.6"),
    "trackio_static_space_id": (None, "5.6"),
}


def is_before(release: str) -> bool:
    return Version(transformers.__version__).release < Version(release).release


def refuse_before(release: str, what: str) -> None:
    """Refuse ``what``, a feature in words, if the installed transformers is older than ``release``."""
    if is_before(release):
        raise MissingPackageError(
            f"{what} needs transformers {release} or newer, but {transformers.__version__} is installed; run "
            f"`pip install 'transformers>={release}'`, or leave it out."
        )


def refuse_newer_values(args: object) -> None:
    """Refuse values of training arguments that the installed release cannot carry out."""
    for name, (value, release) in _VALUES.items():
        given = getattr(args, name)
        if given is not None and value in (None, getattr(given, "value", given)):
            refuse_before(release, f"`{name}={value or given!r}`")
