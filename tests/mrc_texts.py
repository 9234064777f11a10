"""Small tokenizers of several kinds, and questions over their words."""

import random

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

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
