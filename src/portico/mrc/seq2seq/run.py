"""A whole run that answers by generating: examples, features, training, evaluation."""

import time
from collections.abc import Mapping
from typing import Any

from transformers import DataCollatorForSeq2Seq, set_seed

from portico.argument_rules import argument_rules
from portico.configured_run import (
    STRATEGY_KEYS,
    RunSettings,
    argument_keys,
    train_and_evaluate,
    training_arguments,
)
from portico.mrc.collators import FiDDataCollator
from portico.mrc.experiment.data import DATA_KEYS, Examples, load_examples
from portico.mrc.experiment.settings import check_callbacks, check_unshaped
from portico.mrc.experiment.summary import print_summary
from portico.mrc.generative import (
    GeneratedAnswerProcessing,
    GenerativeFeaturizer,
    Seq2SeqMRCTrainer,
    load_generator,
    new_generator,
    t5_fields,
)
from portico.mrc.metrics.chosen import METRIC_KEYS, METRIC_RULES, chosen_metric, has_negatives
from portico.mrc.models.loading import ModelAndTokenizer
from portico.seq2seq.trainer import Seq2SeqTrainingArguments
from portico.value_rules import Rule, check_values

_LENGTH = Rule((int,), least=1)
_PREPROCESS_RULES = {
    "max_source_length": _LENGTH,
    "max_target_length": _LENGTH,
    "num_passages": Rule((int, type(None)), least=1),
    "vocab_size": _LENGTH,
}


def valid_keys() -> dict[str, list[str]]:
    """Return the keys that :func:`run_mrc_seq2seq` takes, for each group in which they are fixed."""
    return {
        "args": argument_keys(Seq2SeqTrainingArguments),
        "model": ["name_or_path", *t5_fields()],
        "data": list(DATA_KEYS),
        "preprocess": list(_PREPROCESS_RULES),
        "postprocess": [],
        "metric": list(METRIC_KEYS),
        "strategy": list(STRATEGY_KEYS),
    }


def run_mrc_seq2seq(settings: RunSettings) -> dict[str, float]:
    """Train a model to write answers, evaluate them and write everything into the folder of the run.

    Args:
        settings: The groups. ``args`` are fields of :class:`~portico.seq2seq.trainer.Seq2SeqTrainingArguments`;
            ``model`` has ``name_or_path``, or fields of ``T5Config`` for a new small T5; for ``data`` see
            :func:`~portico.mrc.experiment.data.load_examples`; ``preprocess`` has ``max_source_length``,
            ``max_target_length``, the ``num_passages`` that fusion-in-decoder reads (``None`` for a model of one text)
            and the ``vocab_size`` of a new tokenizer; for ``metric`` see
            :func:`~portico.mrc.metrics.chosen.chosen_metric`; ``postprocess`` has nothing.

    Returns:
        Metrics of training and of the final evaluation.

    Raises:
        InputError: If a setting or a file cannot be used; before training.
    """
    started = time.time()
    for group, rules in (("args", argument_rules()), ("preprocess", _PREPROCESS_RULES), ("metric", METRIC_RULES)):
        check_values(group, getattr(settings, group), rules)
    arguments = training_arguments(Seq2SeqTrainingArguments, settings.args, settings.strategy, settings.output_dir)
    check_callbacks(settings.callbacks, arguments)
    set_seed(arguments.seed)
    examples = load_examples(settings.data)
    metric = chosen_metric(
        settings.metric, examples.validation, has_unanswerable=examples.has_unanswerable, has_spans=False
    )
    generator = _generator(settings.model, settings.preprocess, examples)
    tokenizer = generator.tokenizer
    featurizer = GenerativeFeaturizer(
        tokenizer, **{name: value for name, value in settings.preprocess.items() if name != "vocab_size"}
    )
    version_2 = has_negatives(settings.metric, has_unanswerable=examples.has_unanswerable)
    reads_passages = featurizer.num_passages is not None
    trainer = Seq2SeqMRCTrainer(
        model=generator.model,
        args=arguments,
        train_dataset=featurizer.train_features(examples.train),
        eval_dataset=featurizer.eval_features(examples.validation),
        eval_examples=examples.validation,
        processing_class=tokenizer,
        data_collator=(FiDDataCollator if reads_passages else DataCollatorForSeq2Seq)(tokenizer, generator.model),
        post_process_function=GeneratedAnswerProcessing(tokenizer, version_2_with_negative=version_2),
        compute_metrics=metric,
        callbacks=list(settings.callbacks),
        loggers=list(settings.logger),
    )
    metrics = train_and_evaluate(trainer)
    if trainer.is_world_process_zero():
        print_summary(
            metrics,
            title="Generated answers",
            files={"Everything": str(trainer.args.output_dir)},
            seconds=time.time() - started,
        )
    return metrics


def _generator(model: Mapping[str, Any], preprocess: Mapping[str, Any], examples: Examples) -> ModelAndTokenizer:
    fusion = preprocess.get("num_passages") is not None
    fields = {key: value for key, value in model.items() if key != "name_or_path"}
    path = model.get("name_or_path")
    if path is None:
        texts = examples.training_texts
        return new_generator(texts, vocab_size=preprocess["vocab_size"], model=fields, fusion_in_decoder=fusion)
    check_unshaped(fields, path, "small T5")
    return load_generator(path, fusion_in_decoder=fusion)
