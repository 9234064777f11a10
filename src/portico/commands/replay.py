"""The command `portico replay`: a training again, from its nearest checkpoint to one step, which is opened."""

import argparse
import json
import math
import os
import pkgutil
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from portico import replacement
from portico.commands.recorder import norm_of
from portico.commands.script import Script, add_run_options, pass_on
from portico.errors import InputError
from portico.report.page import Section, check_writable, html_table, render_page, write_text

_EPILOG = """\
Options may follow the script too, up to `--`.

  portico replay outputs/mrc/RUN --step 120
  portico replay train.py --output_dir out --from-spike --report step.html
"""
# Options that may follow the script.
_ANYWHERE = ("--step", "--from-spike", "--report", "--trust-config")
_MOST_SHOWN = 160  # characters of an example, on the terminal


# Processes that a replayed script starts find their settings here.
VARIABLE = "PORTICO_REPLAY"


class StepReplayed(SystemExit):
    """Ends the script once the step is open, in every process; no handler for errors should catch it."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Print what happened in a step; exit with 1 and a sentence if it cannot be reached."""
    parser = argparse.ArgumentParser(
        prog="portico replay",
        usage="portico replay [OPTIONS] SCRIPT.py [ARGUMENTS]\n       portico replay [OPTIONS] FOLDER",
        description="Run a training again from its nearest checkpoint to one step and show that step: its examples "
        "with the loss of each, gradients and updates by layer, the first module with an output that is not finite. "
        "The run is a script of transformers with its arguments, or the folder of a `portico train`; its own output "
        "folder is read and never written to.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--step", type=int, metavar="N", help="the optimizer step to open")
    parser.add_argument(
        "--from-spike", action="store_true", help="open the step of the worst spike of the logged loss"
    )
    parser.add_argument("--report", type=Path, metavar="FILE", help="write a page")
    parser.add_argument(
        "--trust-config",
        action="store_true",
        help="import and call what the config.yaml of FOLDER names outside of portico; only for a run that you trust",
    )
    add_run_options(parser.add_argument_group("options of `portico run`, as the script was run"))
    given_arguments = sys.argv[1:] if arguments is None else list(arguments)
    try:
        script, own = Script.split(parser, given_arguments, anywhere=_ANYWHERE)
        given = parser.parse_args(own)
        if (given.step is None) != given.from_spike:
            raise InputError("`--step N` and `--from-spike` are both given, or neither; give one of them.")
        if given.step is not None and given.step < 1:
            raise InputError(f"`--step {given.step}` is not positive; the first step is 1.")
        if given.report is not None:
            check_writable(given.report)
        options = {one.name: getattr(given, one.name) for one in fields(replacement.RunOptions)}
        if script.is_folder_of_run and any(options.values()):
            raise InputError(
                "The options of `portico run` are for scripts; a folder is replayed as its config.yaml says."
            )
        step = _replayed(script, given.step, options, trusts_config=given.trust_config)
        if step.is_first_process:
            step.show(Console(soft_wrap=True, highlight=False))
            if given.report is not None:
                write_text(given.report, step.page())
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(1) from error
    raise SystemExit(0 if step.is_confirmed is not False else 1)


def _replayed(script: Script, number: int | None, options: Mapping[str, Any], *, trusts_config: bool) -> "OpenStep":
    with tempfile.TemporaryDirectory(prefix="portico-replay-") as folder:
        replay = Replay(number, Path(folder))
        try:
            if script.is_folder_of_run:
                _train_again(replay, Path(script.target), folder, trusts_config=trusts_config)
            else:
                replacement.install_on_demand(**{name: value for name, value in options.items() if value})
                replacement.when_replaced(replay.watch)
                os.environ[VARIABLE] = json.dumps({"number": number, "folder": folder})
                pass_on()
                script.run()
        except StepReplayed:
            assert replay.step is not None
            return replay.step
    if replay.num_trainings == 0:
        raise InputError(f"{script.target} trained with no Trainer; give a script that calls `Trainer.train`.")
    raise InputError(f"The training ended before step {replay.number}; its last step is {replay.last_step}.")


def join() -> None:
    """Take part in the replay of a run of several processes, one of which started this one."""
    settings = json.loads(os.environ[VARIABLE])
    replacement.when_replaced(Replay(settings["number"], Path(settings["folder"])).watch)


