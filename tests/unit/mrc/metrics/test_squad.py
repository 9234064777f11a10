"""Texts of answers: the metrics of SQuAD, MRQA and MLQA."""

import json
import logging
import re
import string
import sys
import unicodedata
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torchmetrics.text import SQuAD

from portico.errors import InputError
from portico.mrc import Mlqa, Mrqa, SquadV1, SquadV2
from portico.mrc.metrics import exact_match, normalize_answer, squad_metrics, token_f1

# ---- The official rules, written slowly and plainly ----

PUNCTUATION = {chr(i) for i in range(sys.maxunicode) if unicodedata.category(chr(i))[0] == "P"} | set(
    string.punctuation
)
MLQA_ARTICLES = {
    "en": r"\b(a|an|the)\b",
    "es": r"\b(un|una|unos|unas|el|la|los|las)\b",
    "vi": r"\b(của|là|cái|chiếc|những)\b",
    "de": r"\b(ein|eine|einen|einem|eines|einer|der|die|das|den|dem|des)\b",
    "ar": "\\s\u0627\u0644^|\u0627\u0644",
}


def squad_normal(text):
    kept = [char for char in text.lower() if char not in set(string.punctuation)]
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", "".join(kept)).split())


def mlqa_normal(language):
    def normal(text):
        text = "".join(char for char in text.lower() if char not in PUNCTUATION)
        if language in MLQA_ARTICLES:
            text = re.sub(MLQA_ARTICLES[language], " ", text)
        return " ".join(chinese_words(text) if language == "zh" else text.split())

    return normal


def chinese_words(text):
    """Each Chinese character is a word, and so is what blanks part between them."""
    words, other = [], ""
    for char in text:
        if "\u4e00" <= char <= "\u9fa5":
            words += [*other.split(), char]
            other = ""
        else:
            other += char
    return words + other.split()


def squad_1(predictions, references, normal=squad_normal, skip=False):
    texts = {record["id"]: record["prediction_text"] for record in predictions}
    exact = f1 = total = 0
    for reference in references:
        if reference["id"] not in texts:
            total += not skip
            continue
        total += 1
        text, golds = texts[reference["id"]], reference["answers"]["text"]
        exact += max(normal(text) == normal(gold) for gold in golds)
        f1 += max(shared_f1(normal(text).split(), normal(gold).split()) for gold in golds)
    return {"exact_match": 100.0 * exact / total, "f1": 100.0 * f1 / total}


def shared_f1(words, gold):
    shared = sum((Counter(words) & Counter(gold)).values())
    if shared == 0:
        return 0
    precision, recall = shared / len(words), shared / len(gold)
    return 2 * precision * recall / (precision + recall)


def squad_2(predictions, references, threshold=1.0):
    """All that the script prints, where every reference has a prediction with a probability."""
    texts = {record["id"]: record["prediction_text"] for record in predictions}
    null = {record["id"]: record["no_answer_probability"] for record in predictions}
    golds = {record["id"]: record["answers"]["text"] for record in references}
    exact, f1 = {}, {}
    for key, gold in golds.items():
        kept = [text for text in gold if squad_normal(text)] or [""]
        exact[key] = max(int(squad_normal(text) == squad_normal(texts[key])) for text in kept)
        f1[key] = max(either_empty_f1(squad_normal(texts[key]).split(), squad_normal(text).split()) for text in kept)

    def at_threshold(scores):
        return {key: float(not golds[key]) if null[key] > threshold else scores[key] for key in scores}

    out = {}
    groups = {"": list(golds), "HasAns_": [k for k in golds if golds[k]], "NoAns_": [k for k in golds if not golds[k]]}
    for prefix, keys in groups.items():
        if keys:
            for name, scores in (("exact", at_threshold(exact)), ("f1", at_threshold(f1))):
                out[f"{prefix}{name}"] = 100.0 * sum(scores[key] for key in keys) / len(keys)
            out[f"{prefix}total"] = len(keys)
    for name, scores in (("exact", exact), ("f1", f1)):
        out[f"best_{name}"], out[f"best_{name}_thresh"] = best_threshold(texts, scores, null, golds)
    if groups["HasAns_"]:
        oracle = {key: float(bool(golds[key])) for key in golds}
        for name, scores in (("exact", exact), ("f1", f1), ("oracle", oracle)):
            out[f"pr_{name}_ap"] = 100.0 * average_precision(scores, null, golds)
    return out


def either_empty_f1(words, gold):
    return shared_f1(words, gold) if words and gold else int(words == gold)


