"""The answer to one question."""

import gzip
import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from portico.arguments import TrainingArguments
from portico.errors import InputError
from portico.mrc.answers import AnswerCalibration, Answers
from portico.mrc.answers.offsets import TokenOffsets
from portico.mrc.answers.post_processor import SpanSearch
from portico.mrc.answers.shortlist import SpanAnswer
from portico.mrc.collators import head_collator
from portico.mrc.features.feature_set import FeatureSet
from portico.mrc.features.featurizer import Featurizer
from portico.mrc.models.loading import ModelAndTokenizer as LoadedReader
from portico.mrc.models.loading import head_of, head_post_processing, load_trained_reader
from portico.mrc.post_processing.answer_tuning import calibration_of, with_best_null_threshold
from portico.mrc.post_processing.span_post_processing import SpanPostProcessing
from portico.mrc.readers.defects import InvalidRecord
from portico.mrc.readers.formats import FORMATS
from portico.mrc.target_type import TargetType
from portico.mrc.trainer import MRCTrainer
from portico.value_rules import Rule, check_values


@dataclass(frozen=True)
class Answer:
    """What a reader answers.

    Attributes:
        text: The answer, ``""`` for none.
        start: Its first character in its context; ``None`` where it is no span.
        end: The character after its last; ``None`` where it is no span.
        context_index: Which of the question's contexts it stands in; ``None`` where it is no span.
        score: What it was ranked by.
        probability: That it is right.
        answer_type: The kind of answer.
        null_odds: By how much the score of "no answer" exceeds the best span's; ``None`` where it was not asked for.
        candidates: The best answers, best first, "no answer" among them where it was asked for.
    """

    text: str
    start: int | None
    end: int | None
    context_index: int | None
    score: float
    probability: float
    answer_type: TargetType
    null_odds: float | None
    candidates: tuple[SpanAnswer, ...]


def answers_in_order(answers: Answers) -> Iterator[Answer]:
    """Yield the answer to every question, in the order of the examples."""
    places = (answers.rows_E - answers.shortlist.ranked.row_starts[:-1]).tolist()
    for place, (example_id, candidates) in zip(places, answers.candidates.items(), strict=True):
        span = answers.spans[example_id]
        own = candidates[place] if place >= 0 else None
        yield Answer(
            text=answers.predictions[example_id],
            start=span[0] if span else None,
            end=span[1] if span else None,
            context_index=own.context_index if own and span else None,
            score=own.score if own else 0.0,
            probability=own.probability if own else 0.0,
            answer_type=answers.answer_types[example_id],
            null_odds=None if answers.null_odds is None else answers.null_odds[example_id],
            candidates=tuple(candidates),
        )


_LONGEST_WINDOW = 384
_POSITIVE = Rule((int,), least=1)
_RULES = {
    "max_seq_length": _POSITIVE,
    "doc_stride": Rule((int,), least=0),
    "max_question_length": Rule((int, type(None)), least=1),
    "max_answer_length": _POSITIVE,
    "n_best_size": _POSITIVE,
    "handle_impossible_answer": Rule((bool,)),
    "null_score_diff_threshold": Rule((float,)),
}


