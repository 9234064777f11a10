from types import SimpleNamespace

import datasets
import numpy as np
import pytest

from portico.errors import InputError
from portico.mrc.primeqa import (
    AbstractPostProcessor,
    ConfidenceScorer,
    ELI5FiDPostProcessor,
    NaturalQuestionsPostProcessor,
    ScoreNormalizer,
    TargetType,
)

TOKENS = ["<P>", "Größe", "is", "seven", "</P>"]
BYTES = [(100, 103), (103, 110), (111, 113), (114, 119), (119, 123)]  # the umlauts take two bytes each


def natural_question(**changes):
    example = {
        "example_id": "a",
        "question": "How big?",
        "language": "english",
        "context": [" ".join(TOKENS)],
        "document": {
            "tokens": {"token": TOKENS, "start_byte": [b for b, _ in BYTES], "end_byte": [e for _, e in BYTES]}
        },
        "passage_candidates": {"start_positions": [0, 100, 103], "end_positions": [50, 123, 119]},
        "target": {
            "start_positions": [114],
            "end_positions": [119],
            "passage_indices": [1],
            "yes_no_answer": ["NONE"],
        },
    }
    return {**example, **changes}


def natural_answers(examples, *, start, end):
    offsets, at = [None], 0
    for token in TOKENS:
        offsets.append((at, at + len(token)))
        at += len(token) + 1
    row = {"example_idx": 0, "example_id": "a", "offset_mapping": offsets}
    logits = np.zeros((2, 1, 6), np.float32)
    logits[0, 0, start + 1] = logits[1, 0, end + 1] = 9
    post_processor = NaturalQuestionsPostProcessor(
        k=2, n_best_size=3, max_answer_length=9, single_context_multiple_passages=True
    )
    return post_processor.process_references_and_predictions(examples, [row], (*logits, np.ones((1, 5), np.float32)))


def test_natural_questions_answers_are_in_bytes():
    evaluated = natural_answers([natural_question()], start=1, end=3)
    (prediction,) = evaluated.processed_predictions
    assert evaluated.predictions["a"][0]["span_answer_text"] == "Größe is seven"
    assert (prediction["start_position"], prediction["end_position"]) == (103, 119)
    assert prediction["passage_index"] == 1
    (reference,) = evaluated.label_ids
    assert reference == {
        "example_id": ["a"],
        "language": ["english"],
        "start_position": [114],
        "end_position": [119],
        "passage_index": [1],
        "yes_no_answer": [0],
    }


def test_tokens_may_be_a_list_of_objects():
    rows = [{"token": token, "start_byte": b, "end_byte": e} for token, (b, e) in zip(TOKENS, BYTES, strict=True)]
    evaluated = [
        natural_answers([example], start=1, end=3)
        for example in (natural_question(), natural_question(document={"tokens": rows}))
    ]
    assert evaluated[0].processed_predictions == evaluated[1].processed_predictions


def test_span_outside_all_passages():
    example = natural_question(passage_candidates={"start_positions": [104], "end_positions": [119]})
    (prediction,) = natural_answers([example], start=1, end=3).processed_predictions
    assert prediction["passage_index"] == -1


def test_context_must_be_the_joined_tokens():
    with pytest.raises(
        InputError, match=r"context of example 'a' is not its document's tokens joined by single blanks"
    ):
        natural_answers([natural_question(context=["Größe is seven </P> and more"])], start=1, end=3)


class Words:
    pad_token_id = 0

    def batch_decode(self, ids, skip_special_tokens):
        assert skip_special_tokens
        return [" ".join(f"w{i}" for i in row if i > 0) for row in ids.tolist()]


FID_EXAMPLES = [
    {"example_id": "a", "output": [{"answer": "one"}, {"answer": None}, {"answer": "two"}]},
    {"example_id": "b", "output": []},
]
FID_FEATURES = [{"example_id": "a"}, {"example_id": "a"}, {"example_id": "b"}]
FID_IDS = np.array([[3, 4, -100], [5, -100, -100], [6, 7, 8]])


@pytest.mark.parametrize("wrapped", [FID_IDS, (FID_IDS, None), SimpleNamespace(predictions=FID_IDS)])
def test_generated_answers_are_decoded(wrapped):
    post_processor = ELI5FiDPostProcessor(tokenizer=Words())
    evaluated = post_processor.process_references_and_predictions(FID_EXAMPLES, FID_FEATURES, wrapped)
    assert evaluated.processed_predictions == [
        {"id": "a", "prediction_text": "w5"},
        {"id": "b", "prediction_text": "w6 w7 w8"},
    ]
    assert evaluated.label_ids == [{"id": "a", "answers": ["one", "two"]}, {"id": "b", "answers": []}]
    assert isinstance(post_processor, AbstractPostProcessor)


