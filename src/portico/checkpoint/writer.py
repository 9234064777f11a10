"""Write checkpoint folders in Hugging Face's layout, atomically; save and restore the states of callbacks."""

import errno
import os
import shutil
import sys
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch.optim import Optimizer
from transformers import TrainerControl, TrainerState

from portico.checkpoint.background import BackgroundWriter
from portico.checkpoint.engine_files import save_engine
from portico.checkpoint.manifest import (
    LIGHTNING_FILE,
    STATE_FILE,
    refresh_manifest,
    steps_of_checkpoints,
    write_manifest,
)
from portico.checkpoint.sharded import optimizer_by_name, save_optimizer_shards
from portico.compat.transformers import CallbackHandler, ExportableState, HFTrainingArguments, logger, sort_checkpoints
from portico.distributed.accelerator import Accelerator
from portico.distributed.model_parallel import is_sharded
from portico.distributed.settings import timeout_of
from portico.errors import InputError, reason_of
from portico.trust import disk
from portico.trust.disk import move_files, remove_stale_staging
from portico.trust.files import load_tensors, save_tensors

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from portico.compat.annotations import Scheduler

OPTIMIZER_FILE = "optimizer.pt"
SCHEDULER_FILE = "scheduler.pt"
SCALER_FILE = "scaler.pt"
ARGUMENTS_FILE = "training_args.bin"
# Folders that are not checkpoints yet, or no longer.
_PARTIAL = ".partial"
_REPLACED = ".replaced"
_DELETED = ".deleted"


@dataclass(frozen=True, kw_only=True)
class CheckpointParts:
    """The parts of a run that a checkpoint is written from and loaded into."""

    args: HFTrainingArguments
    async_save: bool
    model: nn.Module
    optimizer: Optimizer | None
    lr_scheduler: "Scheduler | None"
    accelerator: Accelerator
    background: BackgroundWriter
    """Writes the large files: at once, or with ``async_save`` while training continues."""
    engine: Any = None
    """DeepSpeed's engine around the model, which writes and reads weights and optimizer itself."""

    @property
    def engine_has_scheduler(self) -> bool:
        """Whether the schedule is a part of the engine."""
        return self.engine is not None and self.engine.lr_scheduler is not None


@contextmanager
def staged(final: Path, parts: CheckpointParts) -> Iterator[Path]:
    """Yield a folder that becomes the checkpoint ``final`` when everything is written; all processes call this.

    A write that fails leaves nothing behind. With ``async_save`` the weights and the optimizer are copied to host
    memory and written while training continues; ``final`` does not exist until :func:`finish_checkpoint` returns.

    The yielded folder is elsewhere but has the name of ``final``: overrides of ``_save`` and ``save_model`` read it.
    """
    args = parts.args
    background = parts.background
    accelerator = parts.accelerator
    partial = final.with_name(_PARTIAL)
    staging = partial / final.name
    if args.should_save:
        _refuse_link(partial)
        _remove(partial)
        staging.mkdir(parents=True)
    accelerator.wait_for_everyone()
    if parts.async_save:
        background.collect()
    with _cleaning_up(final, background):
        yield staging
    accelerator.wait_for_everyone()
    if background.copies:
        uses_collectives = is_sharded(parts.model)

        def finish(group: "ProcessGroup | None") -> None:
            if uses_collectives:
                torch.distributed.barrier(group)
            if args.should_save:
                _complete(staging, final)

        timeout = timeout_of(args) if uses_collectives else None
        background.start(final, finish, uses_collectives=uses_collectives, timeout=timeout)
        return
    if args.should_save:
        with _cleaning_up(final, background):
            _complete(staging, final)
    accelerator.wait_for_everyone()
    _collect_from_other_machine(final, accelerator)


def finish_checkpoint(parts: CheckpointParts) -> None:
    """Wait for the checkpoint that is being written in the background; all processes call this."""
    final = parts.background.folder
    assert final is not None
    with _cleaning_up(final, parts.background):
        parts.background.wait()
    parts.accelerator.wait_for_everyone()
    _collect_from_other_machine(final, parts.accelerator)


def reserve_copies(parts: CheckpointParts) -> None:
    """Allocate memory for the copies of ``async_save`` in the background, once the optimizer has its state."""
    args, background = parts.args, parts.background
    if not parts.async_save or args.save_strategy == "no" or background.is_pending or is_sharded(parts.model):
        return
    copied = []
    if args.should_save:
        copied.append(parts.model.state_dict())
        if parts.optimizer is not None and not args.save_only_model:
            copied.append(parts.optimizer.state_dict())
    background.reserve(copied)


