"""Training and inference: which of two attributes a name with a leading underscore stands for."""

from typing import Any, Literal, Self

from portico.ipu.config.attributes import ATTRIBUTES

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
