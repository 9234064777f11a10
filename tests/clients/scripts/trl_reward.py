"""A reward model, with trl."""

import sys

from client_models import reward_model, tokenizer, words
from datasets import Dataset
from trl import RewardConfig, RewardTrainer

trainer = RewardTrainer(
    model=reward_model(),
    args=RewardConfig(
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
    train_dataset=Dataset.from_dict({"chosen": words(24, seed=1), "rejected": words(24, seed=2)}),
    processing_class=tokenizer(),
)
trainer.train()
