"""Broken on purpose: a callback seeds the generators from the operating system."""

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

from models import Line, Points, toy_arguments


class Reseeding(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 3:
            torch.seed()


class Noisy(Line):
    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.5)

    def forward(self, x, labels=None):
        return super().forward(self.dropout(x), labels)


arguments = toy_arguments("out", TrainingArguments)
Trainer(Noisy(), arguments, train_dataset=Points(), callbacks=[Reseeding()]).train()
