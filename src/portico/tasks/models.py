"""The group ``model`` of the tasks: pretrained models, or small ones trained from scratch."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic

from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoTokenizer,
    BertConfig,
    GPT2Config,
    T5Config,
    ViTConfig,
)

from portico.experiments.from_scratch import (
    GENERATOR_TOKENS,
    SmallModel,
    check_unshaped,
    explained_fields,
    train_generator_tokenizer,
    train_wordpiece_tokenizer,
)
from portico.experiments.settings import further_keys
from portico.hub import loading_model
from portico.loop.model_setup import set_attention
from portico.tasks.images import ImageProcessor
from portico.tasks.task import ProcessorT, Task, Tokenizer
from portico.trust.names import data_only

logger = logging.getLogger(__name__)

_VOCAB_SIZE = 1500  # tokens of a new tokenizer


@dataclass(kw_only=True)
class TaskModel(ABC, Generic[ProcessorT]):
    """The group ``model`` of a task: a pretrained model, or a small one trained from scratch.

    The type argument says whether the small model has a tokenizer or an image processor.
    """

    small: ClassVar[SmallModel]

    name_or_path: str | None = None
    """A local folder or a hub name: start from that model and its tokenizer or image processor."""
    attn_implementation: str | None = None
    """How attention is computed, by transformers' names, such as eager or sdpa; null: the model's default."""
    config: Mapping[str, Any] = field(default_factory=dict)

    @abstractmethod
    def new_processor(self, texts: Iterable[str], fields: Mapping[str, Any], *, lowercase: bool) -> ProcessorT:
        """Return the tokenizer or image processor of a new model with these fields."""

    def load(self, task: Task[Any], texts: Iterable[str], labels: Sequence[Any]) -> tuple[Any, Any]:
        """Return the model of a task and its tokenizer or image processor.

        Args:
            task: The task.
            texts: Strings on which a new tokenizer is trained.
            labels: The classes in the order of the data; a pretrained model with the same classes keeps its order.

        Raises:
            InputError: If the model cannot be loaded, or no model can be made with these fields.
        """
        if self.name_or_path is not None:
            check_unshaped(self.config, self.name_or_path, self.small.kind)
            model, processor = self._load_pretrained(task, labels)
        else:
            model, processor = self._new(task, texts, labels)
        set_attention(model, self.attn_implementation)
        return model, processor

    def _new(self, task: Task[Any], texts: Iterable[str], labels: Sequence[Any]) -> tuple[Any, Any]:
        # Of the tokenizer that is trained; the model has as many as there are.
        fields = {"vocab_size": _VOCAB_SIZE, **self.small.fields, **self.config}
        given = {name: value for name, value in self.config.items() if name != "vocab_size"}
        with explained_fields(self.small.kind, self.config):
            processor: Any = self.new_processor(texts, fields, lowercase=task.lowercase)
            config = self.small.configure(processor, given | _label_fields(labels))
            if hasattr(config, "max_position_embeddings"):
                processor.model_max_length = config.max_position_embeddings
            return task.model_class.from_config(config), processor

    def _load_pretrained(self, task: Task[Any], labels: Sequence[Any]) -> tuple[Any, Any]:
        name = str(self.name_or_path)
        what = task.model_class.__name__.removeprefix("AutoModelFor")
        with loading_model(
            "model.name_or_path",
            name,
            f"a model for {what}",
            "set it to a folder written by `save_pretrained`, such as the folder of a run, to a hub name, or to null "
            f"for a small {self.small.kind} trained from scratch.",
        ):
            config = AutoConfig.from_pretrained(name)
            if labels and set(map(str, labels)) != set(config.label2id):
                if not all(str(known).startswith("LABEL_") for known in config.label2id):
                    logger.warning(
                        "%s was trained on the labels %s, and is now trained on %s.",
                        name,
                        list(config.label2id),
                        list(labels),
                    )
                config.update(_label_fields(labels))
            loads = AutoTokenizer if hasattr(config, "vocab_size") else AutoImageProcessor
            processor = loads.from_pretrained(name)
            model = task.model_class.from_pretrained(name, config=config)
        if hasattr(processor, "pad_token_id") and len(processor) > model.get_input_embeddings().weight.shape[0]:
            model.resize_token_embeddings(len(processor))
        return model, processor


def _label_fields(labels: Sequence[Any]) -> dict[str, Any]:
    if not labels:
        return {}
    names = list(map(str, labels))
    return {"id2label": dict(enumerate(names)), "label2id": {name: n for n, name in enumerate(names)}}


@data_only
@dataclass(kw_only=True)
class SmallBert(TaskModel[Tokenizer]):
    """A small BERT."""

    small = SmallModel(
        "BERT",
        BertConfig,
        {
            "hidden_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 256,
            "max_position_embeddings": 512,
        },
    )
    config: Mapping[str, Any] = further_keys(small.settings)
    """Field of BertConfig, of a new small BERT."""

    def new_processor(self, texts: Iterable[str], fields: Mapping[str, Any], *, lowercase: bool) -> Tokenizer:
        return train_wordpiece_tokenizer(texts, vocab_size=fields["vocab_size"], lowercase=lowercase)


@data_only
@dataclass(kw_only=True)
class SmallGPT2(TaskModel[Tokenizer]):
    """A small GPT-2."""

    small = SmallModel(
        "GPT-2",
        GPT2Config,
        {"n_embd": 128, "n_layer": 2, "n_head": 4, "n_positions": 512},
        special_tokens={
            "pad_token_id": "pad_token_id",
            "bos_token_id": "eos_token_id",
            "eos_token_id": "eos_token_id",
        },
    )
    config: Mapping[str, Any] = further_keys(small.settings)
    """Field of GPT2Config, of a new small GPT-2."""

    def new_processor(self, texts: Iterable[str], fields: Mapping[str, Any], *, lowercase: bool) -> Tokenizer:
        return train_generator_tokenizer(texts, vocab_size=fields["vocab_size"], ends_sequences=False)


@data_only
@dataclass(kw_only=True)
class SmallT5(TaskModel[Tokenizer]):
    """A small T5."""

    small = SmallModel(
        "T5",
        T5Config,
        {
            "d_model": 128,
            "d_kv": 32,
            "d_ff": 256,
            "num_layers": 2,
            "num_heads": 4,
            "dropout_rate": 0.0,
        },
        special_tokens=GENERATOR_TOKENS,
    )
    config: Mapping[str, Any] = further_keys(small.settings)
    """Field of T5Config, of a new small T5."""

    def new_processor(self, texts: Iterable[str], fields: Mapping[str, Any], *, lowercase: bool) -> Tokenizer:
        return train_generator_tokenizer(texts, vocab_size=fields["vocab_size"])


@data_only
@dataclass(kw_only=True)
class SmallViT(TaskModel[ImageProcessor]):
    """A small vision transformer."""

    small = SmallModel(
        "ViT",
        ViTConfig,
        {
            "hidden_size": 96,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "intermediate_size": 192,
            "image_size": 32,
            "patch_size": 8,
        },
    )
    config: Mapping[str, Any] = further_keys(small.settings)
    """Field of ViTConfig, of a new small ViT."""

    def new_processor(self, texts: Iterable[str], fields: Mapping[str, Any], *, lowercase: bool) -> ImageProcessor:
        from portico.compat.transformers import ViTImageProcessorPil

        size = fields["image_size"]
        processor: Any = ViTImageProcessorPil(size={"height": size, "width": size})
        return processor
