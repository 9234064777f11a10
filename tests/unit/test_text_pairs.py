"""A run as the command line starts it: what it writes and what it refuses."""

import json
from pathlib import Path

import pytest
from tokenizers.pre_tokenizers import Whitespace

from models import tiny_t5, tiny_tokenizer
from portico.cli import compose
from portico.cli.compose import experiment_of
from portico.errors import InputError
from portico.text_pairs import PairPreprocessing, read_pairs


def word_tokenizer():
    tokenizer = tiny_tokenizer()
    tokenizer.backend_tokenizer.pre_tokenizer = Whitespace()
    return tokenizer


@pytest.fixture
def folder(tmp_path):
    tiny_t5().save_pretrained(tmp_path / "model")
    word_tokenizer().save_pretrained(tmp_path / "model")
    lines = [json.dumps({"source": f"w{n} w{n + 1} w{n + 2}", "target": f"w{n}"}) for n in range(8)]
    (tmp_path / "pairs.jsonl").write_text("\n".join([*lines[:4], "", *lines[4:]]), encoding="utf-8")
    return tmp_path


def train(settings, folder):
    return experiment_of(settings, str(folder / "out")).train()


def settings(folder, *overrides):
    chosen = [
        "trainer=seq2seq",
        f"model.name_or_path={folder}/model",
        f"data.train_file={folder}/pairs.jsonl",
        f"data.validation_file={folder}/pairs.jsonl",
        "preprocess.max_target_length=6",
        "args.max_steps=2",
        "args.report_to=none",
        "args.disable_tqdm=true",
        "args.use_cpu=true",
    ]
    return compose([*chosen, *overrides], experiment=None)


@pytest.mark.filterwarnings("ignore:Using the model-agnostic default `max_length`:UserWarning")
def test_a_run_writes_its_results(folder):
    composed = settings(folder, "args.predict_with_generate=true", "args.generation_max_length=5")
    metrics = train(composed, folder)
    assert {"train_loss", "eval_loss", "eval_exact_match"} <= set(metrics)
    assert metrics["eval_samples"] == 8
    written = {path.name for path in Path(folder / "out").iterdir()}
    assert {"model.safetensors", "all_results.json", "trainer_state.json", "checkpoint-2"} <= written


def test_without_generation_there_is_the_loss(folder):
    metrics = train(settings(folder), folder)
    assert "eval_loss" in metrics
    assert "eval_exact_match" not in metrics


def test_an_unknown_key_is_refused(folder):
    with pytest.raises(
        InputError, match=r"'data.train_files' is not a setting; the nearest valid names are: data.train"
    ):
        settings(folder, "data.train_files=3")


@pytest.mark.parametrize("setting", ["model.name_or_path", "data.train_file", "data.validation_file"])
def test_a_setting_without_default_has_to_be_set(folder, setting):
    composed = settings(folder, f"{setting}=null")
    with pytest.raises(InputError, match=f"`{setting}` is not set; a sequence-to-sequence run has no default for it"):
        train(composed, folder)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.train_file={folder}/none", r"none does not exist; set it to a file with one JSON object a line\."),
        ("data.source=text", "pairs.jsonl:1 has no string under both 'text' and 'target'; set `data.source`"),
        ("model.name_or_path={folder}/out", "gives no encoder-decoder with its tokenizer"),
        (
            "preprocess.max_source_length=0",
            "`preprocess.max_source_length=0` cannot be used; set it to an integer of 1",
        ),
        ("args.optim=none", "These training arguments cannot be used: none is not a valid OptimizerNames"),
    ],
)
def test_what_cannot_be_used_is_refused_before_training(folder, override, message):
    with pytest.raises(InputError, match=message):
        train(settings(folder, override.format(folder=folder)), folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("{", r"pairs.jsonl:1 is not JSON \("),
        ("\n[1]", "pairs.jsonl:2 has no string under both"),
        ("[" * 100_000, r"pairs.jsonl:1 is not JSON \("),
        ('{"source": "\\ud800", "target": "a"}', "pairs.jsonl:1 is not valid Unicode"),
    ],
)
def test_a_broken_file_is_refused(tmp_path, content, message):
    file = tmp_path / "pairs.jsonl"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read_pairs(str(file), source="source", target="target")


def test_texts_are_cut():
    tokenizer = word_tokenizer()
    item = PairPreprocessing(max_source_length=2, max_target_length=1).dataset([("w1 w2 w3", "w4 w5 w6")], tokenizer)[
        0
    ]
    assert len(item["input_ids"]) == len(item["attention_mask"]) == 2
    assert item["labels"] == tokenizer("w4")["input_ids"]
