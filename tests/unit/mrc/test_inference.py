import json
import re
import tempfile
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser

import datasets
import numpy as np
import pytest
import torch
from transformers import BertModel

from portico.data.defects import shorten
from portico.errors import InputError
from portico.mrc import Featurizer, Reader, SpanPostProcessor
from portico.mrc.datasets.reader import read_questions
from portico.mrc.models.loading import load_reader
from unit.mrc.small_readers import reader as small_reader
from unit.mrc.small_readers import save

WINDOWS = {"max_seq_length": 64, "doc_stride": 16}


@pytest.fixture(scope="module")
def reader(model_folder):
    return Reader(model_folder, device="cpu", batch_size=7, handle_impossible_answer=True, **WINDOWS)


@pytest.fixture(scope="module")
def expected(model_folder, questions):
    """Return the answers of a reader assembled from its parts."""
    loaded = load_reader(str(model_folder))
    features = Featurizer(loaded.tokenizer, max_seq_length=64, doc_stride=16).eval_features(questions)
    post_processor = SpanPostProcessor(questions, features, version_2_with_negative=True)
    loaded.model.eval()
    for f in range(len(features)):
        row = {name: torch.tensor([features[f][name]]) for name in ("input_ids", "token_type_ids", "attention_mask")}
        with torch.no_grad():
            outputs = loaded.model(**row)
        post_processor.update(outputs.start_logits.numpy(), outputs.end_logits.numpy(), [f])
    assert len(features) > len(questions)
    return post_processor.compute()


def test_batched_answers_equal_those_of_single_windows(reader, expected, questions):
    answers = reader.answer_many([q["question"] for q in questions], [q["context"] for q in questions])
    for question, answer in zip(questions, answers, strict=True):
        assert answer.text == expected.predictions[question["id"]]
        # Padding to the length of the batch only changes the rounding of scores.
        assert answer.null_odds == pytest.approx(expected.null_odds[question["id"]], abs=1e-4)
        for candidate in answer.candidates:
            assert candidate.text == question["context"][candidate.start : candidate.end]
        assert sum(candidate.probability for candidate in answer.candidates) == pytest.approx(1)


def test_threads_get_the_answers_of_one(reader, questions):
    chosen = questions[:12]
    alone = [reader.answer(q["question"], q["context"]).candidates for q in chosen]
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(reader.answer, q["question"], q["context"]) for q in chosen]
    assert [answer.result().candidates for answer in asked] == alone


def test_an_answer_has_its_position(reader, questions):
    contexts = [question["context"] for question in questions[::15]]
    answer = reader.answer(questions[0]["question"], contexts, handle_impossible_answer=False)
    assert answer.text == contexts[answer.context_index][answer.start : answer.end] != ""
    assert answer.score == answer.candidates[0].score
    assert answer.null_odds is None
    several = reader.answer_many([question["question"] for question in questions[:6]], [contexts] * 6)
    assert {candidate.context_index for answer in several for candidate in answer.candidates} == {0, 1, 2}
    alone = reader.answer(questions[0]["question"], contexts[answer.context_index], handle_impossible_answer=False)
    assert (alone.text, alone.start) == (answer.text, answer.start)


def test_null_answer_is_allowed(reader, questions):
    answer = reader.answer(questions[0]["question"], questions[0]["context"], null_score_diff_threshold=-100.0)
    assert (answer.text, answer.start, answer.end, answer.context_index) == ("", None, None, None)
    null = next(candidate for candidate in answer.candidates if not candidate.text)
    assert (answer.probability, answer.score) == (null.probability, null.score)
    assert answer.answer_type == 0


def test_an_answer_is_a_dictionary_of_json_values(reader, questions):
    answer = reader.answer(questions[0]["question"], questions[0]["context"])
    values = answer.to_dict()
    assert json.loads(json.dumps(values)) == values
    assert (values["text"], values["question"], values["answer_type"]) == (answer.text, answer.question, "span_answer")
    assert values["candidates"][0] == vars(answer.candidates[0])
    assert "contexts" not in values
    assert questions[0]["context"] not in repr(answer)


