"""A model that predicts exactly the training labels answers every question, whatever the tokenizer and the batch."""

from copy import deepcopy
from itertools import pairwise

import numpy as np
import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertConfig, BertForQuestionAnswering, DataCollatorWithPadding, PreTrainedTokenizerFast

from portico import MRCTrainer, TrainingArguments
from portico.compat.transformers import QuestionAnsweringModelOutput
from portico.mrc import BeamSearchCollator, Featurizer, Reader, SpanPostProcessing, SquadMetrics, TargetTypeCollator
from portico.mrc.collators import PackingCollator, RightPaddingCollator
from portico.mrc.packing import enable_packing
from portico.mrc.primeqa import TargetType
from unit.mrc.small_readers import QUIET

# ---- Questions ----

CAFE = "cafe\u0301"  # an accent that normalizers remove, after its letter
SENTENCES = {
    "the old mill of Łódź was built in 1921 by Anna O'Neil": ["Anna O'Neil", "1921", "the", "Łódź"],
    f"die Straße zum {CAFE} kostet 15 € … und zurück 30 €": [CAFE, "Straße", "30 €"],
    "祖 特 芬 的 面 包 店 由 安娜 于 一九二一 年 创立": ["芬", "安娜", "一九二一", "创立"],
    "بُنِيَ البيتُ في مدينةٍ قديمة": ["البيتُ", "قديمة"],
    "यह नगर १९२१ में बना था": ["नगर", "१९२१", "था"],
    "the ﬁrst 😀 of \uff12\uff10\uff12\uff10 came late": ["ﬁrst", "\uff12\uff10\uff12\uff10", "😀", "late"],
}


def make_examples():
    """Return questions with and without answers; some contexts take several windows."""
    found = []
    for number, (sentence, answers) in enumerate(SENTENCES.items()):
        filler = " ".join(f"word{number}x{n}" for n in range(20 * (number % 2)))
        context = f"{filler} {sentence} {filler}" if filler else sentence
        for answer in (*answers, None):
            texts = [] if answer is None else [answer]
            starts = [context.index(sentence) + sentence.index(text) for text in texts]
            question = f"which one is number {len(found)} ?"
            answers_of = {"text": texts, "answer_start": starts}
            found.append({"id": str(len(found)), "question": question, "context": context, "answers": answers_of})
    return found


EXAMPLES = make_examples()
GOLD = {one["id"]: "".join(one["answers"]["text"]) for one in EXAMPLES}
SIZES = {"max_seq_length": 64, "doc_stride": 24}

# ---- Tokenizers ----

MARKS = ["<pad>", "<unk>", "<cls>", "<sep>"]
TEMPLATES = {
    "class token first": ("<cls> $A <sep>", "<cls> $A <sep> $B:1 <sep>:1"),
    "class token last": ("$A <sep> <cls>", "$A <sep> $B:1 <sep>:1 <cls>:2"),
    "no class token": ("$A <sep>", "$A <sep> $B:1 <sep>:1"),
    "no marks": ("$A", "$A $B:1"),
}
LLAMA = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+(?!\S)|\s+"
BYTES = pre_tokenizers.ByteLevel
SPACES = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
EXPANDING = normalizers.Sequence(
    [normalizers.Replace("ß", "ss"), normalizers.Replace("…", "..."), normalizers.Strip()]
)


def pieces(*splitters):
    return pre_tokenizers.Sequence([*splitters, BYTES(add_prefix_space=True)])


