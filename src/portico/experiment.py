"""An experiment: what a configuration describes and ``train.py`` runs.

The protocol, which holds for every experiment:

* The root of a configuration names the class of the experiment (``_target_``); its fields are the groups.
* A group's ``_target_`` names the class that the group builds; without it, the default of the field does. The other
  keys of the group are arguments of that class, which also says what they may be (:mod:`portico.settings`).
* ``trainer`` and ``args`` are not built but kept as partials: a trainer needs what all other groups build, and
  training arguments need the folder of the run and the strategy.
* A class of the user's own takes the place of ours if it has the methods named by the field (``needs``), or derives
  from the class named there (``base``).
* ``MODES`` names the methods that ``mode=...`` calls. Each writes its files and returns metrics.
"""

import dataclasses
import inspect
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from transformers import EarlyStoppingCallback, set_seed

from portico.arguments import TrainingArguments
from portico.errors import InputError
from portico.settings import (
    NO_DEFAULT,
    GroupSettings,
    Rule,
    Setting,
    check_values,
    settings_of,
    suggestion,
    without_further_keys,
)

if TYPE_CHECKING:
    from portico.trainer import Trainer

TARGET = "_target_"
# Arguments of a trainer that the experiment gives it, so that no setting can.
TRAINER_PARTS = (
    *("model", "args", "train_dataset", "eval_dataset", "eval_examples", "data_collator", "processing_class"),
    *("post_process_function", "compute_metrics", "callbacks", "loggers", "tokenizer", "teacher", "distillation"),
    *("ipu_config", "eval_data_collator"),
)


@dataclass(kw_only=True)
class Placement:
    """The group ``strategy``: where an experiment runs, in the words of ``lightning.Trainer``."""

    strategy: str | None = None
    """Lightning strategy, such as ddp; null: Lightning's choice."""
    accelerator: str | None = None
    """Lightning accelerator: cpu, gpu, ort, ...; null: the best one present."""
    devices: int | str | list[int] | None = None
    """Devices of this machine, one process each."""
    num_nodes: int | None = None
    """Machines."""
    precision: str | int | None = None
    """Lightning precision, such as bf16-mixed."""


ARGUMENTS_DECIDED = ("output_dir", *(one.name for one in dataclasses.fields(Placement)))
"""Training arguments that no setting of the group ``args`` can be."""


def group(
    default: Callable[..., Any],
    *,
    needs: Mapping[str, str] | None = None,
    base: type | tuple[type, ...] | None = None,
    is_partial: bool = False,
    decided: Sequence[str] = (),
    settings: Callable[[Any], GroupSettings] = settings_of,
) -> dict[str, Any]:
    """Return the arguments of ``dataclasses.field`` for a field that a group of the configuration builds.

    Args:
        default: Class that is built if the group names none.
        needs: Methods that its objects must have, each with the words that follow "which" in an error message.
        base: Class that it must derive from, or several of which one.
        is_partial: Keep the class and its arguments; the experiment builds it.
        decided: Arguments of the class that the experiment gives, and no setting.
        settings: Returns the keys that a class takes, if they are not its arguments.
    """
    spec = _Group(default, needs or {}, base, is_partial, tuple(decided), settings)
    return {"default_factory": partial(partial, default) if is_partial else default, "metadata": {"group": spec}}


def key_of_group(name: str, default: Any) -> Any:
    """Return a field of an experiment that is one key of a group, next to the arguments of the group's class.

    Args:
        name: The group.
        default: Default of the key.
    """
    return field(default=default, metadata={"key_of": name})


