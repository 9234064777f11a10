"""Observers: told by trainers and loaders in order, and forgotten after the block."""

from pathlib import Path

import pytest
import torch

import portico
from models import Line, Points, toy_arguments
from portico import observers
from portico.observers import Observer, observe


class Notes(Observer):
    """Notes what it is told, and does what an observer may do."""

    def __init__(self):
        self.told = []
        self.indices = []
        self.losses = []

    def on_arguments_init(self, args):
        self.told.append("arguments")
        args.max_steps = 2

    def on_trainer_init(self, trainer):
        assert list(vars(trainer)) == ["args"]
        self.told.append("trainer")

    def on_train(self, trainer, checkpoint):
        self.told.append(f"train from {checkpoint}")
        return checkpoint

    def on_train_dataloader(self, trainer, loader):
        self.told.append("loader")
        self.loader = loader

    def on_indices_drawn(self, loader, indices):
        if loader.dataset is self.loader.dataset:
            self.indices.append(indices)

    def on_training_step_begin(self, trainer, model, inputs):
        self.told.append("begin")
        self.inputs = inputs

    def on_compute_loss(self, trainer, model, inputs):
        self.told.append("loss")
        self.losses.append(trainer.compute_loss(model, dict(inputs)).item())

    def on_training_step_end(self, trainer, model, loss):
        self.told.append("end")
        assert loss.item() == self.losses[-1]


@pytest.mark.parametrize("num_workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_tells_of_arguments_trainer_and_every_step(num_workers, tmp_path):
    notes, data = Notes(), Points()
    with observe(notes):
        args = toy_arguments(tmp_path, dataloader_num_workers=num_workers)
        trainer = portico.Trainer(Line(), args, train_dataset=data, eval_dataset=Points(4))
        trainer.train()
        trainer.evaluate()
    assert notes.told == ["arguments", "trainer", "train from None", "loader", *["begin", "loss", "end"] * 2]
    # Batches are drawn ahead; those of the evaluation belong to another loader.
    assert torch.equal(notes.inputs["x"], torch.stack([data[index]["x"] for index in notes.indices[1]]))
    assert observers.active == ()
    told = list(notes.told)
    trainer.train()
    assert notes.told == told


def test_an_observer_chooses_the_checkpoint(tmp_path):
    class Resuming(Observer):
        num_steps = 0

        def on_training_step_begin(self, trainer, model, inputs):
            self.num_steps += 1

        def on_train(self, trainer, checkpoint):
            return str(tmp_path / "checkpoint-5")

    def trainer():
        args = toy_arguments(tmp_path, save_strategy="steps", save_steps=5)
        return portico.Trainer(Line(), args, train_dataset=Points())

    whole = trainer()
    whole.train()
    observer = Resuming()
    with observe(observer):
        resumed = trainer()
        resumed.train()
    assert observer.num_steps == 5
    assert torch.equal(whole.model.linear.weight, resumed.model.linear.weight)


def test_an_observer_chooses_how_many_trials_a_search_has(tmp_path):
    asked, trained = [], []

    class OneTrial(Observer):
        def on_search(self, trainer, num_trials):
            asked.append(num_trials)
            return 1

        def on_train(self, trainer, checkpoint):
            trained.append(trainer.args.output_dir)
            return checkpoint

    args = toy_arguments(tmp_path, max_steps=1)
    data = {"train_dataset": Points(), "eval_dataset": Points(4)}
    trainer = portico.Trainer(args=args, model_init=Line, **data)
    with observe(OneTrial()):
        trainer.hyperparameter_search(lambda trial: {}, n_trials=7, backend="optuna")
    assert (asked, len(trained)) == ([7], 1)


def test_the_guide_names_every_method():
    guide = (Path(__file__).parents[2] / "docs" / "run.md").read_text(encoding="utf-8")
    assert [name for name in vars(Observer) if name.startswith("on_") and f"`{name}`" not in guide] == []
