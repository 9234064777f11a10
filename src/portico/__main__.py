"""The command `portico`: a line for each sub-command, and nothing imported before one is chosen."""

import argparse
import platform
import sys
from difflib import get_close_matches
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import NamedTuple

from portico import __version__


class SubCommand(NamedTuple):
    """A sub-command: a line of help, and the function to call, ``module:function``, which reads ``sys.argv``."""

    home: str
    help: str


COMMANDS = {
    "train": SubCommand("portico.cli.__main__:main", "train, evaluate or predict from a Hydra configuration"),
    "run": SubCommand("portico.run.script:main", "run a script of transformers, unchanged, in Lightning's loops"),
    "verify": SubCommand("portico.run.verify:main", "prove that a script gives the same numbers in Lightning's loops"),
    "replay": SubCommand("portico.run.replay:main", "run a training to one step again, and show what happened there"),
    "report": SubCommand("portico.mrc.report.command:main", "write the report of a run, or compare several"),
    "demo": SubCommand("portico.mrc.demo:main", "serve a page on this machine that answers questions about a text"),
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
# Files are completed after the name of a command.
_COMPLETION = """\
if [ -n "$ZSH_VERSION" ]; then autoload -U +X bashcompinit && bashcompinit; fi
_portico() {{
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then COMPREPLY=($(compgen -W "{commands}" -- "${{COMP_WORDS[1]}}")); fi
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
    completion = _COMPLETION.format(commands=" ".join(COMMANDS))
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