# Model, normalizer, pre-tokenizer.
KINDS = {
    "WordPiece": (models.WordPiece, normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()),
    "WordPiece cased": (
        models.WordPiece,
        normalizers.BertNormalizer(lowercase=False, handle_chinese_chars=False),
        pre_tokenizers.BertPreTokenizer(),
    ),
    "bytes": (models.BPE, None, BYTES(add_prefix_space=False)),
    "bytes, prefix": (models.BPE, None, BYTES(add_prefix_space=True)),
    "bytes, NFKC": (models.BPE, normalizers.NFKC(), BYTES(add_prefix_space=False)),
    "bytes, Llama": (
        models.BPE,
        None,
        pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(LLAMA), "isolated"), BYTES(add_prefix_space=False, use_regex=False)]
        ),
    ),
    "bytes of words": (models.BPE, None, pieces(pre_tokenizers.WhitespaceSplit())),
    "bytes of digits": (models.BPE, None, pieces(pre_tokenizers.Digits(individual_digits=True))),
    "bytes of parts": (models.BPE, None, pieces(pre_tokenizers.Punctuation(), pre_tokenizers.Whitespace())),
    "fallback to bytes": (models.BPE, SPACES, None),
    "Metaspace": (models.BPE, None, pre_tokenizers.Metaspace()),
    "Unigram": (models.Unigram, normalizers.NFKC(), pre_tokenizers.Metaspace()),
    "Unigram, no accents": (
        models.Unigram,
        normalizers.Sequence([normalizers.Nmt(), normalizers.NFKD(), normalizers.StripAccents()]),
        pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]),
    ),
    "WordLevel": (models.WordLevel, normalizers.Lowercase(), pre_tokenizers.Whitespace()),
    "WordLevel, expanding": (models.WordLevel, EXPANDING, pre_tokenizers.WhitespaceSplit()),
}


def make_tokenizer(kind="WordPiece", template="class token first", side="right"):
    model, normalizer, splitter = KINDS[kind]
    uses_bytes, falls_back = kind.startswith("bytes"), kind == "fallback to bytes"
    special = [*MARKS, *(f"<0x{byte:02X}>" for byte in range(256) if falls_back)]
    backend = Tokenizer(
        model(byte_fallback=True, unk_token="<unk>")
        if falls_back
        else model()
        if uses_bytes or model is models.Unigram
        else model(unk_token="<unk>")
    )
    if normalizer is not None:
        backend.normalizer = normalizer
    if splitter is not None:
        backend.pre_tokenizer = splitter
    trainer_class = {
        models.WordPiece: trainers.WordPieceTrainer,
        models.BPE: trainers.BpeTrainer,
        models.Unigram: trainers.UnigramTrainer,
        models.WordLevel: trainers.WordLevelTrainer,
    }[model]
    options = {"initial_alphabet": BYTES.alphabet()} if uses_bytes else {"limit_alphabet": 30} if falls_back else {}
    if model is models.Unigram:
        options["unk_token"] = "<unk>"
    # Words apart, so that no token crosses the end of an answer.
    texts = [word for one in EXAMPLES for word in one["context"].split()]
    trainer = trainer_class(vocab_size=900, special_tokens=special, show_progress=False, **options)
    backend.train_from_iterator(texts, trainer)
    single, pair = TEMPLATES[template]
    ids = [(mark, backend.token_to_id(mark)) for mark in ("<cls>", "<sep>")]
    backend.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=ids)
    if uses_bytes:
        backend.decoder = decoders.ByteLevel()
        trims = processors.ByteLevel(trim_offsets=True)
        backend.post_processor = processors.Sequence([trims, backend.post_processor])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        unk_token="<unk>",
        sep_token="<sep>",
        padding_side=side,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **({"cls_token": "<cls>"} if "class token" in template and "no" not in template else {}),
    )


# ---- The model ----


