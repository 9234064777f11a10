"""The command `portico`: its sub-commands, its completion, and how every command ends."""

import errno
import os
import re
import subprocess
import sys
from functools import cache, partial
from importlib import import_module

import pytest

import portico
from portico.__main__ import COMMANDS, main
from portico.errors import InputError, command, ends_with_its_reader


def test_command_lists_sub_commands_without_torch():
    code = "import sys; sys.argv = ['portico', '--help']\ntry:\n    import portico.__main__ as m; m.main()\nfinally:\n"
    code += "    assert not {'torch', 'transformers', 'hydra'} & set(sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert all(f"\n    {name} " in shown for name in ("train", "report", "run"))


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["--version"], f"portico {portico.__version__}, Python "),
        (["report", "--help"], "usage: portico report "),
        (["sweep", "--help"], "usage: portico sweep "),
        (["run", "--help"], "portico run --strategy ddp"),
    ],
)
def test_command(arguments, shown):
    ended = subprocess.run([sys.executable, "-m", "portico", *arguments], capture_output=True, text=True, check=True)
    assert shown in ended.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("trian", "error: unknown command 'trian'; did you mean 'train'?"),
        ("xyz", "error: unknown command 'xyz'; it is one of train, run, verify, "),
        ("--steps", "error: unrecognized arguments: --steps"),
    ],
)
def test_unknown_command(arguments, message, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["portico", *arguments.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "words", "offered"),
    [
        ("portico re", "portico re", "replay report"),
        ("portico run scr", "portico run scr", ""),
        ("portico run --st", "portico run --st", "--strategy"),
        ("portico verify train.py --st", "portico verify train.py --st", "--steps"),
        ("portico train --multi", "portico train --multi", "--multirun"),
        # Bash makes a word of each `=`, and what is offered replaces what follows it.
        ("portico train experiment=multiple", "portico train experiment = multiple", "multiple_choice"),
    ],
)
def test_completion(line, words, offered):
    # What Hydra would answer, after seconds.
    hydra = 'portico() { [ "$COMP_LINE" = "portico experiment=multiple" ] && echo experiment=multiple_choice; }'
    variables = f"COMP_LINE='{line}'; COMP_POINT={len(line)}; COMP_WORDS=({words}); COMP_CWORD={words.count(' ')}"
    code = f'{completion_setup()}\n{hydra}\n{variables}; _portico\necho "[${{COMPREPLY[*]}}]"; complete -p portico'
    shown = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
    # Where the function offers nothing, bash completes files.
    assert shown.stdout == f"[{offered}]\ncomplete -o default -F _portico portico\n"
    assert shown.stderr == ""


@cache
def completion_setup():
    command = [sys.executable, "-m", "portico", "--completion"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_ends_quietly_when_the_reader_of_its_output_has_gone():
    # `true` has ended long before Python has started.
    prints = "from portico.errors import ends_with_its_reader; ends_with_its_reader(lambda: print('words' * 9999))()"
    command = f'{sys.executable} -c "{prints}" | true; echo ${{PIPESTATUS[0]}}'
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert (ended.stdout, ended.stderr) == ("141\n", "")


def test_another_broken_pipe_is_an_error():
    @ends_with_its_reader
    def main():
        raise BrokenPipeError("of a worker")

    with pytest.raises(BrokenPipeError, match="of a worker"):
        main()


@pytest.mark.parametrize(("error_code", "given"), [(1, ["a"]), (2, None)])
def test_bad_input_is_a_sentence_and_an_exit_code(error_code, given, monkeypatch, capsys):
    @partial(command, error_code=error_code)
    def refuse(arguments):
        raise InputError(f"{arguments} cannot be used.")

    monkeypatch.setattr(sys, "argv", ["portico", "a"])
    with pytest.raises(SystemExit) as ended:
        refuse(given)
    assert ended.value.code == error_code
    assert capsys.readouterr().err == "error: ['a'] cannot be used.\n"


@pytest.mark.parametrize(("rank", "said"), [("0", "\nerror: Interrupted.\n"), ("1", "")])
def test_interrupt_is_a_sentence_of_the_first_process(rank, said, monkeypatch, capsys):
    @command
    def wait(arguments):
        raise KeyboardInterrupt

    monkeypatch.setenv("LOCAL_RANK", rank)
    with pytest.raises(SystemExit) as ended:
        wait([])
    assert ended.value.code == 130
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(("number", "code"), [(errno.ENOSPC, 1), (errno.EDQUOT, 1), (errno.EFBIG, 2)])
def test_a_file_for_which_there_is_no_room_is_a_sentence_and_an_exit_code(number, code, tmp_path, capsys):
    def write(arguments):
        raise OSError(number, os.strerror(number), str(tmp_path / "page.html"))

    with pytest.raises(SystemExit, match=rf"^{code}$"):
        command(write, error_code=code)([])
    said = f"error: {tmp_path}/page.html cannot be written ({os.strerror(number)}); make room, or name another folder;"
    assert capsys.readouterr().err.startswith(said)
    with pytest.raises(OSError, match=re.escape(os.strerror(number))):
        command(write, runs_scripts=True)([])  # it may be one of the script


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_turns_errors_into_sentences(name):
    main = import_module("portico.cli").main if name == "train" else import_module(f"portico.commands.{name}").main
    assert hasattr(main, "__wrapped__")
