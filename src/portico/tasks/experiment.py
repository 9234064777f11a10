"""The tasks of transformers' example scripts, with the same numbers.

:class:`TaskExperiment` trains, evaluates, predicts and writes ``report.html``. Its groups are:

* ``task``: a subclass of :class:`Task`, one kind of example.
* ``data``: :class:`TaskData`, or a class whose ``load(task, split)`` returns the records of ``"train"``,
  ``"validation"`` or ``"predict"`` as a list of dicts.
* ``model``: a subclass of :class:`TaskModel`, or a class whose ``load(task, texts, labels)`` returns a model and its
  tokenizer or image processor.
* ``metric``: the scores of the task, or a class called with an ``EvalPrediction``, which returns metrics by name, or a
  ``torchmetrics.Metric``.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from markupsafe import Markup
from torchmetrics import Metric, MetricCollection
from transformers import EvalPrediction

from portico.arguments import TrainingArguments
from portico.errors import InputError
from portico.experiments.experiment import (
    NOT_OF_A_METRIC,
    OF_TRAINING,
    RESERVED_TRAINER_ARGUMENTS,
    TrainerExperiment,
    check_score,
    group_field,
    load_model,
    print_scores,
)
from portico.experiments.settings import list_settings
from portico.loop.metrics import TorchMetrics
from portico.report.charts import Series, curve, draw_training_charts
from portico.report.page import REPORT_PAGE, Section, Tile, html_table, macros, render_page, scores_of, settings_panels
from portico.tasks.classification import TextClassification
from portico.tasks.data import TaskData
from portico.tasks.models import SmallBert
from portico.tasks.task import Record, Task, config_of, first, label_array, refuse_missing_label
from portico.trainer import Trainer
from portico.trust.disk import write_text
from portico.trust.names import data_only

logger = logging.getLogger(__name__)

_SHOWN_ROWS = 100  # records that the report shows
_SHOWN_CHARACTERS = 300  # longest value of a record that the report shows
_FRACTIONS = ("accuracy", "precision", "recall", "f1")


@data_only
@dataclass(kw_only=True)
class ScoresOfTask:
    """The group ``metric`` by default: the scores of the task, which keys of ``task`` may choose."""

    task: Any = None
    """The experiment sets it."""

    def __call__(self, prediction: EvalPrediction) -> Mapping[str, float]:
        return self.task.scores(prediction)


@data_only
@dataclass(kw_only=True)
class TaskExperiment(TrainerExperiment):
    """Trains, evaluates and predicts a task."""

    trainer: Any = group_field(
        partial(Trainer), decided=(*RESERVED_TRAINER_ARGUMENTS, "preprocess_logits_for_metrics")
    )
    task: Any = group_field(TextClassification, base=Task)
    data: Any = group_field(TaskData, needs="load")
    model: Any = group_field(SmallBert, needs="load")
    metric: Any = group_field(ScoresOfTask, needs="__call__", decided=("task",))

    def __post_init__(self) -> None:
        if isinstance(self.metric, ScoresOfTask):
            self.metric.task = self.task

    def make_trainer(self, args: TrainingArguments, *, training: bool = True) -> Trainer:
        """Load the records and the model, and return their trainer.

        Raises:
            InputError: If a setting, a record or the model cannot be used.
        """
        train = self._load("train") if training else ()
        return self._trainer_of(args, train, self._load("validation"))

    def _load(self, split: str) -> Sequence[Record]:
        records: Sequence[Record] = self.data.load(self.task, split)
        usable = list(filter(self.task.is_usable, records))
        if split != "predict" and self.task.drops_records_without_target:
            # If none has a target, the error below names the keys of the records.
            usable = list(filter(self.task.has_target, usable)) or usable
        if not usable:
            raise InputError(f"No records for the '{split}' split; point `data` at a file that has some.")
        if len(usable) < len(records):
            logger.warning(
                "%d of %d records for '%s' are empty and left out.", len(records) - len(usable), len(records), split
            )
            records = usable
        if split != "predict":
            refuse_missing_label(self.task, records, split)
        list(self.task.texts(records[0]))  # refuses other missing keys before a model is loaded
        unknown = [number for number, record in enumerate(records, 1) if not self.task.has_target(record)]
        if not unknown:
            return records
        if split == "predict":  # metrics of some records would not describe the predictions
            return list(map(self.task.remove_target, records))
        raise InputError(
            f"{len(unknown)} of {len(records)} records for '{split}' do not say what the model should return, such as "
            f"number {unknown[0]}, {str(records[unknown[0] - 1])[:100]}; correct them, or set the columns of `task`. "
            "mode=predict needs no labels."
        )

    def _trainer_of(self, args: TrainingArguments, train: Sequence[Record], validation: Sequence[Record]) -> Trainer:
        classes = self.task.classes(train)
        self.task.labels = list(map(str, classes))  # as far as known; the labels of the model follow
        has_scores = getattr(args, "predict_with_generate", True)
        if train and args.metric_for_best_model is not None:
            names = [*(self.task.score_names if has_scores else ()), *NOT_OF_A_METRIC]
            self._check_score("args.metric_for_best_model", args.metric_for_best_model.removeprefix("eval_"), names)
        texts = (text for record in train for text in self.task.texts(record))
        model, processor = load_model(self.model, self.task, texts, classes)
        config = config_of(model)
        known = dict(enumerate(map(str, classes))) if config is None else config.id2label
        self.task.labels = [known[number] for number in sorted(known)]
        self.task.adapt(args, model, processor)
        train_limit = getattr(self.data, "max_train_samples", None)
        eval_limit = getattr(self.data, "max_eval_samples", None)
        self.records = validation[:eval_limit]
        return self.trainer(
            model=model,
            args=args,
            train_dataset=self.task.build_features(train, processor, train_limit, training=True),
            eval_dataset=self.task.build_features(validation, processor, eval_limit, training=False),
            processing_class=processor,
            data_collator=self.task.collator(args, model, processor),
            compute_metrics=self._scores if has_scores else None,
            preprocess_logits_for_metrics=self.task.preprocess_logits if has_scores else None,
            **self.callback_arguments(self.trainer),
        )

    def check_objective(self, name: str) -> None:
        """Raise an ``InputError`` if the run will not report this objective, as far as its scores are known."""
        if not name.startswith(OF_TRAINING):
            names = [f"eval_{name}" for name in (*self.task.score_names, *NOT_OF_A_METRIC, "samples")]
            self._check_score("objective.metric", name, [*names, *self.task.further_scores({"eval_loss": 0.0})])

    def _check_score(self, setting: str, name: str, names: Sequence[str]) -> None:
        # A class of the user may report other scores.
        parts = (getattr(self.trainer, "func", self.trainer), type(self.task))
        if type(self.metric) is ScoresOfTask and all(part.__module__.startswith("portico.") for part in parts):
            check_score(setting, name, names)

    def _scores(self, prediction: EvalPrediction) -> dict[str, float]:
        self.shown_predictions = first(prediction.predictions)[:_SHOWN_ROWS]
        if not isinstance(self.metric, Metric | MetricCollection):
            return dict(self.metric(prediction))
        metrics = TorchMetrics(self.metric)
        tensors: Any = map(torch.as_tensor, (first(prediction.predictions), label_array(prediction)))
        metrics.update(EvalPrediction(*tensors))
        return dict(metrics.compute())

    def evaluate_trainer(self, trainer: Trainer) -> dict[str, float]:
        """Evaluate and return the metrics, including the ``perplexity`` of language models."""
        return self.intermediate_metrics(super().evaluate_trainer(trainer))

    def intermediate_metrics(self, metrics: Mapping[str, float]) -> dict[str, float]:
        return {**metrics, **self.task.further_scores(metrics)}

    def predict(self) -> dict[str, float]:
        """Write the predictions of ``model.name_or_path`` for the records of ``data.predict_file``.

        Returns the number of records, and the metrics if every record has a label.
        """
        args = self.arguments_without_training()
        records = self._load("predict")[: getattr(self.data, "max_predict_samples", None)]
        trainer = self._trainer_of(args, (), ())
        answers, metrics = self.task.predict(trainer, records)
        metrics = {**metrics, "predict_samples": len(records)}
        trainer.save_metrics("predict", metrics)
        if trainer.is_world_process_zero():
            file = Path(self.output_dir) / self.task.predictions_file
            write_text(file, "".join(f"{line}\n" for line in self.task.lines(answers)))
            print(f"Predictions: {file}")
        return metrics

    def report(self, trainer: Trainer, metrics: Mapping[str, float], *, seconds: float) -> None:
        """Write ``report.html``, and print the scores and the paths of the files."""
        folder = Path(self.output_dir)
        title = type(self.task).__name__
        write_text(folder / REPORT_PAGE, self._page(title, trainer, metrics))
        files = {"Report": str(folder / REPORT_PAGE), "Everything else": str(folder)}
        scores = {_label(name): f"{value:.4g}" for name, value in self._select_scores(metrics).items()}
        print_scores(title, "Held-out records", scores, files=files, seconds=seconds)

    def _select_scores(self, metrics: Mapping[str, float]) -> dict[str, float]:
        return scores_of(metrics, *self.objective, further=self.task.further_scores(metrics))

    def _page(self, title: str, trainer: Trainer, metrics: Mapping[str, float]) -> str:
        scores = self._select_scores(metrics)
        percents = {name: 100 * value for name, value in scores.items() if name.endswith(_FRACTIONS)}
        tiles = [
            Tile(_label(name), f"{percents[name]:.1f}" if name in percents else f"{value:.4g}", percents.get(name))
            for name, value in scores.items()
        ]
        history = trainer.state.log_history
        curves = {
            _label(name): [Series(_label(name), "first", curve(history, f"eval_{name}"), dotted=True)]
            for name in scores
            if name != "loss"
        }
        settings = {name: list_settings(getattr(self, name)) for name in ("task", "data", "model")}
        settings["model"]["parameters"] = trainer.get_num_trainable_parameters()
        return render_page(
            title,
            f"{metrics['eval_samples']:,} held-out records.",
            macros("parts.html.j2").tiles(tiles),
            [
                Section("Training history", draw_training_charts(history, curves), "Learning"),
                Section("Examples", self._examples()),
                Section("Settings", settings_panels({**settings, "args": getattr(self.args, "keywords", {})})),
            ],
            kicker="Report of a run",
        )

    def _examples(self) -> Markup:
        """Return a table of the first records, wrong answers first; empty if there is nothing to read."""
        predictions = getattr(self, "shown_predictions", None)
        if predictions is None:
            return Markup()
        records = self.records[: len(predictions)]
        answers, golds = self.task.answers(predictions, records), self.task.golds(records)
        if not answers:
            return Markup()
        cells = [
            (" / ".join(self.task.texts(record)) or f"number {number}", gold, answer)
            for number, (record, gold, answer) in enumerate(zip(records, golds, answers, strict=True))
        ]
        cells.sort(key=lambda row: row[1] == row[2])
        return html_table(("record", "expected", "predicted"), [list(map(_shorten, row)) for row in cells])


def _shorten(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]} ..."


def _label(name: str) -> str:
    words = name.replace("_", " ")
    return words[:1].upper() + words[1:] if len(words) > 3 else words.upper()
