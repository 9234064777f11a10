from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from portico.errors import InputError
from portico.mrc.preprocessors.abstract import AbstractPreProcessor
from portico.mrc.readers.fid import passage_text

_LEAST_SCORE = 3  # answers that fewer voted for are not trained on
_IGNORED_LABEL = -100
_COLUMNS = ("id", "input", "passages")


class ELI5FiDPreprocessor(AbstractPreProcessor):
    """Makes features of ELI5 with passages for fusion-in-decoder: one row of tokens for each passage, no windows.

    An example has ``id``, ``input`` (the question), ``passages`` (texts, or objects with ``text`` and perhaps
    ``title``) and, to train on, ``output``, a list of ``{"answer", "meta": {"score"}}``.

    Args:
        *args: As in :class:`~portico.mrc.preprocessors.abstract.AbstractPreProcessor`.
        **kwargs: As in :class:`~portico.mrc.preprocessors.abstract.AbstractPreProcessor`.
    """

    def process_train(self, examples: Any) -> tuple[Any, Any]:
        """Return the examples and one feature for each answer of 3 votes or more, or one with an empty answer."""
        return self._process(examples, is_train=True)

    def process_eval(self, examples: Any) -> tuple[Any, Any]:
        """Return the examples and one feature for each question, labelled with its first answer if there are any."""
        return self._process(examples, is_train=False)

    def adapt_dataset(self, dataset: Any, is_train: bool) -> Any:
        """Return the examples as they are, once their columns are checked."""
        self.validate_schema(dataset, is_train)
        return dataset

    def label_features_for_subsampling(
        self, tokenized_examples: Mapping[str, Any], examples: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Return the features as they are: none is left out."""
        return tokenized_examples

    def subsample_features(self, dataset: Any) -> Any:
        """Return the features as they are: none is left out."""
        return dataset

    def validate_schema(self, dataset: Any, is_train: bool, pre_adaptation: bool = True) -> None:
        """Refuse examples without a column that is read.

        Raises:
            InputError: Names the column.
        """
        wanted = (*_COLUMNS, "output") if is_train else _COLUMNS
        missing = [name for name in wanted if name not in dataset.column_names]
        if missing:
            raise InputError(
                f"The examples have no column {missing[0]!r}, only {', '.join(map(repr, dataset.column_names))}; "
                f"fusion-in-decoder takes {', '.join(wanted)}."
            )

    def _process(self, examples: Any, *, is_train: bool) -> tuple[Any, Any]:
        if not len(examples):
            raise InputError("There are no examples to process; give at least one question with its passages.")
        examples = self.adapt_dataset(examples, is_train)
        features = examples.map(
            self._train_batch if is_train else self._eval_batch,
            batched=True,
            with_indices=True,
            remove_columns=examples.column_names,
            desc="Making features",
            **self._map_options,
        )
        return examples, features

    def _train_batch(self, batch: Mapping[str, Any], indices: Sequence[int]) -> dict[str, list[Any]]:
        answers = [_trained_answers(output) for output in batch["output"]]
        owners = [row for row, texts in enumerate(answers) for _ in texts]
        targets = [text for texts in answers for text in texts]
        return {**self._rows(batch, indices, owners), "labels": self._labels(targets)}

    def _eval_batch(self, batch: Mapping[str, Any], indices: Sequence[int]) -> dict[str, list[Any]]:
        rows = self._rows(batch, indices, range(len(batch["input"])))
        if "output" not in batch:
            return rows
        first = [next((one["answer"] for one in output or () if one["answer"]), "") for output in batch["output"]]
        return {**rows, "labels": self._labels(first)}

    def _labels(self, targets: Sequence[str]) -> list[list[int]]:
        encoded = self._tokenizer(text_target=targets, max_length=self._answer_length, truncation=True)
        return [_padded(ids, self._answer_length) for ids in encoded["input_ids"]]

    def _rows(self, batch: Mapping[str, Any], indices: Sequence[int], owners: Sequence[int]) -> dict[str, list[Any]]:
        encoded = [
            self._tokenizer(
                list(self._texts(question, passages)),
                max_length=self._max_seq_len,
                padding="max_length",
                truncation=True,
            )
            for question, passages in zip(batch["input"], batch["passages"], strict=True)
        ]
        return {
            "input_ids": [encoded[owner]["input_ids"] for owner in owners],
            "attention_mask": [encoded[owner]["attention_mask"] for owner in owners],
            "example_idx": [indices[owner] for owner in owners],
            "example_id": [str(batch["id"][owner]) for owner in owners],
        }

    def _texts(self, question: str, passages: Sequence[Any]) -> Iterator[str]:
        for passage in passages[: self._max_contexts]:
            yield f"question: {question} passage: {passage_text(passage)}"

    @property
    def _answer_length(self) -> int:
        return self._max_seq_len if self._max_answer_len is None else self._max_answer_len


def _trained_answers(output: Sequence[Mapping[str, Any]] | None) -> list[str]:
    """Return the answers with enough votes, or one empty answer."""
    texts = [one["answer"] for one in output or () if one["answer"] and _score(one) >= _LEAST_SCORE]
    return texts or [""]


def _score(answer: Mapping[str, Any]) -> float:
    return (answer.get("meta") or {}).get("score") or 0


def _padded(ids: list[int], length: int) -> list[int]:
    return ids + [_IGNORED_LABEL] * (length - len(ids))
