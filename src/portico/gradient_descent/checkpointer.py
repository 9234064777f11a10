"""AllenNLP's checkpoints: when they are written, what they contain, and which are kept.

A checkpoint is a pair of files, ``model_state_e{E}_b{B}.th`` (the weights, or their moving averages) and
``training_state_e{E}_b{B}.th`` (everything else), after ``E`` whole epochs and ``B`` optimizer steps of the next.
"""

import logging
import re
import time
import warnings
from dataclasses import InitVar, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from torch import nn

from portico.checkpoint.manifest import DAMAGE
from portico.compat.transformers import safe_globals
from portico.errors import printable, reason_of
from portico.gradient_descent.construction import ConfigurationError, Registrable
from portico.trust.files import load_tensors, save_tensors

if TYPE_CHECKING:
    from portico.gradient_descent.trainer import RegistrableTrainer

logger = logging.getLogger(__name__)

_MODEL_FILE = re.compile(r"model_state_e(\d+)_b(\d+)\.th")
# What only a run leaves behind, AllenNLP's or Hugging Face's.
BEST_WEIGHTS = "best.th"
_SIGNS_OF_A_RUN = ("*model_state_*.th", BEST_WEIGHTS, "metrics*.json", "checkpoint-*", "trainer_state.json")
# Smallest values of the checkpointer's arguments.
_LEAST = {
    "save_every_num_seconds": 0,
    "save_every_num_batches": 1,
    "keep_most_recent_by_count": 0,
    "keep_most_recent_by_age": 0,
}
_UNSET: Any = object()


class TrainerCheckpoint(NamedTuple):
    """The content of a checkpoint: the weights (or their moving averages), and everything else needed to resume.

    AllenNLP 2's checkpointers take the tuple; AllenNLP 1's enter it as a context, which yields the tuple.
    """

    model_state: dict[str, Any]
    trainer_state: dict[str, Any]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass


@dataclass(eq=False, repr=False)
class Checkpointer(Registrable):
    """Decides when a checkpoint is written, writes it, and removes older ones.

    Argument names of AllenNLP 1 and of AllenNLP 2 are accepted.

    Args:
        serialization_dir: Folder of the checkpoints; without one nothing is written.
        save_completed_epochs: Write at the end of each epoch.
        save_every_num_seconds: Also write within an epoch, at this interval. Older name: ``model_save_interval``.
        save_every_num_batches: Also write within an epoch, after this many optimizer steps.
        keep_most_recent_by_count: Number of checkpoints to keep; ``None`` for all that their age does not expire.
            Older name: ``num_serialized_models_to_keep``, where -1 means all.
        keep_most_recent_by_age: Seconds to keep a checkpoint, in addition to those kept by count.
        keep_serialized_model_every_num_seconds: Keep one permanently at this interval.
        num_serialized_models_to_keep: See ``keep_most_recent_by_count``.
        model_save_interval: See ``save_every_num_seconds``.

    Raises:
        ConfigurationError: If an interval or a number of checkpoints is not allowed.
    """

    default_implementation = "default"

    serialization_dir: str | Path | None = None
    save_completed_epochs: bool = True
    save_every_num_seconds: float | None = None
    save_every_num_batches: int | None = None
    keep_most_recent_by_count: int | None = 2
    keep_most_recent_by_age: float | None = None
    keep_serialized_model_every_num_seconds: float | None = None
    num_serialized_models_to_keep: InitVar[int | None] = _UNSET
    model_save_interval: InitVar[float | None] = _UNSET

    def __post_init__(self, num_serialized_models_to_keep: int | None, model_save_interval: float | None) -> None:
        if num_serialized_models_to_keep is not _UNSET:
            _warn_deprecated("num_serialized_models_to_keep", "keep_most_recent_by_count")
            count = num_serialized_models_to_keep
            self.keep_most_recent_by_count = None if count == -1 else count
        if model_save_interval is not _UNSET:
            _warn_deprecated("model_save_interval", "save_every_num_seconds")
            self.save_every_num_seconds = model_save_interval
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int | float) or value < least):
                raise ConfigurationError(
                    f"`{name}={value!r}` of the checkpointer cannot be used; set it to {least} or more, or to None."
                )
        self.serialization_dir = None if self.serialization_dir is None else Path(self.serialization_dir)
        self._permanent: set[tuple[int, int]] = set()
        self._last_permanent = self._last_save_time = time.time()
        self._last_save = (0, 0)

    def check_processes(self, num_processes: int) -> None:
        """Raise ``ConfigurationError`` if several processes, which must save together, would save by the clock."""
        if num_processes > 1 and self.save_every_num_seconds is not None:
            raise ConfigurationError(
                f"`save_every_num_seconds={self.save_every_num_seconds}` of the checkpointer is not supported in "
                "distributed training; set `save_every_num_batches`."
            )

    def maybe_save_checkpoint(
        self, trainer: "RegistrableTrainer", num_epochs_completed: int, num_batches_in_epoch_completed: int
    ) -> bool:
        """Write a checkpoint of ``trainer`` if one is due; return whether one was written.

        ``num_batches_in_epoch_completed`` are optimizer steps of the current epoch, 0 at the end of one.
        """
        last_epochs, last_batches = self._last_save
        batches_since = num_batches_in_epoch_completed - (last_batches if last_epochs == num_epochs_completed else 0)
        seconds = self.save_every_num_seconds
        batches = self.save_every_num_batches
        is_due = (
            (num_batches_in_epoch_completed == 0 and self.save_completed_epochs)
            or (seconds is not None and time.time() - self._last_save_time >= seconds)
            or (batches is not None and batches_since >= batches)
        )
        if is_due:
            self.save_checkpoint(trainer)
        return is_due

    def save_checkpoint(self, trainer: "RegistrableTrainer") -> None:
        """Write a checkpoint now, and remove those that are no longer kept; do nothing without a folder."""
        # Processes that do not save take part in collecting the states, and count the steps too.
        states = trainer.get_checkpoint_state()
        point = (trainer.progress.epochs_completed, trainer.progress.batches_in_epoch_completed)
        if self.serialization_dir is not None and states is not None:
            # The training state last: without it a checkpoint does not count.
            for path, state in zip(self._paths(point), states, strict=True):
                save_tensors(state, path)
            self._remove_expired()
        self._last_save_time = time.time()
        self._last_save = point

    def find_latest_checkpoint(self) -> tuple[str, str] | None:
        """Return the two files of the latest checkpoint, or ``None``."""
        points = self._points()
        if not points:
            return None
        model_path, training_path = self._paths(points[-1])
        return str(model_path), str(training_path)

    def load_checkpoint(self) -> TrainerCheckpoint | None:
        """Return the states of the latest checkpoint, on the CPU, or ``None``.

        Raises:
            ConfigurationError: If one of its files cannot be read.
        """
        paths = self.find_latest_checkpoint()
        if paths is None:
            return None
        try:
            with safe_globals():
                states = [load_tensors(Path(path), map_location="cpu") for path in paths]
        except (*DAMAGE, RuntimeError) as error:
            reason = printable(str(error).partition(".")[0])
            raise ConfigurationError(
                f"Could not recover training from the checkpoint {paths[1]} ({reason}): one of its files is damaged, "
                "or a callback keeps something other than tensors and plain values in its state. Delete its two files "
                "to resume from the checkpoint before, or specify another serialization directory."
            ) from error
        return TrainerCheckpoint(*states)

    def _paths(self, point: tuple[int, int]) -> tuple[Path, Path]:
        assert self.serialization_dir is not None
        folder = Path(self.serialization_dir)
        suffix = f"e{point[0]}_b{point[1]}.th"
        return folder / f"model_state_{suffix}", folder / f"training_state_{suffix}"

    def _points(self) -> list[tuple[int, int]]:
        """Return the complete checkpoints on disk, the oldest first."""
        if self.serialization_dir is None or not Path(self.serialization_dir).is_dir():
            return []
        matches = (_MODEL_FILE.fullmatch(path.name) for path in Path(self.serialization_dir).iterdir())
        points = sorted((int(match[1]), int(match[2])) for match in matches if match is not None)
        return [point for point in points if self._paths(point)[1].is_file()]

    def _remove_expired(self) -> None:
        """Remove the checkpoints that are kept neither by count, nor by age, nor permanently."""
        count = self.keep_most_recent_by_count
        age = self.keep_most_recent_by_age
        if count is None and age is None:
            return
        every = self.keep_serialized_model_every_num_seconds
        points = self._points()
        now = time.time()
        for index, point in enumerate(points):
            model_path, training_path = self._paths(point)
            written = training_path.stat().st_mtime
            if index >= len(points) - (count or 0) or (age is not None and now - written <= age):
                continue
            if point not in self._permanent and every is not None and written - self._last_permanent > every:
                self._permanent.add(point)
                self._last_permanent = written
            if point not in self._permanent:
                # The training state first, so that half a checkpoint never counts as one.
                training_path.unlink()
                model_path.unlink()


