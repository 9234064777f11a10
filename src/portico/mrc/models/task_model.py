"""An encoder with exchangeable task heads."""

import inspect
from abc import abstractmethod
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Self, TypeAlias

from torch import Tensor, nn
from transformers import MODEL_MAPPING, AutoConfig, PreTrainedConfig, PreTrainedModel

from portico.errors import InputError, InputKeyError, InputTypeError
from portico.mrc.models.heads import HEAD_CLASSES, TaskHead

TaskHeads: TypeAlias = Mapping[str, type[TaskHead]]


class ModelByConfig(PreTrainedModel):
    """Base of models whose class is derived from the pretrained model below them."""

    # The losses are means over the batch.
    accepts_loss_kwargs = False

    def __init__(self, config: PreTrainedConfig) -> None:
        if not self.base_model_prefix:
            raise InputTypeError(
                f"`{type(self).__name__}` itself has no encoder; make a model with `from_config(config, path)` or "
                "`from_pretrained(path)`, or the class for an encoder with `model_class_from_config(config)`."
            )
        super().__init__(config)

    @classmethod
    @abstractmethod
    def model_class_from_config(cls, config: PreTrainedConfig) -> type[Self]:
        """Return the class of models on the pretrained model of ``config``; an ``InputError`` if there is none."""

    @classmethod
    def from_config(
        cls, config: PreTrainedConfig, *args: Any, task_heads: Mapping[str, Any] | None = None, **options: Any
    ) -> Any:
        """Return a model on the pretrained model of ``config``.

        ``args`` is the folder or name of its weights, with further ``options``, as ``from_pretrained`` takes them;
        without it all weights are new. By default ``task_heads`` are those that ``config`` names, or the only one.
        """
        model_class: Any = cls.model_class_from_config(config)
        if not args:
            return model_class(config, task_heads)
        return model_class.from_pretrained(*args, config=config, task_heads=task_heads, **options)

    @classmethod
    def from_pretrained(cls, name_or_path: Any, *args: Any, config: Any = None, **options: Any) -> Any:  # type: ignore[override]
        """Load a model saved by this class, or a pretrained model to put under it.

        For the arguments see ``PreTrainedModel.from_pretrained``, and for ``task_heads`` :meth:`from_config`.
        """
        if cls.base_model_prefix:
            return super().from_pretrained(name_or_path, *args, config=config, **options)
        config = AutoConfig.from_pretrained(name_or_path) if config is None else config
        return cls.from_config(config, name_or_path, *args, **options)

    @classmethod
    def _class_on(cls, pretrained: type[Any], config: PreTrainedConfig) -> type[Self]:
        name = f"{type(config).__name__.removesuffix('Config')}{cls.__name__}"
        return type(name, (cls, pretrained), {"config_class": type(config), "__module__": cls.__module__})


