"""PrimeQA's post-processors: from a model's outputs to records, references and metric-ready predictions.

Source: PrimeQA, package ``primeqa.mrc.processors.postprocessors``.

Shape suffixes: E examples, F features (windows), N ranked spans, or records of one example.
"""

import logging
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from portico.errors import InputError, InputStopIteration
from portico.mrc.arrays import Int64s
from portico.mrc.datasets import natural_questions
from portico.mrc.datasets.examples import Examples, arrow_view, column, contexts_of
from portico.mrc.datasets.records import read_objects
from portico.mrc.features.labels import TargetType
from portico.mrc.features.windows import FeatureSet
from portico.mrc.postprocess.ranking import (
    SupportedSpanScorers,
    initialize_scorer,
    passage_indices,
    rank_spans,
    span_probabilities,
)
from portico.mrc.postprocess.search import CandidateSearch
from portico.mrc.postprocess.streaming import CandidateCollector
from portico.mrc.postprocess.token_offsets import (
    ExampleColumns,
    Features,
    TokenOffsets,
    offsets_of_rows,
    token_offsets,
)
from portico.mrc.primeqa.confidence import ConfidenceScorer, SpanRecord

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_OUTPUTS = ("start_logits", "end_logits", "target_type_logits")
_CONFIDENCE_OUTPUTS = (*_OUTPUTS, "start_stdev", "end_stdev", "query_passage_similarity")

logger = logging.getLogger(__name__)


class EvalPredictionWithProcessing(NamedTuple):
    """All candidates as they are written, with references and predictions as a metric takes them."""

    predictions: Any
    label_ids: Any
    processed_predictions: Any


class AbstractPostProcessor(ABC):
    """Turns the outputs of a model into predictions, and predictions and examples into the arguments of metrics.

    Args:
        k: Predictions to keep of each example.
        max_answer_length: Longest answer, in tokens.
        single_context_multiple_passages: Whether each example has one context of several passages, and not a context
            for each passage.
        **ignored: Options of other post-processors, which a shared call may pass; they have no effect.
    """

    def __init__(
        self, k: int, max_answer_length: int, single_context_multiple_passages: bool = False, **ignored: object
    ) -> None:
        if ignored:
            logger.warning("%s ignores the options %s; leave them out.", type(self).__name__, ", ".join(ignored))
        self._k = k
        self._max_answer_length = max_answer_length
        self._single_context_multiple_passages = single_context_multiple_passages

    @abstractmethod
    def process(self, examples: Examples, features: Features, predictions: Sequence[Any]) -> Any:
        """Return the predictions for the examples.

        Features are grouped by example, in the order of the examples; ``predictions`` are the model's outputs for all
        features in order.
        """

    @abstractmethod
    def prepare_examples_as_references(self, examples: Examples) -> list[dict[str, Any]]:
        """Return the gold answers as the metric takes them, one entry for each example."""

    def prepare_predictions(self, examples: Examples, processed: Any) -> Any:
        """Return the result of :meth:`process` as the metric takes it, by default unchanged."""
        return processed

    def process_references_and_predictions(
        self, examples: Examples, features: Features, predictions: Sequence[Any]
    ) -> EvalPredictionWithProcessing:
        """Return predictions and references; the ``post_process_function`` of an evaluation. See :meth:`process`."""
        return self.evaluated(examples, self.process(examples, features, predictions))

    def evaluated(self, examples: Examples, processed: object) -> EvalPredictionWithProcessing:
        return EvalPredictionWithProcessing(
            predictions=processed,
            label_ids=self.prepare_examples_as_references(examples),
            processed_predictions=self.prepare_predictions(examples, processed),
        )


