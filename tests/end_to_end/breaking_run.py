"""A run of several processes of which one breaks off: breaking_run.py FOLDER RANK HOW WHERE [STRATEGY PROCESSES].

HOW is "error", "hang" (in Python), "alone" (the process evaluates where the others train), "leave" (it ends before
training), "parent" (it terminates the process that started it) or a signal. WHERE is "step", "evaluate", "predict",
"save" (while the first process writes alone) or "load" (in a worker of the process's data loader).
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch
from transformers import TrainerCallback

from models import Points, toy_trainer
from portico import Trainer

FOLDER, RANK, HOW, WHERE = Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:5]


class BreakOff(TrainerCallback):
    def on_train_begin(self, args, state, control, **kwargs):
        (FOLDER / str(os.getpid())).touch()

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 3 and args.process_index == RANK and WHERE == "step":
            break_off()

    def on_prediction_step(self, args, state, control, **kwargs):
        if args.process_index == RANK and WHERE in ("evaluate", "predict"):
            break_off()

    def on_save(self, args, state, control, **kwargs):
        if args.process_index == RANK != 0 and WHERE == "save":
            break_off()


class BreaksWriting(Trainer):
    def _save(self, *args, **kwargs):
        # All processes come here; the first one writes.
        if self.args.process_index == RANK == 0 and WHERE == "save":
            break_off()
        super()._save(*args, **kwargs)


class BreaksLoading(Points):
    def __getitem__(self, index):
        if (worker := torch.utils.data.get_worker_info()) is not None:
            (FOLDER / str(os.getpid())).touch()
            if worker.id == 0 and os.environ["LOCAL_RANK"] == str(RANK) and not (FOLDER / "broken").exists():
                break_off()
        return super().__getitem__(index)


def break_off():
    # At once with its content.
    (FOLDER / "breaking").write_text(str(os.getpid()))
    (FOLDER / "breaking").rename(FOLDER / "broken")
    if HOW == "error":
        raise RuntimeError("this process breaks off")
    if HOW == "hang":
        time.sleep(600)
    if HOW == "parent":
        os.kill(os.getppid(), signal.SIGTERM)
        return
    os.kill(os.getpid(), getattr(signal, HOW))


(FOLDER / str(os.getpid())).touch()
if __name__ == "__main__":
    options = {"strategy": sys.argv[5], "devices": int(sys.argv[6])} if len(sys.argv) > 5 else {}
    if WHERE == "load":
        options["dataloader_num_workers"] = 2
    if WHERE in ("evaluate", "save"):
        options |= {f"{name}_strategy": "steps" for name in ("eval", "save")} | {"eval_steps": 3, "save_steps": 3}
    # The time after which a collective that another process does not enter fails.
    timeout = 10 if HOW in ("hang", "SIGSTOP") else 600
    parts = {"callbacks": [BreakOff()], "train_dataset": BreaksLoading() if WHERE == "load" else Points()}
    trainer = toy_trainer(FOLDER / "run", BreaksWriting, parts, num_train_epochs=50, ddp_timeout=timeout, **options)
    if HOW == "leave" and trainer.args.process_index == RANK:
        (FOLDER / "broken").touch()
        sys.exit()
    if HOW == "alone":
        if trainer.args.process_index == RANK:
            # Under "ddp" this starts the others, which takes longer than to notice the fault.
            trainer.evaluate()
        (FOLDER / "broken").touch()
    trainer.predict(Points(40)) if WHERE == "predict" else trainer.train()
    (FOLDER / "finished").touch()
