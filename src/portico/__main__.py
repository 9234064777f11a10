"""The command `portico`: a line for each sub-command, and nothing imported before one is chosen."""

import argparse
import platform
import sys
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

`portico COMMAND --help` explains a command. Tab completion in bash and zsh:
  eval "$(portico --completion)"
"""
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
    # Only what precedes its name is read here: the rest belongs to the sub-command.
    name = _parser().parse_args(sys.argv[1:2] or ["--help"]).command
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
    words = f"complete -o default -W '{' '.join(COMMANDS)}' portico"
    completion = f'[ -z "$ZSH_VERSION" ] || autoload -U +X bashcompinit && bashcompinit; {words}'
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
