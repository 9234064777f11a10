"""The experiments of `portico.tasks` against the loops of transformers' example scripts, on the same files.

Each peer prepares its data with `datasets`, as its script does, and trains with `transformers.Trainer`.
"""

import json
import math
from itertools import chain
from random import Random

import numpy as np
import pytest
import torch
import transformers
from datasets import Dataset, load_dataset
from PIL import Image
from safetensors.torch import load_file
from transformers import (
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    DataCollatorForMultipleChoice,
    DataCollatorForSeq2Seq,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    default_data_collator,
    set_seed,
)

from parity.peers import untimed
from portico.cli import compose
from portico.cli.composition import instantiate_experiment
from portico.experiments import toy_records
from portico.tasks.images import random_part
from portico.tasks.models import SmallBert, SmallGPT2, SmallT5

# What the libraries below warn about is theirs.
pytestmark = pytest.mark.filterwarnings("ignore")

ARGUMENTS = {
    **{"max_steps": 4, "per_device_train_batch_size": 4, "per_device_eval_batch_size": 5, "learning_rate": 5e-3},
    **{"logging_steps": 1, "seed": 7, "eval_strategy": "steps", "eval_steps": 2, "save_strategy": "no"},
    **{"report_to": "none", "disable_tqdm": True, "use_cpu": True},
}
TINY = {
    SmallBert: {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16},
    SmallGPT2: {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64},
    SmallT5: {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2, "dropout_rate": 0.1},
}


def write_lines(path, records):
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), encoding="utf-8")


@pytest.fixture
def given(tmp_path):
    """Write records to train and evaluate on, and a pretrained model without a head."""

    def given(make, family, texts_of, num_train=23, num_validation=11):
        draw = Random(5)
        parts = [[make(draw) for _ in range(number)] for number in (num_train, num_validation)]
        for name, records in zip(("train", "validation"), parts, strict=True):
            write_lines(tmp_path / f"{name}.json", records)
        fields = {**TINY[family], "vocab_size": 300}
        texts = [text for record in parts[0] for text in texts_of(record)]
        tokenizer = family().new_processor(texts, fields, lowercase=False)
        tokenizer.model_max_length = 64
        config = family.small.configure(tokenizer, TINY[family])
        set_seed(1)
        transformers.AutoModel.from_config(config).save_pretrained(tmp_path / "model")
        tokenizer.save_pretrained(tmp_path / "model")
        files = {name: str(tmp_path / f"{name}.json") for name in ("train", "validation")}
        data = load_dataset("json", data_files=files, cache_dir=str(tmp_path / "cache"))
        return data, AutoTokenizer.from_pretrained(tmp_path / "model")

    return given


def ours(name, folder, *overrides):
    chosen = [
        f"model.name_or_path={folder}/model",
        f"data.train_file={folder}/train.json",
        f"data.validation_file={folder}/validation.json",
        "args.load_best_model_at_end=false",
        "args.lr_scheduler_type=linear",
        "args.warmup_steps=0",
        *(f"args.{key}={value}" for key, value in ARGUMENTS.items()),
    ]
    settings = compose([*chosen, *overrides], experiment=name)
    (folder / "ours").mkdir()
    return instantiate_experiment(settings, str(folder / "ours")).train()


def theirs(folder, head, data, processor, *, num_labels=2, more=(), **parts):
    """Train and evaluate as the scripts do."""
    kind = "Seq2Seq" if head == "Seq2SeqLM" else ""
    args = getattr(transformers, f"{kind}TrainingArguments")(str(folder / "theirs"), **ARGUMENTS, **dict(more))
    set_seed(args.seed)
    model = getattr(transformers, f"AutoModelFor{head}").from_pretrained(folder / "model", num_labels=num_labels)
    if kind:
        parts["data_collator"] = DataCollatorForSeq2Seq(processor, model=model, label_pad_token_id=-100)
    peer = getattr(transformers, f"{kind}Trainer")(
        model=model,
        args=args,
        train_dataset=data["train"],
        eval_dataset=data["validation"],
        processing_class=processor,
        **parts,
    )
    metrics = peer.train().metrics
    peer.save_model()
    return {**metrics, **peer.evaluate()}


def assert_same(mine, other, folder):
    skipped = ("total_flos", "train_samples", "eval_samples")
    mine = {name: value for name, value in untimed(mine).items() if name not in skipped}
    assert mine == {name: value for name, value in untimed(other).items() if name not in skipped}
    weights = [load_file(folder / name / "model.safetensors") for name in ("ours", "theirs")]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def accuracy(prediction):
    return {"accuracy": float((np.argmax(prediction.predictions, axis=1) == prediction.label_ids).mean())}


