"""One step of a training: what ``portico replay`` shows of it, and the observer that steers a training there."""

import json
import math
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import numpy
import torch
from rich.console import Console
from rich.table import Column, Table
from torch import distributed, nn
from torch.utils.data import DataLoader
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from typing_extensions import override

from portico.arguments import correction_names
from portico.callbacks import LossSpike, find_spike
from portico.checkpoint.manifest import EPOCH_START_FILE, Examination, examine, reading
from portico.errors import InputError
from portico.inspection.recorder import norm_of
from portico.loop.model_setup import loss_shifts_labels
from portico.loop.outputs import count_labels
from portico.observers import ObservedTrainer, Observer
from portico.report.page import Section, html_table, render_page
from portico.trust.disk import read_text, write_text

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

STEP_FILE = "step.json"
# What an uninterrupted run has done, also where a resume under transformers would not.
_LAUNCHING = ("ddp_spawn", "ddp_fork", "ddp_notebook")
_OF_A_REPLAY = ("resume_order", "renamed_weights")
_MOST_SHOWN = 160  # characters of an example, on the terminal


class StepReplayed(SystemExit):
    """Ends the script once the step is open, in every process; no handler for errors should catch it."""


@dataclass
class Example:
    """One example of the step: its index in the dataset, if there are indices, and its loss without dropout."""

    index: int | None
    loss: float
    num_labels: int
    """Labels that the loss is a mean over; 0 if none of the example's labels counts."""
    share: float
    text: str


