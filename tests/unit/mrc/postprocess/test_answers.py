"""What portico's rules add to those of SQuAD: answer types, passages, several contexts, exhaustive search."""

import itertools
import json
import sys

import numpy as np
import pytest

from portico.errors import InputError
from portico.mrc.features.labels import TargetType
from portico.mrc.postprocess import BeamPostProcessor, SpanPostProcessor
from portico.mrc.postprocess import answers as answers_module
from portico.mrc.postprocess.ranking import SupportedSpanScorers, initialize_scorer, rank_spans

CONTEXTS = ["aa bb cc dd ee ff gg hh", "ii bb kk ll mm nn oo pp"]
WORDS = [(3 * w, 3 * w + 2) for w in range(8)]
LENGTH = 10


def row(example_id, context, words=WORDS):
    return {"example_id": example_id, "context_idx": context, "offset_mapping": [None, *words, None]}


def post_process(examples, rows, starts, ends, types=None, **settings):
    options = {"version_2_with_negative": False, **settings}
    post_processor = SpanPostProcessor(examples, rows, **options)
    post_processor.update(np.array(starts, np.float32), np.array(ends, np.float32), np.arange(len(rows)), types)
    return post_processor.compute()


def peak(token, height=9.0):
    return [height if t == token else 0.0 for t in range(LENGTH)]


def logits(rows, seed=0):
    return np.random.default_rng(seed).normal(size=(2, len(rows), LENGTH)).astype(np.float32)


@pytest.mark.parametrize("rules", [{}, {"ties": "hf"}, {"scorer": initialize_scorer("score_diff_based")}])
def test_answer_comes_from_the_best_of_several_contexts(rules):
    examples = [{"id": "a", "context": CONTEXTS}]
    rows = [row("a", 0), row("a", 1)]
    answers = post_process(examples, rows, [peak(1, 5.0), peak(3)], [peak(2, 5.0), peak(4)], **rules)
    assert answers.predictions == {"a": "kk ll"}
    assert answers.spans == {"a": (6, 11)}
    assert (answers.context_indices, answers.passages) == ({"a": 1}, {"a": 1})
    for candidate in answers.candidates["a"]:
        assert candidate.text == CONTEXTS[candidate.context_index][candidate.start : candidate.end]


@pytest.mark.parametrize("scorer_type", [None, *SupportedSpanScorers])
def test_spans_of_many_windows_are_ranked_as_if_all_were_sorted(scorer_type):
    rng = np.random.default_rng(3)
    windows = [9, 1, 4, 7]
    examples = [{"id": f"{e}", "context": CONTEXTS[0]} for e in range(len(windows))]
    rows = [row(f"{e}", 0) for e, count in enumerate(windows) for _ in range(count)]
    # Coarse scores, so that windows have equal ones at the limit.
    starts, ends = rng.integers(-2, 3, (2, len(rows), LENGTH)).astype(np.float32)
    types = rng.integers(-2, 3, (len(rows), 5)).astype(np.float32)
    scorer = scorer_type and initialize_scorer(scorer_type)
    processor = SpanPostProcessor(
        examples, rows, version_2_with_negative=False, ties="hf", scorer=scorer, n_best_size=5, max_answer_length=4
    )
    processor.update(starts, ends, np.arange(len(rows)), types)
    candidates, example_F = processor._all_candidates()
    found = rank_spans(candidates, processor._search, scorer=scorer)
    expected = []
    for e in range(len(windows)):
        spans = []
        for f in np.flatnonzero(example_F == e):
            for i, j in itertools.product(range(5), range(5)):
                first, last = candidates.start_token_Fn[f, i], candidates.end_token_Fn[f, j]
                in_context = {first, last} <= {t for t, word in enumerate(rows[f]["offset_mapping"]) if word}
                if in_context and first <= last < first + 4:
                    score = float(starts[f, first]) + float(ends[f, last])
                    if scorer:
                        score = scorer(score, float(starts[f, 0]) + float(ends[f, 0]), types[f].astype(np.float64))
                    spans.append((-score, f, i, j))
        expected += [(place, -score) for score, *place in sorted(spans)[:5]]
    assert found.spans.place_N3.tolist() == [place for place, _ in expected]
    assert found.spans.score_N.tolist() == [score for _, score in expected]


