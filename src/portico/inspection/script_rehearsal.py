"""The rehearsal of a script: its processes in a shelter, once from its start, and once to resume it."""

import json
import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from portico.distributed.children import build_child_environment, end_with_parent
from portico.errors import InputError
from portico.imports import when_imported
from portico.inspection.findings import REHEARSED, RESUMED, Rehearsed, merge_rehearsals, read_rehearsals
from portico.inspection.script import pass_on
from portico.inspection.shelter import Shelter, free_bytes, sheltered
from portico.observers import RUN_VARIABLE, observe

if TYPE_CHECKING:
    from portico.inspection.preflight import Preflight

# Processes of a rehearsal find their settings here.
VARIABLE = "PORTICO_PREFLIGHT"
# Trackers that would send what they are told.
_OFFLINE = {
    "WANDB_MODE": "offline",
    "COMET_START_ONLINE": "0",
    "NEPTUNE_MODE": "offline",
    "CLEARML_OFFLINE_MODE": "1",
    "SWANLAB_MODE": "offline",
    "DVC_STUDIO_OFFLINE": "true",
}


def rehearse_script(words: list[str], *, checks_data: bool, num_rows: int) -> "Preflight":
    """Rehearse the training of a script.

    Args:
        words: The command of the script.
        checks_data: Whether to read all examples.
        num_rows: Examples of a stream that are read.

    Raises:
        InputError: If there is nothing to rehearse.
    """
    with sheltered() as shelter:
        if not shelter.covers_disks:
            print(
                "This system cannot give a process its own view of the disk, so only output folders are replaced; "
                "what the script writes elsewhere is really written.",
                file=sys.stderr,
            )
        settings = {
            "folder": str(shelter.folder),
            "checks_data": checks_data,
            "num_rows": num_rows,
            "redirects": not shelter.covers_disks,
            "is_of_transformers": _imports_transformers(words),
        }
        print(f"Rehearsing {' '.join(words[1:])} ...", file=sys.stderr, flush=True)
        code, log = _run(shelter, words, settings, "log")
        whole = _read_whole(shelter.folder, code, log)
        if whole.fingerprint is not None and whole.checkpoint:
            print("Resuming it in a new process ...", file=sys.stderr, flush=True)
            start = time.monotonic()
            settings |= {"checks_data": False, "resumes": whole.resumes}
            code, log_of_resume = _run(shelter, words, settings, "log-of-resume")
            tried = read_rehearsals(shelter.folder, RESUMED)
            whole.add_resume(tried, _how_it_ended(code, "resume", log_of_resume), time.monotonic() - start)
    from portico.inspection.preflight import Preflight

    places = [forecast.output_dir for forecast in whole.forecasts if forecast.output_dir]
    return Preflight(whole, free_bytes(Path(places[0])) if places else 0, log)


def _read_whole(folder: Path, code: int, log: str) -> Rehearsed:
    """Return what all processes found that a script started, which ended with ``code``."""
    found = read_rehearsals(folder, REHEARSED)
    # A process that was killed has begun a stage at most.
    if not any(run.faults or run.forecasts or (code and run.stages) for run in found):
        print(log[-4000:], file=sys.stderr)
        if code:
            raise InputError(
                "The script fails by itself before its training, as shown above, so nothing was rehearsed; correct "
                "it, or give the arguments that it needs."
            )
        raise InputError(
            "The script built no Trainer, or called no `train()`, so there is nothing to rehearse; give a script that "
            "trains with the Trainer of transformers or of portico."
        )
    whole = merge_rehearsals(found)
    if code and not whole.faults:
        whole.add_fault(whole.current or "script", _how_it_ended(code, whole.current, log))
    return whole


def _run(shelter: Shelter, words: list[str], settings: dict[str, Any], name: str) -> tuple[int, str]:
    tracked = {"MLFLOW_TRACKING_URI": f"file:{shelter.folder}/mlflow"}
    environment = {**os.environ, **_OFFLINE, **tracked, RUN_VARIABLE: "{}"}
    environment[VARIABLE] = json.dumps({**settings, "begun": time.time()})
    pass_on(environment)
    log = shelter.folder / name
    process = shelter.start(words, build_child_environment(environment), log)
    try:
        code = process.wait()
    finally:
        process.kill()
        process.wait()
    return code, log.read_text(encoding="utf-8", errors="replace")


def _imports_transformers(words: Sequence[str]) -> bool:
    """Return whether a script may run under transformers too, since it does not import portico."""
    files = [Path(word) for word in words[1:] if word.endswith(".py") and Path(word).is_file()]
    sources = [file.read_text(encoding="utf-8", errors="replace") for file in files]
    return bool(sources) and not any(re.search(r"^\s*(from|import) portico\b", text, re.MULTILINE) for text in sources)


def _how_it_ended(code: int, stage: str, log: str) -> str:
    last = next((line for line in reversed(log.splitlines()) if line.strip()), "it printed nothing")
    if code == -9:
        return (
            f"The process was killed in the stage '{stage}', as Linux does when memory runs out; set a smaller batch "
            "size, or cut the longest examples."
        )
    return f"The process ended with code {code} in the stage '{stage or 'script'}': {last.strip()}"


def join() -> None:
    """Rehearse the trainings of this process, one of a rehearsed script."""
    end_with_parent()
    given = os.environ[VARIABLE]

    def begin() -> None:
        import atexit

        from portico.inspection.rehearsal import Rehearsal, Settings, refuse_uploads, watch_script

        rehearsal = Rehearsal(Settings(**json.loads(given)))
        refuse_uploads(rehearsal)
        observe(rehearsal)
        watch_script(rehearsal)
        atexit.register(rehearsal.end_script)

    # Scripts may import portico's trainer by its own name; replacing the names of transformers imports it too.
    when_imported("portico.trainer", begin)
