"""Preferences between two answers, with trl's DPO."""

import sys

from client_models import gpt2, saved, tokenizer, words
from datasets import Dataset
from trl import DPOConfig, DPOTrainer

preferences = {name: words(24, seed=number) for number, name in enumerate(("prompt", "chosen", "rejected"))}
trainer = DPOTrainer(
    model=saved(gpt2()),
    args=DPOConfig(
        output_dir=sys.argv[1],
        max_steps=6,
        per_device_train_batch_size=4,
        save_steps=3,
        logging_steps=1,
        report_to="none",
        use_cpu=True,
        bf16=False,
        learning_rate=1e-3,
    ),
    train_dataset=Dataset.from_dict(preferences),
    processing_class=tokenizer(),
)
trainer.train()
