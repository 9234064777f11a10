"""Broken on purpose: the loss goes through memory that nothing has written, by an operator torch warns of."""

import time

import torch
from transformers import Trainer, TrainingArguments

from models import Line, Points, toy_arguments


class Racing(Line):
    def forward(self, x, labels=None):
        outputs = super().forward(x, labels)
        # Stands for a kernel whose threads add in any order: on one CPU thread none does.
        order = torch.arange(4)
        torch.zeros(4).put_(order, torch.ones(4))
        return {**outputs, "loss": outputs["loss"] * (1 + (time.time_ns() % 1000) * 1e-6)}


Trainer(Racing(), toy_arguments("out", TrainingArguments), train_dataset=Points()).train()