def best_threshold(texts, scores, null, golds):
    current = best = sum(not gold for gold in golds.values())
    threshold = 0.0
    for key in sorted(null, key=null.__getitem__):
        if key in scores:
            current += scores[key] if golds[key] else -bool(texts[key])
            if current > best:
                best, threshold = current, null[key]
    return 100.0 * best / len(scores), threshold


def average_precision(scores, null, golds):
    keys = [key for key in sorted(null, key=null.__getitem__) if key in golds]
    right = area = recall = 0.0
    for i, key in enumerate(keys):
        right += scores[key] if golds[key] else 0.0
        if i + 1 == len(keys) or null[key] != null[keys[i + 1]]:
            new_recall = right / sum(bool(gold) for gold in golds.values())
            area += right / (i + 1) * (new_recall - recall)
            recall = new_recall
    return area


# ---- Tests ----


def prediction(example_id, text, probability=None):
    record = {"id": example_id, "prediction_text": text}
    return record if probability is None else {**record, "no_answer_probability": probability}


def reference(example_id, *texts):
    return {"id": example_id, "answers": {"text": list(texts), "answer_start": [0] * len(texts)}}


PREDICTIONS = [
    prediction("a", "The Mill!"),
    prediction("b", "old stone mill"),
    prediction("c", ""),
    prediction("d", "x"),
]
REFERENCES = [reference("a", "mill"), reference("b", "the mill", "river"), reference("c"), reference("d")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  The  Old   Mill. ", "old mill"),
        ("A.B.C.", "abc"),
        ("another an", "another"),
        ("Łódź's", "łódźs"),
        ("a", ""),
    ],
)
def test_normalisation(text, expected):
    assert normalize_answer(text) == expected


@pytest.mark.parametrize(
    ("text", "golds", "exact", "f1"),
    [
        ("the Mill", ["mill"], 1, 1),
        ("old stone mill", ["river", "the mill"], 0, 0.5),
        ("mill mill", ["mill"], 0, 2 / 3),
        ("river", ["mill"], 0, 0),
        ("", [], 1, 1),
        ("mill", [], 0, 0),
        ("", ["mill"], 0, 0),
        ("the", [], 1, 1),  # nothing is left of it
        ("mill", ["the", "mill"], 1, 1),
        ("", ["the", "mill"], 0, 0),  # a gold answer of which nothing is left does not count
    ],
)
def test_scores_of_one_answer(text, golds, exact, f1):
    assert exact_match(text, golds) == exact
    assert token_f1(text, golds) == pytest.approx(f1, abs=1e-15)


def test_squad_2_metrics_by_hand():
    assert squad_metrics(PREDICTIONS, REFERENCES, True) == {
        "exact": 50.0,
        "f1": 62.5,
        "total": 4,
        "HasAns_exact": 50.0,
        "HasAns_f1": 75.0,
        "HasAns_total": 2,
        "NoAns_exact": 50.0,
        "NoAns_f1": 50.0,
        "NoAns_total": 2,
    }


def test_squad_1_metrics_are_those_of_torchmetrics():
    metric = SQuAD()
    metric.update(PREDICTIONS[:2], REFERENCES[:2])
    scores = squad_metrics(PREDICTIONS[:2], REFERENCES[:2], False)
    assert scores == {"exact_match": 50.0, "f1": 75.0}
    assert scores == {name: float(score) for name, score in metric.compute().items()}


@pytest.mark.parametrize("version_2_with_negative", [False, True])
def test_a_question_without_prediction_is_rejected(version_2_with_negative):
    with pytest.raises(InputError, match=r"1 of 2 references have no prediction, for example 'b'"):
        squad_metrics(PREDICTIONS[:1], REFERENCES[:2], version_2_with_negative)


# Articles, punctuation of several scripts, Chinese, Arabic with diacritics and article, combining marks, a lone
# surrogate, emoji with a joiner, blanks that are not ASCII, letters whose lower case is longer.
MARKED = "a the an The mill old mill's der eine los la của là . -- !? « » 。 、 ؟ । $ + ^ ` _ 3.5"
OTHER_SCRIPTS = "中 文字 中文 x中y 々 ال البيت بَيْت é 🚀 İ ß"
PIECES = [
    *["", " ", "\n", "\u00a0", "\u2003", "\u200b", "\ud800", "\uff0c", "\uff11", "c\u0323ua", "e\u0301", "👩\u200d🚀"],
    *MARKED.split(),
    *OTHER_SCRIPTS.split(),
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=5).flatmap(
    lambda pieces: st.sampled_from(["", " "]).map(lambda blank: blank.join(pieces))
)
LANGUAGES = ("en", "es", "hi", "vi", "de", "ar", "zh")


