"""Resume a run from a checkpoint, and write the position in the data and the random states that this needs.

:class:`portico.loop.plan.ResumePoint` counts where in the data a run continues.
"""

import json
import random
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from types import NoneType
from typing import Any, cast, get_args, get_type_hints

import numpy as np
import torch
import transformers
from torch import nn
from torch.optim import Optimizer
from transformers import CONFIG_NAME, TrainerState

from portico.checkpoint.engine_files import load_engine
from portico.checkpoint.manifest import (
    EPOCH_START_FILE,
    LIGHTNING_FILE,
    MANIFEST_FILE,
    POSITION_FILE,
    STATE_FILE,
    build_mismatch_error,
    has_file,
    newest_complete,
    reading,
    refuse_damaged,
    steps_of_checkpoints,
)
from portico.checkpoint.sharded import (
    OPTIMIZER_FOLDER,
    find_named_optimizer,
    read_named_optimizer,
    shard_optimizer_state,
)
from portico.checkpoint.writer import OPTIMIZER_FILE, SCALER_FILE, SCHEDULER_FILE, CheckpointParts, is_incomplete
from portico.compat import transformers as hf_compat
from portico.compat.transformers import HFTrainingArguments, logger
from portico.data.loaders import DataLoaderDispatcher, DataLoaderShard, Generator, generators_of
from portico.distributed.model_parallel import is_sharded
from portico.errors import InputError, InputRuntimeError, InputTypeError, printable
from portico.trust.disk import read_text, refuse_huge, write_text
from portico.trust.files import UnpicklingError, load_tensors, save_tensors

_MAX_COUNT = 1 << 63


def find_checkpoint(resume_from_checkpoint: str | bool | None, output_dir: str) -> str | None:
    """Return the folder to resume from: the given one, or for ``True`` the last complete one; refuse damaged ones."""
    refuse_missing_checkpoint(resume_from_checkpoint, output_dir)
    if resume_from_checkpoint is None or resume_from_checkpoint is False:
        return None
    if resume_from_checkpoint is True:
        last = newest_complete(Path(output_dir))
        if last is None:
            raise _no_checkpoint(output_dir)
        return str(last)
    if is_incomplete(Path(resume_from_checkpoint)):
        raise InputError(
            f"`resume_from_checkpoint={str(resume_from_checkpoint)!r}` is where a checkpoint is written, and it was "
            "not completed; set it to a `checkpoint-N` folder, or to `True` for the last one in `output_dir`."
        )
    refuse_damaged(Path(resume_from_checkpoint))
    return str(resume_from_checkpoint)


def refuse_missing_checkpoint(resume_from_checkpoint: object, output_dir: str) -> None:
    """Refuse a checkpoint that does not exist, without reading any file."""
    if resume_from_checkpoint is None or resume_from_checkpoint is False:
        return
    if resume_from_checkpoint is True:
        if not steps_of_checkpoints(Path(output_dir)):
            raise _no_checkpoint(output_dir)
        return
    if not isinstance(resume_from_checkpoint, str | PathLike):
        raise InputTypeError(
            f"`resume_from_checkpoint={' '.join(repr(resume_from_checkpoint).split())[:60]}` is a "
            f"{type(resume_from_checkpoint).__name__}; set it to a `checkpoint-N` folder of an earlier run, or to "
            "`True` for the last one in `output_dir`."
        )
    if not (str(resume_from_checkpoint) and Path(resume_from_checkpoint).is_dir()):
        if str(resume_from_checkpoint).lower() in ("true", "false"):
            raise InputError(
                f"`resume_from_checkpoint={str(resume_from_checkpoint)!r}` is a string, as a command line passes "
                "it, and there is no folder of that name; name a `checkpoint-N` folder, or let the script pass "
                f"`{str(resume_from_checkpoint).capitalize()}` without quotes to `train()`."
            )
        raise InputError(
            f"Can't find a valid checkpoint at {resume_from_checkpoint}: `resume_from_checkpoint="
            f"{resume_from_checkpoint}` is not a folder. Set it to a `checkpoint-N` folder of an earlier run, or to "
            "`True` for the last one in `output_dir`."
        )


