"""Deprecated spellings of transformers 4 that are still accepted: names of arguments, signatures, method names.

Everything here is removed in portico 2, one major version after transformers 5. Each use raises one ``FutureWarning``
that names the current spelling.
"""

import argparse
import dataclasses
import functools
import inspect
import math
import sys
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeAlias, TypeVar, get_type_hints

import transformers

from portico.compat.transformers import EvalLoopOutput, HFTrainingArguments, nested_numpify, sort_checkpoints
from portico.errors import InputError, InputTypeError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from portico.compat.annotations import Batch, ComputeMetrics, Loader, Nested, ProcessingClass

_REMOVED_IN = "portico 2"
_LIBRARIES = ("portico", "transformers", "dataclasses", "argparse")


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


# ---- Names of arguments ----

RENAMED: Mapping[str, str] = {
    "evaluation_strategy": "eval_strategy",
    "no_cuda": "use_cpu",
    "per_gpu_eval_batch_size": "per_device_eval_batch_size",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "push_to_hub_model_id": "hub_model_id",
    "push_to_hub_token": "hub_token",
    "torchdynamo": "torch_compile_backend",
    "warmup_ratio": "warmup_steps",
    "xpu_backend": "ddp_backend",
}

# Defaults of the older names: files of arguments that an older version wrote contain all of them.
_UNSET: Mapping[str, Any] = {"evaluation_strategy": "no", "no_cuda": False, "warmup_ratio": 0}

_Class = TypeVar("_Class", bound=type)
_Default = TypeVar("_Default")
_Instance = TypeVar("_Instance")
_P = ParamSpec("_P")


