"""Write checkpoint folders in Hugging Face's layout, atomically; at the end the states of callbacks, both ways."""

import errno
import os
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from safetensors import SafetensorError
from transformers import TrainerControl

from portico.arguments import as_transformers_arguments
from portico.checkpoint.manifest import write_manifest
from portico.checkpoint.sharded import optimizer_by_name, save_optimizer_shards
from portico.compat.transformers import ExportableState, logger, sort_checkpoints
from portico.distributed.model_parallel import is_sharded
from portico.errors import InputError

if TYPE_CHECKING:
    from portico.arguments import TrainingArguments
    from portico.trainer import Trainer


OPTIMIZER_FILE = "optimizer.pt"
SCHEDULER_FILE = "scheduler.pt"
SCALER_FILE = "scaler.pt"
STATE_FILE = "trainer_state.json"
ARGUMENTS_FILE = "training_args.bin"
# Folders that are not, or no longer, checkpoints.
_PARTIAL, _REPLACED, _DELETED = ".partial", ".replaced", ".deleted"
_NO_SPACE = 1 << 20  # bytes


def write_checkpoint(trainer: "Trainer", run_folder: str, name: str) -> None:
    """Write ``run_folder/name``: model, optimizer, scheduler, random states and trainer state; rotate old ones.

    With ``async_save`` the weights and the optimizer are copied to host memory, written while training continues, and
    complete when :func:`finish_checkpoint` returns; until then the folder does not exist.
    """
    args, state = trainer.args, trainer.state
    finish_checkpoint(trainer)
    final = Path(run_folder) / name
    with _staged(final, trainer) as staging:
        trainer.save_model(str(staging), _internal_call=True)
        trainer.accelerator.wait_for_everyone()
        best = Path(run_folder) / f"checkpoint-{state.best_global_step}"
        if state.best_global_step and (best.name == name or best.exists()):
            state.best_model_checkpoint = str(best)
        if not args.save_only_model:
            trainer._save_optimizer_and_scheduler(str(staging))
            trainer._save_scaler(str(staging))
            trainer._save_rng_state(str(staging))
            if trainer.module.run is not None:
                trainer.module.run.save_stream_position(str(staging))
        if args.should_save:
            export_callbacks(trainer)
            state.save_to_json(str(staging / STATE_FILE))
    if args.push_to_hub:
        trainer._push_from_checkpoint(str(final))
    if args.should_save and not trainer._background.is_pending:
        trainer._rotate_checkpoints(use_mtime=True, output_dir=run_folder)


def reserve_copies(trainer: "Trainer") -> None:
    """Allocate memory for the copies of ``async_save`` in the background, once the optimizer has its state."""
    args, background = trainer.args, trainer._background
    if args.async_save and args.save_strategy != "no" and not background.is_pending and not is_sharded(trainer.model):
        optimizer = None if args.save_only_model or trainer.optimizer is None else trainer.optimizer.state_dict()
        background.reserve([trainer.model.state_dict(), optimizer] if args.should_save else [])


def finish_checkpoint(trainer: "Trainer") -> None:
    """Wait for the checkpoint that is written in the background, if there is one; all processes call this."""
    background = trainer._background
    if not background.is_pending:
        return
    run_folder = trainer._last_checkpoint.parent if trainer._last_checkpoint else Path(trainer.args.output_dir)
    try:
        background.wait()
    except BaseException as error:
        _clean_up(error, run_folder / _PARTIAL, trainer._last_checkpoint or run_folder)
        raise
    trainer.accelerator.wait_for_everyone()
    if trainer._last_checkpoint is not None:
        _bring_from_other_machine(trainer, trainer._last_checkpoint)
    if trainer.args.should_save:
        trainer._rotate_checkpoints(use_mtime=True, output_dir=str(run_folder))


def save_optimizer_and_scheduler(trainer: "Trainer", folder: str) -> None:
    """Write the states of optimizer and scheduler into ``folder``; all processes call this."""
    assert trainer.optimizer is not None
    background = trainer._background
    if is_sharded(trainer.model):
        parts = background.copied(optimizer_by_name(trainer.model, trainer.optimizer))
        background.run(lambda group: save_optimizer_shards(parts, Path(folder), group))
    elif trainer.args.should_save:
        state = background.copied(trainer.optimizer.state_dict())
        background.run(lambda group: torch.save(state, Path(folder) / OPTIMIZER_FILE))
    if not trainer.args.should_save:
        return
    with warnings.catch_warnings():
        # Schedules warn that the optimizer must be saved too; it was, just above.
        warnings.filterwarnings("ignore", message="Please also save or load the state of the optimizer")
        torch.save(trainer.lr_scheduler.state_dict(), Path(folder) / SCHEDULER_FILE)


