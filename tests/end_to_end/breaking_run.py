"""A training of several processes of which one breaks off: breaking_run.py FOLDER RANK HOW [STRATEGY PROCESSES].

HOW is "error", "hang" (in Python), "alone" (the process evaluates where the others train), "leave" (it ends before
training) or a signal.
"""

import os
import signal
import sys
import time
from pathlib import Path

from transformers import TrainerCallback

from models import toy_trainer

FOLDER, RANK, HOW = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]


class BreakOff(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step != 3 or args.process_index != RANK:
            return
        break_off()


def break_off():
    # At once with its content.
    (FOLDER / "breaking").write_text(str(os.getpid()))
    (FOLDER / "breaking").rename(FOLDER / "broken")
    if HOW == "error":
        raise RuntimeError("this process breaks off")
    if HOW == "hang":
        time.sleep(600)
    os.kill(os.getpid(), getattr(signal, HOW))


(FOLDER / str(os.getpid())).touch()  # also in the workers of "ddp_spawn"
if __name__ == "__main__":
    placement = {"strategy": sys.argv[4], "devices": int(sys.argv[5])} if len(sys.argv) > 4 else {}
    # The time after which a collective that another process does not enter fails.
    timeout = 10 if HOW in ("hang", "SIGSTOP") else 600
    parts = {"callbacks": [BreakOff()]}
    trainer = toy_trainer(FOLDER / "run", parts=parts, num_train_epochs=50, ddp_timeout=timeout, **placement)
    if HOW == "leave" and trainer.args.process_index == RANK:
        (FOLDER / "broken").touch()
        sys.exit()
    if HOW == "alone":
        if trainer.args.process_index == RANK:
            # Under "ddp" this starts the others, which takes longer than to notice the fault.
            trainer.evaluate()
        (FOLDER / "broken").touch()
    trainer.train()
    (FOLDER / "finished").touch()
