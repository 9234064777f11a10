import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import DataCollatorWithPadding, PreTrainedTokenizerFast

from portico.mrc import BeamSearchCollator, TargetTypeCollator
from portico.mrc.collators import head_collator

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "who", "won", "ann", "did", "not", "lose")


def tokenizer(template="[CLS] $A [SEP] $B [SEP]", **options):
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


def test_types_are_told_by_positions():
    words = tokenizer()
    collator = TargetTypeCollator(words, DataCollatorWithPadding(words))
    batch = collator(rows(words, *PAIRS, start_positions=[4, 0], end_positions=[5, 0]))
    assert batch["target_type"].tolist() == [1, 0]


def test_given_types_stay_and_without_positions_there_are_none():
    words = tokenizer()
    collator = TargetTypeCollator(words, DataCollatorWithPadding(words))
    given = rows(words, *PAIRS, start_positions=[0, 0], end_positions=[0, 0], target_type=[3, 2])
    assert collator(given)["target_type"].tolist() == [3, 2]
    assert "target_type" not in collator(rows(words, *PAIRS))


def test_answers_can_be_in_the_context_or_be_none():
    words = tokenizer()
    batch = BeamSearchCollator(words, DataCollatorWithPadding(words))(
        rows(words, *PAIRS, start_positions=[4, 0], end_positions=[5, 0])
    )
    # [CLS] who won [SEP] ann [UNK] did not [SEP]
    assert batch["p_mask"].tolist() == [[0, 1, 1, 1, 0, 0, 0, 0, 1], [0, 1, 1, 0, 1, 1, 1, 1, 1]]
    assert batch["cls_index"].tolist() == [0, 0]
    assert batch["is_impossible"].tolist() == [0.0, 1.0]


def test_an_empty_question_leaves_the_context():
    words = tokenizer()
    batch = BeamSearchCollator(words, DataCollatorWithPadding(words))(rows(words, ("", "ann won")))
    assert batch["p_mask"].tolist() == [[0, 1, 0, 0, 1]]
    assert "is_impossible" not in batch


def test_two_separators_are_one_border():
    words = tokenizer("[CLS] $A [SEP] [SEP] $B [SEP]")
    batch = BeamSearchCollator(words, DataCollatorWithPadding(words))(rows(words, ("who", "ann won")))
    assert batch["p_mask"].tolist() == [[0, 1, 1, 1, 0, 0, 1]]


def test_left_padding_has_the_context_first():
    words = tokenizer("$A [SEP] $B [SEP] [CLS]", padding_side="left")
    pairs = [(context, question) for question, context in PAIRS]
    batch = BeamSearchCollator(words, DataCollatorWithPadding(words))(
        rows(words, *pairs, start_positions=[0, 4], end_positions=[0, 4])
    )
    assert batch["p_mask"].tolist() == [[0, 0, 0, 0, 1, 1, 1, 1, 0], [1, 1, 1, 1, 0, 1, 1, 1, 0]]
    assert batch["cls_index"].tolist() == [8, 8]


def test_masks_of_the_features_are_made_anew():
    words = tokenizer()
    given = rows(words, *PAIRS, p_mask=[[1.0] * 9, [1.0] * 5], is_impossible=[1, 0], start_positions=[4, 0])
    batch = BeamSearchCollator(words, DataCollatorWithPadding(words))(given)
    assert batch["p_mask"].shape == (2, 9)
    assert batch["is_impossible"].tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        ("span", DataCollatorWithPadding),
        ("extractive", TargetTypeCollator),
        ("extractive_with_confidence", TargetTypeCollator),
        ("beam_search", BeamSearchCollator),
    ],
)
def test_each_head_gets_its_inputs(head, kind):
    assert type(head_collator(head, tokenizer())) is kind
