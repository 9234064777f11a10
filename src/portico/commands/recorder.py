"""Record what a training script computes, step by step, under either library, without changing it.

``python -m portico.commands.recorder SCRIPT.py ARGUMENTS`` runs the script in this process; the settings are in the
environment variable ``PORTICO_RECORD``. Nothing here draws random numbers or touches a gradient: methods are wrapped
where they are defined, so that a library still sees which of them a subclass overrides.
"""

import json
import logging
import os
import random
import shutil
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import wraps
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any

from portico import replacement
from portico.commands.script import Script, pass_on
from portico.registration import when_imported

VARIABLE = "PORTICO_RECORD"
RECORD_FILE = "record.json"
# Of the folder in place of an output folder, while a script is recorded.
SUFFIX = ".portico-verify"
_LIBRARIES = ("transformers", "portico", "torch", "builtins", "abc", "typing")


@dataclass
class RecordSettings:
    """What to record.

    Args:
        library: "transformers", or "portico" to replace it.
        folder: Receives `record.json`.
        steps: Optimizer steps after which a training is ended; by default none.
        options: For `portico.install`.
        arguments: Training arguments to set, whatever the script says.
        batch_divisor: By how much to divide the batch of each process, so that a step keeps its size on more of them.
        finds_operators: Whether to collect warnings of operators that are not deterministic.
    """

    library: str
    folder: str
    steps: int | None = None
    options: dict[str, Any] = field(default_factory=dict)
    arguments: dict[str, Any] = field(default_factory=dict)
    batch_divisor: int = 1
    finds_operators: bool = False


@dataclass
class TrainingRecord:
    """What one trainer did; numbers are Python floats and hashes CRC-32 values.

    Attributes:
        steps: For each optimizer step: `batches`, `losses`, `learning_rate`, `gradients` and `weights` (L2 norm by
            parameter), `gradient_norm`, `weights_hash`, and `random` states (`python`, `numpy`, `torch`).
        events: Callback events in order, each with the global step.
        draws: The callbacks of the script at whose event a random state changed: `Class.event`, with the first step.
        calls: How often each method was called that a class outside the library overrides.
    """

    initial_weights: int | None = None
    steps: list[dict[str, Any]] = field(default_factory=list)
    events: list[tuple[str, int]] = field(default_factory=list)
    draws: dict[str, int] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    log_history: list[dict[str, Any]] = field(default_factory=list)
    final_weights: dict[str, int] = field(default_factory=dict)