def test_an_answer_says_why_there_is_none(reader, questions):
    arguments = (questions[0]["question"], questions[0]["context"])
    refused, given = (reader.answer(*arguments, null_score_diff_threshold=limit) for limit in (-100.0, 1.5))
    span = next(one for one in refused.candidates if one.text)
    assert refused.reason == (
        f'The score of "no answer" minus the score of the best span, "{shorten(span.text)[1:-1]}", is '
        f"{refused.null_odds:+.3g}, above the threshold of -100."
    )
    assert given.reason == (
        f'The score of "no answer" minus the score of this span is {given.null_odds:+.3g}, not above the threshold of '
        "1.5."
    )
    assert reader.answer(*arguments, handle_impossible_answer=False).reason == ""


class ReadHtml(HTMLParser):
    """Collects the marked text, the tags and all text of a fragment, and checks that every tag is closed."""

    def __init__(self, fragment):
        super().__init__()
        self.open, self.tags, self.marked, self.text = [], [], "", ""
        self.feed(fragment)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.tags.append((tag, dict(attrs).get("class")))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data
        self.marked += data if "mark" in self.open else ""


def test_an_answer_shows_itself_in_a_notebook(reader, questions):
    context = f"{questions[0]['context']} <script>alert(1)</script> & more"
    answer = reader.answer("<img src=x>?", ["<b>other</b>", context], handle_impossible_answer=False)
    shown = ReadHtml(answer._repr_html_())
    assert shown.marked == answer.text != ""
    assert answer.contexts[answer.context_index] in shown.text
    assert "<img src=x>?" in shown.text
    assert f"context {answer.context_index + 1} of 2" in shown.text
    assert f"{answer.probability:.1%}" in shown.text
    assert shown.tags.count(("tr", None)) == 1 + len(answer.candidates)
    assert not {tag for tag, _ in shown.tags} & {"script", "img", "b"}


def test_a_notebook_shows_why_there_is_no_answer(reader, questions):
    answer = reader.answer(questions[0]["question"], questions[0]["context"], null_score_diff_threshold=-100.0)
    shown = ReadHtml(answer._repr_html_())
    assert ("mark", "rejected") in shown.tags
    assert shown.marked == answer.best_span.text
    assert answer.reason in shown.text
    assert "No answer" in shown.text


def test_what_is_far_from_the_answer_is_folded(reader, questions):
    sentence = questions[0]["context"]
    answer = reader.answer(questions[0]["question"], " ".join([sentence] * 12), handle_impossible_answer=False)
    shown = ReadHtml(answer._repr_html_())
    assert ("details", "folded") in shown.tags
    without_summaries = re.sub(r"<summary>[\d,]+ characters</summary>", "", answer._repr_html_())
    assert answer.contexts[0] in ReadHtml(without_summaries).text


def test_settings_apply_to_one_call(reader, questions):
    arguments = (questions[0]["question"], questions[0]["context"])
    usual, short = reader.answer(*arguments), reader.answer(*arguments, n_best_size=2, max_answer_length=1)
    assert len(short.candidates) <= 3
    assert reader.answer(*arguments) == usual


