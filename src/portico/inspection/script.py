"""Scripts of users, run as Python would run them."""

import argparse
import os
import re
import runpy
import sys
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from portico.errors import InputError, exit_with_error

# Put first on the path of child processes: it holds `sitecustomize`, which Python imports when it starts.
_SITE = Path(__file__).parents[1] / "commands" / "site"
# The default port of torchrun and of accelerate's launcher is fixed too.
_PORT = re.compile(r"MASTER_PORT|tcp://|torchrun|torch\.distributed\.(?:run|launch)\b|notebook_launcher")
# Frozen into Python, it has no file.
_RUNPY = runpy.run_path.__code__.co_filename


@dataclass(frozen=True)
class Script:
    """A script, or a module if ``is_module``, with its arguments."""

    target: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False
    options: tuple[str, ...] = ()
    """What preceded the script on the command line."""

    @classmethod
    def split(
        cls,
        parser: argparse.ArgumentParser,
        arguments: Sequence[str],
        *,
        anywhere: Sequence[str] = (),
        takes_runs: bool = False,
    ) -> tuple["Script", list[str]]:
        """Return the script of a command line, and the options of ``parser`` that precede it.

        The options named ``anywhere`` may also follow the script, up to ``--``. With ``takes_runs`` the folder of a
        run may stand in place of a script.

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
        script = cls(rest[is_module], tuple(rest[is_module + 1 :]), is_module, tuple(own))
        script.check(takes_runs=takes_runs)
        return script, own

    @property
    def is_folder_of_run(self) -> bool:
        """Whether this is a folder that `portico train` wrote, instead of a script."""
        return not self.is_module and Path(self.target, "config.yaml").is_file()

    def names_a_port(self) -> bool:
        """Return whether the processes of this script meet at a port that only one run of it can use."""
        spec = find_spec(self.target) if self.is_module else None
        file = Path(self.target if spec is None else spec.origin or "")
        source = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
        return "MASTER_PORT" in os.environ or _PORT.search(source) is not None

    def check(self, *, takes_runs: bool) -> None:
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
        elif self.is_folder_of_run:
            if not takes_runs:
                raise InputError(
                    f"{self.target}: the folder of a run; give a script, or replay a step of the run with "
                    "`portico replay`."
                )
        elif Path(self.target).is_dir() and any(Path(self.target).glob("checkpoint-*")):
            raise InputError(
                f"{self.target}: the folder that a script wrote; give the script itself, with its arguments."
            )
        elif Path(self.target).is_dir() and not Path(self.target, "__main__.py").exists():
            raise InputError(f"{self.target}: a folder without __main__.py; give the path of a script in it.")

    def run(self) -> None:
        """Run the script as ``__main__``; tracebacks show only the frames of the script."""
        sys.argv = [self.target, *self.arguments]
        try:
            if self.is_module:
                _put_first(os.getcwd())  # noqa: PTH109
                runpy.run_module(self.target, run_name="__main__", alter_sys=True)
            else:
                self._run_file()
        except Exception as error:
            trace = error.__traceback__
            while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, _RUNPY):
                trace = trace.tb_next
            if isinstance(error, InputError) and trace is not None:
                place = f" (line {trace.tb_lineno} of {trace.tb_frame.f_code.co_filename})"
                exit_with_error(f"{error}{'' if self._has_flag_of(error) else place}")
            sys.excepthook(type(error), error.with_traceback(trace), trace)
            raise SystemExit(1) from None

    def _has_flag_of(self, error: InputError) -> bool:
        """Return whether the error is about a setting that the command line, and no line of the script, has set."""
        words = [word.partition("=")[0] for word in (*self.options, *self.arguments)]
        flags = {word[2:].replace("-", "_") for word in words if word.startswith("--")}
        return not flags.isdisjoint(re.findall(r"`(\w+)", str(error)))

    def _run_file(self) -> None:
        """Run the file like Python: by its absolute path, with ``sys.argv`` as it came, as a module that stays."""
        path = Path(self.target).resolve()
        if path.is_dir():
            runpy.run_path(str(path), run_name="__main__")
            return
        _put_first(str(path.parent))
        module = ModuleType("__main__")
        module.__file__ = str(Path.cwd() / self.target)
        module.__loader__ = SourceFileLoader("__main__", module.__file__)
        sys.modules["__main__"] = module
        exec(compile(path.read_bytes(), module.__file__, "exec"), vars(module))


def _put_first(folder: str) -> None:
    """Let modules of a script be found as Python would, which puts their folder first unless it is told not to."""
    if not sys.flags.safe_path:
        sys.path[0] = folder
    elif not os.environ.get("PYTHONSAFEPATH"):
        sys.path.insert(0, folder)


def pass_on(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let the processes that are started with ``environment``, by default all, begin with the replacement."""
    path = [str(_SITE), *filter(None, [environment.get("PYTHONPATH")])]
    environment["PYTHONPATH"] = os.pathsep.join(path)


def add_module_option(parser: argparse.ArgumentParser) -> None:
    """Add ``-m`` to the help and the completion of a command; :meth:`Script.split` reads it."""
    parser.add_argument("-m", metavar="MODULE", dest="module", help="run a module, as `python -m` does")


def add_allowed_paths(parser: argparse.ArgumentParser) -> None:
    """Add ``--allow-path`` to a command that reads the folder of a run."""
    parser.add_argument(
        "--allow-path",
        type=Path,
        action="append",
        default=[],
        metavar="PATH",
        help="a file or folder outside of the run that its config.yaml may name as data or model; may be repeated",
    )
