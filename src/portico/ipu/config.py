"""``IPUConfig``: how a model is spread over IPUs, for training and for inference."""

import copy
import json
import logging
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Self, get_args, get_origin

import torch

from portico.compat.transformers import cached_file
from portico.deprecated import warn_of_old_spelling
from portico.errors import InputError
from portico.ipu import backend
from portico.trust.disk import read_text, write_text
from portico.trust.names import refuse_download, refuse_in_folder

logger = logging.getLogger(__name__)

CONFIG_NAME = "ipu_config.json"
OUTPUT_MODES = ("all", "sum", "final", "default")
Mode = Literal["training", "inference"]


class IncompatibleIPUConfigError(InputError):
    """Attributes of an ``IPUConfig`` contradict each other or do not fit the model."""


# ---- Attributes ----


@dataclass(eq=False)
class ConfigAttribute:
    """A validated attribute of :class:`IPUConfig`; ``kinds`` are the types of its annotation.

    ``minimum`` is the smallest number allowed, also inside a list. ``check`` is called with name and value, and raises
    ``ValueError`` for anything else that is not allowed.
    """

    default: Any
    minimum: float | None = None
    check: Callable[[str, Any], None] | None = None
    name: str = field(init=False)
    kinds: tuple[Any, ...] = field(init=False)

    def __set_name__(self, owner: type, name: str) -> None:
        annotation = owner.__annotations__[name]
        kinds = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
        self.name = name
        self.kinds = tuple(dict if get_origin(kind) is dict else kind for kind in kinds)

    def validate(self, value: object) -> None:
        name = self.name
        if not any(_has_kind(value, kind) for kind in self.kinds):
            raise TypeError(
                f"Setting `IPUConfig` attribute: `{name}` to {value!r} of type {type(value).__name__} failed; it must "
                f"be {self._describe_allowed()}."
            )
        if value is None:
            return
        items: list[Any] = value if isinstance(value, list) else [value]
        allowed = "have all elements" if isinstance(value, list) else "be"
        if self.minimum is not None and not all(self.minimum <= item < math.inf for item in items):
            raise ValueError(f"`IPUConfig` attribute `{name}` must {allowed} >= {self.minimum}; got {value}.")
        if self.check is not None:
            self.check(name, value)

    def parse(self, text: str) -> Any:
        """Parse a string such as ``4``, ``true`` or ``[1 2]`` as the first of the allowed types that fits."""
        for kind in self.kinds:
            try:
                return _parse(text.strip(), kind)
            except ValueError:
                continue
        raise ValueError(f"`{text}` cannot be parsed as the value of `{self.name}`; give {self._describe_allowed()}.")

    def _describe_allowed(self) -> str:
        words = [kind.__name__ if type(kind) is type else str(kind) for kind in self.kinds]
        return " or ".join(words).replace("NoneType", "None")


def _attribute(
    default: object, *, minimum: float | None = None, check: Callable[[str, Any], None] | None = None
) -> Any:
    """Return a :class:`ConfigAttribute`, typed like ``dataclasses.field`` so that the annotation holds."""
    return ConfigAttribute(default, minimum, check)


def _check_output_mode(name: str, value: str) -> None:
    if value not in OUTPUT_MODES:
        raise ValueError(f"`IPUConfig` attribute `{name}` must be one of {', '.join(OUTPUT_MODES)}; got {value!r}.")


def _check_splits(name: str, value: list[int]) -> None:
    used = [index for index, splits in enumerate(value) if splits]
    if not used:
        # Spelled as in optimum-graphcore.
        raise ValueError(f"`IPUConfig` attribute `{name}` must have atleast 1 split; got {value}.")
    if used != list(range(used[0], used[-1] + 1)):
        raise ValueError(f"`IPUConfig` attribute `{name}` must have its splits on consecutive IPUs; got {value}.")