class ModelForDownstreamTasks(ModelByConfig):
    """A pretrained encoder under one of several heads, which share its weights.

    The class of a model depends on its encoder: make models with :meth:`from_config`, or load saved ones with
    :meth:`from_pretrained`. The configuration records the names and classes of the heads.

    Args:
        config: Configuration of the encoder.
        task_heads: Head classes by name.

    Raises:
        InputTypeError: If this class itself is instantiated, and not one made for an encoder.
        InputError: If there is no head.
    """

    def __init__(self, config: PreTrainedConfig, task_heads: TaskHeads | None = None) -> None:
        # The heads recorded below belong to this model, not to others that share the configuration.
        config = deepcopy(config)
        super().__init__(config)
        task_heads = _read_heads(config) if task_heads is None else task_heads
        if not task_heads:
            raise InputError("The model would have no head; give `task_heads`, such as `EXTRACTIVE_HEAD`.")
        encoder_class = _encoder_class(config)
        # No head reads the pooled first token.
        pools = "add_pooling_layer" in inspect.signature(encoder_class.__init__).parameters
        setattr(self, self.base_model_prefix, encoder_class(config, **({"add_pooling_layer": False} if pools else {})))
        self.task_heads = nn.ModuleDict({name: head_class(config) for name, head_class in task_heads.items()})
        config.task_heads = {name: head_class.__name__ for name, head_class in task_heads.items()}
        self._head_name: str | None = None
        self.post_init()
        if getattr(config, "task_head", None) in task_heads:
            self.set_task_head(config.task_head)

    @classmethod
    def model_class_from_config(cls, config: PreTrainedConfig) -> type[Self]:
        # The base class of the encoder's family initialises weights and names the encoder's part of a checkpoint.
        family = next(
            kind
            for kind in _encoder_class(config).__mro__[1:]
            if issubclass(kind, PreTrainedModel) and kind.base_model_prefix
        )
        return cls._class_on(family, config)

    @property
    def model_(self) -> Any:
        """The encoder."""
        return getattr(self, self.base_model_prefix)

    @property
    def task_head(self) -> Any:
        """The active head; raises an ``InputError`` if none was chosen."""
        if self._head_name is None:
            raise InputError(
                f"No head was chosen; call `set_task_head` with one of: {', '.join(map(repr, self.task_heads))}."
            )
        return self.task_heads[self._head_name]

    def set_task_head(self, task_head: str) -> None:
        """Choose the head to train and evaluate with; raises an ``InputKeyError`` for an unknown name."""
        if task_head not in self.task_heads:
            raise InputKeyError(
                f"The model has no head {task_head!r}; set one of: {', '.join(map(repr, self.task_heads))}."
            )
        self._head_name = self.config.task_head = task_head

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **kwargs: object,
    ) -> Any:
        """Run the encoder, then the active head, which gets ``kwargs``: labels and its other inputs.

        Tokens, segments (if the encoder has them) and positions (by default 0, 1, ...) are ``int64 [B, L]``, the mask
        is 0 at padding, ``[B, L]``, and embeddings, instead of tokens, are ``float [B, L, H]``. The options request
        attentions and hidden states of all layers, and a ``ModelOutput`` instead of a tuple.
        """
        read_by_head = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
        given = {
            **read_by_head,
            "position_ids": position_ids,
            "inputs_embeds": inputs_embeds,
            "output_attentions": output_attentions,
            "output_hidden_states": output_hidden_states,
            "return_dict": return_dict,
        }
        if hasattr(self.model_, "_shift_right") and input_ids is not None:
            # As T5's own head for question answering; other encoder-decoders make these themselves.
            given["decoder_input_ids"] = self.model_._shift_right(input_ids)
        outputs = self.model_(**{name: value for name, value in given.items() if value is not None})
        return self.task_head(outputs, **read_by_head, **kwargs)


def _encoder_class(config: PreTrainedConfig) -> Any:
    return find_pretrained_class(MODEL_MAPPING, config, "encoder", "`AutoModel` knows, such as a `RobertaConfig`")


def find_pretrained_class(
    mapping: Mapping[type[PreTrainedConfig], Any], config: PreTrainedConfig, kind: str, known: str
) -> Any:
    """Return the class for a configuration in one of transformers' mappings, or raise an ``InputError``."""
    if type(config) not in mapping:
        raise InputError(
            f"transformers has no {kind} for a `{type(config).__name__}`; give the configuration of one that {known}."
        )
    found = mapping[type(config)]
    return found[0] if isinstance(found, tuple) else found  # Funnel has one without its decoder, too


def _read_heads(config: PreTrainedConfig) -> TaskHeads:
    names: Mapping[str, str] = getattr(config, "task_heads", None) or {}
    unknown = [class_name for class_name in names.values() if class_name not in HEAD_CLASSES]
    if unknown:
        raise InputError(
            f"The model was saved with heads of unknown classes ({', '.join(unknown)}); give their classes by name "
            "as `task_heads`."
        )
    return {name: HEAD_CLASSES[class_name] for name, class_name in names.items()}
