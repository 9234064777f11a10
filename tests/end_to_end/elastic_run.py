"""A training that torchrun starts again after a failure: elastic_run.py FOLDER [FAILING_STEP]."""

import os
import sys
import time
from pathlib import Path

import torch
from transformers import TrainerCallback

from models import toy_trainer

FOLDER, STEP = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0


class FailOnce(TrainerCallback):
    """Fails in the last process, in the first attempt, between two checkpoints."""

    def on_step_end(self, args, state, control, **kwargs):
        is_first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
        if is_first and state.global_step == STEP and args.process_index == args.world_size - 1:
            raise RuntimeError("this process fails once")


if os.environ["TORCHELASTIC_RESTART_COUNT"] != "0" and os.environ["RANK"] != "0":
    # The first process must wait for the addresses of this attempt, and not find those of the one before.
    time.sleep(5)
settings = {"save_strategy": "steps", "save_steps": 2, "num_train_epochs": 4}
trainer = toy_trainer(FOLDER / "run", parts={"callbacks": [FailOnce()]}, **settings)
found = any((FOLDER / "run").glob("checkpoint-*"))
trainer.train(resume_from_checkpoint=found)
if trainer.is_world_process_zero():
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    torch.save((trainer.model.state_dict(), losses, found, trainer.args.world_size), FOLDER / "outcome.pt")
