"""Errors in the user's input, each also of the type that ``transformers`` or PrimeQA raise at the same place.

A command turns them into a sentence and an exit code.
"""

import argparse
import errno
import io
import os
import re
import select
import signal
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from functools import partial, wraps
from pathlib import Path
from typing import Any, NoReturn, Protocol


class InputError(ValueError):
    """Input that cannot be used.

    The message is one paragraph: what was received, what is allowed and what to set. The command line prints it
    without a traceback.
    """


class InputRuntimeError(InputError, RuntimeError):
    """An :class:`InputError` where ``transformers`` raises ``RuntimeError``; scripts may catch either."""


class InputTypeError(InputError, TypeError):
    """An :class:`InputError` where ``transformers`` raises ``TypeError``; scripts may catch either."""


class InputKeyError(InputError, KeyError):
    """An :class:`InputError` where ``transformers`` raises ``KeyError``; scripts may catch either."""

    # `KeyError` shows its message as a quoted key.
    __str__ = ValueError.__str__


class InputFileNotFoundError(InputError, FileNotFoundError):
    """An :class:`InputError` where ``transformers`` raises ``FileNotFoundError``; scripts may catch either."""


class InputPermissionError(InputError, PermissionError):
    """An :class:`InputError` where ``transformers`` raises ``PermissionError``; scripts may catch either."""


class InputStopIteration(InputError, StopIteration):
    """An :class:`InputError` where PrimeQA raises ``StopIteration``; scripts may catch either."""


class MissingPackageError(InputError, ImportError):
    """A setting needs a package that is not installed."""


# Packages that modules import at their top, and the extras that install them.
_EXTRAS = {"onnx": "ort", "onnxruntime": "ort", "starlette": "demo", "uvicorn": "demo"}


@contextmanager
def naming_the_extra(what: str) -> Iterator[None]:
    """Raise a :class:`MissingPackageError` that names the extra where ``what`` is imported without its package."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        extra = _EXTRAS.get(package)
        if extra is None:
            raise
        raise MissingPackageError(
            f"{what} needs {package}, which is not installed; install it with `pip install 'portico[{extra}]'`."
        ) from error


def reason_of(error: BaseException) -> str:
    """Return the message of an error of a library in one line of at most 300 characters.

    Torch advises to switch ``weights_only`` off for a file that it has refused; this says the opposite.
    """
    if "weights_only" in str(error):
        return (
            "a pickle there holds more than tensors, and opening it in full could run code; get the file as "
            "safetensors, and do not switch `weights_only` off"
        )
    text = " ".join(str(error).split())
    if len(text) > 300:
        text = f"{text[:296].rsplit(' ', 1)[0]} ..."
    return printable(text) or type(error).__name__


def printable(text: str) -> str:
    """Return ``text``, of which a part comes from a damaged file, without characters that a terminal would obey."""
    return "".join(char if char.isprintable() else "\ufffd" for char in text)


@contextmanager
def loading_pretrained(problem: str, advice: str) -> Iterator[None]:
    """Turn whatever ``from_pretrained`` raises into an :class:`InputError`: the problem, the reason and the advice."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # damaged files: tokenizers raises a bare `Exception`, each of the others its own
        raise InputError(f"{problem} ({reason_of(error)}); {advice}") from error


@contextmanager
def explaining_panics() -> Iterator[None]:
    """Raise an :class:`InputError` where a regular expression of a tokenizer panics, which is no ``Exception``."""
    try:
        yield
    except BaseException as error:
        # Other libraries in Rust raise the same class; Onig is the engine of the expressions.
        if type(error).__name__ != "PanicException" or "Onig" not in str(error):
            raise
        raise InputError(
            f"The tokenizer cannot read a text ({reason_of(error)}); correct the regular expressions in its "
            "tokenizer.json, or shorten the text."
        ) from None


@contextmanager
def naming(names: Mapping[str, str]) -> Iterator[None]:
    """Let every :class:`InputError` name settings in backticks as the user set them: ``{argument: key}``."""
    try:
        yield
    except InputError as error:
        renamed = re.sub(r"`(\w+)(?=[=`])", lambda match: f"`{names.get(match[1], match[1])}", str(error))
        raise type(error)(renamed) from error


def exit_with_error(message: str, code: int = 1) -> NoReturn:
    """End the process as every command does on an error: one paragraph on stderr, and an exit code."""
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(code)


# Of a disk or its inodes, of the quota of a user, of the size of a file.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Longer lists are unreadable; `--help` shows them.
_MOST_LISTED = 20


def nearest_names(unknown: str, known: Collection[str]) -> str:
    """Return the end of a sentence about an unknown name: the nearest known names, or all names of its group."""
    elsewhere = [name for name in known if "." in name and name.rpartition(".")[2] == unknown.rpartition(".")[2]]
    nearest = list(dict.fromkeys([*elsewhere, *get_close_matches(unknown, known, n=3)]))[:3]
    if nearest:
        return f"; the nearest valid names are: {', '.join(nearest)}."
    group = unknown.rpartition(".")[0]
    of_group = [name.rpartition(".")[2] for name in known if group and name.rpartition(".")[0] == group]
    return f"; those of {group} are: {', '.join(of_group)}." if 0 < len(of_group) <= _MOST_LISTED else "."


