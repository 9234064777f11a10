"""Record what a training script computes, step by step, under either library, without changing it.

``python -m portico.commands.recorder SCRIPT.py ARGUMENTS`` runs the script in this process; the settings are in the
environment variable ``PORTICO_RECORD``. The script imports torch when it wants to, so this module does not.
"""

import json
import os
import sys
import warnings
from functools import partial, wraps
from pathlib import Path

from portico.commands.install import install_on_demand
from portico.commands.record import VARIABLE, RecordSettings, ScriptRecord, adapt_arguments
from portico.commands.script import Script, pass_on
from portico.errors import InputError
from portico.imports import when_imported


def join() -> ScriptRecord:
    """Record in this process, one of a recorded run; return the record, which grows."""
    settings = RecordSettings(**json.loads(os.environ[VARIABLE]))
    record = ScriptRecord()

    def record_trainers() -> None:
        from portico.commands.recording import record_trainers

        record_trainers(settings, record)

    if settings.library == "portico":
        install_on_demand(**settings.options)
        # Scripts may import portico's trainer by its own name; replacing the names of transformers imports it too.
        when_imported("portico.trainer", record_trainers)
    else:
        when_imported("portico.trainer", _refuse_trainer_of_portico)
        when_imported("transformers.training_args", partial(_adapt_arguments_of_transformers, settings, record))
        when_imported("transformers.trainer", record_trainers)
    if settings.finds_operators:
        when_imported("torch", _find_operators)
    return record


def _refuse_trainer_of_portico() -> None:
    raise InputError(
        "The script imports a trainer from portico, so transformers cannot run it; import it from transformers, or "
        "compare portico with itself, for example with `--against devices=2`."
    )


def _adapt_arguments_of_transformers(settings: RecordSettings, record: ScriptRecord) -> None:
    from transformers import TrainingArguments

    finish = TrainingArguments.__post_init__

    @wraps(finish)
    def adapted(args: TrainingArguments) -> None:
        adapt_arguments(args, settings, record)
        finish(args)

    TrainingArguments.__post_init__ = adapted  # type: ignore[method-assign]


def _find_operators() -> None:
    import torch

    torch.use_deterministic_algorithms(True, warn_only=True)
    warnings.filterwarnings("always", message=".*does not have a deterministic implementation")


def main() -> None:
    """Run the script of the command line and write its record, also when it fails."""
    record = join()
    pass_on()
    is_module = sys.argv[1] == "-m"
    try:
        Script(sys.argv[1 + is_module], tuple(sys.argv[2 + is_module :]), is_module).run()
    finally:
        record.save(Path(json.loads(os.environ[VARIABLE])["folder"]))


if __name__ == "__main__":
    main()
