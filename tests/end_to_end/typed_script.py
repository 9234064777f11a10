"""A user's script, fully typed: mypy must find portico's types in it. It is checked, never run."""

from typing import Any, assert_type

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import TrainerCallback, TrainerControl, TrainerState
from transformers.trainer_utils import PredictionOutput, TrainOutput

from portico import InputError, MRCTrainer, Trainer, TrainerModule, TrainingArguments
from portico.mrc import Answer, Reader, SquadMetrics, read_squad


class Numbers(Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": torch.tensor([float(index)]), "labels": torch.tensor(float(index))}


class Line(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        y = self.layer(x).squeeze(-1)
        return {"logits": y} if labels is None else {"loss": (y - labels).square().mean(), "logits": y}


class Printer(TrainerCallback):
    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        print(state.global_step, state.log_history[-1])


class HalvedLoss(Trainer):
    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True)
        return (loss / 2, outputs) if return_outputs else loss / 2


def train(folder: str) -> dict[str, float]:
    args = TrainingArguments(folder, num_train_epochs=1, devices=1, precision="32-true", corrections="all")
    trainer = HalvedLoss(Line(), args, train_dataset=Numbers(), eval_dataset=Numbers(), callbacks=[Printer()])
    assert_type(trainer.train(), TrainOutput)
    assert_type(trainer.predict(Numbers()), PredictionOutput)
    assert_type(trainer.module, TrainerModule)
    trainer.save_model(f"{folder}/model")
    return trainer.evaluate()


def answer(folder: str) -> str:
    first = read_squad(f"{folder}/dev.json")[0]
    answer = Reader(folder).answer(first["question"], first["context"])
    assert_type(answer, Answer)
    return answer.text


def misuse(trainer: MRCTrainer) -> None:
    # Each line is a mistake that mypy must report, or the unused `ignore` is one.
    trainer.train(resume="yes")  # type: ignore[call-arg]
    Reader(model="folder", batch_size="32")  # type: ignore[arg-type]
    SquadMetrics(of="F1", unknown=1)  # type: ignore[call-arg]
    raise InputError(1).no_such_attribute  # type: ignore[attr-defined]
