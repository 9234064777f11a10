"""A whole reading comprehension run: examples, features, training, evaluation, report."""

import logging
import time
from collections.abc import Mapping
from typing import Any

from transformers import set_seed

from portico.arguments import TrainingArguments
from portico.configured_run import (
    STRATEGY_KEYS,
    RunSettings,
    argument_keys,
    train_and_evaluate,
    training_arguments,
)
from portico.errors import InputError
from portico.mrc.collators import head_collator
from portico.mrc.distillation import TEACHER_KEYS, teaching_parts
from portico.mrc.experiment.data import DATA_KEYS, Examples, feature_sets, load_sources, pooled
from portico.mrc.experiment.preprocessing import PREPROCESS_RULES, make_collator, make_featurizer
from portico.mrc.experiment.reader_training import ReaderTraining
from portico.mrc.experiment.reporting import report_run
from portico.mrc.experiment.settings import check_callbacks, check_settings, check_unshaped
from portico.mrc.metrics.chosen import METRIC_KEYS, chosen_metric, has_negatives
from portico.mrc.models.loading import (
    PLAIN_HEAD,
    ModelAndTokenizer,
    gives_loss_alone,
    head_of,
    head_post_processing,
    load_reader,
)
from portico.mrc.models.small_bert import bert_fields, new_reader
from portico.mrc.post_processing.span_post_processing import SpanPostProcessing
from portico.mrc.trainer import MRCTrainer

logger = logging.getLogger(__name__)

_MODEL_KEYS = ("name_or_path", "head", *TEACHER_KEYS)
_POSTPROCESS_KEYS = (
    "n_best_size",
    "max_answer_length",
    "null_score_diff_threshold",
    "mode",
    "search",
    "scorer_type",
    "calibrate",
)


def valid_keys() -> dict[str, list[str]]:
    """Return the keys that :func:`run_mrc` takes, for each group in which they are fixed."""
    return {
        "args": argument_keys(TrainingArguments),
        "model": [*_MODEL_KEYS, *bert_fields()],
        "data": [*DATA_KEYS, "sources"],
        "preprocess": list(PREPROCESS_RULES),
        "postprocess": list(_POSTPROCESS_KEYS),
        "metric": list(METRIC_KEYS),
        "strategy": list(STRATEGY_KEYS),
    }


def run_mrc(settings: RunSettings, training: ReaderTraining | None = None) -> dict[str, float]:
    """Train a reader, evaluate its answers and write everything into the folder of the run.

    Args:
        settings: The groups. ``args`` are fields of :class:`~portico.arguments.TrainingArguments`; ``model`` has
            ``name_or_path``, or fields of ``BertConfig`` for a new small BERT, and the ``head`` on either, see
            :func:`~portico.mrc.models.loading.load_model`, and a teacher, see
            :func:`~portico.mrc.distillation.teaching_parts`; for ``data`` see
            :func:`~portico.mrc.experiment.data.load_sources`; for ``preprocess`` see
            :func:`~portico.mrc.experiment.preprocessing.make_featurizer`, with the ``vocab_size`` of a new tokenizer;
            ``postprocess`` has fields of
            :class:`~portico.mrc.post_processing.span_post_processing.SpanPostProcessing`; for ``metric`` see
            :func:`~portico.mrc.metrics.chosen.chosen_metric`.
        training: How it is trained; by default by :class:`~portico.mrc.trainer.MRCTrainer`.

    Returns:
        Metrics of training and of the final evaluation.

    Raises:
        InputError: If a setting or a file cannot be used; before training.
    """
    started = time.time()
    check_settings(settings)
    training = training or ReaderTraining()
    arguments = training_arguments(training.arguments_class, settings.args, settings.strategy, settings.output_dir)
    check_callbacks(settings.callbacks, arguments)
    set_seed(arguments.seed)
    sources = load_sources(settings.data)
    examples = pooled(sources)
    metric = chosen_metric(settings.metric, examples.validation, has_unanswerable=examples.has_unanswerable)
    reader = _reader(settings.model, settings.preprocess, examples)
    _check_lengths(settings.preprocess, reader)
    featurizer = make_featurizer(reader, settings.preprocess)
    version_2 = has_negatives(settings.metric, has_unanswerable=examples.has_unanswerable)
    head = head_of(reader.model)
    trainer = training.trainer_class(settings)(
        model=reader.model,
        args=arguments,
        **feature_sets(sources, featurizer, labels=not gives_loss_alone(reader.model)),
        **teaching_parts(settings.model, reader.model),
        processing_class=reader.tokenizer,
        data_collator=head_collator(
            head, reader.tokenizer, make_collator(reader, settings.preprocess, fixed_shapes=training.fixed_shapes)
        ),
        post_process_function=SpanPostProcessing(
            version_2_with_negative=version_2, **head_post_processing(head, settings.postprocess)
        ),
        compute_metrics=metric,
        callbacks=list(settings.callbacks),
        loggers=list(settings.logger),
    )
    metrics = train_and_evaluate(trainer)
    used = _used(settings, trainer, examples)
    sections = training.report_sections(trainer)
    report_run(trainer, metrics, used, sections, sources, seconds=time.time() - started)
    return metrics


def _used(settings: RunSettings, trainer: MRCTrainer, examples: Examples) -> dict[str, Mapping[str, Any]]:
    """Return what the report shows of the settings."""
    return {
        "model": {**settings.model, "parameters": trainer.get_num_trainable_parameters()},
        "data": {
            **settings.data,
            "train questions": len(examples.train),
            "validation questions": len(examples.validation),
        },
        "preprocess": settings.preprocess,
        "postprocess": settings.postprocess,
        "args": settings.args,
    }


def _reader(model: Mapping[str, Any], preprocess: Mapping[str, Any], examples: Examples) -> ModelAndTokenizer:
    fields_ = {key: value for key, value in model.items() if key not in _MODEL_KEYS}
    if model.get("name_or_path") is not None:
        check_unshaped(fields_, model["name_or_path"], "small BERT")
        return load_reader(model["name_or_path"], model.get("head"))
    return new_reader(
        examples.training_texts,
        vocab_size=preprocess["vocab_size"],
        max_length=preprocess["max_seq_length"],
        model=fields_,
        head=model.get("head") or PLAIN_HEAD,
    )


def _check_lengths(preprocess: Mapping[str, Any], reader: ModelAndTokenizer) -> None:
    length = preprocess["max_seq_length"]
    if length > reader.max_length:
        raise InputError(
            f"`preprocess.max_seq_length={length}` is more than the model takes ({reader.max_length} tokens); set it "
            f"to {reader.max_length} or less."
        )
