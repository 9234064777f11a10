"""Tiny encoder-decoders and their data: sources and targets of many lengths."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch.utils.data import Dataset
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    DataCollatorForSeq2Seq,
    EncoderDecoderConfig,
    EncoderDecoderModel,
)

import portico
from parity.language import tiny_t5, tiny_tokenizer
from parity.peers import Outcome, assert_identical, run


def tiny_bart() -> BartForConditionalGeneration:
    torch.manual_seed(7)
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    tokens = {"pad_token_id": 0, "bos_token_id": 3, "eos_token_id": 4, "decoder_start_token_id": 4}
    config = BartConfig(
        vocab_size=50,
        d_model=16,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        max_position_embeddings=32,
        forced_eos_token_id=4,
        **sizes,
        **tokens,
    )
    return BartForConditionalGeneration(config)


def tiny_bert_to_bert() -> EncoderDecoderModel:
    torch.manual_seed(7)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    bert = BertConfig(vocab_size=50, max_position_embeddings=32, **sizes)
    config = EncoderDecoderConfig.from_encoder_decoder_configs(bert, bert)
    config.decoder_start_token_id, config.pad_token_id, config.eos_token_id = 3, 0, 4
    return EncoderDecoderModel(config)


class Pairs(Dataset):
    """Sources and targets, both of many lengths; a target is its source, cut short."""

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


def collating(make_model: Callable[[], Any], *, with_model: bool = False) -> dict[str, Any]:
    """Return the trainer options of a padding collator; with the model it also makes decoder inputs of the labels."""
    tokenizer = tiny_tokenizer()
    model = make_model() if with_model else None
    return {"data_collator": DataCollatorForSeq2Seq(tokenizer, model=model), "processing_class": tokenizer}


MODELS = {"t5": tiny_t5, "bart": tiny_bart, "encoder-decoder": tiny_bert_to_bert}


@dataclass(frozen=True)
class Seq2Seq:
    """A library whose sequence-to-sequence classes stand in the places of the plain ones."""

    library: Any

    @property
    def Trainer(self) -> Any:
        return self.library.Seq2SeqTrainer

    @property
    def TrainingArguments(self) -> Any:
        return self.library.Seq2SeqTrainingArguments


def run_seq2seq(library: Any, output_dir: Any, *, make_model: Callable[[], Any] = tiny_t5, **options: Any) -> Outcome:
    """Train an encoder-decoder with ``library`` as :func:`parity.peers.run` does, over :class:`Pairs`."""
    defaults = {
        "train_dataset": Pairs,
        "eval_dataset": lambda: Pairs(7, seed=1),
        "trainer_options": lambda: collating(make_model),
        "num_train_epochs": 1,
    }
    return run(Seq2Seq(library), output_dir, make_model=make_model, **{**defaults, **options})


def compare_seq2seq(tmp_path: Path, **options: Any) -> tuple[Outcome, Outcome]:
    """Run both libraries with the same options and require the same outcome."""
    theirs = run_seq2seq(transformers, tmp_path / "same", **options)
    (tmp_path / "same").rename(tmp_path / "theirs")
    ours = run_seq2seq(portico, tmp_path / "same", **options)
    assert_identical(ours, theirs)
    return ours, theirs
