"""Train in two processes, or in one that accumulates over as many batches, and write the results to a file."""

import json
import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader

from models import Line, Points
from portico.gradient_descent import (
    Checkpointer,
    ExponentialMovingAverage,
    GradientDescentTrainer,
    TensorboardBatchMemoryUsage,
)
from unit.gradient_descent.plain_training import make_optimizer

WAYS = {
    "one": {"num_gradient_accumulation_steps": 2},
    "two": {"distributed": True, "world_size": 2},
    "one-accumulating": {"num_gradient_accumulation_steps": 4},
    "two-accumulating": {"strategy": "ddp", "devices": 2, "num_gradient_accumulation_steps": 2},
}


class CountingLine(Line):
    """Counts the rows it has seen."""

    count = 0

    def forward(self, *args, **kwargs):
        outputs = super().forward(*args, **kwargs)
        self.count += 2
        return outputs

    def get_metrics(self, reset=False):
        metrics = {"count": self.count}
        if reset:
            self.count = 0
        return metrics


def add_in_shares(model: nn.Module) -> None:
    """Add up the gradients of four batches as two processes do: first those of each process, which has every other.

    Sums of floats depend on the order, so one process that adds four gradients one after the other differs in the
    last bit.
    """
    for parameter in model.parameters():
        batches: list[torch.Tensor] = []

        def keep(parameter: nn.Parameter, batches: list[torch.Tensor] = batches) -> None:
            assert parameter.grad is not None
            batches.append(parameter.grad)
            parameter.grad = None
            if len(batches) == 4:
                parameter.grad = (batches[0] + batches[2]) + (batches[1] + batches[3])
                batches.clear()

        parameter.register_post_accumulate_grad_hook(keep)


def train(kind: str, folder: str, stop_at: str = "0") -> None:
    model: nn.Module = CountingLine()
    if kind == "one-accumulating":
        add_in_shares(model)

    def interrupt(trainer, is_training):
        if is_training and trainer.progress.total_batches == int(stop_at):
            raise SystemExit(3)

    torch.manual_seed(11)
    trainer = GradientDescentTrainer(
        model,
        make_optimizer(model),
        DataLoader(Points(24), batch_size=2, shuffle=True),
        validation_data_loader=DataLoader(Points(8, seed=1), batch_size=2),
        num_epochs=2,
        cuda_device=-1,
        serialization_dir=folder,
        grad_norm=0.5,
        checkpointer=Checkpointer(save_every_num_batches=1),
        moving_average=ExponentialMovingAverage(model.named_parameters(), decay=0.5),
        batch_callbacks=[TensorboardBatchMemoryUsage(), interrupt],
        **WAYS[kind],
    )
    metrics = trainer.train()
    if trainer.is_primary:
        result = {name: metrics[name] for name in ("training_loss", "best_validation_loss", "best_epoch", "epoch")}
        result |= {name: tensor.tolist() for name, tensor in model.state_dict().items()}
        result["rows"] = metrics["training_count"] * trainer.loop.args.world_size
        result["steps"] = trainer.progress.total_batches
        Path(folder, "result.json").write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    train(*sys.argv[1:])