def ends_with_its_reader(main: Callable[..., None], *, error_code: int = 1) -> Callable[..., None]:
    """Make a command end without a traceback when the reader of its output has closed it, as ``head`` does.

    The exit code is then the same as for a program ended by SIGPIPE. A signal handler would also end processes
    that write to a closed socket. Output on a full device ends the command with a sentence and ``error_code``. A
    closed output is ignored.
    """

    @wraps(main)
    def command(*args: object, **kwargs: object) -> None:
        if sys.stdout is None:  # was closed by the shell, as by `>&-`
            sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115  # until the process ends
        try:
            try:
                main(*args, **kwargs)
            finally:
                sys.stdout.flush()
        except BrokenPipeError:
            if not _has_lost_its_reader():  # another pipe is broken, such as the pipe of a worker process
                raise
            _discard_output()
            raise SystemExit(128 + signal.SIGPIPE) from None
        except OSError as error:
            if not is_of_full_output(error):
                raise
            _discard_output()
            exit_with_error(f"The output cannot be written ({error.strerror}); send it elsewhere.", error_code)

    return command


def _discard_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python flushes once more at its end


def is_of_full_output(error: OSError) -> bool:
    """Return whether standard output, and not a file, has run out of space."""
    if error.errno != errno.ENOSPC or error.filename is not None:
        return False
    try:
        sys.stdout.flush()
        os.write(1, b"\n")  # with PYTHONUNBUFFERED nothing is left to flush
    except OSError as again:
        return again.errno == errno.ENOSPC
    return False


def _has_lost_its_reader() -> bool:
    output = select.poll()
    output.register(1, 0)
    return any(event & select.POLLERR for _, event in output.poll(0))


# ---- How every command ends ----


class CommandParser(argparse.ArgumentParser):
    """A parser whose help ends the command with an error if the output is full, of which ``argparse`` says nothing."""

    def print_help(self, file: Any = None) -> None:
        print(self.format_help(), end="", file=file)


class PrintAction(argparse.Action):
    """Prints what the function ``text`` returns, which is called for it only, and ends the command."""

    def __init__(self, *, text: Callable[[], str], **options: Any) -> None:
        super().__init__(nargs=0, **options)
        self._text = text

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(self._text())
        parser.exit()


class Command(Protocol):
    def __call__(self, arguments: Sequence[str] | None = None) -> None: ...


def command(main: Callable[[Sequence[str]], None], *, error_code: int = 1, runs_scripts: bool = False) -> Command:
    """Make a command of a function of arguments, by default the arguments of the command line.

    Unusable input, a file without permission and a full disk are explained on stderr, in one paragraph, before the
    command exits with ``error_code``. Characters that the terminal does not have are printed as their codes. With
    ``runs_scripts`` errors about files and characters are left to the user's script. An interrupt is explained too,
    before the command exits with 130; processes of a run other than the first say nothing.
    """

    @partial(ends_with_its_reader, error_code=error_code)
    @wraps(main)
    def run(arguments: Sequence[str] | None = None) -> None:
        if not runs_scripts:
            print_missing_characters_as_codes()
        try:
            _refuse_deleted_folder()
            with explaining_panics():
                main(sys.argv[1:] if arguments is None else list(arguments))
        except InputError as error:
            exit_with_error(str(error), error_code)
        except KeyboardInterrupt as interrupt:
            if not is_first_process():
                raise SystemExit(128 + signal.SIGINT) from None
            print(file=sys.stderr)  # ends the line of a progress bar
            exit_with_error(str(interrupt) or "Interrupted.", 128 + signal.SIGINT)
        except OSError as error:
            if runs_scripts or error.filename is None:
                raise
            name = printable(os.fsdecode(error.filename))
            if isinstance(error, PermissionError):
                advice = "ask its owner for permission, or name another folder."
                exit_with_error(f"{name} cannot be used by this user ({error.strerror}); {advice}", error_code)
            if error.errno in _FULL:
                exit_with_error(
                    f"{name} cannot be written ({error.strerror}); make room, or name another folder; for a temporary "
                    "folder, set `TMPDIR`.",
                    error_code,
                )
            raise

    return run


def print_missing_characters_as_codes() -> None:
    """Let output in an encoding without some characters, such as ASCII, show their codes, as stderr does."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def is_first_process() -> bool:
    """Return whether this is the first process of its run, according to the environment."""
    ranks = ["RANK", "LOCAL_RANK", "NODE_RANK", *(["SLURM_PROCID"] if is_started_by_srun() else [])]
    return all(int(os.environ.get(rank, "0")) == 0 for rank in ranks)


def is_started_by_srun() -> bool:
    return "SLURM_STEP_ID" in os.environ and int(os.environ.get("SLURM_NTASKS", "1")) > 1


def _refuse_deleted_folder() -> None:
    try:
        Path.cwd()
    except FileNotFoundError as error:
        raise InputError("The current folder has been deleted; change to one that exists.") from error
