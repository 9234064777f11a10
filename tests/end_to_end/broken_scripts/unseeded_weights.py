"""Broken on purpose: the weights are drawn from a seed of the operating system."""

import torch
from transformers import Trainer, TrainingArguments

from models import Line, Points, toy_arguments

model = Line()
torch.seed()
torch.nn.init.normal_(model.linear.weight)
Trainer(model, toy_arguments("out", TrainingArguments), train_dataset=Points()).train()
