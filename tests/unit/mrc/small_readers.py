"""Small readers, their features and trainers, for the tests of training."""

from types import SimpleNamespace

import torch
from transformers import PrinterCallback

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


def source(seed=1, num_train=48, num_validation=20):
    """Examples to train on and to evaluate on."""
    train, validation = generate(num_train=num_train, num_validation=num_validation, seed=seed)
    return SimpleNamespace(train=train, validation=validation)


def reader(examples, head="span"):
    """A small BERT under a head, always with the same weights."""
    torch.manual_seed(0)
    texts = [text for example in examples.train for text in (example["context"], example["question"])]
    return new_reader(texts, vocab_size=400, max_length=96, model=SHAPE, head=head)


def featurized(examples, tokenizer):
    """The features of both sets; small windows, so that some passages have several."""
    featurizer = Featurizer(tokenizer, max_seq_length=96, doc_stride=24)
    return SimpleNamespace(
        train=featurizer.train_features(examples.train),
        validation=featurizer.eval_features(examples.validation, labels=True),
    )


def make_trainer(trainer_class, made, tmp_path, *, head="span", arguments=None, **options):
    """A trainer of a reader, which says nothing."""
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