@dataclass(frozen=True)
class _Group:
    default: Callable[..., Any]
    needs: Mapping[str, str]
    base: type | tuple[type, ...] | None
    is_partial: bool
    decided: tuple[str, ...]
    settings: Callable[[Any], GroupSettings]

    def settings_of(self, target: Any) -> GroupSettings:
        found = self.settings(target)
        known = {name: one for name, one in found.known.items() if name not in self.decided}
        return GroupSettings(known, found.is_open)

    def check_class(self, name: str, target: Any) -> None:
        if self.base is not None and not (inspect.isclass(target) and issubclass(target, self.base)):
            bases = " or ".join(map(path_of, self.base if isinstance(self.base, tuple) else (self.base,)))
            raise InputError(
                f"`{name}.{TARGET}={path_of(target)}` does not derive from {bases}; set it to a class that does, or "
                "leave it out."
            )

    def build(self, name: str, target: Any, values: Mapping[str, Any]) -> Any:
        values = without_further_keys(target, values)
        if self.is_partial:
            return partial(target, **values)
        try:
            built = target(**values)
        except InputError:
            raise
        except (TypeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise InputError(f"The group `{name}` cannot build {path_of(target)} ({reason}).") from error
        for method, which in self.needs.items():
            if not callable(getattr(built, method, None)):
                raise InputError(
                    f"`{name}.{TARGET}={path_of(target)}` has no method `{method}`, which {which}; add it, or set "
                    f"{name}.{TARGET} to another class."
                )
        return built


@dataclass(kw_only=True)
class Experiment(ABC):
    """What every experiment has; a subclass adds its groups.

    Args:
        args: Makes the training arguments; a partial of their class.
        strategy: Where it runs.
        callbacks: Callbacks of Hugging Face.
        logger: Lightning loggers.
        output_dir: Folder of the run.
    """

    MODES: ClassVar[Sequence[str]] = ("train",)

    args: Callable[..., Any] = field(
        **group(TrainingArguments, base=TrainingArguments, is_partial=True, decided=ARGUMENTS_DECIDED)
    )
    strategy: Any = field(**group(Placement, base=Placement))
    callbacks: Sequence[Any] = ()
    logger: Sequence[Any] = ()
    output_dir: str

    @abstractmethod
    def train(self) -> dict[str, float]:
        """Train, write everything into the folder of the run, and return the metrics."""

    def placement(self) -> dict[str, Any]:
        """Return the training arguments that the strategy sets."""
        return {name: value for name, value in vars(self.strategy).items() if value is not None}


@dataclass(kw_only=True)
class TrainerExperiment(Experiment):
    """An experiment with a :class:`~portico.trainer.Trainer`; a subclass says how it is made."""

    @abstractmethod
    def make_trainer(self, args: Any) -> "Trainer":
        """Load the data, make the model and return their trainer.

        Args:
            args: The training arguments.
        """

    def report(self, trainer: Any, metrics: Mapping[str, float], *, seconds: float) -> None:
        """Show and write what was reached; called in the first process. By default nothing.

        Args:
            trainer: The trainer, after training and evaluation.
            metrics: Metrics of both.
            seconds: Wall time of the whole run.
        """

    def train(self) -> dict[str, float]:
        """Train, evaluate, write everything into the folder of the run, and return the metrics of both.

        Raises:
            InputError: If a setting or a file cannot be used; before training.
        """
        started = time.time()
        args = self.training_arguments()
        check_early_stopping(self.callbacks, args)
        set_seed(args.seed)
        trainer = self.make_trainer(args)
        metrics = train_and_evaluate(trainer)
        if trainer.is_world_process_zero():
            self.report(trainer, metrics, seconds=time.time() - started)
        return metrics

    def training_arguments(self, **changes: Any) -> Any:
        """Return the training arguments, some of them changed.

        Raises:
            InputError: If they do not fit together.
        """
        try:
            return self.args(output_dir=self.output_dir, **{**self.placement(), **changes})
        except (TypeError, ValueError, ImportError) as error:
            raise InputError(f"These training arguments cannot be used: {' '.join(str(error).split())}") from error


def train_and_evaluate(trainer: "Trainer") -> dict[str, float]:
    """Train, evaluate, write model, metrics and state into the trainer's folder, and return all metrics."""
    trained = trainer.train(resume_from_checkpoint=trainer.args.resume_from_checkpoint)
    trainer.save_model()
    train_metrics = {**trained.metrics, "train_samples": len(trainer.train_dataset)}
    trainer.save_metrics("train", train_metrics)
    metrics = {**trainer.evaluate(), "eval_samples": len(trainer.eval_dataset)}
    trainer.save_metrics("eval", metrics)
    trainer.save_state()
    return {**train_metrics, **metrics}


def check_early_stopping(callbacks: Sequence[Any], args: TrainingArguments) -> None:
    """Refuse early stopping without the evaluations that it compares.

    Raises:
        InputError: Names the training argument that is missing.
    """
    if not any(isinstance(callback, EarlyStoppingCallback) for callback in callbacks):
        return
    if args.eval_strategy == "no":
        raise InputError(
            "Early stopping compares evaluations, but `args.eval_strategy=no` makes none during training; set it to "
            "steps or epoch, or leave `callbacks=early_stopping` out."
        )
    if args.metric_for_best_model is None:
        raise InputError(
            "Early stopping compares evaluations, but no metric was chosen; set `args.metric_for_best_model`, for "
            "example to f1, or leave `callbacks=early_stopping` out."
        )


# ------------------------------------------------------------------------------------ from settings to an experiment


def path_of(target: Any) -> str:
    """Return the dotted path of a class or function."""
    return f"{target.__module__}.{target.__qualname__}"


def import_target(name: str, path: Any) -> Any:
    """Return what a dotted path names.

    Args:
        name: The key that holds the path, for the message.
        path: The path; a class or function is returned as it is.

    Raises:
        InputError: If it cannot be imported.
    """
    if callable(path):
        return path
    module, _, attribute = str(path).rpartition(".")
    try:
        target = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            f"`{name}={path}` cannot be imported ({' '.join(str(error).split())}); set it to the dotted path of a "
            "class, such as my_package.my_module.MyClass, in a package that Python finds (PYTHONPATH)."
        ) from error
    if not callable(target):
        raise InputError(f"`{name}={path}` is a {type(target).__name__}; set it to the dotted path of a class.")
    return target


