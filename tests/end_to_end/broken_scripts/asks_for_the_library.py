"""Broken on purpose: an override that is called only where the trainer has the loop of transformers."""

from transformers import Trainer, TrainingArguments

from models import Line, Points, toy_arguments


class Doubling(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        loss = super().compute_loss(model, inputs, return_outputs, **kwargs)
        return self.metrics_format(loss) if hasattr(self, "_run_epoch") else loss

    def metrics_format(self, metrics):
        return 2 * metrics


Doubling(Line(), toy_arguments("out", TrainingArguments), train_dataset=Points()).train()
