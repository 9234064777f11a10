import json
import logging
import math
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf

import fake_experiment
from fresh_process import LARGE, assert_runs_anew, python
from portico.cli.app import objective_value
from portico.cli.composition import experiment_names
from portico.cli.errors import translate_message
from portico.cli.jobs import GRID_SWEEPER, OPTUNA_SWEEPER
from portico.cli.sweeps import SweepFolder, reported_sweep
from portico.commands.sweep import main as report_command
from portico.errors import InputError

CHECKOUT = Path(__file__).parents[3]


def files_below(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def assert_refused(capsys, code, *parts, expected_code=1):
    shown = capsys.readouterr().err.lstrip("\n")
    assert code == expected_code
    assert shown.startswith("error: ")
    assert shown.count("\n") == 1, "not one paragraph"
    for part in parts:
        assert part in shown


def test_run_gets_plain_values_and_its_folder(train, tmp_path):
    assert train("args.learning_rate=0.5", "paths.output_dir=here", "strategy=cpu") == 0
    received = json.loads((tmp_path / "here/all_results.json").read_text())
    assert received["args"]["learning_rate"] == 0.5
    assert received["strategy"] == {"accelerator": "cpu", "devices": 1}
    assert received["output_dir"] == str(tmp_path / "here")


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            "`lr=None` cannot be used; set it to a number, or None.",
            "`lr=null` cannot be used; set it to a number, or null.",
        ),
        (
            "`strict=1`: set it to True or False, or one of a, b.",
            "`strict=1`: set it to true or false, or one of a, b.",
        ),
        (
            "'True Grit' has None; set `x=False` or `y=[True, None]`.",
            "'True Grit' has None; set `x=false` or `y=[true, null]`.",
        ),
    ],
)
def test_errors_of_python_code_are_told_in_words_of_the_command_line(message, expected):
    assert translate_message(message) == expected


def test_callbacks_and_loggers_arrive_as_objects(train, tmp_path):
    assert train("paths.output_dir=here", "callbacks=early_stopping", "logger=csv") == 0
    received = json.loads((tmp_path / "here/all_results.json").read_text())
    assert received["callbacks"] == ["EarlyStoppingCallback"]
    assert received["logger"] == ["CSVLogger"]


def test_an_entry_set_to_null_is_left_out(train, tmp_path):
    assert train("paths.output_dir=here", "callbacks=early_stopping", "callbacks.early_stopping=null") == 0
    assert json.loads((tmp_path / "here/all_results.json").read_text())["callbacks"] == []


def test_resolved_configuration_lies_next_to_the_results(train, tmp_path):
    assert train("paths.output_dir=here", "logger=csv", "args.seed=3") == 0
    recorded = OmegaConf.load(tmp_path / "here/config.yaml")
    assert recorded.args.seed == 3
    assert "${" not in (tmp_path / "here/config.yaml").read_text()
    assert recorded.logger.csv.save_dir == str(tmp_path / "here")


def test_default_folder_is_named_after_the_experiment_and_the_time(train, tmp_path):
    assert train() == 0
    (run,) = (tmp_path / "outputs/mrc").iterdir()
    assert files_below(run) == ["all_results.json", "config.yaml"]


def test_sweep_writes_one_folder_a_run(train, tmp_path):
    assert train("args.learning_rate=1e-4,3e-4", "-m") == 0
    (sweep,) = (tmp_path / "multirun").glob("*/*")
    rates = [json.loads((sweep / n / "all_results.json").read_text())["args"]["learning_rate"] for n in "01"]
    assert rates == [1e-4, 3e-4]
    assert [OmegaConf.load(sweep / n / "config.yaml").paths.output_dir for n in "01"] == [
        str(sweep / "0"),
        str(sweep / "1"),
    ]


def start_sweep(folder, sweeper=GRID_SWEEPER):
    config = {"sweep": {"dir": str(folder)}, "sweeper": {"_target_": sweeper}}
    SweepFolder().on_multirun_start(OmegaConf.create({"hydra": config}))


