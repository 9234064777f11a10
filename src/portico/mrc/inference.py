"""``Reader``: a trained model that answers questions."""

import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import torch
from markupsafe import Markup
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback, TrainerControl, TrainerState
from typing_extensions import override

from portico.arguments import TrainingArguments
from portico.compat.transformers import HFTrainingArguments
from portico.data.defects import InvalidRecord, shorten
from portico.errors import InputError
from portico.experiments.settings import schema_of, setting
from portico.mrc.collators import head_collator
from portico.mrc.datasets import squad
from portico.mrc.datasets.examples import Examples
from portico.mrc.datasets.records import check_id, check_text
from portico.mrc.features.featurizer import Featurizer, check_window, window_featurizer
from portico.mrc.features.labels import TargetType
from portico.mrc.features.windows import FeatureSet
from portico.mrc.models.loading import ModelAndTokenizer, head_of, head_post_processing, load_trained_reader
from portico.mrc.postprocess import AnswerCalibration, Answers
from portico.mrc.postprocess.answers import BeamAnswers, SpanAnswer
from portico.mrc.postprocess.calibration import calibration_of, use_best_null_threshold
from portico.mrc.postprocess.span_postprocessing import SpanPostProcessing
from portico.mrc.postprocess.streaming import SpanSearch
from portico.mrc.trainer import AnswerSession, MRCTrainer
from portico.report.page import asset, render
from portico.rules import check_values

Contexts: TypeAlias = str | Sequence[str]
"""One context, or several that are searched together."""

# Defaults of transformers' former pipeline: windows of 384 tokens that share 128, a third.
_LONGEST_WINDOW = 384
_PIPELINE_NAMES = {
    "max_answer_len": "max_answer_length",
    "max_seq_len": "max_seq_length",
    "max_question_len": "max_question_length",
}
_LABELLED_KEYS = ("question", "context", "id", "answers")