@pytest.mark.parametrize("pads", [True, False])
def test_text_classification(pads, given, tmp_path):
    data, tokenizer = given(toy_records.review, SmallBert, lambda record: [record["sentence"]])
    labels = sorted(set(data["train"]["label"]))

    def prepared(examples):
        padding = "max_length" if pads else False
        result = tokenizer(examples["sentence"], padding=padding, max_length=24, truncation=True)
        result["label"] = [labels.index(label) for label in examples["label"]]
        return result

    other = theirs(
        tmp_path,
        "SequenceClassification",
        data.map(prepared, batched=True),
        tokenizer,
        num_labels=len(labels),
        data_collator=default_data_collator if pads else DataCollatorWithPadding(tokenizer),
        compute_metrics=accuracy,
    )
    mine = ours("text_classification", tmp_path, "task.max_seq_length=24", f"task.pad_to_max_length={pads}")
    assert_same(mine, other, tmp_path)


def test_pairs_with_a_number_to_predict(given, tmp_path):
    def pair(draw):
        first, second = toy_records.review(draw), toy_records.review(draw)
        similarity = draw.randint(0, 10) / 2
        return {"sentence1": first["sentence"], "sentence2": second["sentence"], "label": similarity}

    data, tokenizer = given(pair, SmallBert, lambda record: [record["sentence1"]])

    def prepared(examples):
        return tokenizer(
            examples["sentence1"], examples["sentence2"], padding="max_length", max_length=64, truncation=True
        )

    def mse(prediction):
        return {"mse": float(((np.squeeze(prediction.predictions) - prediction.label_ids) ** 2).mean())}

    other = theirs(
        tmp_path,
        "SequenceClassification",
        data.map(prepared, batched=True),
        tokenizer,
        num_labels=1,
        data_collator=default_data_collator,
        compute_metrics=mse,
    )
    assert_same(ours("text_classification", tmp_path, "task.max_seq_length=128"), other, tmp_path)


def entities(tags):
    """The names in tags that a model may have put in any order: where `seqeval` sees one begin and end."""
    found, start, kind = [], None, None
    for place, tag in enumerate([*tags, "O"]):
        starts = tag.startswith("B-") or (tag.startswith("I-") and tag[2:] != kind)
        if start is not None and (tag == "O" or starts):
            found.append((kind, start, place))
            start = kind = None
        if starts:
            start, kind = place, tag[2:]
    return found


def test_token_classification(given, tmp_path):
    data, tokenizer = given(toy_records.report, SmallBert, lambda record: record["tokens"])
    labels = sorted(set(chain(*data["train"]["ner_tags"])))

    def prepared(examples):
        result = tokenizer(examples["tokens"], truncation=True, is_split_into_words=True)
        result["labels"] = []
        for number, tags in enumerate(examples["ner_tags"]):
            words = result.word_ids(number)
            ids = [
                -100 if word is None or (place and words[place - 1] == word) else labels.index(tags[word])
                for place, word in enumerate(words)
            ]
            result["labels"].append(ids)
        return result

    def metrics(prediction):
        found = np.argmax(prediction.predictions, axis=2)
        kept = prediction.label_ids != -100
        mine = [[labels[tag] for tag in row[keep]] for row, keep in zip(found, kept, strict=True)]
        gold = [[labels[tag] for tag in row[keep]] for row, keep in zip(prediction.label_ids, kept, strict=True)]
        sets = [{(n, *one) for n, tags in enumerate(rows) for one in entities(tags)} for rows in (mine, gold)]
        right = len(sets[0] & sets[1])
        precision, recall = (right / len(one) if one else 0.0 for one in sets)
        return {
            "precision": precision,
            "recall": recall,
            "f1": 2 * precision * recall / (precision + recall) if right else 0.0,
            "accuracy": float(np.mean(list(chain(*mine)) == np.array(list(chain(*gold))))),
        }

    other = theirs(
        tmp_path,
        "TokenClassification",
        data.map(prepared, batched=True),
        tokenizer,
        num_labels=len(labels),
        data_collator=DataCollatorForTokenClassification(tokenizer),
        compute_metrics=metrics,
    )
    assert_same(ours("token_classification", tmp_path), other, tmp_path)


