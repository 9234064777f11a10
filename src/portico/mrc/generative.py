"""Generated answers: features, models, post-processing and trainer."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar, cast

import numpy as np
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    EvalPrediction,
    PreTrainedTokenizerBase,
    T5Config,
)

from portico.compat.annotations import Examples as Features
from portico.compat.annotations import Loader, Nested
from portico.compat.transformers import EvalLoopOutput
from portico.experiments.from_scratch import GENERATOR_TOKENS, SmallModel, explained_fields, train_generator_tokenizer
from portico.hub import loading_model
from portico.loop.evaluation import EvaluationSession
from portico.mrc.arrays import Int64s
from portico.mrc.datasets.examples import Examples, answer_texts
from portico.mrc.models.fusion_in_decoder import FiDModelForDownstreamTasks
from portico.mrc.models.loading import ModelAndTokenizer
from portico.mrc.trainer import AnswerCore, AnswerSession, MRCTrainer
from portico.seq2seq import Seq2SeqCore, Seq2SeqTrainer, Seq2SeqTrainingArguments
from portico.trust.names import data_only

SMALL_T5 = SmallModel(
    "T5",
    T5Config,
    {
        "d_model": 128,
        "d_kv": 32,
        "d_ff": 256,
        "num_layers": 3,
        "num_heads": 4,
        # Every name occurs only a few times, so there is little to overfit and dropout only slows learning down.
        "dropout_rate": 0.0,
    },
    special_tokens=GENERATOR_TOKENS,
)
_PROMPT_WORDS = "question: context: passage:"


@dataclass(frozen=True)
class GenerativeFeaturizer:
    """Tokenises questions with their contexts, and answers.

    The input is ``question: ... context: ...``, cut at ``max_source_length`` tokens, as in transformers' example.
    With ``num_passages`` there is one input for each passage, padded to the same length.

    Args:
        tokenizer: Tokenizer of the model.
        max_source_length: Longest input, in tokens.
        max_target_length: Longest answer, in tokens.
        num_passages: Passages of a question that fusion-in-decoder reads; ``None`` to read one string. Further
            passages are left out, and a context of one string is cut into this many pieces of similar length.
    """

    tokenizer: PreTrainedTokenizerBase
    max_source_length: int
    max_target_length: int
    num_passages: int | None = None

    def train_features(self, examples: Examples) -> list[dict[str, Any]]:
        """Return training features; the target is the first answer, or an empty string."""
        targets = [next(iter(answer_texts(example)), "") for example in examples]
        labels = self.tokenizer(text_target=targets, max_length=self.max_target_length, truncation=True)["input_ids"]
        inputs = (self._inputs(example) for example in examples)
        return [{**tokens, "labels": label} for tokens, label in zip(inputs, labels, strict=True)]

    def eval_features(self, examples: Examples) -> list[dict[str, Any]]:
        """Return evaluation features, which also have the id of their example (``example_id``)."""
        features = self.train_features(examples)
        return [{**row, "example_id": example["id"]} for row, example in zip(features, examples, strict=True)]

    def _inputs(self, example: Mapping[str, Any]) -> dict[str, Any]:
        question, context = example["question"], example["context"]
        if self.num_passages is None:
            text = context if isinstance(context, str) else " ".join(context)
            tokens = self._tokens([f"question: {question.lstrip()} context: {text.lstrip()}"], padding=False)
            return {name: rows[0] for name, rows in tokens.items()}
        passages = context[: self.num_passages]
        if isinstance(context, str):
            words = context.split()
            bounds = [len(words) * number // self.num_passages for number in range(self.num_passages + 1)]
            passages = [" ".join(words[start:end]) for start, end in pairwise(bounds)]
        texts = [f"question: {question.strip()} passage: {passage.strip()}" for passage in passages]
        return self._tokens(texts, padding="max_length")

    def _tokens(self, texts: list[str], *, padding: bool | str) -> dict[str, Any]:
        tokens = self.tokenizer(texts, max_length=self.max_source_length, truncation=True, padding=padding)
        return {name: tokens[name] for name in ("input_ids", "attention_mask")}


def load_generator(name_or_path: str, *, fusion_in_decoder: bool) -> ModelAndTokenizer:
    """Load a pretrained encoder-decoder, with ``fusion_in_decoder`` as a model that reads several passages."""
    with loading_model(
        "model.name_or_path",
        name_or_path,
        "an encoder-decoder with its tokenizer",
        "set it to a folder written by `save_pretrained`, to a hub name such as google-t5/t5-small, or to null for a "
        "small T5 trained from scratch.",
    ):
        model = _seq2seq_class(fusion_in_decoder).from_pretrained(name_or_path)
        return ModelAndTokenizer(model, AutoTokenizer.from_pretrained(name_or_path))


def new_generator(
    texts: Iterable[str], *, vocab_size: int, model: Mapping[str, Any], fusion_in_decoder: bool
) -> ModelAndTokenizer:
    """Make a small T5 with random weights and a tokenizer trained on ``texts``.

    ``model`` has the fields of ``T5Config`` that differ from ``SMALL_T5``.
    """
    tokenizer = train_generator_tokenizer([*texts, _PROMPT_WORDS], vocab_size=vocab_size)
    with explained_fields(SMALL_T5.kind, model):
        config = SMALL_T5.configure(tokenizer, model)
        return ModelAndTokenizer(_seq2seq_class(fusion_in_decoder).from_config(config), tokenizer)


def _seq2seq_class(fusion_in_decoder: bool) -> Any:
    return FiDModelForDownstreamTasks if fusion_in_decoder else AutoModelForSeq2SeqLM


@dataclass(eq=False)
class GeneratedAnswerProcessing:
    """A ``post_process_function`` for generated answers, streamed or called on whole arrays.

    If a long passage has several features, the last one answers the question, as in transformers' example.

    Args:
        tokenizer: Decodes tokens, without special tokens.
        version_2_with_negative: Whether predictions have a probability of "no answer", which the metric of SQuAD 2.0
            requires; it is always 0.
    """

    tokenizer: PreTrainedTokenizerBase
    version_2_with_negative: bool = False

    def begin(self, examples: Examples, features: Sequence[Mapping[str, Any]]) -> "GeneratedAnswerStream":
        """Start an evaluation of the ``features`` of ``examples``."""
        return GeneratedAnswerStream(self, examples, features)

    def __call__(
        self, examples: Examples, features: Sequence[Mapping[str, Any]], output: EvalLoopOutput, stage: str = "eval"
    ) -> EvalPrediction:
        """Post-process the tokens of a whole evaluation, as transformers' example calls it."""
        stream = self.begin(examples, features)
        tokens: Any = output.predictions
        stream.update([tokens[: len(features)]], np.arange(len(features)))
        return stream.compute()

    def texts(self, tokens: Int64s) -> list[str]:
        """Return the texts of generated tokens, ``int64 [B, T]``; negative tokens are padding between batches."""
        # Trainers pad generated batches of different length with -100, which no tokenizer decodes.
        filled = np.where(tokens < 0, self.tokenizer.pad_token_id, tokens)
        texts: list[str] = self.tokenizer.batch_decode(filled, skip_special_tokens=True)
        return [text.strip() for text in texts]


