"""PrimeQA's preprocessors: a ``datasets.Dataset`` to the base schema, and from there to features.

They adapt the engine in ``portico.mrc.features`` and the parsers in ``portico.mrc.datasets`` to PrimeQA's interface.
Each takes the arguments of :class:`AbstractPreProcessor`.

Shape suffixes: F features (windows), T tokens of all windows.
"""

import logging
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
from transformers import BatchEncoding, PreTrainedTokenizerFast

from portico.data.defects import Defects
from portico.data.sources import import_datasets, number_records
from portico.errors import InputError, InputTypeError
from portico.mrc.arrays import Int64s
from portico.mrc.datasets import natural_questions, squad, tydi
from portico.mrc.datasets.mrqa import char_spans
from portico.mrc.datasets.records import (
    NO_SPAN,
    Annotation,
    Span,
    build_candidates,
    build_target,
    check_text,
    read_key,
    read_objects,
)
from portico.mrc.features.labels import (
    Gold,
    LabelRule,
    Subsampling,
    TargetType,
    gold_of_target,
    label_windows,
    null_tokens,
    subsample_types,
)
from portico.mrc.features.labels import SubsampleType as SubsampleType
from portico.mrc.features.tokenization import WindowCutter
from portico.mrc.features.windows import Windows, last_marked

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)

_NEEDS_DATASETS = "A preprocessor takes a datasets.Dataset"
_MIN_SCORE = 3  # votes that an answer of ELI5 needs to be trained on
_IGNORED_LABEL = -100


