"""Files written whole or not at all."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from portico.gradient_descent.errors import ConfigurationError


def as_folder(given: str | Path | None) -> Path | None:
    """Return ``serialization_dir`` as a path.

    Raises:
        ConfigurationError: If it is no path, or that of a file.
    """
    if given is not None and (not isinstance(given, str | Path) or Path(given).is_file()):
        raise ConfigurationError(
            f"`serialization_dir={given!r}` is no folder; set it to one that is empty, does not exist yet, or holds "
            "the run to go on with."
        )
    return None if given is None else Path(given)


@contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Give a file to write into that becomes ``path`` when all is written; an interrupted write leaves no trace."""
    path.parent.mkdir(parents=True, exist_ok=True)
    staging = path.with_name(f".{path.name}.partial")
    try:
        yield staging
        staging.replace(path)
    finally:
        staging.unlink(missing_ok=True)


def dump_metrics(path: Path, metrics: Mapping[str, Any]) -> None:
    """Write ``metrics`` as JSON that a person can read."""
    with replace_file(path) as staging:
        staging.write_text(json.dumps(metrics, indent=2, default=_plain), encoding="utf-8")


def _plain(value: Any) -> Any:
    """Turn a number of torch or numpy into Python's."""
    return value.item() if hasattr(value, "item") else str(value)
