"""Answer questions from a passage: a trainer of one's own that turns logits into answers before it measures them."""

import json
import math
import time
from pathlib import Path

import numpy as np
from datasets import load_dataset
from transformers import (
    AutoModelForQuestionAnswering,
    AutoTokenizer,
    DataCollatorWithPadding,
    EvalPrediction,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import PredictionOutput, speed_metrics


class AnsweringTrainer(Trainer):
    def __init__(self, *args, eval_examples=None, answers_of=None, **kwargs):
        super().__init__(*args, **kwargs)
        self.eval_examples = eval_examples
        self.answers_of = answers_of

    def _loop(self, loader, description, ignore_keys, metric_key_prefix):
        compute_metrics, self.compute_metrics = self.compute_metrics, None
        start_time = time.time()
        try:
            output = self.evaluation_loop(
                loader,
                description=description,
                prediction_loss_only=True if compute_metrics is None else None,
                ignore_keys=ignore_keys,
                metric_key_prefix=metric_key_prefix,
            )
        finally:
            self.compute_metrics = compute_metrics
        num_steps = math.ceil(output.num_samples / (self.args.eval_batch_size * self.args.world_size))
        output.metrics.update(
            speed_metrics(metric_key_prefix, start_time, num_samples=output.num_samples, num_steps=num_steps)
        )
        return output

    def evaluate(self, eval_dataset=None, eval_examples=None, ignore_keys=None, metric_key_prefix="eval"):
        eval_dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        eval_examples = self.eval_examples if eval_examples is None else eval_examples
        output = self._loop(self.get_eval_dataloader(eval_dataset), "Evaluation", ignore_keys, metric_key_prefix)
        metrics = output.metrics
        if self.args.should_save:
            answers = self.answers_of(eval_examples, eval_dataset, output.predictions, metric_key_prefix)
            measured = self.compute_metrics(answers)
            metrics = {**{f"{metric_key_prefix}_{name}": value for name, value in measured.items()}, **metrics}
        if self.args.should_log:
            self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def predict(self, predict_dataset, predict_examples, ignore_keys=None, metric_key_prefix="test"):
        output = self._loop(self.get_test_dataloader(predict_dataset), "Prediction", ignore_keys, metric_key_prefix)
        answers = self.answers_of(predict_examples, predict_dataset, output.predictions, metric_key_prefix)
        metrics = {**self.compute_metrics(answers), **output.metrics}
        return PredictionOutput(predictions=answers.predictions, label_ids=answers.label_ids, metrics=metrics)


def windows(tokenizer, rows):
    encoded = tokenizer(
        rows["question"],
        rows["context"],
        truncation="only_second",
        max_length=24,
        stride=4,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    encoded["row"] = encoded.pop("overflow_to_sample_mapping")
    return encoded


def training_features(tokenizer, rows):
    encoded = windows(tokenizer, rows)
    encoded["start_positions"], encoded["end_positions"] = [], []
    for window, offsets in enumerate(encoded.pop("offset_mapping")):
        answer = rows["answers"][encoded["row"][window]]
        start, end = answer["answer_start"][0], answer["answer_start"][0] + len(answer["text"][0])
        inside = [part == 1 for part in encoded.sequence_ids(window)]
        starts = [place for place, (first, _) in enumerate(offsets) if inside[place] and first == start]
        ends = [place for place, (_, last) in enumerate(offsets) if inside[place] and last == end]
        encoded["start_positions"].append(starts[0] if starts and ends else 0)
        encoded["end_positions"].append(ends[0] if starts and ends else 0)
    return encoded


def evaluation_features(tokenizer, rows):
    encoded = windows(tokenizer, rows)
    encoded["example_id"] = [rows["id"][row] for row in encoded["row"]]
    return encoded


def main():
    (args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(
        args_filename=None, look_for_args_file=False
    )
    set_seed(args.seed)
    folder = Path(args.output_dir).parent
    files = {split: str(folder / f"questions_{split}.json") for split in ("train", "dev")}
    raw = load_dataset("json", data_files=files, field="data", cache_dir=str(folder / "cache"))
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    columns = raw["train"].column_names
    train = raw["train"].map(
        lambda rows: training_features(tokenizer, rows),
        batched=True,
        load_from_cache_file=False,
        remove_columns=columns,
    )
    dev = raw["dev"].map(
        lambda rows: evaluation_features(tokenizer, rows),
        batched=True,
        load_from_cache_file=False,
        remove_columns=columns,
    )

    def answers_of(examples, features, predictions, stage):
        start_logits, end_logits = predictions
        texts = {example["id"]: "" for example in examples}
        contexts = {example["id"]: example["context"] for example in examples}
        for window, feature in enumerate(features):
            start, end = int(np.argmax(start_logits[window])), int(np.argmax(end_logits[window]))
            offsets = feature["offset_mapping"]
            if start <= end < len(offsets):
                texts[feature["example_id"]] = contexts[feature["example_id"]][offsets[start][0] : offsets[end][1]]
        (Path(args.output_dir) / f"{stage}_predictions.json").write_text(json.dumps(texts), encoding="utf-8")
        return EvalPrediction(
            predictions=list(texts.values()), label_ids=[example["answers"]["text"][0] for example in examples]
        )

    trainer = AnsweringTrainer(
        model=AutoModelForQuestionAnswering.from_pretrained(folder / "model"),
        args=args,
        train_dataset=train,
        eval_dataset=dev,
        eval_examples=raw["dev"],
        processing_class=tokenizer,
        data_collator=DataCollatorWithPadding(tokenizer),
        answers_of=answers_of,
        compute_metrics=lambda answers: {
            "exact": float(np.mean([mine == true for mine, true in zip(*answers, strict=True)])),
            "length": float(np.mean([len(mine) for mine in answers.predictions])),
        },
    )
    result = trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    trainer.save_model()
    trainer.save_metrics("train", result.metrics)
    trainer.save_state()
    trainer.save_metrics("eval", trainer.evaluate())
    trainer.save_metrics("predict", trainer.predict(dev, raw["dev"], metric_key_prefix="predict").metrics)


if __name__ == "__main__":
    main()
