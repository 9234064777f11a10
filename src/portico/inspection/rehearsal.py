"""The rehearsal of a training in its script: an observer that takes each ``train()`` through every stage of a run.

It first runs the training itself for a few steps, for their time. Then ``train()`` runs over a short epoch: the
longest examples and what the last, shorter window of a real epoch has. In its second pass it evaluates, logs and saves
once, and after one more step, which a resumed run repeats, it saves again and ends as a real run does.
"""

import errno
import logging
import math
import os
import sys
import time
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import huggingface_hub
import numpy as np
import psutil
import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import distributed, nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments, set_seed
from typing_extensions import override

from portico.data.sharding import BatchSamplerShard
from portico.inspection.causes import explain_fault, explain_missing_login, find_value_without_json
from portico.inspection.data_check import Examined, ModelLimits, examine_data, kept_random_states, length_of
from portico.inspection.findings import (
    FAILED,
    REHEARSED,
    RESUMED,
    SKIPPED,
    Fingerprint,
    Forecast,
    Rehearsed,
    Repeated,
    Stage,
)
from portico.inspection.memory import PeakMemory, device_memory
from portico.observers import ObservedEvaluation, ObservedTrainer, Observer, observe
from portico.trust.disk import copy_file

if TYPE_CHECKING:
    from portico.trainer import Trainer

FIRST_STEPS, LONGEST, LAST_WINDOW = "first steps", "longest examples", "end of an epoch"
EVALUATION, LOG, CHECKPOINT, RESUME = "evaluation", "log", "checkpoint", "resume"
ROTATION, BEST_MODEL, FINAL_SAVE = "rotation", "best model and end", "final save"
MODEL_CARD, LOGIN, REST, DATA, SCRIPT = "model card", "login", "rest of the script", "data", "start of the script"
# The steps that are timed: until they have taken this long, or are this many; processes cannot agree on a time.
_SECONDS_OF_STEPS, _MOST_STEPS, _STEPS_IN_PROCESSES = 4.0, 30, 8
_TIMED_BATCHES = 5  # of an evaluation, from its start
_MOST_READ = 2000  # examples whose length is read without the check of the data


class ResumeCompared(SystemExit):
    """Ends the script of a resumed run after the step that is compared."""


@dataclass
class Settings:
    """How a process takes part in a rehearsal."""

    folder: str
    checks_data: bool = True
    num_rows: int = 10_000
    """Examples of a stream that are read."""
    redirects: bool = False
    """Whether output folders are replaced, since the system does not keep writes apart."""
    is_of_transformers: bool = False
    """Whether the script imports the trainer of transformers, under which it may run too."""
    is_inside: bool = False
    """Whether the process goes on after a resume, as a notebook does."""
    resumes: dict[str, Any] | None = None
    """Checkpoint, rows and steps of the training that this process resumes."""
    begun: float = 0.0


