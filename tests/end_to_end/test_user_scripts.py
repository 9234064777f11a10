"""Scripts as users of Hugging Face write them leave the same files with the import changed and nothing else."""

import json
import re
import runpy
import sys
import warnings
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from tokenizers.pre_tokenizers import Whitespace
from transformers import (
    BertConfig,
    BertForQuestionAnswering,
    GPT2Config,
    GPT2LMHeadModel,
    T5Config,
    T5ForConditionalGeneration,
)

from fresh_process import portico
from models import tiny_tokenizer
from parity.peers import TIMING_KEYS
from portico.checkpoint.manifest import OWN_FILES
from portico.compat.transformers import CHECKED_VERSION

BEST = {"metric_for_best_model": "accuracy"}
SCRIPTS = Path(__file__).parent / "user_scripts"
ARGUMENTS = {
    "use_cpu": True,
    "num_train_epochs": 2,
    "per_device_train_batch_size": 4,
    "per_device_eval_batch_size": 3,
    "gradient_accumulation_steps": 2,
    "learning_rate": 1e-2,
    "logging_steps": 1,
    "eval_strategy": "steps",
    "eval_steps": 2,
    "save_steps": 2,
    "report_to": "none",
    "disable_tqdm": True,
    "seed": 5,
}


def words(generator, length):
    return " ".join(f"w{number}" for number in torch.randint(0, 45, (length,), generator=generator))


