"""``IPUConfig``: how a model is spread over IPUs, for training and for inference."""

import copy
import re
from typing import Any

from portico.deprecated import warn_of_old_spelling
from portico.ipu.config.attributes import ATTRIBUTES
from portico.ipu.config.checks import check_together
from portico.ipu.config.completion import complete
from portico.ipu.config.errors import IncompatibleIPUConfigError
from portico.ipu.config.files import ConfigFile
from portico.ipu.config.modes import OfPresentMode, TwoModes
from portico.ipu.config.options import make_options

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
        """Return ``poptorch.Options`` of these attributes (see :func:`~portico.ipu.config.options.make_options`)."""
        self.check()
        return make_options(self, for_inference=for_inference, compile_only=compile_only)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IPUConfig) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"IPUConfig {self.to_json_string()}"
