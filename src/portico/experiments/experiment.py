"""An experiment: what a configuration describes and ``train.py`` runs.

The protocol, which holds for every experiment:

* The root of a configuration names the class of the experiment (``_target_``); its fields are the groups.
* A group's ``_target_`` names the class that the group builds; without it, the default of the field does. The other
  keys of the group are arguments of that class, which also says what they may be
  (:mod:`portico.experiments.settings`).
* ``trainer`` and ``args`` are not built but kept as partials: a trainer needs what all other groups build, and
  training arguments need the folder of the run and the strategy.
* A class of the user can replace ours if it has the method named by the field (``needs``), or derives from the class
  named there (``base``).
* ``MODES`` names the methods that ``mode=...`` calls. Each writes its files and returns metrics.
"""

import dataclasses
import inspect
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from typing import Any, ClassVar, NamedTuple

from lightning.pytorch import Callback
from lightning.pytorch.callbacks import LearningRateMonitor, RichModelSummary, RichProgressBar
from rich.table import Table
from transformers import EarlyStoppingCallback, set_seed

from portico.arguments import TrainingArguments
from portico.checkpoint.resume import refuse_missing_checkpoint
from portico.errors import InputError
from portico.experiments.settings import (
    ExperimentSchema,
    GroupSchema,
    KnownGroup,
    collect_further_keys,
    is_plain,
    plain_value,
    schema_of,
)
from portico.hub import refuse_missing_model, refuse_without_login
from portico.loop.model_setup import refuse_missing_trackers
from portico.loop.optim import refuse_scheduler_kwargs
from portico.loop.validation import (
    check_lightning_kwargs,
    refuse_unevaluable,
    refuse_untrainable,
    refuse_unusable_arguments,
)
from portico.report.page import duration
from portico.report.terminal import plain_console
from portico.trainer import Trainer
from portico.trust.names import TARGET as TARGET
from portico.trust.names import data_only, import_target

# Callbacks of other libraries that our configuration files name; all take data only.
data_only(EarlyStoppingCallback, "transformers.EarlyStoppingCallback")
for _callback in (LearningRateMonitor, RichModelSummary, RichProgressBar):
    data_only(_callback, f"lightning.pytorch.callbacks.{_callback.__name__}")

# Arguments of a trainer that the experiment passes itself; settings cannot set them.
RESERVED_TRAINER_ARGUMENTS = (
    "model",
    "args",
    "train_dataset",
    "eval_dataset",
    "eval_examples",
    "data_collator",
    "eval_data_collator",
    "processing_class",
    "tokenizer",
    "post_process_function",
    "compute_metrics",
    "callbacks",
    "loggers",
    "teacher",
    "distillation",
    "ipu_config",
)


@data_only
@dataclass(kw_only=True)
class Placement:
    """The group ``strategy``: where an experiment runs, as arguments of ``lightning.Trainer``."""

    strategy: str | None = None
    """Lightning strategy, such as ddp; null: Lightning's choice."""
    accelerator: str | None = None
    """Lightning accelerator: cpu, gpu, ort, ...; null: the best one present."""
    devices: int | str | list[int] | None = None
    """Devices of this machine, one process each; null: 1, or what torchrun started."""
    num_nodes: int | None = None
    """Machines; null: 1, or what torchrun says."""
    precision: str | int | None = None
    """Lightning precision, such as bf16-mixed; null: from args.bf16 and args.fp16, else 32-true."""


# Training arguments of an evaluation or prediction: what only a training does is switched off.
NOT_WITHOUT_TRAINING = {
    "eval_strategy": "no",
    "save_strategy": "no",
    "load_best_model_at_end": False,
    "train_sampling_strategy": "random",  # group_by_length would also reorder what is predicted
}

RESERVED_TRAINING_ARGUMENTS = ("output_dir", *(field.name for field in dataclasses.fields(Placement)))
"""Training arguments that the experiment passes itself; settings of the group ``args`` cannot set them."""


