"""Train and save without names of libraries, in a new process for each argument: one name, or several with commas.

A script, since the modules of portico must be imported after the names are gone. Prints a list in JSON per argument:
the argument, how far a run came, and the error that ended it.
"""

import json
import logging
import os
import sys
import tempfile
from importlib import import_module
from pathlib import Path

import torch
from transformers import BertConfig, BertForSequenceClassification

from portico.compat import transformers as hf_compat

# Once for all processes.
for heavy in ("accelerate.state", "accelerate.utils", "lightning.pytorch", "transformers.trainer"):
    import_module(heavy)


class Without:
    """A module without some of its names."""

    def __init__(self, module, names):
        self.module, self.names = module, names

    def __getattr__(self, name):
        if name in self.names:
            raise AttributeError(name)
        return getattr(self.module, name)


def take_away(names):
    """Let portico find names of its table nowhere in transformers, and take ``module:name`` out of other libraries."""
    for name in names:
        if ":" in name:
            module, _, path = name.partition(":")
            owner, _, last = path.rpartition(".")
            target = sys.modules[module]
            delattr(getattr(target, owner) if owner else target, last)
    originals, real = {hf_compat._HOMES[name][1] for name in names if ":" not in name}, hf_compat.import_module
    if originals:
        hf_compat.import_module = lambda home: Without(real(home), originals)


def outcome(names):
    reached = "nothing"
    try:
        take_away(names)
        import portico

        for exported in portico.__all__:
            if not exported.startswith("ORT"):  # needs a package that may not be installed
                getattr(portico, exported)
        reached = "import"
        with tempfile.TemporaryDirectory() as folder:
            model = BertForSequenceClassification(
                BertConfig(
                    hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, vocab_size=9
                )
            )
            rows = [{"input_ids": [1, 2, row % 9], "labels": row % 2} for row in range(4)]
            steps = {"eval_strategy": "steps", "eval_steps": 1, "save_steps": 1, "logging_steps": 1, "max_steps": 2}
            args = portico.TrainingArguments(folder, use_cpu=True, report_to="none", disable_tqdm=True, **steps)
            trainer = portico.Trainer(model, args, train_dataset=rows, eval_dataset=rows)
            trainer.train()
            reached = "training"
            trainer.save_model()
            trainer.save_state()
        return "saving", ""
    except Exception as error:
        return reached, f"{type(error).__name__}: {error}"


def main():
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    with Path(os.devnull).open("w") as nothing:
        for argument in sys.argv[1:]:
            reading, writing = os.pipe()
            child = os.fork()
            if child == 0:
                os.dup2(nothing.fileno(), 1)
                os.write(writing, json.dumps([argument, *outcome(argument.split(","))]).encode())
                os._exit(0)
            os.close(writing)
            with os.fdopen(reading) as answer:
                print(answer.read() or json.dumps([argument, "nothing", "ended"]), flush=True)
            os.waitpid(child, 0)


if __name__ == "__main__":
    main()