@st.composite
def records(draw, min_golds):
    """Predictions in another order than the references, some of no question, with ids that come twice."""
    keys = draw(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=6))
    golds = st.lists(TEXTS, min_size=min_golds, max_size=3)
    references = [{"id": key, "answers": {"text": draw(golds), "answer_start": []}} for key in keys]
    predicted = draw(st.permutations([*keys, *draw(st.lists(st.sampled_from("yz"), max_size=2))]))
    probabilities = st.sampled_from([0.0, 0.25, 0.5, 1.0, 1.5])
    # Often the gold text itself, or else hardly any answer would be right.
    texts = st.one_of(TEXTS, st.sampled_from([text for one in references for text in one["answers"]["text"]] or [""]))
    predictions = [
        {"id": key, "prediction_text": draw(texts), "no_answer_probability": draw(probabilities)} for key in predicted
    ]
    return predictions, references


def scores_of(metric, predictions, references):
    metric.update(predictions, references)
    return metric.compute()


@given(records(min_golds=1))
@settings(max_examples=150, deadline=None)
def test_squad_1_is_the_official_script(data):
    assert scores_of(SquadV1(), *data) == squad_1(*data)


@given(records(min_golds=0))
@settings(max_examples=250, deadline=None)
def test_squad_2_is_the_official_script(data):
    assert scores_of(SquadV2(average_precision=True), *data) == pytest.approx(squad_2(*data), abs=1e-11)


@given(records(min_golds=0), st.sampled_from([-1.0, 0.0, 0.25, 0.5]))
@settings(max_examples=60, deadline=None)
def test_squad_2_above_a_threshold_is_no_answer(data, threshold):
    expected = {name: score for name, score in squad_2(*data, threshold).items() if not name.startswith("pr_")}
    assert scores_of(SquadV2(no_answer_threshold=threshold), *data) == expected


@pytest.mark.parametrize("language", LANGUAGES)
@given(records(min_golds=1))
@settings(max_examples=40, deadline=None)
def test_mlqa_is_the_official_script(language, data):
    assert scores_of(Mlqa(language), *data) == squad_1(*data, mlqa_normal(language))


@given(records(min_golds=1), st.booleans())
@settings(max_examples=40, deadline=None)
def test_mrqa_is_the_official_script(data, skip):
    predictions, references = data
    references = [{"id": "unanswered", "answers": {"text": ["mill"]}}, *references]
    expected = squad_1(predictions, references, skip=skip)
    assert scores_of(Mrqa(skip_unanswered=skip), predictions, references) == expected


@pytest.mark.parametrize(
    ("language", "text", "gold"),
    [
        ("es", "La Casa", "casa"),
        ("de", "der Turm.", "„Turm“"),
        ("vi", "của nhà", "nhà"),
        ("ar", "البيت", "بيت"),
        ("zh", "中 文。", "中文"),
        ("hi", "घर।", "घर"),
        ("ru", "«дом»", "Дом"),
    ],
)
def test_languages_have_their_own_articles_and_marks(language, text, gold):
    prediction, reference = {"id": "a", "prediction_text": text}, {"id": "a", "answers": {"text": [gold]}}
    assert scores_of(Mlqa(language), [prediction], [reference]) == {"exact_match": 100.0, "f1": 100.0}


def test_torchmetrics_differs_for_answers_that_normalise_to_nothing():
    prediction, reference = {"id": "a", "prediction_text": "the"}, {"id": "a", "answers": {"text": ["a"]}}
    assert scores_of(SquadV1(), [prediction], [reference]) == {"exact_match": 100.0, "f1": 0.0}
    assert float(scores_of(SQuAD(), [prediction], [reference])["f1"]) == 100.0


def test_answers_may_be_a_list_of_strings():
    scores = scores_of(Mrqa(), [{"id": "a", "prediction_text": "mill"}], [{"id": "a", "answers": ["river", "Mill"]}])
    assert scores == {"exact_match": 100.0, "f1": 100.0}


def test_a_question_without_prediction_scores_0_and_is_logged(caplog):
    references = [{"id": key, "answers": {"text": ["x"]}} for key in "ab"]
    with caplog.at_level(logging.WARNING):
        scores = scores_of(SquadV1(), [{"id": "a", "prediction_text": "x"}], references)
    assert scores == {"exact_match": 50.0, "f1": 50.0}
    assert "1 of 2 questions have no prediction and score 0, for example 'b'" in caplog.text


