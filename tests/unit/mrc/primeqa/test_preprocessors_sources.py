"""The preprocessors of single data sets: what they make of a record, and that features come of it."""

from types import SimpleNamespace

import datasets
import numpy as np
import pytest

from mrc_records import DOCUMENT, TOWN, natural_questions, to_bytes, tydi_of_google, tydi_of_hub
from mrc_texts import TOKENIZERS
from portico.errors import InputError
from portico.mrc import primeqa

TOKENIZER = TOKENIZERS["bert"]
CONTEXT = "the river runs under an old bridge"
BRIDGE = CONTEXT.index("bridge")
KEEP_ALL = {"negative_sampling_prob_when_has_answer": 1.0, "negative_sampling_prob_when_no_answer": 1.0}


@pytest.fixture(autouse=True)
def without_progress_bars():
    datasets.disable_progress_bars()


def processed(name, records, **options):
    one = getattr(primeqa, name)(TOKENIZER, 4, max_seq_len=100, **{**KEEP_ALL, **options})
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


def test_mrqa_takes_the_first_place_of_each_answer():
    detected = {
        "text": ["bridge"],
        "char_spans": [{"start": [BRIDGE, 0], "end": [BRIDGE + 5, 2]}],
        "token_spans": [{"start": [6, 0], "end": [6, 0]}],
    }
    record = {"qid": "q", "subset": "SQuAD", "context": CONTEXT, "question": "what", "detected_answers": detected}
    for options in ({}, {"single_context_multiple_passages": True}):
        examples, train = processed("MRQAPreprocessor", [record], **options)
        assert examples[0]["example_id"] == "q"
        assert examples[0]["target"]["end_positions"] == [BRIDGE + 5]
        assert not {"subset", "detected_answers"} & set(examples.column_names)
        # The end is that of the last character, so that a last piece of one character is missed.
        assert text_of_label(train[0], CONTEXT).startswith("bridg")


@pytest.mark.parametrize("form", ["google", "hub"])
def test_tydi_becomes_characters(form):
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


def test_yes_and_no_are_marked_by_their_passage():
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
    _, marked = processed("TyDiBoolQAPreprocessor", [tydi_of_hub(outside)])
    assert text_of_label(marked[0], DOCUMENT) == DOCUMENT


def test_natural_questions_in_characters_to_train_and_in_bytes_to_evaluate():
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


def test_a_long_answer_alone_is_not_trained_on():
    record = natural_questions()
    record["annotations"] = [{**record["annotations"][0], "short_answers": []}]
    kept = {**record, "annotations": [*record["annotations"], *natural_questions()["annotations"][:1]]}
    examples, train = processed("NaturalQuestionsPreProcessor", [kept])
    assert examples[0]["target"]["passage_indices"] == [-1, 0]
    assert train[0]["target_type"] == 0


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


def fid(records, **options):
    one = primeqa.ELI5FiDPreprocessor(TOKENIZER, 0, max_seq_len=30, max_contexts=2, max_answer_len=12, **options)
    dataset = datasets.Dataset.from_list(records or [FID]).select(range(len(records)))
    return one.process_train(dataset)[1], one.process_eval(dataset)[1]


def test_fusion_in_decoder_rows():
    unvoted = {**FID, "id": "g", "output": FID["output"][1:]}
    twice = {**FID, "id": "h", "output": [FID["output"][0], {"answer": "far away", "meta": {"score": 9}}]}
    train, evaluation = fid([FID, unvoted, twice])
    assert list(train["example_id"]) == ["f", "g", "h", "h"]
    assert list(evaluation["example_id"]) == ["f", "g", "h"]
    shown = [[token for token in labels if token != -100] for labels in evaluation["labels"]]
    assert shown == [TOKENIZER(record["output"][0]["answer"])["input_ids"] for record in (FID, unvoted, twice)]
    assert np.array(train["input_ids"]).shape == (4, 2, 30)
    expected = TOKENIZER(f"question: what passage: Rivers {CONTEXT}", max_length=30, truncation=True)["input_ids"]
    ids, mask = (np.array(train[0][name][0]) for name in ("input_ids", "attention_mask"))
    assert ids[mask == 1].tolist() == expected
    labels = [[token for token in labels if token != -100] for labels in train["labels"]]
    texts = ["old bridge", "", "old bridge", "far away"]
    assert labels == [TOKENIZER(text)["input_ids"] for text in texts]
    assert {len(labels) for labels in train["labels"]} == {12}


def test_fusion_in_decoder_goes_through_with_its_own_examples():
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
