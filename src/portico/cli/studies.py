"""Optuna's studies of sweeps: their storage, and the evaluations that a job reports to its trial."""

import json
import logging
import os
import re
import time
from collections.abc import Callable, Mapping
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from transformers import TrainerCallback, TrainerControl, TrainerState
from typing_extensions import override

from portico.cli.jobs import (
    JOB_FILE,
    SWEEP_CONFIG,
    JobPruned,
    SweepJob,
    digest_of_address,
    get_pruner_path,
    get_storage_digest,
)
from portico.compat.transformers import HFTrainingArguments
from portico.errors import InputError, MissingPackageError, printable
from portico.trust.disk import read_bytes, write_bytes
from portico.trust.names import TARGET, built, data_only, from_folder, import_target, refuse_in_folder

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.pruners import BasePruner
    from optuna.storages import BaseStorage

log = logging.getLogger(__name__)

# ---- Storages ----


def make_storage(address: str) -> "BaseStorage":
    """Return an Optuna storage: a URL names a database, anything else a journal file."""
    from optuna.storages import JournalStorage, RDBStorage
    from optuna.storages.journal import JournalFileBackend

    return RDBStorage(address) if "://" in address else JournalStorage(JournalFileBackend(address))


def hide_password(address: str) -> str:
    """Return an address without the password of ``postgresql://user:password@host/name``."""
    return re.sub(r"//[^/@]*@", "//***@", address)


def open_storage(address: str) -> "BaseStorage":
    """Return an Optuna storage that can be read.

    Raises:
        InputError: If it would be lost with its process, is another file, or cannot be opened.
        MissingPackageError: If the driver of its database is not installed.
    """
    from optuna.exceptions import OptunaError
    from sqlalchemy.exc import SQLAlchemyError

    setting = f"hydra.sweeper.storage={hide_password(address)}"
    _refuse_detour(setting, Path(address.removeprefix("sqlite:///").partition("?")[0]))
    if address.rstrip("/") == "sqlite:" or ":memory:" in address:
        raise InputError(f"`{setting}` is lost with its process, but runs report to it from theirs; name a file.")
    if "://" not in address and Path(address).is_file():
        first = read_bytes(Path(address)).partition(b"\n")[0]
        if first and b'"op_code"' not in first:  # Optuna would write into it before it finds out
            raise InputError(f"`{setting}` is a file without studies of Optuna; name another one, or a new one.")
    try:
        if "://" not in address and Path(address).is_file():
            _drop_damaged_end(Path(address))
        storage = make_storage(address)
        storage.get_all_studies()
    except ImportError as error:
        raise MissingPackageError(
            f"`{setting}` needs the driver of its database, which is not installed; install it, such as "
            "psycopg2-binary for PostgreSQL or PyMySQL for MySQL, or set the storage to sqlite:///<file>."
        ) from error
    # Optuna asserts that it knows the codes in a journal.
    except (OSError, ValueError, LookupError, TypeError, AssertionError, SQLAlchemyError, OptunaError) as error:
        reason = printable((str(error) or type(error).__name__).splitlines()[0])
        raise InputError(
            f"`{setting}` cannot be used ({reason}); set it to sqlite:///<file> or to a journal "
            "file, in a folder that exists and can be written to, or to the URL of a database that runs."
        ) from error
    return storage


def _refuse_detour(setting: str, file: Path) -> None:
    """Refuse a file that would not end, or in the folder of a sweep, which may be sent, one that leads elsewhere.

    Optuna and SQLite write into it in place.
    """
    if not os.path.lexists(file):
        return
    status = file.lstat()
    leads_elsewhere = (file.parent / SWEEP_CONFIG).is_file() and (file.is_symlink() or status.st_nlink > 1)
    if leads_elsewhere or not (file.is_file() or file.is_dir() or file.is_symlink()):
        raise InputError(
            f"`{setting}` is a link, a pipe or a device, and not a file of the sweep; remove it to start the search "
            "over, or set the storage to the file that is meant."
        )


def _drop_damaged_end(journal: Path) -> None:
    """Shorten a journal to the entries before the first damaged one, which a crash leaves; keep a copy of the file.

    Optuna would append to the damaged entry, and then read none of what follows. Entries after it are lost, since they
    refer to trials by their order.
    """
    from optuna.storages.journal import JournalFileSymlinkLock

    lock = JournalFileSymlinkLock(str(journal))
    lock.acquire()
    try:
        lines = read_bytes(journal).splitlines(keepends=True)
        whole = list(takewhile(_is_entry, lines))
        if len(whole) == len(lines):
            return
        copy = journal.with_name(f"{journal.name}.damaged")
        write_bytes(copy, b"".join(lines))
        write_bytes(journal, b"".join(whole))
    finally:
        lock.release()
    log.warning(
        "%s: entry %d is damaged, as after a crash. The search continues from the %d before it; the damaged file is "
        "kept as %s.",
        journal,
        len(whole) + 1,
        len(whole),
        copy,
    )


def _is_entry(line: bytes) -> bool:
    try:
        return line.endswith(b"\n") and "op_code" in json.loads(line)
    except (ValueError, TypeError, RecursionError):
        return False


