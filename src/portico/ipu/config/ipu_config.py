"""``IPUConfig``: how a model is spread over IPUs, for training and for inference."""

import copy
import json
import logging
import re
import warnings
from pathlib import Path
from typing import Any, Literal

from transformers.utils.hub import cached_file

from portico.errors import InputError
from portico.ipu.config.attributes import ATTRIBUTES, SINGLE, TWINS
from portico.ipu.config.checks import check_together
from portico.ipu.config.errors import IncompatibleIPUConfigError
from portico.ipu.config.options import make_options

logger = logging.getLogger(__name__)

CONFIG_NAME = "ipu_config.json"
_DEPRECATED = {
    "sharded_execution_for_inference": "inference is always sharded",
    "enable_half_first_order_momentum": "set `fp32` of the training arguments",
}
_HUB_OPTIONS = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")
# What other libraries write beside the attributes.
_FOREIGN_KEYS = ("transformers_version", "optimum_version", "architectures", "model_type", "name_or_path")
Mode = Literal["training", "inference"]


class _OfPresentMode:
    """``config._x`` is ``config.x`` in training mode and ``config.inference_x`` in inference mode."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name.removeprefix("_")

    def __get__(self, config: "IPUConfig | None", owner: type | None = None) -> Any:
        return self if config is None else config._twin(self._name)

    def __set__(self, config: "IPUConfig", value: Any) -> None:
        setattr(config, config._twin_name(self._name), value)


class IPUConfig:
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

    Attributes:
        mode: ``"training"`` or ``"inference"``: what names with a leading underscore (``_layers_per_ipu``) stand for.

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

    _layers_per_ipu = _OfPresentMode()
    _ipus_per_replica = _OfPresentMode()
    _matmul_proportion = _OfPresentMode()
    _replication_factor = _OfPresentMode()
    _device_iterations = _OfPresentMode()
    _gradient_accumulation_steps = _OfPresentMode()
    _embedding_serialization_factor = _OfPresentMode()
    _serialized_embedding_splits_per_ipu = _OfPresentMode()
    _projection_serialization_factor = _OfPresentMode()
    _serialized_projection_splits_per_ipu = _OfPresentMode()
    _parallelize_kwargs = _OfPresentMode()

    def __init__(self, **kwargs: Any) -> None:
        object.__setattr__(self, "_mode", "training")
        for name in [name for name in kwargs if name in _DEPRECATED]:
            warnings.warn(
                f"`{name}` of IPUConfig has no effect any more: {_DEPRECATED[name]}.", FutureWarning, stacklevel=2
            )
            del kwargs[name]
        unknown = sorted(set(kwargs) - set(ATTRIBUTES))
        if unknown:
            raise IncompatibleIPUConfigError(
                f"IPUConfig has no attribute(s) {', '.join(unknown)}; it has {', '.join(sorted(ATTRIBUTES))}."
            )
        for name, value in _complete(kwargs).items():
            setattr(self, name, value)
        self.check()

    # Values

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ATTRIBUTES:
            ATTRIBUTES[name].validate(name, value)
        elif name != "mode" and not isinstance(getattr(type(self), name, None), _OfPresentMode):
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

    # Training and inference

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

    def train(self) -> "IPUConfig":
        """Let names with a leading underscore stand for training."""
        self.mode = "training"
        return self

    def eval(self) -> "IPUConfig":
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

    def batch_size_factor(self, for_inference: bool = False) -> int:
        """Return how many micro-batches one call takes: replicas x accumulation x device iterations."""
        if for_inference:
            return int(self.inference_replication_factor * self.inference_device_iterations)
        return int(self.replication_factor * self.gradient_accumulation_steps * self.device_iterations)

    # Options

    def to_options(self, for_inference: bool = False, compile_only: bool = False) -> Any:
        """Return ``poptorch.Options`` of these attributes (see :func:`~portico.ipu.config.options.make_options`)."""
        self.check()
        return make_options(self, for_inference=for_inference, compile_only=compile_only)

    # Files

    def to_dict(self) -> dict[str, Any]:
        """Return every attribute by name."""
        return {name: copy.deepcopy(getattr(self, name)) for name in ATTRIBUTES}

    def to_diff_dict(self) -> dict[str, Any]:
        """Return the attributes that differ from the defaults."""
        defaults = IPUConfig().to_dict()
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
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> "IPUConfig":
        """Make a configuration of a dict; keywords win over it."""
        known = {name: value for name, value in config_dict.items() if name not in _FOREIGN_KEYS}
        return cls(**{**known, **kwargs})

    @classmethod
    def from_json_file(cls, json_file: str | Path) -> "IPUConfig":
        """Make a configuration of a file."""
        return cls.from_dict(json.loads(Path(json_file).read_text(encoding="utf-8")))

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **kwargs: Any) -> "IPUConfig":
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

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IPUConfig) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"IPUConfig {self.to_json_string()}"


def _complete(given: dict[str, Any]) -> dict[str, Any]:
    """Return all attributes: what was given, and for the rest what follows from it."""
    values = {name: copy.deepcopy(kind.default) for name, kind in {**TWINS, **SINGLE}.items()}
    values |= {name: value for name, value in given.items() if value is not None}
    own_count = values["ipus_per_replica"] is None
    if own_count:
        values["ipus_per_replica"] = len(values["layers_per_ipu"])
    layers = values.setdefault("inference_layers_per_ipu", copy.deepcopy(values["layers_per_ipu"]))
    follows = own_count or given.get("inference_layers_per_ipu") is not None
    values.setdefault("inference_ipus_per_replica", len(layers) if follows else values["ipus_per_replica"])
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