def test_a_question_without_gold_answer_is_rejected():
    with pytest.raises(InputError, match=r"'a' has no gold answer, .* metric of SQuAD 2.0"):
        SquadV1().update([{"id": "a", "prediction_text": ""}], [{"id": "a", "answers": {"text": []}}])


def spoken(number, text, **more):
    prediction = {"id": str(number), "prediction_text": text}
    return prediction, {"id": str(number), "answers": {"text": ["la casa 红房"]}, **more}


def test_every_answer_is_scored_in_its_own_language():
    # Articles of Spanish are no words of other languages, and each Chinese character is a word.
    records = [
        spoken(0, "casa 红房"),
        spoken(1, "casa 红房", language="zh-CN"),
        spoken(2, "casa 红", language="chinese"),
    ]
    predictions, references = zip(*records, strict=True)
    scores = scores_of(Mlqa("es"), predictions, references)
    assert scores["exact_match"] == pytest.approx(100 / 3)
    assert scores["f1"] == pytest.approx(100 / 3 * (1 + 6 / 7 + 4 / 6))
    bare = [{**one, "language": ""} for one in references]
    by_id = Mlqa("es").of_examples(references)
    assert scores_of(by_id, predictions, bare) == scores
    assert scores_of(Mlqa().of_examples(references[1:]), predictions[1:], bare[1:])["exact_match"] == 0


def test_a_language_without_rules_is_announced_or_refused(caplog):
    prediction, reference = spoken(0, "casa 红房", language="finnish")
    assert scores_of(Mlqa("es"), [prediction], [reference])["exact_match"] == 100
    assert "Answers whose language is 'finnish' are normalised as 'es'" in caplog.text
    with pytest.raises(InputError, match="`language='finnish'` is not a language of MLQA"):
        Mlqa().update([prediction], [reference])
    with pytest.raises(InputError, match="`language=None` is not a language of MLQA"):
        Mlqa().of_examples([{**reference, "language": "UNKNOWN"}])


ONE = np.array(["Rome"], object)


FORMS = {
    "text": "Rome",
    "list": ["Rome"],
    "tuple": ("Rome",),
    "array": ONE,
    "one of each": {"text": "Rome", "answer_start": 0},
    "arrays": {"text": ONE, "answer_start": np.array([0])},
    "objects": [{"text": "Rome", "answer_start": 0}],
    "with null": [None, "Rome"],
    "with no answer": {"text": ["Rome", ""], "answer_start": [0, -1]},
}


@pytest.mark.parametrize("metric", [SquadV1, SquadV2])
@pytest.mark.parametrize("form", FORMS)
def test_answers_are_read_in_every_form(metric, form):
    answers = FORMS[form]
    scores = scores_of(metric(), [{"id": 1, "prediction_text": np.str_("rome")}], [{"id": 1, "answers": answers}])
    assert scores["f1"] == 100
    assert scores_of(metric(), [{"id": 1, "prediction_text": "R"}], [{"id": 1, "answers": answers}])["f1"] == 0


@pytest.mark.parametrize(
    "answers", [None, [], {"text": None, "answer_start": None}, {"text": [""], "answer_start": [-1]}]
)
@pytest.mark.parametrize(("text", "exact"), [(None, 100), ("None", 0)])
def test_no_answer_is_read_in_every_form(answers, text, exact):
    scores = scores_of(SquadV2(), [{"id": 1, "prediction_text": text}], [{"id": 1, "answers": answers}])
    assert scores["NoAns_exact"] == exact


@pytest.mark.parametrize(
    ("text", "answers", "message"),
    [
        (
            ["Rome"],
            "Rome",
            r"The answer to question 1: `prediction_text` must be a string; got a list",
        ),
        (True, "Rome", r"`prediction_text` must be a string; got True"),
        (
            "Rome",
            {"answer": "Rome"},
            r"The reference of question 1: `answers` must have `text`; got",
        ),
        ("Rome", [["Rome"]], r"`answers` must be a string; got a list of length 1"),
        ("Rome", [{"answer": "Rome"}], r"`answers` must have `text`"),
    ],
)
def test_other_answers_are_refused_by_name(text, answers, message):
    with pytest.raises(InputError, match=message):
        SquadV1().update([{"id": 1, "prediction_text": text}], [{"id": 1, "answers": answers}])


