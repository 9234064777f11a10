from html.parser import HTMLParser

import pytest

from portico.mrc.report import QuestionResult, write_report
from portico.mrc.report.scores import duration, lead, tiles
from portico.mrc.report.settings import settings_tables

VOID = {"meta", "input", "path", "wbr"}
HOSTILE = "</p><script>alert('x')</script><img src=http://example.org/x onerror=y>\"'&"
CONTEXT = f"Zoë Łuk {HOSTILE} was born in Turku, تورکو, in 1901."


class Page(HTMLParser):
    """Collects what a page is made of, and fails on tags that do not nest."""

    def __init__(self, path):
        super().__init__()
        self.open, self.tags, self.text = [], [], []
        self.feed(path.read_text(encoding="utf-8"))
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] != ["script"] and self.open[-1:] != ["style"]:
            self.text.append(data)

    def having(self, css_class):
        return [attrs for _, attrs in self.tags if css_class in (attrs.get("class") or "").split()]


def result(number=0, *, gold="Turku", predicted="Turku", f1=None, **changes):
    start = CONTEXT.index(predicted) if predicted else None
    fields = {
        "id": f"q{number}",
        "title": HOSTILE,
        "question": f"Where was Zoë born? {HOSTILE}",
        "context": CONTEXT,
        "golds": ((gold, CONTEXT.index(gold)),) if gold else (),
        "predicted_text": predicted,
        "predicted_start": start,
        "predicted_end": None if start is None else start + len(predicted),
        "probability": 0.9,
        "null_odds": -1.5,
        "exact": float(gold == predicted),
        "f1": float(gold == predicted) if f1 is None else f1,
        "nbest": ((predicted, 0.9), ("", 0.1)),
    }
    return QuestionResult(**{**fields, **changes})


RESULTS = [
    result(0),
    result(1, predicted="Łuk"),
    result(2, predicted="in Turku", f1=0.67),
    result(3, predicted=""),
    result(4, gold="", predicted="1901"),
    result(5, gold="", predicted=""),
]
METRICS = {"eval_exact": 33.3, "eval_f1": 44.4, "eval_HasAns_f1": 55.5, "eval_NoAns_exact": 50.0, "eval_loss": 0.5}
HISTORY = [
    {"step": 10, "loss": 2.0, "learning_rate": 1e-3},
    {"step": 20, "loss": 1.0, "learning_rate": 5e-4},
    {"step": 20, "eval_loss": 1.5, "eval_f1": 40.0, "eval_exact": 30.0},
    {"step": 20, "train_runtime": 200.0},
]


@pytest.fixture
def page(tmp_path):
    def write(results=RESULTS, metrics=METRICS, log_history=HISTORY, settings=None, title="A title"):
        path = tmp_path / "report.html"
        write_report(path, results, metrics=metrics, log_history=log_history, settings=settings or {}, title=title)
        return Page(path)

    return write


def test_the_page_is_balanced_and_needs_nothing_else(page):
    written = page(settings={HOSTILE: {HOSTILE: HOSTILE}}, title=HOSTILE)
    for tag, attrs in written.tags:
        assert tag not in {"link", "img", "iframe", "object", "embed", "base", "form", "a"}
        assert not {"src", "href", "srcset", "action"} & attrs.keys()
        assert not [name for name in attrs if name.startswith("on")]
    assert [tag for tag, _ in written.tags].count("script") == 1
    (policy,) = [attrs["content"] for _, attrs in written.tags if "http-equiv" in attrs]
    assert policy.startswith("default-src 'none'")


def test_style_and_script_name_no_address(tmp_path):
    path = tmp_path / "report.html"
    write_report(path, [], metrics={}, log_history=[], settings={}, title="")
    assert not [word for word in ("http:", "https:", "//cdn", "url(", "@import") if word in path.read_text()]


def test_hostile_text_is_shown_as_text(page):
    written = page([result()], settings={HOSTILE: HOSTILE}, title=HOSTILE)
    assert "".join(written.text).count(HOSTILE) == 7  # title, h1, question, passage, article, setting name and value