@dataclass
class OpenStep:
    number: int
    checkpoint: str | None = None
    """Where the replay began; None at the start."""
    checked: tuple[int, float, float] | None = None
    """Step, recorded loss and replayed loss that were compared; None without a recorded one."""
    loss: float = math.nan
    learning_rate: float = math.nan
    examples: list[Example] = field(default_factory=list)
    gradients: dict[str, float] = field(default_factory=dict)
    """L2 norm of the gradients by layer, after clipping."""
    updates: dict[str, tuple[float, float]] = field(default_factory=dict)
    """L2 norm of the change of the weights by layer, and relative to the norm of the weights."""
    first_not_finite: str | None = None
    """The first module in the order of the forward pass whose output is not finite."""
    is_first_process: bool = True
    begins_inside_epoch: bool = False
    """Whether the checkpoint is from inside an epoch."""
    knows_order: bool = False
    """Whether the checkpoint holds the random states from which the order of its epoch was drawn."""

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Return the step that another process has opened and written into ``folder``, if one has."""
        file = folder / STEP_FILE
        if not file.is_file():
            return None
        step = cls(**json.loads(file.read_text(encoding="utf-8")))
        step.examples = [Example(**example) for example in cast(list[dict[str, Any]], step.examples)]
        return step

    @property
    def is_confirmed(self) -> bool | None:
        """Whether the replayed loss is the recorded one; None if none was recorded."""
        if self.checked is None:
            return None
        _, recorded, replayed = self.checked
        return recorded == replayed or (math.isnan(recorded) and math.isnan(replayed))

    @property
    def lead(self) -> str:
        """One sentence on where the replay came from, and whether it is the recorded run."""
        start = f"from {self.checkpoint}" if self.checkpoint else "from the start, since no checkpoint precedes it"
        if self.checked is None:
            return f"Replayed {start}; the run recorded no loss of the replayed steps alone to compare with."
        step, recorded, replayed = self.checked
        if self.is_confirmed:
            return f"Replayed {start}; the loss logged at step {step} is the recorded one, {recorded:.9g}."
        return (
            f"Replayed {start}; at step {step} the run recorded a loss of {recorded:.9g}, the replay {replayed:.9g}. "
            f"{self.reason}"
        )

    @property
    def reason(self) -> str:
        """A sentence on why the replayed loss may differ from the recorded one."""
        others = (
            "the code, the data, the settings or the versions have changed, the recorded run was itself resumed "
            "before, or worker processes draw random numbers for the data"
        )
        if not self.begins_inside_epoch:
            return f"They differ if {others}."
        if not self.knows_order:
            return (
                "The checkpoint is from inside an epoch and does not hold the random states from which its order was "
                f"drawn, so the replay has other batches unless the order depends on seed and epoch only; or {others}."
            )
        return (
            "The checkpoint is from inside an epoch: if the collator or the dataset draws random numbers, train with "
            f"`corrections=['resume_order']`, which keeps them; else {others}."
        )

    @property
    def facts(self) -> list[tuple[str, str]]:
        return [
            ("loss", f"{self.loss:.6g}"),
            ("learning rate", f"{self.learning_rate:.6g}"),
            ("examples", str(len(self.examples))),
            ("first output that is not finite", self.first_not_finite or "none"),
        ]

    @property
    def example_rows(self) -> list[tuple[str, str, str, str]]:
        """Rank, dataset index, loss and share, text; the largest share of the loss first."""
        return [
            (
                "" if example.index is None else str(example.index),
                f"{example.loss:.4g}",
                f"{example.share:.1%}",
                example.text,
            )
            for example in self.examples
        ]

    @property
    def layer_rows(self) -> list[tuple[str, str, str, str]]:
        return [
            (name, f"{norm:.4g}", f"{self.updates[name][0]:.4g}", f"{self.updates[name][1]:.2e}")
            for name, norm in self.gradients.items()
            if name in self.updates
        ]

    def show(self, console: Console) -> None:
        """Print the step; the console must not read markup, which examples may look like."""
        console.print(f"Step {self.number}. {self.lead}")
        for name, value in self.facts:
            console.print(f"  {name}: {value}")
        examples = Table("index", "loss", "share", "example")
        for row in self.example_rows:
            examples.add_row(*row[:3], row[3][:_MOST_SHOWN])
        layers = Table(Column("layer", overflow="fold"), "gradient norm", "update norm", "update / weights")
        for row in self.layer_rows:
            layers.add_row(*row)
        console.print(examples)
        console.print(layers)

    def page(self) -> str:
        """Return the step as a page that needs no other file."""
        return render_page(
            f"Step {self.number}",
            self.lead,
            html_table(("", ""), self.facts),
            [
                Section("Examples", html_table(("index", "loss", "share of the loss", "example"), self.example_rows)),
                Section(
                    "Layers",
                    html_table(("layer", "gradient norm", "update norm", "update / weights"), self.layer_rows),
                ),
            ],
            kicker="Training step",
        )


class Replay(Observer, TrainerCallback):
    """Steers the first training of this process to a step, and opens it.

    Args:
        number: The step; None for the step of the worst spike in the log of the run.
        folder: Receives what the training writes.
        run_folder: The folder of the run, by default the output folder of the trainer.
    """

    def __init__(self, number: int | None, folder: Path, *, run_folder: Path | None = None) -> None:
        self.number = number or 0
        self.step: OpenStep | None = None
        self.num_trainings = 0
        self.last_step = 0
        self.launching_strategy: str | None = None  # which trains in processes that this object does not reach
        self.checked_step: int | None = None
        self.is_finished = False
        self._folder = folder
        self._run_folder = run_folder
        self._recorded: list[dict[str, Any]] = []
        self._indices: list[object] = []  # of the batches that are drawn and not trained on yet
        self._drawn: object = None  # indices of the batch trained on now
        self._dataset: object = None
        self._before: dict[str, torch.Tensor] = {}
        self._hooks: list[RemovableHandle] = []

    # ---- What the trainer tells ----

    @override
    def on_arguments_init(self, args: object) -> None:
        # The recorded run went on where the replay resumes: in the order of the epoch, with all weights.
        given: Any = args
        names = correction_names(given.corrections)
        given.corrections = [*names, *(name for name in _OF_A_REPLAY if name not in names)]
        strategy = getattr(given, "strategy", None)
        self.launching_strategy = strategy if strategy in _LAUNCHING else None

    @override
    def on_train(self, trainer: ObservedTrainer, checkpoint: str | bool | None) -> str | bool | None:
        self.num_trainings += 1
        return checkpoint if self.num_trainings > 1 else self._prepare(trainer)

    @override
    def on_train_dataloader(self, trainer: ObservedTrainer, loader: DataLoader[Any]) -> None:
        self._dataset = getattr(loader, "dataset", None)

    @override
    def on_indices_drawn(self, loader: DataLoader[Any], indices: object) -> None:
        if loader.dataset is self._dataset:
            self._indices.append(indices)

    @override
    def on_training_step_begin(self, trainer: ObservedTrainer, model: nn.Module, inputs: dict[str, Any]) -> None:
        self._drawn = self._indices.pop(0) if self._indices else None

    @override
    def on_compute_loss(self, trainer: ObservedTrainer, model: nn.Module, inputs: dict[str, Any]) -> None:
        if self._open_at(trainer.state) is not None:
            with _same_randomness():
                self._add_examples(trainer, model, inputs)
            self._watch_outputs(model)

    @override
    def on_training_step_end(self, trainer: ObservedTrainer, model: nn.Module, loss: torch.Tensor) -> None:
        step = self._open_at(trainer.state)
        if step is not None:
            step.loss = (0.0 if math.isnan(step.loss) else step.loss) + float(loss)
        while self._hooks:
            self._hooks.pop().remove()

    def _open_at(self, state: TrainerState) -> OpenStep | None:
        """Return the step to open while the training makes it."""
        return self.step if state.global_step + 1 == self.number else None

    # ---- The way to the step ----

    def _prepare(self, trainer: ObservedTrainer) -> str | None:
        """Read the recorded log, find the nearest checkpoint, and return it."""
        run = self._run_folder or Path(str(trainer.args.output_dir))
        folders = {
            path: int(path.name.rpartition("-")[2]) for path in run.glob("checkpoint-*") if path.name[11:].isdigit()
        }
        states = [run / "trainer_state.json", *(path / "trainer_state.json" for path in folders)]
        recorded = []
        for file in filter(Path.is_file, states):
            with reading(file):
                state = json.loads(read_text(file))
                recorded.append((int(state["global_step"]), int(state["max_steps"]), state["log_history"]))
        _, num_steps, self._recorded = max(recorded, key=lambda one: one[0], default=(0, 0, []))
        if 0 < num_steps < self.number:
            raise InputError(f"{run} recorded a training of {num_steps} steps; name one of them with --step.")
        if not self.number:
            spike = find_spike(self._recorded)
            if spike is None:
                raise InputError(f"{run} recorded no spike of the loss; name a step with --step.")
            self.number = spike[0]
        before = [path for path, step in folders.items() if step < self.number and examine(path) == Examination()]
        rolls_back = _rolls_back(trainer)
        # A logged loss is the mean since the one before: only from there on can it be repeated.
        logged = {row["step"] for row in self._recorded if "loss" in row and row["step"] < self.number}
        if rolls_back:  # each logged loss may cause it
            usable = [path for path in before if folders[path] in logged]
        else:
            usable = [path for path in before if folders[path] <= max(logged, default=0)] or before
        checkpoint = max(usable, key=lambda path: folders[path], default=None)
        self.last_step = 0 if checkpoint is None else folders[checkpoint]
        if self.last_step <= max(logged, default=0):
            later = (row["step"] for row in self._recorded if "loss" in row and row["step"] >= self.number)
            self.checked_step = next(later, None)
        self.step = OpenStep(self.number, checkpoint=None if checkpoint is None else str(checkpoint))
        if checkpoint is not None:
            with reading(checkpoint / "trainer_state.json"):
                epoch = json.loads(read_text(checkpoint / "trainer_state.json")).get("epoch") or 0.0
            self.step.begins_inside_epoch = float(epoch) % 1 != 0
            self.step.knows_order = (checkpoint / EPOCH_START_FILE).is_file()
        trainer.args.output_dir = str(self._folder)
        # Nothing of a replay is kept or published.
        trainer.args.push_to_hub = False
        if rolls_back:
            # To a checkpoint of the run, or to one that the replay itself writes.
            for path in (path for path in before if folders[path] <= self.last_step):
                with suppress(FileExistsError):  # by another process
                    (self._folder / path.name).symlink_to(path.absolute(), target_is_directory=True)
        else:
            trainer.args.save_strategy = "no"
        trainer.callback_handler.add_callback(self)
        return self.step.checkpoint

    # ---- At the step ----

    def _add_examples(self, trainer: ObservedTrainer, model: nn.Module, inputs: dict[str, Any]) -> None:
        """Compute the loss of each example of a batch by itself, in evaluation mode."""
        assert self.step is not None
        if not isinstance(inputs, Mapping):
            return
        sizes = [value.shape[0] for value in inputs.values() if isinstance(value, torch.Tensor) and value.dim()]
        was_training = {module for module in model.modules() if module.training}
        model.eval()
        with torch.no_grad():
            for number in range(min(sizes, default=0)):
                one = {
                    name: value[number : number + 1] if isinstance(value, torch.Tensor) and value.dim() else value
                    for name, value in inputs.items()
                }
                loss = float(trainer.compute_loss(model, dict(one)))
                index, num_labels = self._index_in_dataset(number), _num_labels(model, one)
                self.step.examples.append(Example(index, loss, num_labels, 0.0, _text(trainer, one)))
        for module in was_training:
            module.training = True

    def _index_in_dataset(self, number: int) -> int | None:
        """Return the index of an example of the present batch, if every one of its indices is known."""
        drawn = self._drawn
        return drawn[number] if isinstance(drawn, list) and None not in drawn and number < len(drawn) else None

    def _watch_outputs(self, model: nn.Module) -> None:
        """Note the first module that returns a value that is not finite, until the hooks are removed."""
        step = self.step

        def look(name: str, module: nn.Module, inputs: object, output: object) -> None:
            assert step is not None
            if step.first_not_finite is None and not all(_is_finite(tensor) for tensor in _tensors(output)):
                step.first_not_finite = f"{name or 'the model'} ({type(module).__name__})"

        # The compiler cannot trace that the values decide, and would warn of these lines.
        untraced: Callable[..., None] = torch.compiler.disable(look)
        self._hooks = [module.register_forward_hook(partial(untraced, name)) for name, module in model.named_modules()]

    @override
    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        step = self._open_at(state)
        if step is None:
            return
        step.learning_rate = float(kwargs["optimizer"].param_groups[0]["lr"])
        squares: dict[str, float] = {}
        for name, weight in kwargs["model"].named_parameters():
            if weight.grad is not None:
                layer = name.rpartition(".")[0] or name
                squares[layer] = squares.get(layer, 0.0) + norm_of(weight.grad) ** 2
                self._before[name] = weight.detach().clone()
        step.gradients = {name: square**0.5 for name, square in squares.items()}

    @override
    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        step = self._open_at(state)
        if step is None:
            return
        squares: dict[str, tuple[float, float]] = {}
        for name, weight in kwargs["model"].named_parameters():
            if name in self._before:
                layer = name.rpartition(".")[0] or name
                change, size = squares.get(layer, (0.0, 0.0))
                before = self._before[name]
                squares[layer] = change + norm_of(weight.detach() - before) ** 2, size + norm_of(before) ** 2
        step.updates = {
            name: (change**0.5, (change / size) ** 0.5 if size else math.inf)
            for name, (change, size) in squares.items()
        }

    @override
    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.last_step = state.global_step
        if state.global_step == self.number and self.checked_step is None:
            self._finish(None)

    @override
    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if "loss" in kwargs["logs"] and state.global_step == self.checked_step:
            self._finish(kwargs["logs"]["loss"])

    def _finish(self, logged: float | None) -> None:
        """Compare with the recorded loss, rank the examples and end the script."""
        assert self.step is not None
        if logged is not None:
            row = next(row for row in self._recorded if "loss" in row and row["step"] == self.checked_step)
            self.step.checked = row["step"], row["loss"], logged
        self._gather(self.step)
        # The loss of a step is a mean over labels, so a longer text weighs more. Without labels, nan is no defect.
        counted = [example for example in self.step.examples if example.num_labels]
        total = sum(example.loss * example.num_labels for example in counted if math.isfinite(example.loss))
        for example in counted:
            weighted = example.loss * example.num_labels
            example.share = (
                weighted / total if total and math.isfinite(example.loss) else float(not math.isfinite(example.loss))
            )
        # An example whose loss is not finite comes first.
        self.step.examples.sort(key=lambda one: (math.isfinite(one.loss) or not one.num_labels, -one.share))
        self.is_finished = True
        if self.step.is_first_process:  # for the command, if the script has started this process
            write_text(self._folder / STEP_FILE, json.dumps(asdict(self.step)))
        raise StepReplayed

    def _gather(self, step: OpenStep) -> None:
        """Collect what the other processes saw of the step; its loss is their mean."""
        if not (distributed.is_available() and distributed.is_initialized()):
            return
        parts: list[Any] = [None] * distributed.get_world_size()
        distributed.all_gather_object(parts, (step.examples, step.loss, step.first_not_finite))
        step.is_first_process = distributed.get_rank() == 0
        step.examples = [example for examples, _, _ in parts for example in examples]
        step.loss = sum(loss for _, loss, _ in parts) / len(parts)
        step.first_not_finite = next((name for _, _, name in parts if name), None)


def _rolls_back(trainer: ObservedTrainer) -> bool:
    """Return whether a callback would restore a checkpoint during the training."""
    return any(
        isinstance(callback, LossSpike) and callback.action == "rollback"
        for callback in trainer.callback_handler.callbacks
    )


def _num_labels(model: nn.Module, inputs: Mapping[str, Any]) -> int:
    """Return over how many labels the loss of one example is a mean, 1 if that is unknown."""
    if not isinstance(inputs.get("shift_labels", inputs.get("labels")), torch.Tensor):
        return 1
    return int(count_labels([dict(inputs)], shifts_labels=loss_shifts_labels(getattr(model, "module", model))) or 0)


def _text(trainer: ObservedTrainer, inputs: Mapping[str, Any]) -> str:
    """Return the tokens of one example as text, or the values of its inputs without a tokenizer."""
    collator = getattr(trainer, "data_collator", None)
    tokenizer: Any = getattr(trainer, "processing_class", None) or getattr(collator, "tokenizer", None)
    tokens = inputs.get("input_ids")
    if tokens is not None and hasattr(tokenizer, "decode"):
        return str(tokenizer.decode([token for token in tokens[0].tolist() if token != tokenizer.pad_token_id]))
    return ", ".join(f"{name} {_values(value)}" for name, value in inputs.items())


def _values(value: object) -> str:
    """Return the numbers of an array with four decimal places, the middle of a large array left out."""
    if not hasattr(value, "tolist"):
        return str(value)
    return " ".join(
        numpy.array2string(numpy.array(value.tolist()), precision=4, separator=", ", threshold=100).split()
    )


@contextmanager
def _same_randomness() -> Iterator[None]:
    """Leave the global generators as they were before the block."""
    of_python, of_numpy = random.getstate(), numpy.random.get_state()
    with torch.random.fork_rng():
        yield
    random.setstate(of_python)
    numpy.random.set_state(of_numpy)


def _tensors(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors(item)


def _is_finite(tensor: torch.Tensor) -> bool:
    # Detached: activation checkpointing counts the tensors that autograd saves, and computes them again without hooks.
    return not tensor.is_floating_point() or bool(tensor.detach().isfinite().all())