@dataclass(frozen=True)
class Answer:
    """The answer to one question.

    Attributes:
        text: The answer, ``""`` for none.
        start: Its first character in its context; ``None`` if it is not a span.
        end: The character after its last; ``None`` if it is not a span.
        context_index: Index of its context among the contexts of the question; ``None`` if it is not a span.
        score: The score that the answer was ranked by.
        probability: Probability that the answer is correct; the probabilities of all candidates add up to at most 1.
        answer_type: The type of the answer.
        null_odds: Score of "no answer" minus the score of the best span; ``None`` if "no answer" is not allowed.
        candidates: The best answers, best first, including "no answer" if it is allowed.
        question: The question.
        contexts: The contexts of the question.
        null_threshold: "No answer" is chosen if ``null_odds`` exceeds this; ``None`` if it is not allowed.
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
    question: str = ""
    contexts: tuple[str, ...] = field(default=(), repr=False)
    null_threshold: float | None = None

    @property
    def best_span(self) -> SpanAnswer | None:
        """The best candidate that has a text, the competitor of "no answer"."""
        return next((candidate for candidate in self.candidates if candidate.text), None)

    @property
    def reason(self) -> str:
        """A sentence that says why the question was answered or not; ``""`` if "no answer" was not allowed."""
        is_choice = self.answer_type in (TargetType.NO_ANSWER, TargetType.SPAN_ANSWER)
        if not is_choice or self.null_odds is None or self.null_threshold is None:
            return ""
        if self.best_span is None:
            return "No span of the context could be an answer."
        which = "this span" if self.text else f'the best span, "{shorten(self.best_span.text)[1:-1]}",'
        relation = "above" if self.null_odds > self.null_threshold else "not above"
        return (
            f'The score of "no answer" minus the score of {which} is {self.null_odds:+.3g}, {relation} the '
            f"threshold of {self.null_threshold:.3g}."
        )

    def to_dict(self) -> dict[str, Any]:
        """Return all fields but the contexts as values of JSON, with the name of the answer type."""
        values = {name: value for name, value in asdict(self).items() if name != "contexts"}
        return {**values, "answer_type": self.answer_type.name.lower(), "candidates": list(values["candidates"])}

    def _repr_html_(self) -> str:
        return str(Markup("<style>{}</style>{}").format(Markup(asset("answer.css")), answer_html(self)))


# Text further than this many characters from the answer is folded, as in the report.
_KEPT_AROUND = 400


def answer_html(answer: Answer) -> Markup:
    """Return HTML, styled by answer.css, with the answer highlighted in its context, its reason and all candidates."""
    span = answer.best_span
    count = len(answer.contexts)
    context = answer.contexts[span.context_index] if span and count else "".join(answer.contexts[:1])
    start, end = (span.start, span.end) if span and context else (0, 0)
    before, after = context[:start], context[end:]
    folded = [len(text) if len(text) > 2 * _KEPT_AROUND else 0 for text in (before, after)]
    return render(
        "answer.html.j2",
        answer=answer,
        # The text before the mark (folded, shown), the marked text, and the text after it (shown, folded).
        hidden_before=before[:-_KEPT_AROUND] if folded[0] else "",
        before=before[-_KEPT_AROUND:] if folded[0] else before,
        marked=context[start:end],
        after=after[:_KEPT_AROUND] if folded[1] else after,
        hidden_after=after[_KEPT_AROUND:] if folded[1] else "",
        place=f"context {span.context_index + 1} of {count}" if span and count > 1 else "",
    )


def answers_in_order(answers: Answers, questions: Sequence[str], contexts: Sequence[Contexts]) -> Iterator[Answer]:
    """Yield the answer to every question, each with its contexts, in the order of the examples."""
    # Beam search always predicts its best span.
    competes = answers.null_odds is not None and not isinstance(answers, BeamAnswers)
    ranks = (answers.rows_E - answers.shortlist.ranked.row_starts[:-1]).tolist()
    rows = zip(questions, contexts, ranks, answers.candidates.items(), strict=True)
    for question, context, rank, (example_id, candidates) in rows:
        span = answers.spans[example_id]
        chosen = candidates[rank] if rank >= 0 else None
        yield Answer(
            text=answers.predictions[example_id],
            start=span[0] if span else None,
            end=span[1] if span else None,
            context_index=chosen.context_index if chosen and span else None,
            score=chosen.score if chosen else 0.0,
            probability=chosen.probability if chosen else 0.0,
            answer_type=answers.answer_types[example_id],
            null_odds=None if answers.null_odds is None else answers.null_odds[example_id],
            candidates=tuple(candidates),
            question=question,
            contexts=(context,) if isinstance(context, str) else tuple(context),
            null_threshold=answers.null_threshold if competes else None,
        )


@dataclass(frozen=True, kw_only=True)
class ReaderSettings:
    """Inference settings of a :class:`Reader`.

    Args:
        max_seq_length: Tokens of a window, including question and special tokens.
        doc_stride: Tokens that two neighbouring windows share.
        max_question_length: Longer questions are cut to about this many tokens; ``None`` keeps them.
        max_answer_length: Longest answer, in tokens.
        n_best_size: Number of starts, ends and answers considered.
        handle_impossible_answer: Whether "no answer" is allowed.
        null_score_diff_threshold: "No answer" wins if its score exceeds the best span's by more than this.
        search: ``"exhaustive"`` finds the best of all spans, at several times the cost.
        max_seconds: A call that takes longer ends with an ``InputError`` after the batch that is running; ``None``
            sets no limit.
    """

    max_seq_length: int = setting(_LONGEST_WINDOW, least=1)
    doc_stride: int = setting(_LONGEST_WINDOW // 3, least=0)
    max_question_length: int | None = setting(None, least=1)
    max_answer_length: int = setting(30, least=1)
    n_best_size: int = setting(20, least=1)
    handle_impossible_answer: bool = False
    null_score_diff_threshold: float = 0.0
    search: SpanSearch = "top"
    max_seconds: float | None = setting(None, least=0)

    def change(self, longest: int, settings: Mapping[str, Any]) -> "ReaderSettings":
        """Return the settings with some of them changed; raises an ``InputError`` for a wrong name or value."""
        rules = {name: setting.rule for name, setting in schema_of(ReaderSettings).known.items()}
        for name in settings:
            if name not in rules:
                nearest = ", ".join(get_close_matches(name, rules) or rules)
                raise InputError(f"`{name}` is not a setting of a reader; the nearest are {nearest}.")
        check_values("", settings, rules)
        chosen = replace(self, **settings)
        check_window("max_seq_length", chosen.max_seq_length, longest)
        if "max_seq_length" in settings and "doc_stride" not in settings:
            # As the pipeline did: windows share at most half of what they hold.
            chosen = replace(chosen, doc_stride=min(chosen.doc_stride, chosen.max_seq_length // 3))
        return chosen


# By model. They are no attributes, since a lock cannot be pickled or copied.
_LOCKS: WeakKeyDictionary[Any, AbstractContextManager[bool]] = WeakKeyDictionary()


class Reader:
    """Answers questions by spans of their contexts.

    Contexts of any length are read in overlapping windows, many questions in batches. A calibration in the model's
    folder (see :meth:`calibrate`) sets the probabilities and the threshold of "no answer". Calls from several threads
    wait for each other.

    Args:
        model: A folder or a hub name, or a model with a question answering head.
        tokenizer: The tokenizer, if the model is an object.
        device: ``"auto"`` (the GPU if there is one), ``"cpu"``, ``"cuda"``, ``"cuda:1"``, ``"ort"`` (ONNX Runtime),
            or a number as in Hugging Face's pipelines (-1 for the CPU).
        batch_size: Windows in a batch.
        **settings: See :class:`~portico.mrc.inference.ReaderSettings`; each call can override them.

    Raises:
        InputError: If the model cannot be loaded, or a setting or the device is unknown or invalid.
    """

    settings: ReaderSettings
    """The settings of each call, unless the call overrides them."""

    def __init__(
        self,
        model: str | Path | PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        device: str | int = "auto",
        batch_size: int = 32,
        **settings: Any,
    ) -> None:
        name = model if isinstance(model, str | Path) else None
        if name is not None and tokenizer is not None:
            raise InputError(
                f"`model={model}` brings its own tokenizer; leave `tokenizer` out, or give the model as an object."
            )
        _device_arguments(device)  # refuses it before a model is loaded
        if name is None:
            self._loaded = _check_parts(model, tokenizer)
            self.calibration = None
        else:
            self._loaded = load_trained_reader(str(name), setting="model")
            self.calibration = AnswerCalibration.load(name)
        threshold = None if self.calibration is None else self.calibration.null_score_diff_threshold
        longest = self._loaded.max_length
        defaults = ReaderSettings(
            max_seq_length=min(_LONGEST_WINDOW, longest),
            handle_impossible_answer=threshold is not None,
            null_score_diff_threshold=threshold or 0.0,
        )
        chosen = defaults.change(longest, settings)
        self.settings = replace(chosen, doc_stride=settings.get("doc_stride", chosen.max_seq_length // 3))
        self._device, self._batch_size = device, batch_size
        self._inference = Inference.on_device(self._loaded, device=device, batch_size=batch_size)

    def sharing_model(self) -> "Reader":
        """Return a reader of the same model, which can answer between two batches of this one."""
        other = copy(self)
        other._inference = Inference.on_device(self._loaded, device=self._device, batch_size=self._batch_size)
        return other

    def answer(self, question: str, context: Contexts, **settings: Any) -> Answer:
        """Answer one question, from one context or from several that are searched together; see :meth:`answers`."""
        return self.answer_many([question], [context], **settings)[0]

    def answer_many(self, questions: Sequence[str], contexts: Sequence[Contexts], **settings: Any) -> list[Answer]:
        """Answer many questions, each from one or several contexts; see :meth:`answers`."""
        questions, contexts = _require_list("questions", questions), _require_list("contexts", contexts)
        return list(answers_in_order(self.answers(questions, contexts, **settings), questions, contexts))

    def answers(
        self,
        questions: Sequence[str],
        contexts: Sequence[Contexts],
        ids: Sequence[str] | None = None,
        *,
        cancelled: threading.Event | None = None,
        between_batches: Callable[[], None] | None = None,
        **settings: Any,
    ) -> Answers:
        """Answer many questions, and return the answers with their spans, candidates and scores by identifier.

        Args:
            questions: The questions.
            contexts: One context, or several that are searched together, for each question.
            ids: Identifiers; by default ``"0"``, ``"1"``, ...
            cancelled: Set by another thread, it ends the call after the batch that is running.
            between_batches: Called after each batch; its time counts as time of the call.
            **settings: See the constructor; for this call.

        Raises:
            InputError: If there are not as many contexts as questions, a string is empty, a setting is unknown or
                invalid, it takes longer than ``max_seconds``, or it is cancelled.
        """
        started = time.monotonic()
        questions, contexts = _require_list("questions", questions), _require_list("contexts", contexts)
        ids = [str(n) for n in range(len(questions))] if ids is None else _require_list("ids", ids)
        chosen = self.settings.change(self._loaded.max_length, settings)
        featurizer = window_featurizer(self._loaded.tokenizer, chosen)
        names = ("n_best_size", "max_answer_length", "null_score_diff_threshold", "search")
        options = {name: getattr(chosen, name) for name in names}
        post_processing = SpanPostProcessing(
            version_2_with_negative=chosen.handle_impossible_answer,
            calibration=self.calibration,
            **head_post_processing(head_of(self._loaded.model), options),
        )
        limit = TimeLimit(started, chosen.max_seconds, cancelled, between_batches)
        # Tokenizers and trainers are for one thread at a time.
        with _LOCKS.setdefault(self._loaded.model, threading.RLock()):
            examples, features = question_windows(featurizer, questions, contexts, ids)
            limit.check()  # the tokenizer may have taken all of the time
            with self._inference.limited(limit):
                return self._inference.answers(post_processing, examples, features).answers

    def calibrate(self, examples: Sequence[Mapping[str, Any]]) -> AnswerCalibration:
        """Fit probabilities, and the threshold of "no answer" if it is allowed, to labelled questions.

        The reader uses the result from now on; call its ``save(folder)`` to store it with the model.

        Args:
            examples: SQuAD records.

        Raises:
            InputError: If they are not labelled, or the reader finds none of their answers.
        """
        examples = _require_list("examples", examples)
        kind = f"give SQuAD records, each with {', '.join(_LABELLED_KEYS)}"
        for number, example in enumerate(examples):
            missing = [key for key in _LABELLED_KEYS if not isinstance(example, Mapping) or key not in example]
            if missing:
                raise InputError(f"Example {number} to calibrate with has no `{missing[0]}`; {kind}.")
            try:
                for text in squad.check_answers(example)["text"]:
                    check_text("answers", text)
            except InvalidRecord as error:
                raise InputError(f"Example {number} to calibrate with: {error}") from error
        self.calibration = None
        answers = self.answers(*([example[name] for example in examples] for name in _LABELLED_KEYS[:3]))
        if answers.null_odds is not None:
            answers = use_best_null_threshold(examples, answers)
        self.calibration = calibration_of(examples, answers)
        if answers.null_odds is not None:
            self.settings = replace(self.settings, null_score_diff_threshold=answers.null_threshold)
        return self.calibration

    def __call__(self, *args: Any, top_k: int = 1, **inputs_and_settings: Any) -> Any:
        """Answer with the arguments and results of transformers' former question-answering pipeline.

        Args:
            *args: A question and its context, as for ``question`` and ``context``; or mappings with ``question`` and
                ``context``; or lists, generators or datasets of mappings.
            top_k: Number of answers to each question; above 1, the result for a question is a list.
            **inputs_and_settings: ``question`` and ``context``, a string or a list each, or mappings as ``data`` or
                ``X``; ``topk`` for ``top_k``; ``handle_impossible_answer``, ``doc_stride``, ``max_answer_len``,
                ``max_seq_len`` and ``max_question_len``.

        Returns:
            ``{"score", "start", "end", "answer"}`` with the probability as score; a list of them for several
            questions or answers.

        Raises:
            InputError: If a question or a setting is invalid.
        """
        questions, contexts, settings, is_one = _pipeline_inputs(args, inputs_and_settings)
        top_k = settings.pop("topk", top_k)
        if not isinstance(top_k, int) or top_k < 1:
            raise InputError(f"`top_k={top_k}` leaves no answer; use an int >= 1.")
        answers = self.answer_many(questions, contexts, **settings)
        if any(len(answer.candidates) < top_k for answer in answers):
            # The best starts and the best ends make fewer spans: take the best of all, some of which have equal texts.
            settings |= {"n_best_size": 4 * top_k, "search": "exhaustive"}
            answers = self.answer_many(questions, contexts, **settings)
        outputs: list[Any] = []
        for answer in answers:
            ranked: list[Answer | SpanAnswer] = [
                answer,
                *(candidate for candidate in answer.candidates if candidate.text != answer.text),
            ]
            # The pipeline's "no answer" is the empty string from 0 to 0.
            best = [
                {
                    "score": candidate.probability,
                    "start": candidate.start or 0,
                    "end": candidate.end or 0,
                    "answer": candidate.text,
                }
                for candidate in ranked[:top_k]
            ]
            outputs.append(best[0] if top_k == 1 else best)
        return outputs[0] if is_one else outputs


def _check_parts(model: object, tokenizer: object) -> ModelAndTokenizer:
    if tokenizer is None:
        raise InputError("A model that is given as an object needs its tokenizer; give `tokenizer` too.")
    if not hasattr(model, "config"):
        raise InputError(
            f"`model` is a {type(model).__name__}; give a folder, a hub name, or a model of transformers."
        )
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise InputError(f"`tokenizer` is a {type(tokenizer).__name__}; give the model's tokenizer, of transformers.")
    return ModelAndTokenizer(model, tokenizer)


def _require_list(name: str, strings: Iterable[Any]) -> list[Any]:
    # A single string is refused: its characters would be read as questions.
    if isinstance(strings, str | Mapping) or not isinstance(strings, Iterable):
        raise InputError(f"`{name}` is {strings!r}, not a list; give a list with one entry for each question.")
    return list(strings)


def _pipeline_inputs(
    args: Sequence[Any], inputs_and_settings: Mapping[str, Any]
) -> tuple[list[str], list[Contexts], dict[str, Any], bool]:
    """Return questions, contexts, settings, and whether the call asks for a single output instead of a list."""
    settings = dict(inputs_and_settings)
    question, context = settings.pop("question", None), settings.pop("context", None)
    settings = {_PIPELINE_NAMES.get(name, name): value for name, value in settings.items()}
    records = [*args, *(settings.pop(name) for name in ("data", "X") if name in settings)]
    if question is None and context is None and len(records) == 2 and isinstance(records[0], str):
        (question, context), records = records, []
    elif question is None and context is not None and len(records) == 1 and isinstance(records[0], str):
        question, records = records[0], []
    if (question is None) != (context is None) or bool(records) == (question is not None):
        raise InputError(
            "A call takes either `question` and `context`, a string or a list each, or mappings that hold both; give "
            "one of the two."
        )
    if not records:
        # As the pipeline did: one question, also in a mapping, returns one output, and any list a list.
        many = not isinstance(question, str)
        questions = _require_list("question", question) if many else [question]
        # One context serves all questions.
        is_shared = isinstance(context, str) or not many
        contexts = [context] * len(questions) if is_shared else _require_list("context", context)
        return questions, contexts, settings, not many
    is_one = len(records) == 1 and isinstance(records[0], Mapping)
    listed = [record for given in records for record in _records_of(given)]
    for record in listed:
        if not isinstance(record, Mapping) or not {"question", "context"} <= set(record):
            raise InputError(
                f"{shorten(record)} is not a question; it must be a mapping with `question` and `context`."
            )
    is_one = is_one and len(listed) == 1 and isinstance(listed[0]["question"], str)
    return [record["question"] for record in listed], [record["context"] for record in listed], settings, is_one


def _records_of(given: Any) -> Iterable[Any]:
    """Return the records in an argument: of an iterable, of a mapping with lists of questions, or the argument."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        return [given]
    if not isinstance(given, Mapping):
        return given
    questions, contexts = given.get("question"), given.get("context")
    if not isinstance(questions, list | tuple):
        return [given]
    contexts = [contexts] * len(questions) if isinstance(contexts, str) else contexts
    if not isinstance(contexts, list | tuple) or len(contexts) != len(questions):
        raise InputError(
            f"{shorten(given)} has {len(questions)} questions and other contexts; give a context for each, or one "
            "string for all."
        )
    return [{"question": asked, "context": its} for asked, its in zip(questions, contexts, strict=True)]


