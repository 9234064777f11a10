"""PrimeQA's preprocessors: the base schema against PrimeQA's rules one window at a time, then each dataset."""

import random
from types import SimpleNamespace

import datasets
import numpy as np
import pytest
from transformers import BatchEncoding

from mrc_data import (
    DOCUMENT,
    TOKENIZERS,
    TOWN,
    WORDS,
    natural_questions,
    to_bytes,
    tydi_of_google,
    tydi_of_hub,
    windows,
)
from portico.errors import InputError
from portico.mrc import primeqa
from portico.mrc.datasets import read_examples
from portico.mrc.primeqa import BasePreProcessor, SubsampleType, TargetType

TOKENIZER = TOKENIZERS["bert"]
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


def expected_rows(tokenizer, rows, *, single):
    """Follow PrimeQA's rules one window at a time."""
    for number, row in enumerate(rows):
        for context_idx, context in enumerate(row["context"]):
            example = {"question": row["question"].lstrip()[:16], "context": context}
            where = {"example_idx": number, "example_id": row["example_id"]}
            where |= {} if single else {"context_idx": context_idx}
            for _, ids, offsets, inside in windows(tokenizer, [example], max_seq_length=LENGTH, doc_stride=STRIDE):
                yield row, context_idx, {**ids, **where}, offsets, inside


