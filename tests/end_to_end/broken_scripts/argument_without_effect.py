"""Broken on purpose: the loss follows an argument, but only where the trainer has the loop of transformers."""

from transformers import Trainer, TrainingArguments

from models import Line, Points, toy_arguments


class Ranked(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        loss = super().compute_loss(model, inputs, return_outputs, **kwargs)
        return loss * self.args.local_rank if hasattr(self, "_run_epoch") else loss


Ranked(Line(), toy_arguments("out", TrainingArguments, local_rank=3), train_dataset=Points()).train()