@dataclass(frozen=True, kw_only=True)
class GroupSpec:
    """How a group of the configuration becomes a field of an experiment, whose metadata has it as ``"group"``.

    The default of the field is the class that is built if the group names none. Where it is a partial, the group is
    kept as one: the experiment builds it.
    """

    needs: str | None = None
    """Method that a replacement of the default class must have; the default class documents it."""
    base: type | tuple[type, ...] | None = None
    """Classes, from one of which a replacement must derive; by default the default class, unless ``needs`` is set."""
    decided: Sequence[str] = ()
    """Arguments of the class that the experiment passes itself; settings cannot set them."""
    settings: Callable[[Any], GroupSchema] = schema_of
    """Returns the keys that a class takes."""

    def schema_of(self, target: Callable[..., object]) -> GroupSchema:
        """Return the keys that a class in this group takes."""
        found = self.settings(target)
        return GroupSchema(
            {key: setting for key, setting in found.known.items() if key not in self.decided}, found.is_open
        )

    def check_class(self, name: str, target: Callable[..., object], default: type) -> None:
        """Refuse a class that does not fit; ``name`` is the key that names it."""
        bases = self.base or (object if self.needs else default)
        if not (inspect.isclass(target) and issubclass(target, bases)):
            listed = " or ".join(map(path_of, bases if isinstance(bases, tuple) else (bases,)))
            raise InputError(f"`{name}={path_of(target)}` does not derive from {listed}; set it to a class that does.")
        if self.needs and not any(self.needs in vars(owner) for owner in target.__mro__):
            raise InputError(
                f"`{name}={path_of(target)}` has no method `{self.needs}`, which {path_of(default)} has; add it, or "
                f"set {name} to another class."
            )


def group_field(default: Any, **spec: Any) -> Any:
    """Return a field that is a group, with the default class or partial, and further arguments of ``GroupSpec``."""
    metadata = {"group": GroupSpec(**spec)}
    if isinstance(default, partial):
        return field(default=default, metadata=metadata)
    return field(default_factory=default, metadata=metadata)


def key_of_group(name: str, default: object) -> Any:
    """Return a field that is one key of the group ``name``, next to the arguments of the group's class."""
    return field(default=default, metadata={"key_of": name})


@dataclass(kw_only=True)
class Experiment(ABC):
    """What every experiment has; a subclass adds its groups."""

    MODES: ClassVar[Sequence[str]] = ("train",)

    # Makes the training arguments.
    args: Callable[..., Any] = group_field(partial(TrainingArguments), decided=RESERVED_TRAINING_ARGUMENTS)
    strategy: Any = group_field(Placement)
    callbacks: Sequence[Any] = ()
    """Callbacks of Hugging Face or Lightning."""
    logger: Sequence[Any] = ()
    """Loggers of Lightning."""
    objective: Mapping[str, str] = field(default_factory=dict)
    """"max" or "min" for each metric that a sweep compares; tables and reports show these metrics first."""
    output_dir: str
    """Folder of the run."""

    @abstractmethod
    def train(self) -> dict[str, float]:
        """Train, write everything into the folder of the run, and return the metrics."""

    def check_objective(self, name: str) -> None:  # noqa: B027 -- most experiments know only after the training
        """Refuse an objective of a sweep that :meth:`train` will not return; by default none is refused."""

    def intermediate_metrics(self, metrics: Mapping[str, float]) -> Mapping[str, float]:
        """Return the metrics of an evaluation during training, named as in the result of :meth:`train`."""
        return metrics

    def placement(self) -> dict[str, Any]:
        """Return the training arguments that the strategy sets."""
        return {name: value for name, value in vars(self.strategy).items() if value is not None}


