"""Loss curves of one model trained whole, sharded and split by its `tp_plan`, drawn over each other.

Run: torchrun --standalone --nproc_per_node 2 benchmarks/sharded_curves.py docs/assets/sharded_curves.svg
The first process prints the largest relative differences to `strategy="ddp"`, and draws them below the curves. Split
models have the batch of both processes, which see the same examples then.
"""

import os
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import transformers

import portico

STEPS = 200
WAYS = {
    "ddp": {"strategy": "ddp", "ddp_find_unused_parameters": False},
    "FSDP2": {"fsdp": True},
    "tensor parallel": {"parallelism_config": {"tp_size": 2}, "per_device_train_batch_size": 8},
}


class Counting(torch.utils.data.Dataset):
    """Sequences that count up from a random number by a random step."""

    def __init__(self, size=2000):
        generator = torch.Generator().manual_seed(0)
        starts, strides = (torch.randint(*ends, (size, 1), generator=generator) for ends in ((0, 40), (1, 5)))
        self.tokens = (starts + strides * torch.arange(16)) % 64

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def trained(way):
    """Return the losses and gradient norms of a run."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    options = {"per_device_train_batch_size": 4, "learning_rate": 3e-3, "max_steps": STEPS, "logging_steps": 1}
    quiet = {"report_to": "none", "disable_tqdm": True, "use_cpu": True, "save_strategy": "no"}
    with tempfile.TemporaryDirectory() as folder:
        args = portico.TrainingArguments(folder, **{**options, **quiet, **WAYS[way]})
        trainer = portico.Trainer(transformers.LlamaForCausalLM(config), args, train_dataset=Counting())
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
    rows = [row for row in trainer.state.log_history if "loss" in row]
    return [row["loss"] for row in rows]


def draw(curves, file):
    """Draw the curves, and their differences from the first."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "portico"
    from matplotlib import pyplot as plt

    figure, (above, below) = plt.subplots(
        2, 1, figsize=(7, 5), sharex=True, height_ratios=(2, 1), layout="constrained"
    )
    (first, expected), *others = curves.items()
    above.plot(expected, label=first, linewidth=4, color="0.8")
    for (name, losses), style in zip(others, ("-", ":"), strict=True):
        above.plot(losses, style, label=name, linewidth=1.2)
        below.plot([abs(a - b) / b for a, b in zip(losses, expected, strict=True)], style, label=name, linewidth=1.2)
    above.set_ylabel("loss")
    above.legend()
    below.set(xlabel="step", ylabel=f"relative difference\nto {first}")
    below.set_yscale("symlog", linthresh=1e-8)
    figure.savefig(file, metadata={"Date": None})


def main(file):
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    curves = {way: trained(way) for way in WAYS}
    if os.environ["RANK"] == "0":
        for way, losses in curves.items():
            far = max(abs(one - other) / other for one, other in zip(losses, curves["ddp"], strict=True))
            print(
                f"{way:16} first loss {losses[0]:.4f}, last {losses[-1]:.4f}, largest difference {far:.1e}", flush=True
            )
        draw(curves, file)


if __name__ == "__main__":
    if len(sys.argv) < 2 or "RANK" not in os.environ:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