def _has_kind(value: object, kind: Any) -> bool:
    if kind in (list[int], list[float]):
        return isinstance(value, list) and all(_has_kind(item, kind.__args__[0]) for item in value)
    if kind in (int, float):
        return isinstance(value, int | kind)
    return isinstance(value, kind)


_NONE_WORDS = ("none", "null")
_TRUE_WORDS = ("true", "t", "1", "yes", "y", "on")
_FALSE_WORDS = ("false", "f", "0", "no", "n", "off")


def _parse(text: str, kind: Any) -> Any:
    if kind is NoneType and text.lower() in _NONE_WORDS:
        return None
    if kind is bool and text.lower() in (*_TRUE_WORDS, *_FALSE_WORDS):
        return text.lower() in _TRUE_WORDS
    if kind in (list[int], list[float]) and text.startswith("[") and text.endswith("]"):
        return [kind.__args__[0](item) for item in re.split(r"[\s,]+", text[1:-1].strip()) if item]
    if kind in (int, float, str):
        return kind(text)
    raise ValueError


# ---- Relations between attributes ----

_EXCLUSIVE = (
    ("embedding_serialization_factor", "serialized_embedding_splits_per_ipu"),
    ("projection_serialization_factor", "serialized_projection_splits_per_ipu"),
)


def _check_combination(values: Mapping[str, Any], prefix: str) -> None:
    """Check the attributes for training (no ``prefix``) or for inference against each other."""
    num_ipus = values[f"{prefix}ipus_per_replica"]
    for name in ("layers_per_ipu", "matmul_proportion", *(splits for _, splits in _EXCLUSIVE)):
        value = values[f"{prefix}{name}"]
        # -1 stands for any number of IPUs.
        if isinstance(value, list) and -1 not in value and len(value) != num_ipus:
            raise IncompatibleIPUConfigError(
                f"`{prefix}{name}` has a non-default value set, but its length does not match "
                f"`{prefix}ipus_per_replica`: {value} lists {len(value)} IPU(s), and a replica has {num_ipus}; give "
                "one value for each IPU."
            )
    for factor, splits in _EXCLUSIVE:
        if values[f"{prefix}{splits}"] is not None and values[f"{prefix}{factor}"] not in (None, 1):
            raise IncompatibleIPUConfigError(
                f"Only one of `{prefix}{factor}` and `{prefix}{splits}` can be set; leave out the first, which cuts "
                "evenly, or the second, which places each part."
            )


def _complete(given: dict[str, Any]) -> dict[str, Any]:
    """Return all attributes, with defaults, or derived values, for those not given."""
    values = {name: copy.deepcopy(attribute.default) for name, attribute in ATTRIBUTES.items()}
    values |= {name: value for name, value in given.items() if value is not None}
    counts_layers = values["ipus_per_replica"] is None or values["inference_layers_per_ipu"] is not None
    if values["ipus_per_replica"] is None:
        values["ipus_per_replica"] = _num_ipus(values["layers_per_ipu"])
    if values["inference_layers_per_ipu"] is None:
        values["inference_layers_per_ipu"] = copy.deepcopy(values["layers_per_ipu"])
    if values["inference_ipus_per_replica"] is None:
        layers = values["inference_layers_per_ipu"]
        values["inference_ipus_per_replica"] = _num_ipus(layers) if counts_layers else values["ipus_per_replica"]
    if values["inference_matmul_proportion"] is None:
        proportion = values["matmul_proportion"]
        fits = not isinstance(proportion, list) or len(proportion) == values["inference_ipus_per_replica"]
        values["inference_matmul_proportion"] = copy.deepcopy(proportion) if fits else 0.2
    for prefix in ("", "inference_"):
        values[f"{prefix}parallelize_kwargs"] = values[f"{prefix}parallelize_kwargs"] or {}
        for factor, splits in _EXCLUSIVE:
            if values[f"{prefix}{factor}"] is None and values[f"{prefix}{splits}"] is None:
                values[f"{prefix}{factor}"] = 1
    return values


