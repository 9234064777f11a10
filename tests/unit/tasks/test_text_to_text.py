"""A run as the command line starts it: what it writes and what it refuses."""

import json
from pathlib import Path

import pytest
from tokenizers.pre_tokenizers import Whitespace

from models import tiny_t5, tiny_tokenizer
from portico.cli import compose
from portico.cli.composition import instantiate_experiment
from portico.errors import InputError
from portico.tasks.text_to_text import corpus_bleu


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
    return instantiate_experiment(settings, str(folder / "out")).train()


def settings(folder, *overrides):
    chosen = [
        "trainer=seq2seq",
        f"model.name_or_path={folder}/model",
        f"data.train_file={folder}/pairs.jsonl",
        f"data.validation_file={folder}/pairs.jsonl",
        "task.max_target_length=6",
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


@pytest.mark.parametrize("setting", ["data.train_file", "data.validation_file"])
def test_files_have_to_be_set_where_there_is_no_embedded_data(folder, setting):
    composed = settings(folder, f"{setting}=null")
    with pytest.raises(InputError, match=rf"`{setting}` is not set \(.*\); set it to a file of records\."):
        train(composed, folder)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.train_file={folder}/none", "none: no such file"),
        ("task.source_column=text", "A record has no 'text' but source, target; set `task.source_column`"),
        ("model.name_or_path={folder}/damaged", "cannot be loaded as a model for Seq2SeqLM"),
        (
            "task.max_source_length=0",
            "`task.max_source_length=0` cannot be used; set it to an integer of 1",
        ),
        ("args.optim=none", "`args.optim=none` cannot be used; set it to one of adamw_torch, "),
    ],
)
def test_what_cannot_be_used_is_refused_before_training(folder, override, message):
    (folder / "damaged").mkdir()
    (folder / "damaged" / "config.json").touch()
    with pytest.raises(InputError, match=message):
        train(settings(folder, override.format(folder=folder)), folder)


def test_texts_are_cut(folder):
    metrics = train(settings(folder, "task.max_source_length=2", "task.max_target_length=1"), folder)
    assert metrics["train_samples"] == 8


@pytest.mark.parametrize(
    ("texts", "targets", "score"),
    [
        # What sacrebleu 2.6 gives for `corpus_bleu(texts, [targets]).score`.
        (["the cat sat on the mat ."], ["the cat sat on the mat ."], 100.0),
        (["the cat sat", "a dog barks loudly"], ["the cat sat on the mat", "the dog barks"], 38.84935863283277),
        (["cat"], ["dog"], 0.0),
        (["the cat sat"], ["the cat sat"], 0.0),
        (["hello world , it's me"], ["hello there world , it is me"], 17.030578356760866),
    ],
)
def test_bleu_is_that_of_sacrebleu(texts, targets, score):
    assert corpus_bleu(texts, targets) == pytest.approx(score, abs=1e-9)
