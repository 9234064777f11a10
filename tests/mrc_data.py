"""Small tokenizers and questions over their words, and records of every format of questions."""

import random
from itertools import groupby

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

# ---- Texts ----

TEXT = "the river Zürich runs under an old bridge of 1898 stones and 42 lamps; Łódź, Jose's mill was far away"
WORDS = TEXT.split(" ")


def bert_tokenizer():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    tokenizer.train_from_iterator(WORDS, trainers.WordPieceTrainer(vocab_size=90, special_tokens=specials))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


def byte_level_tokenizer(pair, **names):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    specials = ["<pad>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=specials, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(WORDS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair=pair, special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", **names)


TOKENIZERS = {
    "bert": bert_tokenizer(),
    "two separators": byte_level_tokenizer("<s> $A </s> </s> $B </s>", bos_token="<s>"),
    "left padding, CLS last": byte_level_tokenizer(
        "$A </s> $B:1 </s>:1 <s>:2",
        cls_token="<s>",
        padding_side="left",
        pad_token_type_id=3,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    ),
    "no CLS, windows from the right": byte_level_tokenizer("$A </s> $B </s>", truncation_side="left"),
}


def make_examples(seed, num_contexts=12, questions_per_context=4):
    rng = random.Random(seed)
    examples = []
    for c in range(num_contexts):
        context = " ".join(rng.choices(WORDS, k=rng.randint(1, 60)))
        for q in range(questions_per_context):
            start = rng.randrange(len(context))
            end = rng.randint(start + 1, min(len(context), start + 30))
            if q == 1:  # the last word: it is the last context token of the last window
                start, end = context.rfind(" ") + 1, len(context)
            answers = (
                {"text": [context[start:end]], "answer_start": [start]} if q else {"text": [], "answer_start": []}
            )
            question = "  " + " ".join(rng.choices(WORDS, k=rng.randint(1, 4)))
            examples.append({"id": f"{c}-{q}", "context": context, "question": question, "answers": answers})
    return examples