def _field_names(cls: type) -> Collection[str]:
    return {one.name for one in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else ()


class AcceptsOldNames(type):
    """Metaclass of training arguments whose constructor takes older names, except those a subclass has as fields.

    Overriding ``__init__`` would not be enough: every dataclass that a user derives gets a generated one.
    """

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> None:
        super().__init__(name, bases, namespace)
        annotations, inherited = namespace.get("__annotations__", {}), getattr(cls, "__dataclass_fields__", {})
        for old, new in RENAMED.items():
            if old in annotations and new in inherited and new not in annotations:
                # Again without the older name as an option, which parsers would take for an option of the new field.
                annotations[new] = inherited[new].type
                metadata = {"help": inherited[new].metadata.get("help")}
                setattr(cls, new, dataclasses.field(default=inherited[new].default, metadata=metadata))

    def __call__(cls, *args: object, **kwargs: object) -> Any:
        given = present_names(kwargs, own=_field_names(cls))
        parameters = cls.__signature__.parameters
        if not any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
            refuse_unknown_arguments(cls, given, parameters)
        return super().__call__(*args, **given)

    @property
    def __signature__(cls) -> inspect.Signature:
        # `inspect` would otherwise find the signature of `__call__`.
        signature = inspect.signature(cls.__init__)  # type: ignore[misc]
        return signature.replace(parameters=list(signature.parameters.values())[1:])


# Common names of arguments that have another name here, and are not spelled like it.
_MEANT = {
    "accumulate_grad_batches": "gradient_accumulation_steps",
    "gradient_clip_val": "max_grad_norm",
    "lr": "learning_rate",
    "optimizer": "optim",
    "scheduler": "lr_scheduler_type",
}
# Training arguments of portico, whose module imports this one.
_PLACEMENT = ("accelerator", "strategy", "devices", "num_nodes", "precision")


def refuse_unknown_arguments(cls: type, given: Collection[str], known: Collection[str]) -> None:
    """Refuse names in ``given`` that are none of the ``known`` arguments of ``cls``, and say which may be meant."""
    for unknown in given:
        if unknown not in known:
            raise InputTypeError(
                f"`{cls.__name__}` has no argument `{unknown}`{_meant(unknown, known)} Give one of those that "
                f"`help({cls.__name__})` lists."
            )


def _meant(unknown: str, known: Collection[str]) -> str:
    usual = _MEANT.get(unknown, unknown)
    containing = [name for name in known if unknown in name]
    nearest = [usual] if usual in known else (containing or get_close_matches(unknown, known))[:3]
    in_arguments = usual in HFTrainingArguments.__dataclass_fields__ or usual in _PLACEMENT
    if "args" in known and in_arguments and (usual == unknown or not nearest):
        return f"; did you mean `args=TrainingArguments({usual}=...)`?"
    return f"; did you mean {' or '.join(f'`{name}`' for name in nearest)}?" if nearest else "."


def names_unknown_arguments(
    constructor: Callable[Concatenate[_Instance, _P], None],
) -> Callable[Concatenate[_Instance, _P], None]:
    """Decorate the ``__init__`` of a trainer to answer an unknown argument with the arguments that may be meant.

    Subclasses that pass arguments on get this answer instead of Python's ``TypeError`` too, since they call it.
    """
    own = inspect.signature(constructor).parameters

    @functools.wraps(constructor)
    def checked(instance: _Instance, /, *args: _P.args, **kwargs: _P.kwargs) -> None:
        unknown = [name for name in kwargs if name not in own]
        if unknown:
            inits = [vars(one)["__init__"] for one in type(instance).__mro__[:-1] if "__init__" in vars(one)]
            parameters = [one for init in inits for one in inspect.signature(init).parameters.values()]
            known = {one.name: None for one in parameters if one.kind not in _CATCH_ALL and one.name != "self"}
            refuse_unknown_arguments(type(instance), unknown, known)
        constructor(instance, *args, **kwargs)

    return checked


def present_names(given: Mapping[str, Any], *, own: Collection[str] = ()) -> dict[str, Any]:
    """Return ``given`` under the current names, with a warning for each older one; refuse two names that differ.

    The names in ``own`` are current ones, whatever they were before.
    """
    present = {name: value for name, value in given.items() if name not in RENAMED or name in own}
    for old, new in RENAMED.items():
        if given.get(old) is None or old in own:
            continue
        warn_of_old_name(old, new)
        value = _warmup_steps(given[old]) if old == "warmup_ratio" else given[old]
        if new not in present or present[new] is None:
            present[new] = value
        elif value not in (present[new], _UNSET.get(old)):
            raise InputError(
                f"`{new}={present[new]!r}` and `{old}={given[old]!r}` are two spellings of one argument and differ; "
                f"give only `{new}`."
            )
    return present


def _warmup_steps(ratio: float) -> float:
    if not 0 <= ratio <= 1:
        raise InputError(
            f"`warmup_ratio={ratio}` is not a fraction of a run; set `warmup_steps` to a number from 0 to 1."
        )
    # Below one, `warmup_steps` is a fraction of the run; one is a single step (`TrainingArguments.get_warmup_steps`).
    return math.nextafter(1.0, 0.0) if ratio == 1 else ratio


class _OldName:
    """An attribute that reads and writes another one, except where a subclass has a field of its name."""

    def __init__(self, old: str, new: str) -> None:
        self.old, self.new = old, new

    def __get__(self, instance: "DataclassInstance | None", owner: type) -> Any:
        if instance is None:
            return self
        return instance.__dict__[self.old] if self.old in instance.__dict__ else getattr(instance, self.new)

    def __set__(self, instance: "DataclassInstance", value: object) -> None:
        if self.old in _field_names(type(instance)):
            instance.__dict__[self.old] = value
            return
        warn_of_old_name(self.old, self.new)
        setattr(instance, self.new, value)


class _StoreEitherName(argparse.Action):
    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: object, option: str | None = None
    ) -> None:
        old = (option or "").lstrip("-").replace("-", "_")
        if old in RENAMED:
            warn_of_old_name(f"--{old}", f"--{self.dest}")
            if old == "warmup_ratio" and isinstance(values, float):
                values = _warmup_steps(values)
        setattr(namespace, self.dest, values)


def with_old_names(cls: _Class) -> _Class:
    """Add the older names of fields to training arguments, before ``@dataclass`` is applied.

    Instances get them as attributes, and parsers as options.
    """
    hints = get_type_hints(HFTrainingArguments)
    fields = {field.name: field for field in dataclasses.fields(HFTrainingArguments)}
    cls.__annotations__ = dict(cls.__annotations__)
    for old, new in RENAMED.items():
        setattr(cls, old, _OldName(old, new))
        # `HfArgumentParser` passes a field's metadata to `argparse`.
        options = {"aliases": [f"--{old}", f"--{old.replace('_', '-')}"], "action": _StoreEitherName}
        metadata = {**fields[new].metadata, **options}
        cls.__annotations__[new] = hints[new]
        setattr(cls, new, dataclasses.field(default=fields[new].default, metadata=metadata))
    return cls


