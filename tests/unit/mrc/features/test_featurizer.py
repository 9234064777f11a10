import pickle
from types import SimpleNamespace

import datasets
import pytest
from transformers import PreTrainedTokenizerFast

from mrc_data import TOKENIZERS, make_examples, windows
from portico.errors import InputError
from portico.mrc.features.featurizer import Featurizer

SIZES = [
    {"max_seq_length": length, "doc_stride": stride, "pad": pad}
    for length, stride, pad in ((64, 16, False), (40, 12, True), (32, 0, False), (200, 50, True))
]
EXAMPLES = make_examples(0)


def slow_positions(tokenizer, example, row, offsets, in_context):
    ids = row["input_ids"]
    found = [ids.index(i) for i in (tokenizer.cls_token_id, tokenizer.bos_token_id) if i in ids]
    nothing = ((found or [0])[0],) * 2
    if not example["answers"]["text"]:
        return nothing
    answer_start = example["answers"]["answer_start"][0]
    answer_end = answer_start + len(example["answers"]["text"][0])
    first, last = in_context.index(True), len(ids) - 1 - in_context[::-1].index(True)
    if offsets[first][0] > answer_start or offsets[last][1] < answer_end:
        return nothing
    start, end = first, last
    while start < len(ids) and offsets[start][0] <= answer_start:
        start += 1
    while offsets[end][1] >= answer_end:
        end -= 1
    return start - 1, end + 1


def made(tokenizer, sizes, **options):
    sizes = {("pad_to_max_length" if name == "pad" else name): value for name, value in sizes.items()}
    return Featurizer(tokenizer, **sizes, **options)


@pytest.fixture(params=TOKENIZERS)
def tokenizer(request):
    return TOKENIZERS[request.param]


@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: "-".join(map(str, sizes.values())))
def test_eval_features_match_the_pair_encoding(tokenizer, sizes):
    features = made(tokenizer, sizes).eval_features(EXAMPLES)
    expected = [
        {
            **row,
            "example_id": example["id"],
            "offset_mapping": [pair if inside else None for pair, inside in zip(offsets, in_context, strict=True)],
        }
        for example, row, offsets, in_context in windows(tokenizer, EXAMPLES, **sizes)
    ]
    assert [features[f] for f in range(len(features))] == expected
    assert features.example_id == [row["example_id"] for row in expected]
    assert [EXAMPLES[e]["id"] for e in features.example_index] == features.example_id
    assert features.lengths.tolist() == [len(row["input_ids"]) for row in expected]


@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: "-".join(map(str, sizes.values())))
def test_train_features_with_the_label_bug_match_run_qa(tokenizer, sizes):
    features = made(tokenizer, sizes, compat_label_bug=True).train_features(EXAMPLES)
    for f, (example, row, *where) in enumerate(windows(tokenizer, EXAMPLES, **sizes)):
        start, end = slow_positions(tokenizer, example, row, *where)
        assert features[f] == {**row, "start_positions": start, "end_positions": end}


@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: "-".join(map(str, sizes.values())))
def test_labels_are_the_tokens_with_characters_of_the_answer(tokenizer, sizes):
    features = made(tokenizer, sizes).train_features(EXAMPLES)
    rows, held = [], {}
    for example, row, offsets, in_context in windows(tokenizer, EXAMPLES, **sizes):
        start, end = -1, -1
        if example["answers"]["text"]:
            start = example["answers"]["answer_start"][0]
            end = start + len(example["answers"]["text"][0])
        tokens = [t for t, one in enumerate(offsets) if in_context[t] and one[0] < end and one[1] > start]
        chars = {char for t in tokens for char in range(*offsets[t]) if start <= char < end}
        held[example["id"]] = held.get(example["id"], set()) | chars
        rows.append((example, row, offsets, in_context, tokens, chars))
    num_other = num_last = 0
    for feature, (example, row, offsets, in_context, tokens, chars) in zip(features, rows, strict=True):
        theirs = slow_positions(tokenizer, example, row, offsets, in_context)
        labels = feature["start_positions"], feature["end_positions"]
        whole = bool(chars) and chars == held[example["id"]]
        nothing = slow_positions(tokenizer, {"answers": {"text": []}}, row, offsets, in_context)
        if not whole:
            assert in_context[nothing[0]] or labels == nothing
        else:
            assert labels == (tokens[0], tokens[-1])
            num_other += labels != theirs
            num_last += theirs[0] > max(t for t, inside in enumerate(in_context) if inside)
    assert num_other > num_last > 0  # where the example of transformers has other labels


