"""Generated answers, decoded from token ids."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from portico.errors import InputError
from portico.mrc.datasets.examples import Examples
from portico.mrc.post_processors.abstract import AbstractPostProcessor


class ELI5FiDPostProcessor(AbstractPostProcessor):
    """Decodes what a generative reader wrote; of several features of an example the last counts.

    Args:
        k: Without effect; one answer is generated.
        max_answer_length: Without effect; generation has its own limits.
        single_context_multiple_passages: Without effect; passages are read together.
        tokenizer: Decodes the ids.
        **ignored: Options of other post-processors; they have no effect.
    """

    def __init__(
        self,
        k: int = 1,
        max_answer_length: int = 32,
        single_context_multiple_passages: bool = False,
        *,
        tokenizer: Any,
        **ignored: Any,
    ) -> None:
        super().__init__(k, max_answer_length, single_context_multiple_passages, **ignored)
        self._tokenizer = tokenizer

    def process(self, examples: Examples, features: Any, predictions: Any) -> list[dict[str, Any]]:
        """Return ``{"id", "prediction_text"}`` of every example.

        Args:
            examples: The examples, with ``id`` or ``example_id``.
            features: Their features, with ``example_id``.
            predictions: Token ids of all features in order, ``int [F, L]``, -100 as padding; or what an evaluation
                returns, which holds them as ``predictions``.

        Raises:
            InputError: If there are not as many rows as features, or an example has no feature.
        """
        output = getattr(predictions, "predictions", predictions)
        ids_FL = np.asarray(output[0] if isinstance(output, tuple) else output)
        if len(ids_FL) != len(features):
            raise InputError(
                f"There are generated answers for {len(ids_FL)} features, but {len(features)} features; give the "
                "features that the model was evaluated on."
            )
        ids_FL = np.where(ids_FL < 0, self._tokenizer.pad_token_id, ids_FL)
        texts = self._tokenizer.batch_decode(ids_FL, skip_special_tokens=True)
        of_feature = {feature["example_id"]: text for feature, text in zip(features, texts, strict=True)}
        ids = [_id(example) for example in examples]
        missing = [example_id for example_id in ids if example_id not in of_feature]
        if missing:
            raise InputError(
                f"{len(missing)} of {len(examples)} examples have no features, {missing[0]!r} being the first; give "
                "the features of just these examples."
            )
        return [{"id": example_id, "prediction_text": of_feature[example_id]} for example_id in ids]

    def prepare_examples_as_references(self, examples: Examples) -> list[dict[str, Any]]:
        """Return ``{"id", "answers"}`` of every example: all answers that are not null."""
        return [{"id": _id(example), "answers": _answers(example)} for example in examples]


def _id(example: Mapping[str, Any]) -> str:
    return str(example["id"] if "id" in example else example["example_id"])


def _answers(example: Mapping[str, Any]) -> Sequence[str]:
    outputs = example["output"]
    # datasets stores a list of objects as an object of lists.
    answers = outputs["answer"] if isinstance(outputs, Mapping) else [output.get("answer") for output in outputs]
    return [answer for answer in answers if answer]