class HfArgumentParser(transformers.HfArgumentParser):
    """``transformers.HfArgumentParser`` that also accepts older names in dicts and files.

    On a command line the parser of transformers accepts them too; in a dict, JSON and YAML it looks for the current
    names only.
    """

    def parse_dict(self, args: dict[str, Any], allow_extra_keys: bool = False) -> tuple[Any, ...]:
        """Return an instance of each dataclass, made from ``args``."""
        if any(isinstance(kind, AcceptsOldNames) for kind in self.dataclass_types):
            args = present_names(args, own={name for kind in self.dataclass_types for name in _field_names(kind)})
        return super().parse_dict(args, allow_extra_keys=allow_extra_keys)


# ---- Retired arguments ----


# Makes the value of the current argument from the retired value, the current value so far, and all arguments.
_Combine: TypeAlias = Callable[[object, Any, Any], Any]


def _entry(key: str) -> _Combine:
    def combine(retired: object, current: Any, args: object) -> dict[str, Any]:
        if isinstance(current, str):
            raise InputError(
                f"A retired argument belongs in the configuration that {current!r} names; write it there instead."
            )
        return {key: retired, **(current.to_dict() if hasattr(current, "to_dict") else current or {})}

    return combine


# The current argument, and the value it is set to or a function that adds to its value.
_SUCCESSORS: Mapping[str, tuple[str, str | _Combine]] = {
    "adafactor": ("optim", "adafactor"),
    "dispatch_batches": ("accelerator_config", _entry("dispatch_batches")),
    "fsdp_min_num_params": ("fsdp_config", _entry("min_num_params")),
    "fsdp_transformer_layer_cls_to_wrap": ("fsdp_config", _entry("transformer_layer_cls_to_wrap")),
    "group_by_length": ("train_sampling_strategy", "group_by_length"),
    "include_inputs_for_metrics": (
        "include_for_metrics",
        lambda retired, current, args: [*current, *{"inputs"}.difference(current)],
    ),
    "push_to_hub_organization": (
        "hub_model_id",
        lambda owner, current, args: f"{owner}/{Path(current or args.output_dir).name}",
    ),
    "split_batches": ("accelerator_config", _entry("split_batches")),
    "tpu_metrics_debug": ("debug", lambda retired, current, args: f"{current or ''} tpu_metrics_debug".strip()),
}

_HONOURED: Mapping[str, str] = {
    "logging_dir": "set the environment variable TENSORBOARD_LOGGING_DIR",
    "use_legacy_prediction_loop": "override `evaluation_loop` instead of `prediction_loop`",
}

_WITHOUT_EFFECT: Mapping[str, str] = {
    "fp16_backend": "Lightning casts; its `precision` chooses how",
    "fp16_opt_level": "it belonged to apex; `precision` chooses how much is cast",
    "half_precision_backend": "Lightning casts; its `precision` chooses how",
    "include_tokens_per_second": "use `include_num_input_tokens_seen`, which also logs tokens per second",
    "jit_mode_eval": "use `torch_compile`",
    "mp_parameters": "it belonged to SageMaker's launcher",
    "overwrite_output_dir": "a run never deletes what its output folder holds",
    "ray_scope": "set the environment variable RAY_SCOPE",
    "save_safetensors": "weights are always saved as safetensors",
    "tpu_num_cores": "use `accelerator` and `devices`",
    "use_ipex": "use `torch_compile`",
    "use_mps_device": "`mps` is used where it is available",
}

# The refused value (`None`: every value), and what to do instead.
_APEX = ("apex", "set `fp16=True` or `precision`, which torch runs without apex")
_REFUSED: Mapping[str, tuple[str | None, str]] = {
    "fp16_backend": _APEX,
    "half_precision_backend": _APEX,
    "past_index": (None, "carry states between batches in a `training_step` of your own"),
    "sharded_ddp": (None, "set `strategy='fsdp'`"),
}


def _retired(default: _Default) -> _Default:
    return field(default=default, repr=False, metadata={"help": "Deprecated, of transformers 4."})