def expected_label(tokenizer, row, context_idx, ids, offsets, inside, *, single, compat=False):
    """Return first token, last token and type: those of the answer, or with ``compat`` those of PrimeQA."""
    target = {name: values[0] for name, values in row["target"].items()}
    found = [ids.index(i) for i in (tokenizer.cls_token_id, tokenizer.bos_token_id) if i in ids]
    nothing = (found or [0])[0]
    tokens = [t for t, one in enumerate(inside) if one]
    passage, start, end = target["passage_indices"], target["start_positions"], target["end_positions"]
    has_passage = passage == context_idx
    if single and passage >= 0:
        first, stop = (row["passage_candidates"][name][passage] for name in ("start_positions", "end_positions"))
        has_passage = any(covered([offsets[t] for t in tokens], first, max(stop, first + 1)))
        if compat:
            has_passage = first <= offsets[tokens[-1]][1] and stop >= offsets[tokens[0]][0]
    elif single:
        has_passage = False
    if not has_passage:
        return nothing, nothing, TargetType.NO_ANSWER
    if start == -1:
        return nothing, nothing, TargetType.from_bool_label(target["yes_no_answer"]) or TargetType.PASSAGE_ANSWER
    if compat:
        if offsets[tokens[0]][0] > start or offsets[tokens[-1]][1] < end:
            return nothing, nothing, TargetType.PASSAGE_ANSWER
        # PrimeQA's search for the start does not stop where the context does.
        later = [t for t in range(tokens[0], len(ids)) if t not in tokens or offsets[t][0] > start]
        later = [t for t in later if offsets[t][0] > start] or [len(ids)]
        return later[0] - 1, min(t for t in tokens if offsets[t][1] >= end), TargetType.SPAN_ANSWER
    context = row["context"][context_idx]
    whole = tokenizer(context, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    held = covered([offsets[t] for t in tokens], start, end)
    if not any(held) or held != covered(whole, start, end):
        return nothing, nothing, TargetType.PASSAGE_ANSWER
    answer = [t for t in tokens if any(covered([offsets[t]], start, end))]
    return answer[0], answer[-1], TargetType.SPAN_ANSWER


def covered(offsets, start, end):
    """Return for each character of a span whether a token has it."""
    return [any(begin <= char < stop for begin, stop in offsets) for char in range(start, end)]


@pytest.fixture(params=["bert", "left padding, CLS last"])
def tokenizer(request):
    return TOKENIZERS[request.param]


def preprocessor(tokenizer, **options):
    return BasePreProcessor(tokenizer, STRIDE, LENGTH, 1.0, 1.0, max_q_char_len=16, **options)


@pytest.mark.parametrize("compat", [True, False])
@pytest.mark.parametrize("single", [True, False])
def test_features_follow_the_rules_of_primeqa(tokenizer, single, compat, caplog):
    rows = make_rows(single=single)
    one = preprocessor(tokenizer, single_context_multiple_passages=single, compat_label_bug=compat)
    examples, features = one.process_train(datasets.Dataset.from_list(rows))
    assert examples.to_list() == rows
    expected, seen = [], set()
    for row, context_idx, feature, offsets, inside in expected_rows(tokenizer, rows, single=single):
        ids = feature["input_ids"]
        start, end, kind = expected_label(
            tokenizer, row, context_idx, ids, offsets, inside, single=single, compat=compat
        )
        seen.add(kind)
        labels = {"start_positions": start, "end_positions": end, "target_type": int(kind)}
        expected.append({**feature, "offset_mapping": [list(pair) for pair in offsets], **labels})
    assert features.to_list() == expected
    assert seen == set(TargetType)
    assert ("`compat_label_bug=True` trains on PrimeQA's labels, also where" in caplog.text) is compat
    _, features = one.process_eval(datasets.Dataset.from_list(rows))
    assert features.to_list() == [
        {**feature, "offset_mapping": [list(pair) if one else None for pair, one in zip(offsets, inside, strict=True)]}
        for _, _, feature, offsets, inside in expected_rows(tokenizer, rows, single=single)
    ]


def test_num_workers_does_not_change_features(tokenizer):
    dataset = datasets.Dataset.from_list(make_rows(single=True))
    alone, shared = (preprocessor(tokenizer, num_workers=n, **SINGLE).process_train(dataset)[1] for n in (None, 2))
    assert shared.to_list() == alone.to_list()


def test_subsampling_keeps_answers_and_some_of_the_rest():
    dataset = datasets.Dataset.from_list(make_rows(single=True))
    everything = preprocessor(TOKENIZER, **SINGLE).process_train(dataset)[1]

    def kept(has, no, seed=0):
        one = BasePreProcessor(TOKENIZER, STRIDE, LENGTH, has, no, max_q_char_len=16, **SINGLE, subsampling_seed=seed)
        return one.process_train(dataset)[1]

    assert kept(0, 0).to_list() == [row for row in everything.to_list() if row["target_type"]]
    assert kept(0, 0).column_names == everything.column_names
    assert len(kept(0, 0)) < len(kept(0.5, 0.5)) < len(everything)
    assert kept(0.5, 0.5).to_list() == kept(0.5, 0.5).to_list() != kept(0.5, 0.5, seed=1).to_list()


def test_subclass_may_override_label_features_for_subsampling():
    class NothingBut(BasePreProcessor):
        def label_features_for_subsampling(self, tokenized_examples, examples):
            assert set(examples) >= {"question", "target"}
            return {**tokenized_examples, "subsample_type": [0] * len(tokenized_examples["target_type"])}

    dataset = datasets.Dataset.from_list(make_rows(single=False))
    one = NothingBut(TOKENIZER, STRIDE, LENGTH, 0.0, 0.5)
    everything = BasePreProcessor(TOKENIZER, STRIDE, LENGTH, 1.0, 1.0).process_train(dataset)[1]
    assert len(one.process_train(dataset)[1]) == len(everything)


def test_max_contexts_cuts_the_context_after_a_passage():
    rows = make_rows(single=True)
    one = preprocessor(TOKENIZER, max_contexts=2, **SINGLE)
    _, features = one.process_eval(datasets.Dataset.from_list(rows))
    ends = [row["passage_candidates"]["end_positions"][1] for row in rows]
    furthest = [0] * len(rows)
    for feature in features:
        last = max((pair[1] for pair in feature["offset_mapping"] if pair), default=0)
        furthest[feature["example_idx"]] = max(furthest[feature["example_idx"]], last)
    assert all(last <= end for last, end in zip(furthest, ends, strict=True))
    assert any(last == end for last, end in zip(furthest, ends, strict=True))
    _, features = preprocessor(TOKENIZER, max_contexts=2).process_eval(
        datasets.Dataset.from_list(make_rows(single=False))
    )
    assert set(features["context_idx"]) == {0, 1}


def test_a_context_of_which_all_passages_are_read_is_not_cut():
    row = make_rows(single=True)[0]
    row["passage_candidates"] = {"start_positions": [0, 4], "end_positions": [4, 9]}
    whole, enough = (
        preprocessor(TOKENIZER, max_contexts=number, **SINGLE).process_eval(datasets.Dataset.from_list([row]))[1]
        for number in (None, 2)
    )
    assert enough.to_list() == whole.to_list()


def test_missing_id_and_language_are_generated():
    dataset = datasets.Dataset.from_list(make_rows(single=True)).remove_columns(["example_id", "language"])
    examples, features = preprocessor(TOKENIZER, **SINGLE).process_train(dataset)
    assert set(examples["language"]) == {"UNKNOWN"}
    assert len(set(examples["example_id"])) == len(examples)
    assert list(dict.fromkeys(features["example_id"])) == list(examples["example_id"])


def test_columns_are_checked():
    dataset = datasets.Dataset.from_list(make_rows(single=True))
    one = preprocessor(TOKENIZER, **SINGLE)
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
        BasePreProcessor(TOKENIZER, STRIDE, LENGTH, 0.5, 2)
    unanswered = dataset.map(lambda row: {"target": {**row["target"], "passage_indices": [-1, -1]}})
    with pytest.raises(ValueError, match="Subsampling leaves none of"):
        BasePreProcessor(TOKENIZER, STRIDE, LENGTH, 0, 0, **SINGLE).process_train(unanswered)


@pytest.mark.parametrize(("value", "word"), [(1.0, "all windows"), (0.0, "no window")])
def test_extreme_probabilities_warn_in_training(value, word, caplog):
    dataset = datasets.Dataset.from_list(make_rows(single=False))
    one = BasePreProcessor(TOKENIZER, STRIDE, LENGTH, value, value)
    one.process_eval(dataset)
    assert not caplog.text
    one.process_train(dataset)
    assert f"Training on {word} without an answer" in caplog.text


@pytest.mark.parametrize("is_train", [True, False])
def test_process_batch_returns_the_features_of_a_batch(is_train):
    dataset = datasets.Dataset.from_list(make_rows(single=False))
    one = BasePreProcessor(TOKENIZER, STRIDE, LENGTH, 1.0, 1.0)
    batch = one._process_batch(dataset[:5], list(range(10, 15)), is_train)
    assert isinstance(batch, BatchEncoding)
    whole = (one.process_train if is_train else one.process_eval)(dataset)[1]
    rows = [row for row in whole.to_list() if row["example_idx"] < 5]
    for name in whole.column_names:
        expected = [row[name] + 10 if name == "example_idx" else row[name] for row in rows]
        assert batch[name] == expected, name


def test_subclass_may_override_process_batch():
    class Shouting(BasePreProcessor):
        def _process_batch(self, examples, indices, is_train):
            return {**super()._process_batch(examples, indices, is_train), "example_id": ["A"] * len(indices)}

    row = {**make_rows(single=False)[0], "context": ["a mill"]}
    features = Shouting(TOKENIZER, STRIDE, LENGTH).process_eval(datasets.Dataset.from_list([row]))[1]
    assert list(features["example_id"]) == ["A"]


def test_label_features_for_subsampling_uses_example_idx():
    examples = {"target": [{"passage_indices": [-1, 3]}, {"passage_indices": [0]}]}
    features = {"example_idx": [0, 1, 1], "target_type": [TargetType.NO_ANSWER] * 2 + [TargetType.PASSAGE_ANSWER]}
    labelled = BasePreProcessor(TOKENIZER, STRIDE, LENGTH).label_features_for_subsampling(features, examples)
    expected = [SubsampleType.NEGATIVE_NO_ANSWER, SubsampleType.NEGATIVE_HAS_ANSWER, SubsampleType.POSITIVE]
    assert labelled["subsample_type"] == expected
    keeping = BasePreProcessor(TOKENIZER, STRIDE, LENGTH, 1.0, 1.0)
    assert keeping.label_features_for_subsampling(features, examples) is features


@pytest.mark.parametrize("compat", [True, False])
def test_passage_that_touches_a_window_counts_for_primeqa_alone(compat):
    row = make_rows(single=True, seed=5)[0]
    row["context"] = [" ".join(WORDS * 4)]
    one = preprocessor(TOKENIZER, compat_label_bug=compat, **SINGLE)
    _, features = one.process_eval(datasets.Dataset.from_list([row]))
    second = [pair for pair in features[1]["offset_mapping"] if pair]
    begin, end = second[0][0], second[-1][1]
    row["target"] = {
        "start_positions": [-1],
        "end_positions": [-1],
        "passage_indices": [0],
        "yes_no_answer": ["YES"],
    }
    touching = TargetType.YES if compat else TargetType.NO_ANSWER
    near = {(0, begin + 1): TargetType.YES, (0, begin): touching, (0, begin - 1): TargetType.NO_ANSWER}
    near |= {(end - 1, end): TargetType.YES, (end, end + 5): touching, (end + 1, end + 5): TargetType.NO_ANSWER}
    for (start, stop), kind in near.items():
        row["passage_candidates"] = {"start_positions": [start], "end_positions": [stop]}
        assert one.process_train(datasets.Dataset.from_list([row]))[1][1]["target_type"] == kind


CONTEXT = "the river runs under an old bridge"
BRIDGE = CONTEXT.index("bridge")
KEEP_ALL = {"negative_sampling_prob_when_has_answer": 1.0, "negative_sampling_prob_when_no_answer": 1.0}


def processed(name, records, **options):
    one = getattr(primeqa, name)(TOKENIZER, 4, **{"max_seq_len": 100, **KEEP_ALL, **options})
    dataset = datasets.Dataset.from_list(records)
    (examples, train), (_, evaluation) = one.process_train(dataset), one.process_eval(dataset)
    assert len(train) == len(evaluation)
    return examples, train


def text_of_label(feature, context):
    start, end = (feature["offset_mapping"][feature[name]] for name in ("start_positions", "end_positions"))
    return context[start[0] : end[1]]


SQUAD = [
    {"id": "a", "context": CONTEXT, "question": "what", "answers": {"text": ["bridge"], "answer_start": [BRIDGE]}},
    {"id": "b", "context": CONTEXT, "question": "who", "answers": {"text": [], "answer_start": []}},
]


def test_squad_flat_and_nested():
    qas = [
        {
            "id": one["id"],
            "question": one["question"],
            "answers": [{"text": text, "answer_start": BRIDGE} for text in one["answers"]["text"]],
        }
        for one in SQUAD
    ]
    nested = [{"version": "2", "data": [{"title": "t", "paragraphs": [{"context": CONTEXT, "qas": qas}]}]}]
    (examples, train), (same, _) = (processed("SQUADPreprocessor", records) for records in (SQUAD, nested))
    assert examples.to_list() == same.to_list()
    first, second = examples.to_list()
    assert first == {
        "context": [CONTEXT],
        "question": "what",
        "target": {
            "start_positions": [BRIDGE],
            "end_positions": [BRIDGE + 6],
            "passage_indices": [0],
            "yes_no_answer": ["NONE"],
        },
        "passage_candidates": {"start_positions": [0], "end_positions": [len(CONTEXT)]},
        "example_id": "a",
        "answer_text": ["bridge"],
        "language": "UNKNOWN",
    }
    assert second["target"]["passage_indices"] == [-1]
    assert list(train["target_type"]) == [1, 0]
    assert text_of_label(train[0], CONTEXT) == "bridge"


def mrqa(text, context=CONTEXT):
    start = context.index(text)
    # The second is where the answer occurs again, which is not so in these contexts.
    spans = {"start": [start, 0], "end": [start + len(text) - 1, 2]}
    detected = {"text": [text], "char_spans": [spans], "token_spans": [{"start": [6, 0], "end": [6, 0]}]}
    return {"qid": "q", "subset": "SQuAD", "context": context, "question": "what", "detected_answers": detected}


def test_mrqa_takes_the_first_occurrence_of_each_answer():
    for options in ({}, {"single_context_multiple_passages": True}):
        examples, train = processed("MRQAPreprocessor", [mrqa("bridge")], **options)
        assert examples[0]["example_id"] == "q"
        assert examples[0]["target"]["end_positions"] == [BRIDGE + 6]
        (reference,) = primeqa.SQUADPostProcessor(1, 9, n_best_size=1).prepare_examples_as_references(examples)
        assert reference["answers"] == {"text": ["bridge"], "answer_start": [BRIDGE]}
        assert not {"subset", "detected_answers"} & set(examples.column_names)
        assert text_of_label(train[0], CONTEXT) == "bridge"


PRICES = "sales rose by 12% ( 5 ) in may"


@pytest.mark.parametrize("text", ["rose", "12%", "rose by 12%", "( 5 )", "may"])
def test_mrqa_labels_the_last_character(text):
    """It is part of MRQA's spans; PrimeQA takes it as the character after them."""
    _, train = processed("MRQAPreprocessor", [mrqa(text, PRICES)])
    assert text_of_label(train[0], PRICES) == text
    examples, train = processed("MRQAPreprocessor", [mrqa(text, PRICES)], compat_label_bug=True)
    assert examples[0]["target"]["end_positions"] == [PRICES.index(text) + len(text) - 1]
    if text.endswith("%"):  # a token of one character
        assert text_of_label(train[0], PRICES) == text[:-1]


@pytest.mark.parametrize("form", ["google", "hub"])
def test_tydi_bytes_become_characters(form):
    raw = tydi_of_google()
    raw["annotations"] = raw["annotations"][1:]
    name, record = {
        "google": ("TyDiQAGooglePreprocessor", raw),
        "hub": ("TyDiQAPreprocessor", tydi_of_hub(raw)),
    }[form]
    examples, train = processed(name, [record])
    (example,) = examples.to_list()
    assert (example["target"]["start_positions"], example["target"]["end_positions"]) == ([TOWN[0], -1], [TOWN[1], -1])
    assert example["passage_candidates"] == {"start_positions": [0, 21], "end_positions": [20, 37]}
    assert example["document_plaintext"] == DOCUMENT
    assert example["language"] == "japanese"
    assert form == "hub" or example["example_id"] == "-7"
    assert text_of_label(train[0], DOCUMENT) == "大阪"


def test_boolqa_marks_yes_and_no_by_their_passage():
    raw = tydi_of_google()
    raw["annotations"] = raw["annotations"][2:]
    _, plain = processed("TyDiQAPreprocessor", [tydi_of_hub(raw)])
    _, marked = processed("TyDiBoolQAPreprocessor", [tydi_of_hub(raw)])
    assert plain[0]["target_type"] == marked[0]["target_type"] == 3
    assert (plain[0]["start_positions"], plain[0]["end_positions"]) == (0, 0)
    assert text_of_label(marked[0], DOCUMENT) == DOCUMENT[21:37].strip()
    outside = {**raw, "passage_answer_candidates": raw["passage_answer_candidates"][::-1]}
    outside["passage_answer_candidates"][1] = dict(
        zip(("plaintext_start_byte", "plaintext_end_byte"), to_bytes((20, 21)), strict=True)
    )
    _, marked = processed("TyDiBoolQAPreprocessor", [tydi_of_hub(outside)], compat_label_bug=True)
    assert text_of_label(marked[0], DOCUMENT) == DOCUMENT


PASSAGES = [" ".join(WORDS[first : first + 6]) for first in (0, 6, 12, 18)]


def asked_about_passage(gold, yes_no):
    document = ". ".join(PASSAGES)
    starts = [len(document[: document.index(passage)].encode()) for passage in PASSAGES]
    ends = [start + len(passage.encode()) for start, passage in zip(starts, PASSAGES, strict=True)]
    return {
        "passage_answer_candidates": {"plaintext_start_byte": starts, "plaintext_end_byte": ends},
        "question_text": "is it",
        "document_title": "t",
        "language": "english",
        "document_url": "u",
        "document_plaintext": document,
        "annotations": {
            "passage_answer_candidate_index": [gold],
            "minimal_answers_start_byte": [-1],
            "minimal_answers_end_byte": [-1],
            "yes_no_answer": [yes_no],
        },
    }


@pytest.mark.parametrize("max_seq_len", [12, 18, 25])
def test_windows_are_answered_by_the_part_of_the_passage_that_they_hold(max_seq_len):
    cases = [(gold, yes_no) for gold in (0, 1, 2, 3, -1) for yes_no in ("YES", "NO", "NONE")]
    records = [asked_about_passage(*case) for case in cases]
    document = records[0]["document_plaintext"]
    plain, marked = (
        processed(name, records, max_seq_len=max_seq_len)[1]
        for name in ("TyDiQAPreprocessor", "TyDiBoolQAPreprocessor")
    )
    seen = set()
    for feature, part in zip(plain, marked, strict=True):
        gold, yes_no = cases[feature["example_idx"]]
        kind = TargetType.from_bool_label(yes_no) or TargetType.PASSAGE_ANSWER
        in_context = zip(feature["offset_mapping"], feature["token_type_ids"], strict=True)
        pairs = [pair for pair, is_context in in_context if is_context and pair[1]]
        begin, stop = (document.index(PASSAGES[gold]), document.index(PASSAGES[gold]) + len(PASSAGES[gold]))
        held = [pair for pair in pairs if pair[0] < stop and pair[1] > begin and gold >= 0]
        assert feature["target_type"] == part["target_type"] == (kind if held else TargetType.NO_ANSWER)
        assert feature["start_positions"] == feature["end_positions"] == 0
        if held and yes_no != "NONE":
            assert text_of_label(part, document) == document[held[0][0] : held[-1][1]]
        else:
            assert part["start_positions"] == part["end_positions"] == 0
        seen.add(part["target_type"])
    assert seen == {*TargetType} - {TargetType.SPAN_ANSWER}


def test_natural_questions_uses_characters_to_train_and_bytes_to_evaluate():
    record = natural_questions()
    examples, train = processed("NaturalQuestionsPreProcessor", [record])
    (example,) = examples.to_list()
    assert example["context"] == ["<P> Oslo lies in Norway </P>"]
    assert example["question"] == "where is oslo"
    assert example["target"]["start_positions"] == [17, -1]
    assert example["target"]["passage_indices"] == [0, -1]
    assert text_of_label(train[0], example["context"][0]) == "Norway"
    one = primeqa.NaturalQuestionsPreProcessor(TOKENIZER, 4, max_seq_len=100)
    (example,) = one.process_eval(datasets.Dataset.from_list([record]))[0].to_list()
    assert example["target"]["start_positions"] == [40, -1]
    assert example["passage_candidates"] == {"start_positions": [0], "end_positions": [54]}
    assert example["document"]["tokens"]


def test_natural_questions_warns_that_passages_are_counted_in_bytes(caplog):
    one = primeqa.NaturalQuestionsPreProcessor(TOKENIZER, 4, max_seq_len=100, max_contexts=1)
    one.process_eval(datasets.Dataset.from_list([natural_questions()]))
    assert "`max_contexts=1` counts passages in bytes of the page when evaluating" in caplog.text


def test_identifiers_of_annotations_may_be_of_any_size():
    raw = tydi_of_google()
    for number, annotation in enumerate(raw["annotations"]):
        annotation["annotation_id"] = 2**64 - 1 - number  # beyond Arrow's int64
    (example,) = read_examples([raw])
    as_text = [{**one, "annotation_id": str(one["annotation_id"])} for one in raw["annotations"]]
    examples, _ = processed("TyDiQAGooglePreprocessor", [{**raw, "annotations": as_text}])
    assert examples[0]["target"] == example["target"]


@pytest.mark.parametrize("compat", [True, False])
def test_natural_questions_keeps_long_answers_without_a_span_unlike_primeqa(compat):
    record = natural_questions()
    record["annotations"] = [{**record["annotations"][0], "short_answers": []}]
    kept = {**record, "annotations": [*record["annotations"], *natural_questions()["annotations"][:1]]}
    examples, train = processed("NaturalQuestionsPreProcessor", [kept], compat_label_bug=compat)
    assert examples[0]["target"]["passage_indices"] == [-1 if compat else 0, 0]
    assert train[0]["target_type"] == (TargetType.NO_ANSWER if compat else TargetType.PASSAGE_ANSWER)
    one = primeqa.NaturalQuestionsPreProcessor(TOKENIZER, 4, max_seq_len=100, compat_label_bug=compat)
    examples, _ = one.process_eval(datasets.Dataset.from_list([kept]))
    assert examples[0]["target"]["passage_indices"] == [-1 if compat else 0, 0]
    (example,) = read_examples([kept])
    assert example["target"]["passage_indices"] == [0, 0]
    kept["annotations"][0]["yes_no_answer"] = 1
    _, train = processed("NaturalQuestionsPreProcessor", [kept], compat_label_bug=compat)
    assert train[0]["target_type"] == (TargetType.NO_ANSWER if compat else TargetType.YES)


def test_an_answer_that_max_contexts_cuts_is_not_labelled():
    row = make_rows(single=True)[0]
    row["context"] = [" ".join(WORDS[:12])]
    passages = {"start_positions": [0, 20], "end_positions": [20, len(row["context"][0])]}
    for end, kind in ((20, TargetType.SPAN_ANSWER), (24, TargetType.PASSAGE_ANSWER)):
        target = {"start_positions": [12], "end_positions": [end], "passage_indices": [0], "yes_no_answer": ["NONE"]}
        row |= {"passage_candidates": passages, "target": target}
        one = preprocessor(TOKENIZER, max_contexts=1, **SINGLE)
        assert one.process_train(datasets.Dataset.from_list([row]))[1][0]["target_type"] == kind


FID = {
    "id": "f",
    "input": "what",
    "output": [{"answer": "old bridge", "meta": {"score": 3}}, {"answer": "a river", "meta": {"score": 2}}],
    "passages": [
        {"title": "Rivers", "text": CONTEXT},
        {"title": "", "text": "the mill"},
        {"title": "", "text": "far"},
    ],
}
UNVOTED = {**FID, "id": "g", "output": FID["output"][1:]}


def fid(records, **options):
    one = primeqa.ELI5FiDPreprocessor(TOKENIZER, 0, max_seq_len=30, max_contexts=2, max_answer_len=12, **options)
    dataset = datasets.Dataset.from_list(records or [FID]).select(range(len(records)))
    return one.process_train(dataset)[1], one.process_eval(dataset)[1]


def test_fusion_in_decoder_rows():
    twice = {**FID, "id": "h", "output": [FID["output"][0], {"answer": "far away", "meta": {"score": 9}}]}
    unanswered = {**FID, "id": "i", "output": []}
    unasked = {**FID, "id": "j", "input": ""}
    train, evaluation = fid([FID, UNVOTED, twice, unanswered, unasked])
    assert list(train["example_id"]) == ["f", "h", "h", "i"]
    assert list(evaluation["example_id"]) == ["f", "g", "h", "i", "j"]
    shown = [[token for token in labels if token != -100] for labels in evaluation["labels"]]
    firsts = ["old bridge", "a river", "old bridge", "", "old bridge"]
    assert shown == [TOKENIZER(answer)["input_ids"] for answer in firsts]
    assert np.array(train["input_ids"]).shape == (4, 2, 30)
    expected = TOKENIZER(f"question: what passage: {CONTEXT}", max_length=30, truncation=True)["input_ids"]
    ids, mask = (np.array(train[0][name][0]) for name in ("input_ids", "attention_mask"))
    assert ids[mask == 1].tolist() == expected
    labels = [[token for token in labels if token != -100] for labels in train["labels"]]
    texts = ["old bridge", "old bridge", "far away", ""]
    assert labels == [TOKENIZER(text)["input_ids"] for text in texts]
    assert {len(labels) for labels in train["labels"]} == {12}


def test_fusion_in_decoder_leaves_out_a_whole_batch_without_votes():
    records = [UNVOTED] * 1000 + [FID]  # `Dataset.map` takes a thousand at once
    assert list(fid(records)[0]["example_id"]) == ["f"]
    with pytest.raises(InputError, match=r"None of the 2 examples has an answer with 3 or more votes"):
        fid([UNVOTED] * 2)


def test_fusion_in_decoder_reads_as_many_passages_as_set():
    one = primeqa.ELI5FiDPreprocessor(TOKENIZER, 0, max_seq_len=30, max_contexts=2)
    one.set_max_contexts(3)
    assert len(one.process_eval(datasets.Dataset.from_list([FID]))[1][0]["input_ids"]) == 3


def test_fusion_in_decoder_features_fit_the_post_processor():
    one = primeqa.ELI5FiDPreprocessor(TOKENIZER, 0, max_seq_len=30, max_contexts=2, max_answer_len=12)
    examples, features = one.process_eval(datasets.Dataset.from_list([FID]))
    ids = [TOKENIZER("old bridge")["input_ids"]]
    post_processor = primeqa.ELI5FiDPostProcessor(k=1, max_answer_length=30, tokenizer=TOKENIZER)
    answered = post_processor.process_references_and_predictions(examples, features, SimpleNamespace(predictions=ids))
    text = TOKENIZER.decode(ids[0], skip_special_tokens=True)
    assert answered.processed_predictions == answered.predictions == [{"id": "f", "prediction_text": text}]
    assert answered.label_ids[0]["id"] == "f"


def test_fusion_in_decoder_columns_are_checked():
    record = {key: value for key, value in FID.items() if key != "output"}
    one = primeqa.ELI5FiDPreprocessor(TOKENIZER, 0, max_seq_len=30, max_contexts=2)
    assert "labels" not in one.process_eval(datasets.Dataset.from_list([record]))[1].column_names
    with pytest.raises(InputError, match="have no column 'output'"):
        fid([record])
    with pytest.raises(InputError, match="no examples to process"):
        fid([])


def test_preprocessor_without_features_is_refused(tokenizer):
    class Nothing(primeqa.AbstractPreProcessor):
        def validate_schema(self, dataset, is_train, pre_adaptation=True):
            pass

    examples = datasets.Dataset.from_list([{"question": "Who?", "context": "Ana."}])
    with pytest.raises(InputError, match=r"Nothing has no way to make features; override `process_train`"):
        Nothing(tokenizer, stride=8).process_eval(examples)
