"""PrimeQA's preprocessors against its rules, followed one window at a time."""

import random

import datasets
import pytest
from transformers import BatchEncoding

from mrc_texts import TOKENIZERS, WORDS
from portico.errors import InputError
from portico.mrc.primeqa import BasePreProcessor, SubsampleType, TargetType

LENGTH, STRIDE = 48, 12
SINGLE = {"single_context_multiple_passages": True}


@pytest.fixture(autouse=True)
def without_progress_bars():
    datasets.disable_progress_bars()


def make_rows(*, single, seed=0, num_rows=40):
    rng = random.Random(seed)
    rows = []
    for number in range(num_rows):
        contexts = [" ".join(rng.choices(WORDS, k=rng.randint(5, 60))) for _ in range(1 if single else 3)]
        bounds = sorted(rng.sample(range(len(contexts[0])), 2))
        passages = [(0, bounds[0]), (bounds[0], bounds[1]), (bounds[1], len(contexts[0]))]
        passage = rng.randint(-1, 2)
        low, high = (passages[passage] if single else (0, len(contexts[passage]))) if passage >= 0 else (0, 0)
        has_span = rng.random() < 0.6 and high - low > 2
        start = rng.randrange(low, high - 1) if has_span else -1
        end = rng.randint(start + 1, min(high, start + 20)) if has_span else -1
        yes_no = "NONE" if has_span else rng.choice(["YES", "NO", "NONE"])
        rows.append(
            {
                "question": "  " + " ".join(rng.choices(WORDS, k=rng.randint(1, 5))),
                "context": contexts,
                "example_id": str(number),
                "language": "finnish",
                "target": {
                    "start_positions": [start, 0],
                    "end_positions": [end, 1],
                    "passage_indices": [passage, 0],
                    "yes_no_answer": [yes_no, "NO"],
                },
                "passage_candidates": {
                    "start_positions": [p for p, _ in passages],
                    "end_positions": [p for _, p in passages],
                },
            }
        )
    return rows


def expected_rows(tokenizer, rows, *, single, max_q_char_len=16):
    """Follow PrimeQA's rules one window at a time."""
    right = tokenizer.padding_side == "right"
    for number, row in enumerate(rows):
        for context_idx, context in enumerate(row["context"]):
            question = row["question"].lstrip()[:max_q_char_len]
            encoding = tokenizer(
                *((question, context) if right else (context, question)),
                truncation="only_second" if right else "only_first",
                max_length=LENGTH,
                stride=STRIDE,
                return_overflowing_tokens=True,
                return_offsets_mapping=True,
            )
            for window, offsets in enumerate(encoding["offset_mapping"]):
                inside = [sequence == int(right) for sequence in encoding.sequence_ids(window)]
                feature = {name: encoding[name][window] for name in tokenizer.model_input_names}
                where = {"example_idx": number, "example_id": row["example_id"]}
                feature |= where if single else {**where, "context_idx": context_idx}
                yield row, context_idx, feature, offsets, inside


def expected_label(tokenizer, row, context_idx, ids, offsets, inside, *, single):
    target = {name: values[0] for name, values in row["target"].items()}
    found = [ids.index(i) for i in (tokenizer.cls_token_id, tokenizer.bos_token_id) if i in ids]
    nothing = (found or [0])[0]
    tokens = [t for t, one in enumerate(inside) if one]
    passage, start, end = target["passage_indices"], target["start_positions"], target["end_positions"]
    if single:
        candidates = row["passage_candidates"]
        has_passage = (
            passage >= 0
            and candidates["start_positions"][passage] <= offsets[tokens[-1]][1]
            and candidates["end_positions"][passage] >= offsets[tokens[0]][0]
        )
    else:
        has_passage = passage == context_idx
    if not has_passage:
        return nothing, nothing, TargetType.NO_ANSWER
    if start == -1:
        return nothing, nothing, TargetType.from_bool_label(target["yes_no_answer"]) or TargetType.PASSAGE_ANSWER
    if offsets[tokens[0]][0] > start or offsets[tokens[-1]][1] < end:
        return nothing, nothing, TargetType.PASSAGE_ANSWER
    first = max(t for t in tokens if offsets[t][0] <= start)
    last = min(t for t in tokens if offsets[t][1] >= end)
    return first, last, TargetType.SPAN_ANSWER


@pytest.fixture(params=["bert", "left padding, CLS last"])
def tokenizer(request):
    return TOKENIZERS[request.param]


def preprocessor(tokenizer, **options):
    return BasePreProcessor(tokenizer, STRIDE, LENGTH, 1.0, 1.0, max_q_char_len=16, **options)