class AbstractPreProcessor(ABC):
    """Turns a ``datasets.Dataset`` of examples into one of features.

    Args:
        tokenizer: A fast tokenizer.
        stride: Tokens that two neighbouring windows of a context share.
        max_seq_len: Longest window in tokens; ``None`` for the tokenizer's ``model_max_length``.
        negative_sampling_prob_when_has_answer: See :class:`~portico.mrc.features.labels.Subsampling`.
        negative_sampling_prob_when_no_answer: See there.
        num_workers: Number of processes for ``Dataset.map``; ``None`` to use only this process.
        load_from_cache_file: Whether ``Dataset.map`` may reuse cached features.
        max_q_char_len: Cut longer questions to this many characters.
        single_context_multiple_passages: Whether every question has one context with ``passage_candidates`` in it,
            instead of several contexts.
        max_contexts: How many contexts, or passages of the context, to read; ``None`` for all.
        max_answer_len: Longest generated answer in tokens; ``None`` for the longest window.
        subsampling_seed: Seed of the choice among windows without an answer; no other random state changes.
        compat_label_bug: Label as PrimeQA does, also where that is not the answer: as
            :class:`~portico.mrc.features.featurizer.Featurizer` says, and in a window that the passage of the answer
            only touches, by a last character of MRQA that is taken as the one after it, and without the long answers
            of Natural Questions that have no short one. A warning says so in training.

    Raises:
        InputError: If a probability is out of range.
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
        self._subsampling = Subsampling(
            negative_sampling_prob_when_has_answer, negative_sampling_prob_when_no_answer, subsampling_seed
        )
        self._max_q_char_len = max_q_char_len
        self._single_context_multiple_passages = single_context_multiple_passages
        self._max_contexts = max_contexts
        self._max_answer_len = max_answer_len
        self._compat_label_bug = compat_label_bug
        self._map_options: dict[str, Any] = {"num_proc": num_workers, "load_from_cache_file": load_from_cache_file}

    def process_train(self, examples: "Dataset") -> "tuple[Dataset, Dataset]":
        """Return the examples in the base schema, and their labelled features to train on.

        An ``InputError`` is raised if there are no examples, they lack a column, or subsampling drops every window.
        """
        return self._process(examples, is_train=True)

    def process_eval(self, examples: "Dataset") -> "tuple[Dataset, Dataset]":
        """Return the examples in the base schema, and the features of all their windows; see ``process_train``."""
        return self._process(examples, is_train=False)

    def adapt_dataset(self, dataset: "Dataset", is_train: bool) -> "Dataset":
        """Return the examples in the base schema; by default they are validated and returned unchanged."""
        self.validate_schema(dataset, is_train)
        return dataset

    def label_features_for_subsampling(
        self, tokenized_examples: Mapping[str, Any], examples: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Return a batch of features with the ``SubsampleType`` of each as ``subsample_type``.

        They have ``target_type`` and ``example_idx``, the index of their example in the batch of ``examples``. If
        subsampling keeps every feature, they are returned unchanged.
        """
        if self._subsampling.keeps_all:
            return tokenized_examples
        passages = np.array([next(iter(target["passage_indices"]), -1) for target in examples["target"]], np.int64)
        has_answer_F = passages[np.asarray(tokenized_examples["example_idx"])] >= 0
        types_F = subsample_types(np.asarray(tokenized_examples["target_type"]), has_answer_F)
        return {**tokenized_examples, "subsample_type": types_F.tolist()}

    def subsample_features(self, dataset: "Dataset") -> "Dataset":
        """Return the features to train on, without the column ``subsample_type``; all features if it is missing."""
        if "subsample_type" not in dataset.column_names:
            return dataset
        kept = self._subsampling.select(np.asarray(dataset["subsample_type"]))
        return dataset.select(kept).remove_columns("subsample_type")

    @abstractmethod
    def validate_schema(self, dataset: "Dataset", is_train: bool, pre_adaptation: bool = True) -> None:
        """Raise an ``InputError`` if a required column of the examples is missing or has another type.

        Answers are required if ``is_train``; with ``pre_adaptation`` columns that :meth:`adapt_dataset` adds may
        still be missing.
        """

    def _process_batch(self, examples: Mapping[str, Any], indices: Sequence[int], is_train: bool) -> Any:
        """Return the features of a batch; ``indices`` are the positions of its examples in the dataset."""
        raise InputTypeError(
            f"{type(self).__name__} has no way to make features; override `process_train` and `process_eval`, "
            "or derive from `BasePreProcessor`."
        )

    def _batch_function(self) -> Callable[..., Any]:
        return self._process_batch

    def _process(self, examples: "Dataset", *, is_train: bool) -> "tuple[Dataset, Dataset]":
        if not len(examples):
            raise InputError("There are no examples to process; give at least one question with its context.")
        examples = self.adapt_dataset(examples, is_train)
        if not len(examples):
            raise InputError("Adapting the dataset left no examples to process; give at least one valid question.")
        features = examples.map(
            partial(self._batch_function(), is_train=is_train),
            batched=True,
            with_indices=True,
            remove_columns=examples.column_names,
            desc="Making features",
            **self._map_options,
        )
        return examples, self.subsample_features(features) if is_train else features