def save_optimizer_and_scheduler(parts: CheckpointParts, folder: Path) -> None:
    """Write the states of optimizer and scheduler into ``folder``; all processes call this."""
    assert parts.optimizer is not None
    assert parts.lr_scheduler is not None
    background = parts.background
    if parts.engine is not None:
        save_engine(parts.engine, folder, parts.model)
    elif is_sharded(parts.model):
        shards = background.copy_state(optimizer_by_name(parts.model, parts.optimizer))
        background.run(lambda group: save_optimizer_shards(shards, folder, group))
    elif parts.args.should_save:
        state = background.copy_state(parts.optimizer.state_dict())
        background.run(lambda group: save_tensors(state, folder / OPTIMIZER_FILE))
    if not parts.args.should_save or parts.engine_has_scheduler:
        return
    with warnings.catch_warnings():
        # Schedules warn that the optimizer must be saved too; it was, just above.
        warnings.filterwarnings("ignore", message="Please also save or load the state of the optimizer")
        save_tensors(parts.lr_scheduler.state_dict(), folder / SCHEDULER_FILE)


def save_lightning_states(parts: CheckpointParts, folder: Path, states: dict[str, Any]) -> None:
    """Write the states of Lightning's callbacks and of the user's data modules into ``folder``, if there are any.

    Only plain values and tensors are written, which are read without running code; others are announced.
    """
    plain = {name: state for name, state in states.items() if _is_plain(state)}
    for name in states.keys() - plain.keys():
        logger.warning(
            f"The state of {name} is not in {destination(str(folder))}: it holds other objects than tensors, numbers, "
            "strings, lists and dicts, and reading them could run code; let its `state_dict` return plain values."
        )
    if plain and parts.args.should_save:
        save_tensors(plain, folder / LIGHTNING_FILE)


def update_lightning_states(parts: CheckpointParts, checkpoint: Path, states: dict[str, Any]) -> None:
    """Replace states in a complete checkpoint, which are written as by :func:`save_lightning_states`."""
    if not parts.args.should_save:
        return
    file = checkpoint / LIGHTNING_FILE
    written: dict[str, Any] = load_tensors(file) if file.is_file() else {}
    save_tensors(written | {name: state for name, state in states.items() if _is_plain(state)}, file)
    refresh_manifest(checkpoint)


def _is_plain(value: object) -> bool:
    if isinstance(value, Mapping):
        return type(value) in (dict, OrderedDict) and all(map(_is_plain, (*value.keys(), *value.values())))
    if isinstance(value, list | tuple | set):
        return type(value) in (list, tuple, set) and all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float, complex, str, bytes, torch.Tensor, nn.Parameter)


def destination(folder: str) -> str:
    """Return the final place of ``folder``: a checkpoint is written elsewhere until it is complete."""
    path = Path(folder)
    return str(path.parent.with_name(path.name)) if is_incomplete(path) else folder


def is_incomplete(checkpoint: Path) -> bool:
    """Return whether a folder is where a checkpoint is written, of which nothing says that it is complete."""
    return checkpoint.parent.name == _PARTIAL


def save_arguments(args: HFTrainingArguments, folder: str) -> None:
    """Write training arguments into ``folder`` as an object of transformers, which can be read without portico."""
    # Pickle writes a class by name, and checks that the name leads to the class. A script may have put portico's class
    # under that name, and pickle has no public way to skip the check.
    kind = type(args)
    module = sys.modules[kind.__module__]
    found = getattr(module, kind.__name__)
    setattr(module, kind.__name__, kind)
    try:
        save_tensors(args, Path(folder) / ARGUMENTS_FILE)
    finally:
        setattr(module, kind.__name__, found)


def delete_all_but_best(run_folder: str, best: str | None) -> None:
    """Delete every checkpoint but ``best``, as transformers does at the end of a run with ``save_total_limit=1``."""
    if best is None:
        return
    for checkpoint in sort_checkpoints(output_dir=run_folder, best_model_checkpoint=best):
        if not Path(checkpoint).samefile(best):
            logger.info(f"Deleting older checkpoint [{checkpoint}] due to args.save_total_limit")
            _delete(Path(checkpoint))