def test_every_section_is_there(page):
    written = page(settings={"args": {"seed": 1}})
    assert [attrs["id"] for tag, attrs in written.tags if tag == "section" and "id" in attrs] == [
        "breakdown",
        "learning",
        "questions",
        "settings",
    ]
    assert len(written.having("chart")) == 3
    assert len(written.having("groups")) == 3


def test_cards_are_listed_once_by_outcome_and_the_first_are_open(page):
    written = page()
    cards = written.having("card")
    assert [card["data-outcome"] for card in cards] == [
        "wrong-span",
        "missed",
        "answered-unanswerable",
        "boundary",
        "exact",
    ]
    assert ["open" in card for card in cards] == [True, True, True, False, False]
    filters = [attrs["data-outcome"] for tag, attrs in written.tags if tag == "button" and "data-outcome" in attrs]
    assert set(filters) == {card["data-outcome"] for card in cards}


def test_long_result_sets_show_forty_of_the_worst(page):
    written = page([result(number, predicted="Łuk") for number in range(60)])
    assert len(written.having("card")) == 40


def test_a_single_question(page):
    written = page([result()], metrics={}, log_history=[])
    assert len(written.having("card")) == 1
    assert written.having("chart") == []


def test_no_question_at_all(page):
    written = page([], metrics={}, log_history=[])
    assert "No question was evaluated." in written.text
    assert not [attrs for tag, attrs in written.tags if tag == "section"]


def test_a_history_without_evaluation_gives_loss_and_learning_rate(page):
    written = page(log_history=HISTORY[:2])
    assert [attrs["aria-label"].split(":")[0] for attrs in written.having("plot")] == ["Loss", "Learning rate"]


def test_surrogates_do_not_lose_the_report(page):
    written = page([result(context="Turku \ud800", golds=(("Turku", 0),), predicted_start=0, predicted_end=5)])
    assert "Turku ?" in "".join(written.text)


def shown(*arguments):
    return {tile.label: tile.value for tile in tiles(*arguments)}


def test_tiles_take_the_metrics():
    assert shown(RESULTS, {**METRICS, "eval_runtime": 3.21, "train_loss": 9.0, "train_runtime": 70}, HISTORY) == {
        "F1": "44.4",
        "Exact match": "33.3",
        "F1, has answer": "55.5",
        "Accuracy, no answer": "50.0",
        "Questions": "6",
        "Loss": "0.500",
        "Training": "1 min 10 s",
        "Evaluation": "3.2 s",
    }


def test_tiles_are_computed_where_metrics_lack():
    assert shown(RESULTS, {}, HISTORY) == {
        "F1": "44.5",
        "Exact match": "33.3",
        "F1, has answer": "41.8",
        "Accuracy, no answer": "50.0",
        "Questions": "6",
        "Loss": "1.500",
        "Training": "3 min 20 s",
    }


def test_tiles_of_squad_1_have_no_figures_for_missing_answers():
    assert shown([result()], {"f1": 90.0, "exact_match": 80.0}, []) == {
        "F1": "90.0",
        "Exact match": "80.0",
        "Questions": "1",
    }


def test_lead():
    assert lead(RESULTS) == "6 questions, 2 of them without an answer: 2 right, 4 to look at."
    assert lead([result()]) == "1 question: 1 right, 0 to look at."


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


def test_settings_become_one_table_a_group():
    html = settings_tables(
        {"seed": 42, "args": {"lr": 1e-3, "optim": {"name": "adamw"}, "x": None, "y": [1, 2]}, "e": {}}
    )
    assert html.count("<table") == 2
    for name, value in {"seed": 42, "lr": 0.001, "optim.name": "adamw", "x": "none", "y": "1, 2"}.items():
        assert f'<th scope="row">{name}</th><td>{value}</td>' in html
    assert settings_tables({}) == ""
