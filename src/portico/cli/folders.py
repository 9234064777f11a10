"""The folder of a run: taken only when free, left as it was when the run is refused."""

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import yaml
from typing_extensions import override

from portico.errors import InputError
from portico.trust.disk import open_log, owned, owner_of, read_text, write_text
from portico.trust.names import TARGET

CONFIG_FILE = "config.yaml"
# What only a run leaves behind. A folder that holds one of these is taken.
SIGNS_OF_A_RUN = (
    CONFIG_FILE,
    "all_results.json",
    "trainer_state.json",
    "checkpoint-*",
    # Of AllenNLP's trainer.
    "*.th",
    "metrics*.json",
    "log",
)


class LogFile(logging.FileHandler):
    """The handler of ``train.log`` in the folder of a run, which may hold a link of that name."""

    @override
    def _open(self) -> Any:
        return open_log(Path(self.baseFilename), encoding=self.encoding)


def check_folder_settings(settings: Mapping[str, Any]) -> None:
    """Refuse an ``overwrite`` that is not a Boolean, and a name that would lead out of the folder of all runs."""
    overwrite, name = settings["overwrite"], settings["name"]
    if not isinstance(overwrite, bool):
        raise InputError(f"overwrite={overwrite} is unknown; set it to true or false.")
    if not isinstance(name, str) or name in ("", ".", "..") or set(name) & set("/\\"):
        raise InputError(
            f"name='{name}' cannot be the folder below outputs/ in which runs are collected; set a string without "
            "slashes, or choose the whole folder with paths.output_dir=<folder>."
        )


def read_run_settings(folder: Path) -> dict[str, Any]:
    """Return the settings of the run in a folder, whose ``config.yaml`` may come from anybody.

    Raises:
        InputError: If the file cannot be read, or no run has written it.
    """
    from portico.trust.files import plain_yaml  # imports torch, which a command that is refused does not need

    file = folder / CONFIG_FILE
    try:
        settings = plain_yaml(read_text(file))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise InputError(f"{file} cannot be read ({' '.join(str(error).split())[:300]}); restore it.") from error
    groups = [settings.get(name) for name in ("args", "paths")] if isinstance(settings, dict) else [None]
    if not all(isinstance(values, dict) for values in groups) or not settings.get(TARGET):
        raise InputError(f"{file}: no configuration of `portico train`; give the folder of one of its runs.")
    return dict(settings)


def claim(folder: Path, settings: Mapping[str, Any]) -> None:
    """Make sure that a run may write into the folder; refuse one with a run that is neither resumed nor replaced.

    With ``overwrite=true`` the signs of the earlier run move to a subfolder ``replaced-<n>``: the new run can neither
    resume from nor rotate away the old checkpoints, and nothing is deleted.
    """
    signs = _signs(folder)
    checkpoint = settings["args"].get("resume_from_checkpoint")
    is_inside = isinstance(checkpoint, str) and folder.resolve() in Path(checkpoint).resolve().parents
    if not signs or is_inside or checkpoint is True:
        return
    if not settings["overwrite"]:
        raise InputError(
            f"The folder '{folder}' already holds a run ({signs[0].name}). Choose another one with "
            "paths.output_dir=<folder>, continue that run with args.resume_from_checkpoint=true, or replace it with "
            "overwrite=true, which keeps its configuration, results and checkpoints in a subfolder."
        )
    aside = next(path for n in count(1) if not os.path.lexists(path := folder / f"replaced-{n}"))
    aside.mkdir()
    for path in signs:
        path.rename(aside / path.name)


def refuse_running(folder: Path) -> None:
    """Raise ``InputError`` if another process runs in the folder: the files of both would be mixed."""
    if (owner := owner_of(folder)) is not None:
        ending = f", or end it (kill {owner.rpartition(' ')[2]})" if owner[-1].isdigit() else ""
        raise InputError(
            f"A run is going on in '{folder}', by {owner}; wait until it has ended{ending}, or choose another folder."
        )


@contextmanager
def owning(folder: Path) -> Iterator[None]:
    """Own the folder of a run, so that no other run starts in it."""
    refuse_running(folder)
    try:
        with owned(folder):
            yield
    except BlockingIOError:  # taken since
        refuse_running(folder)
        raise


def interruption(folder: Path) -> str:
    """Return what an interrupt left in the folder, and how to continue from there."""
    if not any(folder.glob("checkpoint-*")):
        return "Interrupted before the first checkpoint; the same command starts over."
    return (
        f"Interrupted; '{folder}' holds checkpoints. Continue from the last one by adding to the command: "
        f"paths.output_dir='{folder}' args.resume_from_checkpoint=true"
    )


@contextmanager
def recorded_config(folder: Path, text: str) -> Iterator[None]:
    """Keep the configuration next to the results; remove it if the run is refused or interrupted without results.

    The file alone would make the folder count as taken, but the corrected command should run in the same one.
    """
    path = folder / CONFIG_FILE
    write_text(path, text)
    try:
        yield
    except (InputError, KeyboardInterrupt):
        if _signs(folder) == [path]:
            path.unlink()
        raise


@contextmanager
def removed_if_refused(folder: Path) -> Iterator[None]:
    """Remove the folder of a refused or interrupted run, and its parents below the working folder, while empty."""
    try:
        yield
    except (InputError, KeyboardInterrupt):
        working = Path.cwd()
        for path in (folder, *folder.parents):
            if working not in path.parents or any(path.iterdir()):
                break
            path.rmdir()
        raise


def _signs(folder: Path) -> list[Path]:
    # From Python 3.13 on, a pattern without a wildcard also finds a link to nothing.
    return sorted(path for pattern in SIGNS_OF_A_RUN for path in folder.glob(pattern) if path.exists())
