"""Small readers, their features and trainers, for the tests of training."""

from types import SimpleNamespace

import torch
from transformers import PrinterCallback, TrainerCallback

from portico import TrainingArguments
from portico.mrc import Featurizer, SpanPostProcessing, SquadMetrics
from portico.mrc.collators import head_collator
from portico.mrc.corpus import generate
from portico.mrc.models.small_bert import new_reader

SHAPE = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
QUIET = {
    "per_device_eval_batch_size": 7,
    "per_device_train_batch_size": 8,
    "use_cpu": True,
    "disable_tqdm": True,
    "report_to": "none",
}
SETTINGS = {
    "args": {**QUIET, "max_steps": 2, "save_strategy": "no"},
    "model": SHAPE,
    "data": {"num_train": 32, "num_validation": 24, "seed": 0},
    "preprocess": {"max_seq_length": 128, "doc_stride": 32, "vocab_size": 400},
}


def settings(**changes):
    """Return the settings of a short run with some changed; a pretrained model has no others of the small one."""
    merged = dict(SETTINGS)
    for group, given in changes.items():
        whole = isinstance(given, list) or "name_or_path" in given
        merged[group] = given if whole else {**SETTINGS.get(group, {}), **given}
    return {"_target_": "portico.mrc.experiment.MRCExperiment", **merged}


def source(seed=1, num_train=48, num_validation=20):
    """Return examples to train on and to evaluate on."""
    train, validation = generate(num_train=num_train, num_validation=num_validation, seed=seed)
    return SimpleNamespace(train=train, validation=validation)


def reader(examples, head="span"):
    """Return a small BERT with a head, always with the same weights, and its tokenizer."""
    torch.manual_seed(0)
    texts = [text for example in examples for text in (example["context"], example["question"])]
    return new_reader(texts, vocab_size=400, max_length=96, model=SHAPE, head=head)


def save(made, folder):
    """Save a model and its tokenizer."""
    made.model.save_pretrained(folder)
    made.tokenizer.save_pretrained(folder)


def featurizer(tokenizer, **options):
    """Return a featurizer with windows so small that some passages have several."""
    return Featurizer(tokenizer, max_seq_length=96, doc_stride=24, **options)


def featurized(examples, tokenizer):
    """Return the labelled features of both sets."""
    make = featurizer(tokenizer)
    return SimpleNamespace(
        train=make.train_features(examples.train), validation=make.eval_features(examples.validation, labels=True)
    )


def make_trainer(trainer_class, made, tmp_path, *, head="span", arguments=None, **options):
    """Return a trainer of a reader that prints nothing."""
    args = TrainingArguments(str(tmp_path), **{**QUIET, **(arguments or {})})
    parts = {
        "processing_class": made.tokenizer,
        "data_collator": head_collator(head, made.tokenizer),
        "post_process_function": SpanPostProcessing(version_2_with_negative=True),
        "compute_metrics": SquadMetrics(version_2_with_negative=True),
    }
    trainer = trainer_class(made.model, args, **{**parts, **options})
    trainer.remove_callback(PrinterCallback)
    return trainer


class EvaluationRecorder(TrainerCallback):
    """Keeps the metrics of each evaluation."""

    def __init__(self):
        self.metrics = []

    def on_evaluate(self, args, state, control, metrics, **kwargs):
        self.metrics.append(dict(metrics))