def rotate_checkpoints(run_folder: str, *, limit: float | None, best: str | None, last_step: int) -> None:
    """Delete the oldest checkpoints beyond ``limit``, but never the newest or ``best``.

    Steps give the order; those above ``last_step``, the step of the run, are from an earlier run and oldest.
    transformers goes by the times of the folders, and loses the newest ones if the clock was set back. It also deletes
    in place, so a checkpoint that is half deleted when the process is killed is taken for the last one; here it is
    renamed first.
    """
    steps = steps_of_checkpoints(Path(run_folder))
    checkpoints = sorted(steps, key=lambda path: (steps[path] <= last_step, steps[path]))
    # Compared only: transformers takes any number.
    if limit is None or limit <= 0 or len(checkpoints) <= limit:
        return
    protected = {checkpoints[-1]} | ({Path(best)} if best is not None else set())
    num_to_keep = max(limit, len(protected))
    deletable = [checkpoint for checkpoint in checkpoints if checkpoint not in protected]
    for num_deleted, checkpoint in enumerate(deletable):
        if len(checkpoints) - num_deleted <= num_to_keep:
            break
        _delete(checkpoint)


def clear_leftovers(run_folder: str) -> None:
    """Remove what a killed run left half written or half deleted; restore a checkpoint that it was replacing.

    If the folder in which checkpoints are written is a link, ``InputError`` is raised.
    """
    folder = Path(run_folder)
    _refuse_link(folder / _PARTIAL)
    for replaced in folder.glob(f".checkpoint-*{_REPLACED}"):
        final = folder / replaced.name.removesuffix(_REPLACED)[1:]
        if not final.exists():
            replaced.rename(final)
    if incomplete := sorted(path.name for path in folder.glob(f"{_PARTIAL}/checkpoint-*")):
        logger.warning("%s: %s was not complete when a run ended, and is removed.", folder, ", ".join(incomplete))
    _remove(folder / _PARTIAL)
    remove_stale_staging(folder)
    for ending in (_REPLACED, _DELETED):
        for leftover in folder.glob(f".checkpoint-*{ending}"):
            _remove(leftover)


def make_run_folder(run_folder: str) -> None:
    """Make the output folder of a run, unless it exists.

    Raises:
        InputError: If it cannot be made; permissions raise ``PermissionError``.
    """
    if not run_folder:
        raise InputError("`output_dir=''` names no folder; set it to one, such as '.' for the current folder.")
    try:
        Path(run_folder).mkdir(parents=True, exist_ok=True)
    except PermissionError:
        raise
    except OSError as error:
        raise InputError(
            f"`output_dir={run_folder!r}` cannot be made a folder ({os.strerror(error.errno or errno.EIO)}: "
            f"{error.filename}); set `output_dir` to a folder, or to the path of a new one."
        ) from error


def refuse_unwritable(run_folder: str) -> None:
    """Raise ``PermissionError`` if no checkpoint can be written into a folder, before training gets to the first."""
    if Path(run_folder).is_dir() and not os.access(run_folder, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), run_folder)


def _delete(checkpoint: Path) -> None:
    aside = checkpoint.with_name(f".{checkpoint.name}{_DELETED}")
    _remove(aside)
    checkpoint.rename(aside)
    _remove(aside)


def _remove(path: Path) -> None:
    """Delete a folder, a file or a link, if there is one; what a link leads to stays."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:  # `shutil.rmtree` would open a pipe, and wait for its other end
        path.unlink(missing_ok=True)


def _refuse_link(partial: Path) -> None:
    if partial.is_symlink():
        raise InputError(
            f"{partial} is a link to {partial.readlink()}. Checkpoints are written there and the folder is deleted "
            "afterwards; remove the link."
        )


@contextmanager
def _cleaning_up(final: Path, background: BackgroundWriter) -> Iterator[None]:
    """Remove what a failed write of the checkpoint ``final`` has left, and name a full disk."""
    try:
        with naming_full_disk(final.parent, final):
            yield
    except BaseException:
        background.discard()
        _remove(final.with_name(_PARTIAL))
        raise


@contextmanager
def naming_full_disk(run_folder: Path, path: Path | None = None) -> Iterator[None]:
    """Name ``path``, or the file, and the newest complete checkpoint if there is no room in the folder of a run."""
    newest = max(steps_of_checkpoints(run_folder).items(), key=lambda item: item[1], default=(None, 0))[0]
    kept = f"; {newest.name} is complete, and the run can be resumed from there" if newest is not None else ""
    with disk.naming_missing_room(path, run_folder, kept):
        yield


def _complete(staging: Path, final: Path) -> None:
    """List the files of a written checkpoint in a manifest, and rename the folder to its final name."""
    partial = staging.parent
    write_manifest(staging)
    replaced = final.with_name(f".{final.name}{_REPLACED}")
    _remove(replaced)
    if final.exists() or final.is_symlink():
        final.rename(replaced)
    staging.rename(final)
    _remove(replaced)
    # A user's `_save` may have written next to the checkpoint.
    move_files(partial, final.parent)
    shutil.rmtree(partial)


def _collect_from_other_machine(final: Path, accelerator: Accelerator) -> None:
    """Move files of another machine's processes (their random states), which the first process cannot see."""
    partial = final.with_name(_PARTIAL)
    staging = partial / final.name
    if accelerator.is_local_main_process and staging.exists():
        final.mkdir(parents=True, exist_ok=True)
        for file in staging.iterdir():
            file.replace(final / file.name)
        shutil.rmtree(partial)