def save_scaler(trainer: "Trainer", folder: str) -> None:
    """Write the state of the gradient scaler into ``folder``, if there is one."""
    scaler = gradient_scaler(trainer)
    if scaler is not None and trainer.args.should_save:
        torch.save(scaler.state_dict(), Path(folder) / SCALER_FILE)


def destination(folder: str) -> str:
    """Return the final place of ``folder``: a checkpoint is written elsewhere until it is complete."""
    path = Path(folder)
    return str(path.parent.with_name(path.name)) if path.parent.name == _PARTIAL else folder


def save_arguments(args: "TrainingArguments", folder: str) -> None:
    """Write training arguments into ``folder``, as Hugging Face's class: it is read without portico."""
    plain = as_transformers_arguments(args)
    # Pickle refuses a class that is not found under its name, where a script may have put portico's.
    kind, module = type(plain), sys.modules[type(plain).__module__]
    found = getattr(module, kind.__name__)
    setattr(module, kind.__name__, kind)
    try:
        torch.save(plain, Path(folder) / ARGUMENTS_FILE)
    finally:
        setattr(module, kind.__name__, found)


def gradient_scaler(trainer: "Trainer") -> Any:
    """Return the gradient scaler of the run's precision, if it has one."""
    return getattr(trainer.lightning_trainer.strategy.precision_plugin, "scaler", None)


def delete_all_but_best(run_folder: str, best: str | None) -> None:
    """Delete every checkpoint but ``best``, as transformers does at the end of a run with ``save_total_limit=1``."""
    if best is None:
        return
    for checkpoint in sort_checkpoints(output_dir=run_folder, best_model_checkpoint=best):
        if not Path(checkpoint).samefile(best):
            logger.info(f"Deleting older checkpoint [{checkpoint}] due to args.save_total_limit")
            _delete(Path(checkpoint))


def rotate_checkpoints(run_folder: str, *, limit: int | None, best: str | None, use_mtime: bool) -> None:
    """Delete the oldest checkpoints beyond ``limit``, but never the newest or ``best``.

    The order is that of transformers' function of this name, which deletes in place: a checkpoint that is half
    deleted when the process is killed would be taken for the last one.
    """
    checkpoints = sort_checkpoints(output_dir=run_folder, use_mtime=use_mtime)
    if limit is None or not 0 < limit < len(checkpoints):
        return
    kept = {checkpoints[-1]} | ({str(Path(best))} if best is not None else set())
    surplus = max(len(checkpoints) - max(limit, len(kept)), 0)
    for checkpoint in [checkpoint for checkpoint in checkpoints if checkpoint not in kept][:surplus]:
        _delete(Path(checkpoint))


def clear_leftovers(run_folder: str) -> None:
    """Remove what a killed run left half written or half deleted; a checkpoint that it was replacing comes back.

    If the folder in which checkpoints are written is a link, ``InputError`` is raised.
    """
    folder = Path(run_folder)
    _refuse_link(folder / _PARTIAL)
    for replaced in folder.glob(f".checkpoint-*{_REPLACED}"):
        final = folder / replaced.name.removesuffix(_REPLACED)[1:]
        if not final.exists():
            replaced.rename(final)
    for leftover in (
        folder / _PARTIAL,
        *folder.glob(f".checkpoint-*{_REPLACED}"),
        *folder.glob(f".checkpoint-*{_DELETED}"),
    ):
        shutil.rmtree(leftover, ignore_errors=True)


def check_writable(run_folder: str) -> None:
    """Raise ``PermissionError`` if no checkpoint can be written into a folder, before a run has trained up to one."""
    if Path(run_folder).is_dir() and not os.access(run_folder, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), run_folder)


def _delete(checkpoint: Path) -> None:
    aside = checkpoint.with_name(f".{checkpoint.name}{_DELETED}")
    shutil.rmtree(aside, ignore_errors=True)
    checkpoint.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def _refuse_link(partial: Path) -> None:
    if partial.is_symlink():
        raise InputError(
            f"{partial} is a link to {partial.readlink()}. Checkpoints are written there and the folder is deleted "
            "afterwards; remove the link."
        )


