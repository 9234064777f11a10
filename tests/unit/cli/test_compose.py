import ast
import logging
import re
from contextlib import suppress
from itertools import product
from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra

import portico
from fake_experiment import OVERRIDES
from portico.cli import compose
from portico.cli.composition import check_settings, experiment_names, find_known_names, instantiate_experiment
from portico.cli.errors import EVERYWHERE, OPEN_GROUPS
from portico.errors import InputError


def is_plain(value):
    if isinstance(value, dict):
        return type(value) is dict and all(is_plain(item) for item in value.values())
    if isinstance(value, list):
        return type(value) is list and all(is_plain(item) for item in value)
    return value is None or type(value) in (bool, int, float, str)


def test_twice_in_a_process_gives_equal_plain_dicts():
    first, second = (compose([*OVERRIDES, "args.seed=3", "paths.output_dir=x"]) for _ in range(2))
    first["paths"].pop("sweep_dir"), second["paths"].pop("sweep_dir")
    assert first == second
    assert first["args"]["seed"] == 3
    assert is_plain(first)


def test_has_no_side_effects(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    handlers = logging.getLogger().handlers[:]
    compose(OVERRIDES)
    assert not list(tmp_path.iterdir())
    assert logging.getLogger().handlers == handlers
    assert not GlobalHydra.instance().is_initialized()


def test_without_an_experiment_the_groups_are_chosen_by_hand():
    settings = compose(["trainer=mrc", "args=mrc", "data=embedded", "metric=squad"], experiment=None)
    assert settings["name"] == "custom"
    assert settings["model"] == {}


@pytest.mark.parametrize("group", ["callbacks", "debug", "launcher", "logger", "speed", "sweep"])
def test_null_switches_a_group_off(group):
    switched_off, plain = compose([f"{group}=null"]), compose()
    for settings in (switched_off, plain):
        del settings["paths"]  # named by the time
    assert switched_off == plain


def test_groups_that_name_their_class_come_with_its_defaults():
    settings = compose([*OVERRIDES, "data.num_train=5"])
    assert settings["data"]["num_train"] == 5
    assert settings["data"]["num_validation"] == 1000
    assert settings["preprocess"]["vocab_size"] == 1600
    assert settings["metric"]["version_2_with_negative"] is None


def test_a_composed_configuration_is_composed_of_itself():
    """What a run records describes the run: given back as overrides, it composes to the same."""
    settings = compose([*OVERRIDES, "preprocess=primeqa", "metric=tydi"])
    given = [f"preprocess.{key}={'null' if value is None else value}" for key, value in settings["preprocess"].items()]
    assert compose([*OVERRIDES, *given])["preprocess"] == settings["preprocess"]


@pytest.mark.parametrize(
    ("override", "answer"),
    [
        ("+lr=1", "args.learning_rate"),
        ("model.lr=1", "args.learning_rate"),
        ("datamodule.batch_size=1", "args.per_device_train_batch_size"),
        ("data.num_workers=1", "args.dataloader_num_workers"),
        ("max_seq_length=1", "preprocess.max_seq_length"),
        ("data.max_seq_length=1", "preprocess.max_seq_length"),
        ("trainer.fast_dev_run=true", "debug=default"),
        ("trainer.strategy=ddp", "strategy.strategy"),
        ("trainer.limit_val_batches=1", "data.max_eval_samples"),
        ("model_name_or_path=x", "model.name_or_path"),
        ("extras.print_config=true", "print_config"),
        ("test=true", "mode=evaluate"),
        ("hparams_search=optuna", "sweep=<file>"),
        ("+hparams_search=optuna", "sweep=<file>"),
        ("metric.name=nq", "metric=<file>"),
        ("optimized_metric=f1", "objective.metric"),
        ("+model.optimizer.lr=1", "args.learning_rate"),
        ("+model.scheduler.factor=1", "args.lr_scheduler_type"),
    ],
)
def test_first_guesses_are_answered_with_the_right_key(override, answer):
    with pytest.raises(InputError) as caught:
        compose([*OVERRIDES, override])
    key = override.partition("=")[0].lstrip("+")
    assert str(caught.value) == f"'{key}' is not a setting; use {answer}."


# Keys as people type them first, and the right ones: of most experiments, and of those that have others.
GUESSES = {
    **dict.fromkeys(("lr", "learning_rate"), "args.learning_rate"),
    "seed": "args.seed",
    "batch_size": "args.per_device_train_batch_size",
    **dict.fromkeys(("epochs", "trainer.max_epochs"), "args.num_train_epochs"),
    "data.batch_size": "args.per_device_train_batch_size",
    "ckpt_path": "args.resume_from_checkpoint to continue a training, or model.name_or_path with mode=evaluate",
    "max_steps": "args.max_steps",
    "weight_decay": "args.weight_decay",
    "optimizer": "args.optim",
    "scheduler": "args.lr_scheduler_type",
    **{name: f"strategy.{name}" for name in ("devices", "accelerator", "precision")},
    "model_name": "model.name_or_path",
    "dataset": "data.dataset_name",
    "output_dir": "paths.output_dir",
    "num_workers": "args.dataloader_num_workers",
    "warmup_ratio": "args.warmup_steps",
    "fp16": "args.fp16",
    "patience": "callbacks=early_stopping",
}
OTHER_ANSWERS = {
    "gradient_descent": {
        **dict.fromkeys(("lr", "learning_rate"), "trainer.optimizer.lr"),
        "batch_size": "data.batch_size",
        **dict.fromkeys(("epochs", "trainer.max_epochs"), "trainer.num_epochs"),
        "data.batch_size": None,  # is right
        "ckpt_path": "args.resume_from_checkpoint to continue a training, or args.weights with mode=evaluate",
        "max_steps": "trainer.num_epochs, which counts epochs",
        "weight_decay": "trainer.optimizer.weight_decay",
        "optimizer": "trainer.optimizer.type",
        "scheduler": "trainer.learning_rate_scheduler.type",
        "model_name": "model._target_=<class>",
        **dict.fromkeys(("dataset", "num_workers"), "data._target_=<class>"),
        "warmup_ratio": "trainer.learning_rate_scheduler.warmup_steps",
        "fp16": "strategy.precision",
        "patience": "trainer.patience",
    },
    "mrc_ipu": {
        "devices": "strategy.replication_factor",
        "accelerator": "experiment=mrc strategy=<file>",
        "precision": "args.fp16",
    },
}


@pytest.mark.parametrize("experiment", experiment_names())
def test_first_guesses_are_answered_with_a_key_of_the_chosen_experiment(experiment):
    answers = {**GUESSES, **OTHER_ANSWERS.get(experiment, {})}
    answers = {guess: answer for guess, answer in answers.items() if answer is not None}
    with pytest.raises(InputError) as caught:
        compose([f"++{guess}=1" for guess in answers], experiment=experiment)
    given = dict(re.findall(r"'([^']+)' is not a setting; use (.+?)\.(?= '|$)", str(caught.value)))
    assert given == answers
    known = find_known_names([f"experiment={experiment}", "lr=1"])
    named = [key for answer in answers.values() for key in re.findall(r"\b\w+\.[a-z]\w*", answer)]
    assert not set(named) - set(known)


@pytest.mark.parametrize(
    ("overrides", "answer"),
    [
        (["experiment=gradient_descent", "lr=1"], "trainer.optimizer.lr"),
        (["trainer=gradient_descent", "lr=1"], "trainer.optimizer.lr"),
        (["experiment=causal_lm", "max_length=1"], "task.block_size"),
        (["lr=1"], "args.learning_rate"),
        (["experiment=nothing", "lr=1"], None),
    ],
)
def test_a_key_without_plus_is_answered_for_the_chosen_experiment(overrides, answer):
    """Hydra itself refuses it, before it is known what the experiment has."""
    with pytest.raises(InputError) as caught:
        compose(overrides, experiment=None)
    message = f"'{overrides[-1][:-2]}' is not a setting; use {answer}." if answer else "names no file of the group"
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("args.learning_rat=1", r"'args.learning_rat' is not a setting; .* args.learning_rate"),
        ("+modle.size=1", r"'modle' is not a setting; the nearest valid names are: mode, model\."),
        ("arg.seed=1", r"'arg.seed' is not a setting; use args\.seed\."),
        ("arg.qqq=1", r"'arg.qqq' is not a setting; the nearest valid names are: args\. All: trainer, args, "),
        ("trainer=gpu", r"'trainer=gpu' names no file of the group 'trainer'; use strategy=gpu\."),
        ("trainer=ddp_sim", r"use strategy=ddp strategy\.accelerator=cpu\."),
        ("callbacks=model_checkpoint", r"use args\.save_strategy, args\.save_steps and args\.save_total_limit\."),
        ("logger=many_loggers", r"use logger=\[csv,tensorboard,wandb\], or some of them\."),
        ("tf32=true", r"'tf32' is not a setting; the nearest valid names are: args\.tf32\."),
        ("wieght_decay=1", r"'wieght_decay' is not a setting; the nearest valid names are: args\.weight_decay\."),
        ("debug=true", r"Got bool; give the group the name of a file, as in debug=default"),
        ("objective.metrc=1", r"'objective.metrc' is not a setting; .* objective.metric"),
        ("name.x=1", r"'name.x' is not a setting; --cfg all --package name shows the settings of 'name'"),
        ("hydra.verbse=1", r"'hydra.verbse' is not a setting; the nearest valid names are: hydra.verbose\."),
        ("hydra.sweeper.n_trials=9", r"'hydra.sweeper.n_trials' .* add hydra/sweeper=portico_optuna, which has it\."),
        ("hydra.job.env_set.FOO=bar", r"takes any key; write \+hydra\.job\.env_set\.FOO=<value> to add it\."),
        ("tags.0=q", r"'tags.0=q' cannot be set \(list index out of range\); write the whole list, tags=\[<values>\]"),
        ("hydra.launcher.jobs=2", r"'hydra.launcher.jobs' is not a setting; the settings of hydra.launcher are: _tar"),
        ("launcher=slurm", r"'launcher=slurm' names no file of the group 'launcher'; use launcher=submitit_slurm\."),
        ("debug=fast_dev_run", r"'debug=fast_dev_run' names no file of the group 'debug'; use debug=default\."),
        ("strategy=ddp_spawn", r"Another strategy of Lightning is set by strategy\.strategy=ddp_spawn\."),
        ("data=glue", r"A dataset of the hub is set by data\.dataset_name=glue, files by data\.train_file\."),
        ("model=roberta-base", r"a model of the hub is set by model\.name_or_path=roberta-base\."),
        (
            "model.hidden_dropout_prob=nan",
            r"`model.hidden_dropout_prob=nan` cannot be used; set it to a number from 0 to 1, or",
        ),
        ("launcher=submitit", r"use launcher=submitit_local or launcher=submitit_slurm\."),
        ("args.x=[1", r"Cannot read 'args.x=\[1' \(.*\)\. Write key=value, and quote"),
        (
            "args.seed=1,2,",
            r"'args.seed=1,2,': a value is missing after a comma\. Write 'args\.seed=1,2', without spaces",
        ),
        ("task.text_columns=[a,]", r"a value is missing after a comma\. Write 'task\.text_columns=\[a\]', without"),
        ("args.seed=1,2", r"Ambiguous value for argument 'args.seed=1,2'.* add --multirun"),
        ("args=mcr", r"'args=mcr' names no file of the group 'args'; .* mrc\. Choose one of: mrc"),
        ("args.seed=???", r"'args.seed' has no value and no default; add it to the command: args.seed=<value>\."),
        ("args.seed=${sed}", r"'args.seed' cannot be resolved \(Interpolation key 'sed' not found\); set it"),
        ("~args.seed", r"'~args.seed' removes nothing: no file sets 'args.seed', so that it has its default\. Leave"),
        ("~preprocess.vocab_size", r"'~preprocess.vocab_size' removes nothing: no file sets 'preprocess.vocab_size'"),
        (
            "objective=eval_f1",
            r"`objective=eval_f1` is not a group of settings; set its keys: objective\.<key>=<value>",
        ),
        ("objective.metric={a: 1}", r"`objective.metric={'a': 1}` is not a name; set it to a metric of the run"),
        ("objective.mode={a: 1}", r"objective.mode={'a': 1} is unknown; set it to max or min\."),
        ("++args.metric_for_best_model=1", r"`args.metric_for_best_model=1` cannot be used; set it to a string"),
        (
            "++args.accelerator_config=1",
            r"`args.accelerator_config=1` cannot be used; set it to a mapping, or a string",
        ),
        ("mode=guess", r"mode=guess is not a mode of this experiment; set it to one of train, evaluate, predict\."),
        ("data.num_train=many", r"`data.num_train=many` cannot be used; set it to an integer of 1 or more\."),
    ],
)
def test_what_cannot_be_composed_is_explained_in_one_paragraph(override, message):
    with pytest.raises(InputError, match=message) as caught:
        compose([*OVERRIDES, override])
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore")  # of deprecated arguments
@pytest.mark.parametrize("experiment", ["text_classification", "mrc"])
def test_no_key_of_the_help_ends_in_a_traceback(experiment, tmp_path):
    """Each key with each kind of value: it is taken, or refused in a sentence."""
    settings = compose(["++args.use_cpu=true", "++args.report_to=none"], experiment=experiment)
    kinds = ["x", 1.5, True, [1, "a"], {"a": 1}]
    # The arguments of the two experiments are the same.
    keys = [
        key
        for key in find_known_names([f"experiment={experiment}", "lr=1"])
        if experiment != "mrc" or "args" not in key
    ]
    for key, value in product(keys, kinds):
        group, _, name = key.partition(".")
        values = {name: value} if name else value
        if isinstance(values, dict) and group in OPEN_GROUPS:  # as Hydra merges a mapping into a group
            values = {**(settings.get(group) or {}), **values}
        if group not in EVERYWHERE:
            with suppress(InputError):
                instantiate_experiment(check_settings({**settings, group: values}), str(tmp_path)).build_arguments()


@pytest.mark.parametrize(
    "stub", sorted(Path(portico.__file__).parent.rglob("__init__.pyi")), ids=lambda stub: stub.parent.name
)
def test_no_module_has_the_name_of_what_its_package_exports(stub):
    """Once imported, the module would take the place of the function in its package."""
    exports = {alias.name for node in ast.parse(stub.read_text()).body for alias in getattr(node, "names", ())}
    assert not exports & {path.stem for path in stub.parent.iterdir()}