class OracleForQuestionAnswering(BertForQuestionAnswering):
    """Scores the first and the last token of the label of each feature it knows, and checks the labels it is given."""

    def __init__(self, tokenizer):
        sizes = {"hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 4}
        super().__init__(BertConfig(vocab_size=len(tokenizer), max_position_embeddings=128, **sizes))
        self.labels = {}
        self.num_labels_seen = 0

    def learn(self, features):
        for row in features:
            first = row["attention_mask"].index(1)
            tokens = tuple(t for t, m in zip(row["input_ids"], row["attention_mask"], strict=True) if m)
            self.labels[tokens] = row["start_positions"] - first, row["end_positions"] - first
        assert len(self.labels) == len(features)  # no two features are alike

    def forward(self, input_ids, attention_mask=None, start_positions=None, end_positions=None, **inputs):
        starts, ends = (torch.full(input_ids.shape, -9.0) for _ in range(2))
        if (places := inputs.get("position_ids")) is not None:  # a packed row
            bounds = [*torch.nonzero(places[0] == 0).flatten().tolist(), input_ids.shape[1]]
            parts = [(0, *bound) for bound in pairwise(bounds)]
        else:
            ranges = [mask.nonzero().flatten() for mask in attention_mask]
            parts = [(row, int(one[0]), int(one[-1]) + 1) for row, one in enumerate(ranges)]
        for row, first, stop in parts:
            label = self.labels.get(tuple(input_ids[row, first:stop].tolist()))
            if label is not None:
                starts[row, first + label[0]] = ends[row, first + label[1]] = 9.0
        loss = None
        if start_positions is not None:
            assert (starts.gather(1, start_positions[:, None]) == 9).all()
            assert (ends.gather(1, end_positions[:, None]) == 9).all()
            self.num_labels_seen += len(start_positions)
            loss = 0 * sum(parameter.sum() for parameter in self.parameters())
        return QuestionAnsweringModelOutput(loss=loss, start_logits=starts, end_logits=ends)


def loss_of_packed(model, starts, ends, start_positions, end_positions):
    for scores, positions in ((starts, start_positions), (ends, end_positions)):
        assert (scores.gather(1, positions[:, None]) == 9).all()
    model.num_labels_seen += len(start_positions)
    return 0 * sum(parameter.sum() for parameter in model.parameters())


def exact_match(answers):
    """Return which questions are answered wrongly."""
    return {key: (text, GOLD[key]) for key, text in answers.items() if text.strip() != GOLD[key]}


# ---- Tests ----


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("kind", KINDS)
def test_labels_of_every_tokenizer_are_the_answers(kind, side):
    names = list(TEMPLATES)
    place = list(KINDS).index(kind) + 2 * (side == "left")
    tokenizer = make_tokenizer(kind, names[place % len(names)], side)
    make = Featurizer(tokenizer, max_seq_length=200, doc_stride=60)
    train, evaluation = make.train_features(EXAMPLES), make.eval_features(EXAMPLES)
    logits = np.full((2, len(train), int(train.lengths.max())), -9, np.float32)
    for row, feature in enumerate(train):
        logits[0, row, feature["start_positions"]] = logits[1, row, feature["end_positions"]] = 9
    rules = SpanPostProcessing(version_2_with_negative=True, max_answer_length=200)
    assert exact_match(rules(EXAMPLES, evaluation, tuple(logits)).answers.predictions) == {}


@pytest.mark.parametrize("padding", ["dynamic", "to the maximum", "packed", "packed rows of the maximum"])
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("template", TEMPLATES)
def test_answers_are_right_in_every_batch(template, side, padding, tmp_path, monkeypatch):
    monkeypatch.setattr(PackingCollator, "worthwhile_padding", -1)
    monkeypatch.setattr(PackingCollator, "worthwhile_work", -1)
    tokenizer = make_tokenizer(template=template, side=side)
    make = Featurizer(tokenizer, **SIZES, pad_to_max_length="maximum" in padding)
    train = make.train_features(EXAMPLES)
    model = OracleForQuestionAnswering(tokenizer)
    model.learn(train)
    collator = DataCollatorWithPadding(tokenizer)
    if "packed" in padding:
        collator = enable_packing(model, tokenizer, SIZES["max_seq_length"])
        monkeypatch.setattr(OracleForQuestionAnswering, "loss_function", loss_of_packed, raising=False)
    rules = SpanPostProcessing(version_2_with_negative=True, max_answer_length=60)
    batches = {"per_device_train_batch_size": 8, "per_device_eval_batch_size": 8}
    trainer = MRCTrainer(
        model,
        TrainingArguments(str(tmp_path), **{**QUIET, **batches}, num_train_epochs=1, save_strategy="no"),
        train_dataset=train,
        eval_dataset=make.eval_features(EXAMPLES, labels=True),
        eval_examples=EXAMPLES,
        processing_class=tokenizer,
        post_process_function=rules,
        compute_metrics=SquadMetrics(version_2_with_negative=True),
        data_collator=collator,
    )
    assert trainer.evaluate()["eval_exact"] == 100
    trainer.train()
    assert model.num_labels_seen == 2 * len(train)
    predicted = trainer.predict(make.eval_features(EXAMPLES), EXAMPLES).predictions
    assert exact_match({one["id"]: one["prediction_text"] for one in predicted}) == {}


@pytest.mark.parametrize("batch_size", [1, 7])
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("template", TEMPLATES)
def test_readers_answer_alike_in_every_batch(template, side, batch_size):
    tokenizer = make_tokenizer(template=template, side=side)
    model = OracleForQuestionAnswering(tokenizer)
    model.learn(Featurizer(tokenizer, **SIZES).train_features(EXAMPLES))
    reader = Reader(
        model,
        tokenizer,
        device="cpu",
        batch_size=batch_size,
        handle_impossible_answer=True,
        max_answer_length=60,
        **SIZES,
    )
    asked = ([one[name] for one in EXAMPLES] for name in ("question", "context", "id"))
    assert exact_match(reader.answers(*asked).predictions) == {}


@pytest.mark.parametrize("side", ["right", "left"])
def test_scores_do_not_depend_on_the_batch(side):
    """A model with absolute positions sees each feature from its first position on."""
    tokenizer = make_tokenizer(side=side)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = BertForQuestionAnswering(BertConfig(vocab_size=len(tokenizer), initializer_range=1.0, **sizes))
    asked = [[one[name] for one in EXAMPLES] for name in ("question", "context")]
    one_by_one, together = (
        Reader(model, tokenizer, device="cpu", batch_size=size, **SIZES).answer_many(*asked) for size in (1, 9)
    )
    assert [one.score for one in one_by_one] == pytest.approx([one.score for one in together], abs=1e-3)


@pytest.mark.parametrize("kind", ["rows", "multiples"])
def test_padding_of_other_collators_moves_to_the_right(kind):
    tokenizer = make_tokenizer(side="left")
    features = Featurizer(tokenizer, **SIZES).train_features(EXAMPLES)
    rows = [features[n] for n in (0, len(features) - 1)]
    multiple = 16 if kind == "multiples" else None
    collator = DataCollatorWithPadding(tokenizer, pad_to_multiple_of=multiple)
    batch = RightPaddingCollator(collator)(rows)
    for n, row in enumerate(rows):
        length = len(row["input_ids"])
        assert batch["input_ids"][n, :length].tolist() == row["input_ids"]
        assert batch["token_type_ids"][n, :length].tolist() == row["token_type_ids"]
        assert not batch["attention_mask"][n, length:].any()
        assert (batch["input_ids"][n, length:] == tokenizer.pad_token_id).all()
    assert batch["start_positions"].tolist() == [row["start_positions"] for row in rows]
    assert RightPaddingCollator(lambda rows: rows)(rows) == rows


@pytest.mark.parametrize("template", ["class token first", "class token last"])
def test_heads_find_the_class_token_of_rows_padded_on_the_left(template):
    tokenizer = make_tokenizer(template=template, side="left")
    features = Featurizer(tokenizer, **SIZES).train_features(EXAMPLES)
    rows = list(features)[:9]
    padding = DataCollatorWithPadding(tokenizer)
    beams = BeamSearchCollator(tokenizer, padding)(deepcopy(rows))
    lacks = [row["start_positions"] == null for row, null in zip(rows, features.null_token, strict=False)]
    assert beams["cls_index"].tolist() == features.null_token[:9].tolist()
    assert beams["is_impossible"].tolist() == lacks
    types = TargetTypeCollator(tokenizer, padding)(deepcopy(rows))["target_type"]
    assert types.tolist() == [TargetType.NO_ANSWER if one else TargetType.SPAN_ANSWER for one in lacks]


def test_the_rules_of_transformers_score_the_first_token_and_say_so(caplog):
    tokenizer = make_tokenizer(template="class token last", side="left")
    features = Featurizer(tokenizer, **SIZES).eval_features(EXAMPLES)
    logits = np.zeros((2, len(features), int(features.lengths.max())), np.float32)
    logits[:, np.arange(len(features)), features.null_token] = 9
    answers = {}
    for mode in ("portico", "hf"):
        rules = SpanPostProcessing(version_2_with_negative=True, mode=mode)
        answers[mode] = set(rules(EXAMPLES, features, tuple(logits)).answers.predictions.values())
    assert answers["portico"] == {""} != answers["hf"]
    assert caplog.text.count('`mode=hf` scores "no answer" at the first token') <= 1


def test_class_tokens_in_the_text_are_not_no_answer():
    tokenizer = make_tokenizer(template="class token last", side="left")
    example = {**EXAMPLES[0], "context": "a <cls> stands in the text", "answers": {"text": [], "answer_start": []}}
    row = Featurizer(tokenizer, **SIZES).train_features([example])[0]
    assert row["start_positions"] == row["end_positions"] == len(row["input_ids"]) - 1
    theirs = Featurizer(tokenizer, **SIZES, compat_label_bug=True).train_features([example])[0]
    assert theirs["start_positions"] == 1