class BasePreProcessor(AbstractPreProcessor):
    """Makes features of examples in the base schema.

    An example has ``question``, ``context`` (a list of strings) and optionally ``example_id`` and ``language``; for
    training, ``target`` with one entry per annotator, of which the first one counts. With
    ``single_context_multiple_passages`` it has one context and ``passage_candidates``.

    Raises:
        InputError: If the tokenizer is not a fast one, or a length is out of range.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, *args: Any, **kwargs: Any) -> None:
        super().__init__(tokenizer, *args, **kwargs)
        corrects = not self._compat_label_bug
        self._cutter = WindowCutter(tokenizer, self._max_seq_len, self._stride, corrects_offsets=corrects)

    def process_train(self, examples: "Dataset") -> "tuple[Dataset, Dataset]":
        if self._compat_label_bug:
            logger.warning(
                "`compat_label_bug=True` trains on PrimeQA's labels, also where they are not the answers; leave it "
                "out to train on the answers."
            )
        if self._subsampling.keeps_all:
            logger.warning("Training on all windows without an answer: both negative sampling probabilities are 1.")
        elif not self._subsampling.probabilities[1:].any():
            logger.warning("Training on no window without an answer: both negative sampling probabilities are 0.")
        return super().process_train(examples)

    def adapt_dataset(self, dataset: "Dataset", is_train: bool) -> "Dataset":
        """Return the examples with an identifier and a language; missing ones are generated deterministically."""
        self.validate_schema(dataset, is_train)
        if "example_id" not in dataset.column_names:
            names = (f"{number} {question}" for number, question in enumerate(dataset["question"]))
            dataset = dataset.add_column("example_id", [str(uuid.uuid5(uuid.NAMESPACE_OID, name)) for name in names])
        if "language" not in dataset.column_names:
            dataset = dataset.add_column("language", ["UNKNOWN"] * len(dataset))
        self.validate_schema(dataset, is_train, pre_adaptation=False)
        return dataset

    def validate_schema(self, dataset: "Dataset", is_train: bool, pre_adaptation: bool = True) -> None:
        columns = base_schema(is_train=is_train, single_context=self._single_context_multiple_passages)
        if not pre_adaptation:
            columns |= dict.fromkeys(("example_id", "language"), columns["question"])
        for name, expected in columns.items():
            if name not in dataset.features:
                raise InputError(
                    f"The examples have no column {name!r}, only {', '.join(map(repr, dataset.column_names))}; add it "
                    f"with the type {expected}, or use the preprocessor of this dataset."
                )
            if dataset.features[name] != expected:
                raise InputError(
                    f"The column {name!r} of the examples has the type {dataset.features[name]}, but must be "
                    f"{expected}; cast it with `Dataset.cast_column`."
                )

    def _process_batch(self, examples: Mapping[str, Any], indices: Sequence[int], is_train: bool) -> BatchEncoding:
        return BatchEncoding(self._feature_table(examples, indices, is_train=is_train).to_pydict())

    def _batch_function(self) -> Callable[..., Any]:
        # Arrow tables avoid Python lists, but a subclass may override PrimeQA's `_process_batch`, which returns lists.
        overridden = type(self)._process_batch is not BasePreProcessor._process_batch
        return self._process_batch if overridden else self._feature_table

    def _feature_table(self, examples: Mapping[str, Any], indices: Sequence[int], *, is_train: bool) -> Any:
        import pyarrow as pa

        questions = [question.lstrip()[: self._max_q_char_len] for question in examples["question"]]
        windows, context_index_F = self._cutter.cut(questions, self._contexts(examples), self._max_contexts)
        owner_F = windows.example_index_F
        columns = self._token_columns(windows, context_offsets_only=not is_train)
        columns["example_idx"] = np.asarray(indices, np.int64)[owner_F]
        columns["example_id"] = [examples["example_id"][owner] for owner in owner_F]
        if context_index_F is not None:
            columns["context_idx"] = context_index_F
        if is_train:
            columns |= self._build_training_columns(windows, context_index_F, examples)
        return pa.table(columns)

    def _contexts(self, examples: Mapping[str, Any]) -> list[str] | list[list[str]]:
        """Return the contexts of a batch; a single one is cut after the last passage to read, if there are more."""
        if not self._single_context_multiple_passages:
            return [list(contexts) for contexts in examples["context"]]
        single: list[str] = []
        for row, contexts in enumerate(examples["context"]):
            if len(contexts) != 1:
                raise InputError(
                    f"Example {examples['example_id'][row]!r} has {len(contexts)} contexts, but "
                    "`single_context_multiple_passages=True` takes one; set it to False, or join them."
                )
            ends: list[int] = []
            if self._max_contexts is not None and "passage_candidates" in examples:
                ends = examples["passage_candidates"][row]["end_positions"]
            read = ends[: self._max_contexts]
            single.append(contexts[0][: read[-1]] if 0 < len(read) < len(ends) else contexts[0])
        return single

    def _token_columns(self, windows: Windows, *, context_offsets_only: bool) -> dict[str, Any]:
        """Return the columns with a list per window, as Arrow arrays."""
        import pyarrow as pa

        def lists(values_T: npt.NDArray[Any]) -> Any:
            return pa.ListArray.from_arrays(pa.array(windows.row_starts.astype(np.int32)), pa.array(values_T))

        columns = {
            "input_ids": lists(windows.input_ids_T),
            "attention_mask": lists(windows.attention_mask_T.astype(np.int8)),
        }
        if "token_type_ids" in self._tokenizer.model_input_names:
            columns["token_type_ids"] = lists(windows.token_type_ids_T.astype(np.int8))
        pair_starts = pa.array(np.arange(0, 2 * len(windows.char_offsets_T2) + 1, 2, dtype=np.int32))
        characters = pa.array(windows.char_offsets_T2.astype(np.int64).ravel())
        is_null = pa.array(~windows.in_context_T) if context_offsets_only else None
        columns["offset_mapping"] = lists(pa.ListArray.from_arrays(pair_starts, characters, mask=is_null))
        return columns

    def _build_training_columns(
        self, windows: Windows, context_index_F: Int64s | None, examples: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the labels and, unless every window is kept, the column for subsampling."""
        single = self._single_context_multiple_passages
        passages = examples["passage_candidates"] if single else [None] * len(examples["question"])
        # The first annotator counts, as in PrimeQA.
        golds = [gold_of_target(target, 0, texts) for target, texts in zip(examples["target"], passages, strict=True)]
        if single:
            # `max_contexts` may cut the context within an answer.
            lengths = map(len, self._contexts(examples))
            golds = [gold.restrict_to(length) for gold, length in zip(golds, lengths, strict=True)]
        columns = self._label(windows, Gold(golds, windows.example_index_F), context_index_F)
        in_batch = {**columns, "example_idx": windows.example_index_F}
        labelled = self.label_features_for_subsampling(in_batch, examples)
        return {name: column for name, column in labelled.items() if name != "example_idx"}

    def _label(self, windows: Windows, gold: Gold, context_index_F: Int64s | None) -> dict[str, Int64s]:
        rule: LabelRule = "run_qa" if self._compat_label_bug else "characters"
        null_token_F = null_tokens(windows, self._tokenizer, rule)
        return label_windows(windows, gold, context_index_F, null_token_F, rule=rule)


