"""Classify sentences: the command line, the best model, predictions in a file."""

import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from datasets import load_dataset
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    EarlyStoppingCallback,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint


@dataclass
class DataArguments:
    model_name_or_path: str
    data_folder: str
    max_length: int = field(default=12, metadata={"help": "Tokens kept of a sentence."})
    go_on: bool = field(default=False, metadata={"help": "Go on from the last checkpoint."})


def accuracy(prediction):
    return {"accuracy": (np.argmax(prediction.predictions, axis=1) == prediction.label_ids).astype(np.float32).mean()}


def main():
    parser = HfArgumentParser((DataArguments, TrainingArguments))
    if len(sys.argv) == 2 and sys.argv[1].endswith(".json"):
        data_args, args = parser.parse_json_file(sys.argv[1])
    else:
        data_args, args = parser.parse_args_into_dataclasses()
    assert args.parallel_mode.value == "not_parallel"
    assert (args.n_gpu, args.should_log, args.local_process_index) == (0, True, 0)
    set_seed(args.seed)
    files = {split: str(Path(data_args.data_folder) / f"{split}.json") for split in ("train", "dev", "test")}
    raw = load_dataset("json", data_files=files, cache_dir=str(Path(data_args.data_folder) / "cache"))
    tokenizer = AutoTokenizer.from_pretrained(data_args.model_name_or_path)
    with args.main_process_first(desc="tokenize"):
        data = raw.map(
            lambda rows: tokenizer(rows["text"], truncation=True, max_length=data_args.max_length),
            batched=True,
            load_from_cache_file=False,
        )
    model = AutoModelForSequenceClassification.from_pretrained(data_args.model_name_or_path, num_labels=3)
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=data["train"],
        eval_dataset=data["dev"],
        processing_class=tokenizer,
        compute_metrics=accuracy,
        callbacks=[EarlyStoppingCallback(early_stopping_patience=9)],
    )
    checkpoint = get_last_checkpoint(args.output_dir) if data_args.go_on else args.resume_from_checkpoint
    metrics = trainer.train(resume_from_checkpoint=checkpoint).metrics
    metrics["train_samples"] = len(data["train"])
    trainer.save_model()
    trainer.log_metrics("train", metrics)
    trainer.save_metrics("train", metrics)
    trainer.save_state()
    metrics = trainer.evaluate(eval_dataset=data["dev"])
    trainer.log_metrics("eval", metrics)
    trainer.save_metrics("eval", metrics)
    predictions = trainer.predict(data["test"].remove_columns("label"), metric_key_prefix="predict").predictions
    if trainer.is_world_process_zero():
        lines = [f"{index}\t{label}" for index, label in enumerate(np.argmax(predictions, axis=1))]
        (Path(args.output_dir) / "predict_results.txt").write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