@dataclass(frozen=True, kw_only=True)
class ReadingSettings:
    """Settings of a reader and of its calls.

    Args:
        longest: Longest input of the model, in tokens; not to be set.
        max_seq_length: Tokens of a window, question and special tokens included.
        doc_stride: Tokens that two neighbouring windows share.
        max_question_length: Longer questions are cut to about this many tokens; ``None`` keeps them.
        max_answer_length: Longest answer, in tokens.
        n_best_size: Starts, ends and answers that are looked at.
        handle_impossible_answer: Whether "no answer" can be the answer.
        null_score_diff_threshold: "No answer" is the answer where its score exceeds the best span's by more than this.
        search: ``"exhaustive"`` looks for the best of all spans, at several times the cost.
    """

    longest: int
    max_seq_length: int
    doc_stride: int
    max_question_length: int | None = None
    max_answer_length: int = 30
    n_best_size: int = 20
    handle_impossible_answer: bool = False
    null_score_diff_threshold: float = 0.0
    search: SpanSearch = "top"

    @classmethod
    def of(cls, longest: int, calibration: AnswerCalibration | None, settings: Mapping[str, Any]) -> "ReadingSettings":
        """Return a reader's settings: what is not set follows from its model and calibration.

        Args:
            longest: Longest input of the model, in tokens.
            calibration: The calibration stored with the model.
            settings: What the user sets.

        Raises:
            InputError: If there is no such setting, or it cannot have this value.
        """
        window = min(settings.get("max_seq_length", _LONGEST_WINDOW), longest)
        threshold = None if calibration is None else calibration.null_score_diff_threshold
        defaults = cls(
            longest=longest,
            max_seq_length=window,
            doc_stride=window // 3,
            handle_impossible_answer=threshold is not None,
            null_score_diff_threshold=threshold or 0.0,
        )
        return defaults.changed(settings)

    def changed(self, settings: Mapping[str, Any]) -> "ReadingSettings":
        """Return the settings with some of them set otherwise.

        Raises:
            InputError: If there is no such setting, or it cannot have this value.
        """
        names = [field.name for field in fields(self) if field.name != "longest"]
        for name in settings:
            if name not in names:
                nearest = ", ".join(get_close_matches(name, names) or names)
                raise InputError(f"`{name}` is not a setting of a reader; the nearest are {nearest}.")
        check_values("reader", settings, _RULES)
        chosen = replace(self, **settings)
        check_window(chosen.max_seq_length, self.longest)
        return chosen


def check_window(max_seq_length: int, longest: int) -> None:
    """Refuse windows longer than a model takes.

    Raises:
        InputError: Says how long they may be.
    """
    if max_seq_length > longest:
        raise InputError(
            f"`max_seq_length={max_seq_length}` is more than the model takes ({longest} tokens); set it to {longest} "
            "or less."
        )


Contexts: TypeAlias = str | Sequence[str]
"""One text, or several that are searched together."""


@dataclass(frozen=True)
class QuestionWindows:
    """Questions ready for a model.

    Attributes:
        examples: ``id`` and ``context``, a list of texts, of every question.
        features: The windows of all contexts.
        offsets: Which question and context each window belongs to, and where its tokens lie there.
    """

    examples: list[dict[str, Any]]
    features: FeatureSet
    offsets: TokenOffsets


def question_windows(
    featurizer: Featurizer, questions: Sequence[str], contexts: Sequence[Contexts], ids: Sequence[str]
) -> QuestionWindows:
    """Cut every context of every question into windows.

    Raises:
        InputError: If there are no questions, not as many contexts, or one is not a text with something in it.
    """
    _check_lengths(questions, contexts, ids)
    texts = [list(context) if isinstance(context, list | tuple) else [context] for context in contexts]
    for n, (question, own) in enumerate(zip(questions, texts, strict=True)):
        _check_texts(n, question, own)
    pairs = [(n, c) for n, own in enumerate(texts) for c in range(len(own))]
    features = featurizer.eval_features(
        [{"id": f"{n} {c}", "question": questions[n], "context": texts[n][c]} for n, c in pairs]
    )
    assert features.char_offsets is not None
    question_P, context_P = np.array(pairs, np.int64).T
    offsets = TokenOffsets(
        question_P[features.example_index],
        features.row_starts,
        features.char_offsets,
        context_P[features.example_index],
    )
    examples = [{"id": example_id, "context": own} for example_id, own in zip(ids, texts, strict=True)]
    return QuestionWindows(examples, features, offsets)


def _check_lengths(questions: Sequence[str], contexts: Sequence[Contexts], ids: Sequence[str]) -> None:
    if not len(questions) or not len(questions) == len(contexts) == len(ids):
        raise InputError(
            f"There are {len(questions)} questions, {len(contexts)} contexts and {len(ids)} ids; give one or more "
            "questions, and for each of them a context (or a list of contexts) and, if any, an id."
        )


