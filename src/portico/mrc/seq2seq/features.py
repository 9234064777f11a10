"""Features of questions whose answers are generated."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from transformers import PreTrainedTokenizerBase

from portico.mrc.datasets.examples import Examples


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
