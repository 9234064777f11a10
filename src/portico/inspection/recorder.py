"""Record what a training script computes, step by step, under either library, without changing it.

``python -m portico.inspection.recorder SCRIPT.py ARGUMENTS`` runs the script in this process; the settings are in the
environment variable ``PORTICO_RECORD``. The script imports torch when it wants to, so this module does not.
"""

import atexit
import json
import os
import sys
import time
import warnings
from functools import partial, wraps
from multiprocessing.util import Finalize, register_after_fork
from pathlib import Path

from portico.inspection.install import install_on_demand
from portico.inspection.records import VARIABLE, RecordSettings, ScriptRecord, adapt_arguments
from portico.inspection.script import Script, pass_on
from portico.distributed.children import end_with_parent
from portico.errors import InputError
from portico.imports import when_imported


def join() -> None:
    """Record in this process, one of a recorded run; the record is written when the process ends, also by an error."""
    settings = RecordSettings(**json.loads(os.environ[VARIABLE]))
    record = ScriptRecord()
    atexit.register(_finish, settings, record)
    register_after_fork(record, partial(_record_fork, folder=Path(settings.folder)))

    def record_trainers() -> None:
        from portico.inspection.recording import record_trainers

        record_trainers(settings, record)

    if settings.library == "portico":
        install_on_demand(**settings.options)
        # Scripts may import portico's trainer by its own name; replacing the names of transformers imports it too.
        when_imported("portico.trainer", record_trainers)
    else:
        when_imported("portico.trainer", _refuse_trainer_of_portico)
        when_imported("transformers.training_args", partial(_adapt_arguments_of_transformers, settings))
        when_imported("transformers.trainer", record_trainers)
    if settings.finds_operators:
        when_imported("torch", _find_operators)


def _record_fork(record: ScriptRecord, folder: Path) -> None:
    """Write the record of a process that multiprocessing forked, which ends without the functions of `atexit`."""
    record.trainings.clear()  # what happened before the fork is the parent's
    record.begun = time.time_ns()
    Finalize(None, record.save, (folder,), exitpriority=0)


def _finish(settings: RecordSettings, record: ScriptRecord) -> None:
    record.save(Path(settings.folder))
    if "LOCAL_RANK" in os.environ and "torch.distributed" in sys.modules:
        from torch import distributed

        # Threads of gloo that are left abort the process, after everything was written.
        if distributed.is_initialized():
            distributed.destroy_process_group()


def _refuse_trainer_of_portico() -> None:
    raise InputError(
        "The script imports a trainer from portico, so transformers cannot run it; import it from transformers, or "
        "compare portico with itself, for example with `--against devices=2`."
    )


def _adapt_arguments_of_transformers(settings: RecordSettings) -> None:
    from transformers import TrainingArguments

    finish = TrainingArguments.__post_init__

    @wraps(finish)
    def adapted(args: TrainingArguments) -> None:
        adapt_arguments(args, settings)
        finish(args)

    TrainingArguments.__post_init__ = adapted  # type: ignore[method-assign]


def _find_operators() -> None:
    import torch

    torch.use_deterministic_algorithms(True, warn_only=True)
    warnings.filterwarnings("always", message=".*does not have a deterministic implementation")


def main() -> None:
    end_with_parent()
    join()
    pass_on()
    is_module = sys.argv[1] == "-m"
    Script(sys.argv[1 + is_module], tuple(sys.argv[2 + is_module :]), is_module).run()


if __name__ == "__main__":
    main()
