"""Reading comprehension experiments: train a reader, evaluate it and report, or answer the questions of a file."""

import json
import logging
import time
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any

from transformers import EvalPrediction, PreTrainedModel, PreTrainedTokenizerFast

from portico.data.defects import shorten
from portico.errors import InputError, naming
from portico.experiments.experiment import (
    NOT_OF_A_METRIC,
    NOT_WITHOUT_TRAINING,
    OF_TRAINING,
    RESERVED_TRAINER_ARGUMENTS,
    TARGET,
    TrainerExperiment,
    check_score,
    group_field,
    key_of_group,
    load_model,
    path_of,
    print_scores,
)
from portico.experiments.settings import list_settings
from portico.mrc.config import (
    PREPROCESS_KEYS,
    EncoderModel,
    MRCData,
    Source,
    SpanAnswers,
    WindowPreprocessing,
    load_sources,
    pool,
)
from portico.mrc.datasets.examples import Examples, answers_of, contexts_of, has_unanswerable, join_contexts
from portico.mrc.datasets.reader import read_questions
from portico.mrc.distillation import build_teacher_arguments
from portico.mrc.features.featurizer import check_window, window_featurizer
from portico.mrc.generative import Seq2SeqMRCTrainer
from portico.mrc.inference import Inference, answers_in_order, question_windows
from portico.mrc.metrics import Mlqa, Mrqa, NqF1, Rouge, SquadV1, SquadV2, TydiF1
from portico.mrc.metrics.spans import SpanScores, scores_alone
from portico.mrc.metrics.squad import AnswerTexts, gold_texts, read_answer
from portico.mrc.models.loading import ModelAndTokenizer, load_trained_reader
from portico.mrc.multi_source import MultiSourceMRCTrainer
from portico.mrc.postprocess import AnswerCalibration
from portico.mrc.question_results import question_result, question_results
from portico.mrc.report import RunRecord, record_run, write_report
from portico.mrc.report.results import ANSWERING, DECLINING, QuestionResult
from portico.mrc.report.run_page import label_scores
from portico.mrc.trainer import MRCTrainer
from portico.trainer import Trainer
from portico.trust.disk import write_text
from portico.trust.names import data_only

logger = logging.getLogger(__name__)

_PREFIX = "predict"
_HEADLINE = "f1"
_NUM_TRIED = 16  # questions on which a metric of the user shows the names of its scores
_TEXT_METRICS = (AnswerTexts, SquadV2, Rouge)
_OWN_METRICS = (*_TEXT_METRICS, TydiF1, NqF1)
_NO_SPAN = {"start_position": -1, "end_position": -1, "passage_index": -1, "yes_no_answer": "none"}
_NOTHING_ANSWERED = (
    "No question was answered. Start from a pretrained model (model.name_or_path=<folder or hub name>), train for "
    "more epochs (args.num_train_epochs=<number>) or on more questions."
)


