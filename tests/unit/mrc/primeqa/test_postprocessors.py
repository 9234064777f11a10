import json
from pathlib import Path
from types import SimpleNamespace

import datasets
import numpy as np
import pytest

from portico.errors import InputError
from portico.mrc.primeqa import (
    AbstractPostProcessor,
    ConfidenceScorer,
    ELI5FiDPostProcessor,
    ExtractivePipelinePostProcessor,
    ExtractivePostProcessor,
    NaturalQuestionsPostProcessor,
    ScoreNormalizer,
    SQUADPostProcessor,
    SupportedSpanScorers,
    TargetType,
    initialize_scorer,
)

LENGTH = 24
SETTINGS = {"k": 5, "n_best_size": 4, "max_answer_length": 6, "single_context_multiple_passages": True}
SCORERS = [scorer.value for scorer in SupportedSpanScorers]


def make_data(*, single_context, num_examples=25, seed=0):
    """Return examples and their features: one context of four passages, or three contexts."""
    rng = np.random.default_rng(seed)
    examples, rows = [], []
    for e in range(num_examples):
        contexts = [" ".join(rng.choice(["ab", "c", "déf"], 30)) for _ in range(1 if single_context else 3)]
        step = len(contexts[0]) // 4
        begins = [step * p for p in range(4)]
        examples.append(
            {
                "example_id": f"id {e}",
                "question": f"Why {e}?",
                "context": contexts,
                "language": "finnish",
                "target": {
                    "start_positions": [0, -1],
                    "end_positions": [2, -1],
                    "passage_indices": [0, -1],
                    "yes_no_answer": ["NONE", "YES"],
                },
                "passage_candidates": {"start_positions": begins, "end_positions": [b + step for b in begins]},
            }
        )
        for c, context in enumerate(contexts):
            words = [len(" ".join(context.split(" ")[:w])) + (w > 0) for w in range(30)]
            for first in range(0, 30, 14)[: rng.integers(1, 4)]:
                spans = [
                    (at, at + len(context[at:].split(" ")[0])) for at in words[first : first + rng.integers(2, 17)]
                ]
                rows.append(
                    {
                        "example_idx": e,
                        "example_id": f"id {e}",
                        "offset_mapping": [None, None, *spans, None],
                        "context_idx": c,
                    }
                )
                if single_context:
                    del rows[-1]["context_idx"]
    return examples, rows


DATA = {single: make_data(single_context=single) for single in (True, False)}


def outputs(rows, kind="float32", *, confidence=False, seed=1):
    rng = np.random.default_rng(seed)
    starts, ends = rng.normal(-1, 3, (2, len(rows), LENGTH)).astype(np.float32)
    if kind == "ties":
        starts, ends = np.round(starts), np.round(ends)
    if kind == "equal":
        starts, ends = np.zeros_like(starts), np.zeros_like(ends)
    types = rng.normal(size=(len(rows), 5)).astype(np.float32)
    more = rng.random((2, len(rows), LENGTH)).astype(np.float32)
    return (starts, ends, types, *more, rng.random(len(rows)).astype(np.float32))[: 6 if confidence else 3]


# Recorded with this data from an implementation of PrimeQA's rules that scores one span at a time: of the first six
# examples `start_index`, `end_index`, `passage_index` and `span_answer_score`, of one of each kind whole records.
RECORDED = json.loads(Path(__file__).with_name("records.json").read_text(encoding="utf-8"))


def processed(scorer, kind, *, single_context, confidence):
    examples, rows = DATA[single_context]
    post_processor = ExtractivePostProcessor(
        k=5,
        max_answer_length=6,
        n_best_size=18,
        scorer_type=scorer,
        single_context_multiple_passages=single_context,
        output_confidence_feature=confidence,
    )
    return post_processor.process(examples, rows, outputs(rows, kind, confidence=confidence))


@pytest.mark.parametrize("confidence", [False, True])
@pytest.mark.parametrize("single_context", [True, False])
@pytest.mark.parametrize("kind", ["float32", "ties", "equal"])
@pytest.mark.parametrize("scorer", SCORERS)
def test_records_follow_the_rules(scorer, kind, single_context, confidence):
    records = processed(scorer, kind, single_context=single_context, confidence=confidence)
    expected = RECORDED["best"][f"{scorer}, {kind}, {'one context' if single_context else 'several contexts'}"]
    fields = ("start_index", "end_index", "passage_index", "span_answer_score")
    for number, best in enumerate(expected):
        assert [[record[field] for field in fields] for record in records[f"id {number}"]] == best
    for of_example in records.values():
        scores = np.array([record["span_answer_score"] for record in of_example])
        weights = np.exp(scores - scores.max())
        assert [record["confidence_score"] for record in of_example] == (weights / weights.sum()).tolist()


