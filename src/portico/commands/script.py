"""The command `portico run`: a script as Python would run it, with the trainer of transformers replaced."""

import argparse
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import wraps
from importlib import import_module
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from portico import __version__, replacement
from portico.distributed.mpi import join_mpi
from portico.errors import InputError
from portico.registration import when_imported

# Put first on the path of child processes: it holds `sitecustomize`, which Python imports when it starts.
_SITE = Path(__file__).parent / "site"
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
    "callbacks": "callback of transformers or Lightning to add, such as package.Class; may be repeated",
    "loggers": "Lightning logger to add: csv, tensorboard or package.Class; may be repeated",
}
# Frozen into Python, it has no file.
_RUNPY = runpy.run_path.__code__.co_filename
# What `accelerate launch --mixed_precision` sets, which transformers follows.
_PRECISIONS = {"bf16": "bf16-mixed", "fp16": "16-mixed"}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a script and exit as it does; exit with 1 and a sentence if there is no such script."""
    parser = argparse.ArgumentParser(
        prog="portico run",
        usage="portico run [OPTIONS] SCRIPT.py [ARGUMENTS]\n       portico run [OPTIONS] -m MODULE [ARGUMENTS]",
        description="Run a script with Trainer, TrainingArguments and their Seq2Seq variants replaced by portico's, "
        "in the libraries that it imports too.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_run_options(parser)
    given = sys.argv[1:] if arguments is None else arguments
    try:
        script, own = Script.split(parser, given)
        options = vars(parser.parse_args(own))
        watch = TrainingWatch(options)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(1) from error
    try:
        script.run()
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
    watch.report()


def add_run_options(parser: "argparse.ArgumentParser | argparse._ArgumentGroup") -> None:
    """Add an option for each of `portico.install`."""
    for one in fields(replacement.RunOptions):
        if one.name in ("callbacks", "loggers"):
            flag = "--logger" if one.name == "loggers" else "--callbacks"
            parser.add_argument(
                flag, dest=one.name, action="extend", nargs=1, default=[], metavar="NAME", help=_HELP[one.name]
            )
        else:
            kinds: dict[str, Callable[[str], Any]] = {"num_nodes": int, "devices": _devices}
            flag = f"--{one.name.replace('_', '-')}"
            parser.add_argument(flag, type=kinds.get(one.name, str), metavar=one.name.upper(), help=_HELP[one.name])


def _devices(value: str) -> int | str:
    numbers = value.split(",")
    if value != "auto" and not all(one.strip().lstrip("-").isdigit() for one in numbers if one or len(numbers) == 1):
        raise argparse.ArgumentTypeError(f"'{value}' is not a number of devices; give one, '0,1' for some, or auto")
    return int(value) if value.lstrip("-").isdigit() else value


@dataclass(frozen=True)
class Script:
    """A script, or a module if ``is_module``, with its arguments."""

    target: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False

    @classmethod
    def split(
        cls, parser: argparse.ArgumentParser, arguments: Sequence[str], *, anywhere: Sequence[str] = ()
    ) -> tuple["Script", list[str]]:
        """Return the script of a command line, and the options of ``parser`` that precede it.

        The options named ``anywhere`` may also follow the script, up to ``--``.

        Raises:
            InputError: If there is no script.
        """
        own: list[str] = []
        rest: list[str] = []
        waiting = list(arguments)
        while waiting:
            word = waiting.pop(0)
            name = word.partition("=")[0]
            if word == "--" and anywhere:
                rest += waiting
                break
            if word != "-m" and name in (anywhere if rest else parser._option_string_actions):
                own.append(word)
                takes_value = parser._option_string_actions[name].nargs != 0
                own += [waiting.pop(0)] if takes_value and "=" not in word and waiting else []
            elif not rest and word.startswith("-") and word != "-m":
                near = get_close_matches(name, parser._option_string_actions, n=1)
                meant = f"did you mean {near[0]}?" if near else f"`{parser.prog} --help` lists those."
                raise InputError(f"{name} is not an option of `{parser.prog}`; {meant}")
            else:
                rest.append(word)
                if not anywhere:
                    rest += waiting
                    break
        if not rest:
            parser.parse_args(own)  # it may ask for help
            raise InputError(f"There is no script to run; the command is `{parser.prog} SCRIPT.py [ARGUMENTS]`.")
        is_module = rest[0] == "-m"
        if is_module and len(rest) == 1:
            raise InputError(f"-m is not followed by a module; the command is `{parser.prog} -m MODULE [ARGUMENTS]`.")
        script = cls(rest[is_module], tuple(rest[is_module + 1 :]), is_module)
        script.check()
        return script, own

    @property
    def is_folder_of_run(self) -> bool:
        """Whether this is a folder that `portico train` wrote, instead of a script."""
        return not self.is_module and Path(self.target, "config.yaml").is_file()

    def check(self) -> None:
        if self.is_module:
            sys.path.insert(0, os.getcwd())  # noqa: PTH109
            try:
                spec = find_spec(self.target)
            except ModuleNotFoundError as error:
                raise InputError(f"-m {self.target}: {error}; correct the name, or install its package.") from error
            finally:
                del sys.path[0]
            if spec is None:
                raise InputError(f"-m {self.target}: no module of that name; the folder is {Path.cwd()}.")
        elif not Path(self.target).exists():
            script = f"{self.target}.py"
            advice = (
                f"did you mean {script}?"
                if Path(script).is_file()
                else "give the path of a script, or -m and the name of a module."
            )
            raise InputError(f"{self.target}: no such file; {advice}")
        elif Path(self.target).is_dir() and any(Path(self.target).glob("checkpoint-*")) and not self.is_folder_of_run:
            raise InputError(
                f"{self.target}: the folder that a script wrote; give the script itself, with its arguments."
            )
        elif Path(self.target).is_dir() and not (Path(self.target, "__main__.py").exists() or self.is_folder_of_run):
            raise InputError(f"{self.target}: a folder without __main__.py; give the path of a script in it.")

    def run(self) -> None:
        """Run the script as ``__main__``; its errors show its own frames alone."""
        sys.argv = [self.target, *self.arguments]
        try:
            if self.is_module:
                sys.path[0] = os.getcwd()  # noqa: PTH109
                runpy.run_module(self.target, run_name="__main__", alter_sys=True)
            else:
                self._run_file()
        except (Exception, KeyboardInterrupt) as error:
            trace = error.__traceback__
            while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, _RUNPY):
                trace = trace.tb_next
            sys.excepthook(type(error), error.with_traceback(trace), trace)
            raise SystemExit(130 if isinstance(error, KeyboardInterrupt) else 1) from None

    def _run_file(self) -> None:
        """Run the file like Python: by its absolute path, with ``sys.argv`` as it came, as a module that stays."""
        path = Path(self.target).resolve()
        if path.is_dir():
            runpy.run_path(str(path), run_name="__main__")
            return
        sys.path[0] = str(path.parent)
        module = ModuleType("__main__")
        module.__file__ = str(Path.cwd() / self.target)
        module.__loader__ = SourceFileLoader("__main__", module.__file__)
        sys.modules["__main__"] = module
        exec(compile(path.read_bytes(), module.__file__, "exec"), vars(module))


def pass_on() -> None:
    """Let the processes started from here begin with the replacement."""
    path = [str(_SITE), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(path)


class TrainingWatch:
    """Replaces the trainer for a script with options, says so, and says where the script trained without it."""

    def __init__(self, given: dict[str, Any]) -> None:
        options = {name: value for name, value in given.items() if value not in (None, [])}
        precision = _PRECISIONS.get(os.environ.get("ACCELERATE_MIXED_PRECISION", ""))
        if precision is not None:
            options.setdefault("precision", precision)
        if os.environ.get("ACCELERATE_USE_CPU", "").lower() == "true":
            join_mpi()
        self._is_first = all(int(os.environ.get(rank, "0")) == 0 for rank in ("RANK", "LOCAL_RANK"))
        self._num_trainers = self._num_own_steps = 0
        self._own_loop: str | None = None
        replacement.install_on_demand(**options)
        pass_on()
        for part in (*options.get("callbacks", ()), *options.get("loggers", ())):
            replacement.check_part(part)
        replacement.when_replaced(self._count_trainers)
        when_imported("torch", self._count_own_steps)

    def report(self) -> None:
        """Say what ran without Lightning."""
        if self._num_trainers:
            return
        self._say("the script built no Trainer, so nothing ran in Lightning")
        if self._own_loop is not None:
            self._say(f"{self._own_loop} trained {self._num_own_steps} steps in a loop of its own")

    def _say(self, sentence: str) -> None:
        if self._is_first:
            print(f"portico {__version__}: {sentence}.", file=sys.stderr)

    def _count_trainers(self) -> None:
        self._say(replacement.summary())
        trainer: Any = import_module("portico.trainer").Trainer
        construct = trainer.__init__

        @wraps(construct)
        def counted(*args: Any, **kwargs: Any) -> None:
            self._num_trainers += 1
            construct(*args, **kwargs)

        trainer.__init__ = counted

    def _count_own_steps(self) -> None:
        def count(optimizer: Any, *_: Any) -> None:
            if self._num_trainers:
                return
            self._num_own_steps += 1
            if self._own_loop is None:
                self._own_loop = _user_of_torch()

        import_module("torch.optim.optimizer").register_optimizer_step_post_hook(count)


def _user_of_torch() -> str:
    """Return the nearest module on the stack that neither belongs to torch nor to accelerate, and its line."""
    frame = sys._getframe(2)
    while frame.f_back is not None:
        name = frame.f_globals.get("__name__", "")
        if name.partition(".")[0] not in ("torch", "accelerate", "contextlib", "functools"):
            break
        frame = frame.f_back
    return f"{frame.f_globals.get('__name__')} ({frame.f_code.co_filename}:{frame.f_lineno})"


if __name__ == "__main__":
    main()
