"""Online training with trl's RLOO: answers are generated and rewarded while the model trains."""

import sys

from client_models import gpt2, saved, tokenizer, words
from datasets import Dataset
from trl import RLOOConfig, RLOOTrainer


def reward(completions, **_):
    return [float(len(set(text.split()))) for text in completions]


trainer = RLOOTrainer(
    model=saved(gpt2()),
    reward_funcs=reward,
    args=RLOOConfig(
        output_dir=sys.argv[1],
        max_steps=4,
        per_device_train_batch_size=4,
        num_generations=4,
        save_steps=2,
        max_completion_length=8,
        logging_steps=1,
        report_to="none",
        use_cpu=True,
        bf16=False,
        learning_rate=1e-3,
    ),
    train_dataset=Dataset.from_dict({"prompt": words(12, seed=1)}),
    processing_class=tokenizer(),
)
trainer.train()
