"""The attributes of an ``IPUConfig``: what each may be, and what it is by default."""

import copy
import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import torch
from transformers.utils.hub import cached_file

from portico.errors import InputError
from portico.ipu import backend
from portico.old_spellings.warning import warn_of_old_spelling


class IncompatibleIPUConfigError(InputError):
    """Attributes of an ``IPUConfig`` do not go together, or do not fit the model."""


OUTPUT_MODES = ("all", "sum", "final", "default")
_TRUE = ("true", "t", "1", "yes", "y", "on")
_FALSE = ("false", "f", "0", "no", "n", "off")


@dataclass(frozen=True)
class Attribute:
    """What an attribute may be.

    Args:
        kinds: Among ``int``, ``float``, ``bool``, ``str``, ``dict``, ``list[int]``, ``list[float]``, ``None``.
        default: Its value when nothing is said.
        least: Smallest number, also in a list.
        check: Raises for what else cannot be.
    """

    kinds: tuple[Any, ...]
    default: Any = None
    least: float | None = None
    check: Callable[[str, Any], None] | None = None

    def validate(self, name: str, value: Any) -> None:
        """Refuse a value.

        Raises:
            TypeError: If it is of another type.
            ValueError: If it is too small, or no such choice.
        """
        if not any(_is_of(value, kind) for kind in self.kinds):
            allowed = " or ".join(_word(kind) for kind in self.kinds)
            raise TypeError(
                f"Setting `IPUConfig` attribute: `{name}` to {value!r} of type {type(value).__name__} failed; it has "
                f"to be {allowed}."
            )
        if value is None:
            return
        if self.least is not None and isinstance(value, list):
            if any(item < self.least for item in value):
                raise ValueError(f"`IPUConfig` attribute `{name}` must have all elements >= {self.least}: {value}.")
        elif self.least is not None and value < self.least:
            raise ValueError(f"`IPUConfig` attribute `{name}` must be >= {self.least}; got {value}.")
        if self.check is not None:
            self.check(name, value)

    def parse(self, name: str, text: str) -> Any:
        """Read a value from a text such as ``4``, ``true`` or ``[1 2]``, by the types the attribute may have.

        Raises:
            ValueError: If it can be read as none of them.
        """
        for kind in sorted(self.kinds, key=_PARSERS.index):
            try:
                return _parse(text.strip(), kind)
            except ValueError:
                continue
        allowed = " or ".join(_word(kind) for kind in self.kinds)
        raise ValueError(f"`{text}` cannot be read as the value of `{name}`, which has to be {allowed}.")


def _check_output_mode(name: str, value: str) -> None:
    if value not in OUTPUT_MODES:
        raise ValueError(f"`IPUConfig` attribute `{name}` must be one of {', '.join(OUTPUT_MODES)}; got {value!r}.")


def _check_splits(name: str, value: list[int]) -> None:
    used = [index for index, splits in enumerate(value) if splits]
    if not used:
        raise ValueError(f"`IPUConfig` attribute `{name}` must have atleast 1 split; got {value}.")
    if used != list(range(used[0], used[-1] + 1)):
        raise ValueError(f"`IPUConfig` attribute `{name}` must have its splits on consecutive IPUs; got {value}.")


_COUNT = Attribute((int,), 1, 1)
_SWITCH = Attribute((bool,), False)
_FACTOR = Attribute((int, None), None, 1)
_SPLITS = Attribute((list[int], None), None, 0, _check_splits)
_KWARGS = Attribute((dict, None), None)