@data_only
@dataclass(kw_only=True)
class MRCExperiment(TrainerExperiment):
    """Reading comprehension, extractive or generative: the groups decide which; see :mod:`portico.mrc.config`."""

    trainer: Any = group_field(
        partial(MRCTrainer), base=(MRCTrainer, Seq2SeqMRCTrainer), decided=RESERVED_TRAINER_ARGUMENTS
    )
    data: Any = group_field(MRCData, needs="load")
    model: Any = group_field(EncoderModel, needs="load")
    preprocess: Any = group_field(WindowPreprocessing, needs="trainer_parts")
    postprocess: Any = group_field(SpanAnswers, needs="build")
    metric: Any = group_field(SquadV1, needs="__call__")
    headline: str = key_of_group("metric", _HEADLINE)
    """The score that chooses the best checkpoint, and the best run of a sweep."""
    version_2_with_negative: bool | None = key_of_group("metric", None)
    """Whether "no answer" can be predicted; null: if some question has no answer."""

    @cached_property
    def sources(self) -> list[Source]:
        return load_sources(self.data)

    def _sources_to_evaluate(self) -> list[Source]:
        """Return the sources; an evaluation does not need questions to train on."""
        if getattr(self.data, "train_file", "") is None and getattr(self.data, "validation_file", None) is not None:
            self.data = replace(self.data, train_file=self.data.validation_file)
        return self.sources

    @property
    def examples(self) -> Source:
        return pool(self.sources)

    def make_trainer(self, args: Any, *, training: bool = True) -> MRCTrainer:
        """Load the examples and the model, and return their trainer.

        Raises:
            InputError: If a setting, an example or the model cannot be used.
        """
        if not training:
            self.sources = [Source(source.train[:1], source.validation) for source in self._sources_to_evaluate()]
        metric = self._prepared_metric
        self._choose_best_by_objective(args)
        if self._score_names and (best := args.metric_for_best_model) is not None:
            key = "metric.headline" if best == self.headline else "args.metric_for_best_model"
            check_score(key, best.removeprefix("eval_"), [*self._score_names, *NOT_OF_A_METRIC])
        texts = [text for example in self.examples.train for text in (*contexts_of(example), example["question"])]
        model, tokenizer = load_model(self.model, texts, self.preprocess)
        return self._trainer()(
            model=model,
            args=args,
            **self.preprocess.trainer_parts(self.sources, model, tokenizer),
            **build_teacher_arguments(vars(self.model), model),
            processing_class=tokenizer,
            post_process_function=self.postprocess.build(model, tokenizer, self._version_2),
            compute_metrics=metric,
            **self.callback_arguments(self.trainer),
        )

    def _choose_best_by_objective(self, args: Any) -> None:
        """Choose the best checkpoint by the objective, if only that is set, and not `metric.headline`."""
        scores = [name for name in self.objective if not name.startswith(OF_TRAINING)]
        is_default = self.headline == _HEADLINE and args.metric_for_best_model == self.headline
        if (
            is_default
            and len(scores) == 1
            and scores[0] != f"eval_{self.headline}"
            and not isinstance(self.metric, _OWN_METRICS)
        ):
            self.headline = scores[0].removeprefix("eval_")
            args.metric_for_best_model = scores[0]
            args.greater_is_better = self.objective[scores[0]] == "max"

    def check_objective(self, name: str) -> None:
        """Raise an ``InputError`` if the run will not report this objective, as far as the metric is known."""
        if not self._score_names or name.startswith(OF_TRAINING):
            return
        names = [*self._score_names, *NOT_OF_A_METRIC, "samples"]
        if name == f"eval_{self.headline}":
            check_score("metric.headline", self.headline, names)
        check_score("objective.metric", name, [f"eval_{score}" for score in names])

    @cached_property
    def _version_2(self) -> bool:
        negatives = self.version_2_with_negative
        return has_unanswerable(chain(*self.examples)) if negatives is None else negatives

    @cached_property
    def _prepared_metric(self) -> Any:
        return prepare_metric(self.metric, self.examples.validation, self._version_2, has_spans=self._gives_spans)

    @cached_property
    def _score_names(self) -> list[str]:
        """Names of the scores of every source; empty if only an evaluation can show them."""
        parts = (getattr(self.trainer, "func", self.trainer), type(self.preprocess), type(self.postprocess))
        if not all(part.__module__.startswith("portico.") for part in parts):
            return []  # a class of the user may report other scores
        if not isinstance(self.metric, _OWN_METRICS):
            named = [names_of_metric(self._prepared_metric, source.validation) for source in self.sources]
            return named[0] if all(named) else []
        each = [self._baseline(source) for source in self.sources]
        return [name for name in each[0] if all(name in scores for scores in each)]

    def _baseline(self, source: Source, texts: Mapping[str, str] | None = None) -> dict[str, float]:
        """Return the scores of these answers; ``None`` answers no question."""
        has_odds = self._version_2 and getattr(self.postprocess, "mode", None) != "primeqa"
        odds = float(texts is None) if has_odds else None
        return scores_of_texts(self._prepared_metric, source.validation, texts, no_answer_probability=odds)

    def report(self, trainer: Trainer, metrics: Mapping[str, float], *, seconds: float) -> None:
        """Write a page for each source of spans, and print the headline scores and the paths of the files."""
        folder = Path(trainer.args.output_dir)
        first = [*self.objective] or [f"eval_{self.headline}"]
        if not self._gives_spans:
            files = {"Everything": str(folder)}
            print_summary(metrics, first, title="Generated answers", files=files, seconds=seconds)
            return
        assert isinstance(trainer, MRCTrainer), "only its answers are spans"
        title = "Machine reading comprehension"
        answered = [trainer.answered] if len(self.sources) == 1 else trainer.answered
        records = [
            RunRecord(
                title=title,
                results=results_of(source.validation, answers),
                metrics=metrics,
                headline=first[0].removeprefix("eval_"),
                baselines={
                    DECLINING: self._baseline(source),
                    **(
                        {ANSWERING: self._baseline(source, answers.answers.best_texts)}
                        if hasattr(answers, "answers")
                        else {}
                    ),
                },
                log_history=trainer.state.log_history,
                settings=self._describe_settings(trainer),
                sections=self.report_sections(trainer),
            )
            for source, answers in zip(self.sources, answered, strict=True)
        ]
        if len(records) == 1:
            pages = [record_run(folder, records[0])]  # makes the folder comparable with the folders of other runs
        else:
            pages = [folder / f"source_{number}" / "report.html" for number in range(len(records))]
            for page, record in zip(pages, records, strict=True):
                page.parent.mkdir(exist_ok=True)
                write_report(page, record)
        files = {"Report": ", ".join(map(str, pages)), "Everything else": str(folder)}
        print_summary(metrics, first, title=title, files=files, seconds=seconds)
        if not any(result.predicted_text for record in records for result in record.results):
            print(_NOTHING_ANSWERED)

    def report_sections(self, trainer: Any) -> Mapping[str, str]:
        """Return further sections of the report: HTML by heading."""
        return {}

    @property
    def _gives_spans(self) -> bool:
        return getattr(self.postprocess, "gives_spans", True)

    def _trainer(self) -> Any:
        """Return the trainer class, or the multi-source one if there are several sources or a teacher."""
        named = {
            "data.sources": getattr(self.data, "sources", None),
            "model.teacher": getattr(self.model, "teacher", None),
        }
        given = [f"`{name}`" for name, value in named.items() if value is not None]
        chosen = getattr(self.trainer, "func", self.trainer)
        if (not given and len(self.sources) == 1) or issubclass(chosen, MultiSourceMRCTrainer):
            return self.trainer
        several = MultiSourceMRCTrainer if chosen is MRCTrainer else getattr(chosen, "multi_source_class", None)
        if several is None:
            raise InputError(
                f"{' and '.join(given) or 'Several sources'} cannot be used with {path_of(chosen)}; leave it out, or "
                "train with `trainer=mrc` or a subclass of portico.mrc.MultiSourceMRCTrainer."
            )
        return partial(several, **getattr(self.trainer, "keywords", {}))

    def _describe_settings(self, trainer: MRCTrainer) -> dict[str, Mapping[str, Any]]:
        train, validation = self.examples
        shown = {name: list_settings(getattr(self, name)) for name in ("model", "data", "preprocess", "postprocess")}
        shown["model"]["parameters"] = trainer.get_num_trainable_parameters()
        shown["data"] |= {"train questions": len(train), "validation questions": len(validation)}
        return {**shown, "args": getattr(self.args, "keywords", {})}

    # -------------------------------------------------------------------------------- mode=predict

    def predict(self) -> dict[str, float]:
        """Answer the questions of ``data.predict_file`` with ``model.name_or_path`` and write the answers.

        The calibration stored with the model says whether and from which threshold "no answer" is predicted, unless
        the settings do. Returns the number of questions and the time in seconds.

        Raises:
            InputError: If a setting, the model or the file cannot be used.
        """
        name = getattr(self.model, "name_or_path", None)
        path = getattr(self.data, "predict_file", None)
        if not hasattr(self.model, "name_or_path"):
            raise InputError(
                f"`mode=predict` loads a trained model from a folder, which `model.{TARGET}="
                f"{path_of(type(self.model))}` does not; set `model.{TARGET}={path_of(EncoderModel)}` and "
                "`model.name_or_path` to the folder of a run, or use `portico.mrc.Reader` with your model."
            )
        if name is None or path is None or (self._gives_spans and not isinstance(self.postprocess, SpanAnswers)):
            raise InputError(
                "`mode=predict` answers questions with a trained model and a post-processing of portico, but "
                f"`model.name_or_path={name or 'null'}`, `data.predict_file={path or 'null'}` and "
                f"`postprocess.{TARGET}={path_of(type(self.postprocess))}`; set the first to the folder of a run of "
                "this experiment, or to a hub name, and the second to a file of questions."
            )
        named = {f"data.{name}": getattr(self.data, name) for name in ("train_file", "validation_file")}
        if unused := [f"`{name}={file}`" for name, file in named.items() if file is not None]:
            logger.warning(
                "%s has no effect with `mode=predict`, which answers `data.predict_file`; leave it out.",
                ", ".join(unused),
            )
        reading = ("format", "skip_invalid", "max_gzip_ratio")
        asked = read_questions(path, **{key: getattr(self.data, key) for key in reading if hasattr(self.data, key)})
        started = time.time()
        answered = self._extract_spans(name, asked) if self._gives_spans else self._generate_answers(asked)
        seconds = time.time() - started
        if answered is not None:
            _write_readable(Path(self.output_dir), answered)
        return {"predict_samples": len(asked), "predict_runtime": round(seconds, 4)}

    def _extract_spans(self, name: str, asked: Examples) -> list[dict[str, Any]] | None:
        """Write the predictions, n-best lists and null odds; return the answers in the first process."""
        reader = load_trained_reader(name)
        check_window("preprocess.max_seq_length", self.preprocess.max_seq_length, reader.max_length)
        fields = ([record[key] for record in asked] for key in ("question", "context", "id"))
        with naming(PREPROCESS_KEYS):
            examples, features = question_windows(window_featurizer(reader.tokenizer, self.preprocess), *fields)
        post_processing = self._calibrate(AnswerCalibration.load(name), reader.model, reader.tokenizer)
        args = self.build_arguments(**NOT_WITHOUT_TRAINING)
        answered = self._inference(reader, args).answers(post_processing, examples, features)
        if not args.should_save:
            return None
        answered.answers.write(self.output_dir, _PREFIX)
        asked_and_read = ([question[key] for question in examples] for key in ("question", "context"))
        answers = answers_in_order(answered.answers, *asked_and_read)
        shown = ("start", "end", "context_index", "score", "probability")
        return [
            {
                "id": question["id"],
                "question": question["question"],
                "answer": answer.text,
                **{key: getattr(answer, key) for key in shown},
            }
            for question, answer in zip(examples, answers, strict=True)
        ]

    def _inference(self, reader: ModelAndTokenizer, args: Any) -> Inference:
        return Inference(reader, args)

    def _generate_answers(self, asked: Examples) -> list[dict[str, Any]] | None:
        """Return the answers that the model generates, in the first process."""
        args = self.build_arguments(**NOT_WITHOUT_TRAINING, predict_with_generate=True)
        model, tokenizer = self.model.load((), self.preprocess)
        questions: list[Any] = [{**record, "answers": {"text": [], "answer_start": []}} for record in asked]
        parts = self.preprocess.trainer_parts([Source(questions[:1], questions)], model, tokenizer)
        features = [{key: row[key] for key in row if key != "labels"} for row in parts["eval_dataset"]]
        trainer = self._trainer()(
            model=model,
            args=args,
            data_collator=parts["data_collator"],
            processing_class=tokenizer,
            post_process_function=self.postprocess.build(model, tokenizer, False),
            **self.callback_arguments(self.trainer),
        )
        answers = trainer.predict(features, asked, metric_key_prefix=_PREFIX).predictions
        if not args.should_save:
            return None
        texts = {answer["id"]: answer["prediction_text"] for answer in answers}
        return [
            {"id": record["id"], "question": record["question"], "answer": texts[record["id"]]} for record in asked
        ]

    def _calibrate(
        self, calibration: AnswerCalibration | None, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
    ) -> Any:
        threshold = None if calibration is None else calibration.null_score_diff_threshold
        chosen = self.postprocess.null_score_diff_threshold
        negatives = self.version_2_with_negative
        answers = replace(
            self.postprocess,
            calibrate=False,
            null_score_diff_threshold=(threshold or 0.0) if chosen == "best" else chosen,
        )
        processing = answers.build(model, tokenizer, threshold is not None if negatives is None else negatives)
        return replace(processing, calibration=calibration)


