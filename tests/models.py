"""The smallest models and datasets that the tests train, and a trainer of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import nn
from torch.utils.data import Dataset, IterableDataset

import portico

# Regression ----------------------------------------------------------------------------------------------------------


class Points(Dataset):
    """Noiseless points of a linear rule, ``float32 [3]`` in and ``float32 [1]`` out."""

    def __init__(self, size: int = 10, seed: int = 0) -> None:
        self.x = torch.randn(size, 3, generator=torch.Generator().manual_seed(seed))
        self.y = self.x @ torch.tensor([[1.0], [-2.0], [0.5]])

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": self.x[index], "labels": self.y[index]}


class PointStream(IterableDataset):
    """The points as a stream without a length."""

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        return iter(Points()[index] for index in range(10))


class UnknownColumn(Dataset):
    """Examples whose only column is not an argument of any model."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> dict[str, int]:
        return {"unknown": index}


class Line(nn.Module):
    """A linear model that returns its squared error."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.linear = nn.Linear(3, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        logits = self.linear(x)
        if labels is None:
            return {"logits": logits}
        return {"loss": nn.functional.mse_loss(logits, labels), "logits": logits}


def toy_arguments(output_dir: Any, arguments_class: Any = None, **changes: Any) -> Any:
    """Return quiet arguments: 2 epochs of 5 steps over ``Points()``."""
    options = {
        "num_train_epochs": 2,
        "per_device_train_batch_size": 2,
        "per_device_eval_batch_size": 2,
        "learning_rate": 0.1,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
    }
    return (arguments_class or portico.TrainingArguments)(output_dir=str(output_dir), **{**options, **changes})


def toy_trainer(
    output_dir: Any, trainer_class: Any = None, parts: dict[str, Any] | None = None, **changes: Any
) -> Any:
    """Return a trainer of ``Line`` on ``Points``; ``parts`` go to its constructor, ``changes`` to its arguments."""
    options = {
        "model": Line(),
        "args": toy_arguments(output_dir, **changes),
        "train_dataset": Points(),
        "eval_dataset": Points(6, seed=1),
        **(parts or {}),
    }
    trainer = (trainer_class or portico.Trainer)(**options)
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer


# Classification ------------------------------------------------------------------------------------------------------


class ToyDataset(Dataset):
    """Sequences of random tokens with one of three labels.

    Args:
        draws: Draw from torch's global generator at each access, as data augmentation does.
    """

    def __init__(self, size: int = 29, length: int = 6, seed: int = 0, draws: bool = False) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(1, 50, (size, length), generator=generator)
        self.labels = torch.randint(0, 3, (size,), generator=generator)
        self.draws = draws

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = self.tokens[index]
        if self.draws:
            tokens = torch.where(torch.rand(tokens.shape) < 0.2, torch.zeros_like(tokens), tokens)
        return {"input_ids": tokens, "labels": self.labels[index]}


class ToyStream(IterableDataset):
    """:class:`ToyDataset` as a stream without a length."""

    def __init__(self, size: int = 29, draws: bool = False) -> None:
        self.data = ToyDataset(size, draws=draws)

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        return (self.data[index] for index in range(len(self.data)))


class Bag(nn.Module):
    """A plain module that classifies the mean of its words' embeddings.

    It does not take ``num_items_in_batch``, so its loss is a mean of means.
    """

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.embedding = nn.Embedding(50, 8)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(8, 3)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        logits = self.logits(input_ids)
        if labels is None:
            return {"logits": logits}
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

    def logits(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.dropout(self.embedding(input_ids).mean(1)))


def tiny_bert_config(num_layers: int = 1) -> transformers.BertConfig:
    """Return a configuration with dropout, so that a difference in random draws shows in the numbers.

    Most tests compare runs of a model, whatever it is; those that wrap, share or return layers ask for more.
    """
    return transformers.BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=num_layers,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        num_labels=3,
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
    )


def tiny_bert() -> transformers.BertForSequenceClassification:
    torch.manual_seed(7)
    return transformers.BertForSequenceClassification(tiny_bert_config())


def two_layer_bert() -> transformers.BertForSequenceClassification:
    torch.manual_seed(7)
    return transformers.BertForSequenceClassification(tiny_bert_config(2))


# Language models -----------------------------------------------------------------------------------------------------


def tiny_tokenizer() -> transformers.PreTrainedTokenizerFast:
    words = ["[PAD]", "[UNK]", "[MASK]", "[CLS]", "[SEP]", *(f"w{index}" for index in range(45))]
    core = Tokenizer(WordLevel({word: index for index, word in enumerate(words)}, unk_token="[UNK]"))
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=core, cls_token="[CLS]", sep_token="[SEP]", **special)


def tiny_gpt2() -> transformers.GPT2LMHeadModel:
    torch.manual_seed(7)
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=2, n_head=2)
    )


def tiny_llama() -> transformers.LlamaForCausalLM:
    torch.manual_seed(7)
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=50,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=32,
        )
    )


def tiny_masked_lm() -> transformers.BertForMaskedLM:
    torch.manual_seed(7)
    return transformers.BertForMaskedLM(tiny_bert_config())


def tiny_tagger() -> transformers.BertForTokenClassification:
    torch.manual_seed(7)
    return transformers.BertForTokenClassification(tiny_bert_config())


class Sequences(Dataset):
    """Tokens with a label each, 30 % of which are ignored (-100).

    Args:
        ragged: Vary the length from 3 to 8; otherwise it is 6.
    """

    def __init__(
        self, size: int = 19, *, ragged: bool = False, classes: int = 50, labelled: bool = True, seed: int = 0
    ) -> None:
        generator = np.random.default_rng(seed)
        lengths = generator.integers(3, 9, size) if ragged else np.full(size, 6)
        self.tokens = [generator.integers(5, 50, length).tolist() for length in lengths]
        self.labels = [np.where(generator.random(n) < 0.3, -100, generator.integers(0, classes, n)) for n in lengths]
        self.labelled = labelled

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        item = {"input_ids": self.tokens[index]}
        return {**item, "labels": self.labels[index].tolist()} if self.labelled else item


def pad_everything(examples: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    """Collate :class:`Sequences`, padding inputs with 0 and labels with -100."""
    longest = max(len(example["input_ids"]) for example in examples)

    def padded(name: str, value: int) -> torch.Tensor:
        return torch.tensor([list(example[name]) + [value] * (longest - len(example[name])) for example in examples])

    batch = {"input_ids": padded("input_ids", 0)}
    if "labels" in examples[0]:
        batch["labels"] = padded("labels", -100)
    return batch


# Encoder-decoders ----------------------------------------------------------------------------------------------------


def tiny_t5() -> transformers.T5ForConditionalGeneration:
    torch.manual_seed(7)
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, decoder_start_token_id=0
        )
    )


def tiny_bart() -> transformers.BartForConditionalGeneration:
    torch.manual_seed(7)
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    tokens = {"pad_token_id": 0, "bos_token_id": 3, "eos_token_id": 4, "decoder_start_token_id": 4}
    config = transformers.BartConfig(
        vocab_size=50,
        d_model=16,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        max_position_embeddings=32,
        forced_eos_token_id=4,
        **sizes,
        **tokens,
    )
    return transformers.BartForConditionalGeneration(config)


def tiny_bert_to_bert() -> transformers.EncoderDecoderModel:
    torch.manual_seed(7)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    bert = transformers.BertConfig(vocab_size=50, max_position_embeddings=32, **sizes)
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(bert, bert)
    config.decoder_start_token_id, config.pad_token_id, config.eos_token_id = 3, 0, 4
    return transformers.EncoderDecoderModel(config)


class Pairs(Dataset):
    """Sources and targets of varying lengths; a target is a prefix of its source and an end token."""

    def __init__(self, size: int = 13, *, seed: int = 0, labelled: bool = True) -> None:
        generator = np.random.default_rng(seed)
        self.sources = [generator.integers(5, 50, generator.integers(3, 9)).tolist() for _ in range(size)]
        self.targets = [[*source[: int(generator.integers(1, 7))], 4] for source in self.sources]
        self.labelled = labelled

    def __len__(self) -> int:
        return len(self.sources)

    def __getitem__(self, index: int) -> dict[str, Any]:
        source = self.sources[index]
        item = {"input_ids": source, "attention_mask": [1] * len(source)}
        return {**item, "labels": self.targets[index]} if self.labelled else item