def _num_ipus(layers: object) -> int:
    # Anything but a list is refused later, when the attribute is set.
    return len(layers) if isinstance(layers, list) else 1


# ---- The configuration ----


_HUB_OPTIONS = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")
# Keys that other libraries write next to the attributes.
_FOREIGN_KEYS = ("transformers_version", "optimum_version", "architectures", "model_type", "name_or_path")


class IPUConfig:
    """How a model is spread over IPUs.

    Every assignment is validated. Attributes are checked against each other at construction, by :meth:`update` and
    :meth:`update_from_string`, and by :meth:`to_options`.

    Args:
        layers_per_ipu: Number of layers on each IPU; IPUs with -1 share the remaining layers. ``[-1]`` by default.
        ipus_per_replica: IPUs of one copy of the model; by default the length of ``layers_per_ipu``.
        matmul_proportion: Share of an IPU's memory for matrix products: one number, or one for each IPU.
        replication_factor: Number of data-parallel copies of the model.
        device_iterations: Weight updates of one call.
        gradient_accumulation_steps: Micro-batches of a replica for one weight update.
        embedding_serialization_factor: Number of parts that embeddings are cut into.
        serialized_embedding_splits_per_ipu: Parts of the embedding on each IPU, instead of a factor.
        projection_serialization_factor: Number of parts that the output projection is cut into.
        serialized_projection_splits_per_ipu: Parts of the projection on each IPU, instead of a factor.
        parallelize_kwargs: Placement of the model: ``layers`` (names of stacks) and ``modules`` (IPU by name).
        optimizer_state_offchip: Keep the optimizer state in streaming memory.
        replicated_tensor_sharding: Shard the optimizer state over the replicas.
        enable_half_partials: Half-precision partial sums.
        recompute_checkpoint_every_layer: Recompute activations from the output of each layer.
        output_mode: ``"final"``, ``"all"``, ``"sum"`` or ``"default"``.
        seed: Seed of the devices.
        auto_loss_scaling: Adjust the loss scaling to the gradients.
        executable_cache_dir: Folder of compiled programs; ``""`` and ``"disabled"`` for none.
        explicit_ir_inference: A compiler option.
        execute_encoder_on_cpu_for_generation: Run the encoder on the host when generating.
        inference_*: The same for inference; layers, IPUs and ``matmul_proportion`` follow training by default.

    Attributes:
        mode: ``"training"`` or ``"inference"``: which attribute of a pair ``_layers_per_ipu`` etc. refer to.

    Raises:
        IncompatibleIPUConfigError: If attributes contradict each other, or do not exist.
        TypeError: If a value has the wrong type.
        ValueError: If a value is out of range.
    """

    layers_per_ipu: list[int] = _attribute([-1], minimum=-1)
    ipus_per_replica: int = _attribute(None, minimum=1)
    matmul_proportion: float | list[float] = _attribute(0.2, minimum=0)
    replication_factor: int = _attribute(1, minimum=1)
    device_iterations: int = _attribute(1, minimum=1)
    gradient_accumulation_steps: int = _attribute(1, minimum=1)
    embedding_serialization_factor: int | None = _attribute(None, minimum=1)
    serialized_embedding_splits_per_ipu: list[int] | None = _attribute(None, minimum=0, check=_check_splits)
    projection_serialization_factor: int | None = _attribute(None, minimum=1)
    serialized_projection_splits_per_ipu: list[int] | None = _attribute(None, minimum=0, check=_check_splits)
    parallelize_kwargs: dict[str, Any] | None = _attribute(None)
    inference_layers_per_ipu: list[int] = _attribute(None, minimum=-1)
    inference_ipus_per_replica: int = _attribute(None, minimum=1)
    inference_matmul_proportion: float | list[float] = _attribute(None, minimum=0)
    inference_replication_factor: int = _attribute(1, minimum=1)
    inference_device_iterations: int = _attribute(1, minimum=1)
    inference_embedding_serialization_factor: int | None = _attribute(None, minimum=1)
    inference_serialized_embedding_splits_per_ipu: list[int] | None = _attribute(None, minimum=0, check=_check_splits)
    inference_projection_serialization_factor: int | None = _attribute(None, minimum=1)
    inference_serialized_projection_splits_per_ipu: list[int] | None = _attribute(None, minimum=0, check=_check_splits)
    inference_parallelize_kwargs: dict[str, Any] | None = _attribute(None)
    optimizer_state_offchip: bool = _attribute(False)
    replicated_tensor_sharding: bool = _attribute(False)
    enable_half_partials: bool = _attribute(True)
    recompute_checkpoint_every_layer: bool = _attribute(False)
    output_mode: str = _attribute("final", check=_check_output_mode)
    seed: int | None = _attribute(None)
    auto_loss_scaling: bool = _attribute(False)
    executable_cache_dir: str = _attribute("")
    explicit_ir_inference: bool = _attribute(False)
    execute_encoder_on_cpu_for_generation: bool = _attribute(False)

    def __init__(self, **kwargs: object) -> None:
        self.mode = "training"
        for name in [name for name in kwargs if name in _DEPRECATED]:
            warn_of_old_spelling(f"`{name}` of IPUConfig has no effect any more: {_DEPRECATED[name]}.")
            del kwargs[name]
        kwargs = {name: value for name, value in kwargs.items() if name not in _FOREIGN_KEYS}
        if unknown := sorted(set(kwargs) - set(ATTRIBUTES)):
            raise IncompatibleIPUConfigError(
                f"IPUConfig has no attribute(s) {', '.join(unknown)}; it has {', '.join(sorted(ATTRIBUTES))}."
            )
        for name, value in _complete(kwargs).items():
            setattr(self, name, value)
        self.check()

    # `config._x` is `config.x` in training mode, and in inference mode `config.inference_x` if there is one.

    def __getattr__(self, name: str) -> Any:
        if name.removeprefix("_") not in ATTRIBUTES:
            raise AttributeError(f"IPUConfig has no attribute {name!r}; it has {', '.join(sorted(ATTRIBUTES))}.")
        # Inference never accumulates gradients.
        is_unused = name == "_gradient_accumulation_steps" and self.mode == "inference"
        return 1 if is_unused else getattr(self, self._resolve_name(name))

    def _resolve_name(self, name: str) -> str:
        inference = f"inference{name}"
        return inference if self.mode == "inference" and inference in ATTRIBUTES else name.removeprefix("_")

    def __setattr__(self, name: str, value: object) -> None:
        name = self._resolve_name(name) if name.startswith("_") else name
        if name in ATTRIBUTES:
            ATTRIBUTES[name].validate(value)
        elif name != "mode":
            logger.warning(
                "`%s` is not an attribute of IPUConfig, and has no effect on programs; it has %s.",
                name,
                ", ".join(sorted(ATTRIBUTES)),
            )
        object.__setattr__(self, name, value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IPUConfig) and self.to_dict() == other.to_dict()

    def __repr__(self) -> str:
        return f"IPUConfig {self.to_json_string()}"

    @property
    def mode(self) -> Mode:
        mode: Mode = self.__dict__["_mode"]
        return mode

    @mode.setter
    def mode(self, mode: Mode) -> None:
        if mode not in ("training", "inference"):
            raise ValueError(f"`IPUConfig` mode can only take values in ('training', 'inference'); got {mode!r}.")
        self.__dict__["_mode"] = mode

    def train(self) -> Self:
        """Switch to training mode."""
        self.mode = "training"
        return self

    def eval(self) -> Self:
        """Switch to inference mode."""
        self.mode = "inference"
        return self

    def check(self) -> None:
        """Check the attributes against each other.

        Raises:
            IncompatibleIPUConfigError: If some contradict each other.
        """
        for prefix in ("", "inference_"):
            _check_combination(self.to_dict(), prefix)

    def update(self, config_dict: Mapping[str, object] | None = None, /, **values: object) -> None:
        """Set several attributes, given as a dict or by name, and check them only after all are set.

        Raises:
            IncompatibleIPUConfigError: If they contradict each other; then none is set.
            ValueError: If one does not exist, or is out of range.
        """
        changed = copy.copy(self)
        for name, value in {**(config_dict or {}), **values}.items():
            if name not in ATTRIBUTES:
                raise ValueError(f"Key {name} isn't in the original config dict; it has {', '.join(ATTRIBUTES)}.")
            setattr(changed, name, value)
        changed.check()
        self.__dict__.update(changed.__dict__)

    def update_from_string(self, update_str: str) -> None:
        """Set attributes from a string such as ``"device_iterations=4,layers_per_ipu=[2 2],seed=None"``.

        Raises:
            IncompatibleIPUConfigError: If attributes contradict each other afterwards.
            ValueError: If one does not exist, or a value cannot be parsed.
        """
        values = {}
        # A comma is part of a value unless another name follows it.
        for pair in re.split(r",(?=\s*\w+\s*=)", update_str):
            name, equals, text = pair.partition("=")
            name = name.strip()
            if not equals:
                raise ValueError(f"`{pair}` sets nothing; write `name=value`, separated by commas.")
            values[name] = ATTRIBUTES[name].parse(text) if name in ATTRIBUTES else text
        self.update(**values)

    def batch_size_factor(self, for_inference: bool = False) -> int:
        """Return the number of micro-batches in one call: replicas x accumulation x device iterations."""
        if for_inference:
            return int(self.inference_replication_factor * self.inference_device_iterations)
        return int(self.replication_factor * self.gradient_accumulation_steps * self.device_iterations)

    def to_options(self, for_inference: bool = False, compile_only: bool = False) -> "backend.Options":
        """Return the ``poptorch.Options`` of a program.

        Args:
            for_inference: Whether the program is for inference (sharded, without accumulation, returning all
                outputs) or for training (pipelined).
            compile_only: Whether the program is only compiled, without IPUs.

        Raises:
            IncompatibleIPUConfigError: If attributes contradict each other.
            RuntimeError: If the hardware is not Mk2.
        """
        self.check()
        if not compile_only and backend.ipuHardwareVersion() not in _MK2_VERSIONS:
            raise RuntimeError(
                "This requires an IPU Mk2 system to run. Set `compile_only=True` to compile without one."
            )
        config = copy.copy(self)
        return _make_options(config.eval() if for_inference else config.train(), compile_only=compile_only)

    # ---- Files ----

    def to_dict(self) -> dict[str, Any]:
        """Return all attributes by name."""
        return {name: copy.deepcopy(getattr(self, name)) for name in ATTRIBUTES}

    def to_diff_dict(self) -> dict[str, Any]:
        """Return the attributes that differ from the defaults."""
        defaults = type(self)().to_dict()
        return {name: value for name, value in self.to_dict().items() if value != defaults[name]}

    def to_json_string(self, use_diff: bool = False) -> str:
        """Return the attributes, or those that differ from the defaults, as JSON."""
        return json.dumps(self.to_diff_dict() if use_diff else self.to_dict(), indent=2, sort_keys=True) + "\n"

    def to_json_file(self, json_file_path: str | Path, use_diff: bool = False) -> None:
        """Write the attributes to a file."""
        write_text(json_file_path, self.to_json_string(use_diff))

    def save_pretrained(self, save_directory: str | Path, **kwargs: object) -> None:
        """Write ``ipu_config.json`` into a folder."""
        Path(save_directory).mkdir(parents=True, exist_ok=True)
        self.to_json_file(Path(save_directory) / CONFIG_NAME)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: object) -> Self:
        """Create a configuration from a dict; keywords take precedence."""
        return cls(**{**config_dict, **kwargs})

    @classmethod
    def from_json_file(cls, json_file: str | Path) -> Self:
        """Create a configuration from a file."""
        return cls.from_dict(json.loads(read_text(Path(json_file))))

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **kwargs: Any) -> Self:
        """Read ``ipu_config.json`` from a folder or from the hub.

        Args:
            pretrained_model_name_or_path: A folder, a file, or a name on the hub.
            **kwargs: Attributes, which take precedence, and options of the hub (``revision``, ``token``, ...).

        Raises:
            InputError: If the file does not exist.
        """
        path = Path(pretrained_model_name_or_path)
        refuse_download("ipu_config", str(path))
        hub_options = {name: kwargs.pop(name) for name in _HUB_OPTIONS if name in kwargs}
        try:
            file = path if path.is_file() else cached_file(str(path), CONFIG_NAME, **hub_options)
        except OSError as error:
            raise InputError(
                f"{path} has no {CONFIG_NAME}: {' '.join(str(error).split())} Name a folder that has one, or make the "
                "configuration with `IPUConfig(...)`."
            ) from error
        return cls.from_dict(json.loads(read_text(Path(str(file)))), **kwargs)