@dataclass
class RetiredArguments:
    """The retired arguments, which keep their values: scripts for ``transformers`` 4 read them back.

    Mixed in before the class of ``transformers``, whose own checks must see the arguments that replace them.
    """

    adafactor: bool = _retired(False)
    dispatch_batches: bool | None = _retired(None)
    fp16_backend: str = _retired("auto")
    fp16_opt_level: str = _retired("O1")
    fsdp_min_num_params: int = _retired(0)
    fsdp_transformer_layer_cls_to_wrap: str | None = _retired(None)
    group_by_length: bool = _retired(False)
    half_precision_backend: str = _retired("auto")
    include_inputs_for_metrics: bool = _retired(False)
    include_tokens_per_second: bool = _retired(False)
    jit_mode_eval: bool = _retired(False)
    logging_dir: str | None = _retired(None)
    mp_parameters: str = _retired("")
    overwrite_output_dir: bool = _retired(False)
    past_index: int = _retired(-1)
    push_to_hub_organization: str | None = _retired(None)
    ray_scope: str | None = _retired("last")
    save_safetensors: bool = _retired(True)
    sharded_ddp: str = _retired("")
    split_batches: bool | None = _retired(None)
    tpu_metrics_debug: bool = _retired(False)
    tpu_num_cores: int | None = _retired(None)
    use_ipex: bool = _retired(False)
    use_legacy_prediction_loop: bool = _retired(False)
    use_mps_device: bool = _retired(False)

    def __post_init__(self) -> None:
        for one in dataclasses.fields(RetiredArguments):
            value = getattr(self, one.name)
            if value not in (one.default, None):
                self._apply_retired(one.name, value)
        super().__post_init__()  # type: ignore[misc]

    def _apply_retired(self, name: str, value: object) -> None:
        """Apply an argument that was set, with one warning, or refuse it."""
        if name in _REFUSED and _REFUSED[name][0] in (None, value):
            replacement = _REFUSED[name][1]
            raise InputError(f"`{name}={value!r}` is no longer supported; {replacement} instead.")
        if name in _WITHOUT_EFFECT:
            warn_of_old_spelling(
                f"`{name}` has no effect any more and will be removed in {_REMOVED_IN}: {_WITHOUT_EFFECT[name]}."
            )
            return
        consequence = _HONOURED[name] if name in _HONOURED else self._pass_on(name, value)
        warn_of_old_spelling(f"`{name}` is deprecated and will be removed in {_REMOVED_IN}; {consequence}.")

    def _pass_on(self, name: str, value: object) -> str:
        """Set the argument that replaced a retired one, and return a clause that says so."""
        successor, new = _SUCCESSORS[name]
        current = getattr(self, successor)
        if callable(new):
            new = new(value, current, self)
        elif current not in (next(one.default for one in dataclasses.fields(self) if one.name == successor), new):
            raise InputError(
                f"`{successor}={current!r}` and `{name}={value!r}` contradict each other; give only `{successor}`."
            )
        setattr(self, successor, new)
        return f"it now sets `{successor}={new!r}`"


def retired_treatments() -> dict[str, str]:
    """Return what happens to each retired argument, by name: a clause for the documentation."""
    return {
        **{name: f"passed on as `{successor}`" for name, (successor, _) in _SUCCESSORS.items()},
        **{name: f"honoured (today: {instead})" for name, instead in _HONOURED.items()},
        **{name: f"refused; {instead} instead" for name, (_, instead) in _REFUSED.items()},
        # Last: some of these arguments have only one refused value.
        **{name: f"none (announced): {why}" for name, why in _WITHOUT_EFFECT.items()},
    }


# ---- Signatures ----


_ADVICE = "transformers 5 takes `compute_loss_func` before `compute_metrics`; give these and the rest by keyword."


def refuse_old_order(compute_metrics: "ComputeMetrics | None") -> None:
    """Refuse positional arguments in the order of transformers 4, with ``callbacks`` as ``compute_metrics``.

    A ``compute_metrics`` in the position of ``compute_loss_func`` is explained when its call fails.
    """
    if isinstance(compute_metrics, list) and any(hasattr(item, "on_init_end") for item in compute_metrics):
        raise InputTypeError(f"`compute_metrics` is a list of callbacks: {_ADVICE}")


# Arguments added to hooks between transformers 4.2 and 5.
_ADDED_ARGUMENTS = {
    "_get_train_sampler": {"train_dataset"},
    "_maybe_log_save_evaluate": {"grad_norm", "start_time", "learning_rate"},
    "compute_loss": {"return_outputs", "num_items_in_batch"},
    "evaluate": {"ignore_keys"},
    "get_batch_samples": {"device"},
    "log": {"start_time"},
    "prediction_step": {"ignore_keys"},
    "save_model": {"_internal_call"},
    "training_step": {"num_items_in_batch"},
}
_CATCH_ALL = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
LEFT_OUT = "_left_out_arguments"
"""Attribute of an adapted override: the arguments that it is called without."""


