import sys
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from portico.errors import InputError, MissingPackageError
from portico.mrc import Rouge
from portico.mrc.metrics.rouge import kilt_rouge_l

WORDS = st.lists(st.sampled_from(["a", "b", "c", "d", "A"]), min_size=1, max_size=5, unique=True)


def records(text, *golds):
    return [{"id": "a", "prediction_text": text}], [{"id": "a", "answers": {"text": list(golds)}}]


def scores_of(text, *golds, **options):
    metric = Rouge(**options)
    metric.update(*records(text, *golds))
    return metric.compute()


@given(WORDS, WORDS)
@settings(max_examples=200, deadline=None)
def test_kilt_rouge_of_single_sentences_is_the_longest_common_subsequence(words, gold):
    """Every subsequence is looked at; no word comes twice, so it does not matter which of the longest is found."""

    def is_subsequence(part, whole):
        rest = iter(whole)
        return all(word in rest for word in part)

    longest = max(
        n for n in range(len(words) + 1) if any(is_subsequence(part, gold) for part in combinations(words, n))
    )
    precision, recall = longest / len(words), longest / len(gold)
    expected = 2 * precision * recall / (precision + recall + 1e-8)
    assert kilt_rouge_l(" ".join(words), " ".join(gold)) == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize(
    ("text", "gold", "shared", "num_words", "num_gold"),
    [
        ("a b c", "a b c", 3, 3, 3),
        ("a a a b", "a b b", 2, 2, 2),  # a word counts once
        ("b. a", "a b", 2, 2, 2),  # of each sentence the longest
        ("b a", "a b", 1, 2, 2),
        ("Mill", "mill", 0, 1, 1),  # in the case it is in
        (" ", " . ", 1, 1, 1),  # blanks are a sentence of an empty word
        ("a , b", "a b", 2, 3, 2),
        ("文字", "文字", 1, 1, 1),
    ],
)
def test_kilt_rouge_by_hand(text, gold, shared, num_words, num_gold):
    precision, recall = shared / num_words, shared / num_gold
    assert kilt_rouge_l(text, gold) == 2.0 * ((precision * recall) / (precision + recall + 1e-8))


@pytest.mark.parametrize(("text", "gold"), [("", "a"), ("a", ""), ("...", "a"), ("", "")])
def test_kilt_rouge_of_an_empty_text_is_0(text, gold):
    assert kilt_rouge_l(text, gold) == 0.0


def test_kilt_rouge_takes_long_texts():
    words = [str(i) for i in range(1500)]
    assert kilt_rouge_l(" ".join(words), " ".join(words)) == pytest.approx(1.0)


def test_the_best_gold_answer_counts_for_each_type():
    scores = scores_of("the old mill", "river", "an old mill stands", "old")
    assert scores["rouge1"] == pytest.approx(100 * 2 * (2 / 3) * (2 / 4) / (2 / 3 + 2 / 4))
    assert scores["rouge2"] == pytest.approx(100 * 2 * (1 / 2) * (1 / 3) / (1 / 2 + 1 / 3))
    assert scores["gen_len"] == 2.0


def test_scores_are_those_of_google():
    from rouge_score.rouge_scorer import RougeScorer

    text, golds = "The mills ran.\nThey stopped in 1990.", ["They stopped running.\nThe mill did.", "In 1990 it ran"]
    scores = scores_of(text, *golds)
    google = RougeScorer(["rouge1", "rouge2", "rougeL", "rougeLsum"], use_stemmer=True).score_multi(golds, text)
    for name, score in google.items():
        assert scores[name] == 100 * score.fmeasure > 0
    assert scores_of(text, *golds, use_stemmer=False)["rouge1"] < scores["rouge1"]


def test_sentences_are_split_by_the_given_function():
    text, gold = "one two. three four", "three four. one two"
    whole = scores_of(text, gold, rouge_types=["rougeLsum"])
    split = scores_of(text, gold, rouge_types=["rougeLsum"], split_sentences=lambda text: text.split(". "))
    assert whole["rougeLsum"] == 50.0
    assert split["rougeLsum"] == 100.0


def test_google_types_need_rouge_score(monkeypatch):
    monkeypatch.setitem(sys.modules, "rouge_score.rouge_scorer", None)
    with pytest.raises(
        MissingPackageError,
        match=r"rouge-score, which computes rouge1, rougeL, is not installed.* `rouge_types=\[kilt_rougeL\]`",
    ):
        Rouge(["rouge1", "rougeL"])
    assert scores_of("a", "a", rouge_types=["kilt_rougeL"])["kilt_rougeL"] == pytest.approx(100.0)


@pytest.mark.parametrize("rouge_types", [["rouge3"], [], "rouge1"])
def test_unknown_types_are_rejected(rouge_types):
    with pytest.raises(
        InputError, match=r"expected a list with any of rouge1, rouge2, rougeL, rougeLsum, kilt_rougeL"
    ):
        Rouge(rouge_types)


def test_records_that_cannot_be_scored_are_rejected():
    with pytest.raises(InputError, match="'a' has no gold answer; leave it out"):
        scores_of("a")
    with pytest.raises(InputError, match="1 of 1 references have no prediction"):
        Rouge().update([], records("a", "a")[1])
    metric = Rouge()
    metric.update([], [])
    with pytest.raises(InputError, match="No question was scored"):
        metric.compute()