def test_two_grids_at_once_in_one_folder_are_refused(train, capsys, tmp_path):
    command = ("args.seed=1,2", "paths.sweep_dir=grid", "-m")
    with reported_sweep():
        start_sweep("grid")
        code = train(*command)
        assert_refused(capsys, code, f"Another sweep is running in '{tmp_path / 'grid'}'", "hydra.sweep.dir=<folder>")
        assert list((tmp_path / "grid").iterdir()) == []
    assert train(*command) == 0
    assert train(*command) == 0, "a later command skips what is finished"


def test_only_workers_of_one_search_share_a_folder(tmp_path):
    with reported_sweep():
        start_sweep(tmp_path, OPTUNA_SWEEPER)
        with reported_sweep():
            start_sweep(tmp_path, OPTUNA_SWEEPER)
        with reported_sweep(), pytest.raises(SystemExit):
            start_sweep(tmp_path)


def test_sweep_prints_its_configuration_once(train, capsys):
    assert train("args.seed=1,2,3", "-m") == 0
    assert capsys.readouterr().out.count("print_config: true") == 1


@pytest.mark.parametrize("group", ["sweep=grid", "+sweep=grid"])
def test_sweep_group_needs_no_flag(group, train, tmp_path):
    assert train(group, "hydra.sweeper.params={args.seed: '1,2'}", "paths.sweep_dir=grid") == 0
    assert len(list((tmp_path / "grid").glob("*/all_results.json"))) == 6


def test_no_experiment_lists_them(train, capsys, tmp_path):
    code = train(arguments=())
    names = ", ".join(experiment_names())
    assert_refused(capsys, code, "No experiment was chosen", f"there are: {names}.", "+experiment=")
    assert not list(tmp_path.iterdir())


def test_failed_jobs_leave_the_others_of_a_sweep_running(train, capsys, tmp_path):
    values = f"args.seed=1,{fake_experiment.BREAKS},x,2"
    assert train(values, "paths.sweep_dir=grid", "-m") == 1
    shown = capsys.readouterr().err
    assert f"args.seed={fake_experiment.BREAKS} paths.sweep_dir=grid) failed: Traceback" in shown
    assert "RuntimeError: a defect" in shown
    assert "args.seed=x paths.sweep_dir=grid) failed: `args.seed=x` " in shown
    assert shown.splitlines()[-1] == (
        "error: These jobs of the sweep failed: 1, 2. Their errors are above or in sweep.json; the others have run."
    )
    finished = [path.parent.name for path in sorted((tmp_path / "grid").glob("*/all_results.json"))]
    assert finished[0] == "0"
    assert finished[-1] == "3"
    assert files_below(tmp_path / "grid/2") == ["job.json"]


def test_failed_job_does_not_keep_a_grid_from_its_next_batch(train, tmp_path):
    values = f"args.seed={fake_experiment.BREAKS},1"
    assert train(values, "paths.sweep_dir=grid", "hydra.sweeper.max_batch_size=1", "-m") == 1
    assert (tmp_path / "grid/1/all_results.json").exists()


def test_same_command_skips_finished_jobs_and_resumes_the_others(train, capsys, tmp_path):
    searched = ("_target_=fake_experiment.SearchedExperiment", "+experiment=mrc", "args.learning_rate=1e-3")
    command = ("hydra.sweep.dir=grid", f"args.seed=1,{fake_experiment.IS_STOPPED},2", "-m")
    assert train(*command, arguments=searched) == 130
    shown = capsys.readouterr()
    assert f"The same command with hydra.sweep.dir='{tmp_path / 'grid'}' skips the finished jobs" in shown.err
    assert re.search(r"0 .* 1 .* 80 ", shown.out), "no table of the finished jobs"
    finished = (tmp_path / "grid/0/job.json").read_text()
    assert train(*command, arguments=searched) == 0
    assert (tmp_path / "grid/0/job.json").read_text() == finished, "to skip it takes none of its time"
    starts = [(tmp_path / f"grid/{number}/starts.txt").read_text().split() for number in range(3)]
    assert starts == [["0"], ["0", "1"], ["0"]]
    assert "args.resume_from_checkpoint" not in (tmp_path / "grid/1/config.yaml").read_text()
    jobs = json.loads((tmp_path / "grid/sweep.json").read_text())["jobs"]
    assert [job["values"] for job in jobs] == [{"args.seed": seed} for seed in (1, fake_experiment.IS_STOPPED, 2)]
    assert {job["status"] for job in jobs} == {"finished"}