@dataclass(kw_only=True)
class TrainerExperiment(Experiment):
    """An experiment with a :class:`~portico.trainer.Trainer`; a subclass says how it is made."""

    MODES: ClassVar[Sequence[str]] = ("train", "evaluate", "predict")

    @abstractmethod
    def make_trainer(self, args: Any, *, training: bool = True) -> Trainer:
        """Load the data, make the model and return their trainer; without ``training`` only for an evaluation."""

    def callback_arguments(self, trainer: object) -> dict[str, Any]:
        """Return the arguments of a trainer that hold the callbacks of both libraries and the loggers."""
        of_lightning = [callback for callback in self.callbacks if isinstance(callback, Callback)]
        set_already = getattr(trainer, "keywords", {}).get("lightning_callbacks") or ()
        return {
            "callbacks": [callback for callback in self.callbacks if callback not in of_lightning],
            "lightning_callbacks": [*set_already, *of_lightning],
            "loggers": list(self.logger),
        }

    def report(self, trainer: Trainer, metrics: Mapping[str, float], *, seconds: float) -> None:
        """Show and write the results of ``trainer``; called in the first process, by default nothing.

        ``metrics`` holds the metrics of training and evaluation, ``seconds`` the wall time of the whole run.
        """

    def train(self) -> dict[str, float]:
        """Train, evaluate, write everything into the folder of the run, and return the metrics of both.

        A setting or a file that cannot be used is refused before training.
        """
        started = time.time()
        args = self.build_arguments()
        check_early_stopping(self.callbacks, args)
        refuse_missing_checkpoint(args.resume_from_checkpoint, args.output_dir)
        if args.push_to_hub and args.process_index == 0:
            refuse_without_login(args)
        set_seed(args.seed)
        trainer = self.make_trainer(args)
        train_dataset: Any = trainer.train_dataset
        trained = trainer.train(resume_from_checkpoint=trainer.args.resume_from_checkpoint)
        trainer.save_model()
        train_metrics = {**trained.metrics, "train_samples": len(train_dataset)}
        trainer.save_metrics("train", train_metrics)
        eval_metrics = self.evaluate_trainer(trainer)
        trainer.save_metrics("eval", eval_metrics)
        trainer.save_state()
        metrics = {**train_metrics, **eval_metrics}
        if trainer.is_world_process_zero():
            self.report(trainer, metrics, seconds=time.time() - started)
        return metrics

    def evaluate(self) -> dict[str, float]:
        """Evaluate the trained model of ``model.name_or_path``, write the results and return the metrics."""
        started = time.time()
        args = self.arguments_without_training()
        trainer = self.make_trainer(args, training=False)
        metrics = self.evaluate_trainer(trainer)
        trainer.save_metrics("eval", metrics)
        if trainer.is_world_process_zero():
            self.report(trainer, metrics, seconds=time.time() - started)
        return metrics

    @abstractmethod
    def predict(self) -> dict[str, float]:
        """Write what the trained model of ``model.name_or_path`` predicts, and return the metrics."""

    def evaluate_trainer(self, trainer: Trainer) -> dict[str, float]:
        eval_dataset: Any = trainer.eval_dataset
        return {**trainer.evaluate(), "eval_samples": len(eval_dataset)}

    def arguments_without_training(self) -> Any:
        """Return the training arguments for an evaluation or prediction, which needs a trained model; seed the run."""
        if getattr(getattr(self, "model", None), "name_or_path", "") is None:
            raise InputError(
                "`mode=evaluate` and `mode=predict` use a trained model, but `model.name_or_path=null`; set it to the "
                "folder of a run, or to a hub name."
            )
        args = self.build_arguments(**NOT_WITHOUT_TRAINING)
        set_seed(args.seed)
        return args

    def build_arguments(self, **changes: Any) -> Any:
        """Return the training arguments, some of them changed; refuse those that do not fit together.

        Models that do not exist are refused too. A trainer and a model of the user may read their settings otherwise.
        """
        try:
            args = self.args(output_dir=self.output_dir, **{**self.placement(), **changes})
        except InputError:
            raise
        except (TypeError, ValueError, OverflowError, ImportError) as error:
            raise InputError(f"These training arguments cannot be used: {' '.join(str(error).split())}") from error
        # A trainer refuses these too, but it is made when the data has been read and the model been built.
        refuse_unusable_arguments(args)
        refuse_untrainable(args)
        refuse_unevaluable(args)
        trainer = getattr(self, "trainer", None)
        options = check_lightning_kwargs(getattr(trainer, "keywords", {}).get("lightning_kwargs"))
        if not options.get("fast_dev_run"):  # which is not tracked
            refuse_missing_trackers(args.report_to)
        if getattr(trainer, "func", trainer).__module__.startswith("portico."):
            refuse_scheduler_kwargs(args)
        model = getattr(self, "model", None)
        for key in ("name_or_path", "teacher") if type(model).__module__.startswith("portico.") else ():
            if (name := getattr(model, key, None)) is not None:
                refuse_missing_model(f"model.{key}", str(name))
        return args