def test_beam_search_answers_from_the_best_of_several_contexts():
    post_processor = BeamPostProcessor(
        [{"id": "a", "context": CONTEXTS}], [row("a", 0), row("a", 1)], version_2_with_negative=False
    )
    scores, tokens = np.array([[-3.0], [-1.0]], np.float32), np.array([[3], [3]])
    post_processor.update_outputs((scores, tokens, scores, tokens + 1, scores[:, 0]), np.arange(2))
    answers = post_processor.compute()
    assert (answers.predictions, answers.context_indices) == ({"a": "kk ll"}, {"a": 1})


def test_literal_empty_is_in_no_other_context():
    examples = [{"id": "a", "context": CONTEXTS}, {"id": "b", "context": CONTEXTS[0]}]
    rows = [row("a", 1), row("a", 0), row("b", 0, words=[None] * 8)]
    answers = post_process(examples, rows, *logits(rows), ties="hf")
    assert (answers.predictions["b"], answers.context_indices["b"]) == ("empty", 0)


def test_each_text_is_listed_once():
    examples = [{"id": "a", "context": CONTEXTS}]
    rows = [row("a", 0), row("a", 1), row("a", 1)]
    starts, ends = logits(rows)
    starts[:, 2], ends[:, 2] = 9.0, 9.0
    answers = post_process(examples, rows, starts, ends)
    texts = [record["text"] for record in answers.nbest["a"]]
    assert len(set(texts)) == len(texts) > 5
    assert texts[0] == "bb"
    assert sum(record["probability"] for record in answers.nbest["a"]) == pytest.approx(1)


