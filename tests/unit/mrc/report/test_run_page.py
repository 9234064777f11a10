from dataclasses import replace
from itertools import pairwise

import pytest

from portico.mrc.report import Scores, write_report
from portico.mrc.report.results import ANSWERING, DECLINING
from portico.mrc.report.run_page import baselines, last_value, lead, run_page, tiles
from portico.report.charts import curve
from portico.report.page import Interval, duration
from report_pages import HISTORY, HOSTILE, RESULTS, record, result, shown

METRICS = {"eval_exact": 33.3, "eval_f1": 44.4, "eval_HasAns_f1": 55.5, "eval_NoAns_exact": 50.0, "eval_loss": 0.5}


def test_the_page_is_well_formed_and_self_contained():
    written = shown(log_history=HISTORY, settings={HOSTILE: {HOSTILE: HOSTILE}}, title=HOSTILE)
    for tag, attrs in written.tags:
        assert tag not in {"link", "img", "iframe", "object", "embed", "base", "form"}
        assert not {"src", "srcset", "action"} & attrs.keys()
        assert not [name for name in attrs if name.startswith("on")]
        assert attrs.get("href", "#").startswith("#")
    (policy,) = [attrs["content"] for _, attrs in written.tags if "http-equiv" in attrs]
    assert policy.startswith("default-src 'none'")


def test_styles_and_scripts_contain_no_address():
    page = run_page(record([]))
    assert not [word for word in ("http:", "https:", "//cdn", "url(", "@import") if word in page]


def test_hostile_text_is_shown_as_text():
    results = [result(title=HOSTILE, question=HOSTILE, language=HOSTILE)]
    written = shown(results, settings={HOSTILE: HOSTILE}, title=HOSTILE, missing=[HOSTILE])
    # Title, h1, what is missing, the language in its table and in the explorer's choice, and a setting.
    assert "".join(written.text).count(HOSTILE) == 7
    assert [tag for tag, _ in written.tags].count("script") == 3
    assert "<script" not in written.data[0]


def test_every_section_is_there_and_the_navigation_leads_to_it():
    written = shown(log_history=HISTORY, settings={"args": {"seed": 1}}, sections={"The pipeline": "<p>a</p>"})
    assert written.sections == [
        "breakdown",
        "confidence",
        "learning",
        "the-pipeline",
        "questions",
        "settings",
        "methods",
    ]
    links = [
        attrs["href"][1:] for tag, attrs in written.tags if tag == "a" and attrs["href"][:3] not in ("#g=", "#k=", "#")
    ]
    assert links == ["main", *written.sections]
    assert len(written.having("plot")) == 4
    assert len(written.having("square")) == 1
    assert len(written.having("groups")) == 4


def test_every_referenced_id_exists_once():
    written = shown(log_history=HISTORY)
    identifiers = [attrs["id"] for _, attrs in written.tags if "id" in attrs]
    assert len(set(identifiers)) == len(identifiers)
    assert {attrs["aria-labelledby"] for _, attrs in written.tags if "aria-labelledby" in attrs} <= set(identifiers)


def test_headings_do_not_skip_a_level():
    levels = [int(tag[1]) for tag, _ in shown(log_history=HISTORY, settings={"a": {"b": 1}}).tags if tag in HEADINGS]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


HEADINGS = {"h1", "h2", "h3", "h4"}


def test_a_single_question():
    written = shown([result(null_odds=None, probability=None)])
    assert written.sections == ["breakdown", "questions", "methods"]


def test_no_question_at_all():
    written = shown([])
    assert "No question was evaluated." in written.text
    assert written.sections == []


def test_a_history_without_evaluation_gives_loss_and_learning_rate():
    written = shown([], log_history=HISTORY[:2])
    assert [attrs["aria-label"].split(":")[0] for attrs in written.having("plot")] == ["Loss", "Learning rate"]


def test_the_best_threshold_is_marked():
    written = shown()
    (chart,) = written.having("plot")
    assert chart["data-x-name"] == "threshold"
    assert "best F1, at" in chart["aria-label"]
    assert len(written.having("mark")) == 1


@pytest.mark.parametrize(("used", "num_marks"), [(-2, 2), (99.0, 1), ("best", 1), (None, 1)])
def test_the_threshold_in_use_is_marked_if_it_is_in_range(used, num_marks):
    written = shown(settings={"postprocess": {"null_score_diff_threshold": used}})
    assert len(written.having("mark")) == num_marks


def test_lone_surrogates_are_replaced(tmp_path):
    lone = result(context="Turku \ud800", golds=(("Turku", 0),), predicted_span=(0, 5))
    write_report(tmp_path / "report.html", record([lone]))
    assert "Turku ?" in (tmp_path / "report.html").read_text(encoding="utf-8")


def labelled(*arguments):
    return {tile.label: tile.value for tile in tiles(*arguments, {})}


