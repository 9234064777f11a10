"""Small trainers on emulated IPUs."""

from typing import Any

import torch
import transformers
from torch.utils.data import Dataset
from transformers import BertConfig, BertForQuestionAnswering, BertForSequenceClassification
from transformers.modeling_outputs import SequenceClassifierOutput

import portico


class Sentences(Dataset):
    """Random tokens; the class is whether the first token is large."""

    def __init__(self, size: int = 32, length: int = 6, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(1, 50, (size, length), generator=generator)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": (self.tokens[index, 0] > 25).long()}


class Questions(Sentences):
    """Random tokens with an answer span."""

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = self.tokens[index]
        start = int(tokens[0]) % len(tokens)
        return {
            "input_ids": tokens,
            "start_positions": torch.tensor(start),
            "end_positions": torch.tensor(min(start + 1, len(tokens) - 1)),
        }


def bert_config(layers: int = 2, dropout: float = 0.0, **changes: Any) -> BertConfig:
    return BertConfig(
        **{
            "vocab_size": 50,
            "hidden_size": 16,
            "num_hidden_layers": layers,
            "num_attention_heads": 2,
            "intermediate_size": 32,
            "max_position_embeddings": 16,
            "hidden_dropout_prob": dropout,
            "attention_probs_dropout_prob": dropout,
            **changes,
        }
    )


def classifier(**changes: Any) -> BertForSequenceClassification:
    torch.manual_seed(7)
    return BertForSequenceClassification(bert_config(num_labels=2, **changes))


class ScaledClassifier(BertForSequenceClassification):
    """Multiplies its logits with a parameter that has no dimensions, as CLIP does."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        self.logit_scale = torch.nn.Parameter(torch.tensor(0.5))

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> Any:
        logits = super().forward(input_ids=input_ids).logits * self.logit_scale.exp()
        return SequenceClassifierOutput(loss=torch.nn.functional.cross_entropy(logits, labels), logits=logits)


def scaled_classifier() -> ScaledClassifier:
    torch.manual_seed(7)
    return ScaledClassifier(bert_config(num_labels=2))


def reader(**changes: Any) -> BertForQuestionAnswering:
    torch.manual_seed(7)
    return BertForQuestionAnswering(bert_config(**changes))


def ipu_arguments(output_dir: Any, **changes: Any) -> Any:
    defaults = {
        "num_train_epochs": 2,
        "per_device_train_batch_size": 2,
        "per_device_eval_batch_size": 2,
        "learning_rate": 1e-3,
        "logging_steps": 1,
        "save_strategy": "no",
        "disable_tqdm": True,
        "fp32": True,
        "seed": 3,
    }
    return portico.IPUTrainingArguments(str(output_dir), **{**defaults, **changes})


def ipu_trainer(
    output_dir: Any,
    config: Any = None,
    model: Any = None,
    parts: dict[str, Any] | None = None,
    trainer_class: Any = None,
    **changes: Any,
) -> Any:
    """Return a trainer on IPUs; `changes` go to its arguments, `parts` to its constructor."""
    options = {
        "train_dataset": Sentences(),
        "eval_dataset": Sentences(10, seed=1),
        **(parts or {}),
    }
    trainer = (trainer_class or portico.IPUTrainer)(
        classifier() if model is None else model, config, ipu_arguments(output_dir, **changes), **options
    )
    trainer.callback_handler.callbacks = [
        callback for callback in trainer.callback_handler.callbacks if type(callback).__name__ != "PrinterCallback"
    ]
    return trainer


def plain_trainer(output_dir: Any, model: Any, batch_size: int, **changes: Any) -> transformers.Trainer:
    """Return the trainer of transformers; `batch_size` is the rows of a weight update of the program."""
    parts = {
        name: changes.pop(name) for name in ("train_dataset", "eval_dataset", "compute_metrics") if name in changes
    }
    options = {
        "num_train_epochs": 2,
        "per_device_train_batch_size": batch_size,
        "per_device_eval_batch_size": 2,
        "learning_rate": 1e-3,
        "logging_steps": 1,
        "max_grad_norm": 0.0,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "seed": 3,
        **changes,
    }
    trainer = transformers.Trainer(
        model,
        transformers.TrainingArguments(str(output_dir), **options),
        **{"train_dataset": Sentences(), "eval_dataset": Sentences(10, seed=1), **parts},
    )
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer
