"""Broken on purpose: an override of a part of the loop, which Lightning runs instead."""

from transformers import Trainer, TrainingArguments

from models import Line, Points, toy_arguments


class Counting(Trainer):
    def _run_epoch(self, *args, **kwargs):
        return super()._run_epoch(*args, **kwargs)


Counting(Line(), toy_arguments("out", TrainingArguments), train_dataset=Points()).train()
