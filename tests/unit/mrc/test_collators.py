import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch.utils.data import DataLoader
from transformers import DataCollatorWithPadding, PreTrainedTokenizerFast, default_data_collator

from portico.experiments.from_scratch import train_wordpiece_tokenizer
from portico.mrc import BeamSearchCollator, Featurizer, FiDDataCollator, TargetTypeCollator
from portico.mrc.collators import RightPaddingCollator, batch_by_columns, head_collator
from portico.mrc.corpus import generate
from portico.mrc.generative import new_generator

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "who", "won", "ann", "did", "not", "lose")
PLAIN = "[CLS] $A [SEP] $B [SEP]"


def tokenizer(template=PLAIN, **options):
    backend = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, "[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    marks = [("[CLS]", 2), ("[SEP]", 3)]
    backend.post_processor = processors.TemplateProcessing(single=template, pair=template, special_tokens=marks)
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, model_input_names=["input_ids", "attention_mask"], **names, **options
    )


def rows(words, *pairs, **labels):
    features = [dict(words(*pair)) for pair in pairs]
    return [row | {name: values[n] for name, values in labels.items()} for n, row in enumerate(features)]


PAIRS = (("who won", "ann xyz did not"), ("won", "ann"))


def test_answer_types_follow_from_positions_where_none_are_given():
    words = tokenizer()
    collator = TargetTypeCollator(words, DataCollatorWithPadding(words))
    positions = {"start_positions": [4, 0], "end_positions": [5, 0]}
    assert collator(rows(words, *PAIRS, **positions))["target_type"].tolist() == [1, 0]
    assert collator(rows(words, *PAIRS, **positions, target_type=[3, 2]))["target_type"].tolist() == [3, 2]
    assert "target_type" not in collator(rows(words, *PAIRS))


@pytest.mark.parametrize(
    ("template", "side", "pairs", "mask"),
    [
        # [CLS] who won [SEP] ann [UNK] did not [SEP]
        (PLAIN, "right", PAIRS, [[0, 1, 1, 1, 0, 0, 0, 0, 1], [0, 1, 1, 0, 1, 1, 1, 1, 1]]),
        (PLAIN, "right", [("", "ann won")], [[0, 1, 0, 0, 1]]),
        ("[CLS] $A [SEP] [SEP] $B [SEP]", "right", [("who", "ann won")], [[0, 1, 1, 1, 0, 0, 1]]),
        # The context comes first.
        (
            "$A [SEP] $B [SEP] [CLS]",
            "left",
            [pair[::-1] for pair in PAIRS],
            [[0, 0, 0, 0, 1, 1, 1, 1, 0], [0, 1, 1, 1, 0, 1, 1, 1, 1]],
        ),
    ],
    ids=["plain", "no question", "two separators", "left"],
)
def test_the_mask_allows_the_context_and_no_answer(template, side, pairs, mask):
    words = tokenizer(template, padding_side=side)
    batch = BeamSearchCollator(words, DataCollatorWithPadding(words))(rows(words, *pairs))
    assert batch["p_mask"].tolist() == mask
    assert batch["cls_index"].tolist() == ([0] * len(pairs) if side == "right" else [8, 4])
    assert "is_impossible" not in batch


def test_masks_of_the_features_are_replaced_and_impossible_ones_kept():
    words = tokenizer()
    collator = BeamSearchCollator(words, DataCollatorWithPadding(words))
    assert collator(rows(words, *PAIRS, start_positions=[4, 0]))["is_impossible"].tolist() == [0.0, 1.0]
    given = rows(words, *PAIRS, p_mask=[[1.0] * 9, [1.0] * 5], is_impossible=[1, 0], start_positions=[4, 0])
    assert collator(given)["p_mask"].shape == (2, 9)
    assert collator(given)["is_impossible"].tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        ("span", DataCollatorWithPadding),
        ("extractive", TargetTypeCollator),
        ("extractive_with_confidence", TargetTypeCollator),
        ("beam_search", BeamSearchCollator),
    ],
)
def test_each_head_has_its_collator(head, kind):
    assert type(head_collator(head, tokenizer())) is kind


@pytest.fixture(scope="module")
def generator():
    train, _ = generate(num_train=8, num_validation=8, seed=1)
    shape = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    return new_generator([one["context"] for one in train], vocab_size=300, model=shape, fusion_in_decoder=True)


def features():
    return [
        {"input_ids": [[5, 6], [7, 8]], "attention_mask": [[1, 1], [1, 1]], "labels": [9, 2], "id": "a", "score": 1.5},
        {"input_ids": [[4, 4, 4]], "attention_mask": [[1, 1, 1]], "labels": [9, 9, 2], "id": "b", "score": 2.5},
    ]


