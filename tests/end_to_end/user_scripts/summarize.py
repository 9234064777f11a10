"""Summarise texts: the command line, generated summaries, their overlap with the references."""

from dataclasses import dataclass, field

import numpy as np
from datasets import load_dataset
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    HfArgumentParser,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    set_seed,
)


@dataclass
class ModelArguments:
    model_name_or_path: str
    max_target_length: int = field(default=6, metadata={"help": "Tokens of a summary."})


def main():
    parser = HfArgumentParser((ModelArguments, Seq2SeqTrainingArguments))
    model_args, training_args = parser.parse_args_into_dataclasses()
    set_seed(training_args.seed)
    raw = load_dataset("json", data_files={"train": "train.json", "dev": "dev.json"}, cache_dir="cache")
    tokenizer = AutoTokenizer.from_pretrained(model_args.model_name_or_path)
    model = AutoModelForSeq2SeqLM.from_pretrained(model_args.model_name_or_path)

    def preprocess(rows):
        inputs = tokenizer(rows["text"], truncation=True, max_length=16)
        summaries = [" ".join(text.split()[:3]) for text in rows["text"]]
        inputs["labels"] = tokenizer(summaries, truncation=True, max_length=model_args.max_target_length)["input_ids"]
        return inputs

    data = raw.map(preprocess, batched=True, remove_columns=["text", "label"], load_from_cache_file=False)

    def compute_metrics(prediction):
        kept = [np.where(ids == -100, tokenizer.pad_token_id, ids) for ids in prediction]
        texts = [tokenizer.batch_decode(ids, skip_special_tokens=True) for ids in kept]
        overlaps = [len({*one.split()} & {*other.split()}) for one, other in zip(*texts, strict=True)]
        return {"overlap": float(np.mean(overlaps))}

    training_args.generation_max_length = model_args.max_target_length
    trainer = Seq2SeqTrainer(
        model=model,
        args=training_args,
        train_dataset=data["train"],
        eval_dataset=data["dev"],
        processing_class=tokenizer,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model, label_pad_token_id=-100),
        compute_metrics=compute_metrics,
    )
    result = trainer.train()
    trainer.save_model()
    trainer.save_metrics("train", result.metrics)
    trainer.save_metrics("eval", trainer.evaluate(num_beams=2))


if __name__ == "__main__":
    main()