class SpanRecords(CandidateCollector):
    """Collects logits during an evaluation and ranks spans by PrimeQA's rules.

    The examples have ``example_id``, ``context`` and, for ``single_context_multiple_passages``,
    ``passage_candidates``; their features are grouped by example in the same order.
    """

    def __init__(self, post_processor: "ExtractivePostProcessor", examples: Examples, features: Features) -> None:
        columns = ExampleColumns(examples)
        self._post_processor = post_processor
        self._given = examples
        self._passages = columns.passages if post_processor._single_context_multiple_passages else None
        offsets = _read_offsets(features, columns.ids)
        sizes = post_processor._n_best_size, post_processor._max_answer_length
        super().__init__(columns, CandidateSearch(offsets, *sizes, "primeqa"))

    def update(self, outputs: Sequence[Any], feature_indices: Int64s) -> None:
        self._post_processor.check_outputs(outputs)
        self.update_outputs(outputs, feature_indices)

    def compute(self) -> EvalPredictionWithProcessing:
        return self._post_processor.evaluated(self._given, self.records())

    def records(self) -> dict[str, list[SpanRecord]]:
        """Return the records of every example, best first, by its identifier."""
        candidates, _ = self._all_candidates()
        options = self._post_processor
        ranked = rank_spans(candidates, self._search, num_spans=options._k, scorer=options._scorer)
        spans, example_N = ranked.spans, ranked.example_N
        row_N, start_N, end_N = spans.place_N3.T
        context_N = passage_N = self._search.offsets.context_index_F[candidates.feature_index_F[row_N]]
        if self._passages is not None:
            passage_N = passage_indices(spans.chars_N2, example_N, self._passages)
        null_N = candidates.null_start_F[row_N].astype(np.float64) + candidates.null_end_F[row_N]
        softmax = span_probabilities(ranked).tolist()
        ids = self._examples.ids
        texts = self._examples.texts(example_N, context_N, spans.chars_N2)
        columns: dict[str, list[Any]] = {
            "example_id": [ids[example] for example in example_N.tolist()],
            "cls_score": null_N.tolist(),
            "start_logit": spans.start_logit_N.tolist(),
            "end_logit": spans.end_logit_N.tolist(),
            "span_answer": [{"start_position": start, "end_position": end} for start, end in spans.chars_N2.tolist()],
            "span_answer_score": spans.score_N.tolist(),
            "start_index": candidates.start_token_Fn[row_N, start_N].tolist(),
            "end_index": candidates.end_token_Fn[row_N, end_N].tolist(),
            "passage_index": passage_N.tolist(),
            "target_type_logits": _or_zeros(candidates.type_logits_FK, len(TargetType))[row_N].tolist(),
            "span_answer_text": texts,
            "yes_no_answer": [int(TargetType.NO_ANSWER)] * len(spans),
            "start_stdev": _or_zeros(candidates.start_stdev_Fn, self._search.n_best_size)[row_N, start_N].tolist(),
            "end_stdev": _or_zeros(candidates.end_stdev_Fn, self._search.n_best_size)[row_N, end_N].tolist(),
            "query_passage_similarity": _or_zeros(candidates.similarity_F1, 1)[row_N, 0].tolist(),
            "normalized_span_answer_score": softmax,
            "confidence_score": softmax,
        }
        # Copies of one dict, filled key by key, take half the time of dicts made one by one.
        empty = dict.fromkeys(columns)
        records: list[SpanRecord] = [empty.copy() for _ in texts]
        for name, values in columns.items():
            for record, value in zip(records, values, strict=True):
                record[name] = value
        rows = ranked.row_starts.tolist()
        by_id = {
            example_id: records[first:end] or [{**dict.fromkeys(columns, 0.0), **_no_span(example_id)}]
            for example_id, first, end in zip(ids, rows, rows[1:], strict=False)
        }
        return options.completed(self._given, by_id)


def _or_zeros(values: npt.NDArray[Any], width: int) -> npt.NDArray[Any]:
    """Return an output of the model, or zeros if the model does not return that output."""
    return values if values.shape[1] else np.zeros((len(values), width))


def _no_span(example_id: str) -> SpanRecord:
    """Return the nonzero values in the record of an example without any legal span."""
    return {
        "example_id": example_id,
        "span_answer": {"start_position": -1, "end_position": -1},
        **dict.fromkeys(("start_index", "end_index", "passage_index"), -1),
        "target_type_logits": [0.0] * len(TargetType),
        "span_answer_text": "empty",
        "yes_no_answer": int(TargetType.NO_ANSWER),
        # The softmax of a single score.
        **dict.fromkeys(("normalized_span_answer_score", "confidence_score"), 1.0),
    }


