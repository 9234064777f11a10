"""A training of two processes of which one breaks off: breaking_run.py FOLDER RANK HOW [STRATEGY]."""

import os
import signal
import sys
from pathlib import Path

from transformers import TrainerCallback

from models import toy_trainer

FOLDER, RANK, HOW = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]


class BreakOff(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step != 3 or args.process_index != RANK:
            return
        if HOW == "error":
            raise RuntimeError("this process breaks off")
        os.kill(os.getpid(), getattr(signal, HOW))


(FOLDER / str(os.getpid())).touch()
placement = {"strategy": sys.argv[4], "devices": 2} if len(sys.argv) > 4 else {}
trainer = toy_trainer(FOLDER / "run", parts={"callbacks": [BreakOff()]}, num_train_epochs=50, **placement)
trainer.train()
(FOLDER / "finished").touch()