# An attribute with a twin has another value for inference, under the name `inference_<name>`.
TWINS: Mapping[str, Attribute] = {
    "layers_per_ipu": Attribute((list[int],), [-1], -1),
    "ipus_per_replica": Attribute((int,), None, 1),
    "matmul_proportion": Attribute((float, list[float]), 0.2, 0),
    "replication_factor": _COUNT,
    "device_iterations": _COUNT,
    "gradient_accumulation_steps": _COUNT,
    "embedding_serialization_factor": _FACTOR,
    "serialized_embedding_splits_per_ipu": _SPLITS,
    "projection_serialization_factor": _FACTOR,
    "serialized_projection_splits_per_ipu": _SPLITS,
    "parallelize_kwargs": _KWARGS,
}
# Inference never accumulates, so there is nothing to set.
_WITHOUT_INFERENCE_VALUE = ("gradient_accumulation_steps",)
SINGLE: Mapping[str, Attribute] = {
    "optimizer_state_offchip": _SWITCH,
    "replicated_tensor_sharding": _SWITCH,
    "enable_half_partials": Attribute((bool,), True),
    "recompute_checkpoint_every_layer": _SWITCH,
    "output_mode": Attribute((str,), "final", check=_check_output_mode),
    "seed": Attribute((int, None)),
    "auto_loss_scaling": _SWITCH,
    "executable_cache_dir": Attribute((str,), ""),
    "explicit_ir_inference": _SWITCH,
    "execute_encoder_on_cpu_for_generation": _SWITCH,
}
ATTRIBUTES: Mapping[str, Attribute] = {
    **TWINS,
    **{f"inference_{name}": kind for name, kind in TWINS.items() if name not in _WITHOUT_INFERENCE_VALUE},
    **SINGLE,
}


def _is_of(value: Any, kind: Any) -> bool:
    if kind is None:
        return value is None
    if kind in (list[int], list[float]):
        return isinstance(value, list) and all(_is_of(item, kind.__args__[0]) for item in value)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, kind)


def _word(kind: Any) -> str:
    return "None" if kind is None else str(kind) if kind in (list[int], list[float]) else kind.__name__


# In the order in which they are tried: whatever else it may be, a text is a str.
_PARSERS = [None, bool, int, float, list[int], list[float], dict, str]


def _parse(text: str, kind: Any) -> Any:
    if kind is None:
        return _choose(text.lower() in ("none", "null"), None)
    if kind is bool:
        word = text.lower()
        return _choose(word in (*_TRUE, *_FALSE), word in _TRUE)
    if kind in (list[int], list[float]):
        inner = _choose(text.startswith("[") and text.endswith("]"), text[1:-1])
        return [kind.__args__[0](item) for item in re.split(r"[\s,]+", inner.strip()) if item]
    if kind is dict:
        raise ValueError("dicts have no short form")
    return kind(text)


def _choose(is_readable: bool, value: Any) -> Any:
    if not is_readable:
        raise ValueError
    return value


_EXCLUSIVE = (
    ("embedding_serialization_factor", "serialized_embedding_splits_per_ipu"),
    ("projection_serialization_factor", "serialized_projection_splits_per_ipu"),
)


def check_together(values: Mapping[str, Any], prefix: str) -> None:
    """Refuse attributes that contradict each other.

    Args:
        values: All attributes by name.
        prefix: ``""`` for training, ``"inference_"`` for inference.

    Raises:
        IncompatibleIPUConfigError: Names the attributes.
    """
    num_ipus = values[f"{prefix}ipus_per_replica"]
    layers = values[f"{prefix}layers_per_ipu"]
    if -1 not in layers and len(layers) != num_ipus:
        raise IncompatibleIPUConfigError(
            f"`{prefix}layers_per_ipu` has a non-default value set, but its length does not match "
            f"`{prefix}ipus_per_replica`: {layers} lists {len(layers)} IPU(s), and a replica has {num_ipus}; give one "
            "number of layers for each IPU."
        )
    for name in ("matmul_proportion", *(splits for _, splits in _EXCLUSIVE)):
        value = values[f"{prefix}{name}"]
        if isinstance(value, list) and len(value) != num_ipus:
            raise IncompatibleIPUConfigError(
                f"`{prefix}{name}={value}` lists {len(value)} IPU(s), but `{prefix}ipus_per_replica` is {num_ipus}; "
                "give one value for each IPU."
            )
    for factor, splits in _EXCLUSIVE:
        if values[f"{prefix}{splits}"] is not None and values[f"{prefix}{factor}"] not in (None, 1):
            raise IncompatibleIPUConfigError(
                f"Only one of `{prefix}{factor}` and `{prefix}{splits}` can be set: the one cuts evenly, the other "
                "says where each part lies."
            )