def _read_offsets(features: Features, ids: Sequence[str]) -> TokenOffsets:
    """Read the offsets of features that are grouped by ``example_idx`` or from ``Featurizer.eval_features``."""
    if isinstance(features, FeatureSet):
        return token_offsets(features, ids)
    if not len(features):
        raise InputError(f"There are {len(ids)} examples but no features; give the features of these examples.")
    features = arrow_view(features) if hasattr(features, "with_format") else features
    example_idx_F = np.array(column(features, "example_idx"), np.int64)
    starts = np.flatnonzero(np.diff(example_idx_F, prepend=example_idx_F[0] - 1))
    values, counts = np.unique(example_idx_F[starts], return_counts=True)
    if (counts > 1).any():
        raise InputError(
            f"The features are not grouped by example: those with example_idx {values[counts > 1][0]} form "
            f"{counts[counts > 1][0]} groups. Keep features in the order in which they were made."
        )
    if len(starts) != len(ids):
        # PrimeQA iterates over groups of features with `next`, which raises StopIteration when they run out.
        error = InputStopIteration if len(starts) < len(ids) else InputError
        raise error(
            f"There are {len(ids)} examples, but features of {len(starts)}; give the features of exactly these "
            "examples, at least one of each. To shorten a run, cut the examples rather than the features."
        )
    example_F = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(example_idx_F)))
    if "example_id" in (getattr(features, "column_names", None) or features[0]):
        expected = [ids[example] for example in example_F.tolist()]
        for feature, (own, example_id) in enumerate(zip(column(features, "example_id"), expected, strict=True)):
            if own != example_id:
                raise InputError(
                    f"Feature {feature} has example_id {own!r}, but the next example is {example_id!r}; give examples "
                    "and features in the same order."
                )
    return offsets_of_rows(features, example_F)


class ExtractivePostProcessor(AbstractPostProcessor):
    """Keeps the ``k`` best spans of each example, with all scores.

    Given to :class:`~portico.mrc.trainer.MRCTrainer` itself as ``post_process_function``, it streams; its bound
    methods take the outputs of all features at once.

    Args:
        k: Spans to keep of each example.
        max_answer_length: See :class:`AbstractPostProcessor`.
        n_best_size: Number of starts and ends to consider in each feature.
        scorer_type: What ranks spans; a :class:`~portico.mrc.postprocess.ranking.SupportedSpanScorers`.
        single_context_multiple_passages: See :class:`AbstractPostProcessor`.
        output_confidence_feature: Whether the model returns start deviations, end deviations and similarities too.
        confidence_model_path: A classifier for :class:`ConfidenceScorer`, which gives the ``confidence_score``.
        **ignored: See :class:`AbstractPostProcessor`.

    Raises:
        InputError: If the scorer is unknown.
    """

    def __init__(
        self,
        k: int,
        max_answer_length: int,
        n_best_size: int,
        scorer_type: str = SupportedSpanScorers.WEIGHTED_SUM_TARGET_TYPE_AND_SCORE_DIFF,
        single_context_multiple_passages: bool = False,
        output_confidence_feature: bool = False,
        confidence_model_path: str | None = None,
        **ignored: object,
    ) -> None:
        super().__init__(k, max_answer_length, single_context_multiple_passages, **ignored)
        self._n_best_size = n_best_size
        self._scorer = initialize_scorer(scorer_type)
        self._outputs = _CONFIDENCE_OUTPUTS if output_confidence_feature else _OUTPUTS
        self._confidence = None if confidence_model_path is None else ConfidenceScorer(confidence_model_path)

    def begin(self, examples: Examples, features: Features) -> SpanRecords:
        """Start an evaluation of ``features``, the windows of ``examples``."""
        return SpanRecords(self, examples, features)

    def __call__(
        self, examples: Examples, features: Features, predictions: Sequence[Any]
    ) -> EvalPredictionWithProcessing:
        """Return predictions and references; see :meth:`process_references_and_predictions`."""
        return self.process_references_and_predictions(examples, features, predictions)

    def process(
        self, examples: Examples, features: Features, predictions: Sequence[Any]
    ) -> dict[str, list[SpanRecord]]:
        """Return the records of every example, best first, by its identifier.

        ``predictions`` are start and end logits, ``float [F, L]``, answer-type logits, ``float [F, 5]``, and with
        ``output_confidence_feature`` start and end deviations, ``float [F, L]``, and similarities, ``float [F]``.
        """
        records = self.begin(examples, features)
        records.update(predictions, np.arange(len(features)))
        return records.records()

    def prepare_examples_as_references(self, examples: Examples) -> list[dict[str, Any]]:
        """Return the gold answers: under each key a list with one entry for each annotator, one dict per example."""
        return [_reference(example) for example in examples]

    def prepare_predictions(self, examples: Examples, processed: dict[str, list[SpanRecord]]) -> list[dict[str, Any]]:
        return [
            {
                "example_id": example_id,
                **records[0]["span_answer"],
                "passage_index": records[0]["passage_index"],
                "yes_no_answer": records[0]["yes_no_answer"],
                "confidence_score": records[0]["span_answer_score"],
            }
            for example_id, records in processed.items()
        ]

    def completed(self, examples: Examples, records: dict[str, list[SpanRecord]]) -> dict[str, list[SpanRecord]]:
        """Add the values that ranking does not compute to the records; here, the confidence."""
        if self._confidence is not None:
            for of_example in records.values():
                for record, score in zip(of_example, self._confidence.predict_scores(of_example), strict=True):
                    record["confidence_score"] = float(score)
        return records

    def check_outputs(self, outputs: Sequence[Any]) -> None:
        """Check the number of arrays and that they are of equal length."""
        lengths = [len(output) for output in outputs]
        if len(lengths) != len(self._outputs) or len(set(lengths)) != 1:
            raise InputError(
                f"`predictions` holds {len(lengths)} arrays of {lengths} rows; expected {len(self._outputs)} arrays "
                f"with a row for each feature: {', '.join(self._outputs)}. Set `output_confidence_feature` if, and "
                "only if, the model also returns start_stdev, end_stdev and query_passage_similarity."
            )


