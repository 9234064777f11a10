"""Answers labelled as wanted or unwanted, with trl's KTO."""

import sys

from client_models import gpt2, tokenizer, words
from datasets import Dataset
from trl import KTOConfig, KTOTrainer

answers = {"prompt": words(24, seed=1), "completion": words(24, seed=2), "label": [True, False] * 12}
trainer = KTOTrainer(
    model=gpt2(),
    ref_model=gpt2(),
    args=KTOConfig(
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
    train_dataset=Dataset.from_dict(answers),
    processing_class=tokenizer(),
)
trainer.train()