def experiment_class(settings: Mapping[str, Any]) -> type[Experiment]:
    """Return the class of the experiment that settings describe.

    Raises:
        InputError: If it cannot be imported or is no experiment.
    """
    found = import_target(TARGET, settings[TARGET])
    if not (inspect.isclass(found) and issubclass(found, Experiment)):
        raise InputError(
            f"`{TARGET}={settings[TARGET]}` is not an experiment; set it to a class that derives from "
            f"{path_of(Experiment)}, such as that of +experiment=mrc."
        )
    return found


@dataclass(frozen=True)
class _ConfiguredGroup:
    """One group of the settings: the class it builds, its values, and the keys that the experiment itself reads."""

    name: str
    spec: _Group
    target: Any
    values: Mapping[str, Any]
    settings: GroupSettings
    own: Mapping[str, Setting]

    @property
    def rules(self) -> dict[str, Rule | None]:
        return {name: one.rule for name, one in {**self.settings.known, **self.own}.items()}

    @property
    def unknown(self) -> list[str]:
        return [] if self.settings.is_open else [name for name in self.values if name not in self.rules]


def _groups(settings: Mapping[str, Any]) -> Iterator[_ConfiguredGroup]:
    found = experiment_class(settings)
    known = settings_of(found).known
    for one in dataclasses.fields(found):
        if "group" in one.metadata:
            spec: _Group = one.metadata["group"]
            values = dict(settings.get(one.name) or {})
            target = import_target(f"{one.name}.{TARGET}", values.pop(TARGET, None) or spec.default)
            spec.check_class(one.name, target)
            own = {
                each.name: known[each.name]
                for each in dataclasses.fields(found)
                if each.metadata.get("key_of") == one.name
            }
            yield _ConfiguredGroup(one.name, spec, target, values, spec.settings_of(target), own)


