"""Tiny language models and their data: labels that do not all count, sequences of many lengths."""

import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch.utils.data import Dataset
from transformers import (
    BertForMaskedLM,
    BertForTokenClassification,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

from parity.peers import tiny_bert_config


def tiny_tokenizer():
    words = ["[PAD]", "[UNK]", "[MASK]", "[CLS]", "[SEP]", *(f"w{index}" for index in range(45))]
    core = Tokenizer(WordLevel({word: index for index, word in enumerate(words)}, unk_token="[UNK]"))
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]"}
    return PreTrainedTokenizerFast(tokenizer_object=core, cls_token="[CLS]", sep_token="[SEP]", **special)


def tiny_gpt2():
    torch.manual_seed(7)
    return GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=2, n_head=2))


def tiny_t5():
    torch.manual_seed(7)
    return T5ForConditionalGeneration(
        T5Config(vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, decoder_start_token_id=0)
    )


def tiny_masked():
    torch.manual_seed(7)
    return BertForMaskedLM(tiny_bert_config())


def tiny_tagger():
    torch.manual_seed(7)
    return BertForTokenClassification(tiny_bert_config())


class Sequences(Dataset):
    """Tokens with a label for each, some of them not counted; with ``ragged``, of many lengths."""

    def __init__(self, size=19, *, ragged=False, classes=50, labelled=True, seed=0):
        generator = np.random.default_rng(seed)
        lengths = generator.integers(3, 9, size) if ragged else np.full(size, 6)
        self.tokens = [generator.integers(5, 50, length).tolist() for length in lengths]
        self.labels = [np.where(generator.random(n) < 0.3, -100, generator.integers(0, classes, n)) for n in lengths]
        self.labelled = labelled

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        item = {"input_ids": self.tokens[index]}
        return {**item, "labels": self.labels[index].tolist()} if self.labelled else item


def pad_everything(examples):
    longest = max(len(example["input_ids"]) for example in examples)

    def padded(name, value):
        return torch.tensor([list(example[name]) + [value] * (longest - len(example[name])) for example in examples])

    batch = {"input_ids": padded("input_ids", 0)}
    if "labels" in examples[0]:
        batch["labels"] = padded("labels", -100)
    return batch
