"""Reading a run back from the files in its folder."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from portico.errors import InputError
from portico.mrc.config import load_examples
from portico.mrc.datasets import read_examples
from portico.mrc.datasets.examples import with_one_context
from portico.mrc.question_results import question_result
from portico.mrc.report.results import RunRecord, Span
from portico.mrc.report.run_page import REPORT_RECORD

# The prefixes of Hugging Face's example for an evaluation and for a prediction, and of files without a stage.
_PREFIXES = ("eval_", "predict_", "test_", "")
_PREDICTIONS = "predictions.json"
_NBEST = "nbest_predictions.json"
_NULL_ODDS = "null_odds.json"

# Groups of the configuration that are shown if there is no `report.json` that names the settings.
_SHOWN_GROUPS = ("model", "data", "preprocess", "postprocess", "args")

_NO_NBEST = "{} has no {}, so the page shows no candidates, no calibration and no threshold curve."

Example = Mapping[str, Any]


def read_run(folder: str | Path, *, data: str | Path | None = None) -> RunRecord:
    """Read a run's answers and join them with the questions.

    Args:
        folder: The folder of a run, with at least its predictions; n-best lists, null odds, metrics, log history and
            configuration are used if they are there. The answer files of Hugging Face's example work too.
        data: File of the questions, in any supported format; by default what the run's ``config.yaml`` names.

    Raises:
        InputError: If the folder has no answers, the questions cannot be found, or they do not match the answers.
    """
    folder = Path(folder)
    prefix = _answer_prefix(folder)
    predictions = _read_mapping(folder / f"{prefix}{_PREDICTIONS}")
    nbest = _read_mapping(folder / f"{prefix}{_NBEST}")
    null_odds = _read_mapping(folder / f"{prefix}{_NULL_ODDS}")
    config = _read_mapping(folder / "config.yaml")
    recorded = _read_record(folder / REPORT_RECORD)
    examples = _answered_examples(folder, _examples(folder, config, data), predictions)
    _check_same_questions(folder / f"{prefix}{_NBEST}", nbest, predictions)
    _check_same_questions(folder / f"{prefix}{_NULL_ODDS}", null_odds, predictions)
    answered = [(example, example["id"], str(predictions[example["id"]])) for example in examples]
    spans = recorded.get("spans") or {}
    return RunRecord(
        title=recorded.get("title") or str(config.get("name") or folder.resolve().name),
        name=str(folder.resolve()),
        results=[
            question_result(
                example, text, span=_span(example, text, spans), nbest=nbest.get(key), null_odds=null_odds.get(key)
            )
            for example, key, text in answered
        ],
        metrics=_metrics(folder, prefix),
        log_history=_read_mapping(folder / "trainer_state.json").get("log_history", []),
        settings=recorded.get("settings") or {group: config[group] for group in _SHOWN_GROUPS if config.get(group)},
        sections=recorded.get("sections") or {},
        missing=[] if nbest else [_NO_NBEST.format(folder.resolve().name, f"{prefix}{_NBEST}")],
    )


def _answer_prefix(folder: Path) -> str:
    if not folder.is_dir():
        what = "a file, not a folder" if folder.exists() else "no such folder"
        raise InputError(
            f"{folder}: {what}; name the folder of a run, which contains its {_PREFIXES[0]}{_PREDICTIONS}."
        )
    for prefix in _PREFIXES:
        if (folder / f"{prefix}{_PREDICTIONS}").is_file():
            return prefix
    raise InputError(
        f"{folder}: not the folder of a finished run: it has no {_PREFIXES[0]}{_PREDICTIONS}; name the folder of "
        "a run that has been evaluated."
    )


def _read_mapping(path: Path) -> dict[str, Any]:
    """Return the contents of a JSON or YAML file, an empty mapping if there is no such file."""
    if not path.is_file():
        return {}
    try:
        text = path.read_text(encoding="utf-8")
        value = yaml.safe_load(text) if path.suffix == ".yaml" else json.loads(text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise InputError(
            f"{path}: cannot be read ({' '.join(str(error).split())}); restore the file, or remove it to do without."
        ) from error
    if not isinstance(value, Mapping):
        raise InputError(
            f"{path}: contains a {type(value).__name__}, not a mapping; expected a file as the post-processing of "
            "SQuAD or of Hugging Face writes it, with answers by question id."
        )
    return dict(value)


def _read_record(path: Path) -> dict[str, Any]:
    """Return the contents of ``report.json``, whose fields other programs may have written."""
    recorded = _read_mapping(path)
    for name in ("settings", "sections", "spans"):
        if not isinstance(recorded.get(name) or {}, Mapping):
            raise InputError(
                f"{path}: `{name}` is a {type(recorded[name]).__name__}, not a mapping; restore the file, or remove "
                "it to do without."
            )
    for key, span in (recorded.get("spans") or {}).items():
        is_pair = isinstance(span, list) and len(span) == 2 and all(isinstance(place, int) for place in span)
        if span is not None and not is_pair:
            raise InputError(
                f"{path}: the span of question {key!r} is {span!r}, not a pair of character offsets; restore the "
                "file, or remove it to do without."
            )
    return recorded


def _metrics(folder: Path, prefix: str) -> dict[str, float]:
    """Return the metrics of training and of the stage that the answers are of."""
    metrics = {**_read_mapping(folder / "train_results.json"), **_read_mapping(folder / f"{prefix}results.json")}
    return {name: float(value) for name, value in metrics.items() if isinstance(value, int | float)}


def _examples(folder: Path, config: Mapping[str, Any], data: str | Path | None) -> Sequence[Example]:
    if data is not None:
        return read_examples(data)
    if not config.get("data"):
        raise InputError(
            f"{folder}: config.yaml is missing or does not name the data; name the file of the questions with --data."
        )
    try:
        return load_examples(config["data"]).validation
    except InputError as error:
        raise InputError(
            f"{error} {folder / 'config.yaml'} names this data; name another file with --data."
        ) from error


def _answered_examples(folder: Path, examples: Sequence[Example], predictions: Mapping[str, str]) -> list[Example]:
    """Return the examples that were answered, each with one context: a run may be limited to a part of its data."""
    answered = [with_one_context(example) for example in examples if example["id"] in predictions]
    if len(answered) < len(predictions):
        known = {example["id"] for example in answered}
        unknown = next(key for key in predictions if key not in known)
        raise InputError(
            f"{folder}: {len(predictions) - len(answered):,} of its {len(predictions):,} answers are to questions "
            f"that are not in the data, such as {unknown!r}; name the SQuAD file that the run was evaluated on with "
            "--data."
        )
    return answered


def _check_same_questions(path: Path, found: Mapping[str, Any], predictions: Mapping[str, str]) -> None:
    missing = predictions.keys() - found.keys()
    if found and missing:
        raise InputError(
            f"{path}: lacks {len(missing):,} of the {len(predictions):,} answered questions, such as "
            f"{min(missing)!r}, so it belongs to another evaluation; restore the file, or remove it to do without."
        )


def _span(example: Example, text: str, spans: Mapping[str, Sequence[int] | None]) -> Span | None:
    """Return the position of the answer: as the run recorded it, or that of its text if it occurs only once."""
    # The answer files of SQuAD hold texts only; `report.json` keeps the spans, and may be older than the answers.
    context, recorded = example["context"], spans.get(example["id"])
    if recorded is not None and context[recorded[0] : recorded[1]] == text:
        return recorded[0], recorded[1]
    start = context.find(text) if text else -1
    is_only = start >= 0 and context.find(text, start + 1) < 0
    return (start, start + len(text)) if is_only else None