class Rehearsal(Observer):
    """Rehearses the trainings of this process, and writes down what fails."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.folder = Path(settings.folder)
        self.record = Rehearsed(begun=time.time(), device_memory=device_memory())
        self._name = f"{RESUMED if settings.resumes else REHEARSED}-{os.getpid()}"
        self._memory = PeakMemory()
        self._begun: tuple[str, float] | None = None
        self._is_inside = False
        self.uploads = False  # whether the script would upload the model
        self._num_trainings = 0
        self._num_trials = 1  # of the search whose first trial is rehearsed
        self._lengths: dict[int, list[int]] = {}
        self._evaluations: list[LimitedEvaluation] = []
        self.epoch: ShortEpoch | None = None
        self.output_dirs: dict[str, str] = {}  # of the script, by what replaces them
        self.watches = ExitStack()  # of warnings and of single steps; they end with the training
        self._trained_until: float | None = None
        self._skipped_seconds = 0.0  # of limited evaluations after training
        self._told: list[BaseException] = []
        self.begin(SCRIPT)
        self.watches.enter_context(_hearing_warnings(self.record.warnings))

    # ---- Stages ----

    def begin(self, name: str) -> None:
        self._begun = (name, time.perf_counter())
        self._memory.begin()
        self.record.current = name
        self.save()

    def finish(self, result: str = "passed", note: str = "") -> None:
        """End the stage that is running, if one is."""
        if self._begun is None:
            return
        name, start = self._begun
        _wait_for_device()
        seconds = time.perf_counter() - start
        self.record.stages.append(Stage(name, result, seconds, self._memory.peak(), note))
        self._begun = None
        self.record.current = ""
        self.save()

    def fail(self, error: BaseException, trainer: "Trainer | None" = None) -> None:
        """End the stage that is running with an error, and write down its cause."""
        name = self._begun[0] if self._begun else SCRIPT
        if isinstance(error, OSError) and error.errno == errno.EXDEV:
            # An overlay for users without privileges cannot rename a folder of the disk below.
            self.finish(SKIPPED, "an older folder cannot be moved in a rehearsal")
            return
        if not any(error is told for told in self._told):
            self._told.append(error)
            said = explain_fault(error, name, trainer).replace(f"{self.folder}/", "")
            self.record.add_fault(name, said)
        self.finish(FAILED)

    @contextmanager
    def stage(self, name: str, trainer: "Trainer") -> Iterator[None]:
        """Rehearse a stage in the block; its errors are written down and do not end the rehearsal."""
        self.begin(name)
        try:
            yield
        except Exception as error:
            if type(error).__name__ == "TrialPruned":  # as a search may end any trial
                self.finish(note="the trial is pruned")
                return
            self.fail(error, trainer)
        else:
            self.finish()

    def skip(self, name: str, why: str) -> None:
        self.record.stages.append(Stage(name, SKIPPED, note=why))

    def save(self) -> None:
        with suppress(FileNotFoundError):  # the rehearsal was ended, and its folder removed
            self.record.save(self.folder, self._name)

    def close(self) -> None:
        """End the stage that is running, and stop measuring."""
        self.finish()
        self._memory.end()

    # ---- The script ----

    @override
    def on_arguments_init(self, args: object) -> None:
        given: Any = args
        self._hold_uploads(given)
        if self.settings.redirects and not str(given.output_dir).startswith(str(self.folder)):
            self.redirect(given)

    @override
    def on_trainer_init(self, trainer: ObservedTrainer) -> None:
        self._hold_uploads(trainer.args)

    def _hold_uploads(self, args: Any) -> None:
        if args.push_to_hub:
            self.uploads = True
            args.push_to_hub = False

    def warn_of_upload(self, url: str) -> None:
        """Say where the script ends, since it would change something."""
        sentence = (
            f"A rehearsal changes nothing at {url}, so the script ended there, in the stage "
            f"'{self.record.current or REST}', and nothing after it was tried."
        )
        self.record.warnings.append(sentence)
        print(f"[portico] {sentence}", file=sys.stderr)

    def redirect(self, args: Any) -> None:
        """Let a training write into the folder of the rehearsal."""
        number = f"{zlib.crc32(str(args.output_dir).encode()):08x}"
        kind = "resumed-output" if self.settings.resumes else "output"
        replacing = str(self.folder / kind / number / Path(args.output_dir).name)
        self.output_dirs[replacing] = str(args.output_dir)
        args.output_dir = replacing

    @override
    def on_search(self, trainer: ObservedTrainer, num_trials: "int | None") -> "int | None":
        self._num_trials = num_trials or 1
        if num_trials is None:
            self.record.warnings.append("The search sets no number of trials, so the forecast covers one trial.")
        return 1

    @override
    def on_train(self, trainer: ObservedTrainer, checkpoint: "str | bool | None") -> "str | bool | None":
        if self._is_inside:
            return checkpoint
        known: Any = trainer
        self._hold_uploads(trainer.args)  # which the script may have asked for since
        self.record.rank = trainer.args.process_index
        if self.settings.resumes is not None:
            return self._resume(known)
        self._num_trainings += 1
        self.finish()
        if self._num_trainings == 1:
            self.record.startup_seconds = time.time() - self.settings.begun
        return self._rehearse(known, checkpoint)

    def _rehearse(self, trainer: "Trainer", checkpoint: "str | bool | None") -> "str | bool | None":
        output_dir = self.output_dirs.get(trainer.args.output_dir, trainer.args.output_dir)
        forecast = Forecast(output_dir=str(Path(output_dir).absolute()))
        if trainer._portico.trial is not None:
            forecast.num_trials = self._num_trials
        self.record.forecasts.append(forecast)
        if self.settings.checks_data:
            self.begin(DATA)
            self._check_data(trainer)
            self.finish(FAILED if any(fault.stage == DATA for fault in self.record.faults) else "passed")
        self._run_first_steps(trainer, checkpoint, forecast)
        epoch = ShortEpoch.of(trainer, self._lengths_of(trainer.train_dataset))
        for callback in list(trainer.callback_handler.callbacks):
            if isinstance(callback, RehearsedRun):  # of an earlier training
                trainer.remove_callback(callback)
        epoch.apply(trainer)
        self.epoch = epoch
        self.record.rows = self.record.rows or epoch.rows
        trainer.add_callback(RehearsedRun(self, trainer, forecast, epoch))
        self.begin(LONGEST)
        return None

    def _run_first_steps(self, trainer: "Trainer", checkpoint: "str | bool | None", forecast: Forecast) -> None:
        """Run the training as it is for a few steps, and count what the whole of it would do."""
        first = FirstSteps(trainer, forecast)
        trainer.add_callback(first)
        self.begin(FIRST_STEPS)
        self._is_inside = True
        try:
            trainer.train(resume_from_checkpoint=checkpoint, trial=trainer._portico.trial)
        except Exception as error:
            self.fail(error, trainer)
            self._try_the_rest(trainer)
        else:
            self.finish(note=f"{first.num_steps} steps")
        finally:
            self._is_inside = False
            trainer.remove_callback(first)

    def _try_the_rest(self, trainer: "Trainer") -> None:
        """Evaluate and save although no step could be made, since these may have faults of their own."""
        if trainer.eval_dataset is not None and trainer.args.eval_strategy != "no":
            with self.stage(EVALUATION, trainer):
                trainer.evaluate()
        with self.stage(FINAL_SAVE, trainer):
            trainer.save_model(str(self.folder / "final"))

    def _resume(self, trainer: "Trainer") -> str:
        resumes = self.settings.resumes or {}
        self.finish()
        epoch = ShortEpoch(resumes["rows"], resumes["max_steps"] - 2)
        epoch.apply(trainer)
        trainer.add_callback(ResumedRun(self, trainer))
        self.begin(RESUME)
        return str(resumes["checkpoint"])

    def end_script(self) -> None:
        """Complete the record at the end of the process."""
        self.finish()
        if self._trained_until is not None:
            self.record.other_seconds = time.perf_counter() - self._trained_until + self._skipped_seconds
        self.record.is_complete = True
        if self._num_trainings or self.settings.resumes or self.record.faults:
            self.save()

    def end_training(self) -> None:
        self._trained_until = time.perf_counter()
        self._skipped_seconds = 0.0
        self.begin(REST)

    # ---- Data ----

    def _check_data(self, trainer: "Trainer") -> None:
        if trainer.args.process_index:
            return
        limits = ModelLimits.of(trainer.model)
        sets: dict[str, Callable[[], Any]] = {"train_dataset": trainer.get_train_dataloader}
        named = trainer.eval_dataset if isinstance(trainer.eval_dataset, dict) else {}
        if trainer.eval_dataset is not None and not named:
            sets["eval_dataset"] = trainer.get_eval_dataloader
        for key in named:
            sets[f"eval_dataset[{key!r}]"] = partial(trainer.get_eval_dataloader, key)
        for name, make_loader in sets.items():
            try:
                loader = make_loader()
            except Exception as error:
                self.record.add_fault(DATA, explain_fault(error, DATA, trainer))
                continue
            examined = examine_data(name, loader, limits, num_rows=self.settings.num_rows)
            self._keep_lengths(trainer, name, loader, examined)
            for sentence in examined.faults():
                self.record.add_fault(DATA, sentence)
            self.record.warnings += examined.warnings()
        misplaced = _find_answers_elsewhere(trainer)
        if misplaced is not None:
            self.record.add_fault(DATA, misplaced)

    def _keep_lengths(self, trainer: "Trainer", name: str, loader: Any, examined: Examined) -> None:
        datasets = trainer.eval_dataset if isinstance(trainer.eval_dataset, dict) else {"": trainer.eval_dataset}
        given = trainer.train_dataset if name == "train_dataset" else None
        for key, dataset in datasets.items():
            if name in ("eval_dataset", f"eval_dataset[{key!r}]"):
                given = dataset
        for dataset in (given, getattr(loader, "dataset", None)):
            self._lengths[id(dataset)] = examined.lengths

    def _lengths_of(self, dataset: object) -> list[int]:
        """Return the length of each example, as far as they are known: of the first ones without a check of all."""
        known = self._lengths.get(id(dataset))
        if known is None:
            known = []
            if isinstance(dataset, Sized) and hasattr(dataset, "__getitem__"):
                with suppress(Exception):  # a stage says what is wrong with an example
                    known = [length_of(dataset[index]) for index in range(min(len(dataset), _MOST_READ))]
            self._lengths[id(dataset)] = known
        if distributed.is_available() and distributed.is_initialized():
            shared = [known]
            distributed.broadcast_object_list(shared, src=0)
            known = shared[0]
        return known

    # ---- Evaluations ----

    @override
    def on_evaluation(self, session: ObservedEvaluation) -> None:
        dataset = getattr(session.loader, "dataset", None)
        self._evaluations.append(LimitedEvaluation(session, self._lengths_of(dataset), self))

    def end_evaluation(self) -> "LimitedEvaluation | None":
        """Return the innermost evaluation, which has ended."""
        if not self._evaluations:
            return None
        ended = self._evaluations.pop()
        ended.end()
        if self._trained_until is not None:
            self._skipped_seconds += ended.seconds - ended.measured
        return ended

    def note_batch(self) -> None:
        if self._evaluations:
            self._evaluations[-1].note_batch()


# ---- A training for a few steps ----


class FirstSteps(TrainerCallback):
    """Times the first steps of a training and stops it; nothing is evaluated or saved in them."""

    def __init__(self, trainer: "Trainer", forecast: Forecast) -> None:
        self._forecast = forecast
        self._ends: list[float] = []
        self._is_shared = trainer.args.world_size > 1

    @property
    def num_steps(self) -> int:
        return len(self._ends)

    @override
    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        count_repetitions(self._forecast, args, state)

    @override
    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        _wait_for_device()
        self._ends.append(time.perf_counter())
        _do_nothing_else(control)
        first, last = self._ends[0], self._ends[-1]
        number = len(self._ends)
        if number > 1:
            self._forecast.step_seconds = (last - first) / (number - 1)
        is_enough = number >= _STEPS_IN_PROCESSES if self._is_shared else last - first > _SECONDS_OF_STEPS
        control.should_training_stop = number > 1 and (is_enough or number >= _MOST_STEPS)

    @override
    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        _do_nothing_else(control)


def count_repetitions(forecast: Forecast, args: TrainingArguments, state: TrainerState) -> None:
    """Count the evaluations and checkpoints of a whole run, as transformers' ``DefaultFlowCallback`` asks for them."""
    forecast.num_steps = state.max_steps
    epochs = math.ceil(args.num_train_epochs if args.max_steps <= 0 else state.num_train_epochs)
    if epochs > state.max_steps:  # of a stream, whose passes nobody knows
        epochs = 1
    for kind, strategy, every in (
        (EVALUATION, args.eval_strategy, state.eval_steps),
        (CHECKPOINT, args.save_strategy, state.save_steps),
    ):
        if strategy == "epoch":
            times = epochs
        else:
            times = math.ceil(state.max_steps / every) if every and strategy != "no" else 0
        forecast.repeated.append(Repeated(kind, times, 0.0))
    evaluations, checkpoints = forecast.repeated
    if args.save_strategy == "best":
        checkpoints.times = evaluations.times
    limit = args.save_total_limit or checkpoints.times
    # The next one is complete before the oldest is removed, and the best is kept besides.
    forecast.num_kept = int(min(checkpoints.times, limit + 1 + bool(args.load_best_model_at_end)))