def test_fid_collator_stacks_passages_and_pads_labels(generator):
    batch = FiDDataCollator(generator.tokenizer)(features())
    pad = generator.tokenizer.pad_token_id
    assert batch["input_ids"].tolist() == [
        [[5, 6, pad], [7, 8, pad]],
        [[4, 4, 4], [pad, pad, pad]],
    ]
    assert batch["attention_mask"].tolist() == [[[1, 1, 0], [1, 1, 0]], [[1, 1, 1], [0, 0, 0]]]
    assert batch["labels"].tolist() == [[9, 2, -100], [9, 9, 2]]
    assert batch["id"] == ["a", "b"]
    assert batch["score"].tolist() == [1.5, 2.5]
    assert "decoder_input_ids" not in batch


def test_fid_collator_pads_to_multiples_on_the_side_of_the_tokenizer(generator):
    collator = FiDDataCollator(generator.tokenizer, generator.model, pad_to_multiple_of=4, label_pad_token_id=-1)
    assert collator(features())["labels"].tolist() == [[9, 2, -1, -1], [9, 9, 2, -1]]
    generator.tokenizer.padding_side = "left"
    try:
        assert collator(features())["labels"].tolist() == [[-1, -1, 9, 2], [-1, 9, 9, 2]]
    finally:
        generator.tokenizer.padding_side = "right"


def test_fid_collator_lets_the_model_make_decoder_inputs(generator):
    batch = FiDDataCollator(generator.tokenizer, generator.model)(features())
    expected = generator.model.prepare_decoder_input_ids_from_labels(labels=batch["labels"])
    assert torch.equal(batch["decoder_input_ids"], expected)


def test_fid_collator_accepts_features_without_labels(generator):
    unlabelled = [{name: value for name, value in row.items() if name != "labels"} for row in features()]
    assert "labels" not in FiDDataCollator(generator.tokenizer, generator.model)(unlabelled)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("pad", [False, True])
@pytest.mark.parametrize("dropped", [[], ["token_type_ids"], ["attention_mask"]])
def test_batches_of_columns_equal_those_of_rows(side, pad, dropped):
    tokenizer = train_wordpiece_tokenizer(["why the cat sat"], vocab_size=60)
    tokenizer.padding_side = side
    examples = [
        {"id": str(e), "question": "why " * (e + 1), "context": "the cat sat " * (3 * e + 4)} for e in range(6)
    ]
    featurizer = Featurizer(tokenizer, max_seq_length=24, doc_stride=4, pad_to_max_length=pad)
    labels = [{**one, "answers": {"text": ["cat"], "answer_start": [4]}} for one in examples]
    features = featurizer.eval_features(labels, labels=True).remove_columns(["example_id", "offset_mapping", *dropped])
    collators = [DataCollatorWithPadding(tokenizer), default_data_collator]
    collators.append(TargetTypeCollator(tokenizer, collators[0]))
    for collator in collators:
        columns, quick = batch_by_columns(features, collator)
        assert quick is not collator
        for indices in ([0], [1], [0, 1, 2, 3], [5, 0, 7, 3], list(range(len(features)))):
            rows = [features[i] for i in indices]
            if collator is default_data_collator and len({len(row["input_ids"]) for row in rows}) > 1:
                for made in (lambda: collator(rows), lambda: quick(columns.__getitems__(indices))):  # noqa: B023
                    with pytest.raises(ValueError, match="expected sequence of length"):
                        made()
                continue
            expected, made = RightPaddingCollator(collator)(rows), quick(columns.__getitems__(indices))
            assert type(made) is type(expected)
            assert list(made) == list(expected)
            for name, values in expected.items():
                assert made[name].dtype == values.dtype
                assert made[name].tolist() == values.tolist()
            assert [*columns.__getitems__(indices)] == rows


def test_other_collators_get_the_rows_themselves():
    words = train_wordpiece_tokenizer(["why the cat sat"], vocab_size=60)
    featurizer = Featurizer(words, max_seq_length=24, doc_stride=4)
    features = featurizer.eval_features([{"id": "0", "question": "why", "context": "the cat sat"}])

    class Own(DataCollatorWithPadding):
        pass

    view, _ = batch_by_columns(features, DataCollatorWithPadding(words))
    assert [next(iter(DataLoader(one, collate_fn=list)))[0] for one in (features, view)] == [features[0]] * 2
    assert view.__getitems__ is not None
    assert features.__getitems__ is view.remove_columns(["example_id"]).__getitems__ is None
    for collator in (Own(words), DataCollatorWithPadding(words, pad_to_multiple_of=8), lambda rows: rows):
        assert batch_by_columns(features, collator) == (features, collator)
    rows = [features[0]]
    assert batch_by_columns(rows, default_data_collator) == (rows, default_data_collator)
