"""Older spellings that are still accepted, of transformers 4 from 4.31 on; portico 2 removes them.

:class:`OlderArguments` is the table: a row for each older argument says what became of it. One with another name now
comes in with a constructor, a dict, a file, an option or an attribute, and :meth:`Renamed.read` reads it in each case;
one that is gone is a field, which is read when the arguments are complete. Below are the older members of a trainer;
:mod:`portico.loop.overrides` adapts overrides with an older signature.

Each use raises one ``FutureWarning`` that names the current spelling.
"""

import argparse
import dataclasses
import inspect
import math
import sys
import warnings
from collections import ChainMap
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar, get_args, get_type_hints

import transformers

from portico.compat.transformers import EvalLoopOutput, HFTrainingArguments, nested_numpify, sort_checkpoints
from portico.errors import InputError
from portico.unknown_arguments import refuse_unknown_arguments

if TYPE_CHECKING:
    from portico.compat.annotations import Loader, Nested, ProcessingClass

_REMOVED_IN = "portico 2"
_LIBRARIES = ("portico", "transformers", "dataclasses", "argparse")
_Default = TypeVar("_Default")


def warn_of_old_name(old: str, new: str) -> None:
    """Warn that ``old`` is a deprecated spelling of ``new``."""
    warn_of_old_spelling(f"`{old}` is deprecated and will be removed in {_REMOVED_IN}; use `{new}`.")


def warn_of_old_spelling(message: str) -> None:
    """Warn with ``message``, pointing at the line of user code that has to change."""
    warnings.warn(message, FutureWarning, stacklevel=_depth_of_user_code())


def _depth_of_user_code() -> int:
    """Return the stack level of the nearest frame outside the libraries, for a warning of the caller.

    Constructors are reached directly, through subclasses or through an argument parser, so no fixed level is right.
    """
    frame, depth = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _LIBRARIES:
        frame, depth = frame.f_back, depth + 1
    return depth


# ---- What became of an argument ----


@dataclass
class Renamed:
    """An argument with another name now; the older one stays a keyword, an option and an attribute."""

    new: str
    unset: object = None
    """Default of the older name: files of arguments that an older version wrote contain it."""
    convert: Callable[[Any], Any] = lambda value: value
    """Makes the current value of the older one."""

    def __set_name__(self, owner: type, old: str) -> None:
        self.old = old

    def read(self, value: object, prefix: str = "") -> Any:
        """Return the value of the current argument; a warning shows both names, each after ``prefix``."""
        warn_of_old_name(f"{prefix}{self.old}", f"{prefix}{self.new}")
        return None if value is None else self.convert(value)

    def __get__(self, args: Any, owner: type) -> Any:
        if args is None:
            return self
        return vars(args)[self.old] if self.old in vars(args) else getattr(args, self.new)

    def __set__(self, args: Any, value: object) -> None:
        if self.old in _field_names(type(args)):  # of a subclass, and without a default, which would hide this one
            vars(args)[self.old] = value
        else:
            setattr(args, self.new, self.read(value))


class Sets(NamedTuple):
    """An argument that is gone and sets another one: ``to`` a value, or to what a function makes of the older value.

    The function also gets the value of the other argument so far, and all arguments.
    """

    successor: str
    to: str | Callable[[Any, Any, Any], object]


class Honoured(NamedTuple):
    """An argument that is gone and still has its effect, and what has the same effect today."""

    today: str


class Ignored(NamedTuple):
    """An argument that is gone and has no effect, and why."""

    reason: str


class Refused(NamedTuple):
    """An argument that is gone and raises an error, or ``only`` one value does, and what to do instead."""

    replacement: str
    only: str | None = None


def _warmup_steps(ratio: float) -> float:
    if not 0 <= ratio <= 1:
        raise InputError(
            f"`warmup_ratio={ratio}` is not a fraction of a run; set `warmup_steps` to a number from 0 to 1."
        )
    # Below one, `warmup_steps` is a fraction of the run; one is a single step (`TrainingArguments.get_warmup_steps`).
    return math.nextafter(1.0, 0.0) if ratio == 1 else ratio


