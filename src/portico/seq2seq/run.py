"""A whole sequence-to-sequence run: pairs of texts, training, evaluation."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, DataCollatorForSeq2Seq, EvalPrediction, set_seed

from portico.argument_rules import argument_rules
from portico.configured_run import (
    STRATEGY_KEYS,
    RunSettings,
    argument_keys,
    train_and_evaluate,
    training_arguments,
)
from portico.errors import InputError
from portico.seq2seq.pairs import TokenizedPairs, read_pairs
from portico.seq2seq.trainer import Seq2SeqTrainer, Seq2SeqTrainingArguments
from portico.value_rules import Rule, check_values

_TEXT = Rule((str,))
_LENGTH = Rule((int, type(None)), least=1)
_RULES: Mapping[str, Mapping[str, Rule]] = {
    "model": {"name_or_path": _TEXT},
    "data": {"train_file": _TEXT, "validation_file": _TEXT, "source": _TEXT, "target": _TEXT},
    "preprocess": {"max_source_length": _LENGTH, "max_target_length": _LENGTH},
}


def valid_keys() -> dict[str, list[str]]:
    """Return the keys that :func:`run_seq2seq` takes, for each group."""
    return {
        "args": argument_keys(Seq2SeqTrainingArguments),
        **{group: list(rules) for group, rules in _RULES.items()},
        "postprocess": [],
        "metric": [],
        "strategy": list(STRATEGY_KEYS),
    }


def run_seq2seq(settings: RunSettings) -> dict[str, float]:
    """Train a model on pairs of texts, evaluate it and write everything into the folder of the run.

    Args:
        settings: The groups. ``args`` are fields of :class:`~portico.seq2seq.trainer.Seq2SeqTrainingArguments`;
            ``model`` has the ``name_or_path`` of a pretrained encoder-decoder with its tokenizer; ``data`` has
            ``train_file`` and ``validation_file``, both JSON lines, and ``source`` and ``target``, the keys of the
            texts in a line; ``preprocess`` has ``max_source_length`` and ``max_target_length`` in tokens;
            ``postprocess`` and ``metric`` have nothing: with ``args.predict_with_generate`` the share of targets that
            were met is measured.

    Returns:
        Metrics of training and of the final evaluation.

    Raises:
        InputError: If a setting or a file cannot be used; before training.
    """
    _check_settings(settings)
    arguments = training_arguments(Seq2SeqTrainingArguments, settings.args, settings.strategy, settings.output_dir)
    set_seed(arguments.seed)
    data = settings.data
    keys = {"source": data.get("source", "source"), "target": data.get("target", "target")}
    train, validation = (read_pairs(data[name], **keys) for name in ("train_file", "validation_file"))
    network, tokenizer = _pretrained(settings.model["name_or_path"])
    trainer = Seq2SeqTrainer(
        model=network,
        args=arguments,
        train_dataset=TokenizedPairs(train, tokenizer, **settings.preprocess),
        eval_dataset=TokenizedPairs(validation, tokenizer, **settings.preprocess),
        processing_class=tokenizer,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=network),
        compute_metrics=ExactMatch(tokenizer) if arguments.predict_with_generate else None,
        callbacks=list(settings.callbacks),
        loggers=list(settings.logger),
    )
    return train_and_evaluate(trainer)


class ExactMatch:
    """The share of generated texts that are equal to their targets.

    Args:
        tokenizer: Turns tokens into texts; padding and other special tokens are left out.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def __call__(self, prediction: EvalPrediction) -> dict[str, float]:
        """Return ``exact_match``, between 0 and 1."""
        texts, targets = (self._decoded(tokens) for tokens in (prediction.predictions, prediction.label_ids))
        return {"exact_match": float(np.mean([text == target for text, target in zip(texts, targets, strict=True)]))}

    def _decoded(self, tokens: Any) -> list[str]:
        # -100 fills up what is padded between batches.
        filled = np.where(tokens < 0, self.tokenizer.pad_token_id, tokens)
        texts: list[str] = self.tokenizer.batch_decode(filled, skip_special_tokens=True)
        return texts


def _check_settings(settings: RunSettings) -> None:
    for group, name in (("model", "name_or_path"), ("data", "train_file"), ("data", "validation_file")):
        if getattr(settings, group).get(name) is None:
            raise InputError(f"`{group}.{name}` is not set; a sequence-to-sequence run has no default for it.")
    rules = {**_RULES, "args": argument_rules()}
    for group, rules_of_group in rules.items():
        check_values(group, getattr(settings, group), rules_of_group)


def _pretrained(name_or_path: str) -> tuple[Any, Any]:
    try:
        return AutoModelForSeq2SeqLM.from_pretrained(name_or_path), AutoTokenizer.from_pretrained(name_or_path)
    except (OSError, ValueError) as error:
        raise InputError(
            f"`model.name_or_path={name_or_path}` gives no encoder-decoder with its tokenizer "
            f"({' '.join(str(error).split())[:300]}); set it to a folder written by `save_pretrained`, or to a hub "
            "name such as google-t5/t5-small."
        ) from error