class Recorder:
    """Wraps the trainer of one library in this process."""

    def __init__(self, settings: RecordSettings) -> None:
        self.settings = settings
        self.trainings: list[TrainingRecord] = []
        self.announced: list[str] = []
        self.operators: list[str] = []
        self._of_handler: dict[int, TrainingRecord] = {}
        self._open: dict[str, Any] = {"batches": [], "losses": []}
        self._depth = 0
        self._current: TrainingRecord | None = None
        self._folders: dict[str, str] = {}
        self._wrapped: set[tuple[type, str]] = set()

    def start(self) -> None:
        if self.settings.library == "portico":
            replacement.install_on_demand(**self.settings.options)
            replacement.when_replaced(lambda: self._wrap("portico.trainer", "portico.arguments"))
        else:
            when_imported("transformers.trainer", lambda: self._wrap("transformers.trainer", ""))
            when_imported("transformers.training_args", lambda: self._wrap("", "transformers.training_args"))
        if self.settings.finds_operators:
            when_imported("torch", lambda: import_module("torch").use_deterministic_algorithms(True, warn_only=True))
            warnings.filterwarnings("always", message=".*does not have a deterministic implementation")

    def save(self) -> None:
        folder = Path(self.settings.folder)
        folder.mkdir(parents=True, exist_ok=True)
        content = {
            "trainings": [asdict(one) for one in self.trainings],
            "folders": list(self._folders.values()),
            "announced": self.announced,
            "operators": self.operators,
        }
        (folder / RECORD_FILE).write_text(json.dumps(content), encoding="utf-8")

    def _wrap(self, trainer_home: str, arguments_home: str) -> None:
        if arguments_home:
            self._wrap_arguments(import_module(arguments_home).TrainingArguments)
        if trainer_home:
            self._wrap_trainer(import_module(trainer_home).Trainer)
            self._wrap_events(import_module("transformers.trainer_callback").CallbackHandler)
            self._listen()

    def _redirected(self, output_dir: str) -> str:
        """Return a folder next to the script's own, whose neighbours it may read."""
        if output_dir not in self._folders:
            self._folders[output_dir] = f"{Path(output_dir).absolute()}{SUFFIX}"
            if "LOCAL_RANK" not in os.environ:
                shutil.rmtree(self._folders[output_dir], ignore_errors=True)
        return self._folders[output_dir]

    def _wrap_arguments(self, kind: Any) -> None:
        finish = kind.__post_init__

        @wraps(finish)
        def redirected(args: Any, *given: Any) -> None:
            if not str(args.output_dir).endswith(SUFFIX):
                args.output_dir = self._redirected(str(args.output_dir))
            for field_name, value in self.settings.arguments.items():
                setattr(args, field_name, value)
            by = self.settings.batch_divisor
            for field_name in ("per_device_train_batch_size", "gradient_accumulation_steps"):
                if by > 1 and getattr(args, field_name) % by == 0 and not vars(args).get("_is_divided"):
                    setattr(args, field_name, getattr(args, field_name) // by)
                    vars(args)["_is_divided"] = True
            finish(args, *given)

        kind.__post_init__ = redirected

    def _wrap_trainer(self, kind: Any) -> None:
        construct = kind.__init__

        @wraps(construct)
        def constructed(trainer: Any, *args: Any, **kwargs: Any) -> None:
            self._current = TrainingRecord()
            self.trainings.append(self._current)
            for owner in type(trainer).__mro__:
                if "training_step" in vars(owner):
                    self._replace(owner, "training_step", self._recorded_step)
                if owner.__module__.partition(".")[0] not in _LIBRARIES:
                    for name, value in list(vars(owner).items()):
                        if isinstance(value, FunctionType) and not name.startswith("__") and _of_transformers(name):
                            self._replace(owner, name, self._counted, label=f"{owner.__name__}.{name}")
            construct(trainer, *args, **kwargs)
            self._of_handler[id(trainer.callback_handler)] = self._current

        kind.__init__ = constructed

    def _replace(self, owner: Any, name: str, wrapper: Callable[..., Any], **options: Any) -> None:
        if (owner, f"{name}{options}") not in self._wrapped:
            self._wrapped.add((owner, f"{name}{options}"))
            setattr(owner, name, wrapper(vars(owner)[name], **options))

    def _counted(self, method: Callable[..., Any], label: str) -> Callable[..., Any]:
        @wraps(method)
        def counted(trainer: Any, *args: Any, **kwargs: Any) -> Any:
            if self._current is not None:
                self._current.calls[label] = self._current.calls.get(label, 0) + 1
            return method(trainer, *args, **kwargs)

        if self._current is not None:
            self._current.calls.setdefault(label, 0)
        return counted

    def _recorded_step(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def recorded(trainer: Any, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            # A subclass calls the step of its base; only the outermost one is the step.
            if not self._depth:
                self._open["batches"].append(hash_of(inputs))
            self._depth += 1
            try:
                loss = method(trainer, model, inputs, *args, **kwargs)
            finally:
                self._depth -= 1
            if not self._depth:
                self._open["losses"].append(float(loss))
            return loss

        return recorded

    def _wrap_events(self, kind: Any) -> None:
        call = kind.call_event

        @wraps(call)
        def called(handler: Any, event: str, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
            record = self._of_handler.get(id(handler), self._current)
            if record is None or event == "on_prediction_step":
                return call(handler, event, args, state, control, **kwargs)
            before = random_states()
            record.events.append((event, state.global_step))
            self._note(record, event, handler, state, before)
            control = call(handler, event, args, state, control, **kwargs)
            if random_states() != before:
                own = [one for one in handler.callbacks if type(one).__module__.partition(".")[0] not in _LIBRARIES]
                for callback in own:
                    if event in dir(type(callback)) and _defines(type(callback), event):
                        record.draws.setdefault(f"{type(callback).__name__}.{event}", state.global_step)
            if event == "on_step_end" and self.settings.steps and state.global_step >= self.settings.steps:
                control.should_training_stop = True
            return control

        kind.call_event = called

    def _note(self, record: TrainingRecord, event: str, handler: Any, state: Any, states: dict[str, int]) -> None:
        record.log_history = state.log_history
        if event == "on_train_begin":
            record.initial_weights = hash_of(dict(_weights(handler.model)))
        elif event == "on_pre_optimizer_step":
            norms = {name: norm_of(one.grad) for name, one in _weights(handler.model) if one.grad is not None}
            self._open["gradients"] = norms
            self._open["gradient_norm"] = sum(norm**2 for norm in norms.values()) ** 0.5
            self._open["learning_rate"] = [float(group["lr"]) for group in handler.optimizer.param_groups]
        elif event == "on_step_end":
            weights = dict(_weights(handler.model))
            self._open["weights"] = {name: norm_of(one) for name, one in weights.items() if one.requires_grad}
            self._open["weights_hash"] = hash_of(weights)
            self._open["random"] = states
            record.steps.append({"step": state.global_step, **self._open})
            self._open = {"batches": [], "losses": []}
        elif event == "on_train_end":
            record.final_weights = {name: hash_of(one) for name, one in _weights(handler.model)}

    def _listen(self) -> None:
        """Keep what the library announces to have no effect, and which operators are not deterministic."""
        show = warnings.showwarning

        def showed(message: Warning | str, *args: Any, **kwargs: Any) -> None:
            self._hear(str(message))
            show(message, *args, **kwargs)

        warnings.showwarning = showed
        listener = logging.Handler()
        listener.emit = lambda record: self._hear(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("transformers").addHandler(listener)

    def _hear(self, message: str) -> None:
        if "no effect" in message and message not in self.announced:
            self.announced.append(message)
        operator = message.partition(" does not have a deterministic")[0]
        if operator != message and operator not in self.operators:
            self.operators.append(operator)


def _of_transformers(name: str) -> bool:
    return hasattr(replacement.original("Trainer"), name)


def _defines(kind: type, event: str) -> bool:
    return any(event in vars(base) for base in kind.__mro__ if not base.__module__.startswith("transformers."))


def _weights(model: Any) -> Iterator[tuple[str, Any]]:
    for name, weight in model.named_parameters():
        yield name.removeprefix("module."), weight


def norm_of(tensor: Any) -> float:
    """Return the L2 norm of a tensor, summed in float64."""
    return float(tensor.detach().double().norm())


def hash_of(value: Any) -> int:
    """Return a CRC-32 of tensors and arrays in dicts, lists and tuples, with their names, types and shapes."""
    torch = import_module("torch")
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
    if hasattr(value, "tobytes"):  # its representation leaves out the middle
        return zlib.crc32(value.tobytes(), zlib.crc32(f"{value.dtype}{value.shape}".encode()))
    return zlib.crc32(repr(value).encode())


def random_states() -> dict[str, int]:
    """Return a hash of the state of each global generator."""
    numpy, torch = import_module("numpy"), import_module("torch")
    states = {
        "python": zlib.crc32(repr(random.getstate()).encode()),
        "numpy": zlib.crc32(repr(numpy.random.get_state()[1].tobytes()).encode(), numpy.random.get_state()[2]),
        "torch": hash_of(torch.random.get_rng_state()),
    }
    if torch.cuda.is_initialized():
        states["cuda"] = hash_of(torch.cuda.get_rng_state())
    return states


def recording_environment(settings: RecordSettings) -> dict[str, str]:
    return {**os.environ, VARIABLE: json.dumps(asdict(settings))}


def join() -> None:
    """Take part in a recorded run of several processes: the same arguments, and the end at the same step."""
    Recorder(RecordSettings(**json.loads(os.environ[VARIABLE]))).start()


def main() -> None:
    """Run the script of the command line and write its record, also when it fails."""
    recorder = Recorder(RecordSettings(**json.loads(os.environ[VARIABLE])))
    recorder.start()
    pass_on()
    is_module = sys.argv[1] == "-m"
    try:
        Script(sys.argv[1 + is_module], tuple(sys.argv[2 + is_module :]), is_module).run()
    finally:
        recorder.save()


if __name__ == "__main__":
    main()
