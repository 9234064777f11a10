"""Record what a training script computes, step by step, under either library, without changing it.

``python -m portico.inspection.recorder SCRIPT.py ARGUMENTS`` runs the script in this process; the settings are in the
environment variable ``PORTICO_RECORD``. The script imports torch when it wants to, so this module does not.

Nothing here draws random numbers or touches a gradient. portico tells an observer; the methods of transformers are
wrapped where they are defined, so that the library still sees which of them a subclass overrides.
"""

import atexit
import json
import logging
import os
import random
import sys
import time
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial, wraps
from multiprocessing.util import Finalize, register_after_fork
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from portico.distributed.children import end_with_parent
from portico.errors import InputError, reason_of
from portico.imports import when_imported
from portico.inspection.install import install_on_demand, original
from portico.inspection.records import VARIABLE, RecordSettings, ScriptRecord, TrainingRecord, adapt_arguments
from portico.inspection.script import Script, pass_on
from portico.observers import ObservedTrainer, Observer, observe

if TYPE_CHECKING:
    import torch
    import transformers
    from torch import nn
    from transformers import TrainerControl, TrainerState, TrainingArguments

    from portico.compat.transformers import CallbackHandler

_LIBRARIES = ("transformers", "portico", "torch", "builtins", "abc", "typing")


def join() -> None:
    """Record in this process, one of a recorded run; the record is written when the process ends, also by an error."""
    settings = RecordSettings(**json.loads(os.environ[VARIABLE]))
    record = ScriptRecord()
    atexit.register(_finish, settings, record)
    register_after_fork(record, partial(_record_fork, folder=Path(settings.folder)))

    record_trainers = partial(_record_trainers, settings, record)
    if settings.library == "portico":
        install_on_demand(**settings.options)
        # Scripts may import portico's trainer by its own name; replacing the names of transformers imports it too.
        when_imported("portico.trainer", record_trainers)
    else:
        when_imported("portico.trainer", _refuse_trainer_of_portico)
        when_imported("transformers.training_args", partial(_adapt_arguments_of_transformers, settings))
        when_imported("transformers.trainer", record_trainers)
    if settings.finds_operators:
        when_imported("torch", _find_operators)


def _record_fork(record: ScriptRecord, folder: Path) -> None:
    """Write the record of a process that multiprocessing forked, which ends without the functions of `atexit`."""
    record.trainings.clear()  # what happened before the fork is the parent's
    record.begun = time.time_ns()
    Finalize(None, record.save, (folder,), exitpriority=0)


def _finish(settings: RecordSettings, record: ScriptRecord) -> None:
    try:
        record.save(Path(settings.folder))
    except OSError as error:
        # An error of a function of `atexit` leaves the exit code as it is: the script would seem to train nothing.
        what = f"The record of the run cannot be written ({reason_of(error)})"
        print(f"error: {what}; set `TMPDIR` to a folder with more room, or name one with `--keep`.", file=sys.stderr)
        sys.stderr.flush()
        os._exit(1)
    if "LOCAL_RANK" in os.environ and "torch.distributed" in sys.modules:
        from torch import distributed

        # Threads of gloo that are left abort the process, after everything was written.
        if distributed.is_initialized():
            distributed.destroy_process_group()


def _refuse_trainer_of_portico() -> None:
    raise InputError(
        "The script imports a trainer from portico, so transformers cannot run it; import it from transformers, or "
        "compare portico with itself, for example with `--against devices=2`."
    )


def _adapt_arguments_of_transformers(settings: RecordSettings) -> None:
    from transformers import TrainingArguments

    finish = TrainingArguments.__post_init__

    @wraps(finish)
    def adapted(args: TrainingArguments) -> None:
        adapt_arguments(args, settings)
        finish(args)

    TrainingArguments.__post_init__ = adapted  # type: ignore[method-assign]


def _find_operators() -> None:
    import torch

    torch.use_deterministic_algorithms(True, warn_only=True)
    warnings.filterwarnings("always", message=".*does not have a deterministic implementation")


# ---- What is recorded once the script has imported a trainer ----


def _record_trainers(settings: RecordSettings, record: ScriptRecord) -> None:
    """Record every trainer of this process that is made from now on."""
    recorder = Recorder(settings, record)
    _listen(record)
    recorder.watch_events()
    if settings.library == "portico":
        observe(recorder)
    else:
        recorder.watch_transformers()


