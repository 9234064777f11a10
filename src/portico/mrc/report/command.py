"""Read runs from their folders, and write the report of one or the comparison of several."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from portico.data.defects import shorten
from portico.errors import InputError
from portico.experiments.experiment import TARGET
from portico.experiments.settings import schema_of
from portico.mrc.config import MRCData, load_examples
from portico.mrc.datasets import read_examples
from portico.mrc.datasets.examples import join_contexts
from portico.mrc.metrics.squad import record_of
from portico.mrc.question_results import question_result
from portico.mrc.report.comparison import align_runs, write_comparison
from portico.mrc.report.explorer import MAX_MEGABYTES
from portico.mrc.report.results import RunRecord, Span
from portico.mrc.report.run_page import REPORT_RECORD, write_report
from portico.report.page import GENERATOR, REPORT_PAGE
from portico.rules import check_values
from portico.trust.disk import open_regular, read_text
from portico.trust.files import plain_yaml
from portico.trust.names import from_folder, import_target, refuse_in_folder

# Our pages have `GENERATOR` within this many bytes.
_HEAD = 1000

# The prefixes of Hugging Face's example for an evaluation and for a prediction, and of files without a stage.
_PREFIXES = ("eval_", "predict_", "test_", "")
_PREDICTIONS = "predictions.json"
_NBEST = "nbest_predictions.json"
# The second is the name in the documentation of the official script of SQuAD 2.0.
_NULL_ODDS = ("null_odds.json", "na_prob.json")

# Groups of the configuration that are shown if there is no `report.json` that names the settings.
_SHOWN_GROUPS = ("model", "data", "preprocess", "postprocess", "args")

Example = Mapping[str, Any]


def write_page(
    run: Path,
    *others: Path,
    data: Path | None = None,
    output: Path | None = None,
    max_megabytes: float = MAX_MEGABYTES,
    trust_config: bool = False,
    allow_path: Sequence[Path] | None = None,
) -> Path:
    """Write the report of a run, or the comparison with others, and return the file.

    It takes the arguments of ``portico report``.

    By default it is ``report.html`` in the folder of the run, for a comparison with one ``comparison-with-<run>.html``
    in that one's folder, and with several ``comparison-of-<number>-runs.html`` in the folder of the last.

    Raises:
        InputError: If a run cannot be read, the runs cannot be compared or the file cannot be written. Only pages of
            this command are overwritten.
    """
    options: dict[str, Any] = {
        "data": data,
        "output": output,
        "max_megabytes": max_megabytes,
        "trust_config": trust_config,
        "allow_path": allow_path,
    }
    return report_or_compare(run, *others, **options)[0]


def report_or_compare(
    run: Path,
    *others: Path,
    data: Path | None = None,
    output: Path | None = None,
    max_megabytes: float = MAX_MEGABYTES,
    trust_config: bool = False,
    allow_path: Sequence[Path] | None = None,
    typed: Sequence[str] = (),
) -> tuple[Path, str]:
    """Do what ``write_page`` does, and return also the verdict of a comparison, "" for one run.

    A refusal of files outside of a run repeats the command that was ``typed``, with the option that admits them.
    """
    verdict = ""
    if not max_megabytes > 0:
        raise InputError(f"`--max-megabytes {max_megabytes:g}` is not positive; give a number above 0.")
    path = output or _default_page(run, others)
    if path.is_dir():
        raise InputError(f"{path}: is a folder; name a file with --output, for example {path / REPORT_PAGE}.")
    if path.exists() and not _is_ours(path):
        raise InputError(
            f"{path}: the file exists and was not written by this command; name another with --output, or move it "
            "away."
        )
    if output is not None and not path.parent.is_dir():
        raise InputError(f"{path}: cannot be written (No such file or directory); name another with --output.")
    read = partial(_read_named, data=data, trust_config=trust_config, allow_path=allow_path, typed=typed)
    records = [read(folder) for folder in (run, *others)]
    try:
        if others:
            verdict = write_comparison(path, *align_runs(*records), max_megabytes=max_megabytes)
        else:
            write_report(path, *records, max_megabytes=max_megabytes)
    except RecursionError as error:
        names = " or ".join(map(str, (run, *others)))
        raise InputError(f"{names}: something in its files is nested too deeply to be shown; restore them.") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}); name another with --output.") from error
    return path, verdict


def _read_named(folder: Path, **options: Any) -> RunRecord:
    """Read a run, one of several, so that each error names its folder."""
    try:
        return read_run(folder, **options)
    except RecursionError as error:
        raise InputError(f"{folder}: something in its files is nested too deeply to be read; restore them.") from error
    except OSError as error:
        what = shorten(str(error.filename or folder))
        raise InputError(
            f"{folder}: {what} cannot be read ({error.strerror}); restore it, or ask its owner for permission."
        ) from error


def _default_page(run: Path, others: Sequence[Path]) -> Path:
    if not others:
        return run.with_name(f"{run.stem}-{REPORT_PAGE}") if run.is_file() else run / REPORT_PAGE
    name = run.stem if run.is_file() else run.resolve().name
    what = f"of-{len(others) + 1}-runs" if len(others) > 1 else f"with-{name}"
    last = others[-1].parent if others[-1].is_file() else others[-1]
    return last / f"comparison-{what}.html"


def _is_ours(path: Path) -> bool:
    """Return whether this command has written a file: a page, or an empty one that a killed process has left."""
    try:
        with open_regular(path) as file:
            head = file.read(_HEAD)
            return not head or GENERATOR.encode() in head
    except OSError:
        return False


def read_run(
    folder: str | Path,
    *,
    data: str | Path | None = None,
    trust_config: bool = False,
    allow_path: Sequence[Path] | None = None,
    typed: Sequence[str] = (),
) -> RunRecord:
    """Read a run's answers and join them with the questions.

    ``folder`` is the folder of a run, or a file of answers by id such as SQuAD's official ``predictions.json``.
    The folder has at least predictions; n-best lists, null odds, metrics, log history and configuration are used if
    they are there. The answer files of Hugging Face's example work too. ``data`` is a file of the questions in any
    supported format; by default what the run's ``config.yaml`` names. A dataset of the hub or a class that it names is
    only loaded with ``trust_config``. With ``allow_path``, as of the command, it may name files outside of the folder
    at or below these paths only; ``typed`` is the command for the error about others.

    Raises:
        InputError: If the folder has no answers, the questions cannot be found, or they do not match the answers.
    """
    path = Path(folder)
    folder, name = (path.parent, path.stem) if path.is_file() else (path, path.resolve().name)
    if path.is_file():
        file = path
        # Files next to it belong to it if they have its prefix: `dev_predictions.json`, `dev_null_odds.json`.
        is_named = file.name.endswith(_PREDICTIONS) and not file.name.endswith(_NBEST)
        prefix = file.name.removesuffix(_PREDICTIONS) if is_named else f"{file.stem}_"
    else:
        prefix = _answer_prefix(folder)
        file = folder / f"{prefix}{_PREDICTIONS}"
    predictions = {key: _text_of(file, key, entry) for key, entry in _read_mapping(file).items()}
    nbest = _read_by_question(folder / f"{prefix}{_NBEST}", predictions, "a list of candidates", _is_nbest)
    odds_files = [folder / f"{prefix}{odds}" for odds in _NULL_ODDS]
    odds_file = next(filter(Path.is_file, odds_files), odds_files[0])
    null_odds = _read_by_question(odds_file, predictions, "a number", _is_number)
    config = _read_mapping(folder / "config.yaml")
    recorded = _read_record(folder / REPORT_RECORD)
    results = []
    trust: dict[str, Any] = {
        "trusted": trust_config or data is not None,
        "admitted": allow_path,
        "named": _validation_files(config.get("data")),
        "typed": typed,
    }
    for example in _load_answered_examples(folder, config, data, predictions, trust):
        key, text = example["id"], predictions[example["id"]]
        span = _span(example["context"], text, (recorded.get("spans") or {}).get(key))
        results.append(question_result(example, text, span=span, nbest=nbest.get(key), null_odds=null_odds.get(key)))
    # Of training and of the stage that the answers are of.
    metrics = {**_read_mapping(folder / "train_results.json"), **_read_mapping(folder / f"{prefix}results.json")}
    no_nbest = (
        f"{name} has no {prefix}{_NBEST}, so the page shows no candidates, no calibration and no threshold curve."
    )
    return RunRecord(
        title=str(recorded.get("title") or config.get("name") or name),
        name=str(folder.resolve()),
        results=results,
        metrics=_numbers(metrics),
        headline=str(recorded.get("headline") or ""),
        baselines=recorded.get("baselines"),
        log_history=_read_log_history(folder / "trainer_state.json"),
        settings=recorded.get("settings")
        or {group: config[group] for group in _SHOWN_GROUPS if isinstance(config.get(group), Mapping)},
        sections=recorded.get("sections") or {},
        missing=[] if nbest else [no_nbest],
    )


def _text_of(file: Path, key: str, entry: object) -> str:
    try:
        return str(record_of(key, entry)["prediction_text"])
    except InputError as error:
        raise _unusable(file, f"the entry of question {shorten(key)} is {shorten(entry)}, not a text") from error


def _answer_prefix(folder: Path) -> str:
    if not folder.is_dir():
        raise InputError(
            f"{folder}: no such folder or file; name the folder of a run, which contains its "
            f"{_PREFIXES[0]}{_PREDICTIONS}, or a file of answers by question id."
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
        text = read_text(path)
        value = plain_yaml(text) if path.suffix == ".yaml" else json.loads(text)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise _unusable(path, f"cannot be read ({' '.join(str(error).split())[:300]})") from error
    if not isinstance(value, Mapping):
        raise InputError(
            f"{path}: contains a {type(value).__name__}, not a mapping; expected a file as the post-processing of "
            "SQuAD or of Hugging Face writes it, with answers by question id."
        )
    return dict(value)


def _read_record(path: Path) -> dict[str, Any]:
    """Return the contents of ``report.json``, whose fields other programs may have written."""
    recorded = _read_mapping(path)
    for name in ("settings", "sections", "spans", "baselines"):
        if not isinstance(recorded.get(name) or {}, Mapping):
            raise _unusable(path, f"`{name}` is a {type(recorded[name]).__name__}, not a mapping")
    for key, span in (recorded.get("spans") or {}).items():
        is_pair = isinstance(span, list) and len(span) == 2 and all(isinstance(place, int) for place in span)
        if span is not None and not is_pair:
            what = f"the span of question {shorten(key)} is {shorten(span)}"
            raise _unusable(path, f"{what}, not a pair of character offsets")
    for name, values in (recorded.get("settings") or {}).items():
        if not isinstance(values, Mapping):
            raise _unusable(path, f"the settings {shorten(name)} are {shorten(values)}, not a mapping")
    for way, scores in (recorded.get("baselines") or {}).items():
        if not (isinstance(scores, Mapping) and all(map(_is_number, scores.values()))):
            raise _unusable(path, f"the baseline {shorten(way)} is {shorten(scores)}, not numbers by name")
    return recorded


def _is_number(value: Any) -> bool:
    # NaN and infinity, which JSON can express, have no place on an axis, nor has an integer beyond all floats.
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the values that are finite numbers: a metric may be NaN, and a log entry may hold text."""
    return {key: float(value) for key, value in values.items() if _is_number(value)}


