"""What :mod:`portico.inspection.recorder` does once a script has imported a trainer.

Nothing here draws random numbers or touches a gradient. portico tells an observer; the methods of transformers are
wrapped where they are defined, so that the library still sees which of them a subclass overrides.
"""

import logging
import random
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from types import FunctionType
from typing import Any

import numpy
import torch
import transformers
from torch import nn
from transformers import TrainerControl, TrainerState, TrainingArguments
from typing_extensions import override

from portico.inspection.install import original
from portico.inspection.records import RecordSettings, ScriptRecord, TrainingRecord, adapt_arguments
from portico.compat.transformers import CallbackHandler
from portico.observers import ObservedTrainer, Observer, observe

_LIBRARIES = ("transformers", "portico", "torch", "builtins", "abc", "typing")


def record_trainers(settings: RecordSettings, record: ScriptRecord) -> None:
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
    def on_training_step_begin(self, trainer: ObservedTrainer, model: nn.Module, inputs: dict[str, Any]) -> None:
        self._step["batches"].append(hash_of(inputs))

    @override
    def on_training_step_end(self, trainer: ObservedTrainer, model: nn.Module, loss: torch.Tensor) -> None:
        self._step["losses"].append(float(loss))

    def watch_events(self) -> None:
        """Note every event of a trainer, before its callbacks are called."""
        handlers: Any = CallbackHandler
        call: Callable[..., TrainerControl] = handlers.call_event

        @wraps(call)
        def called(
            handler: CallbackHandler,
            event: str,
            args: TrainingArguments,
            state: TrainerState,
            control: TrainerControl,
            **kwargs: object,
        ) -> TrainerControl:
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
                own = [one for one in handler.callbacks if type(one).__module__.partition(".")[0] not in _LIBRARIES]
                for callback in own:
                    if _defines(type(callback), event):
                        record.draws.setdefault(f"{type(callback).__name__}.{event}", state.global_step)
            if event == "on_step_end" and self.settings.steps and state.global_step >= self.settings.steps:
                control.should_training_stop = True
            return control

        handlers.call_event = called

    def _note(
        self, record: TrainingRecord, event: str, handler: CallbackHandler, state: TrainerState, random: dict[str, int]
    ) -> None:
        record.log_history = state.log_history
        if event == "on_train_begin":
            record.initial_weights = hash_of(dict(_weights(handler.model)))
        elif event == "on_pre_optimizer_step":
            norms = {name: norm_of(one.grad) for name, one in _weights(handler.model) if one.grad is not None}
            self._step["gradients"] = norms
            self._step["gradient_norm"] = sum(norm**2 for norm in norms.values()) ** 0.5
            self._step["learning_rate"] = [float(group["lr"]) for group in handler.optimizer.param_groups]
        elif event == "on_step_end":
            weights = dict(_weights(handler.model))
            self._step["weights"] = {name: norm_of(one) for name, one in weights.items() if one.requires_grad}
            self._step["weights_hash"] = hash_of(weights)
            self._step["random"] = random
            record.steps.append({"step": state.global_step, **self._step})
            self._step = {"batches": [], "losses": []}
        elif event == "on_train_end":
            record.final_weights = {name: hash_of(one) for name, one in _weights(handler.model)}

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
        trainers: Any = transformers.Trainer
        construct: Callable[..., None] = trainers.__init__

        @wraps(construct)
        def constructed(trainer: transformers.Trainer, *args: object, **kwargs: object) -> None:
            self.on_trainer_init(trainer)
            for owner in type(trainer).__mro__:
                if "training_step" in vars(owner) and (owner, "outermost") not in self._wrapped:
                    self._wrapped.add((owner, "outermost"))
                    owner.training_step = self._recorded_step(owner.training_step)  # type: ignore[attr-defined]
            construct(trainer, *args, **kwargs)

        trainers.__init__ = constructed

    def _recorded_step(self, method: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        @wraps(method)
        def recorded(
            trainer: transformers.Trainer, model: nn.Module, inputs: dict[str, Any], *args: object, **kwargs: object
        ) -> torch.Tensor:
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


def _weights(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    for name, weight in model.named_parameters():
        yield name.removeprefix("module."), weight


def norm_of(tensor: torch.Tensor) -> float:
    """Return the L2 norm of a tensor, summed in float64."""
    return float(tensor.detach().double().norm())


def hash_of(value: object) -> int:
    """Return a CRC-32 of tensors and arrays in dicts, lists and tuples, with their names, types and shapes."""
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
    of_numpy = numpy.random.get_state(legacy=False)["state"]
    states = {
        "python": zlib.crc32(repr(random.getstate()).encode()),
        "numpy": zlib.crc32(repr(of_numpy["key"].tobytes()).encode(), of_numpy["pos"]),
        "torch": hash_of(torch.random.get_rng_state()),
    }
    if torch.cuda.is_initialized():
        states["cuda"] = hash_of(torch.cuda.get_rng_state())
    return states
