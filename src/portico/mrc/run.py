"""A whole reading comprehension run: examples, features, training, evaluation, report."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import DataCollatorWithPadding, set_seed

from portico.arguments import TrainingArguments
from portico.configured_run import (
    STRATEGY_KEYS,
    RunSettings,
    argument_keys,
    train_and_evaluate,
    training_arguments,
)
from portico.errors import InputError
from portico.mrc.data import DATA_KEYS, Examples, load_examples
from portico.mrc.features.featurizer import Featurizer
from portico.mrc.post_processing import SpanPostProcessing, SquadMetrics
from portico.mrc.pretrained import Reader, bert_fields, load_reader, new_reader
from portico.mrc.question_results import question_results
from portico.mrc.report import write_report
from portico.mrc.settings import check_callbacks, check_settings
from portico.mrc.summary import print_summary
from portico.mrc.trainer import MRCTrainer

logger = logging.getLogger(__name__)

_PREPROCESS_KEYS = ("max_seq_length", "doc_stride", "max_question_length", "vocab_size")
_POSTPROCESS_KEYS = ("n_best_size", "max_answer_length", "null_score_diff_threshold")


def _no_sections(trainer: MRCTrainer) -> Mapping[str, str]:
    return {}


@dataclass(frozen=True)
class ReaderTraining:
    """How a reader is trained.

    Args:
        arguments_class: Class of the training arguments.
        make_trainer: Makes the trainer of the keywords of :class:`~portico.mrc.trainer.MRCTrainer`.
        report_sections: Returns what the report shows beside the answers: HTML by heading.
    """

    arguments_class: type[TrainingArguments] = TrainingArguments
    make_trainer: Callable[..., MRCTrainer] = MRCTrainer
    report_sections: Callable[[MRCTrainer], Mapping[str, str]] = _no_sections


def valid_keys() -> dict[str, list[str]]:
    """Return the keys that :func:`run_mrc` takes, for each group in which they are fixed."""
    return {
        "args": argument_keys(TrainingArguments),
        "model": ["name_or_path", *bert_fields()],
        "data": list(DATA_KEYS),
        "preprocess": list(_PREPROCESS_KEYS),
        "postprocess": list(_POSTPROCESS_KEYS),
        "metric": ["version_2_with_negative"],
        "strategy": list(STRATEGY_KEYS),
    }


def run_mrc(settings: RunSettings, training: ReaderTraining | None = None) -> dict[str, float]:
    """Train a reader, evaluate its answers and write everything into the folder of the run.

    Args:
        settings: The groups. ``args`` are fields of :class:`~portico.arguments.TrainingArguments`; ``model`` has
            ``name_or_path``, or fields of ``BertConfig`` for a new small BERT; for ``data`` see
            :func:`~portico.mrc.data.load_examples`; ``preprocess`` has ``max_seq_length``, ``doc_stride``,
            ``max_question_length`` and the ``vocab_size`` of a new tokenizer; ``postprocess`` has ``n_best_size``,
            ``max_answer_length``, ``null_score_diff_threshold``; ``metric`` has ``version_2_with_negative``, where
            ``None`` looks whether a question has no answer.
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
    examples = load_examples(settings.data)
    reader = _reader(settings.model, settings.preprocess, examples)
    _check_lengths(settings.preprocess, reader)
    featurizer = Featurizer(
        reader.tokenizer,
        max_seq_length=settings.preprocess["max_seq_length"],
        doc_stride=settings.preprocess["doc_stride"],
        max_question_length=settings.preprocess.get("max_question_length"),
    )
    version_2 = settings.metric.get("version_2_with_negative")
    version_2 = examples.has_unanswerable if version_2 is None else version_2
    trainer = training.make_trainer(
        model=reader.model,
        args=arguments,
        train_dataset=featurizer.train_features(examples.train),
        eval_dataset=featurizer.eval_features(examples.validation, labels=True),
        eval_examples=examples.validation,
        processing_class=reader.tokenizer,
        data_collator=DataCollatorWithPadding(reader.tokenizer),
        post_process_function=SpanPostProcessing(version_2_with_negative=version_2, **settings.postprocess),
        compute_metrics=SquadMetrics(version_2),
        callbacks=list(settings.callbacks),
        loggers=list(settings.logger),
    )
    metrics = train_and_evaluate(trainer)
    used = _used(settings, trainer, examples)
    _report(trainer, metrics, used, training.report_sections(trainer), seconds=time.time() - started)
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


def _reader(model: Mapping[str, Any], preprocess: Mapping[str, Any], examples: Examples) -> Reader:
    fields_ = {key: value for key, value in model.items() if key != "name_or_path"}
    if model.get("name_or_path") is not None:
        _check_unshaped(fields_, model["name_or_path"])
        return load_reader(model["name_or_path"])
    texts = [text for example in examples.train for text in (example["context"], example["question"])]
    return new_reader(
        texts, vocab_size=preprocess["vocab_size"], max_length=preprocess["max_seq_length"], model=fields_
    )


def _check_unshaped(fields_: Mapping[str, Any], name_or_path: str) -> None:
    shaping = [f"`model.{name}={value}`" for name, value in fields_.items() if value is not None]
    if shaping:
        raise InputError(
            f"{', '.join(shaping)} would shape a new small BERT, but `model.name_or_path={name_or_path}` loads a "
            "model as it is; set the one or the other, and null for the rest."
        )


def _check_lengths(preprocess: Mapping[str, Any], reader: Reader) -> None:
    length = preprocess["max_seq_length"]
    if length > reader.max_length:
        raise InputError(
            f"`preprocess.max_seq_length={length}` is more than the model takes ({reader.max_length} tokens); set it "
            f"to {reader.max_length} or less."
        )


def _report(
    trainer: MRCTrainer,
    metrics: Mapping[str, float],
    settings: Mapping[str, Any],
    sections: Mapping[str, str],
    *,
    seconds: float,
) -> None:
    if not trainer.is_world_process_zero():
        return
    folder = Path(trainer.args.output_dir)
    page = folder / "report.html"
    write_report(
        page,
        question_results(trainer.eval_examples or [], trainer.answered.answers),
        metrics=metrics,
        log_history=trainer.state.log_history,
        settings=settings,
        more_sections=sections,
        title="Machine reading comprehension",
    )
    print_summary(
        metrics,
        title="Machine reading comprehension",
        files={"Report": str(page), "Everything else": str(folder)},
        seconds=seconds,
    )