@dataclass(eq=False)
class GeneratedAnswerStream:
    """The post-processing of one evaluation: features have ``example_id``, examples ``id`` and ``answers``."""

    processing: GeneratedAnswerProcessing
    examples: Examples
    features: Any
    texts: dict[str, str] = field(default_factory=dict)

    def update(self, rows: Sequence[Int64s], feature_indices: Int64s) -> None:
        """Add the tokens of a batch, ``int64 [B, T]``, of the features at ``feature_indices``."""
        for index, text in zip(feature_indices, self.processing.texts(rows[0]), strict=True):
            self.texts[self.features[int(index)]["example_id"]] = text

    def compute(self) -> EvalPrediction:
        more = {"no_answer_probability": 0.0} if self.processing.version_2_with_negative else {}
        predictions: Any = [{"id": key, "prediction_text": text, **more} for key, text in self.texts.items()]
        labelled = [example for example in self.examples if "answers" in example]
        references: Any = [{"id": example["id"], "answers": example["answers"]} for example in labelled] or None
        return EvalPrediction(predictions=predictions, label_ids=references)


class GeneratedAnswerSession(AnswerSession):
    """An :class:`AnswerSession` whose post-processing gets the whole output of the evaluation.

    A post-processing that streams gets the tokens batch by batch, ``int64 [B, T]``, as the only array.
    """

    file_attributes: ClassVar = {"predictions": "predictions", "references": "label_ids"}

    def whole_output(self, logits: Nested | None, labels: Nested | None, losses: Nested | None) -> EvalLoopOutput:
        metrics = {} if losses is None else {f"{self.metric_key_prefix}_loss": float(np.mean(losses))}
        predictions: Any = logits
        return EvalLoopOutput(
            predictions=predictions, label_ids=labels, metrics=metrics, num_samples=self.num_samples()
        )