class Recorder(Observer):
    """Records the trainers of one library in this process."""

    def __init__(self, settings: RecordSettings, record: ScriptRecord) -> None:
        self.settings = settings
        self.record = record
        self._of_handler: dict[int, TrainingRecord] = {}
        self._step: dict[str, Any] = {"batches": [], "losses": []}
        self._depth = 0
        self._current: TrainingRecord | None = None
        self._wrapped: set[tuple[type, str]] = set()

    # ---- What either library does ----

    @override
    def on_arguments_init(self, args: object) -> None:
        adapt_arguments(args, self.settings)

    @override
    def on_trainer_init(self, trainer: ObservedTrainer) -> None:
        self._current = TrainingRecord()
        self.record.trainings.append(self._current)
        library = original("Trainer")
        for owner in type(trainer).__mro__:
            if owner.__module__.partition(".")[0] not in _LIBRARIES:
                for name, value in list(vars(owner).items()):
                    if isinstance(value, FunctionType) and not name.startswith("__") and hasattr(library, name):
                        self._count_calls(owner, name, value)

    @override
    def on_training_step_begin(self, trainer: ObservedTrainer, model: "nn.Module", inputs: dict[str, Any]) -> None:
        self._step["batches"].append(hash_of(inputs))

    @override
    def on_training_step_end(self, trainer: ObservedTrainer, model: "nn.Module", loss: "torch.Tensor") -> None:
        self._step["losses"].append(float(loss))

    def watch_events(self) -> None:
        """Note every event of a trainer, before its callbacks are called."""
        from portico.compat.transformers import CallbackHandler

        handlers: Any = CallbackHandler
        call: Callable[..., TrainerControl] = handlers.call_event

        @wraps(call)
        def called(
            handler: "CallbackHandler",
            event: str,
            args: "TrainingArguments",
            state: "TrainerState",
            control: "TrainerControl",
            **kwargs: object,
        ) -> "TrainerControl":
            if self._current is None or event == "on_prediction_step":
                return call(handler, event, args, state, control, **kwargs)
            if event == "on_init_end":
                self._of_handler[id(handler)] = self._current
                self.record.rank = args.process_index
            record = self._of_handler.get(id(handler), self._current)
            before = random_states()
            record.events.append((event, state.global_step))
            self._note(record, event, handler, state, before)
            control = call(handler, event, args, state, control, **kwargs)
            if random_states() != before:
                own = [
                    callback
                    for callback in handler.callbacks
                    if type(callback).__module__.partition(".")[0] not in _LIBRARIES
                ]
                for callback in own:
                    if _defines(type(callback), event):
                        record.draws.setdefault(f"{type(callback).__name__}.{event}", state.global_step)
            if event == "on_step_end" and self.settings.steps and state.global_step >= self.settings.steps:
                control.should_training_stop = True
            return control

        handlers.call_event = called

    def _note(
        self,
        record: TrainingRecord,
        event: str,
        handler: "CallbackHandler",
        state: "TrainerState",
        random: dict[str, int],
    ) -> None:
        record.log_history = state.log_history
        if event == "on_train_begin":
            record.initial_weights = hash_of(dict(_weights(handler.model)))
        elif event == "on_pre_optimizer_step":
            norms = {name: norm_of(weight.grad) for name, weight in _weights(handler.model) if weight.grad is not None}
            self._step["gradients"] = norms
            self._step["gradient_norm"] = sum(norm**2 for norm in norms.values()) ** 0.5
            self._step["learning_rate"] = [float(group["lr"]) for group in handler.optimizer.param_groups]
        elif event == "on_step_end":
            weights = dict(_weights(handler.model))
            self._step["weights"] = {name: norm_of(weight) for name, weight in weights.items() if weight.requires_grad}
            self._step["weights_hash"] = hash_of(weights)
            self._step["random"] = random
            record.steps.append({"step": state.global_step, **self._step})
            self._step = {"batches": [], "losses": []}
        elif event == "on_train_end":
            record.final_weights = {name: hash_of(weight) for name, weight in _weights(handler.model)}

    def _count_calls(self, owner: type, name: str, method: Callable[..., object]) -> None:
        """Count the calls of a method of the script; a training that never makes one counts 0."""
        label = f"{owner.__name__}.{name}"
        if self._current is not None:
            self._current.calls.setdefault(label, 0)
        if (owner, name) in self._wrapped:
            return

        @wraps(method)
        def counted(trainer: ObservedTrainer, *args: object, **kwargs: object) -> object:
            if self._current is not None:
                self._current.calls[label] = self._current.calls.get(label, 0) + 1
            return method(trainer, *args, **kwargs)

        self._wrapped.add((owner, name))
        setattr(owner, name, counted)

    # ---- transformers, which has no observers ----

    def watch_transformers(self) -> None:
        """Let the trainer of transformers tell what portico's tells by itself."""
        import transformers

        trainers: Any = transformers.Trainer
        construct: Callable[..., None] = trainers.__init__

        @wraps(construct)
        def constructed(trainer: "transformers.Trainer", *args: object, **kwargs: object) -> None:
            self.on_trainer_init(trainer)
            for owner in type(trainer).__mro__:
                if "training_step" in vars(owner) and (owner, "outermost") not in self._wrapped:
                    self._wrapped.add((owner, "outermost"))
                    owner.training_step = self._record_step(owner.training_step)  # type: ignore[attr-defined]
            construct(trainer, *args, **kwargs)

        trainers.__init__ = constructed

    def _record_step(self, method: Callable[..., "torch.Tensor"]) -> Callable[..., "torch.Tensor"]:
        @wraps(method)
        def recorded(
            trainer: "transformers.Trainer",
            model: "nn.Module",
            inputs: dict[str, Any],
            *args: object,
            **kwargs: object,
        ) -> "torch.Tensor":
            # A subclass calls the step of its base; only the outermost one is the step.
            if not self._depth:
                self.on_training_step_begin(trainer, model, inputs)
            self._depth += 1
            try:
                loss = method(trainer, model, inputs, *args, **kwargs)
            finally:
                self._depth -= 1
            if not self._depth:
                self.on_training_step_end(trainer, model, loss)
            return loss

        return recorded