@pytest.mark.parametrize("single_context", [True, False])
def test_records_have_the_fields_of_primeqa(single_context):
    records = processed(SCORERS[-1], "float32", single_context=single_context, confidence=True)
    for ours, theirs in zip(records["id 0"], RECORDED["whole"][not single_context], strict=True):
        assert list(ours) == list(theirs)
        for name in ("normalized_span_answer_score", "confidence_score"):
            theirs[name] = pytest.approx(theirs[name], rel=1e-12)
        assert ours == theirs


def test_batches_and_datasets_give_the_same_records():
    examples, rows = DATA[False]
    arrays = outputs(rows)
    post_processor = ExtractivePostProcessor(**{**SETTINGS, "single_context_multiple_passages": False})
    streamed = post_processor.begin(datasets.Dataset.from_list(examples), datasets.Dataset.from_list(rows))
    order = np.random.default_rng(3).permutation(len(rows))
    for batch in np.array_split(order, 7):
        streamed.update([array[batch] for array in arrays], batch)
    evaluated = streamed.compute()
    whole = post_processor.process_references_and_predictions(examples, rows, arrays)
    assert evaluated == whole
    assert whole.predictions == post_processor.process(examples, rows, arrays)


def test_example_without_a_legal_span_has_an_empty_record():
    examples, rows = DATA[True]
    rows = [{**row, "offset_mapping": [None] * 5} for row in rows]
    (record,) = ExtractivePostProcessor(**SETTINGS).process(examples, rows, outputs(rows))["id 0"]
    assert record["span_answer_text"] == "empty"
    assert record["span_answer"] == {"start_position": -1, "end_position": -1}
    assert (record["start_index"], record["end_index"], record["passage_index"]) == (-1, -1, -1)
    assert record["target_type_logits"] == [0.0] * 5
    squad = SQUADPostProcessor(**SETTINGS).process_references_and_predictions(examples, rows, outputs(rows))
    assert squad.processed_predictions[0] == {"id": "id 0", "prediction_text": ""}


def test_predictions_and_references_suit_the_tydi_metric():
    examples, rows = DATA[True]
    evaluated = ExtractivePostProcessor(**SETTINGS)(examples, rows, outputs(rows))
    best = evaluated.predictions["id 3"][0]
    assert evaluated.processed_predictions[3] == {
        "example_id": "id 3",
        **best["span_answer"],
        "passage_index": best["passage_index"],
        "yes_no_answer": 0,
        "confidence_score": best["span_answer_score"],
    }
    assert evaluated.label_ids[3] == {
        "example_id": ["id 3"] * 2,
        "start_position": [0, -1],
        "end_position": [2, -1],
        "passage_index": [0, -1],
        "yes_no_answer": [0, 3],
        "language": ["finnish"] * 2,
        "question": ["Why 3?"] * 2,
        "document_plaintext": examples[3]["context"] * 2,  # data of the base form has no other
    }


def test_squad_predictions_and_references_are_texts():
    examples, rows = DATA[False]
    examples = [*examples[:1], {**examples[1], "answer_text": ["given"]}, *examples[2:]]
    post_processor = SQUADPostProcessor(**{**SETTINGS, "single_context_multiple_passages": False})
    evaluated = post_processor.process_references_and_predictions(examples, rows, outputs(rows))
    text = evaluated.predictions["id 0"][0]["span_answer_text"]
    assert evaluated.processed_predictions[0] == {"id": "id 0", "prediction_text": text}
    gold = {"text": [examples[0]["context"][0][:2]], "answer_start": [0, -1]}
    assert evaluated.label_ids[0] == {"id": "id 0", "answers": gold}
    assert evaluated.label_ids[1]["answers"]["text"] == ["given"]