def _do_nothing_else(control: TrainerControl) -> None:
    control.should_log = False
    control.should_evaluate = False
    control.should_save = False


# ---- A short epoch ----


class Rows(Dataset[Any]):
    """Some examples of a data set, with whatever else it has."""

    def __init__(self, dataset: Any, rows: Sequence[int]) -> None:
        self._dataset, self._rows = dataset, rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Any:
        return self._dataset[self._rows[index]]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("_dataset", "_rows"):
            raise AttributeError(name)
        return getattr(self._dataset, name)


@dataclass
class ShortEpoch:
    """The examples of an epoch that shows what a real one has: its longest window, and its last."""

    rows: list[int] | None
    """None for data of which rows cannot be chosen."""
    num_steps: int
    replaced: tuple[Any, int, Any] | None = None
    """Data, steps and order of the real training."""

    @classmethod
    def of(cls, trainer: "Trainer", lengths: Sequence[int]) -> "ShortEpoch":
        dataset: Any = trainer.train_dataset
        is_indexed = isinstance(dataset, Sized) and hasattr(dataset, "__getitem__") and len(dataset) > 0
        own = trainer._portico.overrides("get_train_dataloader", "_get_train_sampler")
        if not is_indexed or isinstance(dataset, IterableDataset | DataLoader) or own:
            return cls(None, 2)
        window = trainer.get_total_train_batch_size(trainer.args)
        if len(dataset) <= window:
            return cls(None, 1)
        order = sorted(range(len(lengths)), key=lambda row: -lengths[row])[:window]
        longest = order if len(order) == window else [*order, *range(window - len(order))]
        rest = len(dataset) % window or window
        if trainer.args.dataloader_drop_last and rest < trainer.args.train_batch_size * trainer.args.world_size:
            rest = window
        return cls([*longest, *range(len(dataset) - rest, len(dataset))], 2)

    def apply(self, trainer: "Trainer") -> None:
        """Let the next training run over these examples, for two steps more than an epoch has."""
        args: Any = trainer.args
        self.replaced = (trainer.train_dataset, args.max_steps, args.train_sampling_strategy)
        args.max_steps = self.num_steps + 2
        if self.rows is not None:
            dataset: Any = trainer.train_dataset
            trainer.train_dataset = (
                dataset.select(self.rows) if hasattr(dataset, "select") else Rows(dataset, self.rows)
            )
            args.train_sampling_strategy = "sequential"

    def restore(self, trainer: "Trainer") -> None:
        if self.replaced is not None:
            trainer.train_dataset, trainer.args.max_steps, trainer.args.train_sampling_strategy = self.replaced


