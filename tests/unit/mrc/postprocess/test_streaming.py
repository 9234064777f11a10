import json
import logging
import pickle

import datasets
import numpy as np
import pytest

from portico.errors import InputError
from portico.mrc import SpanPostProcessor, postprocess_qa_predictions
from portico.mrc.features.windows import FeatureSet, Windows

LENGTH = 40


def make_data(num_examples=40, seed=0):
    """Return examples and their features, one to four windows each, as rows and as columns."""
    rng = np.random.default_rng(seed)
    examples, rows = [], []
    for e in range(num_examples):
        context = " ".join("".join(rng.choice(list("abcdeé"), rng.integers(1, 5))) for _ in range(100))
        examples.append({"id": f"id {e}", "context": context, "question": "?", "answers": {}})
        words = [(len(" ".join(context.split(" ")[:w])) + (w > 0), 0) for w in range(100)]
        words = [(start, start + len(context[start:].split(" ")[0])) for start, _ in words]
        for window in range(rng.integers(1, 5)):
            inside = words[window * 20 : window * 20 + rng.integers(3, 30)]
            offsets = [*[None] * int(rng.integers(2, 8)), *inside, None]
            rows.append({"example_id": f"id {e}", "offset_mapping": offsets})
    return examples, rows


def as_columns(examples, rows):
    index = {example["id"]: e for e, example in enumerate(examples)}
    flat = [pair for row in rows for pair in row["offset_mapping"]]
    tokens = np.zeros(len(flat), np.uint8)
    windows = Windows(
        np.array([index[row["example_id"]] for row in rows]),
        np.cumsum([0, *(len(row["offset_mapping"]) for row in rows)]),
        tokens.astype(np.int32),
        tokens,
        tokens,
        np.array([pair or (0, 0) for pair in flat], np.int32),
        np.array([pair is not None for pair in flat]),
    )
    return FeatureSet(windows, token_type_ids=False, example_ids=[example["id"] for example in examples])


EXAMPLES, ROWS = make_data()
FEATURES = as_columns(EXAMPLES, ROWS)


def spread(rng):
    return rng.normal(-2, 3, (2, len(ROWS), LENGTH))


LOGITS = {
    "float32": lambda rng: spread(rng).astype(np.float32),
    "float16": lambda rng: spread(rng).astype(np.float16),
    "float64": spread,
    "bfloat16": lambda rng: (spread(rng).astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32),
    "integers": lambda rng: np.round(spread(rng)).astype(np.float32),
    "equal": lambda rng: np.zeros((2, len(ROWS), LENGTH), np.float32),
    "mostly no answer": lambda rng: spread(rng).astype(np.float32) + 6 * (np.arange(LENGTH) == 0).astype(np.float32),
}


def order_of(logits, n, ties):
    if ties == "hf":
        return np.argsort(logits)[-1 : -n - 1 : -1].tolist()
    return sorted(range(len(logits)), key=lambda t: (-logits[t], t))[:n]


def first_of_each(spans, key):
    firsts = {}
    for span in spans:
        firsts.setdefault(key(span), span)
    return list(firsts.values())


def slow_example(context, windows, *, negative, n, longest, ties):
    """Follow the rules one span at a time; return the n-best list and the score of "no answer"."""
    found, null = [], None
    for offsets, starts, ends in windows:
        score = starts[0] + ends[0]
        if null is None or score < null[0]:
            null = (score, starts[0], ends[0], (0, 0))
        ranked = slice(None if ties == "hf" else len(offsets))  # without padding
        for s in order_of(starts[ranked], n, ties):
            for e in order_of(ends[ranked], n, ties):
                if max(s, e) < len(offsets) and offsets[s] and offsets[e] and s <= e < s + longest:
                    found.append((starts[s] + ends[e], starts[s], ends[e], (offsets[s][0], offsets[e][1])))
    if negative:
        found.append(null)
    best = sorted(found, key=lambda span: span[0], reverse=True)
    if ties == "deterministic":
        best = first_of_each(best, lambda span: "null" if span is null else span[3])
    best = best[:n]
    if negative and null not in best:
        best.append(null)
    if ties == "deterministic":
        best = first_of_each(best, lambda span: None if span is null else context[slice(*span[3])])
    scores = [score for score, *_ in best]
    records = [
        {"start_logit": float(start), "end_logit": float(end), "text": context[chars[0] : chars[1]]}
        for _, start, end, chars in best
    ]
    if ties == "hf" and not any(record["text"] for record in records):
        records.insert(0, {"text": "empty", "start_logit": 0.0, "end_logit": 0.0})
        scores.insert(0, 0.0)
    if scores:
        weights = np.exp(np.array(scores) - np.max(np.array(scores)))
        for record, probability in zip(records, weights / weights.sum(), strict=True):
            record["probability"] = float(probability)
    return records, null[0]