@pytest.mark.parametrize("single_context", [True, False])
def test_boolean_pipeline_records_have_question_and_passage(single_context):
    examples, rows = DATA[single_context]
    settings = {**SETTINGS, "single_context_multiple_passages": single_context}
    records = ExtractivePipelinePostProcessor(**settings).process(examples, rows, outputs(rows))
    indices = set()
    for example in examples:
        for record in records[example["example_id"]]:
            index = record["passage_index"]
            indices.add(index)
            assert (record["question"], record["language"]) == (example["question"], "finnish")
            passages = example["passage_candidates"]
            if index < 0:
                expected = record["span_answer_text"]
            elif single_context:
                text = example["context"][0]
                expected = text[passages["start_positions"][index] : passages["end_positions"][index]]
            else:
                expected = example["context"][index]
            assert record["passage_answer_text"] == expected
    assert -1 in indices or not single_context


def test_confidence_comes_from_a_classifier(tmp_path):
    joblib = pytest.importorskip("joblib")
    joblib.dump(FirstFeature(), tmp_path / "model.joblib")
    examples, rows = DATA[True]
    path = str(tmp_path / "model.joblib")
    records = ExtractivePostProcessor(**SETTINGS, confidence_model_path=path).process(examples, rows, outputs(rows))
    for record in records["id 0"]:
        assert record["confidence_score"] == record["span_answer_score"]


class FirstFeature:
    def predict_proba(self, features):
        assert features.shape[1] == 14
        return np.stack([1 - features[:, 0], features[:, 0]], axis=1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda data: data.rows.append(data.rows[0]),
            r"not grouped by example: those with example_idx 0 form 2 groups",
        ),
        (lambda data: data.examples.pop(), r"There are 24 examples, but features of 25"),
        (lambda data: data.examples.reverse(), r"Feature 0 has example_id 'id 0', but the next example is 'id 24'"),
        (lambda data: data.arrays.pop(), r"2 arrays of \[\d+, \d+\] rows; expected 3 arrays .*: start_logits"),
        (lambda data: data.arrays.append(data.arrays[0][1:]), r"4 arrays"),
        (lambda data: data.arrays.__setitem__(1, data.arrays[1][1:]), r"3 arrays of .* rows; expected 3"),
        (lambda data: data.arrays.__setitem__(2, data.arrays[2][:, :2]), r"The model returned no answer-type logits"),
        (
            lambda data: data.arrays[2].__setitem__((3, 1), np.nan),
            r"answer-type logit of feature 3 at type 1 is nan",
        ),
        (lambda data: data.rows.clear(), r"There are 25 examples but no features"),
        (lambda data: data.examples.clear(), r"There are no examples to answer"),
        (
            lambda data: setattr(data, "arrays", [array[:-1] for array in data.arrays]),
            r"logits for (\d+) features, but (?!\1)\d+ features",
        ),
    ],
)
def test_inputs_must_match(change, message):
    data = SimpleNamespace(examples=list(DATA[True][0]), rows=list(DATA[True][1]))
    data.arrays = list(outputs(data.rows))
    change(data)
    with pytest.raises(InputError, match=message):
        ExtractivePostProcessor(**SETTINGS).process(data.examples, data.rows, data.arrays)


def test_scorers_of_a_single_span():
    types = [0.0, 6.0, 0.0, 0.0, 0.0]
    assert initialize_scorer("score_diff_based")(7.0, 5.0) == 2.0
    assert initialize_scorer("target_type_weighted_score_diff")(7.0, 5.0, types) == 12.0
    weighted = initialize_scorer(SupportedSpanScorers.WEIGHTED_SUM_TARGET_TYPE_AND_SCORE_DIFF)
    assert weighted(span_score=7.0, null_span_score=5.0, target_type_logits=types) == 4.0
    assert initialize_scorer(weighted.scorer_type, target_type_weight=0.25)(7.0, 5.0, types) == 3.0
    assert "score_diff_based" in SupportedSpanScorers.get_supported()
    with pytest.raises(InputError, match=r"needs answer-type logits; give `target_type_logits`"):
        weighted(7.0, 5.0)
    with pytest.raises(InputError, match=r"`target_type_weight=2` is out of range; use a number from 0 to 1"):
        initialize_scorer("score_diff_based", 2)


def test_missing_features_stop_the_iteration():
    examples, rows = DATA[True]
    last = rows[-1]["example_idx"]
    kept = [row for row in rows if row["example_idx"] != last]
    with pytest.raises(StopIteration, match=rf"{len(examples)} examples, but features of {len(examples) - 1}"):
        ExtractivePostProcessor(**SETTINGS).process(examples, kept, outputs(kept))


