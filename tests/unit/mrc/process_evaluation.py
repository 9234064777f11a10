"""Evaluates a small reader in every process that is started: ``process_evaluation.py FOLDER MODE``."""

import sys

import torch
from transformers import DataCollatorWithPadding

from portico import MRCTrainer, TrainingArguments
from portico.mrc import Featurizer, SpanPostProcessing, SquadMetrics
from portico.mrc.corpus import generate
from portico.mrc.models.small_bert import new_reader

SHAPE = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}


def main(folder, mode):
    examples = generate(num_train=8, num_validation=45, seed=1)[1]
    texts = [text for example in examples for text in (example["context"], example["question"])]
    torch.manual_seed(0)
    reader = new_reader(texts, vocab_size=400, max_length=96, model=SHAPE)
    featurizer = Featurizer(reader.tokenizer, max_seq_length=96, doc_stride=24, pad_to_max_length=True)
    trainer = MRCTrainer(
        reader.model,
        TrainingArguments(
            folder, per_device_eval_batch_size=7, use_cpu=True, disable_tqdm=True, report_to="none", ddp_backend="gloo"
        ),
        eval_dataset=featurizer.eval_features(examples),
        eval_examples=examples,
        processing_class=reader.tokenizer,
        data_collator=DataCollatorWithPadding(reader.tokenizer),
        post_process_function=SpanPostProcessing(version_2_with_negative=True, mode=mode, calibrate=True),
        compute_metrics=SquadMetrics(version_2_with_negative=True),
    )
    trainer.save_metrics("eval", {key: value for key, value in trainer.evaluate().items() if "per_second" not in key})


if __name__ == "__main__":
    main(*sys.argv[1:])
