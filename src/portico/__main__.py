"""The command ``portico``: a line for each sub-command, and nothing imported before one is chosen."""

import argparse
import platform
from collections.abc import Sequence
from difflib import get_close_matches
from functools import partial
from importlib import import_module, metadata
from types import ModuleType

from portico import __version__
from portico.errors import CommandParser, PrintAction, command

COMMANDS = {
    "train": "train, evaluate or predict from a Hydra configuration",
    "run": "run a script of transformers, unchanged, in Lightning's loops",
    "verify": "prove that a script gives the same numbers in Lightning's loops",
    "preflight": "rehearse a script in a minute, and say what would fail after hours",
    "replay": "run a training to one step again, and show what happened there",
    "report": "write the report of a run, or compare several",
    "demo": "serve a page on this machine that answers questions about a text",
    "sweep": "write the table and the page of a sweep again",
}
"""The line of help of each command; its module in ``portico.commands`` has ``build_parser`` and ``main``."""

_EXAMPLES = """\
examples:
  portico train +experiment=mrc       a small BERT that answers questions, trained from scratch in minutes
  portico run --devices 2 train.py --learning_rate 1e-4
                                      your own script, its Trainer replaced, in two processes
  portico verify train.py --learning_rate 1e-4 --steps 20
                                      under transformers and under portico, compared step by step
  portico preflight train.py --learning_rate 1e-4
                                      what would fail after hours, and what the run would take
  portico replay train.py --learning_rate 1e-4 --from-spike
                                      the step where the loss jumped: its examples, gradients, updates
  portico report outputs/mrc/RUN      the page of that run
  portico demo outputs/mrc/RUN        ask it about texts of your own, in a browser

`portico COMMAND --help` explains a command. Tab completion in bash and zsh:
  eval "$(portico --completion)"
"""
# Where nothing is offered, files are completed. Bash splits words at `=`, and replaces what follows it. shtab, which
# writes such functions, cannot leave out the space after `group=`, and would need a second function for zsh.
_COMPLETION = """\
if [ -n "$ZSH_VERSION" ]; then autoload -U +X bashcompinit && bashcompinit; fi
_portico() {{
  local part="${{COMP_WORDS[COMP_CWORD]#=}}" line="${{COMP_LINE:0:$COMP_POINT}}" offered=""
  local word="${{line##* }}"
  if [ "$COMP_CWORD" -eq 1 ]; then
    offered="{commands} --help --version --completion"
  elif [ "${{word#-}}" != "$word" ]; then
    case "${{COMP_WORDS[1]}}" in
{cases}
    esac
  elif [ "${{COMP_WORDS[1]}}" = train ]; then
    offered=$(COMP_LINE="portico $word" "${{COMP_WORDS[0]}}" train -sc query=bash 2> /dev/null)
  fi
  COMPREPLY=($(compgen -W "$offered" -- "$word"))
  COMPREPLY=("${{COMPREPLY[@]#"${{word%"$part"}}"}}")
  case "${{COMPREPLY[0]}}" in *[=./]) compopt -o nospace 2> /dev/null ;; esac
}}
complete -o default -F _portico portico"""
_REQUIRED = ("torch", "lightning", "transformers", "torchmetrics", "hydra-core")
# Backends of extras, and libraries on top of `Trainer`.
_OPTIONAL = (
    "onnxruntime",
    "optuna",
    "ray",
    "accelerate",
    "datasets",
    "peft",
    "trl",
    "sentence-transformers",
    "setfit",
)


@partial(command, runs_scripts=True)  # each sub-command decides for itself
def main(arguments: Sequence[str]) -> None:
    """Run the sub-command that the command line names."""
    parser = build_parser()
    name = arguments[0] if arguments else "--help"
    if name.startswith("-"):  # only what precedes the name of the sub-command: the rest belongs to that
        parser.parse_args([name, *COMMANDS][:2])
        parser.error("name a command after the options.")
    if name not in COMMANDS:
        near = get_close_matches(name, COMMANDS, n=1)
        known = f"did you mean '{near[0]}'?" if near else f"it is one of {', '.join(COMMANDS)}."
        parser.error(f"unknown command '{name}'; {known}")
    _module(name).main(arguments[1:])


def build_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="portico",
        description="The Hugging Face Trainer API as a facade over Lightning.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=PrintAction, text=_versions, help="print what is installed, and exit")
    parser.add_argument("--completion", action=PrintAction, text=_completion, help="print the setup of tab completion")
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND", required=True)
    for name, line in COMMANDS.items():
        commands.add_parser(name, help=line, add_help=False)
    return parser


def _module(name: str) -> ModuleType:
    return import_module(f"portico.commands.{name}")


def _completion() -> str:
    """Return the setup of tab completion: the options of all commands, whose modules are imported for it."""
    cases = []
    for name in COMMANDS:
        flags = [action.option_strings for action in _module(name).build_parser()._actions]
        # The long form of each option, and the short form of those that have no other.
        offered = [max(forms, key=len) for forms in flags if forms]
        cases.append(f'      {name}) offered="{" ".join(offered)}" ;;')
    return _COMPLETION.format(commands=" ".join(COMMANDS), cases="\n".join(cases))


def _versions() -> str:
    installed = {found.metadata["Name"].lower(): found.version for found in metadata.distributions()}
    found = [f"{name} {installed[name]}" for name in (*_REQUIRED, *_OPTIONAL) if name in installed]
    missing = ", ".join(name for name in _OPTIONAL if name not in installed)
    lines = [f"portico {__version__}, Python {platform.python_version()}", *found]
    return "\n  ".join([*lines, *([f"not installed: {missing}"] if missing else [])])


if __name__ == "__main__":
    main()
