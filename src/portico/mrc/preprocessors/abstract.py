from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedTokenizerFast


class AbstractPreProcessor(ABC):
    """Turns a ``datasets.Dataset`` of examples into one of features.

    Args:
        tokenizer: A fast tokenizer.
        stride: Tokens that two neighbouring windows of a context share.
        max_seq_len: Longest window in tokens; ``None`` for the longest that the tokenizer names.
        negative_sampling_prob_when_has_answer: Probability of training on a window without an answer, of a question
            that has one.
        negative_sampling_prob_when_no_answer: Probability of training on a window of a question without an answer.
        num_workers: Processes that make features; ``None`` for this one alone.
        load_from_cache_file: Whether ``datasets`` may take features that it made before.
        max_q_char_len: Longer questions are cut to this many characters.
        single_context_multiple_passages: Whether every question has one context of which ``passage_candidates`` are
            parts, instead of several contexts.
        max_contexts: Most contexts, or passages of the context, that are read; ``None`` for all.
        max_answer_len: Longest answer in tokens that is generated; ``None`` for the longest window.
        subsampling_seed: Seed of the choice among windows without an answer; no other random numbers change.
        compat_label_bug: As in :class:`~portico.mrc.features.featurizer.Featurizer`.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        stride: int,
        max_seq_len: int | None = None,
        negative_sampling_prob_when_has_answer: float = 0.01,
        negative_sampling_prob_when_no_answer: float = 0.04,
        num_workers: int | None = None,
        load_from_cache_file: bool = True,
        max_q_char_len: int = 128,
        single_context_multiple_passages: bool = False,
        max_contexts: int | None = None,
        max_answer_len: int | None = None,
        *,
        subsampling_seed: int = 0,
        compat_label_bug: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._stride = stride
        self._max_seq_len = tokenizer.model_max_length if max_seq_len is None else max_seq_len
        self._negative_sampling_prob_when_has_answer = negative_sampling_prob_when_has_answer
        self._negative_sampling_prob_when_no_answer = negative_sampling_prob_when_no_answer
        self._num_workers = num_workers
        self._load_from_cache_file = load_from_cache_file
        self._max_q_char_len = max_q_char_len
        self._single_context_multiple_passages = single_context_multiple_passages
        self._max_contexts = max_contexts
        self._max_answer_len = max_answer_len
        self._subsampling_seed = subsampling_seed
        self._compat_label_bug = compat_label_bug

    @property
    def _map_options(self) -> dict[str, Any]:
        """The options of every ``Dataset.map``."""
        return {"num_proc": self._num_workers, "load_from_cache_file": self._load_from_cache_file}

    @abstractmethod
    def process_train(self, examples: Any) -> tuple[Any, Any]:
        """Return the examples in the base schema, and the labelled features of them to train on."""

    @abstractmethod
    def process_eval(self, examples: Any) -> tuple[Any, Any]:
        """Return the examples in the base schema, and the features of all their windows."""

    @abstractmethod
    def adapt_dataset(self, dataset: Any, is_train: bool) -> Any:
        """Return the examples in the base schema."""

    @abstractmethod
    def label_features_for_subsampling(
        self, tokenized_examples: Mapping[str, Any], examples: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Return a batch of features with their ``subsample_type``."""

    @abstractmethod
    def subsample_features(self, dataset: Any) -> Any:
        """Return the features that are trained on."""

    @abstractmethod
    def validate_schema(self, dataset: Any, is_train: bool, pre_adaptation: bool = True) -> None:
        """Refuse a data set without the columns that are read."""
