"""PrimeQA's ``ExtractiveReader``."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from portico.errors import InputError
from portico.mrc.datasets.examples import Examples
from portico.mrc.features.featurizer import Featurizer
from portico.mrc.inference import Contexts, Inference, question_windows
from portico.mrc.models.loading import ModelAndTokenizer, load_trained_reader
from portico.mrc.postprocess.ranking import SupportedSpanScorers, initialize_scorer
from portico.mrc.primeqa.confidence import SpanRecord
from portico.mrc.primeqa.postprocessors import ExtractivePostProcessor

# Of each answer, in PrimeQA's order.
_KEYS = ("example_id", "passage_index", "span_answer_text", "span_answer", "span_answer_score", "confidence_score")


class _AnyOutputs(ExtractivePostProcessor):
    """Reads the outputs of any head, and questions that have no gold answers."""

    def check_outputs(self, outputs: Sequence[Any]) -> None:
        pass

    def prepare_examples_as_references(self, examples: Examples) -> list[dict[str, Any]]:
        return []


@dataclass
class ExtractiveReader:
    """Finds answers in the passages given for each question.

    Args:
        model: A folder or a hub name, of a model with an extractive head.
        use_fast: Must be true: only fast tokenizers know the characters of a token.
        stride: Tokens that two neighbouring windows share.
        max_seq_len: Tokens of a window, including question and special tokens.
        n_best_size: Number of starts and ends considered in each window.
        max_num_answers: Number of answers to each question.
        max_answer_length: Longest answer, in tokens.
        scorer_type: Score of the ranking, one of :class:`~portico.mrc.postprocess.ranking.SupportedSpanScorers`; for a
            model that does not classify answer types, ``"score_diff_based"``.
        min_score_threshold: Answers with a lower ``confidence_score``, 0 to 1, are left out; ``None`` keeps all.
        device: See :class:`~portico.mrc.Reader`.
        batch_size: Windows in a batch.
    """

    model: str
    use_fast: bool = True
    stride: int = 128
    max_seq_len: int = 512
    n_best_size: int = 20
    max_num_answers: int = 3
    max_answer_length: int = 1000
    scorer_type: str = SupportedSpanScorers.WEIGHTED_SUM_TARGET_TYPE_AND_SCORE_DIFF
    min_score_threshold: float | None = None
    device: str | int = "auto"
    batch_size: int = 32

    def __post_init__(self) -> None:
        if not self.use_fast:
            raise InputError("`use_fast=False` loads tokenizers without character offsets; leave it true.")
        initialize_scorer(self.scorer_type)
        self._loaded: ModelAndTokenizer | None = None
        self._inference: Inference | None = None

    def load(self) -> None:
        """Load the model and its tokenizer."""
        self._loaded = load_trained_reader(self.model, setting="model")
        self._inference = Inference.on_device(self._loaded, device=self.device, batch_size=self.batch_size)

    def predict(
        self,
        questions: Sequence[str],
        contexts: Sequence[Contexts],
        example_ids: Sequence[str] | None = None,
        **overrides: Any,
    ) -> dict[str, list[SpanRecord]]:
        """Return the answers to every question from its passages, best first, by question identifier.

        The default of ``example_ids`` is ``"0"``, ``"1"``, ...; ``overrides`` are attributes that differ in this call.

        Raises:
            InputError: If the reader is not loaded, an input is invalid, or the model does not classify the answer
                types that the scorer uses.
        """
        if self._loaded is None or self._inference is None:
            raise InputError("The reader has no model yet; call `load()` once before `predict`.")
        fixed = sorted({"model", "use_fast", "device", "batch_size"} & set(overrides))
        if fixed:
            raise InputError(f"`{fixed[0]}` cannot change between calls; make another reader.")
        ids = [str(n) for n in range(len(questions))] if example_ids is None else example_ids
        chosen = replace(self, **overrides)
        featurizer = Featurizer(
            self._loaded.tokenizer,
            max_seq_length=min(chosen.max_seq_len, self._loaded.max_length),
            doc_stride=chosen.stride,
        )
        examples, features = question_windows(featurizer, questions, contexts, ids)
        post_processor = _AnyOutputs(
            chosen.max_num_answers, chosen.max_answer_length, chosen.n_best_size, chosen.scorer_type
        )
        records = self._inference.answers(post_processor, examples, features).predictions
        least = float("-inf") if chosen.min_score_threshold is None else chosen.min_score_threshold
        return {
            example_id: [{key: record[key] for key in _KEYS} for record in best if record["confidence_score"] >= least]
            for example_id, best in records.items()
        }
