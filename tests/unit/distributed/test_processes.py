"""What a run of several processes leaves behind in the process that started it."""

import os
import pickle
import subprocess
import sys

import pytest
import torch.distributed
from transformers import TrainerCallback

from fresh_process import environment
from models import toy_trainer
from portico.errors import InputError

SPREAD = {"devices": 2, "eval_strategy": "steps", "eval_steps": 2, "num_train_epochs": 1}


class Breaks(TrainerCallback):
    """Raise in the first process, at the start of an event."""

    def __init__(self, event):
        setattr(self, event, self.break_off)

    def break_off(self, args, state, control, **kwargs):
        if args.process_index == 0:
            raise RuntimeError("this run breaks off")


@pytest.mark.parametrize("where", ["refused", "on_step_end", "on_evaluate"])
@pytest.mark.parametrize(
    "strategy", ["ddp_fork", *(pytest.param(name, marks=pytest.mark.slow) for name in ("ddp_spawn", "ddp"))]
)
def test_nothing_remains_of_a_run_that_fails(strategy, where, tmp_path):
    if strategy == "ddp":
        # It runs the whole script again.
        command = [sys.executable, __file__, strategy, where, str(tmp_path)]
        ended = subprocess.run(
            command, env=environment(OMP_NUM_THREADS="1"), capture_output=True, text=True, timeout=300
        )
        assert ended.returncode == 0, ended.stderr
    else:
        fail_and_train_again(strategy, where, tmp_path)


def fail_and_train_again(strategy, where, folder):
    before = dict(os.environ)
    callbacks = [] if where == "refused" else [Breaks(where)]
    trainer = toy_trainer(folder, parts={"callbacks": callbacks}, strategy=strategy, **SPREAD)
    if where == "refused":
        with pytest.raises(InputError, match="Can't find a valid checkpoint"):
            trainer.train(resume_from_checkpoint=str(folder / "missing"))
    else:
        with pytest.raises(RuntimeError, match=r"^this run breaks off$"):
            trainer.train()
    assert dict(os.environ) == before
    assert not torch.distributed.is_initialized()
    again = toy_trainer(folder, num_train_epochs=1)
    assert again.args.world_size == 1
    assert again.train().global_step > 0


def test_trainer_trains_in_a_spawned_worker(tmp_path):
    trainer = pickle.loads(pickle.dumps(toy_trainer(tmp_path, num_train_epochs=1)))
    trainer._enter_worker()
    assert trainer.train().global_step > 0


if __name__ == "__main__":
    from pathlib import Path

    fail_and_train_again(*sys.argv[1:3], Path(sys.argv[3]))
