"""Random models and texts that the scripts for other libraries train; nothing is downloaded."""

import tempfile

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import (
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2ForSequenceClassification,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[EOS]"]
_SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


def words(size, *, seed, length=6):
    """Return sentences of made-up words."""
    numbers = torch.randint(0, 40, (size, length), generator=torch.Generator().manual_seed(seed)).tolist()
    return [" ".join(f"w{number}" for number in row) for row in numbers]


def tokenizer():
    vocabulary = {word: number for number, word in enumerate([*_SPECIAL, *(f"w{number}" for number in range(40))])}
    backend = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        eos_token="[EOS]",
        model_max_length=32,
    )


def saved(model):
    folder = tempfile.mkdtemp()
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def encoder_folder():
    torch.manual_seed(7)
    return saved(BertModel(BertConfig(vocab_size=45, max_position_embeddings=32, **_SIZES)))


def gpt2(kind=GPT2LMHeadModel, **config):
    torch.manual_seed(7)
    sizes = {"vocab_size": 45, "n_positions": 64, "n_embd": 16, "n_layer": 2, "n_head": 2}
    tokens = {"bos_token_id": 4, "eos_token_id": 4, "pad_token_id": 0}
    return kind(GPT2Config(**sizes, **tokens, **config))


def llama():
    torch.manual_seed(7)
    tokens = {"bos_token_id": 4, "eos_token_id": 4, "pad_token_id": 0}
    return LlamaForCausalLM(LlamaConfig(vocab_size=45, max_position_embeddings=64, **_SIZES, **tokens))


def reward_model():
    return gpt2(GPT2ForSequenceClassification, num_labels=1)