class RehearsedRun(TrainerCallback):
    """Takes a training over a short epoch through the stages of a real one."""

    def __init__(self, rehearsal: Rehearsal, trainer: "Trainer", forecast: Forecast, epoch: ShortEpoch) -> None:
        self._rehearsal, self._trainer = rehearsal, trainer
        self._forecast, self._epoch = forecast, epoch
        self._watch = StepWatch(trainer)
        self._is_over = False

    @override
    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        step, last = state.global_step, self._epoch.num_steps
        if self._is_over:
            return
        _do_nothing_else(control)
        if step == 1:
            self._rehearsal.finish()
            self._rehearsal.begin(LAST_WINDOW)
        if step == last + 1:
            self._rehearsal.finish()
            self._rehearse_interval(args, state, control)
            self._rehearsal.begin("next step")
            self._watch.start(self._rehearsal.watches)
        elif step == last + 2:
            self._rehearsal.finish()
            self._rehearse_rotation(args, state, control)
            self._rehearsal.begin(BEST_MODEL)
        control.should_training_stop = step == last + 2

    @override
    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        _do_nothing_else(control)

    @override
    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        self._rehearsal.note_batch()

    @override
    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        ended = self._rehearsal.end_evaluation()
        if ended is not None:
            for part in self._forecast.repeated:
                part.seconds += ended.seconds if part.name == EVALUATION else 0.0

    @override
    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Any = None, **kwargs: object
    ) -> None:
        if (
            self._rehearsal.settings.is_of_transformers
            and (sentence := find_value_without_json(logs or {})) is not None
        ):
            self._rehearsal.record.add_fault(CHECKPOINT, sentence)

    @override
    def on_predict(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, metrics: Any, **kwargs: object
    ) -> None:
        self._rehearsal.end_evaluation()

    @override
    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        if self._is_over:
            return
        self._rehearsal.finish()
        with self._rehearsal.stage(FINAL_SAVE, self._trainer):
            self._trainer.save_model(str(self._rehearsal.folder / "final"), _internal_call=True)
        if self._rehearsal.uploads:
            with self._rehearsal.stage(MODEL_CARD, self._trainer):
                self._trainer.create_model_card()
            with self._rehearsal.stage(LOGIN, self._trainer):
                if (sentence := explain_missing_login(args)) is not None:
                    self._rehearsal.record.add_fault(LOGIN, sentence)
        self._is_over = True
        self._epoch.restore(self._trainer)
        self._rehearsal.end_training()

    def _rehearse_interval(self, args: TrainingArguments, state: TrainerState, control: TrainerControl) -> None:
        """Evaluate, log and save, each by itself, as the training would where its strategies ask for it."""
        trainer, rehearsal = self._trainer, self._rehearsal
        for name, strategy, flag in (
            (EVALUATION, args.eval_strategy, "should_evaluate"),
            (LOG, args.logging_strategy, "should_log"),
            (CHECKPOINT, args.save_strategy, "should_save"),
        ):
            if strategy == "no":
                rehearsal.skip(name, "the training has none")
                continue
            with rehearsal.stage(name, trainer):
                setattr(control, flag, True)
                self._do_wanted()
            trainer.control = control
            _do_nothing_else(control)
            if name == CHECKPOINT:
                self._measure_checkpoint(state)

    def _do_wanted(self) -> None:
        run = self._trainer._portico.module.run
        self._trainer._maybe_log_save_evaluate(
            run.tr_loss, run.grad_norm, run.model_wrapped, run.trial, run.epoch, run.ignore_keys_for_eval,
            run.start_time, learning_rate=run.learning_rate,
        )  # fmt: skip

    def _measure_checkpoint(self, state: TrainerState) -> None:
        usual = Path(self._trainer.args.output_dir, f"checkpoint-{state.global_step}")
        checkpoint = self._trainer._portico.last_checkpoint or usual  # trials write into folders of their own
        stage = self._rehearsal.record.stages[-1]
        if not checkpoint.is_dir():
            return
        files = [file for file in checkpoint.rglob("*") if file.is_file()]
        size = sum(file.stat().st_size for file in files)
        self._forecast.checkpoint_bytes = size
        for part in self._forecast.repeated:
            if part.name == CHECKPOINT:
                part.seconds, part.num_bytes = stage.seconds, size
        record = self._rehearsal.record
        if not record.checkpoint and stage.result == "passed" and not self._trainer.args.save_only_model:
            kept = self._rehearsal.folder / "resumed" / checkpoint.name
            if self._trainer.args.should_save:
                keep_copy(checkpoint, kept)
            record.checkpoint, record.max_steps = str(kept), self._epoch.num_steps + 2

    def _rehearse_rotation(self, args: TrainingArguments, state: TrainerState, control: TrainerControl) -> None:
        record = self._rehearsal.record
        if record.fingerprint is None:
            record.fingerprint = self._watch.fingerprint(state)
            drawn = "data" if draws_at_random(self._trainer) else "arguments of a trial"
            record.fingerprint.is_random = drawn == "data" or self._trainer._portico.trial is not None
            if record.fingerprint.is_random:
                record.warnings.append(
                    f"The {drawn} are drawn at random whenever they are read, so a resumed run sees other draws, and "
                    "only whether it can be resumed was tried."
                )
        if args.save_strategy == "no":
            return
        with self._rehearsal.stage(ROTATION, self._trainer):
            control.should_save = True
            self._do_wanted()
        self._trainer.control = control
        _do_nothing_else(control)


