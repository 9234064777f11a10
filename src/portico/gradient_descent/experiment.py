"""The experiment ``gradient_descent``: AllenNLP's trainer on topics, or on a configuration file of AllenNLP."""

import json
import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

from portico.checkpoint.manifest import DAMAGE
from portico.errors import InputError, reason_of
from portico.experiments.experiment import Experiment, Placement, group_field, print_scores
from portico.experiments.settings import GroupSchema, Setting, documentation, schema_of, setting
from portico.gradient_descent.checkpointer import BEST_WEIGHTS
from portico.gradient_descent.construction import (
    ConfigurationError,
    ConfiguredLazy,
    Registrable,
    from_params,
    make_lazy,
    parameters_of,
    read_config,
)
from portico.gradient_descent.metrics import dump_metrics
from portico.gradient_descent.topics import TOPICS, VOCAB_SIZE, BagOfWordsClassifier, TopicData
from portico.gradient_descent.trainer import GradientDescentTrainer, RegistrableTrainer
from portico.trust.disk import write_text
from portico.trust.files import load_tensors

_log = logging.getLogger(__name__)

_BY_THE_EXPERIMENT = ("model", "data_loader", "validation_data_loader", "serialization_dir", "loggers")
# AllenNLP's seeds, and its defaults for a file that does not set them.
_SEEDS = {"random_seed": 13370, "numpy_seed": 1337, "pytorch_seed": 133}
_FILE_KEYS = ("trainer", "model", "data_loader", "validation_data_loader", *_SEEDS)


class Model(Registrable):
    """Registry of models that a configuration names."""

    _accepted = (nn.Module,)


class BatchLoader(Registrable):
    """Registry of functions and classes that make the batches a configuration names."""

    _accepted = (DataLoader, Iterable, list)


_TOPIC_MODEL = "bag_of_words"
_TOPIC_SIZES = {"vocab_size": VOCAB_SIZE, "num_labels": len(TOPICS)}
Model.register(_TOPIC_MODEL)(BagOfWordsClassifier)


class _Parts(NamedTuple):
    model: nn.Module
    data_loader: Any
    validation_data_loader: Any


@dataclass(kw_only=True)
class DescentArguments:
    """The group ``args``: settings that are not arguments of AllenNLP's trainer."""

    output_dir: str
    """Folder of the run."""
    seed: int = setting(0, least=0)
    """Seed of Python, numpy and torch; a file of AllenNLP has its own."""
    weights: str | None = None
    """Folder of a run whose best weights mode=evaluate and mode=predict use."""
    resume_from_checkpoint: bool | str | None = None
    """Allow the folder to hold a run, which is continued."""


def _trainer_settings(trainer_class: Callable[..., object]) -> GroupSchema:
    """Return the arguments that AllenNLP builds a trainer with, and the ``type`` that names a registered one."""
    maker: Callable[..., object] = getattr(trainer_class, "from_partial_objects", trainer_class)
    docs = documentation(trainer_class)
    decided = {*_BY_THE_EXPERIMENT, *Placement.__dataclass_fields__}
    known = schema_of(trainer_class).known
    found = {
        name: known.get(name, Setting(help=docs.get(name, ""))) for name in parameters_of(maker) if name not in decided
    }
    return GroupSchema({"type": Setting(help="Name of a registered trainer"), **found})