def complete(given: dict[str, Any]) -> dict[str, Any]:
    """Return all attributes: what was given, and for the rest what follows from it."""
    values = {name: copy.deepcopy(kind.default) for name, kind in {**TWINS, **SINGLE}.items()}
    values |= {name: value for name, value in given.items() if value is not None}
    own_count = values["ipus_per_replica"] is None
    if own_count:
        values["ipus_per_replica"] = _num_ipus(values["layers_per_ipu"])
    layers = values.setdefault("inference_layers_per_ipu", copy.deepcopy(values["layers_per_ipu"]))
    follows = own_count or given.get("inference_layers_per_ipu") is not None
    values.setdefault("inference_ipus_per_replica", _num_ipus(layers) if follows else values["ipus_per_replica"])
    proportion = values["matmul_proportion"]
    fits = not isinstance(proportion, list) or len(proportion) == values["inference_ipus_per_replica"]
    values.setdefault("inference_matmul_proportion", copy.deepcopy(proportion) if fits else 0.2)
    for name in ("replication_factor", "device_iterations"):
        values.setdefault(f"inference_{name}", 1)
    for prefix in ("", "inference_"):
        values[f"{prefix}parallelize_kwargs"] = values.get(f"{prefix}parallelize_kwargs") or {}
        for part in ("embedding", "projection"):
            splits = values.setdefault(f"{prefix}serialized_{part}_splits_per_ipu", None)
            factor = values.setdefault(f"{prefix}{part}_serialization_factor", None)
            if factor is None and splits is None:
                values[f"{prefix}{part}_serialization_factor"] = 1
    return values


def _num_ipus(layers: Any) -> int:
    # Anything but a list is refused where the attribute is set.
    return len(layers) if isinstance(layers, list) else 1


CONFIG_NAME = "ipu_config.json"
_HUB_OPTIONS = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")
# What other libraries write beside the attributes.
_FOREIGN_KEYS = ("transformers_version", "optimum_version", "architectures", "model_type", "name_or_path")


class ConfigFile:
    """Is written to files and read from them."""

    def to_dict(self) -> dict[str, Any]:
        """Return every attribute by name."""
        return {name: copy.deepcopy(getattr(self, name)) for name in ATTRIBUTES}

    def to_diff_dict(self) -> dict[str, Any]:
        """Return the attributes that differ from the defaults."""
        defaults = type(self)().to_dict()
        return {name: value for name, value in self.to_dict().items() if value != defaults[name]}

    def to_json_string(self, use_diff: bool = False) -> str:
        """Return the attributes as JSON text."""
        return json.dumps(self.to_diff_dict() if use_diff else self.to_dict(), indent=2, sort_keys=True) + "\n"

    def to_json_file(self, json_file_path: str | Path, use_diff: bool = False) -> None:
        """Write the attributes to a file."""
        Path(json_file_path).write_text(self.to_json_string(use_diff), encoding="utf-8")

    def save_pretrained(self, save_directory: str | Path, **kwargs: Any) -> None:
        """Write ``ipu_config.json`` into a folder."""
        Path(save_directory).mkdir(parents=True, exist_ok=True)
        self.to_json_file(Path(save_directory) / CONFIG_NAME)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Self:
        """Make a configuration of a dict; keywords win over it."""
        known = {name: value for name, value in config_dict.items() if name not in _FOREIGN_KEYS}
        return cls(**{**known, **kwargs})

    @classmethod
    def from_json_file(cls, json_file: str | Path) -> Self:
        """Make a configuration of a file."""
        return cls.from_dict(json.loads(Path(json_file).read_text(encoding="utf-8")))

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **kwargs: Any) -> Self:
        """Read ``ipu_config.json`` from a folder or from the hub.

        Args:
            pretrained_model_name_or_path: A folder, a file, or a name on the hub.
            **kwargs: Attributes that win over the file's, and options of the hub (``revision``, ``token``, ...).

        Raises:
            InputError: If there is no such file.
        """
        path = Path(pretrained_model_name_or_path)
        hub_options = {name: kwargs.pop(name) for name in _HUB_OPTIONS if name in kwargs}
        try:
            file = path if path.is_file() else cached_file(str(path), CONFIG_NAME, **hub_options)
        except OSError as error:
            raise InputError(
                f"{path} has no {CONFIG_NAME}: {' '.join(str(error).split())} Name a folder that has one, or make the "
                "configuration with `IPUConfig(...)`."
            ) from error
        return cls.from_dict(json.loads(Path(str(file)).read_text(encoding="utf-8")), **kwargs)


Mode = Literal["training", "inference"]