def _reference(example: Mapping[str, Any]) -> dict[str, Any]:
    target = example["target"]
    once = {
        "example_id": example["example_id"],
        "language": example.get("language", "UNKNOWN"),
        "document_plaintext": example.get("document_plaintext") or contexts_of(example)[0],
        "question": example["question"],
    }
    return {
        "start_position": target["start_positions"],
        "end_position": target["end_positions"],
        "passage_index": target["passage_indices"],
        "yes_no_answer": [int(TargetType.from_bool_label(label)) for label in target["yes_no_answer"]],
        **{key: [value] * len(target["start_positions"]) for key, value in once.items()},
    }


class SQUADPostProcessor(ExtractivePostProcessor):
    """Prepares the text of the best span and the texts of the gold answers as SQuAD's metric takes them."""

    def prepare_examples_as_references(self, examples: Examples) -> list[dict[str, Any]]:
        """Return ``{"id", "answers": {"text", "answer_start"}}`` of every example.

        The texts of an example without ``answer_text`` are read from its context at the target positions.
        """
        return [
            {
                "id": example["example_id"],
                "answers": {"text": _gold_texts(example), "answer_start": example["target"]["start_positions"]},
            }
            for example in examples
        ]

    def prepare_predictions(self, examples: Examples, processed: dict[str, list[SpanRecord]]) -> list[dict[str, Any]]:
        """Return ``{"id", "prediction_text"}`` of every example; ``""`` where no span was found."""
        return [
            {
                "id": key,
                "prediction_text": best["span_answer_text"] if best["span_answer"]["start_position"] >= 0 else "",
            }
            for key, (best, *_) in processed.items()
        ]


def _gold_texts(example: Mapping[str, Any]) -> list[str]:
    if example.get("answer_text") is not None:
        return list(example["answer_text"])
    target = example["target"]
    contexts = contexts_of(example)
    spans = zip(target["start_positions"], target["end_positions"], target["passage_indices"], strict=True)
    # A passage index counts the contexts of an example, or the passages of its only context.
    return [contexts[passage if len(contexts) > 1 else 0][start:end] for start, end, passage in spans if start >= 0]


class NaturalQuestionsPostProcessor(ExtractivePostProcessor):
    """Maps spans of the joined tokens back to bytes of the HTML page, and finds the passage that contains them.

    Examples have the document's tokens with their bytes (``document.tokens``), and targets and ``passage_candidates``
    in bytes, as in Natural Questions.
    """

    def prepare_examples_as_references(self, examples: Examples) -> list[dict[str, Any]]:
        """Return the gold answers in bytes: under each key a list with one entry for each annotator."""
        references = super().prepare_examples_as_references(examples)
        return [
            {key: value for key, value in reference.items() if key not in ("document_plaintext", "question")}
            for reference in references
        ]

    def completed(self, examples: Examples, records: dict[str, list[SpanRecord]]) -> dict[str, list[SpanRecord]]:
        """Replace the characters of every span by bytes of the page, and find the passage there."""
        records = super().completed(examples, records)
        for example in examples:
            tokens = read_objects(example["document"]["tokens"], "document.tokens")
            document = natural_questions.read_document({"document": {"tokens": tokens}})
            if len(document.context) != len(contexts_of(example)[0]):
                raise InputError(
                    f"The context of example {example['example_id']!r} is not its document's tokens joined by single "
                    "blanks, so answers cannot be located in the page; build the context from all tokens."
                )
            passages = example["passage_candidates"]
            bounds = list(zip(passages["start_positions"], passages["end_positions"], strict=True))
            for record in records[example["example_id"]]:
                start, end = record["span_answer"]["start_position"], record["span_answer"]["end_position"]
                if start < 0:
                    continue
                first, last = (bisect_right(document.token_spans, (char, inf)) - 1 for char in (start, end - 1))
                start, end = tokens[first]["start_byte"], tokens[last]["end_byte"]
                around = (index for index, (begin, stop) in enumerate(bounds) if begin <= start and end <= stop)
                record["span_answer"] = {"start_position": start, "end_position": end}
                record["passage_index"] = next(around, -1)
        return records