def base_schema(*, is_train: bool, single_context: bool) -> dict[str, Any]:
    """Return the types of the base schema's columns, without identifier and language."""
    datasets = import_datasets(_NEEDS_DATASETS)
    text, texts = datasets.Value("string"), datasets.List(datasets.Value("string"))
    integers = datasets.List(datasets.Value("int64"))
    columns = {"question": text, "context": texts}
    if is_train:
        positions = dict.fromkeys(("start_positions", "end_positions", "passage_indices"), integers)
        columns["target"] = {**positions, "yes_no_answer": texts}
    if is_train and single_context:
        columns["passage_candidates"] = {"start_positions": integers, "end_positions": integers}
    return columns


class _DatasetPreProcessor(BasePreProcessor):
    """Adapts the records of a dataset to the base schema before making features of them."""

    _source_columns: ClassVar[tuple[str, ...]]
    """Columns that the columns of the base schema replace."""

    @staticmethod
    @abstractmethod
    def _base_columns(raw: Mapping[str, Any], *, is_train: bool, compat_label_bug: bool) -> dict[str, Any]:
        """Return the columns of the base schema for one record."""

    def adapt_dataset(self, dataset: "Dataset", is_train: bool) -> "Dataset":
        """Return the examples in the base schema; other columns are kept."""
        datasets = import_datasets(_NEEDS_DATASETS)
        text = datasets.Value("string")
        optional = {"example_id": text, "language": text, "answer_text": datasets.List(text)}
        adapt = partial(self._base_columns, is_train=is_train, compat_label_bug=self._compat_label_bug)
        made = base_schema(is_train=True, single_context=True)
        # `Dataset.map` needs the types beforehand: the first record shows which optional columns there are.
        if len(dataset):
            first = adapt(dataset[0])
            made |= {name: kind for name, kind in optional.items() if name in first}
        removed = [name for name in self._source_columns if name in dataset.column_names]
        kept = {name: kind for name, kind in dataset.features.items() if name not in removed}
        adapted = dataset.map(
            adapt,
            remove_columns=removed,
            features=datasets.Features({**kept, **made}),
            desc="Adapting examples",
            **self._map_options,
        )
        if not self._single_context_multiple_passages:
            adapted = adapted.remove_columns("passage_candidates")
        return super().adapt_dataset(adapted, is_train)


