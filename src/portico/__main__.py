"""The command `portico`: a line for each sub-command, and nothing imported before one is chosen."""

import argparse
import platform
import sys
from difflib import get_close_matches
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import NamedTuple

from portico import __version__
from portico.errors import ends_with_its_reader


class SubCommand(NamedTuple):
    """A sub-command: a line of help, the function to call, ``module:function``, which reads ``sys.argv``, and options.

    The options are for tab completion, which imports no module of a sub-command.
    """

    home: str
    help: str
    options: str = ""


_RUN_OPTIONS = "--accelerator --strategy --devices --num-nodes --precision --corrections --callbacks --logger"
COMMANDS = {
    "train": SubCommand(
        "portico.cli.__main__:main",
        "train, evaluate or predict from a Hydra configuration",
        "--hydra-help --version --cfg --resolve --package --run --multirun --shell-completion --config-path "
        "--config-name --config-dir --experimental-rerun --info",
    ),
    "run": SubCommand(
        "portico.commands.script:main",
        "run a script of transformers, unchanged, in Lightning's loops",
        f"-m {_RUN_OPTIONS}",
    ),
    "verify": SubCommand(
        "portico.commands.verify:main",
        "prove that a script gives the same numbers in Lightning's loops",
        "-m --steps --report --once --keep --against",
    ),
    "replay": SubCommand(
        "portico.commands.replay:main",
        "run a training to one step again, and show what happened there",
        f"-m --step --from-spike --report --trust-config {_RUN_OPTIONS}",
    ),
    "report": SubCommand(
        "portico.mrc.report.command:main",
        "write the report of a run, or compare several",
        "--data --output --max-megabytes --trust-config",
    ),
    "demo": SubCommand(
        "portico.mrc.demo:main", "serve a page on this machine that answers questions about a text", "--port --device"
    ),
    "sweep": SubCommand("portico.cli.sweeps:main", "write the table and the page of a sweep again"),
}

_EXAMPLES = """\
examples:
  portico train +experiment=mrc       a small BERT that answers questions, trained from scratch in minutes
  portico run --devices 2 train.py --learning_rate 1e-4
                                      your own script, its Trainer replaced, in two processes
  portico verify train.py --learning_rate 1e-4 --steps 20
                                      under transformers and under portico, compared step by step
  portico replay train.py --learning_rate 1e-4 --from-spike
                                      the step where the loss jumped: its examples, gradients, updates
  portico report outputs/mrc/RUN      the page of that run
  portico demo outputs/mrc/RUN        ask it about texts of your own, in a browser

`portico COMMAND --help` explains a command. Tab completion in bash and zsh:
  eval "$(portico --completion)"
"""
# Where nothing is offered, files are completed. Bash splits words at `=`, and replaces what follows it.
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


@ends_with_its_reader
def main() -> None:
    """Run the sub-command that the command line names."""
    parser = _parser()
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name.startswith("-"):  # only what precedes the name of the sub-command: the rest belongs to that
        parser.parse_args([name, *COMMANDS][:2])
        parser.error("name a command after the options.")
    if name not in COMMANDS:
        near = get_close_matches(name, COMMANDS, n=1)
        known = f"did you mean '{near[0]}'?" if near else f"it is one of {', '.join(COMMANDS)}."
        parser.error(f"unknown command '{name}'; {known}")
    module, _, function = COMMANDS[name].home.partition(":")
    sys.argv = [f"portico {name}", *sys.argv[2:]]
    # Lightning starts the other processes of a run by the name of the main module, with these arguments.
    sys.modules["__main__"].__spec__ = find_spec(module)
    getattr(import_module(module), function)()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="portico",
        description="The Hugging Face Trainer API as a facade over Lightning.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=_versions(), help="print what is installed, and exit")
    cases = "\n".join(f'      {name}) offered="--help {one.options}" ;;' for name, one in COMMANDS.items())
    completion = _COMPLETION.format(commands=" ".join(COMMANDS), cases=cases)
    parser.add_argument("--completion", action="version", version=completion, help="print the setup of tab completion")
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND", required=True)
    for name, one in COMMANDS.items():
        commands.add_parser(name, help=one.help, add_help=False)
    return parser


def _versions() -> str:
    installed = {one.metadata["Name"].lower(): one.version for one in metadata.distributions()}
    found = [f"{name} {installed[name]}" for name in (*_REQUIRED, *_OPTIONAL) if name in installed]
    missing = ", ".join(name for name in _OPTIONAL if name not in installed)
    lines = [f"portico {__version__}, Python {platform.python_version()}", *found]
    return "\n  ".join([*lines, *([f"not installed: {missing}"] if missing else [])])


if __name__ == "__main__":
    main()