class GeneratedAnswerCore(AnswerCore, Seq2SeqCore):
    """Answers with what a :class:`Seq2SeqMRCTrainer` generates."""

    trainer: "Seq2SeqMRCTrainer"

    def evaluation_session(self, dataloader: "Loader", **options: Any) -> EvaluationSession:
        if not self.is_answering or self.trainer.args.predict_with_generate:
            return super().evaluation_session(dataloader, **options)
        # Logits of an encoder-decoder are not answers: without generation there is only a loss.
        return EvaluationSession(cast("Any", self.trainer), dataloader, **{**options, "prediction_loss_only": True})


@data_only
# `evaluate` takes examples
class Seq2SeqMRCTrainer(MRCTrainer, Seq2SeqTrainer, core=GeneratedAnswerCore):  # type: ignore[misc]
    """Trains encoder-decoders to answer and evaluates the answers they generate.

    With ``args.predict_with_generate`` an evaluation generates from features, turns the tokens into answers with
    ``post_process_function``, writes them into ``args.output_dir`` (``eval_predictions.json`` and
    ``eval_references.json``) and passes them to ``compute_metrics``. Otherwise only loss and speed are measured.

    For the arguments and ``answered`` see :class:`~portico.mrc.trainer.MRCTrainer` and
    :class:`~portico.seq2seq.Seq2SeqTrainer`. A ``post_process_function`` finds the generated tokens in
    ``output.predictions``; :class:`GeneratedAnswerProcessing` streams.
    """

    args: Seq2SeqTrainingArguments
    _session_class = GeneratedAnswerSession

    def predict(  # type: ignore[override]
        self,
        predict_dataset: Features | None = None,
        predict_examples: Examples | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "test",
        *,
        test_dataset: Features | None = None,
        **gen_kwargs: Any,
    ) -> Any:
        """Answer the questions of a dataset; for the arguments see :meth:`portico.mrc.trainer.MRCTrainer.predict`.

        Without features, the evaluation features and examples of the trainer are used; with features but without
        examples, the tokens are returned. ``gen_kwargs`` are keywords of ``generate`` for this prediction, which
        override the training arguments.

        Returns:
            A ``PredictionOutput``; with a post-processing that takes no stage, as PrimeQA's do, its result.
        """
        features = test_dataset if predict_dataset is None else predict_dataset
        examples = predict_examples
        if features is None:
            features, examples = self.eval_dataset, self.eval_examples
        return self._predict_answers(features, examples, ignore_keys, metric_key_prefix, **gen_kwargs)