def _is_nbest(candidates: Any) -> bool:
    numbers = ("start_logit", "end_logit", "score")
    return isinstance(candidates, list) and all(
        isinstance(candidate, Mapping)
        and isinstance(candidate.get("text"), str)
        and _is_number(candidate.get("probability"))
        and all(candidate.get(name) is None or _is_number(candidate[name]) for name in numbers)
        for candidate in candidates
    )


def _read_log_history(path: Path) -> list[dict[str, float]]:
    history = _read_mapping(path).get("log_history") or []
    if not (isinstance(history, list) and all(isinstance(logs, Mapping) for logs in history)):
        raise _unusable(path, f"`log_history` is {shorten(history)}, not a list of mappings")
    return [_numbers(logs) for logs in history]


def _unusable(path: Path, why: str) -> InputError:
    return InputError(f"{path}: {why}; restore the file, or remove it to do without.")


def _load_answered_examples(
    folder: Path,
    config: Mapping[str, Any],
    data: str | Path | None,
    predictions: Mapping[str, str],
    trust: Mapping[str, Any],
) -> list[Example]:
    """Return the examples that were answered, each with one context: a run may be limited to a part of its data."""
    if data is None and not config.get("data"):
        raise InputError(
            f"{folder}: config.yaml is missing or does not name the data; name the file of the questions with --data."
        )
    try:
        with from_folder(folder / "config.yaml", **trust):
            examples = _validation_of(config["data"]) if data is None else read_examples(data)
    except InputError as error:
        if data is not None:
            raise
        raise InputError(
            f"{error} {folder / 'config.yaml'} names this data; name another file with --data."
        ) from error
    answered = [join_contexts(example) for example in examples if example["id"] in predictions]
    if len(answered) < len(predictions):
        known = {example["id"] for example in answered}
        unknown = next(key for key in predictions if key not in known)
        raise InputError(
            f"{folder}: {len(predictions) - len(answered):,} of its {len(predictions):,} answers are to questions "
            f"that are not in the data, such as {unknown!r}; name the SQuAD file that the run was evaluated on with "
            "--data."
        )
    return answered


