"""The command ``portico run``: a script as Python would run it, with the trainer of transformers replaced."""

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from portico import __version__
from portico.distributed.launchers import join_mpi
from portico.errors import CommandParser, command, is_first_process
from portico.imports import when_imported
from portico.inspection.install import install_on_demand, summary, when_replaced
from portico.inspection.script import Script, add_module_option, pass_on
from portico.observers import ObservedTrainer, Observer, RunOptions, observe
from portico.trust.names import check_part

if TYPE_CHECKING:
    from torch.optim import Optimizer

_EPILOG = """\
Options of portico come before the script; everything after it is the script's own:

  portico run train.py --learning_rate 1e-4
  portico run --strategy ddp --devices 2 --precision bf16-mixed train.py --learning_rate 1e-4
  torchrun --nproc-per-node 2 -m portico run -m my_package.train
"""
_HELP = {
    "accelerator": "Lightning accelerator, such as cpu or cuda",
    "strategy": "Lightning strategy, such as ddp",
    "devices": "devices of this machine, one process each",
    "num_nodes": "number of machines",
    "precision": "Lightning precision, such as bf16-mixed",
    "corrections": "deviations of transformers to correct, separated by commas, or all",
    "callbacks": "lr_finder, batch_size_finder, or package.Class of transformers or Lightning to add; may be repeated",
    "loggers": "Lightning logger to add: csv, tensorboard or package.Class; may be repeated",
}
# What `accelerate launch --mixed_precision` sets, which transformers follows.
_PRECISIONS = {"bf16": "bf16-mixed", "fp16": "16-mixed"}


def build_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="portico run",
        usage="portico run [OPTIONS] SCRIPT.py [ARGUMENTS]\n       portico run [OPTIONS] -m MODULE [ARGUMENTS]",
        description="Run a script with Trainer, TrainingArguments and their Seq2Seq variants replaced by portico's, "
        "in the libraries that it imports too.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_module_option(parser)
    add_run_options(parser)
    return parser


@partial(command, runs_scripts=True)
def main(arguments: Sequence[str]) -> None:
    """Run a script and exit as it does; exit with 1 and a sentence if there is no such script."""
    parser = build_parser()
    script, own = Script.split(parser, arguments)
    watch = TrainingWatch(vars(parser.parse_args(own)))
    try:
        script.run()
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
    except KeyboardInterrupt:
        raise KeyboardInterrupt(watch.interruption()) from None
    watch.report()


def add_run_options(parser: "argparse.ArgumentParser | argparse._ArgumentGroup") -> None:
    """Add an option for each of ``portico.install``."""
    for field in fields(RunOptions):
        if field.name in ("callbacks", "loggers"):
            flag = "--logger" if field.name == "loggers" else "--callbacks"
            parser.add_argument(
                flag, dest=field.name, action="extend", nargs=1, default=[], metavar="NAME", help=_HELP[field.name]
            )
        else:
            kinds: dict[str, Callable[[str], Any]] = {"num_nodes": int, "devices": _devices}
            flag = f"--{field.name.replace('_', '-')}"
            parser.add_argument(
                flag, type=kinds.get(field.name, str), metavar=field.name.upper(), help=_HELP[field.name]
            )


def _devices(value: str) -> int | str:
    numbers = value.split(",")
    if value != "auto" and not all(
        number.strip().lstrip("-").isdigit() for number in numbers if number or len(numbers) == 1
    ):
        raise argparse.ArgumentTypeError(f"'{value}' is not a number of devices; give one, '0,1' for some, or auto")
    return int(value) if value.lstrip("-").isdigit() else value


class TrainingWatch(Observer):
    """Replaces the trainer for a script with options, says so, and says where the script trained without it."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        options = {name: value for name, value in given.items() if value not in (None, [])}
        precision = _PRECISIONS.get(os.environ.get("ACCELERATE_MIXED_PRECISION", ""))
        if precision is not None:
            options.setdefault("precision", precision)
        if os.environ.get("ACCELERATE_USE_CPU", "").lower() == "true":
            join_mpi()
        self._output_dir: str | None = None
        self._num_trainers = 0
        self._num_own_steps = 0
        self._own_loop: str | None = None
        install_on_demand(**options)
        pass_on()
        for part in (*options.get("callbacks", ()), *options.get("loggers", ())):
            check_part(part)
        observe(self)
        when_replaced(lambda: self._say(summary()))
        when_imported("torch", self._count_own_steps)

    def on_trainer_init(self, trainer: ObservedTrainer) -> None:
        self._num_trainers += 1

    def on_train(self, trainer: ObservedTrainer, checkpoint: "str | bool | None") -> "str | bool | None":
        self._output_dir = str(trainer.args.output_dir)
        return checkpoint

    def interruption(self) -> str:
        """Return what an interrupt left, and how to continue from there."""
        if self._output_dir is None:
            return "Interrupted before the training."
        from portico.checkpoint.manifest import steps_of_checkpoints

        steps = steps_of_checkpoints(Path(self._output_dir))
        if not steps:
            return "Interrupted before the first checkpoint; the same command starts over."
        last = max(steps, key=lambda folder: steps[folder])
        return (
            f"Interrupted; the last checkpoint is '{last}'. Continue from it with "
            "`trainer.train(resume_from_checkpoint=True)` in the script."
        )

    def report(self) -> None:
        """Say what ran without Lightning, in this process: others that the script started say nothing."""
        if self._num_trainers:
            return
        self._say("the process of the script built no Trainer, so nothing in it ran in Lightning")
        if self._own_loop is not None:
            self._say(f"{self._own_loop} trained {self._num_own_steps} steps in a loop of its own")

    def _say(self, sentence: str) -> None:
        if is_first_process():
            print(f"portico {__version__}: {sentence}.", file=sys.stderr)

    def _count_own_steps(self) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        def count(optimizer: "Optimizer", *_: object) -> None:
            if self._num_trainers:
                return
            self._num_own_steps += 1
            if self._own_loop is None:
                self._own_loop = _user_of_torch()

        register_optimizer_step_post_hook(count)


def _user_of_torch() -> str:
    """Return the nearest module on the stack that neither belongs to torch nor to accelerate, and its line."""
    frame = sys._getframe(2)
    while frame.f_back is not None:
        name = frame.f_globals.get("__name__", "")
        if name.partition(".")[0] not in ("torch", "accelerate", "contextlib", "functools"):
            break
        frame = frame.f_back
    return f"{frame.f_globals.get('__name__')} ({frame.f_code.co_filename}:{frame.f_lineno})"
