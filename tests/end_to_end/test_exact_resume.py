"""Experiments of ``conf``, stopped after each step of three epochs and resumed: they end with the same weights."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from portico.checkpoint.manifest import steps_of_checkpoints

# What the libraries below warn about is theirs.
pytestmark = pytest.mark.filterwarnings("ignore")

BERT = ("hidden_size=16", "num_hidden_layers=1", "num_attention_heads=2", "intermediate_size=16")
T5 = ("d_model=16", "d_kv=8", "d_ff=16", "num_layers=1", "num_heads=2")
SMALL = (
    "args.save_strategy=steps",
    "args.save_steps=1",
    "args.save_total_limit=null",
    "args.num_train_epochs=3",
    "args.per_device_train_batch_size=8",
    "args.disable_tqdm=true",
    "args.report_to=none",
    "args.use_cpu=true",
    "print_config=false",
)
EVALUATING = ("args.eval_strategy=steps", "args.eval_steps=1")
READING = ("data.num_train=24", "data.num_validation=8", "preprocess.vocab_size=300", *EVALUATING)
TASK = ("data.num_train=24", "data.num_validation=8", *EVALUATING)
ORDERS = ("random", "sequential", "group_by_length", "batch_rebalance")


def mrc(*overrides: str, experiment: str = "mrc", shape: tuple[str, ...] = BERT) -> tuple[str, ...]:
    return (f"experiment={experiment}", *(f"model.{size}" for size in shape), *READING, *overrides)


def task(experiment: str, *overrides: str, shape: tuple[str, ...] = BERT) -> tuple[str, ...]:
    return (f"experiment={experiment}", *(f"model.{size}" for size in shape), *TASK, *overrides)


RUNS = {
    "mrc": mrc(),
    **{order: mrc(f"args.train_sampling_strategy={order}") for order in ORDERS},
    "accumulation": mrc("args.gradient_accumulation_steps=2", "args.per_device_train_batch_size=4"),
    "workers": mrc("args.dataloader_num_workers=2"),
    "packing": mrc("preprocess.packing=true"),
    "data_seed": mrc("args.data_seed=3"),
    "max_steps": mrc("args.max_steps=8"),
    "mrc_multi_source": (
        "experiment=mrc_multi_source",
        *(f"model.{size}" for size in BERT),
        "preprocess.vocab_size=300",
        "data.sources=[{num_train: 16, num_validation: 8, seed: 0}, {num_train: 12, num_validation: 8, seed: 1}]",
        *EVALUATING,
    ),
    "mrc_seq2seq": mrc(experiment="mrc_seq2seq", shape=T5),
    "mrc_fid": mrc(experiment="mrc_fid", shape=T5),
    "text_classification": task("text_classification"),
    "masked_lm": task("masked_lm"),
    "causal_lm": task("causal_lm", shape=("n_embd=16", "n_layer=1", "n_head=2")),
    "image_classification": task("image_classification"),
    "token_classification": task("token_classification"),
    "multiple_choice": task("multiple_choice"),
    "summarization": task("summarization", shape=T5),
}


@pytest.mark.parametrize("kind", RUNS)
def test_a_run_resumed_after_any_step_ends_with_the_same_weights(kind, command_line, tmp_path, monkeypatch):
    import time

    monkeypatch.chdir(tmp_path)
    t = time.time()
    assert command_line(*RUNS[kind], *SMALL, "paths.output_dir=whole") == 0
    print("whole", time.time() - t)
    whole = Path("whole")
    expected = load_file(whole / "model.safetensors")
    steps = steps_of_checkpoints(whole)
    last = max(steps.values())
    assert last >= 8
    differ = {}
    for checkpoint, step in sorted(steps.items(), key=lambda item: item[1]):
        folder = Path(f"from-{step}")
        folder.mkdir()
        shutil.copytree(checkpoint, folder / checkpoint.name)
        given = f"args.resume_from_checkpoint={folder / checkpoint.name}"
        code = command_line(*RUNS[kind], *SMALL, f"paths.output_dir={folder}", given)
        assert code == 0
        a = load_file(folder / f"checkpoint-{last}" / "model.safetensors")
        b = load_file(whole / f"checkpoint-{last}" / "model.safetensors")
        final = load_file(folder / "model.safetensors")
        d = max((a[n] - b[n]).abs().max().item() for n in b)
        d2 = max((final[n] - expected[n]).abs().max().item() for n in b)
        if d or d2:
            differ[step] = (d, d2)
        assert max(steps_of_checkpoints(folder).values()) == last, step
    print(kind, len(steps), differ, time.time() - t)
    assert not differ
