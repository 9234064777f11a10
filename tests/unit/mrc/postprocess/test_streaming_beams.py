import json

import numpy as np
import pytest

from portico.errors import InputError
from portico.mrc import BeamPostProcessor, postprocess_qa_predictions_with_beam_search

CONTEXT = "aa bb cc dd ee ff gg hh"
WORDS = [(3 * w, 3 * w + 2) for w in range(8)]
NUM_EXAMPLES = 30


def make_data(seed=0):
    rng = np.random.default_rng(seed)
    examples = [{"id": f"id {e}", "context": CONTEXT} for e in range(NUM_EXAMPLES)]
    rows = [
        {"example_id": f"id {e}", "offset_mapping": [*WORDS[: rng.integers(0, 9)], None, None]}
        for e in range(NUM_EXAMPLES)
        for _ in range(rng.integers(1, 4))
    ]
    return examples, rows


EXAMPLES, ROWS = make_data()


def beams(num_starts, num_ends, *, ties, seed=1):
    rng = np.random.default_rng(seed)
    scores = [rng.normal(size=(len(ROWS), n)).astype(np.float32) for n in (num_starts, num_starts * num_ends)]
    if ties:
        scores = [np.round(score) for score in scores]
    tokens = [rng.integers(0, 12, (len(ROWS), n)) for n in (num_starts, num_starts * num_ends)]
    return scores[0], tokens[0], scores[1], tokens[1], rng.normal(size=len(ROWS)).astype(np.float32)


def slow_example(rows, *, num_starts, num_ends, n, longest):
    """Follow the rules of the example one pair at a time."""
    found, null = [], None
    for offsets, (start_scores, starts, end_scores, ends, feature_null) in rows:
        null = feature_null if null is None or feature_null < null else null
        for i in range(num_starts):
            for j in range(i * num_ends, (i + 1) * num_ends):
                s, e = int(starts[i]), int(ends[j])
                if max(s, e) >= len(offsets) or offsets[s] is None or offsets[e] is None or not s <= e < s + longest:
                    continue
                record = {
                    "start_log_prob": float(start_scores[i]),
                    "end_log_prob": float(end_scores[j]),
                    "text": CONTEXT[offsets[s][0] : offsets[e][1]],
                }
                found.append((start_scores[i] + end_scores[j], record))
    best = sorted(found, key=lambda pair: pair[0], reverse=True)[:n]
    if not best:
        best = [(-2e-6, {"text": "", "start_logit": -1e-6, "end_logit": -1e-6})]
    scores = np.array([score for score, _ in best])
    weights = np.exp(scores - np.max(scores))
    probabilities = (weights / weights.sum()).tolist()
    return [{**record, "probability": p} for (_, record), p in zip(best, probabilities, strict=True)], float(null)


def slow_answers(outputs, **rules):
    nbest, nulls = {}, {}
    for example in EXAMPLES:
        rows = [
            (row["offset_mapping"], [output[f] for output in outputs])
            for f, row in enumerate(ROWS)
            if row["example_id"] == example["id"]
        ]
        nbest[example["id"]], nulls[example["id"]] = slow_example(rows, **rules)
    return {key: records[0]["text"] for key, records in nbest.items()}, nbest, nulls


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("negative", [False, True])
@pytest.mark.parametrize(("num_starts", "num_ends", "n", "longest"), [(5, 5, 20, 30), (3, 2, 4, 2), (1, 4, 20, 3)])
def test_answers_and_files_equal_those_of_the_hf_example(tmp_path, num_starts, num_ends, n, longest, negative, ties):
    outputs = beams(num_starts, num_ends, ties=ties)
    expected = slow_answers(outputs, num_starts=num_starts, num_ends=num_ends, n=n, longest=longest)
    answers = postprocess_qa_predictions_with_beam_search(
        EXAMPLES, ROWS, outputs, negative, n, longest, num_starts, num_ends, tmp_path, "eval"
    )
    assert answers == (expected[0], expected[2] if negative else None)
    names = ["eval_predictions.json", "eval_nbest_predictions.json", "eval_null_odds.json"][: 2 + negative]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
    for name, value in zip(names, expected[: 2 + negative], strict=True):
        assert (tmp_path / name).read_text() == json.dumps(value, indent=4) + "\n"
    assert "" in expected[0].values()


def test_batches_and_processes_do_not_change_answers():
    outputs = beams(5, 5, ties=False)
    halves = [BeamPostProcessor(EXAMPLES, ROWS, version_2_with_negative=True) for _ in range(2)]
    for half, rows in zip(halves, np.array_split(np.random.default_rng(0).permutation(len(ROWS)), 2), strict=True):
        half.update_outputs([output[rows] for output in outputs], rows)
    assert sum(column.nbytes for column in halves[1].candidates().columns()) / len(ROWS) < 300
    halves[0].merge(halves[1].candidates())
    answers = halves[0].compute()
    assert answers.nbest == slow_answers(outputs, num_starts=5, num_ends=5, n=20, longest=30)[1]
    assert answers.spans["id 0"] is not None
    assert CONTEXT[slice(*answers.spans["id 0"])] == answers.predictions["id 0"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda outputs: outputs[:2], r"shapes .* five outputs of a beam search are needed: start_top_log_probs"),
        (
            lambda outputs: (*outputs[:2], outputs[2][:, :7], outputs[3][:, :7], outputs[4]),
            r"number of ends for each",
        ),
        (lambda outputs: (*outputs[:4], outputs[4] * np.nan), r"The no-answer score of feature 0 at place 0 is nan"),
        (lambda outputs: (outputs[0] - np.inf, *outputs[1:]), r"The start score of feature 0 at place 0 is -inf"),
    ],
)
def test_outputs_of_other_heads_are_rejected(change, message):
    post_processor = BeamPostProcessor(EXAMPLES, ROWS, version_2_with_negative=True)
    with pytest.raises(InputError, match=message):
        post_processor.update_outputs(change(beams(2, 4, ties=False)), np.arange(len(ROWS)))


def test_beam_size_must_match():
    with pytest.raises(InputError, match=r"does not match `start_n_top=5` and `end_n_top=5`"):
        postprocess_qa_predictions_with_beam_search(EXAMPLES, ROWS, beams(2, 4, ties=False))