def slow_answers(examples, rows, logits, *, negative, n, longest, threshold, ties):
    predictions, nbest, odds = {}, {}, {}
    for example in examples:
        windows = [
            (row["offset_mapping"], starts, ends)
            for row, starts, ends in zip(rows, *logits, strict=True)
            if row["example_id"] == example["id"]
        ]
        rules = {"negative": negative, "n": n, "longest": longest, "ties": ties}
        records, null = slow_example(example["context"], windows, **rules)
        texts = [record for record in records if record["text"]]
        text = texts[0]["text"] if texts else ""
        if negative:
            # One subtraction after the other in the dtype of the logits.
            odd = null
            for name in ("start_logit", "end_logit"):
                odd = odd - null.dtype.type(texts[0][name]) if texts else odd
            odds[example["id"]] = float(odd)
            text = "" if odd > threshold else text
        predictions[example["id"]], nbest[example["id"]] = text, records
    return predictions, nbest, odds if negative else None


def post_process(logits, *, batch_size=16, features=FEATURES, **settings):
    post_processor = SpanPostProcessor(EXAMPLES, features, **settings)
    order = np.random.default_rng(5).permutation(len(ROWS))
    for first in range(0, len(order), batch_size):
        rows = order[first : first + batch_size]
        post_processor.update(logits[0][rows], logits[1][rows], rows)
    return post_processor.compute()


@pytest.mark.parametrize("ties", ["deterministic", "hf"])
@pytest.mark.parametrize("negative", [False, True])
@pytest.mark.parametrize(("n", "longest", "threshold"), [(20, 30, 0.0), (5, 10, -1.0), (1, 30, 2.5), (60, 3, 0.0)])
@pytest.mark.parametrize("kind", LOGITS)
def test_answers_follow_the_rules(kind, n, longest, threshold, negative, ties):
    logits = LOGITS[kind](np.random.default_rng(len(kind) + n))
    answers = post_process(
        logits,
        version_2_with_negative=negative,
        n_best_size=n,
        max_answer_length=longest,
        null_score_diff_threshold=threshold,
        ties=ties,
    )
    rules = {"negative": negative, "n": n, "longest": longest, "threshold": threshold, "ties": ties}
    predictions, nbest, odds = slow_answers(EXAMPLES, ROWS, logits, **rules)
    assert answers.predictions == predictions
    assert list(answers.predictions) == [example["id"] for example in EXAMPLES]
    assert answers.nbest == nbest
    assert answers.null_odds == odds


@pytest.mark.parametrize(
    "features", [FEATURES, ROWS, datasets.Dataset.from_list(ROWS)], ids=["own", "list", "dataset"]
)
@pytest.mark.parametrize("negative", [False, True])
def test_files_equal_those_of_the_hf_example_byte_for_byte(tmp_path, features, negative):
    logits = LOGITS["mostly no answer"](np.random.default_rng(0))
    folder = tmp_path / "new" / "folder"
    rules = {"negative": negative, "n": 1, "longest": 9, "threshold": 0.5, "ties": "hf"}
    expected = slow_answers(EXAMPLES, ROWS, logits, **rules)
    assert "empty" in expected[0].values()
    assert expected[0] == postprocess_qa_predictions(
        EXAMPLES, features, tuple(logits), negative, 1, 9, 0.5, output_dir=folder, prefix="test"
    )
    names = ["test_predictions.json", "test_nbest_predictions.json", "test_null_odds.json"][: 2 + negative]
    assert sorted(path.name for path in folder.iterdir()) == sorted(names)
    for name, value in zip(names, expected[: 2 + negative], strict=True):
        assert (folder / name).read_text() == json.dumps(value, indent=4) + "\n"


def test_file_name_prefix(tmp_path):
    answers = post_process(LOGITS["equal"](None), version_2_with_negative=True)
    answers.write(tmp_path)
    answers.write(tmp_path, prefix=None)
    names = {"predictions.json", "nbest_predictions.json", "null_odds.json"}
    assert {path.name for path in tmp_path.iterdir()} == names | {f"eval_{name}" for name in names}


def test_spans_are_the_characters_of_the_answer():
    answers = post_process(LOGITS["mostly no answer"](np.random.default_rng(1)), version_2_with_negative=True)
    contexts = {example["id"]: example["context"] for example in EXAMPLES}
    assert {span is None for span in answers.spans.values()} == {True, False}
    for example_id, span in answers.spans.items():
        assert answers.predictions[example_id] == ("" if span is None else contexts[example_id][slice(*span)])