@contextmanager
def _staged(final: Path, trainer: "Trainer") -> Iterator[Path]:
    """Yield a folder that becomes ``final`` when everything is written; a failed write leaves nothing behind.

    The folder has the name of ``final``, elsewhere: overrides of ``_save`` and ``save_model`` read the name.
    """
    partial = final.with_name(_PARTIAL)
    staging = partial / final.name
    if trainer.args.should_save:
        _refuse_link(partial)
        shutil.rmtree(partial, ignore_errors=True)
        staging.mkdir(parents=True)
    trainer.accelerator.wait_for_everyone()
    background = trainer._background
    if trainer.args.async_save:
        background.collect()
    try:
        yield staging
    except BaseException as error:
        background.discard()
        _clean_up(error, partial, final)
        raise
    trainer.accelerator.wait_for_everyone()
    if background.copies:
        spread = is_sharded(trainer.model)

        def finish(group: Any) -> None:
            if spread:
                torch.distributed.barrier(group)
            _complete(trainer, staging, final)

        background.start(uses_collectives=spread, finish=finish, timeout=timedelta(seconds=trainer.args.ddp_timeout))
        return
    _complete(trainer, staging, final)
    trainer.accelerator.wait_for_everyone()
    _bring_from_other_machine(trainer, final)


def _clean_up(error: BaseException, partial: Path, final: Path) -> None:
    """Remove what a failed write has left; raise ``OSError`` in place of ``error`` if there was no space left."""
    is_full = _is_out_of_space(error, partial)
    shutil.rmtree(partial, ignore_errors=True)
    if is_full:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(final)) from error


def _complete(trainer: "Trainer", staging: Path, final: Path) -> None:
    """List the files of a checkpoint that is written, and give it its name."""
    if not trainer.args.should_save:
        return
    partial = staging.parent
    write_manifest(staging)
    replaced = final.with_name(f".{final.name}{_REPLACED}")
    shutil.rmtree(replaced, ignore_errors=True)
    if final.exists():
        final.rename(replaced)
    staging.rename(final)
    shutil.rmtree(replaced, ignore_errors=True)
    # A user's `_save` may have written next to the checkpoint.
    shutil.copytree(partial, final.parent, dirs_exist_ok=True)
    shutil.rmtree(partial)


def _bring_from_other_machine(trainer: "Trainer", final: Path) -> None:
    """Move files of another machine's processes (their random states), which the first process cannot see."""
    partial = final.with_name(_PARTIAL)
    staging = partial / final.name
    if trainer.accelerator.is_local_main_process and staging.exists():
        final.mkdir(parents=True, exist_ok=True)
        for file in staging.iterdir():
            file.replace(final / file.name)
        shutil.rmtree(partial)


def _is_out_of_space(error: BaseException, folder: Path) -> bool:
    """Return whether a write failed for want of space: torch and safetensors raise errors of their own for it."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOSPC
    if "inline_container" in str(error):  # torch.save says no more than "unexpected pos"
        return shutil.disk_usage(folder).free < _NO_SPACE
    return isinstance(error, SafetensorError) and os.strerror(errno.ENOSPC) in str(error)


def exportable_callbacks(trainer: "Trainer") -> list[Any]:
    """Return the callbacks (and the control flags) whose state is saved in a checkpoint."""
    candidates = [*trainer.callback_handler.callbacks, trainer.control]
    return [candidate for candidate in candidates if isinstance(candidate, ExportableState)]


def export_callbacks(trainer: "Trainer") -> None:
    """Write the current states into the trainer state, as a list where there are several callbacks of a class.

    transformers 5.23 appends to that list at each save, and reads its first entries, the oldest.
    """
    states: dict[str, list[Any]] = {}
    for callback in exportable_callbacks(trainer):
        states.setdefault(type(callback).__name__, []).append(callback.state())
    stored = cast("dict[str, Any]", trainer.state.stateful_callbacks)
    stored.update({name: same if len(same) > 1 else same[0] for name, same in states.items()})


def restore_callbacks(trainer: "Trainer") -> None:
    """Restore the states of callbacks from the checkpoint, if ``restore_callback_states_from_checkpoint`` is set."""
    if not trainer.args.restore_callback_states_from_checkpoint:
        return
    stored = cast("dict[str, Any]", trainer.state.stateful_callbacks)
    known = exportable_callbacks(trainer)
    unknown = [name for name in stored if all(type(callback).__name__ != name for callback in known)]
    if unknown:
        logger.warning(
            f"Checkpoint included callbacks not included in current configuration. Ignoring. ({', '.join(unknown)})"
        )
    for name, states in stored.items():
        same = [callback for callback in known if type(callback).__name__ == name]
        for callback, state in zip(same, states if isinstance(states, list) else [states], strict=False):
            restored = type(callback)(**state.get("args", {}))
            for attribute, value in state.get("attributes", {}).items():
                setattr(restored, attribute, value)
            if isinstance(restored, TrainerControl):
                trainer.control = restored
            else:
                trainer.callback_handler.remove_callback(type(callback))
                trainer.callback_handler.add_callback(restored)
        if same:
            logger.info("Callback states were restored from the checkpoint.")