def _train_again(replay: "Replay", run: Path, folder: str, *, trusts_config: bool) -> None:
    """Train the experiment of a folder of `portico train` again, with another output folder and without loggers.

    Raises:
        InputError: If the configuration names code outside of portico and is not trusted: a folder may come from
            elsewhere, and what `_target_` names would be imported and called.
    """
    yaml, cli = import_module("yaml"), import_module("portico.cli.composition")
    settings = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    if not isinstance(settings, dict) or not {"args", "paths"} <= settings.keys():
        raise InputError(
            f"{run / 'config.yaml'}: no configuration of `portico train`; give the folder of one of its runs."
        )
    settings["paths"]["output_dir"] = folder
    settings["args"].pop("resume_from_checkpoint", None)
    settings["logger"] = {}
    foreign = [name for name in _targets(settings) if not _is_own(name)]
    if foreign and not trusts_config:
        raise InputError(
            f"{run / 'config.yaml'} names {', '.join(foreign)}, which would be imported and called; if you trust the "
            "run, allow it with --trust-config."
        )
    Replay.run_folder = run
    replay.watch()
    cli.experiment_of(settings, folder).train()


def _is_own(path: str) -> bool:
    """Return whether a dotted path names something that portico defines, and not what one of its modules imports."""
    if not path.startswith("portico."):
        return False
    try:
        target = pkgutil.resolve_name(path)
    except (ImportError, AttributeError, ValueError):
        return True  # refused with its reason when it is built
    return str(getattr(target, "__module__", "")).partition(".")[0] == "portico"


def _targets(settings: Any) -> Iterator[str]:
    """Yield what nested settings name to be called, also as AllenNLP does, and files that name more."""
    if isinstance(settings, Mapping):
        yield from (str(settings[key]) for key in ("_target_", "allennlp_config") if settings.get(key))
        if "." in str(settings.get("type", "")):
            yield str(settings["type"])
        settings = settings.values()
    elif not isinstance(settings, list):
        return
    for value in settings:
        yield from _targets(value)


@dataclass
class Example:
    """One example of the step: its index in the dataset, if there are indices, and its loss without dropout."""

    index: int | None
    loss: float
    share: float
    text: str


@dataclass
class OpenStep:
    """What happened in one step.

    Attributes:
        checkpoint: Where the replay began; None at the start.
        checked: Step, recorded loss and replayed loss that were compared; None without a recorded one.
        gradients: L2 norm of the gradients by layer, after clipping.
        updates: L2 norm of the change of the weights by layer, and relative to that of the weights.
        first_not_finite: The first module in the order of the forward pass whose output is not finite.
    """

    number: int
    checkpoint: str | None = None
    checked: tuple[int, float, float] | None = None
    loss: float = math.nan
    learning_rate: float = math.nan
    examples: list[Example] = field(default_factory=list)
    gradients: dict[str, float] = field(default_factory=dict)
    updates: dict[str, tuple[float, float]] = field(default_factory=dict)
    first_not_finite: str | None = None
    is_first_process: bool = True

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
            f"Replayed {start}; at step {step} the run recorded a loss of {recorded:.9g}, the replay {replayed:.9g}."
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
            ("" if one.index is None else str(one.index), f"{one.loss:.4g}", f"{one.share:.1%}", one.text)
            for one in self.examples
        ]

    @property
    def layer_rows(self) -> list[tuple[str, str, str, str]]:
        return [
            (name, f"{norm:.4g}", f"{self.updates[name][0]:.4g}", f"{self.updates[name][1]:.2e}")
            for name, norm in self.gradients.items()
            if name in self.updates
        ]

    def show(self, console: Console) -> None:
        """Print the step as tables."""
        console.print(f"Step {self.number}. {self.lead}", markup=False)
        for name, value in self.facts:
            console.print(f"  {name}: {value}", markup=False)
        examples = Table("index", "loss", "share", "example")
        for row in self.example_rows:
            examples.add_row(*row[:3], escape(row[3][:_MOST_SHOWN]))
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


