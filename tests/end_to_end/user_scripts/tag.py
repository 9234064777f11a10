"""Tag words: the command line, labels aligned with tokens, a metric over all of them."""

from dataclasses import dataclass, field

import numpy as np
from datasets import load_dataset
from transformers import (
    AutoModelForTokenClassification,
    AutoTokenizer,
    DataCollatorForTokenClassification,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    set_seed,
)


@dataclass
class ModelArguments:
    model_name_or_path: str
    max_seq_length: int = field(default=16, metadata={"help": "Tokens kept of a sentence."})


def main():
    model_args, training_args = HfArgumentParser((ModelArguments, TrainingArguments)).parse_args_into_dataclasses()
    set_seed(training_args.seed)
    raw = load_dataset("json", data_files={"train": "train.json", "dev": "dev.json"}, cache_dir="cache")
    tokenizer = AutoTokenizer.from_pretrained(model_args.model_name_or_path)
    model = AutoModelForTokenClassification.from_pretrained(model_args.model_name_or_path, num_labels=3)

    def tokenize_and_align(rows):
        batch = tokenizer(
            [text.split() for text in rows["text"]],
            is_split_into_words=True,
            truncation=True,
            max_length=model_args.max_seq_length,
        )
        batch["labels"] = [
            [-100 if word is None else (word + label) % 3 for word in batch.word_ids(number)]
            for number, label in enumerate(rows["label"])
        ]
        return batch

    data = raw.map(tokenize_and_align, batched=True, remove_columns=["text", "label"], load_from_cache_file=False)

    def compute_metrics(prediction):
        chosen, labels = np.argmax(prediction.predictions, axis=2), prediction.label_ids
        return {"accuracy": float((chosen == labels)[labels != -100].mean())}

    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=data["train"],
        eval_dataset=data["dev"],
        processing_class=tokenizer,
        data_collator=DataCollatorForTokenClassification(tokenizer),
        compute_metrics=compute_metrics,
    )
    result = trainer.train()
    trainer.save_model()
    trainer.save_metrics("train", result.metrics)
    trainer.save_state()
    trainer.save_metrics("eval", trainer.evaluate())


if __name__ == "__main__":
    main()