def test_finished_job_with_other_settings_is_refused(train, capsys, tmp_path):
    assert train("args.seed=1,2", "hydra.sweep.dir=grid", "-m") == 0
    assert train("args.seed=1,3", "hydra.sweep.dir=grid", "-m") == 1
    shown = capsys.readouterr().err
    assert f"Job 1 ({' '.join((*fake_experiment.OVERRIDES, '+experiment=mrc'))}" not in shown
    assert "already holds a run" in shown
    assert "These jobs of the sweep failed: 1." in shown


def test_command_of_a_sweep_writes_its_report_again(train, capsys, tmp_path):
    assert train("args.learning_rate=1e-4,3e-4", "hydra.sweep.dir=grid", "-m") == 0
    (tmp_path / "grid/sweep.html").unlink()
    capsys.readouterr()
    report_command([str(tmp_path / "grid")])
    assert "learning_rate" in capsys.readouterr().out
    assert "<!doctype html>" in (tmp_path / "grid/sweep.html").read_text()
    with pytest.raises(SystemExit, match="1"):
        report_command([str(tmp_path)[:-1]])
    assert "not the folder of a sweep; name one whose subfolders have a job.json." in capsys.readouterr().err


def test_an_experiment_needs_no_plus_sign(train, tmp_path):
    assert train("paths.output_dir=here", arguments=("experiment=mrc", *fake_experiment.OVERRIDES)) == 0
    assert OmegaConf.load(tmp_path / "here/config.yaml").name == "mrc"


def test_the_configuration_is_printed_at_the_start(train, capsys):
    assert train("tags=[first,try]", "args.learning_rate=0.125") == 0
    shown = capsys.readouterr().out
    assert "learning_rate: 0.125" in shown
    assert "- first" in shown
    assert train("print_config=false", "args.seed=3", "paths.output_dir=second") == 0
    assert "learning_rate" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("args.learning_rat=1", "'args.learning_rat' is not a setting; the nearest valid names are: args.learn"),
        ("print_config=tree", "print_config=tree is unknown; set it to true or false."),
        ("model=small", "'model=small' names no file of the group 'model'"),
        ("objective.mode=up", "objective.mode=up is unknown; set it to max or min."),
        ("debug=true", "Got bool; give the group the name of a file, as in debug=default."),
        ("--experimental-rerun=a.pickle", "`--experimental-rerun a.pickle` would unpickle the file, which can run"),
        (
            "--strategy=dpd",
            "`--strategy=dpd` is not an option of `portico train`, where settings are written key=value; "
            "write strategy=dpd.",
        ),
        ("--learning-rate=1e-4", "key=value; write args.learning_rate=1e-4."),
        ("--args.learning_rate=1e-4", "key=value; write args.learning_rate=1e-4."),
        ("--lr=1e-4", "key=value; use args.learning_rate."),
        ("--experiment=mrc", "key=value; write experiment=mrc."),
        ("--config-dir=none", "/none' not found; name a folder of configuration files with --config-dir."),
        ("--multi", "where settings are written key=value; write --multirun in full."),
        ("--exp=mrc", "`--exp=mrc` is not an option of `portico train`, where settings are written key=value."),
        ("--config-name=eval", "leave --config-name out, or name the folder of your own file with --config-dir."),
        ("logger.wandb.project=x", "`logger.wandb` names no class (_target_); add logger=wandb to the command, or"),
        (
            "logger=[csv,wandb]",
            "The entry `logger.wandb` needs wandb, which is not installed; install it with `pip in",
        ),
        ("callbacks.mine=3", "`callbacks.mine` names no class (_target_); add callbacks.mine._target_=<class> to the"),
        (
            "callbacks.model_checkpoint.monitor=f1",
            "`callbacks.model_checkpoint` names no class (_target_); use args.s",
        ),
    ],
)
def test_what_cannot_be_used_is_answered_before_any_work(train, capsys, tmp_path, override, message):
    assert_refused(capsys, train(override), message)
    assert not list(tmp_path.iterdir())


