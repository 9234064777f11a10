"""Curves of losses, gradient norms and ``eval_loss`` of every kind of model, in one process or in several.

An optimizer step sees 12 examples, shared among processes and batches.
"""

import json
import os
import tempfile
import warnings
from pathlib import Path

import torch
import transformers
from torch import nn
from transformers import DataCollatorForSeq2Seq

import portico
import portico.errors
from models import Bag, Pairs, Sequences, ToyDataset, pad_everything, tiny_bert_config, tiny_t5, tiny_tokenizer
from parity.peers import QUIET

LIBRARIES = {"portico": portico, "transformers": transformers}
EXAMPLES_PER_STEP = 12
CURVES = ("loss", "grad_norm", "eval_loss", "train_loss")


class WithColumns(torch.utils.data.Dataset):
    """:class:`ToyDataset` with other columns instead of the label, made of its index, tokens and label."""

    def __init__(self, make, size, seed=0):
        self.data, self.make = ToyDataset(size, seed=seed), make

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.make(index, **self.data[index])


def span(index, input_ids, labels):
    return {"input_ids": input_ids, "start_positions": labels, "end_positions": labels + 2}


def choices(index, input_ids, labels):
    return {"input_ids": torch.stack([input_ids, input_ids.roll(1), input_ids.flip(0)]), "labels": labels}


def number(index, input_ids, labels):
    return {"input_ids": input_ids, "labels": labels.float() + index / 10}


class BagWithOptions(Bag):
    def forward(self, input_ids, labels=None, **kwargs):
        return super().forward(input_ids, labels)


def bert(name, **options):
    def make():
        torch.manual_seed(7)
        config = tiny_bert_config(2)
        config.update({"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, **options})
        return getattr(transformers, f"BertFor{name}")(config)

    return make


def gpt2():
    torch.manual_seed(7)
    sizes = {"vocab_size": 50, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))


def t5():
    model = tiny_t5()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if hasattr(module, "dropout") and isinstance(module.dropout, float):
            module.dropout = 0.0
    return model


def padded_with_mask(examples):
    batch = pad_everything(examples)
    lengths = torch.tensor([len(example["input_ids"]) for example in examples])
    return {**batch, "attention_mask": (torch.arange(batch["input_ids"].shape[1]) < lengths[:, None]).long()}


def labelled_tokens(size, seed=0):
    return Sequences(size, ragged=True, classes=3, seed=seed)


def text(size, seed=0):
    return Sequences(size, ragged=True, seed=seed)


def pairs(size, seed=0):
    return Pairs(size, seed=seed)


# Model, data, collator.
MODELS = {
    "sequence classification": (bert("SequenceClassification"), ToyDataset, None),
    "regression": (
        bert("SequenceClassification", num_labels=1),
        lambda size, seed=0: WithColumns(number, size, seed),
        None,
    ),
    "token classification": (bert("TokenClassification"), labelled_tokens, padded_with_mask),
    "question answering": (
        bert("QuestionAnswering", num_labels=2),
        lambda size, seed=0: WithColumns(span, size, seed),
        None,
    ),
    "multiple choice": (bert("MultipleChoice"), lambda size, seed=0: WithColumns(choices, size, seed), None),
    "masked LM": (bert("MaskedLM"), text, padded_with_mask),
    "causal LM": (gpt2, text, padded_with_mask),
    "seq2seq": (t5, pairs, "seq2seq"),
    "plain": (Bag, ToyDataset, None),
    "plain with kwargs": (BagWithOptions, ToyDataset, None),
}


def curves(library, model, folder, *, num_batches=1, num_processes=1, **arguments):
    """Train ``model`` of ``MODELS`` twice over 29 examples, evaluating on 13, and return each curve.

    Args:
        library: ``"portico"`` or ``"transformers"``.
        model: A name in ``MODELS``.
        folder: Folder of the run.
        num_batches: Batches of a process that an optimizer step accumulates.
        num_processes: Processes that train.
        **arguments: Further training arguments.
    """
    make_model, data, collate = MODELS[model]
    trained = make_model()
    if collate == "seq2seq":
        collate = DataCollatorForSeq2Seq(tiny_tokenizer(), model=trained)
    batch_size = EXAMPLES_PER_STEP // num_processes // num_batches
    options = {
        "num_train_epochs": 2,
        "per_device_train_batch_size": batch_size,
        "per_device_eval_batch_size": batch_size,
        "gradient_accumulation_steps": num_batches,
        "eval_strategy": "epoch",
        "learning_rate": 1e-2,
        "max_grad_norm": 0.2,
        **QUIET,
    }
    trainer = LIBRARIES[library].Trainer(
        trained,
        LIBRARIES[library].TrainingArguments(str(folder), **{**options, **arguments}),
        data_collator=collate,
        train_dataset=data(29),
        eval_dataset=data(13, seed=1),
    )
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    return {key: [entry[key] for entry in trainer.state.log_history if key in entry] for key in CURVES}


def generation(library, folder, *, num_processes=1, num_sources=13, **arguments):
    """Generate from the sources, and return the loss and the predicted tokens."""
    library, model = LIBRARIES[library], t5()
    options = {
        "per_device_eval_batch_size": EXAMPLES_PER_STEP // num_processes,
        "predict_with_generate": True,
        **QUIET,
    }
    trainer = library.Seq2SeqTrainer(
        model,
        library.Seq2SeqTrainingArguments(str(folder), **{**options, "generation_max_length": 4, **arguments}),
        data_collator=DataCollatorForSeq2Seq(tiny_tokenizer(), model=model),
    )
    predicted = trainer.predict(Pairs(num_sources, seed=1))
    return {"loss": predicted.metrics["test_loss"], "predictions": predicted.predictions.tolist()}


def divergence(folder, *, num_processes=1, **arguments):
    """Train until the loss of the last process is NaN, and return the step and the error of each process."""
    data = [{"input_ids": torch.tensor([5]), "labels": torch.tensor(1)} for _ in range(8)]
    options = {"per_device_train_batch_size": 1, "max_steps": 4, "train_sampling_strategy": "sequential", **QUIET}

    class Diverging(portico.Trainer):
        def compute_loss(self, *args, **kwargs):
            loss = super().compute_loss(*args, **kwargs)
            is_here = self.state.global_step == 2 and self.args.process_index == num_processes - 1
            return loss * float("nan") if is_here else loss

    trainer = Diverging(Bag(), portico.TrainingArguments(str(folder), **{**options, **arguments}), train_dataset=data)
    trainer.remove_callback(transformers.PrinterCallback)
    try:
        trainer.train()
        error = None
    except portico.errors.InputError as stop:
        error = str(stop)
    return trainer.accelerator.gather_object([(trainer.state.global_step, error)])


def main(file, runs):
    """Write the results of ``runs``, a list in JSON of arguments of :func:`curves`, to ``file``.

    The key ``kind`` of a run names another function to call.
    """
    warnings.simplefilter("ignore")
    num_processes = int(os.environ["WORLD_SIZE"])
    with tempfile.TemporaryDirectory() as folder:
        measured = [
            globals()[run.pop("kind", "curves")](folder=folder, num_processes=num_processes, **run)
            for run in json.loads(runs)
        ]
    if os.environ["RANK"] == "0":
        Path(file).write_text(json.dumps(measured), encoding="utf-8")
