"""Questions of a data set of the hub, or of the local cache of it."""

from typing import Any

from portico.errors import InputError
from portico.mrc.readers.optional_datasets import import_datasets
from portico.mrc.readers.reader import read_examples
from portico.mrc.readers.records import Example


def read_hub(
    name: str, config: str | None, split: str, *, format: str | None = None, skip_invalid: bool = False
) -> list[Example]:
    """Read one split of a data set with ``datasets.load_dataset``.

    Args:
        name: Name on the hub, or a local folder that ``datasets`` can load.
        config: Configuration of the data set; the language of XQuAD and MLQA is read off it (``mlqa.zh.en``).
        split: Split, also a part of one: ``"train[:1000]"``.
        format: As in :func:`~portico.mrc.readers.reader.read_examples`.
        skip_invalid: As in :func:`~portico.mrc.readers.reader.read_examples`.

    Raises:
        InputError: If it cannot be loaded, for want of a connection or of such a data set; or as in `read_examples`.
    """
    package = import_datasets(f"`data.dataset_name={name}` names a data set")
    try:
        dataset: Any = package.load_dataset(name, config, split=split)
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(
            f"`data.dataset_name={name}` (configuration {config}, split {split}) cannot be loaded: "
            f"{' '.join(str(error).split())} Check the names and the connection, or set `data.train_file` and "
            "`data.validation_file` to local files."
        ) from error
    examples = read_examples(dataset, format=format, skip_invalid=skip_invalid)
    family, _, rest = (config or "").partition(".")
    if family not in ("xquad", "mlqa", "MLQA"):
        return examples
    return [{**example, "language": rest[:2]} for example in examples]