@pytest.mark.parametrize("scale", [1e-12, 1e300])
def test_float64_scores_beyond_float32_are_ranked(scale):
    logits = 1 + scale * np.random.default_rng(6).permuted(np.tile(np.arange(LENGTH), (2, len(ROWS), 1)), axis=2)
    rules = {"negative": True, "n": 3, "longest": 30, "threshold": 0.0, "ties": "hf"}
    answers = post_process(logits, version_2_with_negative=True, n_best_size=3, ties="hf")
    assert answers.nbest == slow_answers(EXAMPLES, ROWS, logits, **rules)[1]


def test_features_may_come_in_any_order():
    order = np.random.default_rng(3).permutation(len(ROWS))
    logits = LOGITS["float32"](np.random.default_rng(3))
    mixed = postprocess_qa_predictions(EXAMPLES, [ROWS[f] for f in order], tuple(logits[:, order]))
    assert mixed == postprocess_qa_predictions(EXAMPLES, ROWS, tuple(logits))


def test_log_level(caplog):
    logits = tuple(LOGITS["equal"](None))
    postprocess_qa_predictions(EXAMPLES, FEATURES, logits, log_level=logging.WARNING)
    assert not caplog.messages
    postprocess_qa_predictions(EXAMPLES, FEATURES, logits, log_level=logging.INFO)
    assert caplog.messages == [f"Post-processing {len(EXAMPLES)} examples split into {len(ROWS)} features."]


def test_large_sets_are_ranked_and_written_in_blocks(tmp_path):
    num_examples = 2500  # several blocks, of features as well as of n-best lists
    examples = [{"id": f"{e}", "context": "x yy zzz"} for e in range(num_examples)]
    example_F = np.repeat(np.arange(num_examples), 1 + np.arange(num_examples) % 3)
    rows = [{"example_id": f"{e}", "offset_mapping": [None, (0, 1), (2, 4), (5, 8)]} for e in example_F]
    logits = np.random.default_rng(0).normal(size=(2, len(rows), 4)).astype(np.float32)

    def answers_to(first, last):
        own = np.flatnonzero((example_F >= first) & (example_F < last))
        post_processor = SpanPostProcessor(examples[first:last], [rows[f] for f in own], version_2_with_negative=True)
        post_processor.update(*logits[:, own], np.arange(len(own)))
        return post_processor.compute()

    answers = answers_to(0, num_examples)
    parts = [answers_to(first, first + 500).nbest for first in range(0, num_examples, 500)]
    assert answers.nbest == {key: records for part in parts for key, records in part.items()}
    answers.write(tmp_path)
    assert (tmp_path / "eval_nbest_predictions.json").read_text() == json.dumps(answers.nbest, indent=4) + "\n"


def test_collectors_of_several_processes_merge():
    logits = LOGITS["float32"](np.random.default_rng(4))
    halves = [SpanPostProcessor(EXAMPLES, FEATURES, version_2_with_negative=True) for _ in range(2)]
    for half, rows in zip(halves, np.array_split(np.arange(len(ROWS)), 2), strict=True):
        half.update(logits[0][rows], logits[1][rows], rows)
    halves[0].merge(pickle.loads(pickle.dumps(halves[1].candidates())))
    assert halves[0].compute().nbest == post_process(logits, version_2_with_negative=True).nbest


def test_first_outputs_of_a_repeated_feature_count():
    first, second = (LOGITS["float32"](np.random.default_rng(seed)) for seed in (0, 1))
    post_processor = SpanPostProcessor(EXAMPLES, FEATURES, version_2_with_negative=False)
    post_processor.update(*first, np.arange(len(ROWS)))
    post_processor.update(*second[:, 2:6], np.arange(2, 6))
    kept = post_processor.candidates()
    assert kept.feature_index_F.tolist() == list(range(len(ROWS)))
    assert kept.null_start_F.tolist() == first[0, :, 0].tolist()


def test_every_feature_needs_logits():
    post_processor = SpanPostProcessor(EXAMPLES, FEATURES, version_2_with_negative=False)
    with pytest.raises(InputError, match=f"None of the {len(ROWS)} features got logits"):
        post_processor.candidates()
    logits = np.zeros((2, LENGTH), np.float32)
    post_processor.update(logits, logits, [0, 2])
    with pytest.raises(InputError, match=rf"{len(ROWS) - 2} of {len(ROWS)} features got no logits, .* feature 1;"):
        post_processor.compute()


def test_logits_must_belong_to_the_features():
    with pytest.raises(InputError, match=f"logits for 2 features, but {len(ROWS)} features"):
        postprocess_qa_predictions(EXAMPLES, FEATURES, (np.zeros((2, 4)), np.zeros((2, 4))))
    post_processor = SpanPostProcessor(EXAMPLES, FEATURES, version_2_with_negative=False)
    with pytest.raises(InputError, match=f"logits for feature 999, but there are only {len(ROWS)} features"):
        post_processor.update(np.zeros((1, 4)), np.zeros((1, 4)), [999])