def _no_checkpoint(output_dir: str) -> InputError:
    return InputError(
        f"No valid checkpoint found in output directory ({output_dir}): it holds no complete `checkpoint-N`. Set "
        "`resume_from_checkpoint` to the folder of a checkpoint, or leave it out to start from scratch."
    )


def warn_of_other_version(folder: str) -> None:
    """Warn if another version of transformers wrote the model in a checkpoint."""
    file = Path(folder) / CONFIG_NAME
    if not file.is_file():
        return
    with reading(file):
        version = json.loads(read_text(file)).get("transformers_version")
    if version not in (None, transformers.__version__):
        logger.warning(
            f"You are resuming training from a checkpoint trained with {version} of Transformers but your current "
            f"version is {transformers.__version__}. This is not recommended and could yield to errors or unwanted "
            "behaviors."
        )


def read_state(folder: str, args: HFTrainingArguments) -> TrainerState:
    """Return the trainer state of a checkpoint; a best checkpoint that no longer exists is dropped."""
    file = Path(folder) / STATE_FILE
    with reading(file):
        refuse_huge(file)
        state: TrainerState = TrainerState.load_from_json(str(file))
        _check_state(state)
    if state.best_model_checkpoint is not None and not Path(state.best_model_checkpoint).is_dir():
        logger.warning(
            f"The best checkpoint {state.best_model_checkpoint} recorded in the resumed state does not exist anymore. "
            "Ignoring it for this run."
        )
        state.best_model_checkpoint = None
    hf_compat.compare_trainer_and_checkpoint_args(args, state)
    return state


def _check_state(state: TrainerState) -> None:
    """Raise ``ValueError`` if a field has another type than ``TrainerState`` declares, or a count is negative."""
    for name, kind in get_type_hints(TrainerState).items():
        value = getattr(state, name)
        allowed = get_args(kind) or (kind,)
        if value is None and NoneType in allowed:
            continue
        if {int, float} & set(allowed):
            counts = name != "best_metric"
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or (counts and not 0 <= value < _MAX_COUNT):
                raise ValueError(f"`{name}` is {str(value)[:50]!r}, not a number{' of 0 or more' if counts else ''}")
        elif str in allowed and not isinstance(value, str):
            raise ValueError(f"`{name}` is {str(value)[:50]!r}, not a string")
    if not isinstance(state.global_step, int):
        raise ValueError(f"`global_step` is {state.global_step}, not an integer")
    if not (isinstance(state.log_history, list) and all(isinstance(logs, dict) for logs in state.log_history)):
        raise ValueError("`log_history` is not a list of objects")


def read_batch_size(folder: str, args: HFTrainingArguments) -> int | None:
    """Return the batch size that ``auto_find_batch_size`` had reached, if ``folder`` records it."""
    file = Path(folder) / STATE_FILE
    if not args.auto_find_batch_size:
        return None
    with reading(file):
        return cast("int | None", TrainerState.load_from_json(str(file)).train_batch_size)