class _SingleContextPreProcessor(_DatasetPreProcessor):
    """For datasets with one context per question: ``single_context_multiple_passages`` is always True."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._single_context_multiple_passages = True


class SQUADPreprocessor(_SingleContextPreProcessor):
    """Makes features of SQuAD, flat as on the hub or nested as in the original file (a column ``data``).

    The only passage is the whole context. Questions without an answer have a null target. The texts of the answers are
    in the column ``answer_text``.
    """

    _source_columns = ("id", "answers", "is_impossible", "plausible_answers", "title")

    def adapt_dataset(self, dataset: "Dataset", is_train: bool) -> "Dataset":
        if "data" in dataset.column_names:
            dataset = import_datasets(_NEEDS_DATASETS).Dataset.from_list(list(_flat_squad(dataset)))
        return super().adapt_dataset(dataset, is_train)

    @staticmethod
    def _base_columns(raw: Mapping[str, Any], *, is_train: bool, compat_label_bug: bool) -> dict[str, Any]:
        record = squad.example(raw)
        answers = record["answers"]
        spans = [(start, start + len(text)) for text, start in zip(*answers.values(), strict=True)]
        return {**_build_one_passage(record, record["id"], spans), "answer_text": answers["text"]}


def _build_one_passage(raw: Mapping[str, Any], identifier: object, spans: Sequence[Span]) -> dict[str, Any]:
    """Return the base schema's columns for a record whose only passage is its whole context."""
    return {
        "example_id": identifier,
        "question": raw["question"],
        "context": [raw["context"]],
        "target": build_target([Annotation(span, 0) for span in spans] or [Annotation()]),
        "passage_candidates": build_candidates([(0, len(raw["context"]))]),
    }


def _flat_squad(dataset: "Dataset") -> Iterator[Mapping[str, Any]]:
    defects = Defects("The dataset", skip_invalid=False)
    for place, row in number_records(dataset):
        for article in row["data"] if isinstance(row["data"], list) else [row["data"]]:
            for _, question in squad.questions(place, article, defects):
                record = squad.example(question)
                yield {key: record[key] for key in ("id", "context", "question", "answers")}


class MRQAPreprocessor(_DatasetPreProcessor):
    """Makes features of MRQA as the hub has it.

    Of every detected answer the first occurrence counts. The texts of the answers are in the column ``answer_text``.
    """

    _source_columns = ("qid", "answers", "detected_answers", "context_tokens", "question_tokens", "subset")

    @staticmethod
    def _base_columns(raw: Mapping[str, Any], *, is_train: bool, compat_label_bug: bool) -> dict[str, Any]:
        answers = read_objects(raw["detected_answers"], "detected_answers")
        spans = [char_spans(answer)[0] for answer in answers]
        if not compat_label_bug:
            # MRQA's spans include the last character.
            spans = [(start, last + 1) for start, last in spans]
        return {**_build_one_passage(raw, raw["qid"], spans), "answer_text": [answer["text"] for answer in answers]}


class TyDiQAPreprocessor(_SingleContextPreProcessor):
    """Makes features of TyDi QA's primary task, with characters instead of UTF-8 bytes.

    The data are in the form of the hub or of Google, which list questions use too; ``document_plaintext`` is kept for
    metrics.
    """

    _source_columns = ("question_text", "annotations", "passage_answer_candidates")

    @staticmethod
    def _base_columns(raw: Mapping[str, Any], *, is_train: bool, compat_label_bug: bool) -> dict[str, Any]:
        document = raw["document_plaintext"]
        offsets = tydi.ByteOffsets(document)
        return {
            **({"example_id": str(raw["example_id"])} if "example_id" in raw else {}),
            "question": raw["question_text"],
            "context": [document],
            "target": build_target(tydi.read_annotations(raw["annotations"], offsets)),
            "passage_candidates": build_candidates(tydi.passage_spans(raw["passage_answer_candidates"], offsets)),
        }


