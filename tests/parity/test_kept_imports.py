"""Scripts that import a single name from portico and the others from transformers."""

from types import SimpleNamespace

import pytest
import torch
import transformers
from transformers.integrations import TensorBoardCallback

import portico
from parity.peers import assert_identical, assert_same_checkpoint, load_trusted, run, run_seq2seq

# The library that each name is imported from.
ONLY_TRAINER = SimpleNamespace(
    TrainingArguments=transformers.TrainingArguments,
    Trainer=portico.Trainer,
    Seq2SeqTrainingArguments=transformers.Seq2SeqTrainingArguments,
    Seq2SeqTrainer=portico.Seq2SeqTrainer,
)
ONLY_ARGUMENTS = SimpleNamespace(
    TrainingArguments=portico.TrainingArguments,
    Trainer=transformers.Trainer,
    Seq2SeqTrainingArguments=portico.Seq2SeqTrainingArguments,
    Seq2SeqTrainer=transformers.Seq2SeqTrainer,
)
MIXTURES = pytest.mark.parametrize("mixture", [ONLY_TRAINER, ONLY_ARGUMENTS], ids=["trainer", "arguments"])

SAVED = {
    "gradient_accumulation_steps": 3,
    "eval_strategy": "steps",
    "eval_steps": 2,
    "save_strategy": "steps",
    "save_steps": 2,
}
SCENARIOS = {
    "saved": {**SAVED, "load_best_model_at_end": True},
    "bfloat16": {"bf16": True, "max_steps": 4},
    "stopped": {
        **SAVED,
        "eval_steps": 1,
        "save_strategy": "no",
        "metric_for_best_model": "loss",
        "learning_rate": 0.5,
        "callbacks": [lambda: transformers.EarlyStoppingCallback(1)],
    },
    "tracked": {"max_steps": 3, "logging_steps": 1, "callbacks": [TensorBoardCallback]},
}


def compare_mixture(mixture, tmp_path, **options):
    theirs = run(transformers, tmp_path / "run", **options)
    (tmp_path / "run").rename(tmp_path / "theirs")
    ours = run(mixture, tmp_path / "run", **options)
    assert_identical(ours, theirs)


@MIXTURES
@pytest.mark.parametrize("name", SCENARIOS)
def test_same_numbers(name, mixture, tmp_path):
    if name == "tracked":
        pytest.importorskip("tensorboard")
    compare_mixture(mixture, tmp_path, **SCENARIOS[name])
    for checkpoint in (tmp_path / "run").glob("checkpoint-*"):
        assert_same_checkpoint(checkpoint, tmp_path / "theirs" / checkpoint.name)
        arguments = load_trusted(checkpoint / "training_args.bin")
        assert arguments.eval_steps == 2


@MIXTURES
def test_same_numbers_after_resume(mixture, tmp_path):
    run(transformers, tmp_path / "first", **SAVED)
    compare_mixture(mixture, tmp_path, resume=str(tmp_path / "first" / "checkpoint-4"), **SAVED)


@MIXTURES
@pytest.mark.filterwarnings("ignore:Version v4.12.0 introduces a better way:FutureWarning")
@pytest.mark.filterwarnings("ignore:Using the model-agnostic default `max_length`:UserWarning")
def test_same_generated_tokens(mixture, tmp_path):
    options = {"predict_with_generate": True, "generation_max_length": 9, **SAVED}

    def after(trainer):
        return {"predictions": trainer.predict(trainer.eval_dataset, num_beams=2).predictions}

    theirs = run_seq2seq(transformers, tmp_path / "run", after=after, **options)
    (tmp_path / "run").rename(tmp_path / "theirs")
    assert_identical(run_seq2seq(mixture, tmp_path / "run", after=after, **options), theirs)


def test_transformers_parser_makes_portico_arguments(tmp_path):
    line = ["--output_dir", str(tmp_path), "--use_cpu", "--report_to", "none", "--eval_strategy", "steps"]
    line += ["--lr_scheduler_kwargs", '{"num_cycles": 2}', "--warmup_steps", "0.3", "--no_remove_unused_columns"]
    given = {"output_dir": str(tmp_path), "use_cpu": True, "report_to": "none", "learning_rate": 0.25}

    def parsed(library):
        parser = transformers.HfArgumentParser(library.Seq2SeqTrainingArguments)
        return [
            *parser.parse_args_into_dataclasses(line),
            *parser.parse_dict(given),
            parser.parse_args_into_dataclasses([*line, "--not_ours"], return_remaining_strings=True)[0],
        ]

    for ours, theirs in zip(parsed(portico), parsed(transformers), strict=True):
        assert isinstance(ours, portico.Seq2SeqTrainingArguments)
        assert {name: value for name, value in ours.to_dict().items() if name in theirs.to_dict()} == theirs.to_dict()


def test_transformers_set_seed_seeds_model(tmp_path):
    drawn = []
    for library in (transformers, portico):
        transformers.set_seed(11)
        args = library.TrainingArguments(output_dir=str(tmp_path), seed=11, use_cpu=True, report_to="none")
        drawn.append([torch.rand(3)])
        library.Trainer(model=torch.nn.Linear(2, 2), args=args)
        drawn[-1].append(torch.rand(3))
    assert all(torch.equal(*pair) for pair in zip(*drawn, strict=True))