@pytest.mark.parametrize("ties", ["deterministic", "hf"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_files_hold_what_json_writes(ties, dtype, tmp_path, monkeypatch):
    monkeypatch.setattr(answers_module, "_EXAMPLES_AT_ONCE", 3)
    # At the ends and inside of what is written at once: questions without any span, and one whose scores overflow.
    without, overflowing = {0, 4, 5, 7}, 2
    examples = [{"id": f'"}},\n            {{%s\u2028{e}\u00e9', "context": 'a"\\ b\n \u00fc'} for e in range(8)]
    words = [(0, 3), (4, 5), (7, 8)]
    rows = [{**row(one["id"], 0, [None] * 8 if e in without else words)} for e, one in enumerate(examples)]
    starts, ends = (side.round(1).astype(dtype) for side in logits(rows))
    starts[3] *= 0  # zeros of both signs
    starts[overflowing] = ends[overflowing] = np.finfo(dtype).max
    starts[overflowing, 1:] = np.finfo(dtype).max - 3 * np.arange(LENGTH - 1).astype(dtype)
    processor = SpanPostProcessor(examples, rows, version_2_with_negative=ties == "hf", ties=ties)
    processor.update(starts, ends, np.arange(len(rows)))
    with np.errstate(over="ignore", invalid="ignore"):
        answers = processor.compute()
    answers.write(tmp_path, "eval")
    written = {"predictions": answers.predictions, "nbest_predictions": answers.nbest, "null_odds": answers.null_odds}
    for name, values in written.items():
        if values is not None:
            assert (tmp_path / f"eval_{name}.json").read_text() == json.dumps(values, indent=4) + "\n", name
    assert [key for key, records in answers.nbest.items() if not records] == (
        [examples[e]["id"] for e in sorted(without)] if ties == "deterministic" else []
    )


@pytest.mark.parametrize("with_arrow", [True, False])
def test_numbers_of_all_sizes_are_written_as_json_writes_them(with_arrow, monkeypatch):
    if with_arrow:
        pytest.importorskip("pyarrow.compute")
    else:
        monkeypatch.delitem(sys.modules, "pyarrow", raising=False)
    powers = 10.0 ** np.arange(-320, 309)
    random = np.random.default_rng(0).integers(0, 2**64, 20_000, np.uint64).view(np.float64)
    near = np.random.default_rng(1).normal(0, 5, 20_000).astype(np.float32)
    for values in (powers, -np.nextafter(powers, 0), random[np.isfinite(random)], near, np.exp(4 * near)):
        assert answers_module._encode(values) == [json.dumps(value) for value in values.tolist()]


def test_long_answer_is_the_passage_around_the_short_one():
    passages = {"start_positions": [0, 5, 0], "end_positions": [5, 23, 23]}
    examples = [{"id": "a", "context": CONTEXTS[0], "passage_candidates": passages}]
    inside = post_process(examples, [row("a", 0)], [peak(3)], [peak(4)])
    assert (inside.predictions, inside.passages) == ({"a": "cc dd"}, {"a": 1})
    across = post_process(examples, [row("a", 0)], [peak(1)], [peak(4)])
    assert (across.predictions, across.passages) == ({"a": "aa bb cc dd"}, {"a": 2})
    null = post_process(
        examples, [row("a", 0)], [peak(3)], [peak(4)], version_2_with_negative=True, null_score_diff_threshold=-99.0
    )
    assert (null.predictions, null.passages, null.answer_types) == ({"a": ""}, {"a": -1}, {"a": TargetType.NO_ANSWER})


@pytest.mark.parametrize(
    ("target_type", "text", "passage"),
    [
        (TargetType.NO_ANSWER, "aa", 0),
        (TargetType.SPAN_ANSWER, "aa", 0),
        (TargetType.PASSAGE_ANSWER, "", 0),
        (TargetType.YES, "yes", 0),
        (TargetType.NO, "no", 0),
    ],
)
def test_window_with_the_clearest_evidence_decides_the_answer_type(target_type, text, passage):
    examples = [{"id": "a", "context": CONTEXTS[0]}]
    types = np.zeros((2, 5), np.float32)
    types[0, TargetType.NO_ANSWER] = 2.0
    types[1, [TargetType.NO_ANSWER, target_type]] = [1.0, 3.0]
    answers = post_process(examples, [row("a", 0)] * 2, [peak(1)] * 2, [peak(1)] * 2, types)
    assert answers.predictions == {"a": text}
    assert answers.passages == {"a": passage}
    is_span = target_type in (TargetType.NO_ANSWER, TargetType.SPAN_ANSWER)
    assert answers.spans == {"a": (0, 2) if is_span else None}
    assert answers.answer_types == {"a": TargetType.SPAN_ANSWER if is_span else target_type}


def test_exhaustive_search_finds_the_best_of_all_spans():
    examples = [{"id": f"{e}", "context": CONTEXTS[0]} for e in range(70)]
    rows = [row(f"{e}", 0, WORDS[: 2 + e % 7]) for e in range(70)]
    starts, ends = logits(rows)
    starts[:5], ends[:5] = np.round(starts[:5]), np.round(ends[:5])
    answers = post_process(examples, rows, starts, ends, search="exhaustive", n_best_size=3, max_answer_length=4)
    differs = 0
    usual = post_process(examples, rows, starts, ends, n_best_size=3, max_answer_length=4)
    for e, feature in enumerate(rows):
        num_words = len(feature["offset_mapping"]) - 2
        spans = [(s, t) for s in range(1, num_words + 1) for t in range(s, min(s + 4, num_words + 1))]
        best = sorted(spans, key=lambda span, e=e: -(starts[e, span[0]] + ends[e, span[1]]))[:3]
        expected = [CONTEXTS[0][WORDS[s - 1][0] : WORDS[t - 1][1]] for s, t in best]
        assert [record["text"] for record in answers.nbest[f"{e}"]] == expected
        differs += [record["text"] for record in usual.nbest[f"{e}"]] != expected
    assert differs > 10


@pytest.mark.parametrize(
    "settings",
    [
        {"search": "exhaustive", "ties": "hf"},
        {"search": "exhaustive", "scorer": initialize_scorer("score_diff_based")},
        {"search": "deep"},
    ],
)
def test_exhaustive_search_needs_portico_rules(settings):
    search = settings["search"]
    with pytest.raises(InputError, match=rf"`search={search}` cannot be used; set it to top, or to exhaustive where"):
        SpanPostProcessor([{"id": "a", "context": "x"}], [row("a", 0)], version_2_with_negative=False, **settings)


def test_scorer_ranks_spans():
    examples = [{"id": "a", "context": CONTEXTS[0]}]
    starts, ends = [peak(1), peak(3, 8.0)], [peak(1), peak(3, 8.0)]
    starts[0][0] = 5.0  # this window would rather have no answer
    scorer = initialize_scorer("score_diff_based")
    plain = post_process(examples, [row("a", 0)] * 2, starts, ends)
    scored = post_process(examples, [row("a", 0)] * 2, starts, ends, scorer=scorer, version_2_with_negative=True)
    assert (plain.predictions, scored.predictions) == ({"a": "aa"}, {"a": "cc"})
    assert scored.candidates["a"][0].score == 16.0
    assert scored.null_odds is None
    weighted = initialize_scorer("weighted_sum_target_type_and_score_diff")
    with pytest.raises(InputError, match="The model returned no answer-type logits"):
        post_process(examples, [row("a", 0)] * 2, starts, ends, scorer=weighted)
