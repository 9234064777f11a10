"""Where a run's examples come from: the embedded corpus, the user's files, or the hub."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from portico.errors import InputError
from portico.mrc.corpus import generate
from portico.mrc.datasets import has_unanswerable, read_examples, read_hub
from portico.mrc.datasets.examples import contexts_of
from portico.mrc.datasets.reader import format_named
from portico.mrc.datasets.sources import paths_of
from portico.mrc.features.featurizer import Featurizer

DATA_KEYS = (
    "train_file",
    "validation_file",
    "dataset_name",
    "dataset_config_name",
    "train_split",
    "validation_split",
    "format",
    "num_train",
    "num_validation",
    "seed",
    "max_train_samples",
    "max_eval_samples",
    "skip_invalid",
)


@dataclass(frozen=True)
class Examples:
    """The examples of a run.

    Args:
        train: Records to train on, as :func:`~portico.mrc.datasets.read_examples` makes them.
        validation: Records to evaluate on.
    """

    train: list[Mapping[str, Any]]
    validation: list[Mapping[str, Any]]

    @property
    def has_unanswerable(self) -> bool:
        """Whether some question has no answer, in either set."""
        return has_unanswerable(self.train) or has_unanswerable(self.validation)

    @property
    def training_texts(self) -> list[str]:
        """All that a new tokenizer learns its pieces from: questions and contexts to train on."""
        return [text for example in self.train for text in (*contexts_of(example), example["question"])]


def load_examples(data: Mapping[str, Any]) -> Examples:
    """Return the examples that the settings name.

    Args:
        data: ``train_file`` and ``validation_file``, both or neither: paths, globs, folders, or lists of them; or
            ``dataset_name`` with ``dataset_config_name``, ``train_split`` and ``validation_split`` of the hub. Of
            these, ``format`` names the format and ``skip_invalid`` leaves out unusable records. Without either,
            ``num_train``, ``num_validation`` and ``seed`` of the embedded corpus. ``max_train_samples`` and
            ``max_eval_samples`` keep the first ones.

    Raises:
        InputError: If only one file is given, or files and a data set, or one of them cannot be used.
    """
    train, validation = _sets(data)
    return Examples(
        train=_first(train, data.get("max_train_samples"), "max_train_samples"),
        validation=_first(validation, data.get("max_eval_samples"), "max_eval_samples"),
    )


def _sets(data: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    files = [data.get("train_file"), data.get("validation_file")]
    name = data.get("dataset_name")
    options = {"format": data.get("format"), "skip_invalid": data.get("skip_invalid", False)}
    if options["format"] is not None:
        format_named(options["format"])
    if name is not None:
        _check_without_files(data, name)
        config, splits = data.get("dataset_config_name"), (data["train_split"], data["validation_split"])
        train, validation = (read_hub(name, config, split, **options) for split in splits)
        return train, validation
    if files == [None, None]:
        made = generate(num_train=data["num_train"], num_validation=data["num_validation"], seed=data["seed"])
        train, validation = ([dict(example) for example in part] for part in made)
        return train, validation
    if None in files:
        given, missing = ("train_file", "validation_file") if files[0] else ("validation_file", "train_file")
        raise InputError(
            f"`data.{given}={data[given]}` came without `data.{missing}`; set both to files of questions, or neither "
            "to use the embedded corpus."
        )
    for name, source in zip(("train_file", "validation_file"), files, strict=True):
        if not source:
            raise InputError(f"`data.{name}={source}` names no file; set it to a path, a glob, a folder, or a list.")
        paths_of(source)  # a folder without data is told before the other file is read
    train, validation = (read_examples(source, **options) for source in files)
    return train, validation


def _check_without_files(data: Mapping[str, Any], name: str) -> None:
    given = [key for key in ("train_file", "validation_file") if data.get(key) is not None]
    if given:
        raise InputError(
            f"`data.dataset_name={name}` and `data.{given[0]}={data[given[0]]}` both name the questions; set the one "
            "or the other, and null for the rest."
        )


def _first(examples: list[Any], limit: int | None, name: str) -> list[Any]:
    if limit is None:
        return examples
    if limit < 1:
        raise InputError(f"`data.{name}={limit}` leaves no example; use an int >= 1, or null for all.")
    return examples[:limit]


def load_sources(data: Mapping[str, Any]) -> list[Examples]:
    """Return the examples of each source of a run.

    Args:
        data: For one source, see :func:`load_examples`. For several, ``sources`` is a
            list of mappings, each with the keys that differ from the rest of ``data``.

    Raises:
        InputError: If ``sources`` is not such a list, or one of them is invalid.
    """
    shared = {key: value for key, value in data.items() if key != "sources"}
    sources = data.get("sources")
    if sources is None:
        return [load_examples(shared)]
    if not isinstance(sources, list) or not sources or not all(isinstance(source, Mapping) for source in sources):
        raise InputError(
            f"`data.sources={sources}` is not a list of sources; set it to a list with the keys of `data` that "
            "differ, as in data.sources=[{train_file: a.json, validation_file: b.json}, {seed: 1}]."
        )
    unknown = sorted({key for source in sources for key in source} - set(shared))
    if unknown:
        raise InputError(
            f"`data.sources` sets {', '.join(unknown)}, which `data` does not have; a source has: "
            f"{', '.join(sorted(shared))}."
        )
    return [load_examples({**shared, **source}) for source in sources]


def pooled(sources: Sequence[Examples]) -> Examples:
    """Return the examples of all sources as one."""
    return Examples(
        train=[example for source in sources for example in source.train],
        validation=[example for source in sources for example in source.validation],
    )


def feature_sets(sources: Sequence[Examples], featurizer: Featurizer, *, labels: bool) -> dict[str, Any]:
    """Return the data arguments of a trainer: of the only source, or lists with those of each.

    Args:
        sources: Examples of each source.
        featurizer: Makes their features.
        labels: Whether evaluation features have labels, and so a loss.

    Returns:
        ``train_dataset``, ``eval_dataset`` and ``eval_examples``.
    """
    parts: dict[str, list[Any]] = {
        "train_dataset": [featurizer.train_features(source.train) for source in sources],
        "eval_dataset": [featurizer.eval_features(source.validation, labels=labels) for source in sources],
        "eval_examples": [source.validation for source in sources],
    }
    return {name: part[0] if len(sources) == 1 else part for name, part in parts.items()}