TyDiQAGooglePreprocessor = TyDiQAPreprocessor


class TyDiBoolQAPreprocessor(TyDiQAPreprocessor):
    """Labels windows that answer yes or no with the part of the gold passage that they hold.

    The part is the context tokens that have a character of the passage. With ``compat_label_bug`` it starts with the
    first that starts in the passage, or else the first context token, and ends with the last that ends in it, or else
    the last context token.
    """

    def _label(self, windows: Windows, gold: Gold, context_index_F: Int64s | None) -> dict[str, Int64s]:
        labels = super()._label(windows, gold, context_index_F)
        begin_T, stop_T = np.repeat(gold.passage_chars_F2, windows.lengths_F, axis=0).T
        start_T, end_T = windows.char_offsets_T2.T
        if self._compat_label_bug:
            # Tokens that are only partly in the passage count for neither end.
            starts_inside_T = windows.in_context_T & (start_T >= begin_T) & (start_T < stop_T)
            ends_inside_T = windows.in_context_T & (end_T <= stop_T) & (end_T > begin_T)
        else:
            # Some tokens have no character, such as removed accents.
            overlaps_T = (start_T < stop_T) & (end_T > begin_T) & (end_T > start_T)
            starts_inside_T = ends_inside_T = windows.in_context_T & overlaps_T
        row_starts, row_ends = windows.row_starts[:-1], windows.row_starts[1:]
        first_F, last_F = windows.context_bounds()
        start_F = windows.first_in_row(starts_inside_T)
        end_F = last_marked(ends_inside_T, row_starts, row_ends)
        parts = {
            "start_positions": np.where(start_F < row_ends, start_F, first_F) - row_starts,
            "end_positions": np.where(end_F >= row_starts, end_F, last_F) - row_starts,
        }
        is_yes_no_F = np.isin(labels["target_type"], (TargetType.YES, TargetType.NO))
        return labels | {name: np.where(is_yes_no_F, part_F, labels[name]) for name, part_F in parts.items()}


class NaturalQuestionsPreProcessor(_SingleContextPreProcessor):
    """Makes features of Natural Questions as the hub has it; the context is the document's tokens, joined by spaces.

    For training, answers and passages are characters of the context. For evaluation they are bytes of the page, as the
    metric expects; ``document`` is kept to find answers in the page. With ``compat_label_bug``, as in PrimeQA, an
    annotator without a short answer has no long answer either, so that yes and no, too, are no answer; otherwise it is
    kept, as the official metric does.
    """

    _source_columns = ("id", "annotations", "long_answer_candidates")

    def process_eval(self, examples: "Dataset") -> "tuple[Dataset, Dataset]":
        if self._max_contexts is not None:
            logger.warning(
                "`max_contexts=%d` counts passages in bytes of the page when evaluating, as PrimeQA does, so more of "
                "the context is read than in training; leave it out to evaluate on whole documents.",
                self._max_contexts,
            )
        return super().process_eval(examples)

    @staticmethod
    def _base_columns(raw: Mapping[str, Any], *, is_train: bool, compat_label_bug: bool) -> dict[str, Any]:
        document = natural_questions.read_document(raw)
        in_bytes = itemgetter("start_byte", "end_byte")
        passages, annotations = natural_questions.read_answers(raw, document.chars if is_train else in_bytes)
        if compat_label_bug:
            annotations = [
                annotation if annotation.span != NO_SPAN else Annotation(yes_no=annotation.yes_no)
                for annotation in annotations
            ]
        return {
            "example_id": str(raw["id"] if "id" in raw else raw["example_id"]),
            "question": natural_questions.question_text(raw),
            "context": [document.context],
            "language": "english",
            "target": build_target(annotations),
            "passage_candidates": build_candidates(passages),
        }