def load_optimizer_and_scheduler(
    parts: CheckpointParts, folder: Path, convert: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    """Load the states of optimizer and scheduler from ``folder``, if it has them.

    ``convert`` converts the saved state of the optimizer for the optimizer of this run.
    """
    scheduler_file = folder / SCHEDULER_FILE
    if parts.engine is not None:
        load_engine(parts.engine, folder, parts.model)
        if not parts.engine_has_scheduler:
            _load_scheduler(parts, scheduler_file)
        return
    named = find_named_optimizer(folder, parts.model)
    optimizer_file = named or folder / OPTIMIZER_FILE
    needed = [SCHEDULER_FILE] if named else [OPTIMIZER_FILE, SCHEDULER_FILE]
    missing = [name for name in needed if not has_file(folder, name)]
    if missing:
        names = " and no ".join(missing)
        if (folder / OPTIMIZER_FOLDER).is_dir():
            logger.warning(
                f"{folder} has no {names}, so optimizer and schedule start afresh; sharded runs read its "
                f"{OPTIMIZER_FOLDER}, and others read it only if {MANIFEST_FILE} lists it."
            )
        else:
            logger.warning(
                f"{folder} has no {names}, so optimizer and schedule start afresh; set `save_only_model=False` to "
                "save them."
            )
        return
    optimizer = parts.optimizer
    assert optimizer is not None
    with reading(optimizer_file):
        saved = _read_optimizer(parts.model, optimizer, folder, parts.args.device)
    with reading(optimizer_file, into_model=True):
        present = [
            {name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups
        ]
        state = convert(saved)
        saved_sizes, present_sizes = (
            [len(group["params"]) for group in groups] for groups in (state["param_groups"], optimizer.param_groups)
        )
        if saved_sizes != present_sizes:
            what = f"it has groups of {saved_sizes} parameters, not {present_sizes}"
            raise build_mismatch_error(folder, "optimizer", parts.model, what)
        optimizer.load_state_dict(state)
        for before, after in zip(present, optimizer.param_groups, strict=True):
            _check_options(before, after, optimizer, folder)
    _load_scheduler(parts, scheduler_file, is_by_name=bool(named))


def _load_scheduler(parts: CheckpointParts, file: Path, *, is_by_name: bool = False) -> None:
    scheduler = parts.lr_scheduler
    assert scheduler is not None
    assert parts.optimizer is not None
    with reading(file):
        saved = load_tensors(file)
    with warnings.catch_warnings(), reading(file, into_model=True):
        warnings.filterwarnings("ignore", message="Please also save or load the state of the optimizer")
        if is_by_name or is_sharded(parts.model):
            saved = _fit_to_groups(parts.optimizer.param_groups, saved)
        _check_alike(scheduler.state_dict(), saved)
        scheduler.load_state_dict(saved)


def _check_options(present: Mapping[str, Any], saved: Mapping[str, Any], optimizer: Optimizer, folder: Path) -> None:
    """Raise ``ValueError`` if saved options are damaged, ``InputRuntimeError`` if another optimizer had them."""
    _check_alike(present, saved)
    missing = sorted(present.keys() - saved.keys())
    unknown = sorted(saved.keys() - present.keys() - {"params"})
    if missing and unknown:
        raise InputRuntimeError(
            f"{folder} holds the state of another optimizer than {type(optimizer).__name__}: `{missing[0]}` is "
            f"missing there, and `{printable(unknown[0])}` is known only there; set `optim` as in the run that "
            "saved it, or leave `resume_from_checkpoint` out."
        )
    if missing:
        raise ValueError(f"`{missing[0]}` is missing")


def _fit_to_groups(groups: list[dict[str, Any]], schedule: dict[str, Any]) -> dict[str, Any]:
    """Return the state of a schedule for ``groups`` of parameters, which may be more or fewer than the saved ones.

    Parameters of one group that are sharded over different processes are in separate groups here.
    """
    num_saved = len(schedule.get("_last_lr", groups))
    if num_saved == len(groups):
        return schedule
    rates = {"base_lrs": "initial_lr", "_last_lr": "lr"}
    state = dict(schedule)
    for name, values in schedule.items():
        if name in rates:
            state[name] = [group[rates[name]] for group in groups]
        elif isinstance(values, list) and len(values) == num_saved == values.count(values[0]):
            state[name] = values[:1] * len(groups)
    return state


def _read_optimizer(model: nn.Module, optimizer: Optimizer, folder: Path, device: torch.device) -> dict[str, Any]:
    """Return the optimizer state in ``folder`` as it was written; for a sharded model, the part of this process."""
    if find_named_optimizer(folder, model):
        return read_named_optimizer(model, optimizer, folder)
    # On the CPU, whatever the device: the optimizer moves what belongs on the device, but leaves Adam's step counts
    # where they are loaded, and would wait for a device to read each of them at every step (pytorch/pytorch#74424).
    is_mapped = is_sharded(model) or device.type != "cpu"
    saved: dict[str, Any] = load_tensors(folder / OPTIMIZER_FILE, map_location="cpu", mmap=is_mapped)
    return shard_optimizer_state(model, optimizer, saved, folder) if is_sharded(model) else saved


def _check_alike(present: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` if saved numbers and sequences of numbers are not of their present types."""
    for name, value in present.items():
        if name in saved and not _is_alike(value, saved[name]):
            raise ValueError(f"`{name}` is {str(saved[name])[:50]!r}, not like {str(value)[:50]!r}")


def _is_alike(present: object, saved: object) -> bool:
    if isinstance(present, list | tuple):
        if not isinstance(saved, list | tuple) or len(saved) != len(present):
            return False
        return all(map(_is_alike, present, saved))
    is_number = isinstance(present, int | float) and not isinstance(present, bool)
    return not is_number or isinstance(saved, int | float | torch.Tensor)


def load_scaler(scaler: "torch.amp.GradScaler | None", folder: Path) -> None:
    """Load the state of the gradient scaler from ``folder``, if the run and the folder have one."""
    file = folder / SCALER_FILE
    if scaler is None:
        return
    if not has_file(folder, SCALER_FILE):
        logger.warning("%s is missing, so the loss scale starts afresh.", file)
        return
    with reading(file):
        scaler.load_state_dict(load_tensors(file))


def load_lightning_states(folder: Path) -> dict[str, Any]:
    """Return the states that :func:`~portico.checkpoint.writer.save_lightning_states` wrote; empty without a file."""
    file = folder / LIGHTNING_FILE
    if not has_file(folder, LIGHTNING_FILE):
        return {}
    with reading(file):
        states = load_tensors(file)
        return {name: states[name] for name in states.keys()}  # noqa: SIM118  # another object has no keys


def save_position(folder: str, position: tuple[int, int]) -> None:
    """Write the current epoch, and how many of its examples all processes have seen; transformers counts batches."""
    write_text(Path(folder) / POSITION_FILE, json.dumps(position))


def read_position(folder: str) -> tuple[tuple[int, int] | None, int]:
    """Return the position that :func:`save_position` wrote, if it did, and of how many processes."""
    num_processes = len(list(Path(folder).glob("rng_state*.pth")))
    if not has_file(Path(folder), POSITION_FILE):
        return None, num_processes
    file = Path(folder) / POSITION_FILE
    with reading(file):
        epoch, num_examples = json.loads(read_text(file))
        return (int(epoch), int(num_examples)), num_processes


def save_rng_state(folder: str, args: HFTrainingArguments) -> None:
    """Write the states of Python's, numpy's and torch's generators of this process into ``folder``."""
    save_tensors(present_rng_states(args), _rng_file(folder, args))


def present_rng_states(args: HFTrainingArguments) -> dict[str, Any]:
    """Return the states of Python's, numpy's and torch's generators of this process."""
    states: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "cpu": torch.random.get_rng_state(),
    }
    if torch.cuda.is_available():
        # As transformers writes them: for all devices in a run of several processes, else for the current device.
        states["cuda"] = (
            torch.cuda.random.get_rng_state_all() if args.world_size > 1 else torch.cuda.random.get_rng_state()
        )
    return states


def portable_rng_states(states: dict[str, Any], *, as_arrays: bool = False) -> dict[str, Any]:
    """Return RNG states with a tensor instead of numpy's array, which ``torch.load`` calls unsafe, or the reverse."""
    name, keys, *rest = states["numpy"]
    keys = keys.numpy().astype(np.uint32) if as_arrays else torch.from_numpy(keys.astype(np.int64))
    return {**states, "numpy": (name, keys, *rest)}


def load_rng_state(folder: str | None, args: HFTrainingArguments) -> None:
    """Restore the RNG states of this process from ``folder``; warn if it has none."""
    if folder is None:
        return
    if not has_file(Path(folder), (file := _rng_file(folder, args)).name):
        logger.warning(
            "%s is missing, so random numbers continue from the current state: the resumed run will differ from an "
            "uninterrupted one.",
            file,
        )
        return
    with hf_compat.safe_globals(), reading(file):
        set_rng_states(load_tensors(file), args)


def set_rng_states(states: dict[str, Any], args: HFTrainingArguments) -> None:
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.random.set_rng_state(states["cpu"])
    if torch.cuda.is_available():
        hf_compat.set_rng_state_for_device("CUDA", torch.cuda, states, args.world_size > 1)


@dataclass(frozen=True)
class EpochStart:
    """What the order of an epoch is drawn from: the generators, before its loader is iterated.

    Args:
        rng_states: Of Python's, numpy's and torch's own generators.
        generators: States of the generators that the loader and its samplers hold.
        draws: What the examples of the next batch are drawn from, which is read one step early; set by :meth:`watch`.
    """

    rng_states: dict[str, Any]
    generators: list[Any]
    draws: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def capture(cls, loader: Any, args: HFTrainingArguments) -> "EpochStart":
        return cls(present_rng_states(args), [_state_of(generator) for generator in generators_of(loader)])

    def watch(self, loader: Any, args: HFTrainingArguments) -> None:
        """Keep the random states before each batch of ``loader`` is read, since data may draw random numbers."""
        if not isinstance(loader, DataLoaderShard):
            return
        before = loader.before_fetch

        def keep(number: int) -> None:
            if before is not None:
                before(number)
            self.draws.update(present_rng_states(args))

        loader.before_fetch = keep

    def save(self, folder: str, loader: Any) -> None:
        """Write it into ``folder``, with the present states of the generators of ``loader``."""
        present = [_state_of(generator) for generator in generators_of(loader)]
        content = {"rng_states": self.rng_states, "generators": self.generators, "present": present}
        if self.draws:
            content["draws"] = self.draws
        save_tensors(content, Path(folder) / EPOCH_START_FILE)


def restore_order(folder: str, loader: Any, args: HFTrainingArguments, *, restore: Callable[[], None] | None) -> bool:
    """Set the generators to their states at the start of the epoch, or before the next; return whether it is known.

    Inside an epoch, the examples of the first batch are then drawn from what they were drawn from when it was read one
    step early, and ``restore`` is called before the next is read: it sets the states that the checkpoint holds.
    """
    is_inside_epoch = restore is not None
    file = Path(folder) / EPOCH_START_FILE
    if not has_file(Path(folder), EPOCH_START_FILE):
        return False
    with hf_compat.safe_globals(), reading(file):
        saved = load_tensors(file)
        generators = generators_of(loader)
        states = saved["generators" if is_inside_epoch else "present"]
        if is_inside_epoch:
            set_rng_states(saved["rng_states"], args)
        if len(states) == len(generators):
            for generator, state in zip(generators, states, strict=True):
                _set_state(generator, state)
    if restore is not None and "draws" in saved and isinstance(loader, DataLoaderShard):
        first, draws = loader.num_batches_to_skip, saved["draws"]

        def draw_as_before(number: int) -> None:
            if number == first:
                set_rng_states(draws, args)
            elif number == first + 1:
                restore()

        loader.before_fetch = draw_as_before
    return len(states) == len(generators)


def _state_of(generator: Generator) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    return generator.getstate() if isinstance(generator, random.Random) else generator.bit_generator.state


def _set_state(generator: Generator, state: Any) -> None:
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.bit_generator.state = state


def save_stream_position(folder: str, loader: object, num_batches: int) -> None:
    """Write where a stream stood after ``num_batches`` of the epoch, if its source can start there again."""
    if not isinstance(loader, DataLoaderShard) or (position := loader.position_after(num_batches)) is None:
        return
    file = _position_file(folder, loader)
    save_tensors(position, file)
    try:
        load_tensors(file)
    except UnpicklingError:
        file.unlink()
        logger.warning_once(
            f"The `state_dict` of the stream `{type(loader.dataset).__name__}` holds objects that are not loaded from "
            "files, so a resumed run reads its batches again; let it return numbers, strings and tensors, in lists "
            "and dicts.",
            stacklevel=2,
        )


def load_stream_position(folder: str, loader: object, num_batches: int) -> dict[str, Any] | None:
    """Return the position that :func:`save_stream_position` wrote for the same numbers of batches and processes."""
    if not isinstance(loader, DataLoaderShard):
        return None
    file = _position_file(folder, loader)
    position = None
    if has_file(Path(folder), file.name):
        with reading(file):
            position = load_tensors(file)
        # Another batch size or number of processes: batches are counted, as transformers does.
        if (position["num_batches"], position["num_processes"]) != (num_batches, loader.config.num_processes):
            position = None
    if isinstance(loader, DataLoaderDispatcher):
        # The first process reads for all.
        position = loader.config.broadcast(position)
    return position


def _position_file(folder: str, loader: DataLoaderShard) -> Path:
    is_own = loader.config.num_processes > 1 and not isinstance(loader, DataLoaderDispatcher)
    return Path(folder) / (f"stream_position_{loader.config.process_index}.pt" if is_own else "stream_position.pt")


def _rng_file(folder: str, args: HFTrainingArguments) -> Path:
    name = "rng_state.pth" if args.world_size <= 1 else f"rng_state_{args.process_index}.pth"
    return Path(folder) / name