def test_each_text_is_encoded_once_unless_pairs_are_encoded_differently(monkeypatch):
    num_encoded = []

    def counting_call(tokenizer, text, *args, **kwargs):
        num_encoded.append(len(text) if isinstance(text, list) else 1)
        return original(tokenizer, text, *args, **kwargs)

    original = PreTrainedTokenizerFast.__call__
    monkeypatch.setattr(PreTrainedTokenizerFast, "__call__", counting_call)
    Featurizer(TOKENIZERS["bert"], max_seq_length=40, doc_stride=12).train_features(EXAMPLES)
    assert 0 < sum(num_encoded) < len(EXAMPLES)
    num_encoded.clear()
    from_right = TOKENIZERS["no CLS, windows from the right"]
    Featurizer(from_right, max_seq_length=40, doc_stride=12).train_features(EXAMPLES)
    assert num_encoded[-1] == len(EXAMPLES)


def test_empty_texts_have_one_window():
    examples = [{"id": "a", "context": "", "question": "", "answers": {"text": [], "answer_start": []}}, EXAMPLES[3]]
    features = Featurizer(TOKENIZERS["bert"], max_seq_length=300, doc_stride=8).train_features(examples)
    assert features[0]["input_ids"] == [2, 3, 3]
    assert (features[0]["start_positions"], features[0]["end_positions"]) == (0, 0)
    assert len(Featurizer(TOKENIZERS["bert"]).eval_features(examples[:1])) == 1


def test_max_question_length_cuts_at_the_end_of_a_token():
    featurizer = Featurizer(TOKENIZERS["bert"], max_seq_length=60, doc_stride=8, max_question_length=2)
    example = {**EXAMPLES[0], "question": "o o o o", "context": "a"}
    short = {**example, "question": "o o"}
    assert featurizer.train_features([example, short])[0] == featurizer.train_features([short])[0]
    assert len(featurizer.train_features([example])[0]["input_ids"]) == 6


def test_dataset_and_list_have_the_same_features():
    featurizer = Featurizer(TOKENIZERS["bert"], max_seq_length=40, doc_stride=12)
    dataset = datasets.Dataset.from_list(EXAMPLES)
    for make in (featurizer.train_features, featurizer.eval_features):
        assert list(make(dataset)) == list(make(EXAMPLES))


def test_feature_set_pickles_and_checks_its_index():
    features = Featurizer(TOKENIZERS["bert"], max_seq_length=40, doc_stride=12).eval_features(EXAMPLES)
    again = pickle.loads(pickle.dumps(features))
    assert list(again) == list(features)
    assert features[-1] == features[len(features) - 1]
    with pytest.raises(IndexError, match=f"feature {len(features)} of {len(features)}"):
        features[len(features)]


def test_remove_columns_keeps_the_attributes():
    features = Featurizer(TOKENIZERS["bert"], max_seq_length=40, doc_stride=12).eval_features(EXAMPLES)
    pruned = features.remove_columns(["example_id", "offset_mapping"])
    assert pruned.column_names == list(pruned[0]) == ["input_ids", "token_type_ids", "attention_mask"]
    assert pruned.example_id == features.example_id
    assert "offset_mapping" in features[0]


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda: Featurizer(TOKENIZERS["bert"]).eval_features([]), "no examples to make features of"),
        (lambda: Featurizer(SimpleNamespace(is_fast=False)), "SimpleNamespace is not a fast tokenizer"),
        *(
            (
                lambda stride=stride: Featurizer(TOKENIZERS["bert"], max_seq_length=40, doc_stride=stride),
                f"`doc_stride={stride}` must be at least 0 and below `max_seq",
            )
            for stride in (-1, 40, 41)
        ),
    ],
)
def test_what_makes_no_features_is_refused(use, message):
    with pytest.raises(InputError, match=message):
        use()


@pytest.mark.parametrize(("num_words", "room"), [(20, 17), (50, 0)])
def test_question_that_leaves_no_room_is_refused(num_words, room):
    examples = [EXAMPLES[0], {**EXAMPLES[0], "question": " ".join("o" * num_words)}]
    message = rf"`doc_stride=17` .*`max_seq_length=40` .*\({num_words} tokens: 'o o.*leaves {room} tokens"
    with pytest.raises(InputError, match=message):
        Featurizer(TOKENIZERS["bert"], max_seq_length=40, doc_stride=17).train_features(examples)
