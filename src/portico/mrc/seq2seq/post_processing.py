"""From generated tokens to answers."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from transformers import EvalPrediction, PreTrainedTokenizerBase

Examples = Sequence[Mapping[str, Any]]


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