def _write_readable(folder: Path, answered: Sequence[Mapping[str, Any]]) -> None:
    text = json.dumps(answered, indent=4, ensure_ascii=False)
    write_text(folder / f"{_PREFIX}_answers.json", text + "\n")
    lines = []
    for answer in answered:
        probability = f"  ({answer['probability']:.0%})" if "probability" in answer else ""
        lines.append(f"{answer['question']}\n    {answer['answer'] or '(no answer)'}{probability}\n")
    readable = folder / f"{_PREFIX}_answers.txt"
    write_text(readable, "\n".join(lines))
    print(f"Answers: {readable}")


# ------------------------------------------------------------------------------------ answers


def results_of(examples: Sequence[Mapping[str, Any]], answered: Any) -> list[QuestionResult]:
    """Return the answers of a run for its report; texts alone if a post-processing of the user found them.

    Raises:
        InputError: If it did not return them as ``predictions``.
    """
    if hasattr(answered, "answers"):
        return question_results(examples, answered.answers)
    predictions = getattr(answered, "predictions", answered)
    try:
        records = (
            [{"id": key, "prediction_text": text} for key, text in predictions.items()]
            if isinstance(predictions, Mapping)
            else list(predictions)
        )
        texts = {record["id"]: read_answer(record) for record in records}
        found = [(join_contexts(example), texts[example["id"]]) for example in examples]
    except (TypeError, KeyError, IndexError, ValueError) as error:
        raise InputError(
            f"The post-processing returned {type(answered).__name__}, whose `predictions` are not the answers "
            f"({shorten(str(error))}); return `EvalPrediction(predictions=[{{'id': ..., 'prediction_text': ...}}, "
            "...], label_ids=[{'id': ..., 'answers': ...}, ...])`, with an answer to every question."
        ) from error
    return [question_result(example, text, span=None, nbest=None, null_odds=None) for example, text in found]