def adapt_overrides(subclass: type, trainer_class: type) -> None:
    """Wrap hooks of ``subclass`` with an older signature so that ``trainer_class`` can call them with the current one.

    Each is announced once, with the signature to give it.
    """
    for hook, added in _ADDED_ARGUMENTS.items():
        override, current = getattr(subclass, hook), inspect.signature(getattr(trainer_class, hook))
        names = list(current.parameters)
        missing = _left_out(added, override, names)
        if missing and not hasattr(override, LEFT_OUT):
            bare = current.replace(
                parameters=[one.replace(annotation=one.empty) for one in current.parameters.values()],
                return_annotation=inspect.Signature.empty,
            )
            warnings.warn(
                f"`{subclass.__name__}.{hook}` does not take {', '.join(f'`{name}`' for name in sorted(missing))}, as "
                f"in older versions of transformers; it is called without. Give it the signature `{hook}{bare}`.",
                FutureWarning,
                stacklevel=3,
            )
            adapted = _called_without(missing, override, names)
            setattr(subclass, hook, _with_outputs(adapted) if "return_outputs" in missing else adapted)


def _left_out(added: set[str], override: Callable[..., Any], current: list[str]) -> set[str]:
    parameters = inspect.signature(override).parameters.values()
    if any(parameter.kind in _CATCH_ALL for parameter in parameters):
        return set()
    names = [parameter.name for parameter in parameters]
    # An unknown name in the position of a known argument is that argument, renamed by the user.
    renamed = {known for known, own in zip(current, names, strict=False) if own not in current}
    return added - set(names) - renamed


def _called_without(missing: set[str], override: Callable[..., Any], names: list[str]) -> Callable[..., Any]:
    @functools.wraps(override)
    def adapted(*args: object, **kwargs: object) -> Any:
        kept = [value for name, value in zip(names, args, strict=False) if name not in missing]
        named = {name: value for name, value in kwargs.items() if name not in missing}
        return override(*kept, *args[len(names) :], **named)

    setattr(adapted, LEFT_OUT, frozenset(missing))
    return adapted


def _with_outputs(compute_loss: Callable[..., Any]) -> Callable[..., Any]:
    """Let an override for transformers before 4.2, which returns only the loss, return the model's outputs too."""

    @functools.wraps(compute_loss)
    def adapted(
        trainer: object, model: Any, inputs: "Batch", return_outputs: bool = False, *args: object, **kwargs: object
    ) -> Any:
        # First: the override may take labels out of the inputs.
        outputs = model(**inputs) if return_outputs else None
        loss = compute_loss(trainer, model, inputs, return_outputs, *args, **kwargs)
        return (loss, outputs) if return_outputs else loss

    return adapted


# ---- Names of methods and parts ----


def with_older_names(trainer_class: _Class) -> _Class:
    """Decorate the trainer: give it the members of :class:`_OlderTrainerNames`."""
    for name, member in vars(_OlderTrainerNames).items():
        if not name.startswith("__"):
            setattr(trainer_class, name, member)
    return trainer_class


class _OlderTrainerNames:
    """Members of a trainer that scripts and subclasses written for transformers 4 use.

    ``training_step`` overrides copied from transformers 4.31 read the flags; here mixed precision is Lightning's, so
    they are never set.
    """

    do_grad_scaling = use_apex = use_cuda_amp = use_cpu_amp = False
    sharded_ddp = None

    @property
    def tokenizer(self) -> Any:
        warn_of_old_name("Trainer.tokenizer", "Trainer.processing_class")
        return self.processing_class

    @tokenizer.setter
    def tokenizer(self, tokenizer: "ProcessingClass | None") -> None:
        warn_of_old_name("Trainer.tokenizer", "Trainer.processing_class")
        self.processing_class = tokenizer

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

    def _nested_gather(self: Any, tensors: "Nested | None", name: str | None = None) -> Any:
        return None if tensors is None else self.accelerator.gather(tensors)

    def _pad_across_processes(self: Any, tensor: "Nested", pad_index: int = -100) -> Any:
        return self.accelerator.pad_across_processes(tensor, dim=1, pad_index=pad_index)

    def _gather_and_numpify(self, tensors: "Nested | None", name: str) -> Any:
        return None if tensors is None else nested_numpify(self._nested_gather(tensors, name))

    def _sorted_checkpoints(
        self: Any,
        output_dir: str | None = None,
        checkpoint_prefix: str = "checkpoint",
        use_mtime: bool = False,
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