def test_bad_input_leaves_the_folder_free_for_the_corrected_command(train, capsys, tmp_path):
    code = train("paths.output_dir=here", "data.train_file=a.json")
    assert_refused(capsys, code, "a.json is missing")
    assert not list(tmp_path.iterdir())
    assert train("paths.output_dir=here") == 0


def test_folder_with_a_run_is_refused_unharmed(train, capsys, tmp_path):
    assert train("paths.output_dir=here") == 0
    before = (tmp_path / "here/config.yaml").read_text()
    code = train("paths.output_dir=here", "args.seed=3")
    assert_refused(
        capsys, code, "already holds a run", "paths.output_dir=", "resume_from_checkpoint", "overwrite=true"
    )
    assert (tmp_path / "here/config.yaml").read_text() == before


def test_callback_that_cannot_be_built_is_refused(train, capsys):
    code = train("callbacks=early_stopping", "callbacks.early_stopping.patience=1")
    assert_refused(capsys, code, "unexpected keyword argument 'patience'")


def test_interrupted_run_says_how_to_continue(train, capsys, tmp_path):
    code = train("paths.output_dir=here", f"args.seed={fake_experiment.IS_INTERRUPTED}")
    folder = tmp_path / "here"
    assert_refused(
        capsys,
        code,
        f"Interrupted; '{folder}' holds checkpoints",
        f"paths.output_dir='{folder}' args.resume_from_checkpoint=true",
        expected_code=130,
    )
    assert (folder / "checkpoint-2").is_dir()
    assert train("paths.output_dir=here", "args.resume_from_checkpoint=true") == 0


def test_run_interrupted_without_a_checkpoint_leaves_nothing(train, capsys, tmp_path):
    code = train(f"args.seed={fake_experiment.IS_INTERRUPTED}", "args.save_strategy=no")
    assert_refused(capsys, code, "Interrupted before the first checkpoint", "starts over", expected_code=130)
    assert not list(tmp_path.iterdir())


def test_interrupt_ends_a_sweep(train, capsys, tmp_path):
    assert train(f"args.seed={fake_experiment.IS_INTERRUPTED},1", "paths.sweep_dir=grid", "-m") == 130
    assert not (tmp_path / "grid/1").exists()
    (job,) = json.loads((tmp_path / "grid/sweep.json").read_text())["jobs"]
    assert job["status"] == "killed"
    assert job["error"] == "it was interrupted; the same command over the same folder resumes it"
    assert "running" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ("[/data/left],[/data/right]", ["[/data/left]", "[/data/right]"]),
        ("[none],[bold]", ["[none]", "[bold]"]),
        ("choice('caf\u00e9','b c')", ["'caf\u00e9'", "'b c'"]),
        ("caf\u00e9,th\u00e9", ["'caf\u00e9'", "'th\u00e9'"]),
        ("['a b'],[/\u00e9/x,c]", ["['a b']", "['/\u00e9/x',c]"]),
    ],
)
def test_table_of_a_sweep_shows_any_value(train, capsys, tmp_path, values, shown):
    assert train(f"tags={values}", "paths.sweep_dir='grid-[v2]'", "print_config=false", "-m") == 0
    table = capsys.readouterr().out.rpartition("Sweep ")[2]
    assert table.startswith("grid-[v2]")
    for value in shown:
        assert value in table
    jobs = json.loads((tmp_path / "grid-[v2]/sweep.json").read_text())["jobs"]
    assert [job["values"]["tags"] for job in jobs] == shown


def test_letters_inside_a_shuffled_choice_are_explained(train, capsys):
    code = train("name=shuffle('caf\u00e9','b')", "-m")
    assert_refused(capsys, code, "Letters beyond ASCII are read only in quotes, and not inside of shuffle()")


@pytest.mark.parametrize("folder", ["file", "file/below"])
def test_folder_that_cannot_be_made_is_named(train, capsys, tmp_path, folder):
    (tmp_path / "file").touch()
    code = train(f"paths.output_dir={folder}")
    assert_refused(capsys, code, f"'{folder}' cannot be used (", "set it to a folder that can be written to")