def test_tiles_show_the_metrics():
    assert labelled(RESULTS, {**METRICS, "eval_runtime": 3.21, "train_loss": 9.0, "train_runtime": 70}, HISTORY) == {
        "F1": "44.4",
        "Exact match": "33.3",
        "F1, has answer": "55.5",
        "Accuracy, no answer": "50.0",
        "Questions": "6",
        "Loss": "0.500",
        "Training": "1 min 10 s",
        "Evaluation": "3.2 s",
    }


def test_missing_metrics_are_computed():
    assert labelled(RESULTS, {}, HISTORY) == {
        "F1": "44.5",
        "Exact match": "33.3",
        "F1, has answer": "41.8",
        "Accuracy, no answer": "50.0",
        "Questions": "6",
        "Loss": "1.500",
        "Training": "3 min 20 s",
    }


def test_scores_of_another_scale_do_not_pass_for_f1():
    metrics = {"eval_avg_passage_f1": 0.57, "eval_avg_minimal_f1": 0.31, "eval_loss": 1.0, "train_loss": 2.0}
    shown = labelled(RESULTS, metrics, [])
    assert shown["F1"] == "44.5", "computed from the answers"
    assert shown["Loss"] == "1.000"


def test_tiles_of_squad_1_have_no_figures_for_missing_answers():
    assert labelled([result()], {"f1": 90.0, "exact_match": 80.0}, []) == {
        "F1": "90.0",
        "Exact match": "80.0",
        "Questions": "1",
    }


def test_only_a_mean_of_the_questions_has_an_interval():
    intervals = {tile.label: tile.interval for tile in tiles(RESULTS, {"eval_f1": 60.0, "eval_exact": 33.33}, [], {})}
    assert intervals["F1"] is None
    assert isinstance(intervals["Exact match"], Interval)
    assert intervals["Exact match"].low < 33.3 < intervals["Exact match"].high


DECLINED = [
    result(number, gold=gold, predicted="", if_answered=Scores(0, 0)) for number, gold in enumerate(["Turku", "", ""])
]


def test_a_run_that_never_answers_is_no_better_than_answering_nothing():
    written = shown(DECLINED, metrics={"eval_f1": 66.7, "eval_exact": 66.7})
    text = "".join(written.text)
    assert "F1 66.7 is no better than answering nothing, which gives 66.7." in text
    assert text.count("answering nothing: 66.7") == 2
    assert len(written.having("baseline")) == 4


def test_a_score_above_its_baselines_is_not_remarked():
    written = shown(metrics={"eval_f1": 60.0, "eval_exact": 40.0})
    assert written.having("remark") == []
    assert len(written.having("baseline")) == 4


@pytest.mark.parametrize(
    ("results", "recorded", "expected"),
    [
        (DECLINED, None, {DECLINING: {"f1": 200 / 3, "exact": 200 / 3}, ANSWERING: {"f1": 0.0, "exact": 0.0}}),
        ([replace(one, if_answered=None) for one in DECLINED], None, {}),
        (DECLINED, {DECLINING: {"f1": 50.0}}, {DECLINING: {"f1": 50.0}}),
        (DECLINED, {}, {}),
        ([result()], None, {}),
        ([], None, {}),
    ],
)
def test_baselines_are_those_of_the_run_or_of_the_rules_of_squad(results, recorded, expected):
    found = baselines(record(results, baselines=recorded))
    assert found.keys() == expected.keys()
    assert all(found[way] == pytest.approx(scores) for way, scores in expected.items())


def test_lead():
    assert lead(RESULTS) == "6 questions, 2 of them without an answer: 2 correct, 4 incorrect."
    assert lead([result()]) == "1 question: 1 correct, 0 incorrect."


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.04, "0.0 s"),
        (9.96, "10.0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 0 s"),
        (158.4, "2 min 38 s"),
        (3599.9, "1 h 0 min"),
        (7500, "2 h 5 min"),
    ],
)
def test_duration(seconds, expected):
    assert duration(seconds) == expected


LOG_HISTORY = [
    {"step": 10, "epoch": 0.5, "loss": 2.0, "learning_rate": 1e-3},
    {"step": 20, "epoch": 1.0, "loss": float("nan"), "learning_rate": 5e-4},
    {"step": 20, "epoch": 1.0, "eval_loss": 1.5, "eval_f1": 40.0},
    {"step": 30, "epoch": 1.5, "loss": 1, "learning_rate": 0.0},
    {"step": 30, "epoch": 1.5, "train_runtime": 12.5},
    {"step": 20, "eval_loss": 1.25},
    {"eval_loss": 9.0},
]


def test_curves_skip_what_is_not_finite_and_keep_the_last_of_a_step():
    assert curve(LOG_HISTORY, "loss") == ((10.0, 2.0), (30.0, 1.0))
    assert curve(LOG_HISTORY, "eval_loss") == ((20.0, 1.25),)
    assert curve(LOG_HISTORY, "eval_exact") == ()


def test_last_value():
    assert last_value(LOG_HISTORY, "train_runtime") == 12.5
    assert last_value(LOG_HISTORY, "eval_loss") == 9.0
    assert last_value(LOG_HISTORY, "grad_norm") is None