@dataclass(kw_only=True)
class GradientDescentExperiment(Experiment):
    """AllenNLP's trainer on a classification of topics, or on what a configuration file of AllenNLP describes.

    Args:
        trainer: Class of the trainer, with the arguments of ``from_partial_objects``; its parts are dicts with
            ``"type"``, or partials.
        model: Class of a model; it is given ``vocab_size`` and ``num_labels`` if it takes them.
        data: Has ``load()``, which returns the loaders of training and validation.
        allennlp_config: Jsonnet or JSON file; its sections replace ``trainer``, ``model`` and ``data``.
    """

    MODES: ClassVar[Sequence[str]] = ("train", "evaluate", "predict")

    args: Any = group_field(partial(DescentArguments), decided=("output_dir",))
    trainer: Any = group_field(partial(GradientDescentTrainer), base=RegistrableTrainer, settings=_trainer_settings)
    model: Any = group_field(partial(BagOfWordsClassifier), base=nn.Module, decided=tuple(_TOPIC_SIZES))
    data: Any = group_field(TopicData, needs="load")
    allennlp_config: str | None = None

    def train(self) -> dict[str, float]:
        """Train and return the numbers among the metrics.

        Raises:
            ConfigurationError: If a setting or the file cannot be used; before training.
        """
        configured, parts = self._prepare()
        trainer = self._make_trainer(configured, parts)
        metrics = {name: value for name, value in trainer.train().items() if isinstance(value, int | float)}
        if trainer.is_primary:
            dump_metrics(Path(self.output_dir) / "all_results.json", metrics)
        best = {name: value for name, value in metrics.items() if name.startswith("best_")}
        _log.info("Best epoch: %s. Everything else is in %s.", best, self.output_dir)
        return metrics

    def intermediate_metrics(self, metrics: Mapping[str, float]) -> dict[str, float]:
        return {**metrics, **{f"best_{name}": value for name, value in metrics.items()}}

    def evaluate(self) -> dict[str, float]:
        """Return the loss and the metrics of the weights in ``args.weights`` on the validation batches."""
        started = time.time()
        model, batches = self._load_trained()
        read_metrics: Any = getattr(model, "get_metrics", lambda reset: {})
        read_metrics(reset=True)
        losses = [float(model(**batch)["loss"]) for batch in batches]
        metrics = {"loss": sum(losses) / len(losses), **read_metrics(reset=True)}
        dump_metrics(Path(self.output_dir) / "all_results.json", metrics)
        shown = {name: f"{value:.4g}" for name, value in metrics.items()}
        files = {"Everything": self.output_dir}
        print_scores("AllenNLP's trainer", "Validation", shown, files=files, seconds=time.time() - started)
        return metrics

    def predict(self) -> dict[str, float]:
        """Write what the model returns for each instance of the validation batches, one JSON object a line."""
        model, batches = self._load_trained()
        readable = getattr(model, "make_output_human_readable", lambda output: output)
        lines = []
        for batch in batches:
            output = readable(model(**batch))
            columns = {name: _list_values(value) for name, value in output.items()}
            columns = {name: values for name, values in columns.items() if values is not None}
            lines += [json.dumps(dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True)]
        file = Path(self.output_dir) / "predictions.jsonl"
        write_text(file, "".join(f"{line}\n" for line in lines))
        print(f"Predictions: {file}")
        return {"predict_samples": len(lines)}

    def _load_trained(self) -> tuple[nn.Module, Iterator[dict[str, Any]]]:
        """Return the model with the weights of a run, and the validation batches; without gradients."""
        path = self.args(output_dir=self.output_dir).weights
        if path is None:
            raise InputError(
                "`mode=evaluate` and `mode=predict` use trained weights, but `args.weights=null`; set it to the "
                "folder of a run."
            )
        file = Path(path) / BEST_WEIGHTS if Path(path).is_dir() else Path(path)
        _, parts = self._prepare()
        if parts.validation_data_loader is None:
            raise InputError(
                f"`mode=evaluate` and `mode=predict` read validation batches, but {self.allennlp_config} makes none; "
                "add a 'validation_data_loader' to it."
            )
        try:
            parts.model.load_state_dict(load_tensors(file, map_location="cpu"))
        except (*DAMAGE, RuntimeError) as error:
            raise InputError(
                f"`args.weights={path}` has no weights of this model ({reason_of(error)}); set it to the folder of a "
                "run with the same settings."
            ) from error
        return parts.model.eval().requires_grad_(False), iter(parts.validation_data_loader)

    def _prepare(self) -> tuple[Any, "_Parts"]:
        """Seed the run, and return the arguments and the parts of the trainer."""
        if self.allennlp_config is None:
            seed = self.args(output_dir=self.output_dir).seed
            _seed(random_seed=seed, numpy_seed=seed, pytorch_seed=seed)
            return self.trainer.keywords, _Parts(self._topic_model(), *self.data.load())
        config = read_config(self.allennlp_config)
        _check_sections(config, self.allennlp_config)
        _seed(**{name: config.get(name, default) for name, default in _SEEDS.items()})
        return config["trainer"], self._parts_of(config)

    def _make_trainer(self, configured: Mapping[str, Any], parts: _Parts) -> Any:
        configured = {**configured, **self.placement()}
        # AllenNLP's callbacks are configured with the trainer, other callbacks in the group `callbacks`.
        callbacks = [*(configured.pop("callbacks", None) or ()), *self.callbacks]
        chosen = self.trainer.func
        # `type` chooses among registered trainers; a class of the user's own is built as the default one is.
        base = (
            RegistrableTrainer if chosen is GradientDescentTrainer else getattr(chosen, "from_partial_objects", chosen)
        )
        return from_params(
            base,
            configured,
            **parts._asdict(),
            serialization_dir=self.output_dir,
            callbacks=callbacks,
            loggers=list(self.logger),
        )

    def _topic_model(self) -> Any:
        sizes = {name: value for name, value in _TOPIC_SIZES.items() if name in parameters_of(self.model.func)}
        return ConfiguredLazy(self.model.func, self.model.keywords).construct(**sizes)

    def _parts_of(self, config: Mapping[str, Any]) -> _Parts:
        """Build the parts that the file describes; the classification of topics provides the others."""
        described = config.get("model")
        kind = described.get("type") if isinstance(described, Mapping) else described
        if "data_loader" not in config and kind not in (None, _TOPIC_MODEL):
            raise ConfigurationError(
                "The configuration file has its own 'model' but no 'data_loader'; add one, such as "
                "{'type': 'my_package.my_module.make_loader'}, and a 'validation_data_loader' if it validates."
            )
        lazy = make_lazy(Model, described)
        model = self._topic_model() if lazy is None else lazy.construct(**_TOPIC_SIZES)
        if "data_loader" not in config:
            return _Parts(model, *self.data.load())
        loaders = (config.get(name) for name in ("data_loader", "validation_data_loader"))
        return _Parts(model, *(None if loader is None else from_params(BatchLoader, loader) for loader in loaders))


def _list_values(value: object) -> list[Any] | None:
    """Return one value for each instance of a batch; ``None`` for what belongs to the batch, such as its loss."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return value.tolist() if value.ndim else None
    return list(value) if isinstance(value, list | tuple) else None


def _check_sections(config: Mapping[str, Any], path: str) -> None:
    unknown = sorted(set(config) - set(_FILE_KEYS))
    if unknown:
        raise ConfigurationError(
            f"{path} has the sections {', '.join(unknown)}, which need AllenNLP itself; portico reads "
            f"{', '.join(_FILE_KEYS)}. Instead of a dataset reader, set 'data_loader' and 'validation_data_loader' "
            "with the dotted path of a class, or of a function with a return annotation, as their 'type'."
        )
    if not isinstance(config.get("trainer"), Mapping):
        raise ConfigurationError(f"{path} has no section 'trainer'; add one with the arguments of the trainer.")


def _seed(*, random_seed: int, numpy_seed: int, pytorch_seed: int) -> None:
    random.seed(random_seed)
    np.random.seed(numpy_seed)
    torch.manual_seed(pytorch_seed)