def load_model(source: Any, *arguments: object) -> tuple[Any, Any]:
    """Return the model and its tokenizer or image processor that the group ``model`` loads.

    Raises:
        InputError: If a class of the user returns something else.
    """
    loaded = source.load(*arguments)
    if not (isinstance(loaded, tuple) and len(loaded) == 2 and hasattr(loaded[0], "forward")):
        raise InputError(
            f"`{type(source).__name__}.load` returned {str(loaded)[:80]}; it has to return (model, tokenizer)."
        )
    return loaded


# As many rows fit on a screen; metrics of several languages have hundreds.
_MOST_SCORES = 30


def print_scores(
    title: str, heading: str, scores: Mapping[str, str], *, files: Mapping[str, str], seconds: float
) -> None:
    """Print scores by name, the time of the whole run and where its files are; of very many scores the first."""
    table = Table(title=title, title_justify="left")
    table.add_column(heading)
    table.add_column("", justify="right")
    for name, value in list(scores.items())[:_MOST_SCORES]:
        table.add_row(name, value)
    if len(scores) > _MOST_SCORES:
        table.add_row(f"{len(scores) - _MOST_SCORES} more in all_results.json", "")
    table.add_row("Time of the whole run", duration(seconds))
    console = plain_console()
    console.print(table)
    for what, path in files.items():
        # Long paths must stay whole, so that they can be clicked and copied.
        console.print(f"{what}: {path}", soft_wrap=True, highlight=False)


# What an evaluation reports besides scores; the best checkpoint can be chosen by each.
NOT_OF_A_METRIC = ("loss", "runtime", "samples_per_second", "steps_per_second", "model_preparation_time")
# Prefixes of what a run reports besides its evaluations.
OF_TRAINING = ("train_", "epoch", "total_flos", "eval_mem_", "init_mem_", "before_init_mem_")


def check_score(setting: str, value: str, names: Collection[str]) -> None:
    """Refuse a setting that names none of the scores of a run; the message lists them, the nearest first."""
    if value not in names:
        nearest = get_close_matches(value, names, n=len(names), cutoff=0.0)
        raise InputError(f"`{setting}={value}` is not a score of this run; set it to one of {', '.join(nearest)}.")


def check_early_stopping(callbacks: Sequence[Any], args: TrainingArguments) -> None:
    """Refuse early stopping without the evaluations that it compares."""
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


# ---- From settings to an experiment ----


def path_of(target: Callable[..., object]) -> str:
    """Return the dotted path of a class or function."""
    return f"{target.__module__}.{target.__qualname__}"


def experiment_class(settings: Mapping[str, Any]) -> type[Experiment]:
    """Return the class of the experiment that ``settings`` describe."""
    found = import_target(TARGET, settings[TARGET])
    if not (inspect.isclass(found) and issubclass(found, Experiment)):
        raise InputError(
            f"`{TARGET}={settings[TARGET]}` is not an experiment; set it to a class that derives from "
            f"{path_of(Experiment)}, such as the class of +experiment=mrc."
        )
    return found


