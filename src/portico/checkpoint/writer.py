"""Checkpoint folders written whole or not at all."""

import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers.trainer_callback import TrainerState
from transformers.trainer_utils import rotate_checkpoints

from portico.checkpoint.callback_states import export_callbacks
from portico.checkpoint.rng import save_rng_state

if TYPE_CHECKING:
    from portico.contract import Facade

OPTIMIZER_FILE = "optimizer.pt"
SCHEDULER_FILE = "scheduler.pt"
SCALER_FILE = "scaler.pt"
STATE_FILE = "trainer_state.json"


def write_checkpoint(facade: "Facade", run_folder: str, name: str) -> None:
    """Write ``run_folder/name``: model, optimizer, schedule, random states and trainer state; rotate old ones."""
    args, state = facade.args, facade.state
    final = Path(run_folder) / name
    with _staged(final, facade) as staging:
        facade.save_model(str(staging), _internal_call=True)
        facade.accelerator.wait_for_everyone()
        _note_best_checkpoint(state, run_folder, name)
        if not args.save_only_model:
            save_optimizer_and_scheduler(facade, str(staging))
            save_rng_state(str(staging), args)
        if args.should_save:
            export_callbacks(facade)
            state.save_to_json(str(staging / STATE_FILE))
    if args.should_save:
        rotate_checkpoints(
            output_dir=run_folder,
            save_total_limit=args.save_total_limit,
            best_model_checkpoint=state.best_model_checkpoint,
            use_mtime=True,
        )


def save_optimizer_and_scheduler(facade: "Facade", folder: str) -> None:
    """Write the states of optimizer, schedule and gradient scaler into ``folder``."""
    if not facade.args.should_save:
        return
    assert facade.optimizer is not None
    torch.save(facade.optimizer.state_dict(), Path(folder) / OPTIMIZER_FILE)
    with warnings.catch_warnings():
        # Schedules warn that the optimizer must be saved too; it was, a line above.
        warnings.filterwarnings("ignore", message="Please also save or load the state of the optimizer")
        torch.save(facade.lr_scheduler.state_dict(), Path(folder) / SCHEDULER_FILE)
    scaler = gradient_scaler(facade)
    if scaler is not None:
        torch.save(scaler.state_dict(), Path(folder) / SCALER_FILE)


def gradient_scaler(facade: "Facade") -> Any:
    """Return the gradient scaler of the run's precision, if it has one."""
    return getattr(facade.lightning_trainer.strategy.precision_plugin, "scaler", None)


@contextmanager
def _staged(final: Path, facade: "Facade") -> Iterator[Path]:
    """Give a folder to write into that becomes ``final`` when all is written; an interrupted write leaves no trace."""
    staging = final.with_name(f".{final.name}.partial")
    if facade.args.should_save:
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
    facade.accelerator.wait_for_everyone()
    try:
        yield staging
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    facade.accelerator.wait_for_everyone()
    if facade.args.should_save:
        _put_in_place(staging, final)
    facade.accelerator.wait_for_everyone()
    if facade.accelerator.is_local_main_process and staging.exists():
        _add(staging, final)


def _put_in_place(staging: Path, final: Path) -> None:
    replaced = final.with_name(f".{final.name}.replaced")
    if final.exists():
        shutil.rmtree(replaced, ignore_errors=True)
        final.rename(replaced)
    staging.rename(final)
    shutil.rmtree(replaced, ignore_errors=True)


def _add(staging: Path, final: Path) -> None:
    """Keep what the processes of this machine wrote (their random states) where the first of all does not see it."""
    final.mkdir(parents=True, exist_ok=True)
    for file in staging.iterdir():
        file.replace(final / file.name)
    staging.rmdir()


def _note_best_checkpoint(state: TrainerState, run_folder: str, name: str) -> None:
    if not state.best_global_step:
        return
    best = f"checkpoint-{state.best_global_step}"
    if best == name or (Path(run_folder) / best).exists():
        state.best_model_checkpoint = str(Path(run_folder) / best)