class Replay:
    """Steers the first training of this process to a step, and opens it.

    Args:
        number: The step; None for that of the worst spike in the log of the run.
        folder: Receives what the training writes.
    """

    run_folder: Path | None = None

    def __init__(self, number: int | None, folder: Path) -> None:
        self.number = number or 0
        self.step: OpenStep | None = None
        self.num_trainings = self.last_step = 0
        self.checked_step: int | None = None
        self._folder = folder
        self._recorded: list[dict[str, Any]] = []
        self._indices: list[list[int] | None] = []
        self._dataset: Any = None
        self._before: dict[str, Any] = {}

    def watch(self) -> None:
        """Wrap the trainer."""
        trainer_class: Any = import_module("portico.trainer").Trainer
        train, load, step = trainer_class.train, trainer_class.get_train_dataloader, trainer_class.training_step

        @wraps(train)
        def trained(trainer: Any, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
            self.num_trainings += 1
            if self.num_trainings > 1:
                return train(trainer, resume_from_checkpoint, *args, **kwargs)
            return train(trainer, self._prepare(trainer), *args, **kwargs)

        @wraps(load)
        def loaded(trainer: Any) -> Any:
            loader = load(trainer)
            self._dataset = getattr(loader, "dataset", None)
            return loader

        trainer_class.train, trainer_class.get_train_dataloader = trained, loaded
        trainer_class.training_step = self._opened(step)
        iterator: Any = import_module("torch.utils.data.dataloader")._BaseDataLoaderIter
        fetch = iterator._next_index

        # Called for each batch in order, in this process also where workers load it.
        @wraps(fetch)
        def fetched(batches: Any) -> Any:
            index = fetch(batches)
            if batches._dataset is self._dataset:
                self._indices.append(index if isinstance(index, list) and None not in index else None)
            return index

        iterator._next_index = fetched

    def _prepare(self, trainer: Any) -> str | None:
        """Read the recorded log, find the nearest checkpoint, and return it."""
        run = self.run_folder or Path(trainer.args.output_dir)
        manifest = import_module("portico.checkpoint.manifest")
        folders = {
            path: int(path.name.rpartition("-")[2]) for path in run.glob("checkpoint-*") if path.name[11:].isdigit()
        }
        states = [run / "trainer_state.json", *(path / "trainer_state.json" for path in folders)]
        logs = [json.loads(file.read_text(encoding="utf-8"))["log_history"] for file in states if file.is_file()]
        self._recorded = max(logs, key=lambda log: log[-1]["step"] if log else 0, default=[])
        if not self.number:
            spike = import_module("portico.callbacks").find_spike(self._recorded)
            if spike is None:
                raise InputError(f"{run} recorded no spike of the loss; name a step with --step.")
            self.number = spike[0]
        before = [path for path, step in folders.items() if step < self.number and manifest.damage(path) is None]
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
            self.checked_step = self.awaited(self.number)
        self.step = OpenStep(self.number, checkpoint=None if checkpoint is None else str(checkpoint))
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
        trainer.add_callback(self._callback(trainer))
        return self.step.checkpoint

    def _opened(self, training_step: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the base class's step: an override calls it, or counts as opaque with its gradients alone."""

        @wraps(training_step)
        def opened(trainer: Any, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            indices = self._indices.pop(0) if self._indices else None
            if self.step is None or trainer.state.global_step + 1 != self.number:
                return training_step(trainer, model, inputs, *args, **kwargs)
            with _same_randomness():
                self._add_examples(trainer, model, inputs, indices)
            with _watched_outputs(model, self.step):
                loss = training_step(trainer, model, inputs, *args, **kwargs)
            before = 0.0 if math.isnan(self.step.loss) else self.step.loss
            self.step.loss = before + float(loss)
            return loss

        return opened

    def _add_examples(self, trainer: Any, model: Any, inputs: Any, indices: list[int] | None) -> None:
        """Compute the loss of each example of a batch by itself, in evaluation mode."""
        torch = import_module("torch")
        assert self.step is not None
        if not isinstance(inputs, Mapping):
            return
        inputs = trainer._prepare_inputs(dict(inputs))
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
                index = indices[number] if indices is not None and number < len(indices) else None
                self.step.examples.append(Example(index, loss, 0.0, _text(trainer, one)))
        for module in was_training:
            module.training = True

    def _callback(self, trainer: Any) -> Any:
        transformers = import_module("transformers")
        replay = self

        class ReplayEvents(transformers.TrainerCallback):  # type: ignore[name-defined]
            def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
                if state.global_step + 1 == replay.number:
                    replay.note_gradients(model, trainer.optimizer)

            def on_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
                if state.global_step + 1 == replay.number:
                    replay.note_updates(model)

            def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                replay.last_step = state.global_step
                if state.global_step == replay.number and replay.checked_step is None:
                    replay.finish(None)

            def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
                if "loss" in logs and state.global_step == replay.checked_step:
                    replay.finish(logs["loss"])

        return ReplayEvents()

    def awaited(self, step: int) -> int | None:
        """Return the next step from ``step`` on whose loss was recorded."""
        return next((row["step"] for row in self._recorded if "loss" in row and row["step"] >= step), None)

    def note_gradients(self, model: Any, optimizer: Any) -> None:
        assert self.step is not None
        self.step.learning_rate = float(optimizer.param_groups[0]["lr"])
        squares: dict[str, float] = {}
        for name, weight in model.named_parameters():
            if weight.grad is not None:
                layer = name.rpartition(".")[0] or name
                squares[layer] = squares.get(layer, 0.0) + norm_of(weight.grad) ** 2
                self._before[name] = weight.detach().clone()
        self.step.gradients = {name: square**0.5 for name, square in squares.items()}

    def note_updates(self, model: Any) -> None:
        assert self.step is not None
        squares: dict[str, tuple[float, float]] = {}
        for name, weight in model.named_parameters():
            if name in self._before:
                layer = name.rpartition(".")[0] or name
                change, size = squares.get(layer, (0.0, 0.0))
                before = self._before[name]
                squares[layer] = change + norm_of(weight.detach() - before) ** 2, size + norm_of(before) ** 2
        self.step.updates = {
            name: (change**0.5, (change / size) ** 0.5 if size else math.inf)
            for name, (change, size) in squares.items()
        }

    def finish(self, logged: float | None) -> None:
        """Compare with the recorded loss, rank the examples and end the script."""
        assert self.step is not None
        if logged is not None:
            row = next(row for row in self._recorded if "loss" in row and row["step"] == self.checked_step)
            self.step.checked = row["step"], row["loss"], logged
        self._gather(self.step)
        total = sum(one.loss for one in self.step.examples if math.isfinite(one.loss))
        for one in self.step.examples:
            one.share = one.loss / total if total and math.isfinite(one.loss) else float(not math.isfinite(one.loss))
        # An example whose loss is not finite comes first.
        self.step.examples.sort(key=lambda one: (math.isfinite(one.loss), -one.share))
        raise StepReplayed

    def _gather(self, step: OpenStep) -> None:
        """Collect what the other processes saw of the step; its loss is their mean."""
        distributed = import_module("torch").distributed
        if not (distributed.is_available() and distributed.is_initialized()):
            return
        parts: list[Any] = [None] * distributed.get_world_size()
        distributed.all_gather_object(parts, (step.examples, step.loss, step.first_not_finite))
        step.is_first_process = distributed.get_rank() == 0
        step.examples = [one for examples, _, _ in parts for one in examples]
        step.loss = sum(loss for _, loss, _ in parts) / len(parts)
        step.first_not_finite = next((name for _, _, name in parts if name), None)


def _rolls_back(trainer: Any) -> bool:
    """Return whether a callback would restore a checkpoint during the training."""
    kind: Any = import_module("portico.callbacks").LossSpike
    return any(isinstance(one, kind) and one.action == "rollback" for one in trainer.callback_handler.callbacks)


def _text(trainer: Any, inputs: Mapping[str, Any]) -> str:
    """Return the tokens of one example as text, or the shapes of its inputs without a tokenizer."""
    tokenizer: Any = trainer.processing_class or getattr(trainer.data_collator, "tokenizer", None)
    tokens = inputs.get("input_ids")
    if tokens is not None and hasattr(tokenizer, "decode"):
        return str(tokenizer.decode([token for token in tokens[0].tolist() if token != tokenizer.pad_token_id]))
    return ", ".join(f"{name} {getattr(value, 'tolist', lambda v=value: v)()}" for name, value in inputs.items())


@contextmanager
def _same_randomness() -> Iterator[None]:
    """Leave the global generators as they were before the block."""
    numpy, torch = import_module("numpy"), import_module("torch")
    states = random.getstate(), numpy.random.get_state()
    with torch.random.fork_rng():
        yield
    random.setstate(states[0])
    numpy.random.set_state(states[1])


@contextmanager
def _watched_outputs(model: Any, step: OpenStep) -> Iterator[None]:
    """Note the first module that returns a value that is not finite."""
    torch = import_module("torch")

    def tensors(value: Any) -> Iterator[Any]:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, Mapping | list | tuple):
            for item in value.values() if isinstance(value, Mapping) else value:
                yield from tensors(item)

    def look(name: str) -> Callable[..., None]:
        def hook(module: Any, inputs: Any, output: Any) -> None:
            if step.first_not_finite is None:
                finite = all(bool(one.isfinite().all()) for one in tensors(output) if one.is_floating_point())
                step.first_not_finite = None if finite else f"{name or 'the model'} ({type(module).__name__})"

        return hook

    hooks = [module.register_forward_hook(look(name)) for name, module in model.named_modules()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


if __name__ == "__main__":
    main()
