"""AllenNLP's checkpoints: a file of weights and a file of training state for each."""

import re
import time
import warnings
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from portico.gradient_descent.errors import ConfigurationError
from portico.gradient_descent.files import replace_file
from portico.gradient_descent.registry import Registrable
from portico.gradient_descent.retention import Retention
from portico.gradient_descent.trainer import Trainer, TrainerCheckpoint
from portico.hf_compat import safe_globals

_MODEL_FILE = re.compile(r"model_state_e(\d+)_b(\d+)\.th")
_UNSET: Any = object()


class Checkpointer(Registrable):
    """Decides when a checkpoint is written, writes it, and removes older ones.

    A checkpoint is the pair ``model_state_e{E}_b{B}.th`` and ``training_state_e{E}_b{B}.th``: after ``E`` whole epochs
    and ``B`` optimizer steps of the next. The names of AllenNLP 1 are accepted for the arguments of AllenNLP 2.

    Args:
        serialization_dir: Folder of the checkpoints; without one nothing is written.
        save_completed_epochs: Write at the end of each epoch.
        save_every_num_seconds: Write also in mid-epoch, after so many seconds. Older name: ``model_save_interval``.
        save_every_num_batches: Write also in mid-epoch, after so many optimizer steps.
        keep_most_recent_by_count: How many checkpoints to keep; ``None`` for all that the age does not end. Older
            name: ``num_serialized_models_to_keep``, where -1 means all.
        keep_most_recent_by_age: Seconds to keep a checkpoint, beside those kept by count.
        keep_serialized_model_every_num_seconds: Keep one for good every so many seconds.
        num_serialized_models_to_keep: See ``keep_most_recent_by_count``.
        model_save_interval: See ``save_every_num_seconds``.

    Raises:
        ConfigurationError: If an interval or a number of checkpoints is not allowed.
    """

    default_implementation = "default"

    def __init__(
        self,
        serialization_dir: str | None = None,
        save_completed_epochs: bool = True,
        save_every_num_seconds: float | None = None,
        save_every_num_batches: int | None = None,
        keep_most_recent_by_count: int | None = 2,
        keep_most_recent_by_age: float | None = None,
        keep_serialized_model_every_num_seconds: float | None = None,
        num_serialized_models_to_keep: int | None = _UNSET,
        model_save_interval: float | None = _UNSET,
    ) -> None:
        if num_serialized_models_to_keep is not _UNSET:
            _deprecated("num_serialized_models_to_keep", "keep_most_recent_by_count")
            keep_most_recent_by_count = None if num_serialized_models_to_keep == -1 else num_serialized_models_to_keep
        if model_save_interval is not _UNSET:
            _deprecated("model_save_interval", "save_every_num_seconds")
            save_every_num_seconds = model_save_interval
        for name, value, least in (
            ("save_every_num_seconds", save_every_num_seconds, 0),
            ("save_every_num_batches", save_every_num_batches, 1),
            ("keep_most_recent_by_count", keep_most_recent_by_count, 0),
            ("keep_most_recent_by_age", keep_most_recent_by_age, 0),
        ):
            if value is not None and (not isinstance(value, int | float) or value < least):
                raise ConfigurationError(
                    f"`{name}={value!r}` of the checkpointer cannot be used; set it to {least} or more, or to None."
                )
        self.serialization_dir = None if serialization_dir is None else Path(serialization_dir)
        self._save_completed_epochs = save_completed_epochs
        self._save_every_num_seconds = save_every_num_seconds
        self._save_every_num_batches = save_every_num_batches
        self._retention = Retention(
            keep_most_recent_by_count, keep_most_recent_by_age, keep_serialized_model_every_num_seconds
        )
        self._last_save_time = time.time()
        self._last_save = (0, 0)

    def check_processes(self, num_processes: int) -> None:
        """Refuse to save by the clock, which every process reads for itself, where several must save together.

        Raises:
            ConfigurationError: If there are several processes.
        """
        if num_processes > 1 and self._save_every_num_seconds is not None:
            raise ConfigurationError(
                f"`save_every_num_seconds={self._save_every_num_seconds}` of the checkpointer is not supported in "
                "distributed training; set `save_every_num_batches`."
            )

    def maybe_save_checkpoint(
        self, trainer: Trainer, num_epochs_completed: int, num_batches_in_epoch_completed: int
    ) -> bool:
        """Write a checkpoint if it is time; tell whether one was written.

        Args:
            trainer: Whose state is written.
            num_epochs_completed: Whole epochs that are behind.
            num_batches_in_epoch_completed: Optimizer steps of the present epoch; 0 at the end of an epoch.
        """
        if not self._is_due(num_epochs_completed, num_batches_in_epoch_completed):
            return False
        self.save_checkpoint(trainer)
        return True

    def save_checkpoint(self, trainer: Trainer) -> None:
        """Write a checkpoint now, and remove those that are no longer kept; nothing without a folder."""
        with trainer.get_checkpoint_state() as (model_state, trainer_state):
            point = (trainer_state["epochs_completed"], trainer_state["batches_in_epoch_completed"])
            if self.serialization_dir is not None and trainer.is_primary:
                # The training state last: a checkpoint counts once it is there.
                for path, state in zip(self._paths(point), (model_state, trainer_state), strict=True):
                    with replace_file(path) as staging:
                        torch.save(state, staging)
                self._remove_superfluous()
        self._last_save_time = time.time()
        self._last_save = point

    def find_latest_checkpoint(self) -> tuple[str, str] | None:
        """Return the two files of the latest checkpoint; ``None`` where there is none."""
        points = self._points()
        if not points:
            return None
        model_path, training_path = self._paths(points[-1])
        return str(model_path), str(training_path)

    def load_checkpoint(self) -> TrainerCheckpoint | None:
        """Return the states of the latest checkpoint, on the CPU; ``None`` where there is none.

        Raises:
            ConfigurationError: If a file of it cannot be read.
        """
        paths = self.find_latest_checkpoint()
        if paths is None:
            return None
        try:
            with safe_globals():
                states = [torch.load(path, map_location="cpu", weights_only=True) for path in paths]
        except (RuntimeError, EOFError, UnpicklingError) as error:
            reason = str(error).partition(".")[0]
            raise ConfigurationError(
                f"Could not recover training from the checkpoint {paths[1]} ({reason}): a file of it is damaged, or a "
                "callback keeps something else than tensors and plain values in its state. Delete its two files to go "
                "on from the checkpoint before, or specify another serialization directory."
            ) from error
        return TrainerCheckpoint(*states)

    def _is_due(self, num_epochs: int, num_batches: int) -> bool:
        last_epochs, last_batches = self._last_save
        batches_since = num_batches - (last_batches if last_epochs == num_epochs else 0)
        seconds, batches = self._save_every_num_seconds, self._save_every_num_batches
        return (
            (num_batches == 0 and self._save_completed_epochs)
            or (seconds is not None and time.time() - self._last_save_time >= seconds)
            or (batches is not None and batches_since >= batches)
        )

    def _paths(self, point: tuple[int, int]) -> tuple[Path, Path]:
        assert self.serialization_dir is not None
        suffix = f"e{point[0]}_b{point[1]}.th"
        return self.serialization_dir / f"model_state_{suffix}", self.serialization_dir / f"training_state_{suffix}"

    def _points(self) -> list[tuple[int, int]]:
        """Return the whole checkpoints on disk, the oldest first."""
        if self.serialization_dir is None or not self.serialization_dir.is_dir():
            return []
        matches = (_MODEL_FILE.fullmatch(path.name) for path in self.serialization_dir.iterdir())
        points = sorted((int(match[1]), int(match[2])) for match in matches if match is not None)
        return [point for point in points if self._paths(point)[1].is_file()]

    def _remove_superfluous(self) -> None:
        written = [(point, self._paths(point)[1].stat().st_mtime) for point in self._points()]
        for point in self._retention.superfluous(written):
            # The training state first, so that no half of a checkpoint counts as one.
            for path in reversed(self._paths(point)):
                path.unlink()


def _deprecated(older: str, newer: str) -> None:
    warnings.warn(
        f"`{older}` of the checkpointer is called `{newer}` now; the older name still works.",
        FutureWarning,
        stacklevel=3,
    )


Checkpointer.register("default")(Checkpointer)