def question(generator, name):
    context = words(generator, 30)
    start = int(torch.randint(0, 28, (), generator=generator))
    parts = context.split()
    answer = " ".join(parts[start : start + 2])
    answers = {"text": [answer], "answer_start": [len(" ".join([*parts[:start], ""]))]}
    return {"id": name, "question": words(generator, 4), "context": context, "answers": answers}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with data, models and tokenizers that the scripts read."""
    folder = tmp_path_factory.mktemp("scripts")
    generator = torch.Generator().manual_seed(0)
    for split, size in (("train", 21), ("dev", 11), ("test", 5)):
        rows = [{"text": words(generator, 3 + size % 7), "label": number % 3} for number in range(size)]
        (folder / f"{split}.json").write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
        questions = [question(generator, f"{split}{number}") for number in range(size)]
        (folder / f"questions_{split}.json").write_text(json.dumps({"data": questions}), encoding="utf-8")
    texts = [{"text": words(generator, 12)} for _ in range(20)]
    (folder / "texts.json").write_text(json.dumps(texts), encoding="utf-8")
    torch.manual_seed(7)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    bert = BertForQuestionAnswering(BertConfig(vocab_size=50, max_position_embeddings=32, **sizes))
    ends = {"bos_token_id": 4, "eos_token_id": 4}
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=2, n_head=2, **ends))
    t5_sizes = {"d_model": 16, "d_ff": 32, "d_kv": 8, "num_layers": 2, "num_heads": 2}
    t5 = T5ForConditionalGeneration(T5Config(vocab_size=50, decoder_start_token_id=0, eos_token_id=4, **t5_sizes))
    tokenizer = tiny_tokenizer()
    tokenizer.backend_tokenizer.pre_tokenizer = Whitespace()
    for model, name in ((bert, "model"), (gpt2, "language_model"), (t5, "seq2seq_model")):
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return folder


def with_portico(text):
    """Import the trainer and its arguments from portico."""
    moved = re.sub(r"^    (Trainer|TrainingArguments),\n", "", text, flags=re.MULTILINE)
    assert moved != text
    place = moved.index("from transformers import")
    return moved[:place] + "from portico import Trainer, TrainingArguments\n" + moved[place:]


def files_after(script, output_dir, monkeypatch, *arguments):
    """Run the script with each library in the same place, and return what each left there."""
    folder = output_dir.parent
    left = []
    for number, change in enumerate((lambda text: text, with_portico)):
        path = folder / f"{script}_{number}.py"
        path.write_text(change((SCRIPTS / f"{script}.py").read_text(encoding="utf-8")), encoding="utf-8")
        theirs = output_dir.with_name(f"{output_dir.name}_{number}")
        if theirs.exists():
            # A second run goes on where the first one of the same library ended.
            theirs.rename(output_dir)
        monkeypatch.setattr(sys, "argv", [str(path), *arguments])
        with warnings.catch_warnings():
            # What transformers and datasets warn about is theirs.
            warnings.simplefilter("ignore")
            runpy.run_path(str(path), run_name="__main__")
        output_dir.rename(theirs)
        left.append(theirs)
    return left


def content(path):
    if path.suffix == ".json":
        return untimed(json.loads(path.read_text(encoding="utf-8")))
    if path.suffix in (".pt", ".pth"):
        return repr(torch.load(path, weights_only=False))
    return path.read_bytes()


def untimed(value):
    if isinstance(value, dict):
        kept = {key: item for key, item in value.items() if not any(mark in key for mark in TIMING_KEYS)}
        return {key: untimed(item) for key, item in kept.items()}
    return [untimed(item) for item in value] if isinstance(value, list) else value


def assert_same_files(theirs, ours):
    names = {str(path.relative_to(theirs)) for path in theirs.rglob("*") if path.is_file()}
    # transformers reads again what a resumed stream has seen; portico stores where it was.
    added = (*OWN_FILES, "stream_position.pt")
    written = {path for path in ours.rglob("*") if path.is_file() and path.name not in added}
    assert names == {str(path.relative_to(ours)) for path in written}
    if not version("transformers").startswith(f"{CHECKED_VERSION}."):
        return names  # whose trainer had other numbers
    # The arguments are an object of the library's own class.
    compared = sorted(name for name in names if not name.endswith("training_args.bin"))
    assert [name for name in compared if content(ours / name) != content(theirs / name)] == []
    return names


def flags(**arguments):
    return [f"--{name}={value}" for name, value in arguments.items()]


def test_classification_from_the_command_line_and_on_from_a_checkpoint(folder, monkeypatch):
    output_dir = folder / "flags"
    given = flags(
        **ARGUMENTS,
        load_best_model_at_end=True,
        metric_for_best_model="accuracy",
        model_name_or_path=folder / "model",
        data_folder=folder,
        output_dir=output_dir,
    )
    names = assert_same_files(*files_after("classify", output_dir, monkeypatch, *given, "--max_steps=4"))
    assert {"all_results.json", "trainer_state.json", "predict_results.txt", "checkpoint-4/optimizer.pt"} <= names
    names = assert_same_files(*files_after("classify", output_dir, monkeypatch, *given, "--max_steps=6", "--go_on"))
    assert "checkpoint-6/optimizer.pt" in names


def test_classification_from_a_file_of_arguments(folder, monkeypatch):
    output_dir = folder / "file"
    places = {"model_name_or_path": folder / "model", "data_folder": folder, "output_dir": output_dir}
    chosen = {"bf16": True, "max_steps": 3, "metric_for_best_model": "loss"}
    given = {**ARGUMENTS, **chosen, **{name: str(place) for name, place in places.items()}}
    (folder / "arguments.json").write_text(json.dumps(given), encoding="utf-8")
    assert_same_files(*files_after("classify", output_dir, monkeypatch, str(folder / "arguments.json")))


def test_question_answering_with_a_trainer_of_its_own(folder, monkeypatch):
    output_dir = folder / "answers"
    names = assert_same_files(
        *files_after("answer", output_dir, monkeypatch, *flags(**ARGUMENTS, output_dir=output_dir))
    )
    assert {"eval_predictions.json", "predict_predictions.json", "predict_results.json"} <= names


def test_language_modelling_with_arguments_of_its_own(folder, monkeypatch):
    output_dir = folder / "texts"
    names = assert_same_files(*files_after("write", output_dir, monkeypatch, str(output_dir)))
    assert {"final/model.safetensors", "checkpoint-6/optimizer.pt"} <= names


every_script = pytest.mark.parametrize(
    ("script", "given"),
    [
        (
            "classify",
            {**ARGUMENTS, "model_name_or_path": "model", "data_folder": ".", **BEST, "load_best_model_at_end": True},
        ),
        ("answer", ARGUMENTS),
        ("write", None),
        ("summarize", {**ARGUMENTS, "predict_with_generate": True, "model_name_or_path": "seq2seq_model"}),
        ("tag", {**ARGUMENTS, "model_name_or_path": "model"}),
    ],
)


@pytest.mark.slow
@every_script
def test_verify_proves_the_numbers_of_a_script(script, given, folder, tmp_path):
    options = ["out"] if given is None else flags(**given, output_dir=folder / "verified")
    ended = portico("verify", "--keep", tmp_path, SCRIPTS / f"{script}.py", *options, folder=folder)
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-2000:]
    assert re.search(r"identical for \d+ steps, \d+ checkpoints, \d+ evaluations", ended.stdout)
    assert not (folder / "verified").exists()


@pytest.mark.slow
@every_script
def test_preflight_raises_no_alarm_for_a_script(script, given, folder):
    options = ["rehearsed"] if given is None else flags(**given, output_dir=folder / "rehearsed")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    ended = portico("preflight", SCRIPTS / f"{script}.py", *options, folder=folder)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-2000:]
    assert re.search(r"resume +│ passed", ended.stdout)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