def _check_texts(number: int, question: Any, contexts: Sequence[Any]) -> None:
    if not contexts:
        raise InputError(f"Question {number} has no context; give one or more texts to look for its answer in.")
    for name, text in (("question", question), *(("context", context) for context in contexts)):
        if not isinstance(text, str) or not text.strip():
            raise InputError(f"The {name} of question {number} is {text!r}, but must be a text that is not empty.")
        if not _is_unicode(text):
            raise InputError(
                f"The {name} of question {number} holds half of a character (a lone surrogate), which no tokenizer "
                'reads; decode the text with errors="replace".'
            )


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


_IDS = ("id", "example_id", "qid")
_FORMS = (
    "SQuAD JSON, or JSON lines or an array of records with question and context, or of TyDi QA, Natural Questions or "
    "ELI5 with passages"
)


@dataclass(frozen=True)
class AskedQuestion:
    """A question of a file.

    Attributes:
        id: Its identifier; by default its number in the file, from 0.
        question: The question.
        context: A text, or several, to look for its answer in.
    """

    id: str
    question: str
    context: Contexts


def read_questions(path: str | Path) -> list[AskedQuestion]:
    """Read the questions of a file; answers may be there or not and are not read.

    Args:
        path: SQuAD JSON, or JSON lines or an array of records with ``question``, ``context`` (a text or a list of
            texts) and perhaps ``id``, or of TyDi QA, Natural Questions or ELI5 with passages; UTF-8, plain or
            gzip-compressed.

    Raises:
        InputError: If the file cannot be read, or a record has no question or no context; names file and record.
    """
    path = Path(path)
    questions = [_question(path, number, record) for number, record in enumerate(_flat(_document(path)))]
    if not questions:
        raise InputError(f"{path}: the file holds no questions; give {_FORMS}.")
    return questions