@pytest.mark.parametrize("single", [True, False])
def test_features_follow_the_rules(tokenizer, single):
    rows = make_rows(single=single)
    one = preprocessor(tokenizer, single_context_multiple_passages=single)
    examples, features = one.process_train(datasets.Dataset.from_list(rows))
    assert examples.to_list() == rows
    expected, seen = [], set()
    for row, context_idx, feature, offsets, inside in expected_rows(tokenizer, rows, single=single):
        ids = feature["input_ids"]
        start, end, kind = expected_label(tokenizer, row, context_idx, ids, offsets, inside, single=single)
        seen.add(kind)
        labels = {"start_positions": start, "end_positions": end, "target_type": int(kind)}
        expected.append({**feature, "offset_mapping": [list(pair) for pair in offsets], **labels})
    assert features.to_list() == expected
    assert seen == set(TargetType)
    _, features = one.process_eval(datasets.Dataset.from_list(rows))
    assert features.to_list() == [
        {**feature, "offset_mapping": [list(pair) if one else None for pair, one in zip(offsets, inside, strict=True)]}
        for _, _, feature, offsets, inside in expected_rows(tokenizer, rows, single=single)
    ]


def test_workers_make_the_same_features(tokenizer):
    dataset = datasets.Dataset.from_list(make_rows(single=True))
    alone, shared = (preprocessor(tokenizer, num_workers=n, **SINGLE).process_train(dataset)[1] for n in (None, 2))
    assert shared.to_list() == alone.to_list()


def test_subsampling_keeps_answers_and_part_of_the_rest():
    dataset = datasets.Dataset.from_list(make_rows(single=True))
    everything = preprocessor(TOKENIZERS["bert"], **SINGLE).process_train(dataset)[1]

    def kept(has, no, seed=0):
        one = BasePreProcessor(
            TOKENIZERS["bert"], STRIDE, LENGTH, has, no, max_q_char_len=16, **SINGLE, subsampling_seed=seed
        )
        return one.process_train(dataset)[1]

    assert kept(0, 0).to_list() == [row for row in everything.to_list() if row["target_type"]]
    assert kept(0, 0).column_names == everything.column_names
    assert len(kept(0, 0)) < len(kept(0.5, 0.5)) < len(everything)
    assert kept(0.5, 0.5).to_list() == kept(0.5, 0.5).to_list() != kept(0.5, 0.5, seed=1).to_list()


def test_a_subclass_may_label_for_subsampling():
    class NothingBut(BasePreProcessor):
        def label_features_for_subsampling(self, tokenized_examples, examples):
            assert set(examples) >= {"question", "target"}
            return {**tokenized_examples, "subsample_type": [0] * len(tokenized_examples["target_type"])}

    dataset = datasets.Dataset.from_list(make_rows(single=False))
    one = NothingBut(TOKENIZERS["bert"], STRIDE, LENGTH, 0.0, 0.5)
    everything = BasePreProcessor(TOKENIZERS["bert"], STRIDE, LENGTH, 1.0, 1.0).process_train(dataset)[1]
    assert len(one.process_train(dataset)[1]) == len(everything)


def test_the_context_ends_with_the_last_passage_that_is_read():
    rows = make_rows(single=True)
    one = preprocessor(TOKENIZERS["bert"], max_contexts=2, **SINGLE)
    _, features = one.process_eval(datasets.Dataset.from_list(rows))
    ends = [row["passage_candidates"]["end_positions"][1] for row in rows]
    furthest = [0] * len(rows)
    for feature in features:
        last = max((pair[1] for pair in feature["offset_mapping"] if pair), default=0)
        furthest[feature["example_idx"]] = max(furthest[feature["example_idx"]], last)
    assert all(last <= end for last, end in zip(furthest, ends, strict=True))
    assert any(last == end for last, end in zip(furthest, ends, strict=True))
    _, features = preprocessor(TOKENIZERS["bert"], max_contexts=2).process_eval(
        datasets.Dataset.from_list(make_rows(single=False))
    )
    assert set(features["context_idx"]) == {0, 1}


def test_identifier_and_language_are_made_up():
    dataset = datasets.Dataset.from_list(make_rows(single=True)).remove_columns(["example_id", "language"])
    examples, features = preprocessor(TOKENIZERS["bert"], **SINGLE).process_train(dataset)
    assert set(examples["language"]) == {"UNKNOWN"}
    assert len(set(examples["example_id"])) == len(examples)
    assert list(dict.fromkeys(features["example_id"])) == list(examples["example_id"])