def question_windows(
    featurizer: Featurizer, questions: Sequence[str], contexts: Sequence[Contexts], ids: Sequence[str]
) -> tuple[list[dict[str, Any]], FeatureSet]:
    """Return questions as examples with a list of contexts each, and the windows of all contexts.

    Raises:
        InputError: If a question or context is not a string with text, or two questions have the same id.
    """
    if not len(questions) or not len(questions) == len(contexts) == len(ids):
        raise InputError(
            f"There are {len(questions)} questions, {len(contexts)} contexts and {len(ids)} ids; give one or more "
            "questions, and for each of them a context (or a list of contexts) and, if any, an id."
        )
    examples: dict[str, dict[str, Any]] = {}
    for number, (key, question, context) in enumerate(zip(ids, questions, contexts, strict=True)):
        its_contexts = list(context) if isinstance(context, list | tuple) else [context]
        if not its_contexts:
            raise InputError(f"Question {number} has no context; give one or more strings to find its answer in.")
        try:
            for name, text in (("question", question), *(("context", passage) for passage in its_contexts)):
                check_text(name, text)
            name = check_id("ids", key)
        except InvalidRecord as error:
            raise InputError(
                f'Question {number}: {error} Give strings with text, decoded with errors="replace" if need be.'
            ) from error
        if name in examples:
            raise InputError(
                f"Question {number}: another question has the same id {shorten(key)}; give each question its own id."
            )
        examples[name] = {"id": key, "question": question, "context": its_contexts}
    return list(examples.values()), featurizer.eval_features(list(examples.values()))