class ConfiguredGroup(NamedTuple):
    """A group as settings describe it: the class, the values, and all keys that it may have."""

    name: str
    target: Any
    values: dict[str, Any]
    settings: GroupSchema
    is_partial: bool


def iterate_groups(settings: Mapping[str, Any]) -> Iterator[ConfiguredGroup]:
    """Yield the groups of an experiment, each with its class and the keys that this class takes."""
    found = experiment_class(settings)
    own = {field.name: field.metadata["key_of"] for field in dataclasses.fields(found) if "key_of" in field.metadata}
    for own_field in dataclasses.fields(found):
        if "group" in own_field.metadata:
            spec: GroupSpec = own_field.metadata["group"]
            given = settings.get(own_field.name) or {}
            if not isinstance(given, Mapping):  # in a file that no composition has written
                raise InputError(
                    f"`{own_field.name}={str(given)[:80]}` is not a mapping; set it to the settings of this group."
                )
            values = dict(given)
            is_partial = isinstance(own_field.default, partial)
            default: Any = getattr(own_field.default, "func", own_field.default_factory)
            target = import_target(f"{own_field.name}.{TARGET}", values.pop(TARGET, None) or default)
            spec.check_class(f"{own_field.name}.{TARGET}", target, default)
            taken = spec.schema_of(target)
            known = {key: schema_of(found).known[key] for key, of in own.items() if of == own_field.name}
            taken = GroupSchema({**taken.known, **known}, taken.is_open)
            yield ConfiguredGroup(own_field.name, target, values, taken, is_partial)


def _plain_fields(settings: Mapping[str, Any]) -> set[str]:
    """Return the fields that stand in the root of the configuration."""
    names = {field.name for field in dataclasses.fields(experiment_class(settings)) if not field.metadata}
    return names - {"output_dir"}


def schema_of_experiment(settings: Mapping[str, Any]) -> ExperimentSchema:
    """Return all settings of the experiment that ``settings`` describe."""
    groups = {group.name: KnownGroup(path_of(group.target), group.settings) for group in iterate_groups(settings)}
    return ExperimentSchema(experiment_class(settings).MODES, sorted(_plain_fields(settings)), groups)


def complete_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings completed with the defaults of every group that names its class.

    Training arguments and trainers are left as they are: the trainer saves its more than a hundred arguments itself.
    """
    complete = dict(settings)
    for group in iterate_groups(settings):
        if TARGET in (settings.get(group.name) or {}) and not group.is_partial:
            defaults = {key: each.default for key, each in group.settings.known.items()}
            plain = {key: plain_value(default) for key, default in defaults.items() if is_plain(default)}
            complete[group.name] = {**plain, **settings[group.name]}
    return complete


def build_experiment(settings: Mapping[str, Any], output_dir: str) -> Experiment:
    """Return the experiment that ``settings`` describe, checked and with all groups built.

    ``callbacks`` and ``logger`` are objects already. Settings that do not exist or do not fit raise ``InputError``.
    """
    schema_of_experiment(settings).check(settings)
    own = {field.name for field in dataclasses.fields(experiment_class(settings)) if "key_of" in field.metadata}
    parts = {name: settings[name] for name in _plain_fields(settings) if name in settings}
    for group in iterate_groups(settings):
        parts |= {key: value for key, value in group.values.items() if key in own}
        rest = {key: value for key, value in group.values.items() if key not in own}
        make = partial(group.target, **collect_further_keys(group.target, rest))
        try:
            parts[group.name] = make if group.is_partial else make()
        except InputError:
            raise
        except (TypeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise InputError(
                f"The group `{group.name}` cannot build {path_of(group.target)} ({reason}); change its keys."
            ) from error
    return experiment_class(settings)(**parts, output_dir=output_dir)