# ------------------------------------------------------------------------------------ metric


def prepare_metric(
    metric: Any, examples: Sequence[Mapping[str, Any]], version_2_with_negative: bool, *, has_spans: bool = True
) -> Any:
    """Return the ``compute_metrics`` for the examples that will be evaluated.

    :class:`~portico.mrc.SquadV2` replaces :class:`~portico.mrc.SquadV1` if "no answer" can be predicted; the metrics
    of TyDi QA and Natural Questions get the annotations. ``has_spans`` is false for generated answers.

    Raises:
        InputError: If the metric cannot score this kind of answers or one of the examples.
    """
    if type(metric) is SquadV1 and version_2_with_negative:
        return SquadV2()
    name = type(metric).__name__
    if isinstance(metric, SquadV1 | Mlqa | Mrqa | Rouge):
        without = [example["id"] for example in examples if not gold_texts(example)]
        if without:
            raise InputError(
                f"{len(without)} of {len(examples)} questions to evaluate on have no answer, such as {without[0]!r}, "
                f"and {name} cannot score them; choose `metric=squad_v2`, or data in which every question has one."
            )
    if isinstance(metric, Mlqa):
        return metric.of_examples(examples)
    if not isinstance(metric, TydiF1 | NqF1):
        return metric
    if not has_spans:
        raise InputError(
            f"{name} scores spans of passages, but generated answers are strings; choose `metric=rouge` or "
            "`metric=squad`."
        )
    scores = SpanScores(metric, examples)
    # A threshold that no question can reach would make every score 0.
    thresholds = {key: value for key, value in vars(scores.metric).items() if key.endswith("_non_null_threshold")}
    wrong = {key: value for key, value in thresholds.items() if not 1 <= value <= scores.most_annotators}
    if wrong:
        shown = " and ".join(f"`metric.{key}={value}`" for key, value in wrong.items())
        raise InputError(
            f"{name} takes for gold what {shown} annotators agree on, but the questions to evaluate on have at most "
            f"{scores.most_annotators}; set {'each' if len(wrong) > 1 else 'it'} to {max(scores.most_annotators, 1)}, "
            "or choose `metric=squad_v2`."
        )
    return scores


