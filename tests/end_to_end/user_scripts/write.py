"""Train a language model on a stream of text, with arguments of one's own, in the manner of a notebook."""

import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path

import datasets
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
)


@dataclass
class OwnArguments(TrainingArguments):
    frozen_steps: int = 0
    extra_decay: float = 0.0


class FreezeFirst(TrainerCallback):
    """Keeps the embeddings as they are for some steps."""

    def on_step_begin(self, args, state, control, model=None, **kwargs):
        model.get_input_embeddings().weight.requires_grad_(state.global_step >= args.frozen_steps)


class DecayingTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **kwargs)
        loss = loss + self.args.extra_decay * sum(weight.pow(2).sum() for weight in model.parameters())
        return (loss, outputs) if return_outputs else loss

    def create_optimizer(self, *args):
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=self.args.learning_rate, momentum=0.9)
        return self.optimizer

    def log(self, logs, *args):
        if "eval_loss" in logs:
            logs["perplexity"] = math.exp(logs["eval_loss"])
        super().log(logs, *args)


output_dir = Path(sys.argv[1])
folder = output_dir.parent
tokenizer = AutoTokenizer.from_pretrained(folder / "language_model")
rows = json.loads((folder / "texts.json").read_text(encoding="utf-8"))


def blocks(batch):
    tokens = [token for text in batch["text"] for token in tokenizer(text)["input_ids"]]
    cut = [tokens[start : start + 8] for start in range(0, len(tokens) - 7, 8)]
    return {"input_ids": cut, "labels": [list(block) for block in cut]}


texts = datasets.Dataset.from_list(rows)
stream = texts.to_iterable_dataset().map(blocks, batched=True, remove_columns=["text"])
trainer = DecayingTrainer(
    AutoModelForCausalLM.from_pretrained(folder / "language_model"),
    OwnArguments(
        str(output_dir),
        max_steps=6,
        per_device_train_batch_size=4,
        per_device_eval_batch_size=3,
        gradient_accumulation_steps=2,
        learning_rate=1e-2,
        logging_steps=2,
        eval_strategy="steps",
        eval_steps=3,
        save_steps=3,
        save_total_limit=1,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        frozen_steps=2,
        extra_decay=1e-3,
    ),
    default_data_collator,
    stream,
    texts.map(blocks, batched=True, remove_columns=["text"]),
    callbacks=[FreezeFirst()],
    compute_metrics=lambda prediction: {"same": float((prediction.predictions == prediction.label_ids).mean())},
    preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1),
)
trainer.train()
trainer.save_state()
trainer.save_model(str(output_dir / "final"))
trainer.save_metrics("all", trainer.evaluate())
