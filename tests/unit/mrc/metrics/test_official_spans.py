"""TyDi QA and Natural Questions, in the form of their official files, against the rules of the official scripts."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from portico.mrc import NqF1, TydiF1
from unit.mrc.metrics.official_spans import nq, tydi

SCORES = st.sampled_from([-3.0, 0.0, 0.0, 1.5, 1e300, float("inf"), float("-inf")])
YES_NO = st.sampled_from(["NONE", "none", "YES", "no"])
ANY_LANGUAGE = ("arabic", "english", "thai", "klingon", "中文", "")


def span(draw, least=0):
    """A span of at least so many bytes, often the null span; all are near each other, so that they overlap."""
    if draw(st.booleans()):
        return (-1, -1)
    start = draw(st.integers(0, 6))
    return (start, start + draw(st.integers(least, 5)))


@st.composite
def tydi_records(draw, languages=ANY_LANGUAGE):
    predictions, references = [], []
    for key in draw(st.lists(st.integers(0, 9), min_size=1, max_size=8, unique=True)):
        annotations = []
        for _ in range(draw(st.integers(0, 4))):
            start, end = span(draw, least=1)
            annotations.append(
                {
                    "passage_answer": {"candidate_index": draw(st.integers(-1, 1))},
                    "minimal_answer": {"plaintext_start_byte": start, "plaintext_end_byte": end},
                    "yes_no_answer": draw(YES_NO),
                }
            )
        references.append(
            {"example_id": key, "language": draw(st.sampled_from(languages)), "annotations": annotations}
        )
        said = draw(YES_NO)
        start, end = span(draw) if said.lower() == "none" else (-1, -1)
        predictions.append(
            {
                "example_id": key,
                "passage_answer_index": draw(st.integers(-1, 1)),
                "passage_answer_score": draw(SCORES),
                "minimal_answer": {"start_byte_offset": start, "end_byte_offset": end},
                "minimal_answer_score": draw(SCORES),
                "yes_no_answer": said,
            }
        )
    return draw(st.permutations(predictions)), references


def nq_span(draw):
    bytes_, tokens = span(draw, least=1), span(draw, least=1)
    names = ("start_byte", "end_byte", "start_token", "end_token")
    return dict(zip(names, (*bytes_, *tokens), strict=True))


@st.composite
def nq_records(draw):
    predictions, references = [], []
    for key in draw(st.lists(st.integers(0, 9), min_size=1, max_size=6, unique=True)):

        def answer(shorts, said):
            return {
                "long_answer": nq_span(draw),
                "short_answers": [nq_span(draw) for _ in range(shorts)],
                "yes_no_answer": said,
            }

        annotations = [answer(draw(st.integers(0, 2)), draw(YES_NO)) for _ in range(draw(st.integers(0, 4)))]
        references.append({"example_id": key, "annotations": annotations})
        said = draw(YES_NO)
        prediction = answer(draw(st.integers(0, 2)) if said.lower() == "none" else 0, said)
        if annotations and said.lower() == "none" and draw(st.booleans()):
            # Else hardly any set of spans would be right.
            prediction = {**draw(st.sampled_from(annotations)), "yes_no_answer": "NONE"}
        scores = {"long_answer_score": draw(SCORES), "short_answers_score": draw(SCORES)}
        predictions.append({**prediction, "example_id": key, **scores})
    return draw(st.permutations(predictions)), references


def scores_of(metric, predictions, references):
    metric.update(predictions, references)
    return metric.compute()


@given(tydi_records())
@settings(max_examples=300, deadline=None)
def test_tydi_is_the_official_script(data):
    assert scores_of(TydiF1(include_english=False), *data) == pytest.approx(tydi(*data), abs=1e-12)


@given(tydi_records())
@settings(max_examples=50, deadline=None)
def test_tydi_with_english_counts_all_languages(data):
    assert scores_of(TydiF1(include_english=True), *data) == pytest.approx(
        tydi(*data, include_english=True), abs=1e-12
    )


@given(nq_records())
@settings(max_examples=300, deadline=None)
def test_nq_is_the_official_script(data):
    assert scores_of(NqF1(), *data) == pytest.approx(nq(*data), abs=1e-12)