@dataclass(frozen=True, eq=False)
class TimeLimit(TrainerCallback):
    """Ends an inference that is cancelled, or that takes longer than ``seconds`` since ``started``.

    ``started`` is a time of ``time.monotonic``; ``between_batches`` is called after each batch.
    """

    started: float
    seconds: float | None
    cancelled: threading.Event | None = None
    between_batches: Callable[[], None] | None = None

    @override
    def on_prediction_step(
        self, args: HFTrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        if self.between_batches is not None:
            self.between_batches()
        self.check()

    def check(self) -> None:
        if self.cancelled is not None and self.cancelled.is_set():
            raise InputError("The questions were cancelled before they were answered (`cancelled`); ask them again.")
        if self.seconds is not None and time.monotonic() - self.started > self.seconds:
            raise took_too_long(self.seconds)


def took_too_long(seconds: float) -> InputError:
    return InputError(
        f"It took longer than {seconds:g} seconds (`max_seconds`); give a shorter context, or raise the limit."
    )


class UnsavedAnswerSession(AnswerSession):
    def _write(self, answered: object, stage: str) -> None:
        pass


class Inference(MRCTrainer):
    """Runs a trained model over features without writing files; ``parts`` are further arguments of the trainer."""

    _session_class = UnsavedAnswerSession

    def __init__(self, loaded: ModelAndTokenizer, args: TrainingArguments, **parts: Any) -> None:
        parts = {"data_collator": head_collator(head_of(loaded.model), loaded.tokenizer), **parts}
        super().__init__(model=loaded.model, args=args, processing_class=loaded.tokenizer, **parts)

    @classmethod
    def on_device(cls, loaded: ModelAndTokenizer, *, device: str | int, batch_size: int) -> "Inference":
        """Return an inference on a device; :class:`Reader` lists the names of devices."""
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise InputError(f"`batch_size={batch_size}` cannot be used; set it to an integer of 1 or more.")
        # A trainer makes its output folder at once; inference writes nothing into it.
        with tempfile.TemporaryDirectory(prefix="portico-reader-") as folder:
            args = TrainingArguments(
                folder,
                per_device_eval_batch_size=batch_size,
                disable_tqdm=True,
                report_to=["none"],
                **_device_arguments(device),
            )
            return cls(loaded, args)

    @contextmanager
    def limited(self, limit: TimeLimit) -> Iterator[None]:
        """End what runs in the block with an ``InputError`` by a :class:`TimeLimit`."""
        self.add_callback(limit)
        try:
            yield
        finally:
            self.remove_callback(limit)

    def answers(self, post_process_function: Any, examples: Examples, features: FeatureSet) -> Any:
        self.post_process_function = post_process_function
        self.predict(features, examples)
        return self.answered


def _device_arguments(device: str | int) -> dict[str, Any]:
    allowed = "use auto, cpu, cuda, cuda:<number> or ort"
    if not isinstance(device, str | int):
        raise InputError(f"`device={device}` is unknown; {allowed}.")
    name = str(device)
    if isinstance(device, int):
        name = "cpu" if device < 0 else f"cuda:{device}"
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cpu":
        return {"accelerator": "cpu", "devices": 1}
    if name == "ort":
        return {"accelerator": "ort", "strategy": "ort", "devices": 1}
    kind, _, number = name.partition(":")
    if kind != "cuda" or not (number or "0").isdecimal():
        raise InputError(f"`device={device}` is unknown; {allowed}.")
    index = int(number or 0)
    count = torch.cuda.device_count()
    if index >= count:
        raise InputError(f"`device={device}` selects GPU {index}, but there are {count}; use cpu, or auto.")
    return {"accelerator": "gpu", "devices": [index]}