def _entry(key: str) -> Callable[[Any, Any, Any], object]:
    def combine(value: object, current: Any, args: object) -> dict[str, Any]:
        if isinstance(current, str):
            raise InputError(
                f"A retired argument belongs in the configuration that {current!r} names; write it there instead."
            )
        return {key: value, **(current.to_dict() if hasattr(current, "to_dict") else current or {})}

    return combine


def _unset(default: _Default) -> _Default:
    return field(default=default, repr=False, metadata={"help": "Deprecated, of transformers 4."})


# ---- The table ----

_NO_APEX = Refused("set `fp16=True` or `precision`, which torch runs without apex", only="apex")
_CASTING = Ignored("Lightning casts; its `precision` chooses how")


@dataclass
class OlderArguments:
    """The older arguments. Those that are gone keep their values: scripts for transformers 4 read them back.

    Mixed in before the class of transformers, whose own checks must see the arguments that replace them.
    """

    evaluation_strategy = Renamed("eval_strategy", unset="no")
    no_cuda = Renamed("use_cpu", unset=False)
    per_gpu_eval_batch_size = Renamed("per_device_eval_batch_size")
    per_gpu_train_batch_size = Renamed("per_device_train_batch_size")
    push_to_hub_model_id = Renamed("hub_model_id")
    push_to_hub_token = Renamed("hub_token")
    torchdynamo = Renamed("torch_compile_backend")
    warmup_ratio = Renamed("warmup_steps", unset=0, convert=_warmup_steps)
    xpu_backend = Renamed("ddp_backend")

    adafactor: Annotated[bool, Sets("optim", "adafactor")] = _unset(False)
    dispatch_batches: Annotated[bool | None, Sets("accelerator_config", _entry("dispatch_batches"))] = _unset(None)
    fp16_backend: Annotated[str, _NO_APEX, _CASTING] = _unset("auto")  # of two rows, each applies in turn
    fp16_opt_level: Annotated[str, Ignored("it belonged to apex; `precision` chooses how much is cast")] = _unset("O1")
    fsdp_min_num_params: Annotated[int, Sets("fsdp_config", _entry("min_num_params"))] = _unset(0)
    fsdp_transformer_layer_cls_to_wrap: Annotated[
        str | None, Sets("fsdp_config", _entry("transformer_layer_cls_to_wrap"))
    ] = _unset(None)
    group_by_length: Annotated[bool, Sets("train_sampling_strategy", "group_by_length")] = _unset(False)
    half_precision_backend: Annotated[str, _NO_APEX, _CASTING] = _unset("auto")
    include_inputs_for_metrics: Annotated[
        bool, Sets("include_for_metrics", lambda value, current, args: [*current, *{"inputs"}.difference(current)])
    ] = _unset(False)
    include_tokens_per_second: Annotated[
        bool, Ignored("use `include_num_input_tokens_seen`, which also logs tokens per second")
    ] = _unset(False)
    jit_mode_eval: Annotated[bool, Ignored("use `torch_compile`")] = _unset(False)
    logging_dir: Annotated[str | None, Honoured("set the environment variable TENSORBOARD_LOGGING_DIR")] = _unset(None)
    mp_parameters: Annotated[str, Ignored("it belonged to SageMaker's launcher")] = _unset("")
    overwrite_output_dir: Annotated[bool, Ignored("a run never deletes what its output folder holds")] = _unset(False)
    past_index: Annotated[int, Refused("carry states between batches in a `training_step` of your own")] = _unset(-1)
    push_to_hub_organization: Annotated[
        str | None,
        Sets("hub_model_id", lambda value, current, args: f"{value}/{Path(current or args.output_dir).name}"),
    ] = _unset(None)
    ray_scope: Annotated[str | None, Ignored("set the environment variable RAY_SCOPE")] = _unset("last")
    save_safetensors: Annotated[bool, Ignored("weights are always saved as safetensors")] = _unset(True)
    sharded_ddp: Annotated[str, Refused("set `strategy='fsdp'`")] = _unset("")
    split_batches: Annotated[bool | None, Sets("accelerator_config", _entry("split_batches"))] = _unset(None)
    tpu_metrics_debug: Annotated[
        bool, Sets("debug", lambda value, current, args: f"{current or ''} tpu_metrics_debug".strip())
    ] = _unset(False)
    tpu_num_cores: Annotated[int | None, Ignored("use `accelerator` and `devices`")] = _unset(None)
    use_ipex: Annotated[bool, Ignored("use `torch_compile`")] = _unset(False)
    use_legacy_prediction_loop: Annotated[
        bool, Honoured("override `evaluation_loop` instead of `prediction_loop`")
    ] = _unset(False)
    use_mps_device: Annotated[bool, Ignored("`mps` is used where it is available")] = _unset(False)

    def __post_init__(self) -> None:
        for older in dataclasses.fields(OlderArguments):
            value = getattr(self, older.name)
            if value not in (older.default, None):
                self._read_removed(older.name, value)
        super().__post_init__()  # type: ignore[misc]

    def _read_removed(self, name: str, value: object) -> None:
        """Do what the table says about an argument that was set, with one warning."""
        will_go = f"will be removed in {_REMOVED_IN}"
        for row in REMOVED[name]:
            match row:
                case Sets(successor, to):
                    new = self._set_successor(successor, to, name, value)
                    warn_of_old_spelling(f"`{name}` is deprecated and {will_go}; it now sets `{successor}={new!r}`.")
                case Honoured(today):
                    warn_of_old_spelling(f"`{name}` is deprecated and {will_go}; {today}.")
                case Ignored(reason):
                    warn_of_old_spelling(f"`{name}` has no effect any more and {will_go}: {reason}.")
                case Refused(replacement, only) if only in (None, value):
                    raise InputError(f"`{name}={value!r}` is no longer supported; {replacement} instead.")

    def _set_successor(self, successor: str, to: Any, name: str, value: object) -> object:
        current = getattr(self, successor)
        new = to(value, current, self) if callable(to) else to
        if not callable(to) and current not in (self.__dataclass_fields__[successor].default, new):
            raise InputError(
                f"`{successor}={current!r}` and `{name}={value!r}` contradict each other; give only `{successor}`."
            )
        setattr(self, successor, new)
        return new


