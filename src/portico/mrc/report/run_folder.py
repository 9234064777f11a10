"""A run as its folder tells it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from portico.errors import InputError
from portico.mrc.config import load_examples
from portico.mrc.joined_contexts import with_one_context
from portico.mrc.question_results import Answered, question_result
from portico.mrc.readers import read_examples
from portico.mrc.report.record import RunRecord
from portico.mrc.report.results import Span
from portico.mrc.report.run_files import NBEST, NULL_ODDS, PREDICTIONS, answer_prefix, read_mapping
from portico.mrc.report.writing import REPORT_RECORD

# Groups of the configuration that are shown, if `report.json` does not say what to show.
_SHOWN_GROUPS = ("model", "data", "preprocess", "postprocess", "args")

Example = Mapping[str, Any]


def read_run(folder: str | Path, *, data: str | Path | None = None) -> RunRecord:
    """Read a run's answers and join them with the questions.

    Args:
        folder: What a run wrote: at least its predictions; n-best lists, null odds, metrics, log history and
            configuration are used where they are there. The answer files of Hugging Face's example will do.
        data: File of the questions, in any format that is read; by default what the run's ``config.yaml`` names.

    Raises:
        InputError: If the folder holds no answers, the questions cannot be found, or they are others than those that
            were answered.
    """
    folder = Path(folder)
    prefix = answer_prefix(folder)
    predictions = read_mapping(folder / f"{prefix}{PREDICTIONS}")
    nbest = read_mapping(folder / f"{prefix}{NBEST}")
    null_odds = read_mapping(folder / f"{prefix}{NULL_ODDS}")
    config = read_mapping(folder / "config.yaml")
    recorded = read_mapping(folder / REPORT_RECORD)
    spans = recorded.get("spans", {})
    examples = _answered_examples(folder, _examples(folder, config, data), predictions)
    _check_same_questions(folder / f"{prefix}{NBEST}", nbest, predictions)
    _check_same_questions(folder / f"{prefix}{NULL_ODDS}", null_odds, predictions)
    return RunRecord(
        title=recorded.get("title") or str(config.get("name") or folder.resolve().name),
        name=str(folder.resolve()),
        results=[
            question_result(
                example,
                Answered(
                    text=str(predictions[example["id"]]),
                    span=_span(example, str(predictions[example["id"]]), spans),
                    nbest=nbest.get(example["id"]),
                    null_odds=null_odds.get(example["id"]),
                ),
            )
            for example in examples
        ],
        metrics=_metrics(folder, prefix),
        log_history=read_mapping(folder / "trainer_state.json").get("log_history", []),
        settings=recorded.get("settings") or {group: config[group] for group in _SHOWN_GROUPS if config.get(group)},
        sections=recorded.get("sections", {}),
        missing=_missing(folder, prefix, nbest),
    )


def _metrics(folder: Path, prefix: str) -> dict[str, float]:
    """Return the metrics of the stage that the answers are of."""
    metrics = {**read_mapping(folder / "train_results.json"), **read_mapping(folder / f"{prefix}results.json")}
    return {name: float(value) for name, value in metrics.items() if isinstance(value, int | float)}


def _examples(folder: Path, config: Mapping[str, Any], data: str | Path | None) -> Sequence[Example]:
    if data is not None:
        return read_examples(data)
    if not config.get("data"):
        raise InputError(
            f"{folder}: its config.yaml does not say what the questions were, or is missing; name their file "
            "with --data."
        )
    try:
        return load_examples(config["data"]).validation
    except InputError as error:
        raise InputError(f"{error} This is what {folder / 'config.yaml'} names; --data names another file.") from error


def _answered_examples(folder: Path, examples: Sequence[Example], predictions: Mapping[str, str]) -> list[Example]:
    """Return the examples that were answered, each with one context: a run may be limited to a part of its data."""
    answered = [with_one_context(example) for example in examples if example["id"] in predictions]
    if len(answered) < len(predictions):
        known = {example["id"] for example in answered}
        unknown = next(key for key in predictions if key not in known)
        raise InputError(
            f"{folder}: {len(predictions) - len(answered):,} of its {len(predictions):,} answers are to questions "
            f"that the data does not hold, {unknown!r} for one; name the SQuAD file that the run was evaluated on "
            "with --data."
        )
    return answered


def _check_same_questions(path: Path, found: Mapping[str, Any], predictions: Mapping[str, str]) -> None:
    missing = predictions.keys() - found.keys()
    if found and missing:
        raise InputError(
            f"{path}: lacks {len(missing):,} of the {len(predictions):,} questions that were answered, "
            f"{min(missing)!r} for one, so it is of another evaluation; restore the file, or remove it to do without."
        )


def _span(example: Example, text: str, spans: Mapping[str, Sequence[int] | None]) -> Span | None:
    """Return where the answer stands: as the run kept it, or where its text stands if that is one place only."""
    context, kept = example["context"], spans.get(example["id"])
    if kept is not None and context[kept[0] : kept[1]] == text:
        return kept[0], kept[1]
    start = context.find(text) if text else -1
    is_only = start >= 0 and context.find(text, start + 1) < 0
    return (start, start + len(text)) if is_only else None


def _missing(folder: Path, prefix: str, nbest: Mapping[str, Any]) -> list[str]:
    if nbest:
        return []
    return [
        f"{folder.resolve().name} holds no {prefix}{NBEST}, so there are neither candidates nor confidences: no "
        "calibration and no curve over thresholds."
    ]
