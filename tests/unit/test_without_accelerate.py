"""Portico trains without accelerate and datasets."""

import os
import subprocess
import sys
from pathlib import Path

_SCRIPT = """
import importlib.metadata, importlib.util, sys

absent = ("accelerate", "datasets")
find_spec, version = importlib.util.find_spec, importlib.metadata.version

def find_spec_of_the_rest(name, *args):
    return None if name.split(".")[0] in absent else find_spec(name, *args)

def version_of_the_rest(name):
    if name in absent:
        raise importlib.metadata.PackageNotFoundError(name)
    return version(name)

importlib.util.find_spec, importlib.metadata.version = find_spec_of_the_rest, version_of_the_rest
for name in absent:
    sys.modules[name] = None

import transformers
from transformers.utils import is_accelerate_available

assert not is_accelerate_available()
import torch
from models import Points, toy_arguments, toy_trainer

folder = sys.argv[1]
saving = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 3}
first = toy_trainer(folder, **saving)
assert first.train().global_step == 10
again = toy_trainer(folder, **saving)
again.train(resume_from_checkpoint=f"{folder}/checkpoint-6")
assert torch.equal(first.model.linear.weight, again.model.linear.weight)
assert again.evaluate()["eval_loss"] >= 0
assert again.predict(Points(4)).predictions.shape == (4, 1)
again.save_model()
assert type(torch.load(f"{folder}/training_args.bin", weights_only=False)) is transformers.TrainingArguments
assert not any(name.startswith(("accelerate", "datasets")) and module for name, module in sys.modules.items())
print("trained")
"""


def test_trains_without_accelerate_and_datasets(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "TQDM_DISABLE": "1"}
    command = [sys.executable, "-c", _SCRIPT, str(tmp_path)]
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.endswith("trained\n")
