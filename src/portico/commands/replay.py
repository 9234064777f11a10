"""The command ``portico replay``: a training again, from its nearest checkpoint to one step, which is opened."""

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from portico.commands.run import add_run_options
from portico.errors import CommandParser, InputError, command
from portico.imports import when_imported
from portico.inspection.install import install_on_demand
from portico.inspection.script import Script, add_allowed_paths, add_module_option, pass_on
from portico.observers import RunOptions, observe
from portico.report.page import check_writable, save_page
from portico.report.terminal import plain_console
from portico.trust.disk import temporary_folder
from portico.trust.names import from_folder, is_from_folder, refuse_in_folder, refuse_outside

if TYPE_CHECKING:
    from portico.inspection.replay import OpenStep, Replay

_EPILOG = """\
Options may follow the script too, up to `--`.

  portico replay outputs/mrc/RUN --step 120
  portico replay train.py --output_dir out --from-spike --report step.html
"""
# Options that may follow the script.
_ANYWHERE = ("--step", "--from-spike", "--report", "--trust-config", "--allow-path")
# Training arguments of a run that a replay leaves out, and those that keep it to itself.
_OF_THE_RUN = ("resume_from_checkpoint", "onnx_cache_dir")
_PRIVATE = {"push_to_hub": False, "report_to": "none"}
# Training arguments that may be the path of a file.
_FILES = ("deepspeed", "fsdp_config", "accelerator_config")
# Processes that a replayed script starts find their settings here.
VARIABLE = "PORTICO_REPLAY"


def build_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="portico replay",
        usage="portico replay [OPTIONS] SCRIPT.py [ARGUMENTS]\n       portico replay [OPTIONS] FOLDER",
        description="Run a training again from its nearest checkpoint to one step and show that step: its examples "
        "with the loss of each, gradients and updates by layer, the first module with an output that is not finite. "
        "The run is a script of transformers with its arguments, or the folder of a `portico train`; its own output "
        "folder is read and never written to, and nothing else is.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_module_option(parser)
    parser.add_argument("--step", type=int, metavar="N", help="the optimizer step to open")
    parser.add_argument(
        "--from-spike", action="store_true", help="open the step of the worst spike of the logged loss"
    )
    parser.add_argument("--report", type=Path, metavar="FILE", help="write a page")
    parser.add_argument(
        "--trust-config",
        action="store_true",
        help="import, call and download whatever the config.yaml of FOLDER names; only for a run that you trust",
    )
    add_allowed_paths(parser)
    add_run_options(parser.add_argument_group("options of `portico run`, as the script was run"))
    return parser


@command
def main(arguments: Sequence[str]) -> None:
    """Print what happened in a step; exit with 1 and a sentence if it cannot be reached."""
    parser = build_parser()
    script, own = Script.split(parser, arguments, anywhere=_ANYWHERE, takes_runs=True)
    given = parser.parse_args(own)
    if (given.step is None) != given.from_spike:
        raise InputError("`--step N` and `--from-spike` are both given, or neither; give one of them.")
    if given.step is not None and given.step < 1:
        raise InputError(f"`--step {given.step}` is not positive; the first step is 1.")
    if given.report is not None:
        check_writable(given.report)
    options = {field.name: getattr(given, field.name) for field in fields(RunOptions)}
    if script.is_folder_of_run and any(options.values()):
        raise InputError("The options of `portico run` are for scripts; a folder is replayed as its config.yaml says.")
    trust = {"trusted": given.trust_config, "admitted": given.allow_path, "typed": ("portico", "replay", *arguments)}
    step = _replayed(script, given.step, options, trust)
    if step.is_first_process:
        step.show(plain_console(soft_wrap=True, highlight=False))
        if given.report is not None:
            save_page(given.report, step.page())
    raise SystemExit(0 if step.is_confirmed is not False else 1)


def _replayed(
    script: Script, number: int | None, options: Mapping[str, object], trust: Mapping[str, Any]
) -> "OpenStep":
    replays: list[Replay] = []
    with temporary_folder("portico-replay-") as place:
        folder = str(place)
        try:
            if script.is_folder_of_run:
                _train_again(replays, number, Path(script.target), folder, trust)
            else:
                install_on_demand(**{name: value for name, value in options.items() if value})
                os.environ[VARIABLE] = json.dumps({"number": number, "folder": folder})
                join(replays)
                pass_on()
                script.run()
        except SystemExit:
            if not (replays and replays[0].is_finished):
                raise
        if not replays or replays[0].num_trainings == 0:
            from portico.inspection.replay import OpenStep

            step = OpenStep.read(Path(folder))
            if step is not None:
                return step
            if replays and (strategy := replays[0].launching_strategy) is not None:
                raise InputError(
                    f"{script.target} trains in processes that `strategy={strategy}` starts for the call, which are "
                    "not replayed; set `strategy='ddp'`, or train on one device."
                )
            raise InputError(
                f"{script.target} trained with no Trainer, or ended before the step; give a "
                "script that calls `Trainer.train`, and a step of its training."
            )
    (replay,) = replays
    if replay.step is None or not replay.is_finished:
        raise InputError(f"The training ended before step {replay.number}; its last step is {replay.last_step}.")
    return replay.step


