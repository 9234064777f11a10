"""Supervised fine-tuning with trl."""

import sys

from client_models import gpt2, tokenizer, words
from datasets import Dataset
from trl import SFTConfig, SFTTrainer

trainer = SFTTrainer(
    model=gpt2(),
    args=SFTConfig(
        output_dir=sys.argv[1],
        max_steps=6,
        per_device_train_batch_size=4,
        save_steps=3,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=3,
        report_to="none",
        use_cpu=True,
        bf16=False,
        max_length=16,
    ),
    train_dataset=Dataset.from_dict({"text": words(24, seed=1)}),
    eval_dataset=Dataset.from_dict({"text": words(8, seed=2)}),
    processing_class=tokenizer(),
)
trainer.train()
