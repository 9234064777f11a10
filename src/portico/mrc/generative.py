"""Features of questions whose answers are generated."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from huggingface_hub.errors import StrictDataclassError
from tokenizers import decoders, processors
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    T5Config,
)
from transformers.trainer_utils import EvalPrediction

from portico.errors import InputError
from portico.evaluation.session import EvaluationSession
from portico.mrc.columns import Examples
from portico.mrc.evaluation import GeneratedAnswerSession
from portico.mrc.models.fusion_in_decoder import FiDModelForDownstreamTasks
from portico.mrc.models.loading import ModelAndTokenizer
from portico.mrc.models.small_bert import train_wordpiece_tokenizer
from portico.mrc.trainer import AnsweringMethods
from portico.seq2seq.trainer import Seq2SeqTrainer


@dataclass(frozen=True)
class GenerativeFeaturizer:
    """Turns examples into tokens to read and tokens to write.

    The input is ``question: ... context: ...``, cut at ``max_source_length`` tokens, as in the example of
    transformers. With ``num_passages`` each passage gets such an input of its own, padded to one length.

    Args:
        tokenizer: Tokenizer of the model.
        max_source_length: Longest input, in tokens.
        max_target_length: Longest answer, in tokens.
        num_passages: Passages of a question that are read by fusion-in-decoder; ``None`` to read one text. Further
            passages are left out, and a context that is one text is cut into as many pieces of about the same length.
    """

    tokenizer: PreTrainedTokenizerBase
    max_source_length: int
    max_target_length: int
    num_passages: int | None = None

    def train_features(self, examples: Examples) -> list[dict[str, Any]]:
        """Return the features to train on; the first answer is the target, nothing where there is none."""
        return self._features(examples)

    def eval_features(self, examples: Examples) -> list[dict[str, Any]]:
        """Return the features to evaluate on, which also say what example they are of (``example_id``)."""
        features = self._features(examples)
        for feature, example in zip(features, examples, strict=True):
            feature["example_id"] = example["id"]
        return features

    def _features(self, examples: Examples) -> list[dict[str, Any]]:
        targets = [example["answers"]["text"][0] if example["answers"]["text"] else "" for example in examples]
        labels = self.tokenizer(text_target=targets, max_length=self.max_target_length, truncation=True)["input_ids"]
        inputs = (self._inputs(example) for example in examples)
        return [{**tokens, "labels": label} for tokens, label in zip(inputs, labels, strict=True)]

    def _inputs(self, example: Mapping[str, Any]) -> dict[str, Any]:
        context = example["context"]
        if self.num_passages is None:
            text = context if isinstance(context, str) else " ".join(context)
            tokens = self._tokens(
                [f"question: {example['question'].lstrip()} context: {text.lstrip()}"], padding=False
            )
            return {name: rows[0] for name, rows in tokens.items()}
        passages = _pieces(context, self.num_passages) if isinstance(context, str) else context[: self.num_passages]
        texts = [f"question: {example['question'].strip()} passage: {passage.strip()}" for passage in passages]
        return self._tokens(texts, padding="max_length")

    def _tokens(self, texts: Sequence[str], *, padding: bool | str) -> dict[str, Any]:
        tokens = self.tokenizer(list(texts), max_length=self.max_source_length, truncation=True, padding=padding)
        return {name: tokens[name] for name in ("input_ids", "attention_mask")}


def _pieces(text: str, count: int) -> list[str]:
    """Cut a text between words, into pieces of about the same number of words."""
    words = text.split()
    bounds = [len(words) * number // count for number in range(count + 1)]
    return [" ".join(words[start:end]) for start, end in pairwise(bounds)]


SMALL_T5 = {
    "d_model": 128,
    "d_kv": 32,
    "d_ff": 256,
    "num_layers": 3,
    "num_heads": 4,
    # Every name is seen only a few times, so there is little to overfit and dropout only slows the learning down.
    "dropout_rate": 0.0,
}
PROMPT_WORDS = "question: context: passage:"


def t5_fields() -> list[str]:
    """Return the names that can be set for a small T5."""
    return sorted(key for key in T5Config().to_dict() if not key.startswith("_"))


def load_generator(name_or_path: str, *, fusion_in_decoder: bool) -> ModelAndTokenizer:
    """Load a pretrained encoder-decoder.

    Args:
        name_or_path: Folder or name on the hub.
        fusion_in_decoder: Let it read several passages.

    Raises:
        InputError: If there is no encoder-decoder with its tokenizer.
    """
    model_class: Any = FiDModelForDownstreamTasks if fusion_in_decoder else AutoModelForSeq2SeqLM
    try:
        return ModelAndTokenizer(
            model_class.from_pretrained(name_or_path), AutoTokenizer.from_pretrained(name_or_path)
        )
    except (OSError, ValueError) as error:
        raise InputError(
            f"`model.name_or_path={name_or_path}` gives no encoder-decoder with its tokenizer "
            f"({' '.join(str(error).split())[:300]}); set it to a folder written by `save_pretrained`, to a hub name "
            "such as google-t5/t5-small, or to null for a small T5 trained from scratch."
        ) from error


def new_generator(
    texts: Iterable[str], *, vocab_size: int, model: Mapping[str, Any], fusion_in_decoder: bool
) -> ModelAndTokenizer:
    """Make a small T5 with random weights and a tokenizer trained on ``texts``.

    Args:
        texts: Training texts.
        vocab_size: Pieces of the tokenizer, at most.
        model: Fields of ``T5Config`` that differ from the small T5's.
        fusion_in_decoder: Let it read several passages.

    Raises:
        InputError: If no T5 can have these fields.
    """
    tokenizer = _new_tokenizer(texts, vocab_size)
    marks = {
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "decoder_start_token_id": tokenizer.pad_token_id,
    }
    try:
        config = T5Config(**{**marks, **SMALL_T5, **model})
        model_class: Any = FiDModelForDownstreamTasks if fusion_in_decoder else AutoModelForSeq2SeqLM
        return ModelAndTokenizer(model_class.from_config(config), tokenizer)
    except (StrictDataclassError, TypeError, ValueError) as error:
        listed = ", ".join(f"`model.{name}={value}`" for name, value in model.items()) or "the default fields"
        raise InputError(
            f"No T5 can be made with {listed} ({' '.join(str(error).split())}); set them otherwise, or leave them out "
            "for the small T5's own."
        ) from error


def _new_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Train a tokenizer that keeps case, ends each text as a T5 expects it, and joins pieces to words again."""
    backend = train_wordpiece_tokenizer(
        [*texts, PROMPT_WORDS], vocab_size=vocab_size, lowercase=False
    ).backend_tokenizer
    end = ("[SEP]", backend.token_to_id("[SEP]"))
    backend.post_processor = processors.TemplateProcessing(single=f"$A {end[0]}", special_tokens=[end])
    backend.decoder = decoders.WordPiece()
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]", eos_token="[SEP]")