@pytest.mark.parametrize("language", ["xx", "EN"])
def test_an_unknown_language_is_rejected(language):
    with pytest.raises(InputError, match=rf"`language={language!r}` is not a language of MLQA .* en, es, hi, vi,"):
        Mlqa(language)


@pytest.mark.parametrize("metric", [SquadV1, SquadV2])
def test_an_empty_evaluation_is_rejected(metric):
    with pytest.raises(InputError, match="No question was scored"):
        scores_of(metric(), [], [])


def test_probabilities_of_only_some_predictions_are_rejected():
    references = [{"id": key, "answers": {"text": []}} for key in "ab"]
    some = [{"id": "a", "prediction_text": "", "no_answer_probability": 1.0}, {"id": "b", "prediction_text": ""}]
    with pytest.raises(InputError, match="1 of 2 predictions have a `no_answer_probability`"):
        SquadV2().update(some, references)
    metric = SquadV2()
    for prediction, reference in zip(some, references, strict=True):
        metric.update([prediction], [reference])
    with pytest.raises(InputError, match="1 of 2 predictions have a `no_answer_probability`"):
        metric.compute()


def test_precision_recall_curve_begins_with_no_answer_and_ends_with_all():
    metric = SquadV2()
    assert metric.precision_recall() == {}
    predictions = [
        {"id": key, "prediction_text": key, "no_answer_probability": p}
        for key, p in (("a", 0.1), ("b", 0.1), ("c", 0.9))
    ]
    golds = {"a": ["a"], "b": [], "c": ["c"]}
    metric.update(predictions, [{"id": key, "answers": {"text": texts}} for key, texts in golds.items()])
    curve = metric.precision_recall()["exact"]
    assert curve.precision_T.tolist() == [1.0, 0.5, 2 / 3]
    assert curve.recall_T.tolist() == [0.0, 0.5, 1.0]
    assert curve.threshold_T.tolist()[1:] == [0.1, 0.9]
    assert curve.average_precision == 0.5 * 0.5 + 0.5 * (2 / 3)


GOLDS = [{"id": "a", "answers": {"text": ["Turku"]}}, {"id": "b", "answers": {"text": []}}]
OFFICIAL = [
    {"a": "Turku", "b": "Turku"},
    {"a": {"text": "Turku"}, "b": {"prediction_text": "Turku"}},
    {"a": [{"text": "Turku", "probability": 0.6}, {"text": "", "probability": 0.4}], "b": "Turku"},
]


@pytest.mark.parametrize("predictions", OFFICIAL, ids=["texts", "mappings", "n-best"])
def test_answers_are_taken_by_id_and_from_files(predictions, tmp_path):
    records = [{"id": key, "prediction_text": "Turku"} for key in "ab"]
    probabilities = {"a": 0.2, "b": 0.7}
    with_probabilities = [{**record, "no_answer_probability": probabilities[record["id"]]} for record in records]
    (tmp_path / "predictions.json").write_text(json.dumps(predictions))
    (tmp_path / "na_prob.json").write_text(json.dumps(probabilities))
    expected = squad_metrics(records, GOLDS, True)
    best = squad_metrics(with_probabilities, GOLDS, True)
    assert (expected["exact"], best["best_exact"]) == (50.0, 100.0)
    for answers, odds in (
        (predictions, probabilities),
        (tmp_path / "predictions.json", str(tmp_path / "na_prob.json")),
    ):
        assert squad_metrics(answers, GOLDS, True) == expected
        assert squad_metrics(answers, GOLDS, True, odds) == best
        metric = SquadV1()
        metric.update(answers, GOLDS[:1])
        assert metric.compute() == {"exact_match": 100.0, "f1": 100.0}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"a": {"start": 3}}, r"The answer to question 'a' is .*start.*, without `text`; write \{id: text\}"),
        ({"a": True}, r"The answer to question 'a': `prediction_text` must be a string"),
        ("nowhere.json", r"`predictions='nowhere.json'` cannot be read .*; name a JSON file"),
    ],
)
def test_what_is_no_answer_by_id_is_refused(given, message):
    with pytest.raises(InputError, match=message):
        squad_metrics(given, GOLDS[:1], False)


def test_file_of_a_number_is_no_file_of_answers(tmp_path):
    (tmp_path / "three.json").write_text("3")
    with pytest.raises(InputError, match=r"three\.json holds a int; write values by question id"):
        squad_metrics(tmp_path / "three.json", GOLDS[:1], False)
