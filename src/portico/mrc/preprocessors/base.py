"""PrimeQA's preprocessor of the base schema, on the engine of :class:`~portico.mrc.features.featurizer.Featurizer`."""

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from transformers import BatchEncoding, PreTrainedTokenizerFast

from portico.errors import InputError
from portico.mrc.arrays import Int64s
from portico.mrc.features.gold import Gold, gold_of_targets
from portico.mrc.features.labelling import WindowLabels, label_windows
from portico.mrc.features.subsampling import Subsampling, subsample_types
from portico.mrc.features.window_cutter import WindowCutter
from portico.mrc.features.windows import Windows, WindowSize
from portico.mrc.preprocessors.abstract import AbstractPreProcessor
from portico.mrc.preprocessors.adapting import with_identity
from portico.mrc.preprocessors.batch_pairs import pairs_of_batch
from portico.mrc.preprocessors.feature_columns import token_columns
from portico.mrc.preprocessors.schema import base_schema, check_schema

logger = logging.getLogger(__name__)


class BasePreProcessor(AbstractPreProcessor):
    """Makes features of examples in the base schema.

    An example has ``question``, ``context`` (a list of texts), perhaps ``example_id`` and ``language``; to train on,
    ``target`` with one entry an annotator, of whom the first counts. With ``single_context_multiple_passages`` it has
    one context and ``passage_candidates``.

    Args:
        *args: As in :class:`~portico.mrc.preprocessors.abstract.AbstractPreProcessor`.
        **kwargs: As in :class:`~portico.mrc.preprocessors.abstract.AbstractPreProcessor`.

    Raises:
        InputError: If the tokenizer is not a fast one, or a length or probability is out of range.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, *args: Any, **kwargs: Any) -> None:
        super().__init__(tokenizer, *args, **kwargs)
        self._cutter = WindowCutter(tokenizer, WindowSize(self._max_seq_len, self._stride, pad=False))
        self._subsampling = Subsampling(
            self._negative_sampling_prob_when_has_answer,
            self._negative_sampling_prob_when_no_answer,
            self._subsampling_seed,
        )

    def process_train(self, examples: Any) -> tuple[Any, Any]:
        """Return the adapted examples and the labelled features of them, subsampled.

        Raises:
            InputError: If there are no examples, they lack a column, or subsampling leaves nothing.
        """
        if self._subsampling.keeps_all:
            logger.warning("Training on all windows without an answer: both negative sampling probabilities are 1.")
        elif self._subsampling.keeps_positives_only:
            logger.warning("Training on no window without an answer: both negative sampling probabilities are 0.")
        return self._process(examples, is_train=True)

    def process_eval(self, examples: Any) -> tuple[Any, Any]:
        """Return the adapted examples and the features of all their windows.

        Raises:
            InputError: If there are no examples, or they lack a column.
        """
        return self._process(examples, is_train=False)

    def adapt_dataset(self, dataset: Any, is_train: bool) -> Any:
        """Return the examples with an identifier and a language; what is missing is made up.

        Raises:
            InputError: If a column is missing or of another type.
        """
        self.validate_schema(dataset, is_train)
        dataset = with_identity(dataset)
        self.validate_schema(dataset, is_train, pre_adaptation=False)
        return dataset

    def validate_schema(self, dataset: Any, is_train: bool, pre_adaptation: bool = True) -> None:
        """Refuse examples that lack a column of the base schema, or have one of another type.

        Args:
            dataset: The examples.
            is_train: Whether answers are needed.
            pre_adaptation: Whether identifier and language may still be missing.

        Raises:
            InputError: Names the column, what came and what is allowed.
        """
        single = self._single_context_multiple_passages
        check_schema(dataset, base_schema(is_train=is_train, single_context=single, adapted=not pre_adaptation))

    def label_features_for_subsampling(
        self, tokenized_examples: Mapping[str, Any], examples: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Return a batch of features with the `SubsampleType` of each as ``subsample_type``.

        Where every feature is trained on, they are returned as they are.

        Args:
            tokenized_examples: ``target_type`` and ``example_idx`` (the place of the example in the batch) of each
                feature, and more.
            examples: The batch of examples.
        """
        if self._subsampling.keeps_all:
            return tokenized_examples
        passages = np.array([next(iter(target["passage_indices"]), -1) for target in examples["target"]], np.int64)
        owners = np.asarray(tokenized_examples["example_idx"])
        types = subsample_types(np.asarray(tokenized_examples["target_type"]), passages[owners] >= 0)
        return {**tokenized_examples, "subsample_type": types.tolist()}

    def subsample_features(self, dataset: Any) -> Any:
        """Return the features that are trained on, without ``subsample_type``.

        Raises:
            InputError: If none is left.
        """
        if "subsample_type" not in dataset.column_names:
            return dataset
        kept = np.flatnonzero(self._subsampling.keep(np.asarray(dataset["subsample_type"])))
        if not len(kept):
            raise InputError(
                f"Subsampling leaves none of {len(dataset)} windows to train on; give questions with answers, or set "
                "higher negative sampling probabilities."
            )
        return dataset.select(kept).remove_columns("subsample_type")

    def _process(self, examples: Any, *, is_train: bool) -> tuple[Any, Any]:
        if not len(examples):
            raise InputError("There are no examples to process; give at least one question with its context.")
        examples = self.adapt_dataset(examples, is_train)
        if not len(examples):
            raise InputError("Adapting the data set left no examples to process; give at least one usable question.")
        # Arrow tables save making lists of them, unless a subclass makes the features of a batch itself.
        is_own = type(self)._process_batch is BasePreProcessor._process_batch
        features = examples.map(
            partial(self._feature_table if is_own else self._process_batch, is_train=is_train),
            batched=True,
            with_indices=True,
            remove_columns=examples.column_names,
            desc="Making features",
            **self._map_options,
        )
        return examples, self.subsample_features(features) if is_train else features

    def _process_batch(self, examples: Mapping[str, Any], indices: Sequence[int], is_train: bool) -> BatchEncoding:
        """Return the features of a batch; ``indices`` are the places of its examples in the data set."""
        return BatchEncoding(self._feature_table(examples, indices, is_train=is_train).to_pydict())

    def _feature_table(self, examples: Mapping[str, Any], indices: Sequence[int], *, is_train: bool) -> Any:
        """Return the features of a batch as an Arrow table."""
        import pyarrow as pa

        pairs = pairs_of_batch(
            examples,
            max_q_char_len=self._max_q_char_len,
            max_contexts=self._max_contexts,
            single_context=self._single_context_multiple_passages,
        )
        windows = self._cutter.cut(pairs.questions, pairs.contexts)
        owner_F = pairs.example_index_C[windows.example_index_F]
        columns = token_columns(
            windows,
            token_type_ids="token_type_ids" in self._tokenizer.model_input_names,
            context_offsets_only=not is_train,
        )
        columns["example_idx"] = np.asarray(indices, np.int64)[owner_F]
        columns["example_id"] = [examples["example_id"][owner] for owner in owner_F]
        context_index_F = None
        if pairs.context_index_C is not None:
            context_index_F = columns["context_idx"] = pairs.context_index_C[windows.example_index_F]
        if is_train:
            columns |= self._training_columns(windows, owner_F, context_index_F, examples)
        return pa.table(columns)

    def _training_columns(
        self, windows: Windows, owner_F: Int64s, context_index_F: Int64s | None, examples: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return labels and, if there is something to choose, what subsampling reads."""
        single = self._single_context_multiple_passages
        passages = examples["passage_candidates"] if single else [None] * len(examples["question"])
        gold = gold_of_targets(examples["target"], passages)[owner_F]
        labels = self._label(windows, gold, context_index_F)
        columns: dict[str, Any] = {
            "start_positions": labels.positions_F2[:, 0],
            "end_positions": labels.positions_F2[:, 1],
            "target_type": labels.target_type_F,
        }
        labelled = self.label_features_for_subsampling({**columns, "example_idx": owner_F}, examples)
        # The place in the batch is not that in the data set.
        return {name: column for name, column in labelled.items() if name != "example_idx"}

    def _label(self, windows: Windows, gold: Gold, context_index_F: Int64s | None) -> WindowLabels:
        return label_windows(windows, gold, context_index_F, self._tokenizer, compat_label_bug=self._compat_label_bug)
