"""Language models: the next token as ``run_clm.py``, and masked tokens as ``run_mlm.py``."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    DataCollatorForLanguageModeling,
    EvalPrediction,
    default_data_collator,
)

from portico.cli.settings import setting
from portico.errors import InputError
from portico.tasks import corpus
from portico.tasks.classification import IGNORED, multiple_of
from portico.tasks.task import Features, Record, Task, first, perplexity, rows

# The scripts cut blocks from this many texts at a time, and drop what is left over each time.
_TEXTS_AT_A_TIME = 1000
_LONGEST = 1024


@dataclass(kw_only=True)
class LanguageModeling(Task):
    """What both kinds of language models share."""

    made = staticmethod(corpus.line)
    size_key: ClassVar[str]
    """Key of the number of tokens of a block."""

    text_column: str | None = None
    """Key of the text; null: text, or else the first."""

    def texts(self, record: Record) -> Iterable[str]:
        column = self.text_column or ("text" if "text" in record else next(iter(record)))
        return [str(record[column])]

    def limited_features(
        self, records: Sequence[Record], processor: Any, limit: int | None, *, training: bool
    ) -> Features | None:
        features = self.features(records, processor)[:limit] if records else None  # counted in blocks
        if features is not None and not features:
            split = "train" if training else "validation"
            raise InputError(
                f"The {len(records)} records for '{split}' are shorter together than one block of tokens; set "
                f"`{self.size_key}` to fewer, or give longer texts."
            )
        return features

    def preprocess_logits(self, logits: Any, labels: Any) -> Any:
        return first(logits).argmax(dim=-1)

    def further_scores(self, metrics: Mapping[str, float]) -> dict[str, float]:
        return {"perplexity": perplexity(metrics["eval_loss"])} if "eval_loss" in metrics else {}


def blocks(texts: Sequence[Mapping[str, Any]], size: int) -> list[dict[str, Any]]:
    """Return tokenized texts, one behind the other, in blocks of ``size`` tokens."""
    made: list[dict[str, Any]] = []
    for start in range(0, len(texts), _TEXTS_AT_A_TIME):
        some = texts[start : start + _TEXTS_AT_A_TIME]
        joined = {name: list(chain.from_iterable(text[name] for text in some)) for name in some[0]}
        length = len(next(iter(joined.values()))) // size * size
        made += [{name: values[at : at + size] for name, values in joined.items()} for at in range(0, length, size)]
    return made


def accuracy(predicted: Any, labels: Any) -> dict[str, float]:
    return {"accuracy": float((predicted == labels).mean())}


@dataclass(kw_only=True)
class CausalLM(LanguageModeling):
    """The next token of texts that are joined and cut into blocks."""

    model_class: ClassVar[Any] = AutoModelForCausalLM
    size_key: ClassVar[str] = "task.block_size"
    predictions_file: ClassVar[str] = "generated_predictions.txt"
    lowercase: ClassVar[bool] = False

    block_size: int | None = setting(None, least=1)
    """Tokens of a block; null: what the tokenizer allows, or 1024 where that is more than the model does."""
    max_new_tokens: int = setting(32, least=1)
    """Tokens that mode=predict adds to each text."""

    def adapt(self, args: Any, model: Any, processor: Any) -> None:
        self._num_positions = getattr(model.config, "max_position_embeddings", _LONGEST)

    def features(self, records: Sequence[Record], processor: Any) -> Features:
        size = min(self.block_size or processor.model_max_length, processor.model_max_length)
        if self.block_size is None and size > self._num_positions:
            size = min(_LONGEST, self._num_positions)
        texts = rows(processor([text for record in records for text in self.texts(record)]))
        return [{**block, "labels": list(block["input_ids"])} for block in blocks(texts, size)]

    def collator(self, args: Any, model: Any, processor: Any) -> Any:
        return default_data_collator

    def scores(self, prediction: EvalPrediction) -> dict[str, float]:
        labels: Any = prediction.label_ids
        return accuracy(first(prediction.predictions)[:, :-1].reshape(-1), labels[:, 1:].reshape(-1))

    @torch.no_grad()
    def predict(self, trainer: Any, records: Sequence[Record]) -> tuple[list[str], dict[str, float]]:
        """Return each text with the most likely continuation; there is nothing to compare it with."""
        model, tokenizer = trainer.model.to(trainer.args.device).eval(), trainer.processing_class
        answers = []
        # A text and what is added have to fit into the model: of a longer text it reads the end.
        most = max(min(self._num_positions, tokenizer.model_max_length) - self.max_new_tokens, 1)
        for record in records:
            tokens = tokenizer(next(iter(self.texts(record))).rstrip("\n"), return_tensors="pt").to(model.device)
            tokens_T = tokens["input_ids"][0]
            if len(tokens_T):  # an empty text has no continuation
                read = {name: values[:, -most:] for name, values in tokens.items()}
                written = model.generate(**read, max_new_tokens=self.max_new_tokens, do_sample=False)[0]
                tokens_T = torch.cat([tokens_T[:-most], written])
            answers.append(" ".join(tokenizer.decode(tokens_T, skip_special_tokens=True).split()))
        return answers, {}


@dataclass(kw_only=True)
class MaskedLM(LanguageModeling):
    """The masked tokens of texts, joined and cut into blocks, or each by itself."""

    model_class: ClassVar[Any] = AutoModelForMaskedLM
    size_key: ClassVar[str] = "task.max_seq_length"

    max_seq_length: int | None = setting(None, least=1)
    """Tokens of a block, or of a longer text that are kept; null: what the tokenizer allows, at most 1024."""
    mlm_probability: float = setting(0.15, least=0)
    """Share of the tokens that are masked."""
    line_by_line: bool = False
    """Take each text by itself, instead of blocks."""
    pad_to_max_length: bool = False
    """Pad single texts to that length, instead of to the longest of their batch."""

    def features(self, records: Sequence[Record], processor: Any) -> Features:
        size = min(self.max_seq_length or _LONGEST, processor.model_max_length)
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

    def collator(self, args: Any, model: Any, processor: Any) -> Any:
        padded = multiple_of(args) if self.line_by_line and not self.pad_to_max_length else None
        return DataCollatorForLanguageModeling(
            processor, mlm_probability=self.mlm_probability, pad_to_multiple_of=padded
        )

    def scores(self, prediction: EvalPrediction) -> dict[str, float]:
        labels: Any = prediction.label_ids
        masked = labels != IGNORED
        return accuracy(first(prediction.predictions)[masked], labels[masked])

    @torch.no_grad()
    def predict(self, trainer: Any, records: Sequence[Record]) -> tuple[list[str], dict[str, float]]:
        """Return each text with its mask tokens replaced by the most likely ones."""
        model, tokenizer = trainer.model.to(trainer.args.device).eval(), trainer.processing_class
        answers = []
        for record in records:
            text = next(iter(self.texts(record))).rstrip("\n")
            tokens = tokenizer(text, truncation=True, return_tensors="pt").to(model.device)
            ids = tokens["input_ids"][0]
            filled = torch.where(ids == tokenizer.mask_token_id, first(model(**tokens).to_tuple())[0].argmax(-1), ids)
            answers.append(tokenizer.decode(filled, skip_special_tokens=True))
        return answers, {}