def test_options_of_unknown_things_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"Unknown `scorer_type=best`; expected one of score_diff_based"):
        ExtractivePostProcessor(**SETTINGS, scorer_type="best")
    with pytest.raises(InputError, match=r"file `confidence_model_path=.*none.joblib` does not exist"):
        ExtractivePostProcessor(**SETTINGS, confidence_model_path=tmp_path / "none.joblib")


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
    first, second = evaluated.predictions["a"]
    assert [first["span_answer_text"], second["span_answer_text"]] == ["Größe is seven", "Größe is seven </P>"]
    assert first["span_answer"] == {"start_position": 103, "end_position": 119}
    assert second["span_answer"] == {"start_position": 103, "end_position": 123}
    assert (first["passage_index"], second["passage_index"]) == (1, 1)
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


def test_span_outside_all_passages_and_a_context_of_other_tokens():
    example = natural_question(passage_candidates={"start_positions": [104], "end_positions": [119]})
    (prediction,) = natural_answers([example], start=1, end=3).processed_predictions
    assert prediction["passage_index"] == -1
    message = r"context of example 'a' is not its document's tokens joined by single blanks"
    with pytest.raises(InputError, match=message):
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
    of_a_dataset = post_processor.prepare_examples_as_references(datasets.Dataset.from_list(FID_EXAMPLES))
    assert of_a_dataset == evaluated.label_ids
    assert isinstance(post_processor, AbstractPostProcessor)


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
        "passage_index": 0,
        "confidence_score": 0.75,
    }
    return {**values, **changes}


def test_confidence_features():
    other = record(24, 44, types=(2.0, 0.0, 0.0, 0.0, 0.0), normalized_span_answer_score=0.25)
    first, second = ConfidenceScorer.make_features([record(17, 42), other])
    # PrimeQA counts the ends too, 19 of 26 and 21 characters, and divides the sum over the others by the number of
    # all.
    agreement = pytest.approx(2 * 19 / (26 + 21) / 2)
    assert first.tolist() == [3, -1, 4, 5, 0, 2, 1, 1, agreement, 0.75, 0.25, 0.1, 0.2, 0.3]
    assert second[[4, 5, 6, 7, 10]].tolist() == [2, 0, 0, 1, -0.25]
    assert ConfidenceScorer.make_features([record(-1, -1, types=[0.0] * 5)])[0, 6:9].tolist() == [1, 1, 0]
    apart = ConfidenceScorer.make_features([record(3, 5), record(3, 5), record(6, 9)])
    assert apart[:, 8].tolist() == pytest.approx([1 / 3, 1 / 3, 0])


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
    assert normalized["a"][0] == {**predictions["a"][0], "confidence_score": 0.09, "span_answer_score": 0.09}
    assert normalized["a"][1] == predictions["a"][1]
    boolean = normalized["b"][0]
    assert (boolean["yes_no_answer"], boolean["span_answer"]["start_position"]) == (TargetType.NO, -1)
    assert boolean["confidence_score"] == 0.17
    assert predictions["b"][0]["yes_no_answer"] == 0
    for_metric = ExtractivePostProcessor(**SETTINGS).prepare_predictions([], normalized)
    assert [one["confidence_score"] for one in for_metric] == [0.09, 0.17]


def test_yes_no_annotations():
    labels = ["YES", "no", "None"]
    assert [TargetType.from_bool_label(label) for label in labels] == [TargetType.YES, TargetType.NO, 0]
    with pytest.raises(InputError, match=r"annotation 'maybe' is unknown; use YES, NO or NONE"):
        TargetType.from_bool_label("maybe")


def test_options_of_other_post_processors_are_ignored(caplog):
    made = ELI5FiDPostProcessor(k=1, n_best_size=2, max_answer_length=3, scorer_type="any", tokenizer=Words())
    assert "ELI5FiDPostProcessor ignores the options n_best_size, scorer_type" in caplog.text
    ExtractivePostProcessor(**SETTINGS, tokenizer=None)
    assert "ExtractivePostProcessor ignores the options tokenizer" in caplog.text
    assert made._single_context_multiple_passages is False


def test_custom_post_processor_needs_two_methods():
    class Own(AbstractPostProcessor):
        def process(self, examples, features, predictions):
            return [len(predictions)]

        def prepare_examples_as_references(self, examples):
            return [example["id"] for example in examples]

    evaluated = Own(k=1, max_answer_length=2).process_references_and_predictions([{"id": "a"}], [], [1, 2])
    assert evaluated == ([2], ["a"], [2])
