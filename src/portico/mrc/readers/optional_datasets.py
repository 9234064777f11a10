from typing import Any

from portico.errors import MissingPackageError


def import_datasets(why: str) -> Any:
    """Return the package ``datasets``.

    Args:
        why: What needs it, for the message.

    Raises:
        MissingPackageError: If it is not installed.
    """
    try:
        import datasets
    except ImportError as error:
        raise MissingPackageError(
            f"{why}, but the package datasets is not installed; install it with `pip install datasets`, or give JSON "
            "files."
        ) from error
    return datasets
