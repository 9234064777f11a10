"""The smallest model of each family, with a batch for it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers as hf
from torch import nn

SIZES = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 32,
}
DECODER = {**SIZES, "num_key_value_heads": 1, "use_cache": False}
GPT2 = {"vocab_size": 50, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, "use_cache": False}
DISTIL = {
    "vocab_size": 50,
    "dim": 16,
    "n_layers": 2,
    "n_heads": 2,
    "hidden_dim": 32,
    "max_position_embeddings": 32,
}
T5 = {
    "vocab_size": 50,
    "d_model": 16,
    "d_kv": 8,
    "d_ff": 32,
    "num_layers": 2,
    "num_heads": 2,
    "use_cache": False,
    "decoder_start_token_id": 0,
}
BART = {
    "vocab_size": 50,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "max_position_embeddings": 32,
    "use_cache": False,
}
VIT = {**SIZES, "image_size": 8, "patch_size": 4}
VIT = {name: value for name, value in VIT.items() if name not in ("vocab_size", "max_position_embeddings")}
DEBERTA = {**SIZES, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}


@dataclass(frozen=True)
class Family:
    make: Callable[[], nn.Module]
    batch: Callable[[int, int], dict[str, torch.Tensor]]


def tokens(rows: int, length: int) -> torch.Tensor:
    return torch.randint(3, 50, (rows, length))


def text(rows: int, length: int) -> dict[str, torch.Tensor]:
    mask = torch.ones(rows, length, dtype=torch.long)
    mask[0, length - 2 :] = 0
    return {"input_ids": tokens(rows, length), "attention_mask": mask}


def answers(rows: int, length: int) -> dict[str, torch.Tensor]:
    ends = {name: torch.randint(0, length, (rows,)) for name in ("start_positions", "end_positions")}
    return {**text(rows, length), **ends}


def classes(rows: int, length: int) -> dict[str, torch.Tensor]:
    return {**text(rows, length), "labels": torch.randint(0, 2, (rows,))}


def tags(rows: int, length: int) -> dict[str, torch.Tensor]:
    return {**text(rows, length), "labels": torch.randint(0, 2, (rows, length))}


def language(rows: int, length: int) -> dict[str, torch.Tensor]:
    batch = text(rows, length)
    labels = batch["input_ids"].clone()
    labels[0, :2] = -100
    return {**batch, "labels": labels}


def translation(rows: int, length: int) -> dict[str, torch.Tensor]:
    return {**text(rows, length), "labels": tokens(rows, length + 2)}


def images(rows: int, length: int) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(rows, 3, 8, 8), "labels": torch.randint(0, 2, (rows,))}


class Convolutional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64, 2),
        )

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> dict[str, Any]:
        logits = self.layers(pixel_values)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.GELU(), nn.Dropout(0.2), nn.Linear(16, 2))

    forward = Convolutional.forward


FAMILIES = {
    "bert-qa": Family(lambda: hf.BertForQuestionAnswering(hf.BertConfig(**SIZES)), answers),
    "bert-classification": Family(lambda: hf.BertForSequenceClassification(hf.BertConfig(**SIZES)), classes),
    "bert-mlm": Family(lambda: hf.BertForMaskedLM(hf.BertConfig(**SIZES)), language),
    "roberta": Family(lambda: hf.RobertaForTokenClassification(hf.RobertaConfig(**SIZES)), tags),
    "distilbert": Family(lambda: hf.DistilBertForQuestionAnswering(hf.DistilBertConfig(**DISTIL)), answers),
    "albert": Family(lambda: hf.AlbertForSequenceClassification(hf.AlbertConfig(embedding_size=8, **SIZES)), classes),
    "electra": Family(lambda: hf.ElectraForQuestionAnswering(hf.ElectraConfig(embedding_size=8, **SIZES)), answers),
    "deberta": Family(lambda: hf.DebertaV2ForQuestionAnswering(hf.DebertaV2Config(**DEBERTA)), answers),
    "mpnet": Family(lambda: hf.MPNetForQuestionAnswering(hf.MPNetConfig(**SIZES)), answers),
    "gpt2": Family(lambda: hf.GPT2LMHeadModel(hf.GPT2Config(**GPT2)), language),
    "llama": Family(lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**DECODER)), language),
    "qwen2": Family(lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**DECODER)), language),
    "t5": Family(lambda: hf.T5ForConditionalGeneration(hf.T5Config(**T5)), translation),
    "bart": Family(lambda: hf.BartForConditionalGeneration(hf.BartConfig(**BART)), translation),
    "vit": Family(lambda: hf.ViTForImageClassification(hf.ViTConfig(**VIT)), images),
    "convolutional": Family(Convolutional, images),
    "perceptron": Family(Perceptron, images),
}


def make_model(name: str, attention: str = "sdpa") -> nn.Module:
    """Return a model of seeded weights, in training mode, with dropout where the family has it by default."""
    torch.manual_seed(0)
    model = FAMILIES[name].make().train()
    if isinstance(model, hf.PreTrainedModel) and model._supports_sdpa:
        model.set_attn_implementation(attention)
    return model


def make_batch(name: str, rows: int, length: int) -> dict[str, torch.Tensor]:
    """Return a batch that depends on its shape alone."""
    torch.manual_seed(rows)
    return FAMILIES[name].batch(rows, length)
