"""Adapters of peft on a language model, with the trainer of transformers."""

import sys

from client_models import gpt2, tokenizer, words
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from transformers import DataCollatorForLanguageModeling, Trainer, TrainingArguments

model = get_peft_model(gpt2(), LoraConfig(r=4, target_modules=["c_attn"], lora_dropout=0.1, task_type="CAUSAL_LM"))
encode = tokenizer()
data = Dataset.from_dict({"text": words(24, seed=1)}).map(lambda row: encode(row["text"]), remove_columns="text")
trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output_dir=sys.argv[1],
        max_steps=6,
        per_device_train_batch_size=4,
        save_steps=3,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=3,
        report_to="none",
        use_cpu=True,
        learning_rate=1e-2,
    ),
    train_dataset=data,
    eval_dataset=data.select(range(8)),
    data_collator=DataCollatorForLanguageModeling(encode, mlm=False),
    processing_class=encode,
)
trainer.train()