def _validation_files(data: object) -> list[str]:
    """Return the files of questions that settings of data name; others are refused when they are read."""
    if not isinstance(data, Mapping):
        return []
    sources = data.get("sources")
    groups = [data, *(sources if isinstance(sources, list) else ())]
    named = [group.get("validation_file") for group in groups if isinstance(group, Mapping)]
    files = [file for entry in named for file in (entry if isinstance(entry, list) else [entry])]
    return [file for file in files if isinstance(file, str) and "\0" not in file]


def _validation_of(data: Any) -> Sequence[Example]:
    """Return the questions that a run was evaluated on; refuse settings of its data that cannot be used."""
    if not isinstance(data, Mapping):
        raise InputError(f"`data={shorten(data)}` is not a mapping; correct it in the config.yaml of the run.")
    if import_target(f"data.{TARGET}", data.get(TARGET, MRCData)) is not MRCData:
        refuse_in_folder(shorten(data[TARGET]), "called to load the data")
        return load_examples(data).validation
    rules = {name: setting.rule for name, setting in schema_of(MRCData).known.items()}
    if unknown := sorted({str(key) for key in data} - {TARGET, *rules}):
        raise InputError(f"`data.{shorten(unknown[0])[1:-1]}` is not a setting; remove it from the run's config.yaml.")
    check_values("data", data, rules)
    return MRCData(**{key: value for key, value in data.items() if key != TARGET}).load_validation()


def _read_by_question(
    path: Path, predictions: Mapping[str, str], form: str, is_valid: Callable[[Any], bool]
) -> dict[str, Any]:
    """Return the contents of a file with a valid entry for each answered question; empty if there is no such file."""
    found = _read_mapping(path)
    missing = predictions.keys() - found.keys()
    if found and missing:
        lacking = f"lacks {len(missing):,} of the {len(predictions):,} answered questions, such as {min(missing)!r}"
        raise _unusable(path, f"{lacking}, so it belongs to another evaluation")
    for key, entry in found.items():
        if not is_valid(entry):
            raise _unusable(path, f"the entry of question {shorten(key)} is {shorten(entry)}, not {form}")
    return found


def _span(context: str, text: str, recorded: Sequence[int] | None) -> Span | None:
    """Return the position of the answer: as the run recorded it, or where its text occurs, if only once."""
    # The answer files of SQuAD hold texts only; `report.json` keeps the spans, and may be older than the answers.
    if recorded is not None and context[recorded[0] : recorded[1]] == text:
        return recorded[0], recorded[1]
    start = context.find(text) if text else -1
    is_only = start >= 0 and context.find(text, start + 1) < 0
    return (start, start + len(text)) if is_only else None
