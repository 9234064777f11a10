"""``Reader``: a trained model that answers questions."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from portico.errors import InputError
from portico.mrc.features.featurizer import Featurizer
from portico.mrc.head_needs import head_post_processing
from portico.mrc.models.loading import head_of
from portico.mrc.models.pretrained import Reader as LoadedReader
from portico.mrc.models.pretrained import load_trained_reader
from portico.mrc.postprocess import AnswerCalibration, Answers
from portico.mrc.postprocess.calibration import calibration_of, with_best_null_threshold
from portico.mrc.postprocess.span_postprocessing import SpanPostProcessing
from portico.mrc.reader.answer import Answer, answers_in_order
from portico.mrc.reader.inference import Inference
from portico.mrc.reader.pipeline_form import pipeline_outputs, questions_and_contexts
from portico.mrc.reader.settings import ReadingSettings
from portico.mrc.reader.windows import Contexts, question_windows

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
        **settings: See :class:`~portico.mrc.reader.settings.ReadingSettings`; every call may set them otherwise.

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
