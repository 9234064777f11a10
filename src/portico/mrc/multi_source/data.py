"""The examples of a run, of one source or of several."""

from collections.abc import Mapping, Sequence
from typing import Any

from portico.errors import InputError
from portico.mrc.config import Examples, load_examples
from portico.mrc.features.featurizer import Featurizer


def load_sources(data: Mapping[str, Any]) -> list[Examples]:
    """Return the examples of each source.

    Args:
        data: As :func:`~portico.mrc.config.load_examples` takes it, for one source. With ``sources``, a
            list of such mappings, there are several, and each says what differs from the rest of ``data``.

    Raises:
        InputError: If the sources are no such list, or one of them cannot be used.
    """
    shared = {key: value for key, value in data.items() if key != "sources"}
    sources = data.get("sources")
    if sources is None:
        return [load_examples(shared)]
    if not isinstance(sources, list) or not sources or not all(isinstance(source, Mapping) for source in sources):
        raise InputError(
            f"`data.sources={sources}` is no list of sources; set it to a list with the keys of `data` that differ, "
            "as in data.sources=[{train_file: a.json, validation_file: b.json}, {seed: 1}]."
        )
    unknown = sorted({key for source in sources for key in source} - set(shared))
    if unknown:
        raise InputError(
            f"`data.sources` sets {', '.join(unknown)}, which `data` does not have; a source has: "
            f"{', '.join(sorted(shared))}."
        )
    return [load_examples({**shared, **source}) for source in sources]


def pooled(sources: Sequence[Examples]) -> Examples:
    """Return the examples of all sources as those of one."""
    return Examples(
        train=[example for source in sources for example in source.train],
        validation=[example for source in sources for example in source.validation],
    )


def feature_sets(sources: Sequence[Examples], featurizer: Featurizer, *, labels: bool) -> dict[str, Any]:
    """Return the data that a trainer takes: those of the one source, or lists of those of each.

    Args:
        sources: Examples of each source.
        featurizer: Makes their features.
        labels: Whether features to evaluate on have labels, and so a loss.

    Returns:
        ``train_dataset``, ``eval_dataset`` and ``eval_examples``.
    """
    train = [featurizer.train_features(source.train) for source in sources]
    evaluation = [featurizer.eval_features(source.validation, labels=labels) for source in sources]
    examples = [source.validation for source in sources]
    parts: dict[str, list[Any]] = {"train_dataset": train, "eval_dataset": evaluation, "eval_examples": examples}
    return {name: part[0] if len(sources) == 1 else part for name, part in parts.items()}