def windows(tokenizer, examples, *, max_seq_length, doc_stride, pad=False):
    """Follow the rules of the QA example of transformers one window at a time.

    Yield of each window its example, its row, its offsets, and which tokens are in the context.
    """
    right = tokenizer.padding_side == "right"
    for example in examples:
        pair = (example["question"].lstrip(), example["context"])
        encoding = tokenizer(
            *(pair if right else pair[::-1]),
            truncation="only_second" if right else "only_first",
            max_length=max_seq_length,
            stride=doc_stride,
            padding="max_length" if pad else False,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        for w, offsets in enumerate(encoding["offset_mapping"]):
            row = {name: encoding[name][w] for name in tokenizer.model_input_names}
            yield example, row, offsets, [sequence == int(right) for sequence in encoding.sequence_ids(w)]


# ---- Records ----

DOCUMENT = "Łódź liegt in Polen. 大阪 is in Japan.\nIs it?"
TOWN = (DOCUMENT.index("大阪"), DOCUMENT.index("大阪") + 2)
TOKENS = ["<P>", "Oslo", "lies", "in", "Norway", "</P>"]


def to_bytes(span):
    return [len(DOCUMENT[:char].encode()) for char in span]


def tydi_of_google(**changes):
    start, end = to_bytes(TOWN)
    passages = [to_bytes((0, 20)), to_bytes((21, 37))]
    null = {"plaintext_start_byte": -1, "plaintext_end_byte": -1}

    def annotation(answer, passage, yes_no="NONE"):
        return {"minimal_answer": answer, "passage_answer": {"candidate_index": passage}, "yes_no_answer": yes_no}

    return {
        "example_id": -7,
        "document_title": "Japan",
        "document_plaintext": DOCUMENT,
        "question_text": "Which town?",
        "language": "japanese",
        "annotations": [
            annotation(null, -1),
            annotation({"plaintext_start_byte": start, "plaintext_end_byte": end}, 1),
            annotation(null, 1, "YES"),
        ],
        "passage_answer_candidates": [{"plaintext_start_byte": a, "plaintext_end_byte": b} for a, b in passages],
        **changes,
    }


def tydi_of_hub(raw):
    annotations = {
        "passage_answer_candidate_index": [one["passage_answer"]["candidate_index"] for one in raw["annotations"]],
        "minimal_answers_start_byte": [one["minimal_answer"]["plaintext_start_byte"] for one in raw["annotations"]],
        "minimal_answers_end_byte": [one["minimal_answer"]["plaintext_end_byte"] for one in raw["annotations"]],
        "yes_no_answer": [one["yes_no_answer"] for one in raw["annotations"]],
    }
    rows = raw["passage_answer_candidates"]
    passages = {key: [row[key] for row in rows] for key in rows[0]}
    kept = {key: value for key, value in raw.items() if key != "example_id"}
    return {**kept, "annotations": annotations, "passage_answer_candidates": passages}


def natural_questions(**changes):
    """A record in the hub's format; a token begins at every tenth byte of the page."""
    rows = [
        {"token": token, "is_html": "<" in token, "start_byte": 10 * t, "end_byte": 10 * t + len(token)}
        for t, token in enumerate(TOKENS)
    ]
    short = {"start_token": 4, "end_token": 5, "start_byte": 40, "end_byte": 46, "text": "Norway"}
    null = {"start_token": -1, "end_token": -1, "start_byte": -1, "end_byte": -1, "candidate_index": -1}
    long = {"start_token": 0, "end_token": 6, "start_byte": 0, "end_byte": 54, "candidate_index": 0}
    return {
        "id": "797803103760793766",
        "document": {"title": "Oslo", "url": "", "tokens": rows},
        "question": {"text": "where is oslo", "tokens": ["where", "is", "oslo"]},
        "long_answer_candidates": [
            {"start_token": 0, "end_token": 6, "start_byte": 0, "end_byte": 54, "top_level": True}
        ],
        "annotations": [
            {"id": "1", "long_answer": long, "short_answers": [short], "yes_no_answer": -1},
            {"id": "2", "long_answer": null, "short_answers": [], "yes_no_answer": 1},
        ],
        **changes,
    }


def simplified():
    raw = natural_questions()
    words = {-1: "NONE", 1: "YES"}
    annotations = [{**one, "yes_no_answer": words[one["yes_no_answer"]]} for one in raw["annotations"]]
    return {
        "example_id": 797803103760793766,
        "question_text": "where is oslo",
        "document_text": "<P> Oslo lies in Norway </P>",
        "long_answer_candidates": raw["long_answer_candidates"],
        "annotations": annotations,
    }


def original():
    raw = simplified()
    del raw["document_text"]
    return {**raw, "document_title": "Oslo", "document_tokens": natural_questions()["document"]["tokens"]}


ANSWER = {"text": "Norway", "char_spans": [[13, 18]], "token_spans": [[3, 3]]}
MRQA_QUESTION = {"qid": "a1", "question": "where is oslo", "answers": ["Norway"], "detected_answers": [ANSWER]}
MRQA_LINES = [
    {"header": {"dataset": "SQuAD", "split": "train"}},
    {"context": "Oslo lies in Norway", "context_tokens": [], "qas": [MRQA_QUESTION]},
]
MRQA_FLAT = {
    **MRQA_QUESTION,
    "context": "Oslo lies in Norway",
    "detected_answers": {"text": ["Norway"], "char_spans": [{"start": [13], "end": [18]}]},
}

BASE_RAW = {
    "example_id": "b1",
    "question": "where is oslo",
    "context": ["Nothing.", "Oslo lies in Norway"],
    "target": {"start_positions": [13], "end_positions": [19], "passage_indices": [1], "yes_no_answer": ["NONE"]},
}

FID_RAW = {
    "id": "f1",
    "input": "where is oslo",
    "output": [{"answer": "Up north.", "meta": {"score": 4}}, {"answer": ""}],
    "passages": [{"title": "Oslo", "text": "It lies in Norway"}, {"text": "Nothing."}],
}


def to_squad(examples):
    """Nest flat examples as in a SQuAD 2.0 file; those of one passage must be consecutive."""
    data = []
    for (title, context), group in groupby(examples, key=lambda example: (example["title"], example["context"])):
        data.append(
            {"title": title, "paragraphs": [{"context": context, "qas": [squad_question(one) for one in group]}]}
        )
    return {"version": "v2.0", "data": data}


def squad_question(example):
    texts, starts = example["answers"].values()
    return {
        **{key: example[key] for key in ("id", "question", "question_type")},
        "answers": [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)],
        "is_impossible": not texts,
    }
