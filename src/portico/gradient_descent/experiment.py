"""What ``python train.py +experiment=gradient_descent`` runs."""

import logging
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from portico.configured_run import RunSettings
from portico.gradient_descent.construction import Registrable, convert, from_params, parameters_of, read_config
from portico.gradient_descent.errors import ConfigurationError
from portico.gradient_descent.metrics import dump_metrics
from portico.gradient_descent.topics.classifier import BagOfWordsClassifier
from portico.gradient_descent.topics.data import make_loaders, num_words
from portico.gradient_descent.topics.sentences import TOPICS
from portico.gradient_descent.trainer import GradientDescentTrainer, Trainer

_log = logging.getLogger(__name__)

_BY_THE_EXPERIMENT = ("model", "data_loader", "validation_data_loader", "serialization_dir")
_PLACEMENT = ("strategy", "accelerator", "devices", "num_nodes", "precision")
# AllenNLP's seeds, and what it takes when a file does not say.
_SEEDS = {"random_seed": 13370, "numpy_seed": 1337, "pytorch_seed": 133}
_FILE_KEYS = ("trainer", "model", "data_loader", "validation_data_loader", *_SEEDS)


class Model(Registrable):
    """Registry of models that a configuration names."""


class DataLoader(Registrable):
    """Registry of functions and classes that make the batches a configuration names."""


_TOPIC_MODEL = "bag_of_words"
_TOPIC_SIZES = {"vocab_size": num_words(), "num_labels": len(TOPICS)}
Model.register(_TOPIC_MODEL)(BagOfWordsClassifier)


class _Parts(NamedTuple):
    model: nn.Module
    data_loader: Any
    validation_data_loader: Any


def valid_keys() -> dict[str, list[str]]:
    """Return the keys that :func:`run_gradient_descent` takes, for each group in which they are fixed."""
    of_trainer = parameters_of(GradientDescentTrainer.from_partial_objects)
    decided = {*_BY_THE_EXPERIMENT, "loggers", *_PLACEMENT}
    return {
        "trainer": ["run", "valid_keys", "type", *(name for name in of_trainer if name not in decided)],
        "args": ["seed", "resume_from_checkpoint"],
        "model": list(parameters_of(BagOfWordsClassifier)),
        "data": list(parameters_of(make_loaders)),
        "strategy": list(_PLACEMENT),
    }


@dataclass(frozen=True, kw_only=True)
class GradientDescentSettings(RunSettings):
    """What a run of AllenNLP's trainer is configured with beside the groups of every run.

    Args:
        trainer: Arguments of ``GradientDescentTrainer.from_partial_objects``, its parts as dicts with ``"type"`` or as
            partials.
        allennlp_config: Jsonnet or JSON file; its sections take the place of ``trainer``, ``model`` and ``data``.
    """

    trainer: Mapping[str, Any]
    allennlp_config: str | None = None


def run_gradient_descent(settings: GradientDescentSettings) -> dict[str, float]:
    """Train a classifier of topics, or what a configuration file of AllenNLP describes.

    Args:
        settings: The groups. ``args`` has ``seed``, and ``resume_from_checkpoint``, which the command line asks for
            before it uses a folder again; ``model`` has the arguments of the classifier; ``data`` those of
            :func:`~portico.gradient_descent.topics.data.make_loaders`; ``preprocess``, ``postprocess`` and ``metric``
            must be empty: other experiments have them; ``callbacks`` are those of Hugging Face and Lightning.

    Returns:
        The numbers among the metrics of training.

    Raises:
        ConfigurationError: If a setting or the file cannot be used; before training.
    """
    _refuse_unused(settings, "preprocess", "postprocess", "metric")
    model, data, trainer = settings.model, settings.data, settings.trainer
    if settings.allennlp_config is None:
        seed = convert(int, settings.args.get("seed", 0), "args.seed", {})
        _seed(random_seed=seed, numpy_seed=seed, pytorch_seed=seed)
        parts = _topic_parts(model, data)
    else:
        config = read_config(settings.allennlp_config)
        _check_sections(config, settings.allennlp_config)
        _seed(**{name: config.get(name, default) for name, default in _SEEDS.items()})
        trainer, parts = config["trainer"], _parts_of(config, model, data)
    configured = {**trainer, **settings.strategy}
    # AllenNLP's are configured with the trainer, the others have a group of their own.
    all_callbacks = [*(configured.pop("callbacks", None) or ()), *settings.callbacks]
    descent = from_params(
        Trainer,
        configured,
        **parts._asdict(),
        serialization_dir=settings.output_dir,
        callbacks=all_callbacks,
        loggers=list(settings.logger),
    )
    metrics = {name: value for name, value in descent.train().items() if isinstance(value, int | float)}
    if descent.is_primary:
        dump_metrics(Path(settings.output_dir) / "all_results.json", metrics)
    _tell(metrics, settings.output_dir)
    return metrics


def _topic_parts(model: Mapping[str, Any], data: Mapping[str, Any]) -> _Parts:
    classifier = from_params(Model, {"type": _TOPIC_MODEL, **model}, **_TOPIC_SIZES)
    return _Parts(classifier, *from_params(make_loaders, data))


def _parts_of(config: Mapping[str, Any], model: Mapping[str, Any], data: Mapping[str, Any]) -> _Parts:
    """Build what the file describes; what it leaves out is the classification of topics."""
    described = config.get("model", {"type": _TOPIC_MODEL, **model})
    kind = described.get("type") if isinstance(described, Mapping) else described
    if "data_loader" not in config and kind != _TOPIC_MODEL:
        raise ConfigurationError(
            "The configuration file has a 'model' of its own but no 'data_loader'; add one, such as "
            "{'type': 'my_package.my_module.make_loader'}, and a 'validation_data_loader' if it validates."
        )
    built = from_params(Model, described, **_TOPIC_SIZES)
    if "data_loader" not in config:
        return _Parts(built, *from_params(make_loaders, data))
    validation = config.get("validation_data_loader")
    return _Parts(
        built,
        from_params(DataLoader, config["data_loader"]),
        None if validation is None else from_params(DataLoader, validation),
    )


def _check_sections(config: Mapping[str, Any], path: str) -> None:
    unknown = sorted(set(config) - set(_FILE_KEYS))
    if unknown:
        raise ConfigurationError(
            f"{path} has the sections {', '.join(unknown)}, which need AllenNLP itself; portico reads "
            f"{', '.join(_FILE_KEYS)}. In the place of a dataset reader, give 'data_loader' and "
            "'validation_data_loader' with the dotted path of your own function or class as their 'type'."
        )
    if not isinstance(config.get("trainer"), Mapping):
        raise ConfigurationError(f"{path} has no section 'trainer'; add one with the arguments of the trainer.")


def _refuse_unused(settings: RunSettings, *names: str) -> None:
    for name in names:
        if getattr(settings, name):
            raise ConfigurationError(f"The group `{name}` is not used by this experiment; leave `{name}` out.")


def _seed(*, random_seed: int, numpy_seed: int, pytorch_seed: int) -> None:
    random.seed(random_seed)
    np.random.seed(numpy_seed)
    torch.manual_seed(pytorch_seed)


def _tell(metrics: Mapping[str, float], output_dir: str) -> None:
    best = {name: value for name, value in metrics.items() if name.startswith("best_")}
    _log.info("Best epoch: %s. Everything else is in %s.", best, output_dir)
