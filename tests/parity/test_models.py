"""The same training of other models, with other collators and other kinds of data."""

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, WeightedRandomSampler
from transformers import DataCollatorForLanguageModeling, DataCollatorWithPadding

from models import (
    Sequences,
    ToyDataset,
    pad_everything,
    tiny_gpt2,
    tiny_masked_lm,
    tiny_t5,
    tiny_tagger,
    tiny_tokenizer,
)
from parity.peers import compare, untimed

EVALUATED = {"eval_strategy": "steps", "eval_steps": 3}

MODELS = {
    "gpt2": (tiny_gpt2, lambda: Sequences()),
    "t5": (tiny_t5, lambda: Sequences()),
    "tagger_ragged": (tiny_tagger, lambda: Sequences(ragged=True, classes=3)),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("accumulation", [1, 3])
def test_same_numbers_with_ignored_labels(name, accumulation, tmp_path):
    make_model, data = MODELS[name]

    def after(trainer):
        output = trainer.predict(data())
        return {"predictions": output.predictions, "labels": output.label_ids, "metrics": untimed(output.metrics)}

    compare(
        tmp_path,
        make_model=make_model,
        train_dataset=data,
        eval_dataset=data,
        trainer_options={"data_collator": pad_everything},
        gradient_accumulation_steps=accumulation,
        after=after,
        **EVALUATED,
    )


def test_same_numbers_with_causal_label_smoothing(tmp_path):
    compare(
        tmp_path,
        make_model=tiny_gpt2,
        train_dataset=Sequences,
        eval_dataset=Sequences,
        trainer_options={"data_collator": pad_everything},
        label_smoothing_factor=0.1,
        gradient_accumulation_steps=2,
        **EVALUATED,
    )


def test_same_numbers_with_random_masking_collator(tmp_path):
    def data():
        return Sequences(ragged=True, labelled=False)

    compare(
        tmp_path,
        make_model=tiny_masked_lm,
        train_dataset=data,
        eval_dataset=data,
        trainer_options={"data_collator": DataCollatorForLanguageModeling(tiny_tokenizer(), mlm_probability=0.3)},
        gradient_accumulation_steps=3,
        **EVALUATED,
    )


class Sentences(Sequences):
    """One label for each sequence."""

    def __getitem__(self, index):
        return {"input_ids": self.tokens[index], "label": index % 3}


def test_same_numbers_with_padding_collator(tmp_path):
    compare(
        tmp_path,
        train_dataset=lambda: Sentences(ragged=True),
        eval_dataset=lambda: Sentences(ragged=True, seed=1),
        trainer_options={"data_collator": DataCollatorWithPadding(tiny_tokenizer())},
        **EVALUATED,
    )


def test_same_numbers_with_processing_class(tmp_path):
    compare(
        tmp_path,
        train_dataset=lambda: Sentences(ragged=True),
        eval_dataset=lambda: Sentences(ragged=True, seed=1),
        trainer_options={"processing_class": tiny_tokenizer()},
        train_sampling_strategy="group_by_length",
        include_num_input_tokens_seen="non_padding",
        **EVALUATED,
    )


def test_same_numbers_on_columned_dataset(tmp_path):
    datasets = pytest.importorskip("datasets")

    def columned(size, seed):
        toy = ToyDataset(size, seed=seed)
        columns = {"input_ids": toy.tokens.tolist(), "labels": toy.labels.tolist(), "title": ["x"] * size}
        columns["length"] = [1 + index % 5 for index in range(size)]
        return datasets.Dataset.from_dict(columns)

    compare(
        tmp_path,
        train_dataset=lambda: columned(29, 0),
        eval_dataset=lambda: columned(11, 1),
        train_sampling_strategy="group_by_length",
        **EVALUATED,
    )


def collated_list(trainer):
    examples = [trainer.train_dataset[index] for index in range(13)]
    collate = torch.utils.data.default_collate
    return [collate(examples[start : start + 4]) for start in range(0, 13, 4)]


def generated_loader(trainer):
    generator = torch.Generator().manual_seed(4)
    return DataLoader(trainer.train_dataset, batch_size=4, shuffle=True, generator=generator)


def prepared_loader(trainer):
    batches = BatchSampler(RandomSampler(trainer.train_dataset), batch_size=3, drop_last=False)
    return trainer.accelerator.prepare(DataLoader(trainer.train_dataset, batch_sampler=batches))


def weighted_loader(trainer):
    weights = [1.0 + index % 3 for index in range(len(trainer.train_dataset))]
    return DataLoader(trainer.train_dataset, batch_size=4, sampler=WeightedRandomSampler(weights, len(weights)))


@pytest.mark.parametrize("make_loader", [collated_list, generated_loader, prepared_loader, weighted_loader])
def test_same_numbers_with_overridden_loader(make_loader, tmp_path):
    def base(trainer_class):
        return type("Own", (trainer_class,), {"get_train_dataloader": make_loader})

    compare(tmp_path, base=base, gradient_accumulation_steps=3)