def test_full_error_shows_the_traceback(train, monkeypatch):
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with pytest.raises(InputError, match=r"a\.json is missing"):
        train("data.train_file=a.json")


def test_defect_keeps_its_traceback_and_its_traces(train, tmp_path):
    with pytest.raises(RuntimeError, match="a defect"):
        train("paths.output_dir=here", f"args.seed={fake_experiment.BREAKS}")
    assert files_below(tmp_path) == ["here/config.yaml"]


def test_environment_is_left_alone(train, monkeypatch):
    monkeypatch.setattr(fake_experiment, "FULL_ERROR_SEEN", None, raising=False)

    def spy(experiment):
        fake_experiment.FULL_ERROR_SEEN = os.environ.get("HYDRA_FULL_ERROR")
        return {"eval_f1": 1.0}

    monkeypatch.setattr(fake_experiment.FakeExperiment, "train", spy)
    assert train() == 0
    assert fake_experiment.FULL_ERROR_SEEN != "1", "worker processes would show tracebacks"
    assert "HYDRA_FULL_ERROR" not in os.environ


def test_help_shows_commands_groups_and_settings(train, capsys):
    assert train("--help") == 0
    shown = capsys.readouterr().out
    assert "portico train -m +experiment=mrc" in shown
    assert "debug: default, fdr, overfit, profiler" in shown
    assert re.search(r"^  postprocess.n_best_size=20 +Candidates kept$", shown, flags=re.MULTILINE)
    assert re.search(r"^  args.learning_rate=0.002 +Peak learning rate$", shown, flags=re.MULTILINE)
    assert "model._target_=portico.mrc.config.EncoderModel" in shown
    assert re.search(r"^  args.weight_decay=0.0 ", shown, flags=re.MULTILINE), "not only what the files set"
    assert re.search(r"^  model.hidden_act=relu  +Field of BertConfig", shown, flags=re.MULTILINE)
    assert re.search(r"^  model.hidden_size=128 ", shown, flags=re.MULTILINE), "of the small model, not of BERT"
    assert re.search(r"^  model.vocab_size= ", shown, flags=re.MULTILINE), "preprocess.vocab_size decides it"


def test_help_without_an_experiment_says_how_to_see_its_settings(train, capsys):
    assert train("--help", arguments=()) == 0
    assert "once an experiment is chosen: --help +experiment=mrc" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("+experiment=mrc args.weig", "args.weight_decay="),  # no file mentions it
        ("experiment=text_classification task.pad", "task.pad_to_max_length="),
        ("+experiment=mrc_seq2seq model.num_h", "model.num_heads="),
        ("+experiment=causal_lm model.n_embd=", "model.n_embd=128"),
        ("+experiment=mrc strategy=d", "strategy=ddp strategy=deepspeed"),
        ("+experiment=mr", "+experiment=mrc +experiment=mrc_fid +experiment=mrc_ipu"),
    ],
)
def test_completion_knows_every_setting(line, offered, train, monkeypatch, capsys):
    monkeypatch.setenv("COMP_LINE", f"python train.py {line}")
    assert train("-sc", "query=bash", arguments=()) == 0
    assert capsys.readouterr().out.startswith(offered)


def test_completion_knows_the_settings_of_an_experiment_of_the_user(train, monkeypatch, capsys, tmp_path):
    (tmp_path / "mine/experiment").mkdir(parents=True)
    (tmp_path / "mine/experiment/own.yaml").write_text("# @package _global_\ndefaults: [mrc]\n")
    monkeypatch.setenv("COMP_LINE", "python train.py --config-dir mine +experiment=own args.weig")
    assert train("--config-dir", "mine", "-sc", "query=bash", arguments=()) == 0
    assert capsys.readouterr().out.startswith("args.weight_decay=")


