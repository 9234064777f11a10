"""Models whose class depends on the pretrained model that they are built on."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel


class ModelByConfig(PreTrainedModel):
    """Makes and loads models; a subclass says which class a configuration takes."""

    @classmethod
    @abstractmethod
    def model_class_from_config(cls, config: PreTrainedConfig) -> type[PreTrainedModel]:
        """Return the class of the models on the pretrained model of ``config``."""

    @classmethod
    def from_config(
        cls, config: PreTrainedConfig, *args: Any, task_heads: Mapping[str, Any] | None = None, **options: Any
    ) -> Any:
        """Return a model on the pretrained model of ``config``.

        Args:
            config: Its configuration.
            *args: Folder or name of its weights, as ``from_pretrained`` takes it; without it all weights are new.
            task_heads: As of the class; by default those that ``config`` names, or the one head there is.
            **options: Further options of ``from_pretrained``.
        """
        model_class: Any = cls.model_class_from_config(config)
        if not args:
            return model_class(config, task_heads)
        return model_class.from_pretrained(*args, config=config, task_heads=task_heads, **options)

    @classmethod
    def from_pretrained(cls, name_or_path: Any, *args: Any, config: Any = None, **options: Any) -> Any:  # type: ignore[override]
        """Load a model that was saved from this class, or the pretrained model that one is built on.

        Args:
            name_or_path: Folder or name.
            *args: See ``PreTrainedModel.from_pretrained``.
            config: Its configuration; by default the one beside the weights.
            **options: See there; and ``task_heads``, as of :meth:`from_config`.
        """
        if cls.base_model_prefix:
            return super().from_pretrained(name_or_path, *args, config=config, **options)
        config = AutoConfig.from_pretrained(name_or_path) if config is None else config
        return cls.from_config(config, name_or_path, *args, **options)
