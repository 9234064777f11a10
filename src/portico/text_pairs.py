"""``trainer=seq2seq``: a sequence-to-sequence model trained on pairs of strings, such as translations or summaries."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, DataCollatorForSeq2Seq, EvalPrediction

from portico.errors import InputError, loading_pretrained
from portico.experiment import RESERVED_TRAINER_ARGUMENTS, RESERVED_TRAINING_ARGUMENTS, TrainerExperiment, group
from portico.seq2seq import Seq2SeqTrainer, Seq2SeqTrainingArguments
from portico.settings import setting

Pair = tuple[str, str]

# Half of a pair, which JSON can express and tokenizers reject.
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(kw_only=True)
class PairData:
    """The group ``data``: files with one JSON object a line."""

    train_file: str | None = None
    """Pairs to train on; has to be set."""
    validation_file: str | None = None
    """Pairs to evaluate on; has to be set."""
    source: str = "source"
    """Key of the string that is read."""
    target: str = "target"
    """Key of the string that is written."""

    def load(self) -> tuple[list[Pair], list[Pair]]:
        """Return the pairs to train and to evaluate on; refuse files that are missing or hold something else."""
        _check_set("data", train_file=self.train_file, validation_file=self.validation_file)
        read = partial(read_pairs, source=self.source, target=self.target)
        return read(str(self.train_file)), read(str(self.validation_file))


@dataclass(kw_only=True)
class PairModel:
    """The group ``model``: a pretrained encoder-decoder."""

    name_or_path: str | None = None
    """A local folder or a hub name of model and tokenizer; has to be set."""

    def load(self) -> tuple[Any, Any]:
        """Return model and tokenizer; refuse a name that has none."""
        _check_set("model", name_or_path=self.name_or_path)
        with loading_pretrained(
            f"`model.name_or_path={self.name_or_path}` gives no encoder-decoder with its tokenizer",
            "set it to a folder written by `save_pretrained`, or to a hub name such as google-t5/t5-small.",
        ):
            name = str(self.name_or_path)
            return AutoModelForSeq2SeqLM.from_pretrained(name), AutoTokenizer.from_pretrained(name)


@dataclass(kw_only=True)
class PairPreprocessing:
    """The group ``preprocess``: how pairs become tokens."""

    max_source_length: int | None = setting(None, least=1)
    """Tokens of a source that are kept; null: what the tokenizer allows."""
    max_target_length: int | None = setting(None, least=1)
    """Tokens of a target that are kept; null: what the tokenizer allows."""

    def dataset(self, pairs: Sequence[Pair], tokenizer: Any) -> "TokenizedPairs":
        """Return the pairs as model inputs."""
        return TokenizedPairs(pairs, tokenizer, self)


@dataclass(kw_only=True)
class PairExperiment(TrainerExperiment):
    """Training on pairs of strings; with ``args.predict_with_generate`` the share of targets met is measured."""

    args: Any = field(default=partial(Seq2SeqTrainingArguments), metadata=group(decided=RESERVED_TRAINING_ARGUMENTS))
    trainer: Any = field(default=partial(Seq2SeqTrainer), metadata=group(decided=RESERVED_TRAINER_ARGUMENTS))
    data: Any = field(default_factory=PairData, metadata=group(needs="load"))
    model: Any = field(default_factory=PairModel, metadata=group(needs="load"))
    preprocess: Any = field(default_factory=PairPreprocessing, metadata=group(needs="dataset"))

    def make_trainer(self, args: Any) -> Any:
        """Load pairs and model and return their trainer."""
        train, validation = self.data.load()
        model, tokenizer = self.model.load()
        return self.trainer(
            model=model,
            args=args,
            train_dataset=self.preprocess.dataset(train, tokenizer),
            eval_dataset=self.preprocess.dataset(validation, tokenizer),
            processing_class=tokenizer,
            data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
            compute_metrics=partial(exact_match, tokenizer) if args.predict_with_generate else None,
            callbacks=list(self.callbacks),
            loggers=list(self.logger),
        )


def exact_match(tokenizer: Any, prediction: EvalPrediction) -> dict[str, float]:
    """Return the share of generated strings that are equal to their targets, without padding and other special tokens.

    It is between 0 and 1.
    """

    def decoded(tokens: Any) -> list[str]:
        # Rows of different batches are padded with -100, which no tokenizer decodes.
        filled = np.where(tokens < 0, tokenizer.pad_token_id, tokens)
        return tokenizer.batch_decode(filled, skip_special_tokens=True)

    texts, targets = decoded(prediction.predictions), decoded(prediction.label_ids)
    return {"exact_match": float(np.mean([text == target for text, target in zip(texts, targets, strict=True)]))}


@dataclass(frozen=True)
class TokenizedPairs(Dataset[Mapping[str, Any]]):
    """Model inputs and labels of pairs, tokenized when they are read."""

    pairs: Sequence[Pair]
    tokenizer: Any
    lengths: PairPreprocessing

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        source, target = self.pairs[index]
        inputs = self.tokenizer(source, max_length=self.lengths.max_source_length, truncation=True)
        labels = self.tokenizer(text_target=target, max_length=self.lengths.max_target_length, truncation=True)
        return {**inputs, "labels": labels["input_ids"]}


def read_pairs(file: str, *, source: str, target: str) -> list[Pair]:
    """Return the strings under the keys ``source`` and ``target`` of a UTF-8 file with one JSON object a line.

    Empty lines are skipped; a file without pairs, or a line without one of the two strings, is refused.
    """
    if not Path(file).is_file():
        raise InputError(f"{file} does not exist; set it to a file with one JSON object a line.")
    try:
        lines = Path(file).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file} cannot be read ({error}); set it to a file with one JSON object a line.") from error
    pairs = [_pair(line, source, target, f"{file}:{number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not pairs:
        raise InputError(f"{file} is empty; set it to a file with one JSON object a line.")
    return pairs


def _pair(line: str, source: str, target: str, place: str) -> Pair:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place} is not JSON ({error}); write one JSON object a line.") from error
    read, written = (record.get(key) if isinstance(record, dict) else None for key in (source, target))
    if not (isinstance(read, str) and isinstance(written, str)):
        raise InputError(
            f"{place} has no string under both '{source}' and '{target}'; set `data.source` and `data.target` to "
            "keys that every line has."
        )
    if _SURROGATE.search(read + written):
        raise InputError(f"{place} is not valid Unicode: it holds half of a surrogate pair; remove it.")
    return read, written


def _check_set(group_name: str, **values: Any) -> None:
    for name, value in values.items():
        if value is None:
            raise InputError(f"`{group_name}.{name}` is not set; a sequence-to-sequence run has no default for it.")