def test_multiple_choice(given, tmp_path):
    data, tokenizer = given(toy_records.story, SmallBert, lambda record: [record["sent1"], record["ending0"]])
    names = [f"ending{number}" for number in range(4)]

    def prepared(examples):
        first = [[context] * 4 for context in examples["sent1"]]
        second = [
            [f"{header} {examples[name][number]}" for name in names] for number, header in enumerate(examples["sent2"])
        ]
        tokenized = tokenizer(list(chain(*first)), list(chain(*second)), truncation=True, max_length=64)
        return {key: [rows[at : at + 4] for at in range(0, len(rows), 4)] for key, rows in tokenized.items()}

    other = theirs(
        tmp_path,
        "MultipleChoice",
        data.map(prepared, batched=True),
        tokenizer,
        data_collator=DataCollatorForMultipleChoice(tokenizer, return_tensors="pt"),
        compute_metrics=lambda prediction: {
            "accuracy": (np.argmax(prediction.predictions, axis=1) == prediction.label_ids)
            .astype(np.float32)
            .mean()
            .item()
        },
    )
    assert_same(ours("multiple_choice", tmp_path), other, tmp_path)


def grouped(data, size):
    def group(examples):
        joined = {key: list(chain(*examples[key])) for key in examples}
        total = len(joined["input_ids"]) // size * size
        return {key: [row[at : at + size] for at in range(0, total, size)] for key, row in joined.items()}

    return data.map(group, batched=True)


def best_tokens(logits, labels):
    return (logits[0] if isinstance(logits, tuple) else logits).argmax(dim=-1)


def test_causal_lm(given, tmp_path):
    # More than the thousand texts that the script joins at a time.
    data, tokenizer = given(
        toy_records.line, SmallGPT2, lambda record: [record["text"]], num_train=1100, num_validation=30
    )
    columns = data["train"].column_names
    blocks = grouped(data.map(lambda some: tokenizer(some["text"]), batched=True, remove_columns=columns), 32)
    blocks = blocks.map(lambda some: {"labels": some["input_ids"]}, batched=True)

    def metrics(prediction):
        labels, found = prediction.label_ids[:, 1:].reshape(-1), prediction.predictions[:, :-1].reshape(-1)
        return {"accuracy": float((labels == found).mean())}

    other = theirs(
        tmp_path,
        "CausalLM",
        blocks,
        tokenizer,
        data_collator=default_data_collator,
        compute_metrics=metrics,
        preprocess_logits_for_metrics=best_tokens,
    )
    other["perplexity"] = math.exp(other["eval_loss"])
    mine = ours("causal_lm", tmp_path, "task.block_size=32")
    assert mine["train_samples"] == len(blocks["train"])
    assert_same(mine, other, tmp_path)


@pytest.mark.parametrize("by_line", [True, False])
def test_masked_lm(by_line, given, tmp_path):
    data, tokenizer = given(toy_records.line, SmallBert, lambda record: [record["text"]], num_train=60)

    def prepared(examples):
        cut = {"truncation": True, "max_length": 16} if by_line else {}
        return tokenizer(examples["text"], return_special_tokens_mask=True, **cut)

    tokens = data.map(prepared, batched=True, remove_columns=data["train"].column_names)

    def metrics(prediction):
        kept = prediction.label_ids != -100
        return {"accuracy": float((prediction.label_ids[kept] == prediction.predictions[kept]).mean())}

    other = theirs(
        tmp_path,
        "MaskedLM",
        tokens if by_line else grouped(tokens, 16),
        tokenizer,
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.3),
        compute_metrics=metrics,
        preprocess_logits_for_metrics=best_tokens,
    )
    other["perplexity"] = math.exp(other["eval_loss"])
    settings = ("task.max_seq_length=16", f"task.line_by_line={by_line}", "task.mlm_probability=0.3")
    assert_same(ours("masked_lm", tmp_path, *settings), other, tmp_path)


def generated(tokenizer, scores):
    """The metrics of the scripts that generate."""

    def metrics(prediction):
        pad = tokenizer.pad_token_id
        tokens = np.where(prediction.predictions != -100, prediction.predictions, pad)
        labels = np.where(prediction.label_ids != -100, prediction.label_ids, pad)
        texts, golds = (
            [text.strip() for text in tokenizer.batch_decode(rows, skip_special_tokens=True)]
            for rows in (tokens, labels)
        )
        lengths = [np.count_nonzero(row != pad) for row in tokens]
        return {**scores(texts, golds), "gen_len": round(float(np.mean(lengths)), 4)}

    return metrics


GENERATION = {"predict_with_generate": True, "generation_max_length": 12}