def test_nothing_is_written(model_folder, questions, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    Reader(model_folder, device="cpu", **WINDOWS).answer(questions[0]["question"], questions[0]["context"])
    assert list(tmp_path.iterdir()) == []


def test_a_model_object_can_be_given(model_folder, questions, reader):
    loaded = load_reader(str(model_folder))
    own = Reader(loaded.model, loaded.tokenizer, device=-1, handle_impossible_answer=True, **WINDOWS)
    arguments = (questions[0]["question"], questions[0]["context"])
    assert own.answer(*arguments).text == reader.answer(*arguments).text
    with pytest.raises(InputError, match="needs its tokenizer"):
        Reader(loaded.model)


def test_call_signature_of_removed_pipeline(reader, questions):
    question, context = questions[0]["question"], questions[0]["context"]
    one = reader(question=question, context=context, handle_impossible_answer=False)
    assert list(one) == ["score", "start", "end", "answer"]
    assert one["answer"] == context[one["start"] : one["end"]]
    assert reader({"question": question, "context": context}, handle_impossible_answer=False) == one
    many = reader([questions[0], questions[1]], top_k=3, max_answer_len=5, handle_impossible_answer=False)
    assert [len(answers) for answers in many] == [3, 3]
    assert many[0][0]["score"] > many[0][1]["score"]
    shared = reader(question=[question, questions[1]["question"]], context=context, handle_impossible_answer=False)
    assert shared[0] == one
    nothing = reader(question=question, context=context, null_score_diff_threshold=-100.0)
    assert (nothing["start"], nothing["end"], nothing["answer"]) == (0, 0, "")


def test_every_call_of_the_removed_pipeline(reader, questions):
    settings = {"handle_impossible_answer": False}
    pair = questions[0]["question"], questions[0]["context"]
    record = dict(zip(("question", "context"), pair, strict=True))
    one = reader(**record, **settings)
    assert reader(*pair, **settings) == reader(pair[0], context=pair[1], **settings) == one
    assert reader(data=record, **settings) == reader(X=record, **settings) == one
    lists = {"question": [pair[0]] * 2, "context": pair[1]}
    for records in (
        [record, record],
        (record, record),
        iter([record, record]),
        datasets.Dataset.from_list([record] * 2),
    ):
        assert reader(records, **settings) == [one, one]
        assert reader(data=[record, record], **settings) == reader(lists, **settings) == reader(**lists, **settings)
    assert reader([record], **settings) == [one]
    assert reader(record, record, **settings) == [one, one]


@pytest.mark.parametrize("name", ["top_k", "topk"])
@pytest.mark.parametrize("count", [2, 20, 50])
def test_there_are_as_many_answers_as_are_asked_for(reader, questions, name, count):
    question, context = questions[0]["question"], " ".join(one["context"] for one in questions[:8])
    found = reader(question, context, **{name: count})
    assert len(found) == len({one["answer"] for one in found}) == count
    scores = [one["score"] for one in found]
    assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize("window", [60, 30, 24])
def test_windows_of_another_size_have_a_stride_that_fits(reader, questions, window):
    question, context = questions[0]["question"].split()[0], questions[0]["context"]
    answer = reader(question, context, max_seq_len=window)
    assert answer == reader(question, context, max_seq_len=window, doc_stride=min(16, window // 3))


def test_a_calibration_is_stored_with_the_model(model_folder, questions, tmp_path):
    loaded = load_reader(str(model_folder))
    own = Reader(loaded.model, loaded.tokenizer, device="cpu", handle_impossible_answer=True, **WINDOWS)
    calibration = own.calibrate(questions)
    assert calibration.null_score_diff_threshold is not None
    save(loaded, tmp_path)
    calibration.save(tmp_path)
    found = Reader(tmp_path, device="cpu", **WINDOWS)
    assert found.calibration == calibration
    arguments = ([q["question"] for q in questions], [q["context"] for q in questions])
    answers = found.answer_many(*arguments)
    assert answers == own.answer_many(*arguments)
    # Calibrated, even an untrained reader is as confident as it is accurate.
    right = np.mean([a.text in (q["answers"]["text"] or [""]) for a, q in zip(answers, questions, strict=True)])
    assert np.mean([answer.probability for answer in answers]) == pytest.approx(right, abs=0.1)


def test_onnx_runtime_returns_the_same_answers(model_folder, questions, reader):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    arguments = ([q["question"] for q in questions[:4]], [q["context"] for q in questions[:4]])
    ort = Reader(model_folder, device="ort", handle_impossible_answer=True, **WINDOWS)
    for one, other in zip(ort.answer_many(*arguments), reader.answer_many(*arguments), strict=True):
        assert one.text == other.text
        assert one.score == pytest.approx(other.score, abs=1e-4)


def test_a_model_without_a_trained_head_is_refused(model_folder, tmp_path):
    BertModel.from_pretrained(model_folder).save_pretrained(tmp_path)
    load_reader(str(model_folder)).tokenizer.save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"^`model=.*` holds BertModel, which has no.*first, with MRCT"):
        Reader(tmp_path)


def test_a_model_with_a_beam_search_head_answers(questions, tmp_path):
    loaded = small_reader(questions, "beam_search")
    own = Reader(loaded.model, loaded.tokenizer, device="cpu", **WINDOWS)
    answer = own.answer(questions[0]["question"], questions[0]["context"])
    assert answer.text == questions[0]["context"][answer.start : answer.end] != ""
    assert (answer.null_threshold, answer.reason) == (None, "")


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (["a", "a"], r"Question 1: another question has the same id 'a'"),
        ([1, "1"], r"Question 1: another question has the same id '1'"),
        ([None, "a"], r"Question 0: `ids` must be a string or an integer; got null"),
    ],
)
def test_every_question_has_an_id_of_its_own(reader, questions, ids, message):
    texts, contexts = ([question[key] for question in questions[:2]] for key in ("question", "context"))
    with pytest.raises(InputError, match=message):
        reader.answers(texts, contexts, ids)


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda reader: reader.answer("Who?", " "), r"Question 0: `context` is empty\. Give strings"),
        (lambda reader: reader.answer("", "x"), r"Question 0: `question` is empty"),
        (lambda reader: reader.answer("Who?", []), r"Question 0 has no context"),
        (lambda reader: reader.answer_many(["Who?"], ["x", "y"]), r"There are 1 questions, 2 contexts"),
        (lambda reader: reader.answer_many([], []), r"There are 0 questions"),
        (lambda reader: reader.answer("Who?", "x", doc_strid=3), r"`doc_strid` is not a setting .* are doc_stride"),
        (lambda reader: reader.answer("Who?", "x", n_best_size=0), r"`n_best_size=0` cannot be used"),
        (lambda reader: reader.answer("Who?", "x", max_seq_length=999), r"is more than the model takes \(96 tokens\)"),
        (
            lambda reader: reader.answer("Who?", "x", search="all"),
            r"`search='all'` cannot be used; set it to one of 'top', 'exhaustive'",
        ),
        (lambda reader: reader.answer("Who?", 5), r"Question 0: `context` must be a string; got 5"),
        (
            lambda reader: reader.answer("Who?", {"a": "x"}),
            r"`context` must be a string; got an object with the keys `a`",
        ),
        (lambda reader: reader.answer("Who?", b"x"), r"`context` must be a string; got b'x'"),
        (lambda reader: reader.answer("Who?", "a \ud800"), r"`context` is not valid Unicode.* errors=\"replace\""),
        (lambda reader: reader.answer_many("Who?", "abcd"), r"`questions` is 'Who\?', not a list"),
        (lambda reader: reader.answer_many(["Who?"], None), r"`contexts` is None, not a list"),
        (lambda reader: reader("Who?"), r"'Who\?' is not a question; it must be a mapping"),
        (lambda reader: reader("Who?", "x", "y"), r"'Who\?' is not a question; it must be a mapping"),
        (lambda reader: reader("Who?", "x", data=[]), r"'Who\?' is not a question; it must be a mapping"),
        (lambda reader: reader({"question": ["Who?"], "context": []}), r"has 1 questions and other contexts; give a"),
        (lambda reader: reader(question="Who?", context="x", top_k="2"), r"`top_k=2` leaves no answer"),
        (lambda reader: reader(question="Who?"), r"takes either `question` and `context`"),
        (lambda reader: reader(), r"takes either `question` and `context`"),
        (lambda reader: reader({"question": "Who?"}), r"is not a question; it must be a mapping"),
        (lambda reader: reader(question="Who?", context="x", top_k=0), r"`top_k=0` leaves no answer"),
        (
            lambda reader: reader.calibrate([{"id": "a", "question": "Who?", "context": "x"}]),
            r"no `answers`; give SQuAD records, each with question, context, id",
        ),
        *(
            (lambda reader, device=device: Reader(*vars(reader._loaded).values(), device=device), message)
            for device, message in (
                (None, r"`device=None` is unknown; use auto"),
                ("tpu", r"`device=tpu` is unknown; use auto, cpu, cuda"),
                ("cuda:x", r"`device=cuda:x` is unknown"),
                (99, r"`device=99` selects GPU 99, but there are \d+"),
            )
        ),
        (
            lambda reader: Reader(*vars(reader._loaded).values(), max_seq_length="x"),
            r"`max_seq_length='x'` cannot be used; set it to an integer",
        ),
        (lambda reader: Reader("/no/model"), r"^`model=/no/model` does not exist"),
        (lambda reader: Reader(5, 5), r"^`model` is a int; give a folder, a hub name"),
        (lambda reader: Reader(*vars(reader._loaded).values(), batch_size=0), r"^`batch_size=0` cannot be used"),
        (lambda reader: Reader("folder", 5), r"^`model=folder` brings its own tokenizer; leave `tokenizer` out"),
        (lambda reader: Reader(reader._loaded.model, 5), r"^`tokenizer` is a int; give the model's tokenizer"),
        (
            lambda reader: reader.answer("a?", "x", handle_impossible_answer=None),
            r"^`handle_impossible_answer=None` cannot be used; set it to True or False\.",
        ),
        (
            lambda reader: reader.answer("a?", "x", max_question_length=0),
            r"`max_question_length=0` cannot be used; set it to an integer of 1 or more, or None\.",
        ),
        (
            lambda reader: reader.answer("a?", "x", max_seq_length=9, doc_stride=16),
            r"^`doc_stride=16` must be at least 0 and below `max_seq_length=9`",
        ),
        (
            lambda reader: reader.answer("a? " * 60, "x"),
            r"^`doc_stride=16` does not fit.* a larger `max_seq_length`, or `max_question_length`\.",
        ),
        (lambda reader: reader.answers(["a?"], ["x"], 5), r"^`ids` is 5, not a list"),
        (lambda reader: reader(question=5, context="x"), r"^`question` is 5, not a list"),
        (lambda reader: reader(question=["a?"], context=5), r"^`context` is 5, not a list"),
        (lambda reader: reader(5), r"^5 is not a question; it must be a mapping"),
        (lambda reader: reader.calibrate(None), r"^`examples` is None, not a list"),
        (lambda reader: reader.calibrate([5]), r"^Example 0 to calibrate with has no `question`; give SQuAD records"),
        (
            lambda reader: reader.calibrate([{"id": "a", "question": "q", "context": "x", "answers": {"text": 5}}]),
            r"^Example 0 to calibrate with: `answers` must be",
        ),
    ],
)
def test_what_cannot_be_answered_is_refused(reader, use, message):
    with pytest.raises(InputError, match=message):
        use(reader)


def test_questions_can_be_any_iterable(reader, questions):
    texts = [question["question"] for question in questions[:2]]
    contexts = [question["context"] for question in questions[:2]]
    assert reader.answer_many(iter(texts), iter(contexts)) == reader.answer_many(texts, contexts)


def test_questions_are_read_from_mrqa_files(tmp_path):
    passage = {"context": "Oslo lies in Norway", "qas": [{"qid": "a1", "question": "where is oslo"}]}
    path = tmp_path / "mrqa.jsonl"
    path.write_text("\n".join(map(json.dumps, [{"header": {"dataset": "SQuAD"}}, passage])))
    assert read_questions(path) == [{"id": "a1", "question": "where is oslo", "context": "Oslo lies in Norway"}]
    path.write_text(json.dumps({"paragraphs": [{"context": "Oslo", "qas": 3}]}))
    with pytest.raises(InputError, match=r"line 1, paragraph 1: not SQuAD: expected a list `qas`; got 3"):
        read_questions(path)