class ResumedRun(TrainerCallback):
    """Ends a resumed training after its first step, and writes that step down."""

    def __init__(self, rehearsal: Rehearsal, trainer: "Trainer") -> None:
        self._rehearsal = rehearsal
        self._watch = StepWatch(trainer)
        self._watch.start(rehearsal.watches)

    @override
    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        _do_nothing_else(control)
        self._rehearsal.record.fingerprint = self._watch.fingerprint(state)
        self._rehearsal.finish()
        if self._rehearsal.settings.is_inside:
            control.should_training_stop = True
            return
        self._rehearsal.end_script()
        raise ResumeCompared(0)

    @override
    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        _do_nothing_else(control)


class StepWatch(Observer):
    """Notes batches, loss and weights of one step."""

    def __init__(self, trainer: "Trainer") -> None:
        self._trainer = trainer
        self._batches = 0
        self._loss = 0.0

    def start(self, watches: ExitStack) -> None:
        """Watch until the fingerprint is taken; ``watches`` ends it where the step is never reached."""
        self._registration = watches.enter_context(observe(self))

    @override
    def on_training_step_begin(self, trainer: ObservedTrainer, model: nn.Module, inputs: dict[str, Any]) -> None:
        if isinstance(inputs, Mapping):
            for name in sorted(inputs):
                self._batches = checksum_of(inputs[name], self._batches)

    @override
    def on_training_step_end(self, trainer: ObservedTrainer, model: nn.Module, loss: torch.Tensor) -> None:
        self._loss += float(loss)

    def fingerprint(self, state: TrainerState) -> Fingerprint:
        self._registration.close()
        weights = 0
        for parameter in self._trainer.model.parameters():
            weights = checksum_of(parameter, weights)
        return Fingerprint(state.global_step, self._batches, self._loss, weights)


