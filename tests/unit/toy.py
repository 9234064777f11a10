"""The smallest things that can be trained."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset

import portico


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
    """The points without a length."""

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        return iter(Points()[index] for index in range(10))


class Nameless(Dataset):
    """Examples that hold nothing a model takes."""

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
    """Return quiet arguments: 5 steps an epoch over ``Points()``, 2 epochs."""
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
    trainer.callback_handler.callbacks = [
        callback for callback in trainer.callback_handler.callbacks if type(callback).__name__ != "PrinterCallback"
    ]
    return trainer