Checkpointer.register("default")(Checkpointer)


class BestWeights:
    """Keeps the best weights of a training until its end: in ``best.th`` of a folder, or in memory without one."""

    def __init__(self, folder: Path | None) -> None:
        self.path = None if folder is None else folder / BEST_WEIGHTS
        self._in_memory: dict[str, Any] | None = None

    @property
    def exist(self) -> bool:
        return self._in_memory is not None if self.path is None else self.path.is_file()

    def save(self, model: nn.Module, *, is_primary: bool) -> None:
        """Keep the weights of ``model``; only the first process writes the file."""
        if self.path is None:
            self._in_memory = {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}
        elif is_primary:
            save_tensors(model.state_dict(), self.path)

    def load(self, model: nn.Module) -> None:
        if self.path is None:
            assert self._in_memory is not None, "weights have been kept"
            model.load_state_dict(self._in_memory)
            return
        try:
            model.load_state_dict(load_tensors(self.path, map_location="cpu"))
        except (*DAMAGE, RuntimeError) as error:
            raise ConfigurationError(
                f"{self.path} has no weights of this model ({reason_of(error)}); restore the file, or delete it "
                "to end with the weights of the last epoch."
            ) from error


def check_folder(folder: Path | None) -> None:
    """Raise ``ConfigurationError`` if ``folder`` holds a run that cannot be resumed."""
    if folder is None or not folder.is_dir():
        return
    signs = sorted(path.name for pattern in _SIGNS_OF_A_RUN for path in folder.glob(pattern))
    if signs:
        raise ConfigurationError(
            f"The serialization directory {folder} already holds a run ({', '.join(signs[:3])}), but no checkpoint "
            "that training can resume from. Specify another directory to write to, or delete the existing one."
        )


def _warn_deprecated(older: str, newer: str) -> None:
    message = f"`{older}` of the checkpointer is called `{newer}` now; the older name still works."
    # The caller of the constructor, which calls `__post_init__`, which calls this.
    warnings.warn(message, FutureWarning, stacklevel=4)