def draws_at_random(trainer: "Trainer") -> bool:
    """Return whether a batch depends on the random generators when it is read, as augmentation and masking do."""
    loader: Any = trainer.get_train_dataloader()
    dataset, collate = getattr(loader, "dataset", None), getattr(loader, "collate_fn", None)
    is_indexed = isinstance(dataset, Sized) and hasattr(dataset, "__getitem__")
    if dataset is None or collate is None:
        return False

    def read(seed: int) -> int:
        set_seed(seed)
        if is_indexed:
            rows = [dataset[index] for index in range(min(len(dataset), 8))]
        else:
            rows = list(islice(iter(dataset), 8))
        # A stream may make its batches itself.
        batch = rows[0] if getattr(loader, "batch_size", None) is None and not is_indexed else collate(rows)
        checksum = 0
        for name in sorted(batch) if isinstance(batch, Mapping) else ():
            checksum = checksum_of(batch[name], checksum)
        return checksum

    with kept_random_states():
        try:
            first = read(1)
            return read(1) == first and any(read(seed) != first for seed in (2, 3))
        except Exception:  # of data that are read in their own way
            return False


def checksum_of(value: object, checksum: int = 0) -> int:
    """Return a CRC-32 of a tensor; of anything else, the given one."""
    if not isinstance(value, torch.Tensor) or type(value).__name__ == "DTensor":
        return checksum
    plain = value.detach().cpu().contiguous().reshape(-1)
    return zlib.crc32(plain.view(torch.uint8).numpy().tobytes(), checksum)