class GeneratedAnswerProcessing:
    """A ``post_process_function`` for generated answers, streamed or called on whole arrays.

    Of the features of a long passage the last one answers the question, as in the example of transformers.

    Args:
        tokenizer: Turns tokens into texts, special tokens left out.
        version_2_with_negative: Whether predictions carry a probability of there being no answer, which the metric of
            SQuAD 2.0 asks for; it is 0, as nothing generated says it.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, version_2_with_negative: bool = False) -> None:
        self.tokenizer = tokenizer
        self.version_2_with_negative = version_2_with_negative

    def begin(self, examples: Examples, features: Any) -> "StreamedTexts":
        """Start an evaluation of ``features``, which are of ``examples``."""
        return StreamedTexts(self, examples, features)

    def __call__(self, examples: Examples, features: Any, output: Any, stage: str = "eval") -> EvalPrediction:
        """Post-process the tokens of a whole evaluation, as the example of transformers calls it."""
        streamed = self.begin(examples, features)
        streamed.update([output.predictions[: len(features)]], np.arange(len(features)))
        return streamed.compute()

    def texts(self, tokens: npt.NDArray[np.int64]) -> list[str]:
        """Return the texts of generated tokens, ``int64 [B, T]``; negative ones, between batches, are padding."""
        filled = np.where(tokens < 0, self.tokenizer.pad_token_id, tokens)
        texts: list[str] = self.tokenizer.batch_decode(filled, skip_special_tokens=True)
        return [text.strip() for text in texts]


class StreamedTexts:
    """The post-processing of one evaluation.

    Args:
        processing: Makes texts of tokens.
        examples: SQuAD records, or others with ``id`` and ``answers``.
        features: Have ``example_id``, or one for each example in their order.
    """

    def __init__(self, processing: GeneratedAnswerProcessing, examples: Examples, features: Any) -> None:
        self._processing = processing
        self._examples = examples
        self._features = features
        self._texts: dict[str, str] = {}

    def update(self, rows: Sequence[npt.NDArray[np.int64]], feature_indices: npt.NDArray[np.int64]) -> None:
        """Take the tokens of a batch, ``int64 [B, T]``, of the features at ``feature_indices``."""
        for index, text in zip(feature_indices, self._processing.texts(rows[0]), strict=True):
            self._texts[self._features[int(index)]["example_id"]] = text

    def compute(self) -> EvalPrediction:
        """Return the answers to all questions, and their references."""
        more = {"no_answer_probability": 0.0} if self._processing.version_2_with_negative else {}
        predictions: Any = [{"id": key, "prediction_text": text, **more} for key, text in self._texts.items()]
        references: Any = [{"id": example["id"], "answers": example["answers"]} for example in self._examples]
        return EvalPrediction(predictions=predictions, label_ids=references)


class Seq2SeqMRCTrainer(AnsweringMethods, Seq2SeqTrainer):
    """Trains encoder-decoders to answer and evaluates the answers they generate.

    With ``args.predict_with_generate`` an evaluation generates from features, turns the tokens into answers with
    ``post_process_function``, writes them into ``args.output_dir`` (``eval_predictions.json`` and
    ``eval_references.json``) and gives them to ``compute_metrics``. Without it there is no answer, and loss and speed
    are all that is measured.

    Args:
        *args: As in :class:`~portico.seq2seq.trainer.Seq2SeqTrainer`.
        eval_examples: The examples that ``eval_dataset`` holds the features of.
        eval_dataset: Features to evaluate on.
        post_process_function: ``f(examples, features, output)`` or, for predictions, ``f(examples, features, output,
            "predict")``, with the generated tokens in ``output.predictions``; or an object with ``begin(examples,
            features)``, such as :class:`~portico.mrc.generative.GeneratedAnswerProcessing`.
        **kwargs: As in :class:`~portico.seq2seq.trainer.Seq2SeqTrainer`.

    Attributes:
        answered: What the last post-processing returned.
    """

    _session_class = GeneratedAnswerSession

    def evaluate(  # type: ignore[override]
        self,
        eval_dataset: Any = None,
        eval_examples: Examples | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
        **gen_kwargs: Any,
    ) -> dict[str, float]:
        """Evaluate the answers to ``eval_examples`` and return loss, speed and metrics.

        Args:
            eval_dataset: As of :meth:`portico.mrc.trainer.MRCTrainer.evaluate`, like what follows.
            eval_examples: See there.
            ignore_keys: See there.
            metric_key_prefix: See there.
            **gen_kwargs: Keywords of ``generate``, for this evaluation; they win over the training arguments.
        """
        return self._evaluated(eval_dataset, eval_examples, ignore_keys, metric_key_prefix, **gen_kwargs)

    def predict(  # type: ignore[override]
        self,
        predict_dataset: Any = None,
        predict_examples: Examples | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "test",
        *,
        test_dataset: Any = None,
        **gen_kwargs: Any,
    ) -> Any:
        """Answer the questions of a data set.

        Args:
            predict_dataset: Features; by default the trainer's own, with its examples.
            predict_examples: The examples they are features of; without them the tokens are returned.
            ignore_keys: Model outputs to leave out.
            metric_key_prefix: Prefix of every metric's name.
            test_dataset: Another name of ``predict_dataset``, that of :meth:`portico.Seq2SeqTrainer.predict`.
            **gen_kwargs: Keywords of ``generate``, for this prediction; they win over the training arguments.

        Returns:
            A ``PredictionOutput``; with a post-processing that takes no stage, as PrimeQA's do, what it returns.
        """
        features = test_dataset if predict_dataset is None else predict_dataset
        examples = predict_examples
        if features is None:
            features, examples = self.eval_dataset, self.eval_examples
        return self._predicted(
            examples,
            features,
            lambda: super(Seq2SeqMRCTrainer, self).predict(features, ignore_keys, metric_key_prefix, **gen_kwargs),
            plain=examples is not None and self._returns_plain_answers(),
        )

    def _evaluation_session(self, dataloader: Any, **options: Any) -> EvaluationSession:
        if self._answering_options is None or self.args.predict_with_generate:
            return super()._evaluation_session(dataloader, **options)
        # Logits are no answers: without generation there is a loss alone.
        return EvaluationSession(self, dataloader, **{**options, "prediction_loss_only": True})