RENAMED: Mapping[str, Renamed] = {name: row for name, row in vars(OlderArguments).items() if isinstance(row, Renamed)}
REMOVED: Mapping[str, tuple[Sets | Honoured | Ignored | Refused, ...]] = {
    name: get_args(row)[1:] for name, row in get_type_hints(OlderArguments, include_extras=True).items()
}


# ---- Where renamed arguments come in ----


def current_arguments(given: Mapping[str, Any], *, own: Collection[str] = ()) -> dict[str, Any]:
    """Return ``given`` under the current names, with a warning for each older one; refuse two names that differ.

    The names in ``own`` are current ones, whatever they were before.
    """
    present = {name: value for name, value in given.items() if name not in RENAMED or name in own}
    for old, row in RENAMED.items():
        if given.get(old) is None or old in own:
            continue
        value, new = row.read(given[old]), row.new
        if present.get(new) is None:
            present[new] = value
        elif value not in (present[new], row.unset):
            raise InputError(
                f"`{new}={present[new]!r}` and `{old}={given[old]!r}` are two spellings of one argument and differ; "
                f"give only `{new}`."
            )
    return present


class _StoreOption(argparse.Action):
    """Stores the value of an option, whether it was given by its current or by its older name."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: object, option: str | None = None
    ) -> None:
        row = RENAMED.get((option or "").lstrip("-").replace("-", "_"))
        setattr(namespace, self.dest, values if row is None else row.read(values, prefix="--"))


class AcceptsOlderNames(type):
    """Metaclass of training arguments whose constructor and options take the older names as well.

    Where a subclass has a field with an older name, the name means that field. Overriding ``__init__`` would not be
    enough: every dataclass that a user derives gets a generated one.
    """

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> None:
        super().__init__(name, bases, namespace)
        own = cls.__annotations__
        inherited = ChainMap(*(getattr(base, "__dataclass_fields__", {}) for base in bases))
        taken = set(own).union(*map(_field_names, bases))
        for old, row in RENAMED.items():
            new = row.new
            aliases = [] if old in taken else [f"--{old}", f"--{old.replace('_', '-')}"]
            if new not in own and aliases != inherited[new].metadata.get("aliases"):
                # `HfArgumentParser` passes a field's metadata to `argparse`.
                metadata = {**inherited[new].metadata, "aliases": aliases, "action": _StoreOption}
                own[new] = get_type_hints(HFTrainingArguments)[new]
                setattr(cls, new, field(default=inherited[new].default, metadata=metadata))

    def __call__(cls, *args: object, **kwargs: object) -> Any:
        given = current_arguments(kwargs, own=_field_names(cls))
        parameters = cls.__signature__.parameters
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            refuse_unknown_arguments(cls, given, parameters)
        return super().__call__(*args, **given)

    @property
    def __signature__(cls) -> inspect.Signature:
        # `inspect` would otherwise find the signature of `__call__`.
        signature = inspect.signature(cls.__init__)  # type: ignore[misc]
        return signature.replace(parameters=list(signature.parameters.values())[1:])


def _field_names(cls: type) -> Collection[str]:
    return {entry.name for entry in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else ()


class HfArgumentParser(transformers.HfArgumentParser):
    """``transformers.HfArgumentParser`` that also accepts older names in dicts and files.

    On a command line the parser of transformers accepts them too; in a dict, JSON and YAML it looks for the current
    names only.
    """

    def parse_dict(self, args: dict[str, Any], allow_extra_keys: bool = False) -> tuple[Any, ...]:
        """Return an instance of each dataclass, made from ``args``."""
        if any(isinstance(kind, AcceptsOlderNames) for kind in self.dataclass_types):
            args = current_arguments(args, own={name for kind in self.dataclass_types for name in _field_names(kind)})
        return super().parse_dict(args, allow_extra_keys=allow_extra_keys)


# ---- Members of the trainer, which subclasses written for transformers 4 call and override ----


def _get_processing_class(self: Any) -> Any:
    warn_of_old_name("Trainer.tokenizer", "Trainer.processing_class")
    return self.processing_class


def _set_processing_class(self: Any, tokenizer: "ProcessingClass | None") -> None:
    warn_of_old_name("Trainer.tokenizer", "Trainer.processing_class")
    self.processing_class = tokenizer


tokenizer = property(_get_processing_class, _set_processing_class)


def prediction_loop(
    self: Any,
    dataloader: "Loader",
    description: str,
    prediction_loss_only: bool | None = None,
    ignore_keys: list[str] | None = None,
    metric_key_prefix: str = "eval",
) -> EvalLoopOutput:
    """Run ``evaluation_loop``; a subclass that overrides this sets ``use_legacy_prediction_loop=True``."""
    warn_of_old_name("Trainer.prediction_loop", "Trainer.evaluation_loop")
    return self.evaluation_loop(dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix)


def init_git_repo(self: Any, at_init: bool = False) -> None:
    """Create the repository on the hub; there is no local clone."""
    warn_of_old_name("Trainer.init_git_repo", "Trainer.init_hf_repo")
    self.init_hf_repo()


def nested_gather(self: Any, tensors: "Nested | None", name: str | None = None) -> Any:
    return None if tensors is None else self.accelerator.gather(tensors)


def pad_across_processes(self: Any, tensor: "Nested", pad_index: int = -100) -> Any:
    return self.accelerator.pad_across_processes(tensor, dim=1, pad_index=pad_index)


def gather_and_numpify(self: Any, tensors: "Nested | None", name: str) -> Any:
    return None if tensors is None else nested_numpify(self._nested_gather(tensors, name))


def sorted_checkpoints(
    self: Any, output_dir: str | None = None, checkpoint_prefix: str = "checkpoint", use_mtime: bool = False
) -> list[str]:
    return sort_checkpoints(
        output_dir=output_dir or self.args.output_dir,
        checkpoint_prefix=checkpoint_prefix,
        use_mtime=use_mtime,
        best_model_checkpoint=self.state.best_model_checkpoint,
    )


def newer_processing_class(processing_class: "ProcessingClass | None", tokenizer: "ProcessingClass | None") -> Any:
    """Return ``processing_class``, or ``tokenizer``, its older spelling; refuse two different objects."""
    if tokenizer is None:
        return processing_class
    warn_of_old_name("tokenizer", "processing_class")
    if processing_class is not None and processing_class is not tokenizer:
        raise InputError(
            "`processing_class` and `tokenizer` are two spellings of one argument, and different objects were given; "
            "give only `processing_class`."
        )
    return tokenizer
