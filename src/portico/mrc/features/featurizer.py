"""Examples to model inputs: the tokenised windows of question and context, labelled for training."""

from dataclasses import KW_ONLY, dataclass

import numpy as np
from transformers import PreTrainedTokenizerFast

from portico.errors import InputError
from portico.mrc.arrays import Int64s
from portico.mrc.datasets.examples import Examples, column
from portico.mrc.features.labels import Gold, Subsampling, gold_of_example, label_windows, subsample_types
from portico.mrc.features.tokenization import WindowCutter, cut_at_token, trim_questions
from portico.mrc.features.windows import FeatureSet, Windows


@dataclass(eq=False)
class Featurizer:
    """Turns examples into the windows that a question answering model reads.

    The windows equal those of the QA example of transformers: the whole question, with the context cut into windows
    that overlap; context first for tokenizers that pad on the left. A question with several contexts gets windows of
    each.

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
        pad_to_max_length: Whether to pad every window to `max_seq_length` here instead of in the collator.
        compat_label_bug: Reproduce the labels of the QA example of transformers for an answer that starts in the last
            context token of a window: its start is then the last token of the row.

    Raises:
        InputError: If the tokenizer is not a fast one, or `doc_stride` is negative or not below `max_seq_length`.
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

    def __post_init__(self) -> None:
        self._cutter = WindowCutter(self.tokenizer, self.max_seq_length, self.doc_stride, self.pad_to_max_length)

    def train_features(self, examples: Examples) -> FeatureSet:
        """Return the labelled windows of all examples, without those that subsampling drops.

        A window that does not hold the whole first answer, and every window of an unanswerable question, is labelled
        with its CLS token.

        Raises:
            InputError: If there are no examples, a question leaves no room for the windows to advance, or subsampling
                drops every window.
        """
        windows, context_index_F = self._cut(examples)
        columns, subsample_type_F = self._label(windows, context_index_F, examples)
        if self.subsampling is not None and not self.subsampling.keeps_all:
            kept = np.flatnonzero(self.subsampling.keep(subsample_type_F))
            if not len(kept):
                raise InputError(
                    "Subsampling leaves no window to train on, because none holds an answer; give questions with "
                    "answers, or raise the probabilities of keeping windows without."
                )
            windows, columns = windows.take(kept), {name: column_F[kept] for name, column_F in columns.items()}
        return FeatureSet(windows, token_type_ids=self._has_token_types, labels=columns)

    def eval_features(self, examples: Examples, *, labels: bool = False) -> FeatureSet:
        """Return the windows of all examples with what post-processing needs: example and character offsets.

        Args:
            examples: The examples.
            labels: Whether to label the windows as for training, so that an evaluation has a loss.

        Raises:
            InputError: As in `train_features`.
        """
        windows, context_index_F = self._cut(examples)
        columns = self._label(windows, context_index_F, examples)[0] if labels else None
        return FeatureSet(
            windows,
            token_type_ids=self._has_token_types,
            labels=columns,
            example_ids=column(examples, "id"),
            context_index=context_index_F,
        )

    @property
    def _has_token_types(self) -> bool:
        return "token_type_ids" in self.tokenizer.model_input_names

    def _cut(self, examples: Examples) -> tuple[Windows, Int64s | None]:
        questions = trim_questions(column(examples, "question"), self.max_q_char_len)
        if self.max_question_length is not None and questions:
            questions = cut_at_token(questions, self.tokenizer, self.max_question_length)
        return self._cutter.cut(questions, column(examples, "context"), self.max_contexts)

    def _label(
        self, windows: Windows, context_index_F: Int64s | None, examples: Examples
    ) -> tuple[dict[str, Int64s], Int64s]:
        """Return the labels of each window, columns ``int64 [F]``, and its `SubsampleType`, ``int64 [F]``."""
        gold = Gold.of(map(gold_of_example, examples), windows.example_index_F)
        labels = label_windows(windows, gold, context_index_F, self.tokenizer, compat_label_bug=self.compat_label_bug)
        columns = {"start_positions": labels.positions_F2[:, 0], "end_positions": labels.positions_F2[:, 1]}
        if self.target_types:
            columns["target_type"] = labels.target_type_F
        return columns, subsample_types(labels.target_type_F, gold.has_answer_F)


def check_window(name: str, max_seq_length: int, longest: int) -> None:
    """Refuse windows, set by ``name``, that are longer than the longest input of a model, both in tokens."""
    if max_seq_length > longest:
        raise InputError(
            f"`{name}={max_seq_length}` is more than the model takes ({longest} tokens); set it to {longest} or less."
        )