class ExtractivePipelinePostProcessor(ExtractivePostProcessor):
    """Adds question, language and the text of the passage to each record, for the boolean question pipeline."""

    def completed(self, examples: Examples, records: dict[str, list[SpanRecord]]) -> dict[str, list[SpanRecord]]:
        """Add the fields that the classifiers of questions and answers read."""
        records = super().completed(examples, records)
        for example in examples:
            contexts = contexts_of(example)
            passages = example.get("passage_candidates") if self._single_context_multiple_passages else None
            for record in records[example["example_id"]]:
                index = record["passage_index"]
                if index < 0:
                    text = record["span_answer_text"]
                elif passages is None:
                    text = contexts[index]
                else:
                    text = contexts[0][passages["start_positions"][index] : passages["end_positions"][index]]
                language = example.get("language", "UNKNOWN")
                record |= {"question": example["question"], "language": language, "passage_answer_text": text}
        return records


class ELI5FiDPostProcessor(AbstractPostProcessor):
    """Decodes generated answers; if an example has several features, the last one counts.

    ``tokenizer`` decodes the ids; the other options have no effect: one answer is generated from all passages.
    """

    def __init__(
        self,
        k: int = 1,
        max_answer_length: int = 32,
        single_context_multiple_passages: bool = False,
        *,
        tokenizer: "PreTrainedTokenizerBase",
        **ignored: object,
    ) -> None:
        super().__init__(k, max_answer_length, single_context_multiple_passages, **ignored)
        self._tokenizer = tokenizer

    def process(self, examples: Examples, features: Any, predictions: Any) -> list[dict[str, Any]]:
        """Return ``{"id", "prediction_text"}`` of every example, which has ``id`` or ``example_id``.

        The features have ``example_id``. ``predictions`` are the token ids of all features in order, ``int [F, L]``,
        with negative ids as padding; or the output of an evaluation, which holds them as ``predictions``. Raises an
        ``InputError`` if features and rows differ in number, or an example has no feature.
        """
        output = getattr(predictions, "predictions", predictions)
        ids_FL = np.asarray(output[0] if isinstance(output, tuple) else output)
        if len(ids_FL) != len(features):
            raise InputError(
                f"Got generated answers for {len(ids_FL)} features, but {len(features)} features; give the features "
                "that the model was evaluated on."
            )
        ids_FL = np.where(ids_FL < 0, self._tokenizer.pad_token_id, ids_FL)
        texts = self._tokenizer.batch_decode(ids_FL, skip_special_tokens=True)
        of_feature = {feature["example_id"]: text for feature, text in zip(features, texts, strict=True)}
        ids = [_id(example) for example in examples]
        missing = [example_id for example_id in ids if example_id not in of_feature]
        if missing:
            raise InputError(
                f"{len(missing)} of {len(examples)} examples have no features, the first being {missing[0]!r}; give "
                "the features of exactly these examples."
            )
        return [{"id": example_id, "prediction_text": of_feature[example_id]} for example_id in ids]

    def prepare_examples_as_references(self, examples: Examples) -> list[dict[str, Any]]:
        """Return ``{"id", "answers"}`` of every example: all answers that are not null."""
        outputs = (read_objects(example["output"], "output") for example in examples)
        answers = ([answer["answer"] for answer in given if answer.get("answer")] for given in outputs)
        return [{"id": _id(example), "answers": texts} for example, texts in zip(examples, answers, strict=True)]


def _id(example: Mapping[str, Any]) -> str:
    return str(example["id"] if "id" in example else example["example_id"])