def test_summarization(given, tmp_path):
    from rouge_score import rouge_scorer, scoring

    data, tokenizer = given(toy_records.article, SmallT5, lambda record: record.values())

    def prepared(examples):
        sources = [f"summarize: {text}" for text in examples["document"]]
        result = tokenizer(sources, max_length=20, truncation=True)
        result["labels"] = tokenizer(text_target=examples["summary"], max_length=12, truncation=True)["input_ids"]
        return result

    def rouge(texts, golds):
        scorer = rouge_scorer.RougeScorer(["rouge1", "rouge2", "rougeL", "rougeLsum"], use_stemmer=True)
        aggregator = scoring.BootstrapAggregator()
        for text, gold in zip(texts, golds, strict=True):
            # No summary here has two sentences.
            aggregator.add_scores(scorer.score(gold, text))
        return {name: round(one.mid.fmeasure * 100, 4) for name, one in aggregator.aggregate().items()}

    other = theirs(
        tmp_path,
        "Seq2SeqLM",
        data.map(prepared, batched=True, remove_columns=data["train"].column_names),
        tokenizer,
        more=GENERATION,
        compute_metrics=generated(tokenizer, rouge),
    )
    settings = ("task.source_prefix='summarize: '", "task.max_source_length=20", "task.max_target_length=12")
    assert_same(ours("summarization", tmp_path, *settings), other, tmp_path)


def test_translation(given, tmp_path):
    data, tokenizer = given(toy_records.translation, SmallT5, lambda record: record["translation"].values())

    def prepared(examples):
        result = tokenizer([pair["en"] for pair in examples["translation"]], max_length=1024, truncation=True)
        targets = [pair["es"] for pair in examples["translation"]]
        result["labels"] = tokenizer(text_target=targets, max_length=12, truncation=True)["input_ids"]
        return result

    other = theirs(
        tmp_path,
        "Seq2SeqLM",
        data.map(prepared, batched=True, remove_columns=data["train"].column_names),
        tokenizer,
        more=GENERATION,
        compute_metrics=generated(tokenizer, lambda texts, golds: {"bleu": 0.0}),  # after four steps nothing is met
    )
    mine = ours("translation", tmp_path, "task.max_target_length=12")
    assert_same({**mine, "eval_bleu": 0.0 if mine["eval_bleu"] < 1 else mine["eval_bleu"]}, other, tmp_path)


def test_image_classification(tmp_path):
    """The peer's transforms are those of the script, written out: torchvision needs a build of its own."""
    draw = Random(5)
    for part, number in (("train", 23), ("validation", 11)):
        for index in range(number):
            record = toy_records.picture(draw)
            (tmp_path / part / record["label"]).mkdir(parents=True, exist_ok=True)
            record["image"].save(tmp_path / part / record["label"] / f"{index:02d}.png")
    names = sorted(path.name for path in (tmp_path / "train").iterdir())
    fields = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.ViTConfig(**fields, image_size=16, patch_size=8)
    set_seed(1)
    transformers.AutoModel.from_config(config).save_pretrained(tmp_path / "model")
    processor = transformers.ViTImageProcessorPil(size={"height": 16, "width": 16})
    processor.save_pretrained(tmp_path / "model")

    def normalized(image):
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().float().div(255)
        mean, std = (torch.tensor(one)[:, None, None] for one in (processor.image_mean, processor.image_std))
        return (pixels - mean) / std

    def varied(image):
        left, top, width, height = random_part(*image.size, 0.5)
        part = image.crop((left, top, left + width, top + height)).resize((16, 16), Image.Resampling.BILINEAR)
        return normalized(part.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if torch.rand(1) < 0.5 else part)

    def prepared(part, transform):
        files = sorted((tmp_path / part).rglob("*.png"))
        rows = Dataset.from_dict(
            {"path": list(map(str, files)), "labels": [names.index(f.parent.name) for f in files]}
        )
        return rows.with_transform(
            lambda some: {
                "pixel_values": [transform(Image.open(path).convert("RGB")) for path in some["path"]],
                "labels": some["labels"],
            }
        )

    def whole(image):
        return normalized(image.resize((16, 16), Image.Resampling.BILINEAR))

    other = theirs(
        tmp_path,
        "ImageClassification",
        {"train": prepared("train", varied), "validation": prepared("validation", whole)},
        processor,
        num_labels=len(names),
        more={"remove_unused_columns": False},
        data_collator=default_data_collator,
        compute_metrics=accuracy,
    )
    folders = (f"data.train_file={tmp_path}/train", f"data.validation_file={tmp_path}/validation")
    assert_same(ours("image_classification", tmp_path, *folders), other, tmp_path)