def test_columns_are_checked():
    dataset = datasets.Dataset.from_list(make_rows(single=True))
    one = preprocessor(TOKENIZERS["bert"], **SINGLE)
    with pytest.raises(InputError, match="have no column 'target', only 'question'"):
        one.process_train(dataset.remove_columns("target"))
    assert len(one.process_eval(dataset.remove_columns("target"))[1])
    with pytest.raises(ValueError, match=r"The column 'context' of the examples has the type Value.* must be List"):
        one.process_eval(dataset.map(lambda row: {"context": "a"}, remove_columns="context"))
    with pytest.raises(InputError, match="have no column 'language'"):
        one.validate_schema(dataset.remove_columns("language"), is_train=True, pre_adaptation=False)
    with pytest.raises(ValueError, match="no examples to process"):
        one.process_train(dataset.select([]))
    with pytest.raises(InputError, match=r"has 3 contexts, but `single_context_multiple_passages=True` takes one"):
        one.process_train(datasets.Dataset.from_list(make_rows(single=False)))
    with pytest.raises(ValueError, match="`negative_sampling_prob_when_no_answer=2` is not a probability"):
        BasePreProcessor(TOKENIZERS["bert"], STRIDE, LENGTH, 0.5, 2)
    unanswered = dataset.map(lambda row: {"target": {**row["target"], "passage_indices": [-1, -1]}})
    with pytest.raises(ValueError, match="Subsampling leaves none of"):
        BasePreProcessor(TOKENIZERS["bert"], STRIDE, LENGTH, 0, 0, **SINGLE).process_train(unanswered)


@pytest.mark.parametrize(("value", "word"), [(1.0, "all windows"), (0.0, "no window")])
def test_extreme_probabilities_are_announced_to_those_who_train(value, word, caplog):
    dataset = datasets.Dataset.from_list(make_rows(single=False))
    one = BasePreProcessor(TOKENIZERS["bert"], STRIDE, LENGTH, value, value)
    one.process_eval(dataset)
    assert not caplog.text
    one.process_train(dataset)
    assert f"Training on {word} without an answer" in caplog.text


@pytest.mark.parametrize("is_train", [True, False])
def test_a_batch_can_be_made_into_features_alone(is_train):
    dataset = datasets.Dataset.from_list(make_rows(single=False))
    one = BasePreProcessor(TOKENIZERS["bert"], STRIDE, LENGTH, 1.0, 1.0)
    batch = one._process_batch(dataset[:5], list(range(10, 15)), is_train)
    assert isinstance(batch, BatchEncoding)
    whole = (one.process_train if is_train else one.process_eval)(dataset)[1]
    rows = [row for row in whole.to_list() if row["example_idx"] < 5]
    for name in whole.column_names:
        expected = [row[name] + 10 if name == "example_idx" else row[name] for row in rows]
        assert batch[name] == expected, name


def test_a_subclass_may_make_the_features_of_a_batch():
    class Shouting(BasePreProcessor):
        def _process_batch(self, examples, indices, is_train):
            return {**super()._process_batch(examples, indices, is_train), "example_id": ["A"] * len(indices)}

    row = {**make_rows(single=False)[0], "context": ["a mill"]}
    features = Shouting(TOKENIZERS["bert"], STRIDE, LENGTH).process_eval(datasets.Dataset.from_list([row]))[1]
    assert list(features["example_id"]) == ["A"]


def test_features_are_labelled_for_subsampling_by_the_example_of_each():
    examples = {"target": [{"passage_indices": [-1, 3]}, {"passage_indices": [0]}]}
    features = {"example_idx": [0, 1, 1], "target_type": [TargetType.NO_ANSWER] * 2 + [TargetType.PASSAGE_ANSWER]}
    labelled = BasePreProcessor(TOKENIZERS["bert"], STRIDE, LENGTH).label_features_for_subsampling(features, examples)
    expected = [SubsampleType.NEGATIVE_NO_ANSWER, SubsampleType.NEGATIVE_HAS_ANSWER, SubsampleType.POSITIVE]
    assert labelled["subsample_type"] == expected
    keeping = BasePreProcessor(TOKENIZERS["bert"], STRIDE, LENGTH, 1.0, 1.0)
    assert keeping.label_features_for_subsampling(features, examples) is features


def test_a_passage_that_only_touches_a_window_counts_as_in_it():
    row = make_rows(single=True, seed=5)[0]
    row["context"] = [" ".join(WORDS * 4)]
    one = preprocessor(TOKENIZERS["bert"], **SINGLE)
    _, features = one.process_eval(datasets.Dataset.from_list([row]))
    second = [pair for pair in features[1]["offset_mapping"] if pair]
    begin, end = second[0][0], second[-1][1]
    row["target"] = {
        "start_positions": [-1],
        "end_positions": [-1],
        "passage_indices": [0],
        "yes_no_answer": ["YES"],
    }
    near = {(0, begin): TargetType.YES, (0, begin - 1): TargetType.NO_ANSWER}
    near |= {(end, end + 5): TargetType.YES, (end + 1, end + 5): TargetType.NO_ANSWER}
    for (start, stop), kind in near.items():
        row["passage_candidates"] = {"start_positions": [start], "end_positions": [stop]}
        assert one.process_train(datasets.Dataset.from_list([row]))[1][1]["target_type"] == kind