def test_references_from_datasets():
    examples = datasets.Dataset.from_list(FID_EXAMPLES[:1])
    references = ELI5FiDPostProcessor(tokenizer=Words()).prepare_examples_as_references(examples)
    assert references == [{"id": "a", "answers": ["one", "two"]}]


def test_generated_answers_must_match_the_features():
    post_processor = ELI5FiDPostProcessor(tokenizer=Words())
    with pytest.raises(InputError, match="generated answers for 2 features, but 3 features"):
        post_processor.process(FID_EXAMPLES, FID_FEATURES, FID_IDS[:2])
    with pytest.raises(InputError, match="1 of 2 examples have no features, the first being 'b'"):
        post_processor.process(FID_EXAMPLES, FID_FEATURES[:2], FID_IDS[:2])


def record(start, end, *, types=(0.0, 2.0, 0.0, 0.0, 0.0), **changes):
    values = {
        "span_answer": {"start_position": start, "end_position": end},
        "span_answer_score": 3.0,
        "cls_score": -1.0,
        "start_logit": 4.0,
        "end_logit": 5.0,
        "target_type_logits": list(types),
        "normalized_span_answer_score": 0.75,
        "start_stdev": 0.1,
        "end_stdev": 0.2,
        "query_passage_similarity": 0.3,
        "yes_no_answer": 0,
        "confidence_score": 0.75,
    }
    return {**values, **changes}


def test_confidence_features():
    other = record(24, 44, types=(2.0, 0.0, 0.0, 0.0, 0.0), normalized_span_answer_score=0.25)
    first, second = ConfidenceScorer.make_features([record(17, 42), other])
    assert first.tolist() == [3, -1, 4, 5, 0, 2, 1, 1, pytest.approx(0.8), 0.75, 0.25, 0.1, 0.2, 0.3]
    assert second[[4, 5, 6, 7, 10]].tolist() == [2, 0, 0, 1, -0.25]
    assert ConfidenceScorer.make_features([record(-1, -1)])[0, 8] == 0


def test_confidence_training_data():
    references = [
        {"example_id": ["a", "a"], "start_position": [-1, 24], "end_position": [-1, 44]},
        {"example_id": ["b"], "start_position": [90], "end_position": [95]},
    ]
    predictions = {"a": [record(17, 42), record(0, 3)], "b": [record(17, 42)]}
    features, labels = ConfidenceScorer.make_training_data(predictions, references)
    assert features.shape == (2, 14)
    assert labels.tolist() == [1, 0]


def test_score_normalizer():
    class Sum:
        def predict_proba(self, features):
            return np.stack([np.zeros(len(features)), features.sum(axis=1) / 100], axis=1)

    predictions = {"a": [record(1, 2), record(3, 4)], "b": [record(5, 6, types=(7.0, 0, 0, 0, 0))]}
    normalized = ScoreNormalizer(Sum()).normalize(predictions, {"b": "no"})
    assert normalized["a"][0] == {**predictions["a"][0], "confidence_score": 0.09}
    assert normalized["a"][1] == predictions["a"][1]
    boolean = normalized["b"][0]
    assert (boolean["yes_no_answer"], boolean["span_answer"]["start_position"]) == (TargetType.NO, -1)
    assert boolean["confidence_score"] == 0.17
    assert predictions["b"][0]["yes_no_answer"] == 0


def test_yes_no_annotations():
    labels = ["YES", "no", "None"]
    assert [TargetType.from_bool_label(label) for label in labels] == [TargetType.YES, TargetType.NO, 0]
    with pytest.raises(InputError, match=r"annotation 'maybe' is unknown; use YES, NO or NONE"):
        TargetType.from_bool_label("maybe")


def test_options_of_other_post_processors_are_ignored(caplog):
    made = ELI5FiDPostProcessor(k=1, n_best_size=2, max_answer_length=3, scorer_type="any", tokenizer=Words())
    assert "ELI5FiDPostProcessor ignores the options n_best_size, scorer_type" in caplog.text
    assert made._single_context_multiple_passages is False


def test_custom_post_processor_needs_two_methods():
    class Own(AbstractPostProcessor):
        def process(self, examples, features, predictions):
            return [len(predictions)]

        def prepare_examples_as_references(self, examples):
            return [example["id"] for example in examples]

    evaluated = Own(k=1, max_answer_length=2).process_references_and_predictions([{"id": "a"}], [], [1, 2])
    assert evaluated == ([2], ["a"], [2])