def names_of_metric(metric: Any, examples: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of the scores that a metric of the user computes of some answers, right ones and none.

    They are empty if it cannot score answers without their candidates.
    """
    asked = [example for example in examples[:_NUM_TRIED] if answers_of(example)[0]] or list(examples[:1])
    references: Any = [{"id": example["id"], "answers": example["answers"]} for example in asked]
    names: dict[str, None] = {}
    for is_right in (False, True):
        texts = [gold_texts(example)[0] if is_right and gold_texts(example) else "" for example in asked]
        predictions: Any = [
            {"id": example["id"], "prediction_text": text} for example, text in zip(asked, texts, strict=True)
        ]
        try:
            names |= dict.fromkeys(deepcopy(metric)(EvalPrediction(predictions, references)))
        except Exception:  # code of the user, which may need more than texts
            return []
    return [str(name).removeprefix("eval_") for name in names]


# ------------------------------------------------------------------------------------ report


def print_summary(
    metrics: Mapping[str, float], first: Sequence[str], *, title: str, files: Mapping[str, str], seconds: float
) -> None:
    """Print all scores of an evaluation (``eval_...``), ``first`` ones on top, the time of the run and its files."""
    scores = {label: value for label, value, _ in label_scores(metrics, *first)}
    print_scores(title, "Held-out questions", scores, files=files, seconds=seconds)


def scores_of_texts(
    metric: object,
    examples: Sequence[Mapping[str, Any]],
    texts: Mapping[str, str] | None = None,
    *,
    no_answer_probability: float | None = None,
) -> dict[str, float]:
    """Return the scores that a run would report for trivial answers.

    Args:
        metric: The ``compute_metrics`` of the run.
        examples: The questions, with ``id`` and ``answers``.
        texts: The answers, ``{id: text}``; ``None`` answers no question.
        no_answer_probability: The same probability of "no answer" for all questions; ``None`` if the run predicts no
            probabilities.

    Returns:
        Scores by name; ``{}`` for a metric of the user, and for texts if the metric scores spans.
    """
    if isinstance(metric, SpanScores) and texts is None:
        blank = [{"example_id": example["id"], **_NO_SPAN, "confidence_score": 0.0} for example in examples]
        return metric.compute(blank)
    if not isinstance(metric, _TEXT_METRICS):
        return {}
    more = {} if no_answer_probability is None else {"no_answer_probability": no_answer_probability}
    answered = texts or {}
    predictions = [
        {"id": example["id"], "prediction_text": answered.get(example["id"], ""), **more} for example in examples
    ]
    return scores_alone(metric, predictions, examples)