class ELI5FiDPreprocessor(AbstractPreProcessor):
    """Makes features of ELI5 with passages for fusion-in-decoder: one row of tokens per passage, without windows.

    An example has ``id``, ``input`` (the question), ``passages`` (strings, or objects whose ``text`` is read) and, for
    training, ``output``, a list of ``{"answer", "meta": {"score"}}``. Each answer with at least 3 votes makes a
    training feature; a question whose answers all have fewer is left out, as is an empty one, and a question without
    answers has an empty answer. An evaluation feature is labelled with the first answer if there is one.
    """

    def process_train(self, examples: "Dataset") -> "tuple[Dataset, Dataset]":
        examples, features = super().process_train(examples)
        if not len(features):
            raise InputError(
                f"None of the {len(examples)} examples has an answer with {_MIN_SCORE} or more votes to train on; "
                "give examples in which `meta.score` of an answer is higher."
            )
        return examples, features

    def set_max_contexts(self, new_max_contexts: int | None) -> None:
        self._max_contexts = new_max_contexts

    def validate_schema(self, dataset: "Dataset", is_train: bool, pre_adaptation: bool = True) -> None:
        required = ("id", "input", "passages", "output") if is_train else ("id", "input", "passages")
        missing = [name for name in required if name not in dataset.column_names]
        if missing:
            raise InputError(
                f"The examples have no column {missing[0]!r}, only {', '.join(map(repr, dataset.column_names))}; "
                f"fusion-in-decoder takes {', '.join(required)}."
            )

    def _process_batch(self, examples: Mapping[str, Any], indices: Sequence[int], is_train: bool) -> dict[str, Any]:
        is_labelled = "output" in examples
        outputs = examples["output"] if is_labelled else [None] * len(examples["input"])
        answers = [
            _answers(output, is_train=is_train) if question or not is_train else []
            for question, output in zip(examples["input"], outputs, strict=True)
        ]
        owners = [row for row, texts in enumerate(answers) for _ in texts]
        encoded = [
            self._tokenizer(
                [f"question: {question} passage: {_text(passage)}" for passage in passages[: self._max_contexts]],
                max_length=self._max_seq_len,
                padding="max_length",
                truncation=True,
            )
            for question, passages in zip(examples["input"], examples["passages"], strict=True)
        ]
        features = {
            "input_ids": [encoded[owner]["input_ids"] for owner in owners],
            "attention_mask": [encoded[owner]["attention_mask"] for owner in owners],
            "example_idx": [indices[owner] for owner in owners],
            "example_id": [str(examples["id"][owner]) for owner in owners],
        }
        if is_labelled:
            targets = [text for texts in answers for text in texts]
            length = self._max_seq_len if self._max_answer_len is None else self._max_answer_len
            labels = [
                self._tokenizer(text_target=text, max_length=length, truncation=True)["input_ids"] for text in targets
            ]
            features["labels"] = [ids + [_IGNORED_LABEL] * (length - len(ids)) for ids in labels]
        return features


def _answers(output: Sequence[Mapping[str, Any]] | None, *, is_train: bool) -> list[str]:
    """Return the answers with enough votes to train on, or the first one to evaluate; ``[""]`` without answers."""
    given = [answer for answer in output or () if answer["answer"]] or [{"answer": "", "meta": {"score": _MIN_SCORE}}]
    if not is_train:
        return [given[0]["answer"]]
    return [answer["answer"] for answer in given if ((answer.get("meta") or {}).get("score") or 0) >= _MIN_SCORE]


def _text(passage: str | Mapping[str, Any]) -> str:
    # Without the title, which `portico.mrc.datasets.fid` puts first: PrimeQA reads the text only.
    text = passage if isinstance(passage, str) else read_key(passage, "text", "a passage has text")
    return check_text("passages", text)
