"""The command ``portico preflight``: a script in rehearsal, and what would fail in its real run."""

import argparse
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from portico.distributed.children import build_child_environment, end_with_parent
from portico.errors import CommandParser, InputError, command
from portico.imports import when_imported
from portico.inspection.script import Script, add_module_option, pass_on
from portico.inspection.shelter import Shelter, free_bytes, sheltered
from portico.observers import RUN_VARIABLE, observe
from portico.report.page import check_writable, save_page
from portico.report.terminal import plain_console

if TYPE_CHECKING:
    from portico.inspection.findings import Rehearsed

_EPILOG = """\
Options may follow the script too, up to `--`. The exit code is 0 if nothing would fail, 1 with each fault as a
sentence, and 2 if there is nothing to rehearse.

  portico preflight train.py --learning_rate 1e-4
  portico preflight --report preflight.html -m my_package.train
  portico preflight torchrun --nproc-per-node 2 train.py
"""
# Options that may follow the script.
_ANYWHERE = ("--report", "--no-data", "--rows", "--json")
_LAUNCHERS = ("torchrun", "accelerate")
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


def build_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="portico preflight",
        usage="portico preflight [OPTIONS] SCRIPT.py [ARGUMENTS]\n       portico preflight [OPTIONS] -m MODULE "
        "[ARGUMENTS]\n       portico preflight [OPTIONS] torchrun|accelerate ARGUMENTS",
        description="Rehearse a training script in a minute: its first steps, its longest examples, evaluation, "
        "checkpoint, resume, rotation, best model, final save and all of its data. Say what would fail and how to "
        "cure it, and what the real run would take. Nothing of it is written to the disk.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_module_option(parser)
    parser.add_argument("--no-data", action="store_true", help="do not read all of the data")
    parser.add_argument("--rows", type=int, default=10_000, metavar="N", help="examples of a stream to read")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write a page")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser


@partial(command, error_code=2)
def main(arguments: Sequence[str]) -> None:
    """Print what a rehearsal finds; exit with 1 if a real run would fail."""
    parser = build_parser()
    words, own = _split(parser, arguments)
    given = parser.parse_args(own)
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise InputError(
            f"`portico preflight` was started in {os.environ['WORLD_SIZE']} processes, and would rehearse in each; "
            "let it start them: `portico preflight torchrun --nproc-per-node 2 train.py`."
        )
    if given.rows < 1:
        raise InputError(f"`--rows {given.rows}` is not positive; give a number of examples, at least 1.")
    if given.report is not None:
        check_writable(given.report)
    with sheltered() as shelter:
        if not shelter.covers_disks:
            print(
                "This system gives no process a view of the disk of its own, so only output folders are replaced; "
                "what the script itself writes elsewhere is written.",
                file=sys.stderr,
            )
        rehearsed, log = _rehearse(shelter, words, checks_data=not given.no_data, num_rows=given.rows)
    from portico.inspection.preflight import Preflight

    preflight = Preflight(rehearsed, _free_disk(rehearsed), log)
    if given.json:
        print(preflight.to_json())
    else:
        preflight.show(plain_console(soft_wrap=True, highlight=False))
    if given.report is not None:
        save_page(given.report, preflight.page())
    raise SystemExit(int(bool(preflight.faults)))


def _split(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the command of a script, and the options that precede or follow it."""
    place = next((place for place, word in enumerate(arguments) if word in _LAUNCHERS), None)
    is_launched = place is not None and not any(Path(word).is_file() or word == "-m" for word in arguments[:place])
    if place is not None and is_launched and (launcher := _launcher(arguments[place])) is not None:
        return [sys.executable, launcher, *arguments[place + 1 :]], list(arguments[:place])
    script, own = Script.split(parser, arguments, anywhere=_ANYWHERE)
    return [sys.executable, *["-m"] * script.is_module, script.target, *script.arguments], own


def _launcher(name: str) -> str | None:
    """Return the path of a launcher, that of this Python first."""
    return shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)


def _rehearse(shelter: Shelter, words: list[str], *, checks_data: bool, num_rows: int) -> "tuple[Rehearsed, str]":
    """Run the script in rehearsal, and once more to resume it; return what was found, and the end of its output."""
    from portico.inspection.findings import FAILED, PASSED, Stage, merged, read_rehearsals, resume_difference

    settings: dict[str, Any] = {
        "folder": str(shelter.folder),
        "checks_data": checks_data,
        "num_rows": num_rows,
        "redirects": not shelter.covers_disks,
        "is_of_transformers": _imports_transformers(words),
    }
    print(f"Rehearsing {' '.join(words[1:])} ...", file=sys.stderr, flush=True)
    code, log = _run(shelter, words, settings, "log")
    found = read_rehearsals(shelter.folder)
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
    whole = merged(found)
    if code and not whole.faults:
        whole.add_fault(whole.current or "script", _how_it_ended(code, whole.current, log))
    if whole.fingerprint is not None and whole.checkpoint:
        print("Resuming it in a new process ...", file=sys.stderr, flush=True)
        start = time.monotonic()
        resumes = {"checkpoint": whole.checkpoint, "rows": whole.rows, "max_steps": whole.max_steps}
        code, log_of_resume = _run(
            shelter, words, {**settings, "checks_data": False, "resumes": resumes}, "log-of-resume"
        )
        again = [run for run in read_rehearsals(shelter.folder) if run not in found and run.begun > whole.begun]
        resumed = next((run for run in again if run.fingerprint is not None), None)
        if resumed is None or resumed.fingerprint is None:
            of_process = [fault.sentence for run in again for fault in run.faults]
            why = of_process[0] if of_process else _how_it_ended(code, "resume", log_of_resume)
            sentence: str | None = f"A resume from a checkpoint fails: {why}"
        else:
            differs = resume_difference(whole.fingerprint, resumed.fingerprint)
            sentence = None if differs is None else f"{differs[0].upper()}{differs[1:]}."
        if sentence is not None:
            whole.add_fault("resume", sentence)
        stage = Stage("resume", PASSED if sentence is None else FAILED, time.monotonic() - start)
        places = [place for place, stage in enumerate(whole.stages) if stage.name == "checkpoint"]
        whole.stages.insert(places[0] + 1 if places else len(whole.stages), stage)
    return whole, log


def _run(shelter: Shelter, words: list[str], settings: dict[str, Any], name: str) -> tuple[int, str]:
    tracked = {"MLFLOW_TRACKING_URI": f"file:{shelter.folder}/mlflow"}
    environment = {**os.environ, **_OFFLINE, **tracked, RUN_VARIABLE: "{}"}
    environment[VARIABLE] = json.dumps({**settings, "begun": time.time()})
    before = os.environ.get("PYTHONPATH")
    pass_on()
    environment["PYTHONPATH"] = os.environ["PYTHONPATH"]
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before
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


def _free_disk(rehearsed: "Rehearsed") -> int:
    places = [forecast.output_dir for forecast in rehearsed.forecasts if forecast.output_dir]
    return free_bytes(Path(places[0])) if places else 0


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
