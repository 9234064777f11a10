"""Text generation, as in ``run_summarization.py`` and ``run_translation.py`` or for pairs of any other kind."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from torchmetrics.text import SacreBLEUScore
from transformers import AutoModelForSeq2SeqLM, DataCollatorForSeq2Seq, EvalPrediction, PreTrainedModel

from portico.arguments import TrainingArguments
from portico.compat.annotations import DataCollator
from portico.data.sentences import get_sentence_splitter
from portico.errors import InputError, MissingPackageError
from portico.experiments import toy_records
from portico.experiments.settings import setting
from portico.tasks.task import (
    IGNORED,
    Array,
    Features,
    Predictions,
    Record,
    Task,
    Tokenizer,
    config_of,
    first,
    label_array,
    multiple_of,
    value_of,
)
from portico.trust.names import data_only

_PERCENT = 100


@data_only
@dataclass(kw_only=True)
class TextToText(Task[Tokenizer]):
    """Reads one string of a pair and writes the other; the score is the share of exactly matching targets."""

    model_class: ClassVar[Any] = AutoModelForSeq2SeqLM
    predictions_file: ClassVar[str] = "generated_predictions.txt"
    lowercase: ClassVar[bool] = False
    text_score_names: ClassVar[Sequence[str]] = ("exact_match",)
    """The names in :meth:`text_scores`."""

    source_column: str = "source"
    """Key of the string that is read."""
    target_column: str = "target"
    """Key of the string that is written."""
    source_prefix: str = ""
    """Put in front of every string that is read, as T5 expects: 'summarize: '."""
    max_source_length: int = setting(1024, least=1)
    """Longer sources are cut to this many tokens."""
    max_target_length: int = setting(128, least=1)
    """Longer targets are cut to this many tokens; also the limit of generation, unless args set one."""
    pad_to_max_length: bool = False
    """Pad to those lengths, instead of to the longest of a batch."""

    def texts(self, record: Record) -> Iterable[str]:
        return [self.source_prefix + self._source(record), *self.golds([record])]

    def _source(self, record: Record) -> str:
        return _string(value_of(record, self.source_column, "source_column"), self.source_column)

    def _target(self, record: Record) -> str | None:
        target = record.get(self.target_column)
        return None if target is None else _string(target, self.target_column)

    def has_target(self, record: Record) -> bool:
        return self._target(record) is not None

    def remove_target(self, record: Record) -> Record:
        return {key: value for key, value in record.items() if key != self.target_column}

    def golds(self, records: Sequence[Record]) -> list[str]:
        return [self._target(record) or "" for record in records]

    def adapt(self, args: TrainingArguments, model: PreTrainedModel, processor: Tokenizer) -> None:
        self._tokenizer = processor
        # As in the scripts: T5's tokenizer sets a limit of 512 tokens, but the relative positions of T5 have none.
        self._num_positions = getattr(config_of(model), "max_position_embeddings", None)
        generating: Any = args
        if not getattr(generating, "predict_with_generate", False):
            return
        if not hasattr(model, "generate"):
            raise InputError(
                f"`args.predict_with_generate=True` needs a model that generates, but {type(model).__name__} has no "
                "`generate`; derive it from transformers.GenerationMixin, or set `args.predict_with_generate=False`."
            )
        if generating.generation_max_length is None:
            generating.generation_max_length = self.max_target_length

    def features(self, records: Sequence[Record], processor: Tokenizer) -> Features:
        padding = "max_length" if self.pad_to_max_length else False
        limits = {"padding": padding, "truncation": True}
        made = []
        for record in records:
            source, target = self.source_prefix + self._source(record), self._target(record)
            row = dict(processor(source, max_length=self._limit(self.max_source_length), **limits))
            if target is not None:
                labels = processor(text_target=target, max_length=self._limit(self.max_target_length), **limits)
                # What pads a target does not count in the loss.
                pad = processor.pad_token_id if self.pad_to_max_length else None
                row["labels"] = [IGNORED if token == pad else token for token in labels["input_ids"]]
            made.append(row)
        return made

    def _limit(self, length: int) -> int:
        return min(length, self._num_positions or length)

    def collator(self, args: TrainingArguments, model: PreTrainedModel, processor: Tokenizer) -> DataCollator:
        multiple = multiple_of(args)
        return DataCollatorForSeq2Seq(processor, model=model, label_pad_token_id=IGNORED, pad_to_multiple_of=multiple)

    def _fill_padding(self, tokens: Array) -> Array:
        # Rows of different batches are padded with -100, which no tokenizer decodes.
        pad: Any = self._tokenizer.pad_token_id
        return np.where(tokens < 0, pad, tokens)

    def _decode(self, tokens: Array) -> list[str]:
        texts = self._tokenizer.batch_decode(self._fill_padding(tokens), skip_special_tokens=True)
        return [text.strip() for text in texts]

    def answers(self, predictions: Predictions, records: Sequence[Record]) -> list[str]:
        return [" ".join(text.split()) for text in self._decode(first(predictions))]

    @property
    def score_names(self) -> Sequence[str]:
        return [*self.text_score_names, "gen_len"]

    def scores(self, prediction: EvalPrediction) -> dict[str, float]:
        tokens = first(prediction.predictions)
        scores = self.text_scores(self._decode(tokens), self._decode(label_array(prediction)))
        lengths = np.count_nonzero(self._fill_padding(tokens) != self._tokenizer.pad_token_id, axis=1)
        return {**scores, "gen_len": round(float(np.mean(lengths)), 4)}

    def text_scores(self, texts: Sequence[str], targets: Sequence[str]) -> dict[str, float]:
        """Return the metrics of generated texts."""
        return {"exact_match": float(np.mean([text == target for text, target in zip(texts, targets, strict=True)]))}


def _string(value: object, column: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"The value of '{column}' is {value!r}, which is not a string; correct the data.")
    return value


@data_only
@dataclass(kw_only=True)
class Summarization(TextToText):
    """Summaries, scored by ROUGE."""

    text_score_names: ClassVar[Sequence[str]] = ("rouge1", "rouge2", "rougeL", "rougeLsum")
    made = staticmethod(toy_records.article)

    source_column: str = "document"
    """Key of the string that is read."""
    target_column: str = "summary"
    """Key of the string that is written."""

    # As in `run_summarization.py`, which removes pairs of which a half is None or empty.
    drops_records_without_target: ClassVar[bool] = True

    def is_usable(self, record: Record) -> bool:
        source = value_of(record, self.source_column, "source_column")
        return source is not None and bool(self._source(record)) and self._target(record) != ""

    def adapt(self, args: TrainingArguments, model: PreTrainedModel, processor: Tokenizer) -> None:
        _rouge()  # raises an error for a missing package before the training
        super().adapt(args, model, processor)

    def text_scores(self, texts: Sequence[str], targets: Sequence[str]) -> dict[str, float]:
        """Return ROUGE F1 in 0..100: the median of bootstrapped means, as the package ``evaluate`` reports it."""
        scoring, scorer_class = _rouge()
        scorer = scorer_class(self.text_score_names, use_stemmer=True)
        aggregator = scoring.BootstrapAggregator()
        split = get_sentence_splitter()
        for text, target in zip(texts, targets, strict=True):
            aggregator.add_scores(scorer.score("\n".join(split(target)), "\n".join(split(text))))
        found = aggregator.aggregate()
        return {name: round(float(found[name].mid.fmeasure) * _PERCENT, 4) for name in self.text_score_names}


def _rouge() -> tuple[Any, Callable[..., Any]]:
    try:
        from rouge_score import rouge_scorer, scoring
    except ImportError as error:
        raise MissingPackageError(
            "rouge-score, which scores summaries, is not installed; install it with `pip install 'portico[rouge]'`."
        ) from error
    return scoring, rouge_scorer.RougeScorer


@data_only
@dataclass(kw_only=True)
class Translation(TextToText):
    """Translations, scored by BLEU."""

    text_score_names: ClassVar[Sequence[str]] = ("bleu",)
    made = staticmethod(toy_records.translation)

    translation_column: str = "translation"
    """Key of a dict with a string for each language."""
    source_column: str = "en"
    """Language that is read."""
    target_column: str = "es"
    """Language that is written."""

    def _source(self, record: Record) -> str:
        return super()._source(self._pair(record))

    def _target(self, record: Record) -> str | None:
        return super()._target(self._pair(record))

    def remove_target(self, record: Record) -> Record:
        return {**record, self.translation_column: super().remove_target(self._pair(record))}

    def _pair(self, record: Record) -> Mapping[str, Any]:
        return value_of(record, self.translation_column, "translation_column")

    def adapt(self, args: TrainingArguments, model: PreTrainedModel, processor: Tokenizer) -> None:
        super().adapt(args, model, processor)
        tokenizer: Any = processor
        if hasattr(tokenizer, "src_lang"):
            tokenizer.src_lang = self.source_column
            tokenizer.tgt_lang = self.target_column

    def text_scores(self, texts: Sequence[str], targets: Sequence[str]) -> dict[str, float]:
        return {"bleu": round(corpus_bleu(texts, targets), 4)}


def corpus_bleu(texts: Sequence[str], targets: Sequence[str]) -> float:
    """Return the BLEU of texts with one reference each, in 0..100, with sacrebleu's defaults.

    torchmetrics tokenizes like sacrebleu, but does not smooth: if no n-gram of some length matches, sacrebleu counts
    half a match, then a quarter for the next length without a match, and so on.
    """
    metric = SacreBLEUScore()
    metric.update(list(texts), [[target] for target in targets])
    matches_4: list[float] = metric.numerator.tolist()
    totals_4: list[float] = metric.denominator.tolist()
    length, target_length = metric.preds_len.item(), metric.target_len.item()
    if not matches_4[0] or not all(totals_4):  # no word matches, or no text has four words
        return 0.0
    logs = []
    smoothing = 1
    for matches, total in zip(matches_4, totals_4, strict=True):
        if matches == 0:
            smoothing *= 2
            matches = 1 / smoothing
        logs.append(np.log(_PERCENT * matches / total))
    brevity = 1.0 if length >= target_length else float(np.exp(1 - target_length / length))
    return brevity * float(np.exp(np.mean(logs)))