# ---- States of callbacks ----


def exportable_callbacks(handler: CallbackHandler, control: TrainerControl) -> list[Any]:
    """Return the callbacks, and the control flags, whose states a checkpoint holds."""
    return [part for part in (*handler.callbacks, control) if isinstance(part, ExportableState)]


def export_callback_states(handler: CallbackHandler, control: TrainerControl, state: TrainerState) -> None:
    """Write the current states of the callbacks into ``state``, as a list for several callbacks of a class.

    transformers 5.23 appends to the list at each save and reads its first entries, the oldest.
    """
    states: dict[str, list[object]] = {}
    for callback in exportable_callbacks(handler, control):
        states.setdefault(type(callback).__name__, []).append(callback.state())
    stored = cast("dict[str, object]", state.stateful_callbacks)
    stored.update({name: same if len(same) > 1 else same[0] for name, same in states.items()})


def _restore_callback(callback: ExportableState, saved: Any) -> Any:
    """Return a callback of the class of ``callback`` with a state that a checkpoint holds."""
    kind: Any = type(callback)
    try:
        names = saved.get("attributes", {})
        if forged := [name for name in names if name.startswith("__") or callable(getattr(kind, name, None))]:
            raise TypeError(forged[0])
        restored = kind(**saved.get("args", {}))
        for attribute, value in saved.get("attributes", {}).items():
            setattr(restored, attribute, value)
    except (TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"The checkpoint's {STATE_FILE} holds no state of {kind.__name__} ({reason_of(error)}); restore the "
            "file, or set `restore_callback_states_from_checkpoint=False`."
        ) from error
    return restored


def restore_callback_states(handler: CallbackHandler, control: TrainerControl, state: TrainerState) -> TrainerControl:
    """Replace the callbacks with callbacks restored from ``state``; return the control flags, also restored."""
    stored = cast("dict[str, Any]", state.stateful_callbacks)
    known = exportable_callbacks(handler, control)
    unknown = [name for name in stored if all(type(callback).__name__ != name for callback in known)]
    if unknown:
        logger.warning(
            f"Checkpoint included callbacks not included in current configuration. Ignoring. ({', '.join(unknown)})"
        )
    for name, states in stored.items():
        same = [callback for callback in known if type(callback).__name__ == name]
        for callback, saved in zip(same, states if isinstance(states, list) else [states], strict=False):
            restored = _restore_callback(callback, saved)
            if isinstance(restored, TrainerControl):
                control = restored
            else:
                handler.remove_callback(type(callback))
                handler.add_callback(restored)
        if same:
            logger.info("Callback states were restored from the checkpoint.")
    return control


def warn_of_reset_callbacks(handler: CallbackHandler, control: TrainerControl, state: TrainerState) -> None:
    """Warn about callbacks whose state in a checkpoint is not restored, such as a patience partly used up."""
    stored = cast("dict[str, Any]", state.stateful_callbacks)
    for callback in exportable_callbacks(handler, control):
        name = type(callback).__name__
        saved = stored.get(name)
        attributes = saved.get("attributes", {}) if isinstance(saved, dict) else {}
        present = callback.state().get("attributes", {})
        lost = [
            f"`{key}` is {present[key]!r} again, and {value!r} in the checkpoint"
            for key, value in attributes.items()
            if key in present and present[key] != value
        ]
        if lost and not isinstance(callback, TrainerControl):
            logger.warning(
                f"`{name}` starts afresh in the resumed run, as under transformers: {', '.join(lost)}; to continue "
                "with the states of the callbacks set `restore_callback_states_from_checkpoint=True`."
            )