ATTRIBUTES: Mapping[str, ConfigAttribute] = {
    name: attribute for name, attribute in vars(IPUConfig).items() if isinstance(attribute, ConfigAttribute)
}
_DEPRECATED = {
    "sharded_execution_for_inference": "inference is always sharded",
    "enable_half_first_order_momentum": "set `fp32` of the training arguments",
}


# ---- Options of a program ----

# As the driver numbers them.
_MK2_VERSIONS = (2, 21)
# The same as optimum-graphcore sets.
_PATTERNS = {"TiedGather": True, "TiedGatherAccumulate": True, "UpdateInplacePrioritiesForIpu": True}
_ENGINE_OPTIONS = {"opt.useAutoloader": "true", "target.syncReplicasIndependently": "true"}
_COMPILER_OPTIONS: dict[str, Any] = {
    "disableGradAccumulationTensorStreams": True,
    "scheduleNonWeightUpdateGradientConsumersEarly": True,
    "subgraphCopyingStrategy": 1,
}


def _make_options(config: IPUConfig, *, compile_only: bool) -> "backend.Options":
    options = backend.Options()
    options.autoRoundNumIPUs(True)
    options.replicationFactor(config._replication_factor)
    options.deviceIterations(config._device_iterations)
    options.Precision.enableStochasticRounding(config.mode == "training")
    if config.mode == "training":
        options.Training.gradientAccumulation(config.gradient_accumulation_steps)
        options.Training.accumulationAndReplicationReductionType(backend.ReductionType.Mean)
        options.Training.setAutomaticLossScaling(config.auto_loss_scaling)
        options.setExecutionStrategy(backend.PipelinedExecution(backend.AutoStage.AutoIncrement))
        options.outputMode(getattr(backend.OutputMode, config.output_mode.capitalize()))
    else:
        options.setExecutionStrategy(backend.ShardedExecution(backend.AutoStage.AutoIncrement))
        options.outputMode(backend.OutputMode.All)
        options._Popart.set("enableExplicitIR", config.explicit_ir_inference)
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
    options.Precision.setPartialsType(torch.float16 if config.enable_half_partials else torch.float32)
    if config.seed is not None:
        options.randomSeed(config.seed)
    if compile_only:
        options.useOfflineIpuTarget(2)
    if config.executable_cache_dir not in ("", "disabled"):
        refuse_in_folder(f"`executable_cache_dir={config.executable_cache_dir}`", "loaded as programs")
        options.enableExecutableCaching(config.executable_cache_dir)
    options._Popart.setPatterns(dict(_PATTERNS))
    options._Popart.setEngineOptions(dict(_ENGINE_OPTIONS))
    for name, value in _COMPILER_OPTIONS.items():
        options._Popart.set(name, value)
    return options