def test_a_printed_configuration_is_an_experiment(train, tmp_path, capsys):
    changes = ("args.learning_rate=0.5", "args.weight_decay=0.25", "callbacks=early_stopping")
    assert train(*changes, "paths.output_dir=first") == 0
    capsys.readouterr()
    assert train(*changes, "--cfg", "job") == 0
    (tmp_path / "mine/experiment").mkdir(parents=True)
    (tmp_path / "mine/experiment/again.yaml").write_text(capsys.readouterr().out)
    again = ("--config-dir", str(tmp_path / "mine"), "experiment=again")
    assert train("paths.output_dir=second", arguments=again) == 0
    received = [json.loads((tmp_path / f"{name}/all_results.json").read_text()) for name in ("first", "second")]
    assert [one.pop("output_dir") for one in received] == [str(tmp_path / name) for name in ("first", "second")]
    assert received[0] == received[1]
    assert train("args.max_steps=3", "paths.output_dir=third", arguments=again) == 0, "other keys can be set"


def test_train_script_is_the_same_command(tmp_path):
    command = [CHECKOUT / "train.py", "+experiment=mrc", *fake_experiment.OVERRIDES, "args.sed=1"]
    done = python(*command, folder=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("error: 'args.sed' is not a setting; the nearest valid names are: args.seed")


# Runs `portico train` as the installed command does, without the working folder among the folders of modules.
INSTALLED_COMMAND = """
import sys
from portico.commands.train import main
sys.path.remove("")
try:
    main({arguments})
except SystemExit as end:
    assert end.code == 1, end.code
assert {expected}, [name for name in sys.modules if "." not in name]
"""


def test_a_command_that_cannot_be_composed_is_refused_without_torch():
    mistakes = [
        *([], ["experiment=mcr"], ["experiment=mrc", "model=small"], ["experiment=mrc", "args.x=[1"]),
        *(["experiment=mrc", "naem=x"], ["experiment=mrc", "modle=small_bert"], ["experiment=mrc", "logger=wandb"]),
    ]
    assert_runs_anew(
        *(INSTALLED_COMMAND.format(arguments=one, expected="'torch' not in sys.modules") for one in mistakes)
    )


def test_the_installed_command_finds_classes_in_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_classes.py").write_text("class Data: pass")
    arguments = ["experiment=mrc", "data._target_=my_classes.Data"]
    expected = "'my_classes' in sys.modules"
    assert_runs_anew(INSTALLED_COMMAND.format(arguments=arguments, expected=expected), after=LARGE)


def test_a_process_that_joins_a_run_uses_its_folder(train, tmp_path, monkeypatch):
    folder = f"paths.output_dir={tmp_path / 'run'}"
    assert train(folder) == 0
    assert train(folder) != 0
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert train(folder) == 0


def test_objective_is_a_python_float():
    value = objective_value({"eval_f1": np.float32(0.5)}, {"metric": "eval_f1", "mode": "max"})
    assert type(value) is float
    assert value == 0.5


def test_no_metric_no_objective():
    assert objective_value({"eval_f1": 1.0}, {"metric": None, "mode": "max"}) is None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(("mode", "worst"), [("max", -sys.float_info.max), ("min", sys.float_info.max)])
def test_an_objective_that_is_not_finite_becomes_the_worst_value_with_a_warning(value, mode, worst, caplog):
    with caplog.at_level(logging.WARNING, logger="portico"):
        assert objective_value({"eval_loss": value}, {"metric": "eval_loss", "mode": mode}) == worst
    assert "eval_loss is" in caplog.text
    assert "worst finite value" in caplog.text


def test_unknown_objective_names_those_of_the_run():
    with pytest.raises(InputError, match=r"'eval_f' is not a metric .* eval_f1, .* The run has: eval_f1, eval_loss\."):
        objective_value({"eval_f1": 1.0, "eval_loss": 2.0}, {"metric": "eval_f", "mode": "max"})


def test_resolve_without_a_print_is_refused(train, capsys):
    assert train("--resolve") == 1
    assert "`--resolve` says how a configuration is printed; add `--cfg job`, or leave it out." in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize("choice", ["disabled", "none", "stdout", "default", "portico"])
def test_logging_of_hydra_can_be_chosen(choice, train, capsys):
    assert train(f"hydra/job_logging={choice}", "--cfg", "hydra", "--package", "hydra.job_logging") == 0
    shown = OmegaConf.create(capsys.readouterr().out)
    assert ("train.log" in str(shown)) == (choice == "portico")
    assert train(f"hydra/job_logging={choice}") == 0
