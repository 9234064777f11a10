"""Labels, types and subsampling where questions have passages, several contexts and several annotators."""

import numpy as np
import pytest

from mrc_data import TOKENIZERS, make_examples
from portico.errors import InputError
from portico.mrc.features.featurizer import Featurizer
from portico.mrc.features.labels import SubsampleType, Subsampling, TargetType

TOKENIZER = TOKENIZERS["bert"]
TEXT = "the river runs under an old bridge of stones and the mill was far away"
BRIDGE = (TEXT.index("bridge"), TEXT.index("bridge") + 6)
PASSAGES = {"start_positions": [0, 21, 45], "end_positions": [20, 44, len(TEXT)]}
ALL = len(TEXT)


def annotated(*annotations, context=TEXT, **more):
    """An example with one `(start, end, passage, yes_no)` for each annotator."""
    names = ("start_positions", "end_positions", "passage_indices", "yes_no_answer")
    target = dict(zip(names, map(list, zip(*annotations, strict=True)), strict=True))
    starts = [start for start, *_ in annotations if start >= 0]
    answers = {"text": [TEXT[slice(*BRIDGE)] for _ in starts], "answer_start": starts}
    return {"id": "a", "question": "where", "context": context, "answers": answers, "target": target, **more}


def rows(example, **options):
    settings = {"max_seq_length": 14, "doc_stride": 2, "target_types": True, **options}
    return list(Featurizer(TOKENIZER, **settings).train_features([example]))


def types(example, **options):
    return [TargetType(row["target_type"]).name for row in rows(example, **options)]


def test_windows_have_span_passage_or_no_answer():
    example = annotated((*BRIDGE, 1, "NONE"), passage_candidates=PASSAGES)
    found = types(example)
    assert found.count("SPAN_ANSWER") == 1
    assert set(found) == {"SPAN_ANSWER", "PASSAGE_ANSWER", "NO_ANSWER"}


@pytest.mark.parametrize(("yes_no", "name"), [("YES", "YES"), ("NO", "NO"), ("NONE", "PASSAGE_ANSWER")])
def test_answers_without_a_span(yes_no, name):
    example = annotated((-1, -1, 2, yes_no), passage_candidates=PASSAGES)
    assert set(types(example)) == {name, "NO_ANSWER"}
    assert all(row["start_positions"] == row["end_positions"] == 0 for row in rows(example))


@pytest.mark.parametrize(
    ("annotations", "name"),
    [
        ([(-1, -1, -1, "NONE"), (*BRIDGE, 1, "NONE")], "SPAN_ANSWER"),
        ([(-1, -1, 2, "NONE"), (-1, -1, 1, "YES")], "YES"),
        ([(-1, -1, -1, "NONE"), (-1, -1, 1, "NONE")], "PASSAGE_ANSWER"),
        ([(-1, -1, -1, "NONE")], "NO_ANSWER"),
        ([(*BRIDGE, -1, "NONE")], "SPAN_ANSWER"),
    ],
)
def test_most_informative_annotator_counts(annotations, name):
    assert types(annotated(*annotations, passage_candidates=PASSAGES), max_seq_length=100) == [name]


def test_without_target_the_passage_is_the_answer():
    example = annotated((*BRIDGE, 1, "NONE"))
    del example["target"]
    found = types(example)
    # Windows that hold a part of the answer, or end where it begins, know that it is near.
    near = {position for position, name in enumerate(found) if name != "NO_ANSWER"}
    assert found.count("SPAN_ANSWER") == 1
    assert near == set(range(min(near), max(near) + 1)) < set(range(len(found)))


def test_windows_have_the_index_of_their_context():
    contexts = ["the mill was far away", TEXT, "an old bridge"]
    example = annotated((*BRIDGE, 1, "NONE"), context=contexts)
    featurizer = Featurizer(TOKENIZER, max_seq_length=100, doc_stride=2, target_types=True)
    assert [row["target_type"] for row in featurizer.train_features([example])] == [0, 1, 0]
    features = featurizer.eval_features([example, {**example, "id": "b", "context": TEXT}])
    assert features.context_index.tolist() == [row["context_idx"] for row in features] == [0, 1, 2, 0]
    assert features.example_id == ["a", "a", "a", "b"]
    few = Featurizer(TOKENIZER, max_seq_length=100, doc_stride=2, max_contexts=2, target_types=True)
    assert [row["target_type"] for row in few.train_features([example])] == [0, 1]


def test_max_q_char_len_cuts_characters():
    example = annotated((-1, -1, -1, "NONE"))
    long, short = ({**example, "question": question} for question in ("  where is it", "where"))
    assert rows(long, max_q_char_len=5) == rows(short)


def test_subsampling_keeps_answers_and_is_seeded():
    examples = make_examples(3)

    def kept(*settings):
        subsampling = Subsampling(*settings)
        features = Featurizer(TOKENIZER, max_seq_length=32, doc_stride=4, subsampling=subsampling, target_types=True)
        return list(features.train_features(examples))

    everything, positives = kept(1, 1, 0), kept(0, 0, 0)
    assert positives == [row for row in everything if row["target_type"]]
    some = kept(0.5, 0.5, 0)
    assert len(positives) < len(some) < len(everything)
    assert some == [row for row in everything if row in some]
    np.random.random()
    assert kept(0.5, 0.5, 0) == some != kept(0.5, 0.5, 1)


def test_subsampling_has_a_probability_per_type():
    types_F = np.array([SubsampleType.POSITIVE, SubsampleType.NEGATIVE_HAS_ANSWER, SubsampleType.NEGATIVE_NO_ANSWER])
    assert Subsampling(0, 1, 0).select(types_F).tolist() == [0, 2]
    assert Subsampling(1, 0, 0).select(types_F).tolist() == [0, 1]
    drawn = len(Subsampling(0.25, 1, 0).select(np.full(10000, SubsampleType.NEGATIVE_HAS_ANSWER))) / 10000
    assert 0.23 < drawn < 0.27


@pytest.mark.parametrize(("settings", "name"), [((1.5, 0), "has"), ((0, -0.1), "no"), ((0, float("nan")), "no")])
def test_invalid_probability_is_refused(settings, name):
    with pytest.raises(InputError, match=f"`negative_sampling_prob_when_{name}_answer=.*` is not a probability"):
        Subsampling(*settings, 0)


def test_answer_without_offset_is_refused():
    example = {"id": "a", "question": "who", "context": TEXT, "answers": {"text": ["Ana"], "answer_start": [-1]}}
    with pytest.raises(InputError, match=r"The answer 'Ana' of example 'a' has no known position .*mrc_fid"):
        rows(example)