def _document(path: Path) -> Any:
    try:
        text = (gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({error}); give {_FORMS}, in UTF-8.") from error
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return [_parsed(path, number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]


def _parsed(path: Path, number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{path}, line {number}, column {error.colno}: not JSON ({error.msg}); give {_FORMS}."
        ) from error


def _flat(document: Any) -> Iterator[Any]:
    """Yield the questions of a document with their contexts, however deep they lie."""
    if isinstance(document, list):
        for entry in document:
            yield from _flat(entry)
    elif isinstance(document, Mapping) and isinstance(nested := _nested(document), list):
        shared = {key: document[key] for key in ("context",) if key in document}
        yield from _flat([{**shared, **entry} if isinstance(entry, Mapping) else entry for entry in nested])
    else:
        yield document


def _nested(document: Mapping[str, Any]) -> Any:
    return next((document[key] for key in ("data", "paragraphs", "qas") if key in document), None)


def _question(path: Path, number: int, record: Any) -> AskedQuestion:
    record = _read_as_data(path, number, record)
    missing = [key for key in ("question", "context") if not isinstance(record, Mapping) or not record.get(key)]
    if missing:
        raise InputError(f"{path}, question {number}: there is no `{missing[0]}`; give {_FORMS}.")
    identifier = next((record[key] for key in _IDS if record.get(key) is not None), number)
    return AskedQuestion(str(identifier), record["question"], record["context"])


def _read_as_data(path: Path, number: int, record: Any) -> Any:
    """Return a record of a format that calls question and context otherwise as an example; others as they are."""
    if not isinstance(record, Mapping) or ("question" in record and "context" in record):
        return record
    known = next((one for one in FORMATS.values() if one.is_like(record)), None)
    if known is None:
        return record
    try:
        return known.example(record)
    except InvalidRecord as error:
        raise InputError(f"{path}, question {number}: {error} Give {_FORMS}.") from error


_DEVICES = "use auto, cpu, cuda, cuda:<number> or ort"


def placement(device: str | int) -> dict[str, Any]:
    """Return the training arguments that choose a device.

    Args:
        device: ``"auto"`` (the GPU where there is one), ``"cpu"``, ``"cuda"``, ``"cuda:1"``, ``"ort"`` (ONNX Runtime),
            or a number as Hugging Face's pipelines take it (-1 for the CPU).

    Raises:
        InputError: If there is no such device.
    """
    if not isinstance(device, str | int):
        raise InputError(f"`device={device}` is unknown; {_DEVICES}.")
    name = ("cpu" if device < 0 else f"cuda:{device}") if isinstance(device, int) else device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cpu":
        return {"accelerator": "cpu", "devices": 1}
    if name == "ort":
        return {"accelerator": "ort", "strategy": "ort", "devices": 1}
    kind, _, number = name.partition(":")
    if kind != "cuda" or not (number or "0").isdecimal():
        raise InputError(f"`device={device}` is unknown; {_DEVICES}.")
    index, count = int(number or 0), torch.cuda.device_count()
    if index >= count:
        raise InputError(f"`device={device}` asks for GPU {index}, but there are {count}; use cpu, or auto.")
    return {"accelerator": "gpu", "devices": [index]}


_SETTINGS = {
    "max_answer_len": "max_answer_length",
    "max_seq_len": "max_seq_length",
    "max_question_len": "max_question_length",
}


@dataclass(frozen=True)
class Asked:
    """What a call asks.

    Attributes:
        questions: The questions.
        contexts: The context of each.
        is_many: Whether several were asked, so that a list is returned.
        settings: Settings of the reader, under its own names.
    """

    questions: Sequence[str]
    contexts: Sequence[Contexts]
    is_many: bool
    settings: Mapping[str, Any]


def questions_and_contexts(args: Sequence[Any], inputs_and_settings: Mapping[str, Any]) -> Asked:
    """Sort out the arguments of a call.

    Args:
        args: Mappings with ``question`` and ``context``, or lists of them.
        inputs_and_settings: Or ``question`` and ``context``, a text or a list each; and settings.

    Raises:
        InputError: If no question came, or a question without context, or both forms at once.
    """
    settings = dict(inputs_and_settings)
    question, context = settings.pop("question", None), settings.pop("context", None)
    settings = {_SETTINGS.get(name, name): value for name, value in settings.items()}
    if (question is None) != (context is None) or bool(args) == (question is not None):
        raise InputError(
            "Ask by `question` and `context`, a text or a list each, or by mappings that hold both; the one or the "
            "other, not both and not a half."
        )
    if not args:
        many = not isinstance(question, str)
        questions = list(question) if many else [question]
        # One context serves all questions.
        contexts = [context] * len(questions) if isinstance(context, str) or not many else list(context)
        return Asked(questions, contexts, many, settings)
    records: list[Any] = [record for arg in args for record in ([arg] if isinstance(arg, Mapping | str) else arg)]
    for record in records:
        if not isinstance(record, Mapping) or not {"question", "context"} <= set(record):
            raise InputError(f"{record!r} is no question; it must be a mapping with `question` and `context`.")
    many = len(args) > 1 or not isinstance(args[0], Mapping)
    return Asked([record["question"] for record in records], [record["context"] for record in records], many, settings)


def pipeline_outputs(answer: Answer, top_k: int) -> Any:
    """Return the best answers in the pipeline's form: one mapping, or a list for ``top_k`` above 1.

    Raises:
        InputError: If ``top_k`` is below 1.
    """
    if not isinstance(top_k, int) or top_k < 1:
        raise InputError(f"`top_k={top_k}` leaves no answer; use an int >= 1.")
    best = [
        {
            "score": answer.probability,
            "start": answer.start or 0,
            "end": answer.end or 0,
            "answer": answer.text,
        }
    ]
    others = (one for one in answer.candidates if one.text != answer.text)
    best += [{"score": one.probability, "start": one.start, "end": one.end, "answer": one.text} for one in others]
    return best[0] if top_k == 1 else best[:top_k]


class PostProcessor(Protocol):
    """What takes the outputs of batches and computes something of all of them."""

    def update(self, outputs: Sequence[Any], feature_indices: npt.NDArray[np.int64], /) -> None:
        """Take the outputs of a batch."""

    def compute(self) -> Any:
        """Return what became of all batches."""


class Inference:
    """Runs a model over features; the trainer that does it is made once.

    Args:
        model: The model.
        tokenizer: Pads the batches.
        args: Where and in what batches it runs.
    """

    def __init__(self, model: Any, tokenizer: Any, args: TrainingArguments) -> None:
        self._streaming = _Streaming()
        self._trainer = MRCTrainer(
            model,
            args,
            processing_class=tokenizer,
            data_collator=head_collator(head_of(model), tokenizer),
            post_process_function=self._streaming,  # type: ignore[arg-type]  # it streams and is never called
        )

    @classmethod
    def on_device(cls, model: Any, tokenizer: Any, *, device: str | int, batch_size: int) -> "Inference":
        """Run on a device.

        Args:
            model: The model.
            tokenizer: Pads the batches.
            device: See :func:`~portico.mrc.inference.placement`.
            batch_size: Windows in a batch.

        Raises:
            InputError: If there is no such device.
        """
        # A trainer makes its folder when it is made; an answer writes nothing into it.
        with tempfile.TemporaryDirectory(prefix="portico-reader-") as folder:
            args = TrainingArguments(
                folder,
                per_device_eval_batch_size=batch_size,
                disable_tqdm=True,
                report_to="none",
                **placement(device),
            )
            return cls(model, tokenizer, args)

    def run(self, features: FeatureSet, post_processor: PostProcessor) -> Any:
        """Return what the post-processor computes of the model's outputs for the features."""
        self._streaming.post_processor = post_processor
        self._trainer.predict(features, [])
        return self._trainer.answered.result


class _Streaming:
    """The post-processing of the next run, as a trainer takes it."""

    post_processor: PostProcessor

    def begin(self, examples: Any, features: Any) -> "_Streaming":
        return self

    def update(self, outputs: Sequence[Any], feature_indices: npt.NDArray[np.int64]) -> None:
        self.post_processor.update(outputs, feature_indices)

    def compute(self) -> "_Result":
        return _Result(self.post_processor.compute())


@dataclass(frozen=True)
class _Result:
    """Keeps the trainer from writing files: it has nothing to write."""

    result: Any


_LABELLED = ("question", "context", "id", "answers")


class Reader:
    """Answers questions by spans of their contexts.

    Contexts of any length are read in overlapping windows, many questions in batches. Where the model's folder holds
    a calibration (see :meth:`calibrate`), probabilities and the threshold of "no answer" are its.

    Args:
        model: A folder or a hub name, or a model with a question answering head.
        tokenizer: The tokenizer of a model that is given as an object.
        device: ``"auto"`` (the GPU where there is one), ``"cpu"``, ``"cuda"``, ``"cuda:1"``, ``"ort"`` (ONNX Runtime),
            or a number as Hugging Face's pipelines take it (-1 for the CPU).
        batch_size: Windows in a batch.
        **settings: See :class:`~portico.mrc.inference.ReadingSettings`; every call may set them otherwise.

    Raises:
        InputError: If the model cannot be loaded, or a setting or the device does not exist.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        device: str | int = "auto",
        batch_size: int = 32,
        **settings: Any,
    ) -> None:
        is_name = isinstance(model, str | Path)
        self._loaded = load_trained_reader(str(model)) if is_name else LoadedReader(model, tokenizer)
        if self._loaded.tokenizer is None:
            raise InputError("A model that is given as an object needs its tokenizer; give `tokenizer` too.")
        self.calibration = AnswerCalibration.load(model) if is_name else None
        self._settings = ReadingSettings.of(self._loaded.max_length, self.calibration, settings)
        model, tokenizer = self._loaded.model, self._loaded.tokenizer
        self._inference = Inference.on_device(model, tokenizer, device=device, batch_size=batch_size)

    def answer(self, question: str, context: Contexts, **settings: Any) -> Answer:
        """Answer one question.

        Args:
            question: The question.
            context: A text to look for the answer in, or several that are searched together.
            **settings: As in the constructor, for this call.

        Raises:
            InputError: If a text is empty, or a setting cannot be used.
        """
        return self.answer_many([question], [context], **settings)[0]

    def answer_many(self, questions: Sequence[str], contexts: Sequence[Contexts], **settings: Any) -> list[Answer]:
        """Answer many questions, each from its own context or contexts.

        Args:
            questions: The questions.
            contexts: A text, or several that are searched together, for each of them.
            **settings: As in the constructor, for this call.

        Raises:
            InputError: If there are not as many contexts as questions, a text is empty, or a setting cannot be used.
        """
        return list(answers_in_order(self.answers(questions, contexts, **settings)))

    def answers(
        self,
        questions: Sequence[str],
        contexts: Sequence[Contexts],
        ids: Sequence[str] | None = None,
        **settings: Any,
    ) -> Answers:
        """Answer many questions and return all that is known of the answers, by identifier.

        Args:
            questions: The questions.
            contexts: A text, or several that are searched together, for each of them.
            ids: Identifiers; by default ``"0"``, ``"1"``, ...
            **settings: As in the constructor, for this call.

        Raises:
            InputError: As in :meth:`answer_many`.
        """
        questions, contexts = _listed("questions", questions), _listed("contexts", contexts)
        ids = [str(n) for n in range(len(questions))] if ids is None else ids
        chosen = self._settings.changed(settings)
        windows = question_windows(self._featurizer(chosen), questions, contexts, ids)
        options = {
            "n_best_size": chosen.n_best_size,
            "max_answer_length": chosen.max_answer_length,
            "null_score_diff_threshold": chosen.null_score_diff_threshold,
            "search": chosen.search,
        }
        post_processing = SpanPostProcessing(
            version_2_with_negative=chosen.handle_impossible_answer,
            calibration=self.calibration,
            **head_post_processing(head_of(self._loaded.model), options),
        )
        streamed = post_processing.begin(windows.examples, windows.offsets)
        answers: Answers = self._inference.run(windows.features, streamed).answers
        return answers

    def calibrate(self, examples: Sequence[Mapping[str, Any]]) -> AnswerCalibration:
        """Fit probabilities, and the threshold of "no answer" where that can be predicted, to labelled questions.

        What is found is used from now on; its ``save(folder)`` stores it with the model.

        Args:
            examples: SQuAD records.

        Raises:
            InputError: If they are not labelled, or the reader finds none of their answers.
        """
        missing = [name for example in examples for name in _LABELLED if name not in example]
        if missing:
            raise InputError(
                f"An example to calibrate with has no `{missing[0]}`; give SQuAD records, each with "
                f"{', '.join(_LABELLED)}."
            )
        self.calibration = None
        answers = self.answers(*([example[name] for example in examples] for name in _LABELLED[:3]))
        if answers.null_odds is not None:
            answers = with_best_null_threshold(examples, answers)
        self.calibration = calibration_of(examples, answers)
        if answers.null_odds is not None:
            self._settings = replace(self._settings, null_score_diff_threshold=answers.null_threshold)
        return self.calibration

    def __call__(self, *args: Any, top_k: int = 1, **inputs_and_settings: Any) -> Any:
        """Answer in the form of the question-answering pipeline that transformers had.

        Args:
            *args: Mappings with ``question`` and ``context``, or lists of them.
            top_k: Answers to each question; with more than one, each gives a list.
            **inputs_and_settings: ``question`` and ``context``, a text or a list each, and
                ``handle_impossible_answer``, ``doc_stride``, ``max_answer_len``, ``max_seq_len``,
                ``max_question_len``.

        Returns:
            ``{"score", "start", "end", "answer"}`` with the probability as its score; a list of them for several
            questions or answers.

        Raises:
            InputError: If the questions or a setting cannot be used.
        """
        asked = questions_and_contexts(args, inputs_and_settings)
        found = self.answer_many(asked.questions, asked.contexts, **asked.settings)
        outputs = [pipeline_outputs(answer, top_k) for answer in found]
        return outputs if asked.is_many else outputs[0]

    def _featurizer(self, settings: ReadingSettings) -> Featurizer:
        return Featurizer(
            self._loaded.tokenizer,
            max_seq_length=settings.max_seq_length,
            doc_stride=settings.doc_stride,
            max_question_length=settings.max_question_length,
        )


def _listed(name: str, texts: Iterable[Any]) -> list[Any]:
    """Return the texts as a list; a single text is none, because its characters would be taken for texts."""
    if isinstance(texts, str | Mapping) or not isinstance(texts, Iterable):
        raise InputError(f"`{name}` is {texts!r}, but must be a list, with one entry for each question.")
    return list(texts)