def check_settings(settings: Mapping[str, Any], further: Mapping[str, Sequence[str]] | None = None) -> None:
    """Refuse settings of an experiment that do not exist, and values that cannot be used, before any work.

    Args:
        settings: Plain values: ``_target_`` and a mapping for each group.
        further: Keys that someone else reads, by group; a group without keys is not looked into.

    Raises:
        InputError: Names all unknown keys with the nearest known ones, or the first value that cannot be used.
    """
    of_others = {f"{name}.{key}" for name, keys in (further or {}).items() for key in keys}
    known = list(of_others)
    unknown: list[str] = []
    for name, keys in (further or {}).items():
        unknown += [f"{name}.{key}" for key in settings.get(name) or () if key not in keys] if keys else []
    groups = list(_groups(settings))
    for one in groups:
        known += [f"{one.name}.{key}" for key in one.rules]
        unknown += [f"{one.name}.{key}" for key in one.unknown]
    plain = {one.name for one in dataclasses.fields(experiment_class(settings)) if not one.metadata}
    names = {TARGET, *plain, *(further or {}), *(one.name for one in groups)} - {"output_dir"}
    unknown += [name for name, value in settings.items() if name not in names and value not in ({}, None)]
    if unknown:
        known += sorted(names - {TARGET})
        raise InputError(" ".join(f"'{name}' is not a setting{suggestion(name, known)}" for name in unknown))
    for one in groups:
        check_values(one.name, one.values, one.rules)


def complete_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with the defaults of the groups that name their class: they describe the run completely.

    Training arguments and trainers are left as they are; the trainer saves its more than a hundred arguments itself.
    """
    complete = dict(settings)
    for one in _groups(settings):
        if TARGET in (settings.get(one.name) or {}) and not one.spec.is_partial:
            defaults = GroupSettings({**one.own, **one.settings.known}).defaults
            plain = {name: _plain(value) for name, value in defaults.items() if _is_plain(value)}
            complete[one.name] = {**plain, **settings[one.name]}
    return complete


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(_is_plain(item) for item in value)
    return value is None or isinstance(value, bool | int | float | str)


def _plain(value: Any) -> Any:
    """Return a value as YAML has it: no tuples, and no members of an enumeration."""
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, str) else value


def build_experiment(settings: Mapping[str, Any], output_dir: str) -> Experiment:
    """Return the experiment that settings describe, checked and with all its groups built.

    Args:
        settings: Plain values: ``_target_`` and a mapping for each group; ``callbacks`` and ``logger`` are objects.
        output_dir: Folder of the run.

    Raises:
        InputError: If a class cannot be imported or does not fit, or a setting is unknown or cannot be used.
    """
    check_settings(settings)
    found = experiment_class(settings)
    plain = [one.name for one in dataclasses.fields(found) if not one.metadata and one.name != "output_dir"]
    parts: dict[str, Any] = {name: settings[name] for name in plain if name in settings}
    for one in _groups(settings):
        own = {name: value for name, value in one.values.items() if name in one.own}
        rest = {name: value for name, value in one.values.items() if name not in own}
        parts |= {one.name: one.spec.build(one.name, one.target, rest), **own}
    return found(**parts, output_dir=output_dir)


def settings_help(settings: Mapping[str, Any]) -> str:
    """Return a line for each setting of an experiment: its key, its value or default, and what it means."""
    lines = []
    for one in _groups(settings):
        lines += ["", f"{one.name}: {path_of(one.target)}"]
        for name, each in {**one.own, **one.settings.known}.items():
            value = _shown(one.values.get(name, each.default))
            lines.append(f"  {f'{one.name}.{name}{value}':<46} {each.help}".rstrip())
    return "\n".join(lines)


def _shown(value: Any) -> str:
    if value is NO_DEFAULT:
        return "="
    value = _plain(value)
    return f"={'null' if value is None else str(value).lower() if isinstance(value, bool) else value}"
