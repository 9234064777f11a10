"""A reference training in plain PyTorch, and trainers for the same training."""

from itertools import islice
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from models import Points
from portico.gradient_descent import Checkpointer, ExponentialMovingAverage, GradientDescentTrainer
from portico.gradient_descent.schedulers import InvertedTriangular, LinearWithWarmup


class NoisyPoints(Points):
    """Points of a linear rule; each access draws noise from torch's global generator."""

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": self.x[index] + 0.1 * torch.rand(3), "labels": self.y[index]}


class Net(nn.Module):
    """A small model with dropout, metrics and an optional penalty."""

    def __init__(self, penalty: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.inner = nn.Linear(3, 4)
        self.outer = nn.Linear(4, 1)
        self.penalty = penalty
        self.count = 0

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = nn.functional.dropout(torch.tanh(self.inner(x)), 0.3, self.training)
        logits = self.outer(hidden)
        self.count += len(x)
        return {"loss": nn.functional.mse_loss(logits, labels), "logits": logits}

    def get_metrics(self, reset: bool = False) -> dict[str, float]:
        metrics = {"count": float(self.count)}
        if reset:
            self.count = 0
        return metrics


class PenalizedNet(Net):
    def get_regularization_penalty(self) -> torch.Tensor:
        return self.penalty * self.outer.weight.pow(2).sum()


def loaders(size: int = 10, batch_size: int = 2) -> tuple[Any, Any]:
    return (
        DataLoader(NoisyPoints(size), batch_size=batch_size, shuffle=True),
        DataLoader(NoisyPoints(6, seed=1), batch_size=2),
    )


class Unsized:
    """A loader without a length."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Any:
        return iter(self.loader)


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def make_trainer(folder: Any = None, *, model: Any = None, size: int = 10, **options: Any) -> GradientDescentTrainer:
    """Return a trainer of ``Net`` on the CPU, with torch seeded as in the plain training."""
    model = Net() if model is None else model
    train, validation = loaders(size)
    given = {
        "optimizer": make_optimizer(model),
        "data_loader": train,
        "validation_data_loader": validation,
        "num_epochs": 3,
        "cuda_device": -1,
        "serialization_dir": folder,
        **options,
    }
    torch.manual_seed(11)
    return GradientDescentTrainer(model, **given)


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def assert_same_weights(ours: Any, theirs: Any) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name


class PlainTraining:
    """The training loop, with one keyword for each feature; it uses nothing of the package.

    ``accumulate`` is the number of batches per step, ``decay`` that of the moving averages, and ``rate`` returns the
    learning rate of a step, from 1.

    After ``run``: ``losses`` and ``validation_losses`` by epoch, ``norms`` by step, ``best`` weights and their epoch.
    """

    def __init__(
        self,
        *,
        model=None,
        accumulate=1,
        grad_norm=None,
        grad_clipping=None,
        decay=None,
        rate=None,
        num_epochs=3,
        size=10,
    ) -> None:
        self.model = Net() if model is None else model
        self.accumulate, self.grad_norm, self.grad_clipping = accumulate, grad_norm, grad_clipping
        self.decay, self.rate, self.num_epochs, self.size = decay, rate, num_epochs, size
        self.losses, self.validation_losses, self.norms = [], [], []

    def run(self) -> "PlainTraining":
        train, validation = loaders(self.size)
        optimizer = make_optimizer(self.model)
        parameters = list(self.model.parameters())
        shadows = [parameter.detach().clone() for parameter in parameters]
        step, best = 0, None
        torch.manual_seed(11)
        for epoch in range(self.num_epochs):
            self.model.train()
            batches, losses = iter(train), []
            while group := list(islice(batches, self.accumulate)):
                step += 1
                optimizer.zero_grad()
                loss_of_step = 0.0
                for batch in group:
                    loss = self.model(**batch)["loss"]
                    if isinstance(self.model, PenalizedNet):
                        loss = loss + self.model.get_regularization_penalty()
                    loss = loss / len(group)
                    loss.backward()
                    loss_of_step += loss.item()
                losses.append(loss_of_step)
                if self.grad_norm is not None:
                    self.norms.append(nn.utils.clip_grad_norm_(parameters, self.grad_norm).item())
                if self.grad_clipping is not None:
                    nn.utils.clip_grad_value_(parameters, self.grad_clipping)
                if self.rate is not None:
                    optimizer.param_groups[0]["lr"] = self.rate(step)
                optimizer.step()
                if self.decay is not None:
                    decay = min(self.decay, (1 + step) / (10 + step))
                    for shadow, parameter in zip(shadows, parameters, strict=True):
                        shadow.mul_(decay).add_((1 - decay) * parameter.detach())
            self.losses.append(sum(losses) / len(losses))
            trained = [parameter.detach().clone() for parameter in parameters]
            if self.decay is not None:
                self._put(shadows)
            self.model.eval()
            with torch.no_grad():
                values = [self.model(**batch)["loss"].item() for batch in validation]
            self.validation_losses.append(sum(values) / len(values))
            if best is None or self.validation_losses[-1] < best:
                best, self.best_epoch, self.best = self.validation_losses[-1], epoch, weights(self.model)
            self._put(trained)
        return self

    def _put(self, values) -> None:
        for parameter, value in zip(self.model.parameters(), values, strict=True):
            parameter.data.copy_(value)


# What an interruption may change: clocks and memory.
CHANGING = ("memory_MB", "duration", "training_start_epoch", "training_epochs")


class Interruption(Exception):
    pass


def lasting(metrics):
    return {name: value for name, value in metrics.items() if not any(mark in name for mark in CHANGING)}


def trainer_with_everything(folder, *, model=None, optimizer=None, **options):
    """Return a trainer that saves at every step, with every part that has a state."""
    model = Net() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) if optimizer is None else optimizer
    return make_trainer(
        folder,
        **{
            "model": model,
            "optimizer": optimizer,
            "num_epochs": 2,
            "patience": 5,
            "grad_norm": 0.5,
            "checkpointer": Checkpointer(folder, save_every_num_batches=1),
            "moving_average": ExponentialMovingAverage(model.named_parameters(), decay=0.5),
            "learning_rate_scheduler": LinearWithWarmup(optimizer, 2, 5, warmup_steps=3),
            "momentum_scheduler": InvertedTriangular(optimizer, cool_down=1, warm_up=1),
            **options,
        },
    )


def interrupted_at(step):
    def callback(trainer, is_training):
        if is_training and trainer.progress.total_batches == step:
            raise Interruption

    return callback
