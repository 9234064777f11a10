"""Examples to model inputs: the tokenised windows of question and context, labelled for training."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerFast

from portico.errors import InputError
from portico.mrc.arrays import Int64s
from portico.mrc.datasets.examples import Examples, column
from portico.mrc.features.labels import (
    Gold,
    LabelRule,
    Subsampling,
    gold_of_example,
    label_windows,
    null_tokens,
    subsample_types,
)
from portico.mrc.features.storage import FeatureStream, SeekableFeatureStream, load_features, slices
from portico.mrc.features.tokenization import WindowCutter, cut_at_token
from portico.mrc.features.windows import FeatureSet, Windows


@dataclass(eq=False)
class Featurizer:
    """Turns examples into the windows that a question answering model reads.

    The windows equal the features of the QA example of transformers: each holds the whole question and a part of the
    context, which overlaps with the next part. The context comes first if the tokenizer pads on the left. A question
    with several contexts gets windows of each.

    An answer is labelled with the first and the last token that have characters of it, "no answer" with the class
    token (without one the token that begins a text, otherwise the first token that is not of the context).

    Args:
        tokenizer: A fast tokenizer.
        max_seq_length: Longest window in tokens, including question and special tokens.
        doc_stride: Tokens that two neighbouring windows of a context share.
        max_question_length: Cut longer questions to about this many tokens; ``None`` keeps them.
        max_q_char_len: Cut longer questions to this many characters; ``None`` keeps them.
        max_contexts: How many contexts of a question to read; ``None`` for all.
        subsampling: Which windows without an answer to train on; ``None`` for all.
        target_types: Whether labelled rows have ``target_type``, the
            :class:`~portico.mrc.features.labels.TargetType` of the window, for a head that classifies it.
        pad_to_max_length: Whether to pad every window to ``max_seq_length`` here instead of in the collator.
        compat_label_bug: Reproduce the labels of the QA example of transformers, which are on other tokens where an
            answer starts in the last context token of a window (its start is then the last token of the row), where it
            begins or ends with a character of several tokens or of none, and where a class token stands in the text;
            and use the tokenizer's offsets, which some pre-tokenizers make wrong.
        cache_dir: Write features into this folder and read them from there, a bounded number of examples at a time:
            they may be more than memory holds, and processes and later runs with the same examples, tokenizer and
            settings find them there. ``None`` keeps them in memory.

    Raises:
        InputError: If the tokenizer is not a fast one, or ``doc_stride`` is negative or not below ``max_seq_length``.
    """

    tokenizer: PreTrainedTokenizerFast
    _: KW_ONLY
    max_seq_length: int = 384
    doc_stride: int = 128
    max_question_length: int | None = None
    max_q_char_len: int | None = None
    max_contexts: int | None = None
    subsampling: Subsampling | None = None
    target_types: bool = False
    pad_to_max_length: bool = False
    compat_label_bug: bool = False
    cache_dir: str | None = None

    def __post_init__(self) -> None:
        sizes = (self.max_seq_length, self.doc_stride)
        corrects = not self.compat_label_bug
        self._cutter = WindowCutter(self.tokenizer, *sizes, self.pad_to_max_length, corrects_offsets=corrects)

    def train_features(self, examples: Examples) -> FeatureSet:
        """Return the labelled windows of all examples, without those that subsampling drops.

        A window that does not hold the whole first answer, and every window of an unanswerable question, is labelled
        with its token of "no answer".

        Raises:
            InputError: If there are no examples, a question leaves no room for the windows to advance, or subsampling
                drops every window.
        """
        if self.cache_dir is not None:
            settings = self._collect_settings("train")
            return load_features(self.cache_dir, settings, examples, self._train_parts(examples))
        return self.labelled_part(examples)

    def train_stream(self, examples: Iterable[Mapping[str, Any]]) -> FeatureStream:
        """Return the windows of :meth:`train_features` for a stream, such as a ``datasets.IterableDataset``.

        A thousand examples are in memory at a time. If the source has ``state_dict`` and ``load_state_dict``, the
        stream has them too, and a resumed run does not read the earlier examples again.
        """
        seeks = hasattr(examples, "state_dict") and hasattr(examples, "load_state_dict")
        stream_class = SeekableFeatureStream if seeks else FeatureStream
        return stream_class(examples, self.labelled_part, self._draws)

    def labelled_part(self, examples: Examples, draws: np.random.Generator | None = None) -> FeatureSet:
        """Return the labelled windows of some examples; for ``draws`` see :meth:`Subsampling.select`."""
        windows, context_index_F = self._cut(examples)
        null_token_F = null_tokens(windows, self.tokenizer, self._rule)
        columns, subsample_type_F = self._label(windows, context_index_F, null_token_F, examples)
        if self.subsampling is not None and not self.subsampling.keeps_all:
            kept = self.subsampling.select(subsample_type_F, draws)
            windows = windows.take(kept)
            columns = {name: column_F[kept] for name, column_F in columns.items()}
            null_token_F = null_token_F[kept]
        return FeatureSet(
            windows,
            token_type_ids=self._has_token_types,
            labels=columns,
            num_examples=len(examples),
            null_token=null_token_F,
        )

    def _draws(self) -> np.random.Generator:
        """Return the random numbers of one pass over the windows."""
        return np.random.default_rng(0) if self.subsampling is None else self.subsampling.draws()

    def _train_parts(self, examples: Examples) -> Iterator[FeatureSet]:
        draws = self._draws()
        num_windows = 0
        for part in slices(examples):
            features = self.labelled_part(part, draws)
            num_windows += len(features)
            yield features
        if self.subsampling is not None:
            self.subsampling.refuse_nothing(num_windows, f"the windows of {len(examples)} questions")

    def eval_features(self, examples: Examples, *, labels: bool = False) -> FeatureSet:
        """Return the windows of all examples with the columns of post-processing: example and character offsets.

        With ``labels`` the windows are labelled as for training, so that an evaluation has a loss. Raises the errors
        of ``train_features``.
        """
        if self.cache_dir is not None:
            several = any(not isinstance(text, str) for part in slices(examples) for text in column(part, "context"))
            parts = (self._eval_part(part, labels=labels, several=several) for part in slices(examples))
            settings = self._collect_settings("labelled evaluation" if labels else "evaluation")
            return load_features(self.cache_dir, settings, examples, parts)
        return self._eval_part(examples, labels=labels)

    def _collect_settings(self, kind: str) -> list[object]:
        """Return what stored features of one kind depend on: the settings and the tokenizer, as values of JSON."""
        settings = {field.name: getattr(self, field.name) for field in fields(self) if field.init}
        del settings["tokenizer"], settings["cache_dir"]
        if (subsampling := settings.pop("subsampling")) is not None:
            settings["subsampling"] = [subsampling.probabilities.tolist(), subsampling.seed]
        tokenizer = self.tokenizer
        encoder = json.loads(tokenizer.backend_tokenizer.to_str())
        del encoder["truncation"], encoder["padding"]  # left by the last call of the tokenizer
        state = [
            encoder,
            type(tokenizer).__name__,
            tokenizer.padding_side,
            tokenizer.model_input_names,
            tokenizer.pad_token_id,
            tokenizer.cls_token_id,
            tokenizer.bos_token_id,
        ]
        return [kind, settings, state]

    def _eval_part(self, examples: Examples, *, labels: bool, several: bool = False) -> FeatureSet:
        windows, context_index_F = self._cut(examples)
        if several and context_index_F is None:
            # Other parts have questions with several contexts.
            context_index_F = np.zeros(len(windows.example_index_F), np.int64)
        null_token_F = null_tokens(windows, self.tokenizer, self._rule)
        columns = self._label(windows, context_index_F, null_token_F, examples)[0] if labels else None
        return FeatureSet(
            windows,
            token_type_ids=self._has_token_types,
            labels=columns,
            example_ids=column(examples, "id"),
            context_index=context_index_F,
            null_token=null_token_F,
        )

    @property
    def _rule(self) -> LabelRule:
        return "run_qa" if self.compat_label_bug else "characters"

    @property
    def _has_token_types(self) -> bool:
        return "token_type_ids" in self.tokenizer.model_input_names

    def _cut(self, examples: Examples) -> tuple[Windows, Int64s | None]:
        questions = [question.lstrip()[: self.max_q_char_len] for question in column(examples, "question")]
        if self.max_question_length is not None and questions:
            questions = cut_at_token(questions, self.tokenizer, self.max_question_length)
        return self._cutter.cut(questions, column(examples, "context"), self.max_contexts)

    def _label(
        self, windows: Windows, context_index_F: Int64s | None, null_token_F: Int64s, examples: Examples
    ) -> tuple[dict[str, Int64s], Int64s]:
        """Return the labels of each window, columns ``int64 [F]``, and its ``SubsampleType``, ``int64 [F]``."""
        gold = Gold(map(gold_of_example, examples), windows.example_index_F)
        columns = label_windows(windows, gold, context_index_F, null_token_F, rule=self._rule)
        subsample_type_F = subsample_types(columns["target_type"], gold.has_answer_F)
        if not self.target_types:
            del columns["target_type"]
        return columns, subsample_type_F


def window_featurizer(tokenizer: PreTrainedTokenizerFast, settings: object, **more: Any) -> Featurizer:
    """Return a featurizer whose options are the attributes of ``settings`` with the same names, and ``more``."""
    options = {
        field.name: getattr(settings, field.name) for field in fields(Featurizer) if hasattr(settings, field.name)
    }
    return Featurizer(tokenizer, **options, **more)


def check_window(name: str, max_seq_length: int, longest: int) -> None:
    """Raise an ``InputError`` if windows, set by ``name``, are longer than the longest input of a model, in tokens."""
    if max_seq_length > longest:
        raise InputError(
            f"`{name}={max_seq_length}` is more than the model takes ({longest} tokens); set it to {longest} or less."
        )