def build_pruner(described: Mapping[str, object] | None) -> "BasePruner":
    """Return the pruner that a configuration describes, or one that never prunes."""
    from optuna.pruners import BasePruner, NopPruner

    pruner = built("hydra.sweeper.pruner", described) if described else NopPruner()
    assert isinstance(pruner, BasePruner)
    return pruner


# ---- Evaluations of a job ----


class JobProgress(TrainerCallback):
    """Records the objective at each evaluation during training, and ends the run if the search prunes it.

    ``rename_metrics`` renames the metrics of an evaluation to their names in the metrics of the whole run.
    """

    def __init__(self, job: SweepJob, rename_metrics: Callable[[Mapping[str, float]], Mapping[str, float]]) -> None:
        if job.trial is not None:
            _judge_storage(job.trial["storage"], job.folder)
        self.job = job
        self._seconds_before = job.seconds
        self.rename_metrics = rename_metrics
        self._trial: Trial | None = None
        self._is_training = False

    @override
    def on_train_begin(
        self, args: HFTrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        self._is_training = True
        # A resumed run repeats the evaluations after its checkpoint.
        self.job.evaluations = [pair for pair in self.job.evaluations if pair[0] <= state.global_step]

    @override
    def on_train_end(
        self, args: HFTrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        self._is_training = False

    @override
    def on_evaluate(
        self,
        args: HFTrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: Mapping[str, float] | None = None,
        **kwargs: object,
    ) -> None:
        name = next(iter(self.job.goals), "")
        found = self.rename_metrics(metrics or {})
        if not self._is_training or name not in found:
            return
        value = float(found[name])
        is_pruned = [False]
        if state.is_world_process_zero:
            self.job.evaluations.append([state.global_step, value])
            self._write()
            # After its last evaluation a run has nothing left to save.
            is_pruned = [self._report(value) and state.global_step < state.max_steps]
        if self.job.trial is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.broadcast_object_list(is_pruned)
        if is_pruned[0]:
            raise JobPruned

    @override
    def on_save(
        self, args: HFTrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        self._write()

    def _write(self) -> None:
        # A process that is killed does not record how long it ran.
        self.job.seconds = self._seconds_before + time.time() - self.job.started
        self.job.write()

    def _report(self, value: float) -> bool:
        if self.job.trial is None or len(self.job.goals) > 1:
            return False  # Optuna does not prune with several objectives
        if self._trial is None:
            self._trial = _open_trial(self.job)
        known = self._trial.study.get_trials(deepcopy=False)[self.job.number]
        if known.state.is_finished():
            return False  # a run that somebody resumed after the search
        # Numbered by evaluation: steps differ with the batch size, and pruners compare equal steps.
        number = len(self.job.evaluations)
        if number not in known.intermediate_values:
            self._trial.report(value, number)
        return bool(self._trial.should_prune())


def _judge_storage(address: str, folder: Path) -> None:
    """Refuse a storage in ``job.json`` that is neither a file of the sweep nor the one that the user's command names.

    Raises:
        InputError: If it would be a file elsewhere, or a server.
    """
    if get_storage_digest(cast(DictConfig, HydraConfig.get())) == digest_of_address(address):
        return
    sweep = next((parent for parent in folder.parents if (parent / SWEEP_CONFIG).is_file()), folder.parent)
    file = address.removeprefix("sqlite:///")
    is_plain = file.isprintable() and "://" not in file and (file == address or "?" not in file)
    if is_plain and Path(file).resolve().parent == sweep.resolve():
        return
    with from_folder(folder / JOB_FILE, advice="name it in the command, by hydra.sweeper.storage, or remove the file"):
        refuse_in_folder(f"the storage {hide_password(address)!r} outside of the sweep", "opened")


def _restore_pruner(job: SweepJob) -> "BasePruner":
    """Return the pruner that ``job.json`` describes: one of Optuna's, or the one that the user's command names."""
    import optuna

    for name in optuna.pruners.__all__:
        if isinstance(kind := getattr(optuna.pruners, name), type):
            data_only(kind, f"optuna.pruners.{name}")
    if chosen := get_pruner_path(cast(DictConfig, HydraConfig.get())):
        data_only(import_target(f"hydra.sweeper.pruner.{TARGET}", chosen), chosen)
    assert job.trial is not None
    with from_folder(
        job.folder / JOB_FILE, advice="name it in the command, by hydra.sweeper.pruner, or remove the file"
    ):
        return build_pruner(job.trial["pruner"])


def _open_trial(job: SweepJob) -> "Trial":
    """Return the trial that a sweeper described in ``SweepJob.trial``."""
    import optuna

    described = job.trial
    assert described is not None
    pruner = _restore_pruner(job)
    try:
        study: Study = optuna.load_study(
            study_name=described["study"],
            storage=open_storage(described["storage"]),
            sampler=optuna.samplers.RandomSampler(),  # the sweeper has drawn the values
            pruner=pruner,
        )
    except KeyError as error:
        raise InputError(
            f"{job.folder / JOB_FILE} names the study {described['study']!r}, which its storage does not have; remove "
            "the file to run without the study."
        ) from error
    return optuna.trial.Trial(study, described["id"])