def join(replays: "list[Replay] | None" = None) -> None:
    """Replay the script that this process runs; the replay is added to a list once a trainer is imported."""
    settings = json.loads(os.environ[VARIABLE])

    def begin() -> None:
        from portico.inspection.replay import Replay

        replay = Replay(settings["number"], Path(settings["folder"]))
        observe(replay)
        if replays is not None:
            replays.append(replay)

    # Scripts may import portico's trainer by its own name; replacing the names of transformers imports it too.
    when_imported("portico.trainer", begin)


# ---- A folder of `portico train` ----


def _train_again(
    replays: "list[Replay]", number: int | None, run: Path, folder: str, trust: Mapping[str, Any]
) -> None:
    """Train the experiment of a folder of ``portico train`` again, with another output folder and without loggers.

    Raises:
        InputError: If the configuration names more than data and is not trusted: a folder may come from elsewhere.
    """
    from portico.cli.composition import instantiate_experiment
    from portico.cli.folders import CONFIG_FILE, read_run_settings
    from portico.experiments.experiment import TrainerExperiment, experiment_class
    from portico.inspection.replay import Replay

    settings = read_run_settings(run)
    settings["paths"]["output_dir"] = folder
    settings["args"] = {name: value for name, value in settings["args"].items() if name not in _OF_THE_RUN} | _PRIVATE
    settings["logger"] = {}
    with from_folder(run / CONFIG_FILE, **trust, named=_find_named_files(settings)):
        _judge_effects(settings)
        if is_from_folder() and _group(settings, "preprocess").get("cache_dir") is not None:
            settings["preprocess"]["cache_dir"] = str(Path(folder, "features"))
        if not issubclass(kind := experiment_class(settings), TrainerExperiment):
            raise InputError(
                f"{run / CONFIG_FILE} describes a {kind.__name__}, which has no Trainer; "
                "give the folder of another run."
            )
        experiment = instantiate_experiment(settings, folder)
        replays.append(Replay(number, Path(folder), run_folder=run))
        with observe(replays[0]):
            experiment.train()


def _group(settings: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a group of settings; an empty one if it is not a mapping, which building the experiment refuses."""
    group = settings.get(name)
    return group if isinstance(group, Mapping) else {}


def _find_named_files(settings: Mapping[str, Any]) -> list[str]:
    """Return the files that settings name as data, and the folders of models that are there."""
    data, model = _group(settings, "data"), _group(settings, "model")
    more = data.get("sources")
    candidates = (data, *(more if isinstance(more, list) else ()))
    sources = [source for source in candidates if isinstance(source, Mapping)]
    files = [value for source in sources for key, value in source.items() if str(key).endswith("_file")]
    names = [name for value in files for name in (value if isinstance(value, list) else [value])]
    names += [name for name in model.values() if isinstance(name, str) and Path(name).is_absolute()]
    return [name for name in names if isinstance(name, str) and "\0" not in name]


def _judge_effects(settings: Mapping[str, Any]) -> None:
    """Refuse settings of a folder that start processes, or name files elsewhere that are read before the data."""
    args, strategy, preprocess = (_group(settings, name) for name in ("args", "strategy", "preprocess"))
    numbers = {
        "args.dataloader_num_workers": args.get("dataloader_num_workers"),
        "preprocess.num_workers": preprocess.get("num_workers"),
        "strategy.devices": strategy.get("devices"),
        "strategy.num_nodes": strategy.get("num_nodes"),
    }
    for name, number in numbers.items():
        # One device is this process, and without a number the machine decides.
        is_free = number in (None, 0, "0", "auto", -1, "-1") or (name.startswith("strategy.") and number in (1, "1"))
        if not is_free:
            refuse_in_folder(f"`{name}={number}`", "the number of processes to start")
    for name in _FILES:
        if isinstance(value := args.get(name), str) and not value.lstrip().startswith("{"):
            refuse_outside(value, f"args.{name}")
