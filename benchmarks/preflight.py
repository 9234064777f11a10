"""How near a preflight is to the real run: ``python benchmarks/preflight.py [KIND ...]`` prints a row for each kind.

Each kind is a script, run under ``portico preflight`` and then for real under ``portico run``, one after the other. A
row has the medians of ``--rounds`` such pairs, and the range of what was predicted of the real run.
``python benchmarks/preflight.py --script KIND FOLDER`` is the script itself.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

KINDS = ("classification", "causal", "seq2seq", "mrc", "ddp")


@dataclass
class Pair:
    """A preflight and the real run after it: seconds, and peaks of memory in bytes."""

    predicted: float
    real: float
    predicted_memory: int
    real_memory: int
    cost: float
    """Seconds that the preflight took."""

    @property
    def ratio(self) -> float:
        return self.predicted / self.real


def measure(kind: str) -> Pair:
    """Return predicted and real time and peak memory of a kind, and what the preflight itself took.

    Raises:
        SystemExit: If the preflight finds a fault.
    """
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        script = [__file__, "--script", kind, f"{folder}/out"]
        launched = [*("torchrun", "--nproc-per-node", "2")] * (kind == "ddp")
        if kind == "mrc":
            settings = ["+experiment=mrc", f"paths.output_dir={folder}/out"]
            script = ["-m", "portico", "train", *settings]
        start = time.monotonic()
        command = [sys.executable, "-m", "portico", "preflight", "--json", *launched, *script]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        cost = time.monotonic() - start
        if ended.returncode:
            raise SystemExit(f"{kind}: {ended.stdout[-3000:]} {ended.stderr[-3000:]}")
        found = json.loads(ended.stdout)
        predicted_memory = max(stage["memory"] for stage in found["stages"])
        real, memory = _run([sys.executable, "-m", "portico", "run", *script] if not launched else _torchrun(script))
        return Pair(found["seconds"], real, predicted_memory, memory, cost)


def print_medians(kind: str, pairs: list[Pair]) -> None:
    predicted, real = (statistics.median(times) for times in zip(*((p.predicted, p.real) for p in pairs), strict=True))
    ratios = sorted(pair.ratio for pair in pairs)
    expected, used = (
        statistics.median(sizes) / 1e6
        for sizes in zip(*((pair.predicted_memory, pair.real_memory) for pair in pairs), strict=True)
    )
    cost = statistics.median(pair.cost for pair in pairs)
    print(
        f"| {kind} | {predicted:.0f} s | {real:.0f} s | {statistics.median(ratios) - 1:+.0%} | "
        f"{ratios[0] - 1:+.0%} to {ratios[-1] - 1:+.0%} | {expected:.0f} MB | {used:.0f} MB | "
        f"{expected / used - 1:+.0%} | {cost:.0f} s |",
        flush=True,
    )


def _torchrun(script: list[str]) -> list[str]:
    launcher = str(Path(sys.executable).parent / "torchrun")
    return [sys.executable, launcher, "--nproc-per-node", "2", "-m", "portico", "run", *script]


def _run(command: list[str]) -> tuple[float, int]:
    """Return the time of a command, and the largest memory of one of its processes."""
    start = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    memory = 0
    while process.poll() is None:
        for one in [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]:
            try:
                memory = max(memory, one.memory_info().rss)
            except psutil.Error:
                continue
        time.sleep(0.02)
    assert process.returncode == 0, command
    return time.monotonic() - start, memory


def train(kind: str, folder: str) -> None:
    import numpy
    import transformers
    from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, Trainer, TrainingArguments

    draw = numpy.random.default_rng(1)

    def rows(number: int, longest: int, labels: str) -> list[dict[str, object]]:
        found = []
        for _ in range(number):
            tokens = draw.integers(5, 2000, draw.integers(longest // 4, longest)).tolist()
            label = {"class": int(draw.integers(3)), "tokens": tokens, "short": tokens[:12]}[labels]
            found.append({"input_ids": tokens, "attention_mask": [1] * len(tokens), "labels": label})
        return found

    def pad(examples: list[dict[str, object]]) -> dict[str, object]:
        import torch

        batch = {}
        for name, filler in (("input_ids", 0), ("attention_mask", 0), ("labels", -100)):
            values = [example[name] for example in examples]
            longest = max(len(value) for value in values) if isinstance(values[0], list) else 0
            padded = [value + [filler] * (longest - len(value)) for value in values] if longest else values
            batch[name] = torch.tensor(padded)
        return batch

    plain = {"report_to": "none", "use_cpu": True, "disable_tqdm": True, "save_total_limit": 2}
    if kind in ("classification", "ddp"):
        config = transformers.BertConfig(
            vocab_size=2000, hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024,
            num_labels=3,
        )  # fmt: skip
        model = transformers.BertForSequenceClassification(config)
        args = TrainingArguments(
            folder, num_train_epochs=2, per_device_train_batch_size=8, eval_strategy="epoch", save_strategy="epoch",
            load_best_model_at_end=True, ddp_find_unused_parameters=False, **plain,
        )  # fmt: skip
        metrics = lambda found: {"a": float((found.predictions.argmax(1) == found.label_ids).mean())}  # noqa: E731
        data = {"train_dataset": rows(500, 128, "class"), "eval_dataset": rows(300, 128, "class")}
        Trainer(model, args, data_collator=pad, compute_metrics=metrics, **data).train()
    elif kind == "causal":
        config = transformers.GPT2Config(vocab_size=2000, n_embd=256, n_layer=4, n_head=4, n_positions=256)
        args = TrainingArguments(
            folder, max_steps=40, per_device_train_batch_size=4, gradient_accumulation_steps=4, eval_strategy="steps",
            eval_steps=20, save_steps=20, **plain,
        )  # fmt: skip
        data = {"train_dataset": rows(2000, 128, "tokens"), "eval_dataset": rows(100, 128, "tokens")}
        Trainer(transformers.GPT2LMHeadModel(config), args, data_collator=pad, **data).train()
    elif kind == "seq2seq":
        config = transformers.T5Config(
            vocab_size=2000, d_model=256, d_kv=64, d_ff=1024, num_layers=3, num_heads=4, decoder_start_token_id=0
        )
        args = Seq2SeqTrainingArguments(
            folder, num_train_epochs=2, per_device_train_batch_size=8, eval_strategy="epoch", save_strategy="epoch",
            predict_with_generate=True, generation_max_length=20, **plain,
        )  # fmt: skip
        data = {"train_dataset": rows(500, 96, "short"), "eval_dataset": rows(160, 96, "short")}
        metrics = lambda found: {"n": len(found.predictions)}  # noqa: E731
        model = transformers.T5ForConditionalGeneration(config)
        Seq2SeqTrainer(model, args, data_collator=pad, compute_metrics=metrics, **data).train()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", default=KINDS, metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print("| script | predicted | real | | from, to | peak memory predicted | real | | preflight |\n|" + "---|" * 9)
    for kind in options.kinds:
        print_medians(kind, [measure(kind) for _ in range(options.rounds)])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--script"]:
        train(*sys.argv[2:4])
    else:
        main()