class OfPresentMode:
    """``config._x`` is ``config.x`` in training mode and ``config.inference_x`` in inference mode."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name.removeprefix("_")

    def __get__(self, config: "TwoModes | None", owner: type | None = None) -> Any:
        return self if config is None else config._twin(self._name)

    def __set__(self, config: "TwoModes", value: Any) -> None:
        setattr(config, config._twin_name(self._name), value)


class TwoModes:
    """Has attributes in pairs, for training and for inference.

    Attributes:
        mode: ``"training"`` or ``"inference"``: what names with a leading underscore (``_layers_per_ipu``) stand for.
    """

    _layers_per_ipu = OfPresentMode()
    _ipus_per_replica = OfPresentMode()
    _matmul_proportion = OfPresentMode()
    _replication_factor = OfPresentMode()
    _device_iterations = OfPresentMode()
    _gradient_accumulation_steps = OfPresentMode()
    _embedding_serialization_factor = OfPresentMode()
    _serialized_embedding_splits_per_ipu = OfPresentMode()
    _projection_serialization_factor = OfPresentMode()
    _serialized_projection_splits_per_ipu = OfPresentMode()
    _parallelize_kwargs = OfPresentMode()

    @property
    def mode(self) -> Mode:
        """What names with a leading underscore stand for."""
        mode: Mode = self.__dict__["_mode"]
        return mode

    @mode.setter
    def mode(self, mode: Mode) -> None:
        if mode not in ("training", "inference"):
            raise ValueError(f"`IPUConfig` mode can only take values in ('training', 'inference'); got {mode!r}.")
        self.__dict__["_mode"] = mode

    def train(self) -> Self:
        """Let names with a leading underscore stand for training."""
        self.mode = "training"
        return self

    def eval(self) -> Self:
        """Let names with a leading underscore stand for inference."""
        self.mode = "inference"
        return self

    def _twin_name(self, name: str) -> str:
        inference = f"inference_{name}"
        return inference if self.mode == "inference" and inference in ATTRIBUTES else name

    def _twin(self, name: str) -> Any:
        if self.mode == "inference" and name == "gradient_accumulation_steps":
            return 1
        return getattr(self, self._twin_name(name))


logger = logging.getLogger(__name__)

# Mk2 hardware, as the driver numbers it.
_MK2 = (2, 21)
_PATTERNS = {"TiedGather": True, "TiedGatherAccumulate": True, "UpdateInplacePrioritiesForIpu": True}
_ENGINE_OPTIONS = {"opt.useAutoloader": "true", "target.syncReplicasIndependently": "true"}
_COMPILER_OPTIONS: dict[str, Any] = {
    "disableGradAccumulationTensorStreams": True,
    "scheduleNonWeightUpdateGradientConsumersEarly": True,
    "subgraphCopyingStrategy": 1,
}


def make_options(config: Any, *, for_inference: bool, compile_only: bool) -> Any:
    """Return the options of a program.

    Args:
        config: The ``IPUConfig``.
        for_inference: For inference: sharded, without accumulation, returning everything. For training: pipelined.
        compile_only: For a program that is compiled without IPUs, and not run.

    Raises:
        RuntimeError: If the hardware is of another kind.
    """
    if not compile_only and backend.ipuHardwareVersion() not in _MK2:
        raise RuntimeError("This requires an IPU Mk2 system to run.")
    mode = config.mode
    config.mode = "inference" if for_inference else "training"
    try:
        options = _batching(config)
        _place(config, options)
    finally:
        config.mode = mode
    _precision(config, options, training=not for_inference)
    if for_inference:
        options.outputMode(backend.OutputMode.All)
        options._Popart.set("enableExplicitIR", config.explicit_ir_inference)
    else:
        options.outputMode(_output_mode(config.output_mode))
        options.Training.setAutomaticLossScaling(config.auto_loss_scaling)
    if config.seed is not None:
        options.randomSeed(config.seed)
    if compile_only:
        options.useOfflineIpuTarget(2)
    if config.executable_cache_dir not in ("", "disabled"):
        options.enableExecutableCaching(config.executable_cache_dir)
    options._Popart.setPatterns(dict(_PATTERNS))
    options._Popart.setEngineOptions(dict(_ENGINE_OPTIONS))
    for name, value in _COMPILER_OPTIONS.items():
        options._Popart.set(name, value)
    return options


def _batching(config: Any) -> Any:
    options = backend.Options()
    options.autoRoundNumIPUs(True)
    options.replicationFactor(config._replication_factor)
    options.deviceIterations(config._device_iterations)
    if config.mode == "training":
        options.Training.gradientAccumulation(config.gradient_accumulation_steps)
        options.Training.accumulationAndReplicationReductionType(backend.ReductionType.Mean)
        options.setExecutionStrategy(backend.PipelinedExecution(backend.AutoStage.AutoIncrement))
    else:
        options.setExecutionStrategy(backend.ShardedExecution(backend.AutoStage.AutoIncrement))
    return options


def _place(config: Any, options: Any) -> None:
    shards = config.replicated_tensor_sharding and config._replication_factor > 1
    if config.replicated_tensor_sharding and config.mode == "training" and not shards:
        logger.warning(
            "`replicated_tensor_sharding=True` has no effect on one replica; set `replication_factor` to 2 or more."
        )
    location = backend.TensorLocationSettings().useOnChipStorage(not config.optimizer_state_offchip)
    options.TensorLocations.setOptimizerLocation(location.useReplicatedTensorSharding(shards))
    proportion = config._matmul_proportion
    shares = proportion if isinstance(proportion, list) else [proportion] * config._ipus_per_replica
    options.setAvailableMemoryProportion({f"IPU{number}": share for number, share in enumerate(shares)})


def _precision(config: Any, options: Any, *, training: bool) -> None:
    options.Precision.enableStochasticRounding(training)
    options.Precision.setPartialsType(torch.float16 if config.enable_half_partials else torch.float32)


def _output_mode(name: str) -> Any:
    modes = backend.OutputMode
    return {"all": modes.All, "sum": modes.Sum, "final": modes.Final, "default": modes.Default}[name]


_DEPRECATED = {
    "sharded_execution_for_inference": "inference is always sharded",
    "enable_half_first_order_momentum": "set `fp32` of the training arguments",
}


class IPUConfig(TwoModes, ConfigFile):
    """How a model is spread over IPUs.

    Every assignment is checked; attributes are checked against each other at construction, by :meth:`update` and
    :meth:`update_from_string`, and before options are made of them.

    Args:
        layers_per_ipu: Layers on each IPU; -1 shares out those that are left. ``[-1]`` by default.
        ipus_per_replica: IPUs of one copy of the model; by default the length of ``layers_per_ipu``.
        matmul_proportion: Share of an IPU's memory for matrix products, one for all or one for each.
        replication_factor: Copies of the model that train on other data.
        device_iterations: Weight updates of one call.
        gradient_accumulation_steps: Micro-batches of a replica for one weight update.
        embedding_serialization_factor: Parts that embeddings are cut into.
        serialized_embedding_splits_per_ipu: Parts of the embedding on each IPU, instead of a factor.
        projection_serialization_factor: Parts that the output projection is cut into.
        serialized_projection_splits_per_ipu: Parts of the projection on each IPU, instead of a factor.
        parallelize_kwargs: Keywords for the model's placement.
        optimizer_state_offchip: Keep the optimizer's state beside the chip.
        replicated_tensor_sharding: Cut the optimizer's state over the replicas.
        enable_half_partials: Half-precision partial sums.
        recompute_checkpoint_every_layer: Recompute activations, from each layer's output on.
        output_mode: ``"final"``, ``"all"``, ``"sum"`` or ``"default"``.
        seed: Seed of the devices.
        auto_loss_scaling: Let the loss scaling follow the gradients.
        executable_cache_dir: Where programs are kept; ``""`` and ``"disabled"`` for nowhere.
        explicit_ir_inference: A compiler option.
        execute_encoder_on_cpu_for_generation: Run the encoder on the host when tokens are generated.
        inference_*: The same for inference; layers, IPUs and ``matmul_proportion`` follow training by default.

    Raises:
        IncompatibleIPUConfigError: If attributes contradict each other, or do not exist.
        TypeError: If a value is of another type.
        ValueError: If a value is out of range.
    """

    layers_per_ipu: list[int]
    ipus_per_replica: int
    matmul_proportion: float | list[float]
    replication_factor: int
    device_iterations: int
    gradient_accumulation_steps: int
    embedding_serialization_factor: int | None
    serialized_embedding_splits_per_ipu: list[int] | None
    projection_serialization_factor: int | None
    serialized_projection_splits_per_ipu: list[int] | None
    parallelize_kwargs: dict[str, Any]
    inference_layers_per_ipu: list[int]
    inference_ipus_per_replica: int
    inference_matmul_proportion: float | list[float]
    inference_replication_factor: int
    inference_device_iterations: int
    inference_embedding_serialization_factor: int | None
    inference_serialized_embedding_splits_per_ipu: list[int] | None
    inference_projection_serialization_factor: int | None
    inference_serialized_projection_splits_per_ipu: list[int] | None
    inference_parallelize_kwargs: dict[str, Any]
    optimizer_state_offchip: bool
    replicated_tensor_sharding: bool
    enable_half_partials: bool
    recompute_checkpoint_every_layer: bool
    output_mode: str
    seed: int | None
    auto_loss_scaling: bool
    executable_cache_dir: str
    explicit_ir_inference: bool
    execute_encoder_on_cpu_for_generation: bool

    def __init__(self, **kwargs: Any) -> None:
        object.__setattr__(self, "_mode", "training")
        for name in [name for name in kwargs if name in _DEPRECATED]:
            warn_of_old_spelling(f"`{name}` of IPUConfig has no effect any more: {_DEPRECATED[name]}.")
            del kwargs[name]
        unknown = sorted(set(kwargs) - set(ATTRIBUTES))
        if unknown:
            raise IncompatibleIPUConfigError(
                f"IPUConfig has no attribute(s) {', '.join(unknown)}; it has {', '.join(sorted(ATTRIBUTES))}."
            )
        for name, value in complete(kwargs).items():
            setattr(self, name, value)
        self.check()

    # Values

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ATTRIBUTES:
            ATTRIBUTES[name].validate(name, value)
        elif name != "mode" and not isinstance(getattr(type(self), name, None), OfPresentMode):
            raise AttributeError(f"IPUConfig has no attribute {name!r}; it has {', '.join(sorted(ATTRIBUTES))}.")
        object.__setattr__(self, name, value)

    def check(self) -> None:
        """Refuse attributes that contradict each other.

        Raises:
            IncompatibleIPUConfigError: Names them.
        """
        for prefix in ("", "inference_"):
            check_together(self.to_dict(), prefix)

    def update(self, **values: Any) -> None:
        """Set attributes together, so that they are checked against each other only when all are set.

        Raises:
            IncompatibleIPUConfigError: If they contradict each other; then none is set.
            ValueError: If one does not exist, or is out of range.
        """
        changed = copy.copy(self)
        for name, value in values.items():
            if name not in ATTRIBUTES:
                raise ValueError(f"Key {name} isn't in the original config dict; it has {', '.join(ATTRIBUTES)}.")
            setattr(changed, name, value)
        changed.check()
        self.__dict__.update(changed.__dict__)

    def update_from_string(self, update_str: str) -> None:
        """Set attributes from a text such as ``"device_iterations=4,layers_per_ipu=[2 2],seed=None"``.

        Args:
            update_str: Pairs separated by commas; lists in brackets, separated by blanks.

        Raises:
            IncompatibleIPUConfigError: If attributes contradict each other then.
            ValueError: If one does not exist, or a value cannot be read.
        """
        values = {}
        # A comma is part of a value unless another name follows it.
        for pair in re.split(r",(?=\s*\w+\s*=)", update_str):
            name, equals, text = pair.partition("=")
            name = name.strip()
            if not equals:
                raise ValueError(f"`{pair}` sets nothing; write `name=value`, separated by commas.")
            if name not in ATTRIBUTES:
                raise ValueError(f"Key {name} isn't in the original config dict; it has {', '.join(ATTRIBUTES)}.")
            values[name] = ATTRIBUTES[name].parse(name, text)
        self.update(**values)

    def batch_size_factor(self, for_inference: bool = False) -> int:
        """Return how many micro-batches one call takes: replicas x accumulation x device iterations."""
        if for_inference:
            return int(self.inference_replication_factor * self.inference_device_iterations)
        return int(self.replication_factor * self.gradient_accumulation_steps * self.device_iterations)

    # Options

    def to_options(self, for_inference: bool = False, compile_only: bool = False) -> Any:
        """Return ``poptorch.Options`` of these attributes (see :func:`~portico.ipu.config.make_options`)."""
        self.check()
        return make_options(self, for_inference=for_inference, compile_only=compile_only)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IPUConfig) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"IPUConfig {self.to_json_string()}"


__all__ = ["IPUConfig", "IncompatibleIPUConfigError"]