def keep_copy(checkpoint: Path, kept: Path) -> None:
    """Give a checkpoint, which a rotation may remove, a second name, by links to its files."""
    for file in sorted(checkpoint.rglob("*")):
        target = kept / file.relative_to(checkpoint)
        if file.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            with suppress(OSError):
                target.hardlink_to(file)
                continue
            copy_file(file, target)


# ---- An evaluation of a few batches ----


class _Fixed(BatchSampler):
    def __init__(self, batches: list[list[int]], batch_size: int) -> None:
        self.batches, self.batch_size = batches, batch_size
        self.drop_last = False

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class _FirstBatches:
    """The first batches of a loader of which none can be chosen."""

    def __init__(self, loader: Any, number: int) -> None:
        self._loader, self._number = loader, number

    def __iter__(self) -> Iterator[Any]:
        for number, batch in enumerate(self._loader, 1):
            yield batch
            if number == self._number:
                return

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_loader":
            raise AttributeError(name)
        return getattr(self._loader, name)


class LimitedEvaluation:
    """An evaluation of the first, the longest and the last batch whose outputs are repeated to their real number.

    So metrics, post-processing and memory are those of a real evaluation.
    """

    def __init__(self, session: ObservedEvaluation, lengths: Sequence[int], rehearsal: Rehearsal) -> None:
        self._rehearsal = rehearsal
        self._start = time.perf_counter()
        self._marks = [self._start]
        self.num_batches = self._num_tried = 0
        self._num_first = _TIMED_BATCHES
        self._choose(session, lengths)

    def _choose(self, session: ObservedEvaluation, lengths: Sequence[int]) -> None:
        loader: Any = session.loader
        sampler = getattr(loader, "batch_sampler", None)
        count = getattr(getattr(sampler, "config", None), "num_processes", 1)
        inner = sampler.batch_sampler if isinstance(sampler, BatchSamplerShard) else sampler
        dataset = getattr(loader, "dataset", None)
        if not isinstance(dataset, Sized):
            session.loader = _FirstBatches(loader, _TIMED_BATCHES)
        if not isinstance(inner, BatchSampler) or not isinstance(dataset, Sized):
            return
        batches = [list(batch) for batch in inner]
        rounds = [batches[first : first + count] for first in range(0, len(batches), count)]
        self.num_batches = len(rounds)

        def longest_in(number: int) -> int:
            rows = [row for batch in rounds[number] for row in batch]
            return max((lengths[row] for row in rows if row < len(lengths)), default=0)

        if len(rounds) <= _TIMED_BATCHES + 2:
            self._num_tried = len(rounds)
            return
        chosen = {*range(_TIMED_BATCHES), max(range(len(rounds)), key=longest_in), len(rounds) - 1}
        self._num_tried = len(chosen)
        limited = [batch for number in sorted(chosen) for batch in rounds[number]]
        sampled = _Fixed(limited, inner.batch_size)
        made: DataLoader[Any] = DataLoader(loader.dataset, batch_sampler=sampled, collate_fn=loader.collate_fn)
        prepared = session.trainer.accelerator.prepare(made)
        for name in ("own_batch_size", "transfer"):
            if hasattr(loader, name):
                setattr(prepared, name, getattr(loader, name))
        session.loader = prepared
        for name in ("losses", "logits", "labels", "inputs"):
            setattr(session, name, _Expanded(getattr(session, name), len(dataset), len(rounds), self._rehearsal))
        if getattr(session, "_streamed", None) is not None:
            vars(session)["_streamed"] = _ExpandedStream(vars(session)["_streamed"], len(dataset))

    def note_batch(self) -> None:
        _wait_for_device()
        self._marks.append(time.perf_counter())

    def end(self) -> None:
        self._end = time.perf_counter()

    @property
    def measured(self) -> float:
        return self._end - self._start

    @property
    def seconds(self) -> float:
        """Of the whole evaluation."""
        times = np.diff(self._marks)
        if len(times) == 0 or self._num_tried >= self.num_batches:
            return self.measured
        typical = times[1 : self._num_first] if len(times) > self._num_first else times
        return self.measured - float(times.sum()) + float(np.mean(typical)) * self.num_batches


