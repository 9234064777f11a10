"""A run that answers the questions of a file: ``python train.py mode=predict +experiment=mrc``."""

import json
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from portico.arguments import TrainingArguments
from portico.configured_run import RunSettings, training_arguments
from portico.errors import InputError
from portico.mrc.answers import AnswerCalibration
from portico.mrc.experiment.run import valid_keys as keys_of_training
from portico.mrc.experiment.settings import check_settings
from portico.mrc.features.featurizer import Featurizer
from portico.mrc.inference import (
    Answer,
    AskedQuestion,
    Inference,
    answers_in_order,
    check_window,
    question_windows,
    read_questions,
)
from portico.mrc.models.loading import head_of, head_post_processing, load_trained_reader
from portico.mrc.post_processing.span_post_processing import SpanPostProcessing

logger = logging.getLogger(__name__)

# What only a training does.
_NOT_NOW = {"eval_strategy": "no", "save_strategy": "no", "load_best_model_at_end": False}
_PREFIX = "predict"


def valid_keys() -> dict[str, list[str]]:
    """Return the keys that :func:`run_prediction` takes, for each group in which they are fixed."""
    keys = keys_of_training()
    return {**keys, "data": [*keys["data"], "predict_file"]}


def run_prediction(settings: RunSettings) -> dict[str, float]:
    """Answer the questions of a file and write the answers into the folder of the run.

    Args:
        settings: As :func:`~portico.mrc.experiment.run.run_mrc` takes them; ``model.name_or_path`` is the reader and
            ``data.predict_file`` has the questions (see
            :func:`~portico.mrc.inference.read_questions`). Whether "no answer" can be predicted and from
            where on is what the reader's calibration says, if there is one, unless the settings say so.

    Returns:
        The number of questions and the seconds that answering took.

    Raises:
        InputError: If a setting, the model or the file cannot be used.
    """
    check_settings(settings)
    name, path = settings.model.get("name_or_path"), settings.data.get("predict_file")
    if name is None or path is None:
        raise InputError(
            f"`mode=predict` answers questions with a trained reader, but `model.name_or_path={_shown(name)}` and "
            f"`data.predict_file={_shown(path)}`; set both: the folder of a run, or a hub name, and a file "
            "of questions."
        )
    _announce_unused(settings)
    questions = read_questions(path)
    reader = load_trained_reader(name)
    preprocess = settings.preprocess
    check_window(preprocess["max_seq_length"], reader.max_length)
    featurizer = Featurizer(
        reader.tokenizer,
        max_seq_length=preprocess["max_seq_length"],
        doc_stride=preprocess["doc_stride"],
        max_question_length=preprocess.get("max_question_length"),
    )
    windows = question_windows(
        featurizer,
        [asked.question for asked in questions],
        [asked.context for asked in questions],
        [asked.id for asked in questions],
    )
    post_processing = _post_processing(settings, AnswerCalibration.load(name), head_of(reader.model))
    args = training_arguments(TrainingArguments, {**settings.args, **_NOT_NOW}, settings.strategy, settings.output_dir)
    started = time.time()
    inference = Inference(reader.model, reader.tokenizer, args)
    answered = inference.run(windows.features, post_processing.begin(windows.examples, windows.offsets))
    seconds = time.time() - started
    if args.should_save:
        answered.answers.write(settings.output_dir, _PREFIX)
        _write_readable(Path(settings.output_dir), questions, list(answers_in_order(answered.answers)))
    return {"predict_samples": len(questions), "predict_runtime": round(seconds, 4)}


def _post_processing(settings: RunSettings, calibration: AnswerCalibration | None, head: str) -> SpanPostProcessing:
    options = {key: value for key, value in settings.postprocess.items() if key != "calibrate"}
    threshold = None if calibration is None else calibration.null_score_diff_threshold
    can_be_null = settings.metric.get("version_2_with_negative")
    if options.get("null_score_diff_threshold") in (None, "best"):
        options["null_score_diff_threshold"] = threshold or 0.0
    return SpanPostProcessing(
        version_2_with_negative=threshold is not None if can_be_null is None else can_be_null,
        calibration=calibration,
        **head_post_processing(head, options),
    )


def _announce_unused(settings: RunSettings) -> None:
    names = ("train_file", "validation_file")
    unused = [f"`data.{name}={settings.data[name]}`" for name in names if settings.data.get(name) is not None]
    if unused:
        logger.warning("%s: not read, because `mode=predict` only answers `data.predict_file`.", ", ".join(unused))


def _write_readable(folder: Path, questions: Sequence[AskedQuestion], answers: Sequence[Answer]) -> None:
    records = [_record(asked, answer) for asked, answer in zip(questions, answers, strict=True)]
    text = json.dumps(records, indent=4, ensure_ascii=False)
    (folder / f"{_PREFIX}_answers.json").write_text(text + "\n", encoding="utf-8")
    lines = [f"{r['question']}\n    {r['answer'] or '(no answer)'}  ({r['probability']:.0%})\n" for r in records]
    readable = folder / f"{_PREFIX}_answers.txt"
    readable.write_text("\n".join(lines), encoding="utf-8")
    print(f"Answers: {readable}")


def _record(asked: AskedQuestion, answer: Answer) -> Mapping[str, Any]:
    return {
        "id": asked.id,
        "question": asked.question,
        "answer": answer.text,
        "start": answer.start,
        "end": answer.end,
        "context_index": answer.context_index,
        "score": answer.score,
        "probability": answer.probability,
    }


def _shown(value: Any) -> Any:
    return "null" if value is None else value
