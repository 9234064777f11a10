"""Language models that predict the next token, as in ``run_clm.py``, or masked tokens, as in ``run_mlm.py``."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    DataCollatorForLanguageModeling,
    EvalPrediction,
    PreTrainedModel,
    default_data_collator,
)

from portico.arguments import TrainingArguments
from portico.compat.annotations import DataCollator
from portico.errors import InputError
from portico.experiments import toy_records
from portico.experiments.settings import setting
from portico.tasks.task import (
    IGNORED,
    LONGEST,
    Record,
    Task,
    Tokenizer,
    accuracy,
    config_of,
    first,
    label_array,
    multiple_of,
    perplexity,
    rows,
)
from portico.trainer import Trainer
from portico.trust.names import data_only

# The scripts cut blocks from this many texts at a time, and each time drop the remainder.
_TEXTS_AT_A_TIME = 1000


@dataclass(kw_only=True)
class LanguageModeling(Task[Tokenizer]):
    """Base class of both kinds of language models."""

    made = staticmethod(toy_records.line)
    size_key: ClassVar[str]
    """The setting of the number of tokens in a block."""

    text_column: str | None = None
    """Key of the text; null: text, or else the first key."""

    def texts(self, record: Record) -> Iterable[str]:
        column = self.text_column or ("text" if "text" in record else next(iter(record)))
        return [str(record[column])]

    @abstractmethod
    def features(self, records: Sequence[Record], processor: Tokenizer) -> list[dict[str, Any]]: ...

    def build_features(
        self, records: Sequence[Record], processor: Tokenizer, limit: int | None, *, training: bool
    ) -> list[dict[str, Any]] | None:
        if not records:
            return None
        features = self.features(records, processor)[:limit]  # the limit counts blocks
        if not features:
            split = "train" if training else "validation"
            raise InputError(
                f"The {len(records)} records for '{split}' are shorter together than one block of tokens; set "
                f"`{self.size_key}` to fewer, or give longer texts."
            )
        return features

    def preprocess_logits(self, logits: Tensor | tuple[Tensor, ...], labels: Tensor) -> Tensor:
        return first(logits).argmax(dim=-1)

    def further_scores(self, metrics: Mapping[str, float]) -> dict[str, float]:
        return {"perplexity": perplexity(metrics["eval_loss"])} if "eval_loss" in metrics else {}

    @torch.no_grad()
    def predict(self, trainer: Trainer, records: Sequence[Record]) -> tuple[list[str], dict[str, float]]:
        """Return each text as the model completes it; there is nothing to compare the result with."""
        model = trainer.model.to(trainer.args.device).eval()
        tokenizer = trainer.processing_class
        assert isinstance(tokenizer, Tokenizer)
        if not isinstance(model, PreTrainedModel):
            raise InputError(
                f"`mode=predict` completes texts with a model of transformers, but the model is a "
                f"{type(model).__name__}; use mode=evaluate."
            )
        texts = (next(iter(self.texts(record))).rstrip("\n") for record in records)
        return [self._complete_text(text, model, tokenizer) for text in texts], {}

    @abstractmethod
    def _complete_text(self, text: str, model: PreTrainedModel, tokenizer: Tokenizer) -> str:
        """Return a text with the tokens that the model adds."""


def blocks(texts: Sequence[Mapping[str, Any]], size: int) -> list[dict[str, Any]]:
    """Return tokenized texts joined and cut into blocks of ``size`` tokens."""
    made: list[dict[str, Any]] = []
    for start in range(0, len(texts), _TEXTS_AT_A_TIME):
        some = texts[start : start + _TEXTS_AT_A_TIME]
        joined = {name: list(chain.from_iterable(text[name] for text in some)) for name in some[0]}
        length = len(next(iter(joined.values()))) // size * size
        made += [{name: values[at : at + size] for name, values in joined.items()} for at in range(0, length, size)]
    return made


@data_only
@dataclass(kw_only=True)
class CausalLM(LanguageModeling):
    """Predicts the next token of texts that are joined and cut into blocks."""

    model_class: ClassVar[Any] = AutoModelForCausalLM
    score_names: ClassVar[Sequence[str]] = ("accuracy",)
    size_key: ClassVar[str] = "task.block_size"
    predictions_file: ClassVar[str] = "generated_predictions.txt"
    lowercase: ClassVar[bool] = False

    block_size: int | None = setting(None, least=1)
    """Tokens of a block; null: the limit of the tokenizer, or 1024 if the model allows fewer than the tokenizer."""
    max_new_tokens: int = setting(32, least=1)
    """Tokens that mode=predict adds to each text."""

    def adapt(self, args: TrainingArguments, model: PreTrainedModel, processor: Tokenizer) -> None:
        self._num_positions = getattr(config_of(model), "max_position_embeddings", LONGEST)

    def features(self, records: Sequence[Record], processor: Tokenizer) -> list[dict[str, Any]]:
        size = min(self.block_size or processor.model_max_length, processor.model_max_length)
        if self.block_size is None and size > self._num_positions:
            size = min(LONGEST, self._num_positions)
        texts = rows(processor([text for record in records for text in self.texts(record)]))
        return [{**block, "labels": list(block["input_ids"])} for block in blocks(texts, size)]

    def collator(self, args: TrainingArguments, model: PreTrainedModel, processor: Tokenizer) -> DataCollator:
        return default_data_collator

    def scores(self, prediction: EvalPrediction) -> dict[str, float]:
        predicted, labels = first(prediction.predictions), label_array(prediction)
        return {"accuracy": accuracy(predicted[:, :-1], labels[:, 1:])}

    def _complete_text(self, text: str, model: PreTrainedModel, tokenizer: Tokenizer) -> str:
        """Return a text with its most likely continuation."""
        tokens = tokenizer(text, return_tensors="pt").to(model.device)
        tokens_T = tokens["input_ids"][0]
        if len(tokens_T):  # an empty text has no continuation
            # The model has positions for so many tokens and for the new ones; it reads only the end of longer texts.
            most = max(min(self._num_positions, tokenizer.model_max_length) - self.max_new_tokens, 1)
            read = {name: values[:, -most:] for name, values in tokens.items()}
            generate: Any = model.generate
            written_T = generate(**read, max_new_tokens=self.max_new_tokens, do_sample=False)[0]
            tokens_T = torch.cat([tokens_T[:-most], written_T])
        return " ".join(str(tokenizer.decode(tokens_T, skip_special_tokens=True)).split())


@data_only
@dataclass(kw_only=True)
class MaskedLM(LanguageModeling):
    """Predicts the masked tokens of texts that are joined and cut into blocks, or taken one by one."""

    model_class: ClassVar[Any] = AutoModelForMaskedLM
    score_names: ClassVar[Sequence[str]] = ("accuracy",)
    size_key: ClassVar[str] = "task.max_seq_length"

    max_seq_length: int | None = setting(None, least=1)
    """Tokens of a block, or to which a text is cut; null: the limit of the tokenizer, at most 1024."""
    mlm_probability: float = setting(0.15, least=0)
    """Share of the tokens that are masked."""
    line_by_line: bool = False
    """Take each text by itself, instead of blocks."""
    pad_to_max_length: bool = False
    """Pad single texts to that length, instead of to the longest of their batch."""

    def features(self, records: Sequence[Record], processor: Tokenizer) -> list[dict[str, Any]]:
        size = min(self.max_seq_length or LONGEST, processor.model_max_length)
        texts = [text for record in records for text in self.texts(record)]
        if not self.line_by_line:
            return blocks(rows(processor(texts, return_special_tokens_mask=True)), size)
        return rows(
            processor(
                [text for text in texts if text and not text.isspace()],
                padding="max_length" if self.pad_to_max_length else False,
                truncation=True,
                max_length=size,
                return_special_tokens_mask=True,
            )
        )

    def collator(self, args: TrainingArguments, model: PreTrainedModel, processor: Tokenizer) -> DataCollator:
        padded = multiple_of(args) if self.line_by_line and not self.pad_to_max_length else None
        return DataCollatorForLanguageModeling(
            processor, mlm_probability=self.mlm_probability, pad_to_multiple_of=padded
        )

    def scores(self, prediction: EvalPrediction) -> dict[str, float]:
        labels = label_array(prediction)
        is_masked = labels != IGNORED
        return {"accuracy": accuracy(first(prediction.predictions)[is_masked], labels[is_masked])}

    def _complete_text(self, text: str, model: PreTrainedModel, tokenizer: Tokenizer) -> str:
        """Return a text with its mask tokens replaced by the most likely ones."""
        tokens = tokenizer(text, truncation=True, return_tensors="pt").to(model.device)
        ids_T = tokens["input_ids"][0]
        filled_T = torch.where(ids_T == tokenizer.mask_token_id, model(**tokens).logits[0].argmax(-1), ids_T)
        return str(tokenizer.decode(filled_T, skip_special_tokens=True))