class _Expanded:
    """Outputs of some examples, repeated to the number of all."""

    def __init__(self, outputs: Any, num_rows: int, num_batches: int, rehearsal: Rehearsal) -> None:
        self._outputs, self._rehearsal = outputs, rehearsal
        self._num_rows, self._num_batches = num_rows, num_batches

    def add(self, *args: Any, **kwargs: Any) -> None:
        self._outputs.add(*args, **kwargs)

    def result(self) -> Any:
        result = self._outputs.result()
        if isinstance(result, list):
            whole = self._num_batches if type(self._outputs).__name__ == "OutputList" else self._num_rows
            return [result[index % len(result)] for index in range(whole)]
        return apply_to_collection(result, np.ndarray, self._repeat)

    def _repeat(self, array: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
        if array.ndim == 0 or len(array) in (0, self._num_rows):
            return array
        needed = array.nbytes // len(array) * self._num_rows
        free = psutil.virtual_memory().available
        if needed > free:
            self._rehearsal.record.add_fault(
                EVALUATION,
                f"An evaluation would keep outputs of {needed / 1e9:.1f} GB (rows of {list(array.shape[1:])} for "
                f"{self._num_rows:,} examples), and {free / 1e9:.1f} GB of memory are free; reduce them in "
                "`preprocess_logits_for_metrics`, such as to their argmax, or set `batch_eval_metrics=True`, or give "
                "fewer examples to evaluate.",
            )
            return array
        return array[np.arange(self._num_rows) % len(array)]


class _ExpandedStream:
    """A post-processing that gets the outputs of some features, repeated to the number of all."""

    def __init__(self, stream: Any, num_rows: int) -> None:
        self._stream, self._num_rows = stream, num_rows
        self._seen = 0
        self._rows: list[np.ndarray[Any, Any]] = []

    def update(self, rows: "list[np.ndarray[Any, Any]]", indices: "np.ndarray[Any, Any]") -> None:
        self._stream.update(rows, indices)
        self._seen += len(indices)
        self._rows = rows if not self._rows or len(rows[0]) >= len(self._rows[0]) else self._rows

    def compute(self) -> Any:
        while self._seen < self._num_rows and self._rows:
            number = min(len(self._rows[0]), self._num_rows - self._seen)
            indices = np.arange(self._seen, self._seen + number)
            self._stream.update([array[:number] for array in self._rows], indices)
            self._seen += number
        return self._stream.compute()


# ---- What else is found ----


def _find_answers_elsewhere(trainer: "Trainer") -> str | None:
    """Return a sentence about reading comprehension answers that are not where their context says."""
    wrong: list[str] = []
    for row, example in enumerate(trainer.__dict__.get("eval_examples") or ()):
        if not isinstance(example, Mapping) or "context" not in example or "answers" not in example:
            break
        answers = example["answers"]
        for text, start in zip(answers.get("text", ()), answers.get("answer_start", ()), strict=False):
            if example["context"][start : start + len(text)] != text:
                wrong.append(f"row {row} has {text!r} at {start}")
    if not wrong:
        return None
    what = "1 answer not in its context" if len(wrong) == 1 else f"{len(wrong)} answers not in their contexts"
    return f"`eval_examples`: {what}: {'; '.join(wrong[:5])}. Correct `answer_start`, or leave these examples out."


def _wait_for_device() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


@contextmanager
def _hearing_warnings(heard: list[str]) -> Iterator[None]:
    """Keep each warning of the run once."""
    show = warnings.showwarning

    def hear(message: str) -> None:
        if message not in heard:
            heard.append(message)

    def showed(message: "Warning | str", category: type[Warning], *args: Any, **kwargs: Any) -> None:
        if not issubclass(category, DeprecationWarning):
            hear(str(message))
        show(message, category, *args, **kwargs)

    class WarningListener(logging.Handler):
        @override
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno >= logging.WARNING:
                hear(record.getMessage())

    listener = WarningListener()
    loggers = [logging.getLogger(name) for name in ("transformers", "portico")]
    warnings.showwarning = showed
    for logger in loggers:
        logger.addHandler(listener)
    try:
        yield
    finally:
        warnings.showwarning = show
        for logger in loggers:
            logger.removeHandler(listener)


class UploadSkipped(SystemExit):
    """Ends the script where it would change something on the hub."""


def refuse_uploads(rehearsal: Rehearsal) -> None:
    """Let requests to the hub only read."""

    def refuse(request: Any) -> None:
        if request.method not in ("GET", "HEAD", "OPTIONS"):
            rehearsal.warn_of_upload(str(request.url))
            raise UploadSkipped(0)

    client: Any = huggingface_hub.get_session()
    hooks = client.event_hooks
    client.event_hooks = {**hooks, "request": [*hooks.get("request", ()), refuse]}


def watch_script(rehearsal: Rehearsal) -> None:
    """Write down an error that ends the script."""
    show = sys.excepthook

    def shown(kind: type[BaseException], error: BaseException, trace: "TracebackType | None") -> None:
        if isinstance(error, Exception):
            rehearsal.fail(error)
        show(kind, error, trace)

    sys.excepthook = shown