def _defines(kind: type, event: str) -> bool:
    return any(event in vars(base) for base in kind.__mro__ if not base.__module__.startswith("transformers."))


def _listen(record: ScriptRecord) -> None:
    """Keep what the library announces to have no effect, and which operators are not deterministic."""
    show = warnings.showwarning

    def hear(message: str) -> None:
        if "no effect" in message and message not in record.announced:
            record.announced.append(message)
        operator = message.partition(" does not have a deterministic")[0]
        if operator != message and operator not in record.operators:
            record.operators.append(operator)

    def showed(message: Warning | str, *args: Any, **kwargs: Any) -> None:
        hear(str(message))
        show(message, *args, **kwargs)

    class Listener(logging.Handler):
        @override
        def emit(self, record: logging.LogRecord) -> None:
            hear(record.getMessage())

    warnings.showwarning = showed
    logging.getLogger("transformers").addHandler(Listener())


# ---- Numbers ----


def _weights(model: "nn.Module") -> Iterator[tuple[str, "nn.Parameter"]]:
    for name, weight in model.named_parameters():
        yield name.removeprefix("module."), weight


def norm_of(tensor: "torch.Tensor") -> float:
    """Return the L2 norm of a tensor, summed in float64."""
    return float(tensor.detach().double().norm())


def hash_of(value: object) -> int:
    """Return a CRC-32 of tensors and arrays in dicts, lists and tuples, with their names, types and shapes."""
    import numpy
    import torch

    checksum = 0
    if isinstance(value, torch.Tensor):
        plain = value.detach().cpu().contiguous()
        checksum = zlib.crc32(f"{plain.dtype}{tuple(plain.shape)}".encode())
        return zlib.crc32(plain.reshape(-1).view(torch.uint8).numpy().tobytes(), checksum)
    if isinstance(value, Mapping):
        for name in sorted(value, key=str):
            checksum = zlib.crc32(f"{name}:{hash_of(value[name])}".encode(), checksum)
        return checksum
    if isinstance(value, list | tuple):
        for item in value:
            checksum = zlib.crc32(f"{hash_of(item)}".encode(), checksum)
        return checksum
    if isinstance(value, numpy.ndarray | numpy.generic):  # its representation leaves out the middle
        return zlib.crc32(value.tobytes(), zlib.crc32(f"{value.dtype}{value.shape}".encode()))
    return zlib.crc32(repr(value).encode())


def random_states() -> dict[str, int]:
    """Return a hash of the state of each global generator."""
    import numpy
    import torch

    of_numpy = numpy.random.get_state(legacy=False)["state"]
    states = {
        "python": zlib.crc32(repr(random.getstate()).encode()),
        "numpy": zlib.crc32(repr(of_numpy["key"].tobytes()).encode(), of_numpy["pos"]),
        "torch": hash_of(torch.random.get_rng_state()),
    }
    if torch.cuda.is_initialized():
        states["cuda"] = hash_of(torch.cuda.get_rng_state())
    return states


# ---- The process ----


def main() -> None:
    end_with_parent()
    join()
    pass_on()
    is_module = sys.argv[1] == "-m"
    Script(sys.argv[1 + is_module], tuple(sys.argv[2 + is_module :]), is_module).run()


if __name__ == "__main__":
    main()
