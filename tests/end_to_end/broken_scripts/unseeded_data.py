"""Broken on purpose: the data are shuffled without a seed."""

import random

from torch.utils.data import Subset
from transformers import Trainer, TrainingArguments

from models import Line, Points, toy_arguments

order = list(range(10))
random.SystemRandom().shuffle(order)
Trainer(Line(), toy_arguments("out", TrainingArguments), train_dataset=Subset(Points(), order)).train()
