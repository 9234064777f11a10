"""The sweeper on Optuna, over an experiment that costs nothing."""

import json
import os
import re
import shlex
from types import SimpleNamespace

import optuna
import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState

import fake_experiment
from hydra_plugins.portico_optuna import OptunaSweeper, distribution_of, distribution_of_config
from portico.cli.studies import make_storage
from portico.commands.sweep import main as report
from portico.errors import InputError

TAKES_CONSTRAINTS = pytest.mark.skipif(not hasattr(optuna.Trial, "set_constraint"), reason="needs Optuna 5")


def study_in(folder, name="sweep"):
    return optuna.load_study(study_name=name, storage=make_storage(str(folder / "study.journal")))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x=interval(0, 0.5)", FloatDistribution(0, 0.5)),
        ("x=int(interval(1, 8))", IntDistribution(1, 8)),
        ("x=tag(log, interval(1e-5, 1e-2))", FloatDistribution(1e-5, 1e-2, log=True)),
        ("x=tag(log, int(interval(1, 64)))", IntDistribution(1, 64, log=True)),
        ("x=range(2, 8, 2)", IntDistribution(2, 8, step=2)),
        ("x=range(0.0, 1.0, 0.25)", FloatDistribution(0, 1, step=0.25)),
        ("x=choice(a, 1, 0.5, true)", CategoricalDistribution(["a", 1, 0.5, True])),
        ("x=choice([1, 2], {a: 1})", CategoricalDistribution(["[1,2]", "{a:1}"])),
        ("x=1,2", CategoricalDistribution([1, 2])),
    ],
)
def test_values_in_hydras_grammar(text, expected):
    assert distribution_of(OverridesParser.create().parse_override(text)) == expected


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"type": "float", "low": 0, "high": 1}, FloatDistribution(0, 1)),
        ({"type": "float", "low": 0.1, "high": 1, "log": True, "step": None}, FloatDistribution(0.1, 1, log=True)),
        ({"type": "int", "low": 2, "high": 8, "step": 2}, IntDistribution(2, 8, step=2)),
        ({"type": "categorical", "choices": ["a", "b"]}, CategoricalDistribution(["a", "b"])),
    ],
)
def test_values_in_the_older_form(config, expected):
    assert distribution_of_config("x", config) == expected


def test_unknown_kind_of_value_is_refused():
    with pytest.raises(InputError, match=r"search_space\.x cannot be used .*set type to int or float"):
        distribution_of_config("x", {"type": "number"})


def test_search_finds_good_values_and_reports_them(search, found, tmp_path, capsys):
    assert search("hydra.sweeper.n_trials=12") == 0
    assert len(found()) == 12
    best = max(found(), key=lambda job: job["objective"]["eval_f1"])
    assert best["objective"]["eval_f1"] > 75
    summary = json.loads((tmp_path / "found/sweep.json").read_text())
    assert summary["best"] == [best["number"]]
    assert summary["importances"]["eval_f1"] == {"args.learning_rate": 1.0}
    assert [step for step, _ in best["evaluations"]] == [10, 20, 30, 40]
    assert summary["space"] == [{"name": "args.learning_rate", "kind": "float", "range": "1e-05 to 0.1", "log": True}]
    assert summary["method"] == {"sampler": "TPESampler(seed=1)", "pruner": "none", "trials": "12"}
    assert summary["fixed"] == ["_target_=fake_experiment.SearchedExperiment", "+experiment=mrc"]
    results = yaml.safe_load((tmp_path / "found/optimization_results.yaml").read_text())
    assert results["best_value"] == best["objective"]["eval_f1"]
    assert results["best_params"]["args.learning_rate"] == pytest.approx(best["values"]["args.learning_rate"])
    assert "args.learning_rate" in capsys.readouterr().out
    # Each job has trained the values of its trial.
    for trial in study_in(tmp_path / "found").trials:
        received = json.loads((tmp_path / f"found/{trial.number}/all_results.json").read_text())
        assert received["args"]["learning_rate"] == trial.params["args.learning_rate"]


def test_command_of_a_run_trains_it_again(search, found, tmp_path, command_line):
    assert search("tags=['a b']", "hydra.sweeper.n_trials=1") == 0
    (job,) = found()
    words = shlex.split(job["command"])
    assert words[:2] == ["portico", "train"]
    assert command_line(*words[2:], "paths.output_dir=again") == 0
    first, again = (json.loads((tmp_path / run / "all_results.json").read_text()) for run in ("found/0", "again"))
    assert "tags=['a b']" in words
    assert (again["args"], again["data"]) == (first["args"], first["data"])


def test_values_of_the_command_line_go_before_those_of_the_files(search, found):
    space = ["+hydra.sweeper.params={args.learning_rate: 'choice(1e-4)', args.seed: 'choice(1, 2)'}", "args.seed=5"]
    assert search(*space, "hydra.sweeper.n_trials=2", values="args.warmup_steps=1,2") == 0
    assert {name for job in found() for name in job["values"]} == {"args.learning_rate", "args.warmup_steps"}


def test_failed_and_diverged_trials_do_not_end_the_search(search, found, tmp_path, capsys):
    seeds = f"args.seed=1,2,{fake_experiment.BREAKS},{fake_experiment.DIVERGES}"
    assert (
        search("hydra/sweeper/sampler=grid", seeds, "hydra.sweeper.n_trials=9", values="args.learning_rate=1e-3") == 1
    )
    states = {trial.params["args.seed"]: trial.state for trial in study_in(tmp_path / "found").trials}
    assert states == {
        1: TrialState.COMPLETE,
        2: TrialState.COMPLETE,
        fake_experiment.BREAKS: TrialState.FAIL,
        fake_experiment.DIVERGES: TrialState.FAIL,
    }
    (failed,) = (str(job["number"]) for job in found() if job["status"] == "failed")
    assert f"These jobs of the sweep failed: {failed}." in capsys.readouterr().err
    # Nothing is left to run, and the failed trial is still one.
    assert (
        search("hydra/sweeper/sampler=grid", seeds, "hydra.sweeper.n_trials=9", values="args.learning_rate=1e-3") == 1
    )
    assert f"These jobs of the sweep failed: {failed}." in capsys.readouterr().err


def test_too_many_failures_end_the_search(search, found):
    values = f"args.seed=choice({fake_experiment.BREAKS})"
    assert search(values, "hydra.sweeper.max_failure_rate=0", "hydra.sweeper.n_trials=5") == 1
    assert len(found()) == 1


@pytest.mark.parametrize("cut", [-1, -9])
def test_a_journal_that_a_crash_has_cut_off_is_continued(search, found, tmp_path, capsys, cut):
    assert search("hydra.sweeper.n_trials=2") == 0
    journal = tmp_path / "found/study.journal"
    damaged = journal.read_bytes()[:cut]
    journal.write_bytes(damaged)
    assert search("hydra.sweeper.n_trials=3") == 0
    assert "is damaged, as after a crash. The search continues from the" in capsys.readouterr().out
    assert (tmp_path / "found/study.journal.damaged").read_bytes() == damaged
    assert [job["status"] for job in found()] == ["finished"] * 3
    assert [trial.state for trial in study_in(tmp_path / "found").trials] == [TrialState.COMPLETE] * 3


def test_a_lost_journal_is_not_taken_for_a_new_search(search, found, tmp_path, capsys):
    assert search("hydra.sweeper.n_trials=2") == 0
    before = found()
    (tmp_path / "found/study.journal").write_bytes(b"")
    assert search("hydra.sweeper.n_trials=2") == 1
    assert "contains jobs 0, 1, but the study in " in (shown := capsys.readouterr().err)
    assert "study.journal has 0 trials. Restore the study, move the folders of these jobs away" in shown
    assert found() == before


@pytest.mark.parametrize(
    ("recorded", "expected"),
    [
        ({"baselines": {"answering nothing": {"f1": 28.4}}}, {"eval_f1": {"answering nothing": 28.4}}),
        ({"baselines": None}, {}),
        ({"baselines": {"answering nothing": 3}}, {}),
        ([], {}),
    ],
)
def test_a_sweep_knows_the_baselines_of_its_runs(tmp_path, recorded, expected):
    one = {"number": 0, "overrides": [], "status": "finished", "goals": {"eval_f1": "max"}}
    (tmp_path / "0").mkdir()
    (tmp_path / "0/job.json").write_text(json.dumps({**one, "objective": {"eval_f1": 28.4}}))
    (tmp_path / "0/report.json").write_text(json.dumps(recorded))
    report([str(tmp_path)])
    assert json.loads((tmp_path / "sweep.json").read_text())["baselines"] == expected
    assert ("no better than answering nothing" in (tmp_path / "sweep.html").read_text()) == bool(expected)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("number", "one"),
        ("number", -1),
        ("overrides", [3]),
        ("goals", {"eval_f1": "up"}),
        ("objective", {"eval_f1": "high"}),
        ("evaluations", [[1, 2, 3]]),
        ("evaluations", [1]),
        ("seconds", float("nan")),
        ("error", ["a"]),
        ("trial", {"storage": "a"}),
    ],
)
def test_a_forged_job_is_named(tmp_path, capsys, field, value):
    forged = {"number": 0, "overrides": [], "status": "finished", field: value}
    (tmp_path / "0").mkdir()
    (tmp_path / "0/job.json").write_text(json.dumps(forged))
    with pytest.raises(SystemExit):
        report([str(tmp_path)])
    assert f"0/job.json: not the record of a job (`{field}` is " in capsys.readouterr().err


@pytest.mark.parametrize("target", ["optuna.pruners.MedianPruner", "fake_experiment.own_pruner"])
def test_pruner_judges_the_evaluations_of_running_jobs(search, found, tmp_path, target):
    pruning = ["hydra/sweeper/pruner=median", "hydra.sweeper.pruner.n_startup_trials=2", "hydra.sweeper.n_trials=10"]
    assert search(*pruning, f"hydra.sweeper.pruner._target_={target}") == 0
    pruned = [job for job in found() if job["status"] == "pruned"]
    assert pruned
    assert all(len(job["evaluations"]) < 4 for job in pruned)
    trials = study_in(tmp_path / "found").trials
    for job in pruned:
        assert trials[job["number"]].state is TrialState.PRUNED
        assert list(trials[job["number"]].intermediate_values.values()) == [value for _, value in job["evaluations"]]
        assert not (tmp_path / f"found/{job['number']}/all_results.json").exists()


def test_a_job_is_not_pruned_at_its_last_evaluation(search, found):
    """Its training has been paid for."""
    last_only = ["n_startup_trials=1", "n_warmup_steps=4"]
    settings = [f"hydra.sweeper.pruner.{one}" for one in last_only]
    assert search("hydra/sweeper/pruner=median", *settings, "hydra.sweeper.n_trials=5") == 0
    assert {job["status"] for job in found()} == {"finished"}


@pytest.mark.parametrize(
    ("overrides", "is_refused"),
    [
        (["args.eval_strategy=no"], True),
        (["args.eval_strategy=no", "hydra/sweeper/pruner=none"], False),
        (["trainer=mrc_seq2seq", "args=mrc_seq2seq"], True),
        (["trainer=mrc_seq2seq", "args=mrc_seq2seq", "args.eval_strategy=epoch"], False),
        (["trainer=mrc_seq2seq", "args=mrc_seq2seq", "args.eval_strategy=choice(epoch)"], False),
    ],
)
def test_pruner_without_evaluations_is_refused_before_the_first_trial(search, tmp_path, capsys, overrides, is_refused):
    # Without a trial: what is not refused has no storage.
    pruner = ["hydra/sweeper/pruner=median"] * ("hydra/sweeper/pruner=none" not in overrides)
    assert search(*pruner, *overrides, "hydra.sweeper.storage=no/such.journal") == 1
    assert ("set args.eval_strategy=steps args.eval_steps=0.25" in capsys.readouterr().err) == is_refused
    assert (tmp_path / "found").exists() != is_refused


def test_enqueued_points_come_first_and_once(search, found):
    point = "hydra.sweeper.enqueue=[{args.learning_rate: 1e-3}]"
    assert search(point, "hydra.sweeper.n_trials=2") == 0
    assert search(point, "hydra.sweeper.n_trials=4") == 0
    rates = [values["args.learning_rate"] for values in found("values")]
    assert rates[0] == 1e-3
    assert rates.count(1e-3) == 1
    assert len(rates) == 4


@pytest.mark.parametrize("point", ["{args.learning_rate: 7}", "{args.seed: 1}"])
def test_enqueued_point_outside_of_the_space_is_refused(search, capsys, point):
    assert search(f"hydra.sweeper.enqueue=[{point}]") == 1
    assert "outside of the search space" in capsys.readouterr().err


@TAKES_CONSTRAINTS
def test_constraint_on_an_unknown_metric_ends_the_search(search, capsys):
    assert search("hydra.sweeper.constraints=['train_runtim <= 5']") == 1
    assert "hydra.sweeper.constraints bounds 'train_runtim', which is not a metric" in capsys.readouterr().err


def test_constraints_need_optuna_5(search, monkeypatch, capsys):
    monkeypatch.setattr(optuna, "Trial", object)
    assert search("hydra.sweeper.constraints=['train_runtime <= 5']") == 1
    assert re.search(
        r"hydra\.sweeper\.constraints=\['train_runtime <= 5'\] needs Optuna 5, and [\d.]+ is installed; run "
        r"`pip install 'optuna>=5'`, or leave it out\.",
        " ".join(capsys.readouterr().err.split()),
    )


@TAKES_CONSTRAINTS
def test_constraints_choose_among_the_best(search, tmp_path):
    rates = "args.learning_rate=choice(1e-3, 1e-4, 1e-5)"
    bounds = "hydra.sweeper.constraints=['train_runtime <= 5', 'train_runtime <= 1000']"
    assert search(bounds, "hydra/sweeper/sampler=grid", values=rates) == 0
    summary = json.loads((tmp_path / "found/sweep.json").read_text())
    feasible = {job["values"]["args.learning_rate"]: job["is_feasible"] for job in summary["jobs"]}
    assert feasible == {1e-3: False, 1e-4: True, 1e-5: True}
    (best,) = summary["best"]
    assert summary["jobs"][best]["values"]["args.learning_rate"] == 1e-4
    results = yaml.safe_load((tmp_path / "found/optimization_results.yaml").read_text())
    assert results["best_params"]["args.learning_rate"] == 1e-4


def test_several_objectives(search, tmp_path):
    goals = ["objective.metric=[eval_f1, train_runtime]", "objective.mode=[max, min]", "hydra/sweeper/sampler=nsgaii"]
    rates = "args.learning_rate=choice(1e-2, 1e-3, 1e-4)"
    assert search(*goals, "hydra.sweeper.n_trials=8", values=rates) == 0
    summary = json.loads((tmp_path / "found/sweep.json").read_text())
    assert summary["goals"] == {"eval_f1": "max", "train_runtime": "min"}
    rates = {summary["jobs"][number]["values"]["args.learning_rate"] for number in summary["best"]}
    assert rates <= {1e-3, 1e-4}
    solutions = yaml.safe_load((tmp_path / "found/optimization_results.yaml").read_text())["solutions"]
    assert {one["params"]["args.learning_rate"] for one in solutions} == rates


def test_direction_that_contradicts_the_objective_is_refused(search, capsys):
    assert search("hydra.sweeper.direction=minimize") == 1
    assert "direction=minimize does not fit objective.metric=['eval_f1']" in capsys.readouterr().err


@pytest.mark.parametrize("storage", ["null", "sqlite:///study.db"])
def test_stopped_search_resumes_its_trials_and_keeps_the_finished(search, found, tmp_path, monkeypatch, storage):
    command = [f"hydra.sweeper.storage={storage}", "hydra/sweeper/sampler=grid", "hydra.sweeper.n_trials=9"]
    seeds = f"args.seed=1,{fake_experiment.IS_STOPPED},2"
    assert search(*command, seeds, values="args.learning_rate=1e-3") == 130
    states = dict(zip(found("number"), found("status"), strict=True))
    interrupted = max(states)
    assert states.pop(interrupted) == "killed"
    assert set(states.values()) <= {"finished"}
    assert search(*command, seeds, values="args.learning_rate=1e-3") == 0
    assert found("status") == ["finished"] * 3
    starts = [(tmp_path / f"found/{number}/starts.txt").read_text().split() for number in range(3)]
    assert starts[interrupted] == ["0", "1"], "not resumed from its checkpoint"
    assert [one for number, one in enumerate(starts) if number != interrupted] == [["0"]] * 2
    assert [step for step, _ in found("evaluations")[interrupted]] == [10, 20, 30, 40]


def test_trial_of_a_living_worker_is_left_alone(search, found, tmp_path):
    assert search("hydra.sweeper.n_trials=1") == 0
    study = study_in(tmp_path / "found")
    other = study.ask({"args.learning_rate": FloatDistribution(1e-5, 1e-1, log=True)})
    other.set_user_attr("folder", str(tmp_path / "found"))
    other.set_user_attr("worker", f"{os.uname().nodename}:{os.getppid()}")
    assert search("hydra.sweeper.n_trials=3") == 0
    assert found("number") == [0, 2]
    assert study_in(tmp_path / "found").trials[1].state is TrialState.RUNNING


@pytest.mark.parametrize("state", [TrialState.WAITING, TrialState.RUNNING])
@pytest.mark.parametrize("space", [(), ("hydra.sweeper.custom_search_space=fake_experiment.suggest_seed",)])
def test_trials_of_a_study_that_somebody_sent_choose_no_other_settings(search, tmp_path, capsys, state, space):
    assert search("hydra.sweeper.n_trials=1", *space) == 0
    journal = tmp_path / "found/study.journal"
    sound, choice = journal.read_bytes(), CategoricalDistribution(["os.getcwd"])
    for key in ("callbacks.one._target_", "args.learning_rate", "hydra.run.dir"):
        forged = optuna.trial.create_trial(
            params={key: "os.getcwd"},
            distributions={key: choice},
            state=state,
            user_attrs={"folder": str(tmp_path / "found"), "worker": ""},
        )
        journal.write_bytes(sound)
        study_in(tmp_path / "found").add_trial(forged)
        assert search("hydra.sweeper.n_trials=3", *space) == 1
        error = capsys.readouterr().err
        assert (
            re.search(rf"The study has {{.*'{key}': 'os.getcwd'", error)
            or "The study does not fit the search space" in error
        ), key
        assert not (tmp_path / "found/1").exists()


def test_continued_search_with_a_seed_draws_other_values_and_says_so(search, found, capsys):
    sampler = ["hydra/sweeper/sampler=random", "hydra.sweeper.sampler.seed=3"]
    assert search(*sampler, "hydra.sweeper.n_trials=2") == 0
    capsys.readouterr()
    assert search(*sampler, "hydra.sweeper.n_trials=4") == 0
    shown = capsys.readouterr()
    assert "The search continues after 2 trials. Its sampler begins anew" in shown.out + shown.err
    drawn = [tuple(values.values()) for values in found("values")]
    assert len(set(drawn)) == len(drawn) == 4


def test_a_search_by_cmaes_is_continued_from_its_state(search, found, tmp_path):
    command = ("hydra/sweeper/sampler=cmaes", "args.weight_decay=interval(0.0, 1.0)")
    assert search(*command, "hydra.sweeper.n_trials=9") == 0
    assert any("cma:optimizer:0" in one.system_attrs for one in study_in(tmp_path / "found").trials)
    assert search(*command, "hydra.sweeper.n_trials=11") == 0
    assert found("number") == list(range(11))


def test_custom_search_space_suggests_more(search, found, monkeypatch):
    more = "hydra.sweeper.custom_search_space=fake_experiment.suggest_seed"
    assert search(more, "hydra.sweeper.n_trials=4", "hydra.sweeper.sampler.seed=3") == 0
    assert {values.get("args.seed") for values in found("values")} == {1, 2}


def test_a_job_has_the_folder_of_its_trial_whatever_hydra_would_name_it(search, found, tmp_path, capsys):
    assert search("hydra.sweep.subdir='lr_${args.learning_rate}'", "hydra.sweeper.n_trials=2") == 0
    assert found("status") == ["finished"] * 2
    assert sorted(path.parent.name for path in tmp_path.glob("found/*/job.json")) == ["0", "1"]
    printed = capsys.readouterr().out
    assert printed.count("hydra.sweep.subdir=lr_${args.learning_rate} has no effect on a search") == 1


def test_search_without_values_is_refused(search, capsys):
    assert search(values="args.learning_rate=1e-3") == 1
    assert "The search has no values to choose from" in capsys.readouterr().err


def test_search_in_processes_of_srun_is_refused(search, capsys, monkeypatch):
    for name, value in {"SLURM_NTASKS": "2", "SLURM_PROCID": "0", "SLURM_STEP_ID": "0"}.items():
        monkeypatch.setenv(name, value)
    assert search() == 1
    assert "SLURM_PROCID=0 says that a launcher such as srun" in capsys.readouterr().err


@pytest.mark.parametrize(("of_the_user", "expected"), [(None, "4"), ("7", "7")])
def test_trials_that_a_launcher_of_hydra_runs_at_the_same_time_share_the_cores(monkeypatch, of_the_user, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if of_the_user is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", of_the_user)

    def launch(overrides, initial_job_idx):
        return os.environ.get("OMP_NUM_THREADS")

    sweeper = OptunaSweeper()
    sweeper.launcher = SimpleNamespace(launch=launch)
    assert sweeper._launch([[], []], 0) == expected
    assert sweeper._launch([[]], 0) == of_the_user, "a trial by itself has all cores"
    assert os.environ.get("OMP_NUM_THREADS") == of_the_user


def test_trials_are_drawn_several_at_a_time_without_a_launcher_too(search, found):
    assert search("hydra.sweeper.n_trials=5", "hydra.sweeper.n_jobs=2") == 0
    assert found("number") == [0, 1, 2, 3, 4]
    assert set(found("status")) == {"finished"}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("hydra.sweeper.n_trials=many", "`hydra.sweeper.n_trials=many` cannot be used; set it to an integer."),
        (
            "hydra.sweeper.n_jobs=0",
            "hydra.sweeper.n_trials=2, n_jobs=0, max_failure_rate=1.0 are out of range; set the first",
        ),
        ("hydra.sweeper.sampler=tpe", "choose a file with hydra/sweeper/sampler=tpe, or set"),
        ("hydra.sweeper.pruner=median", "choose a file with hydra/sweeper/pruner=median, or set"),
        ("hydra.sweeper.storage=3", "`hydra.sweeper.storage=3` cannot be used; set it to a string, or null."),
        ("hydra.sweeper.storage=sqlite:///no/such.db", "unable to open database file); set it to sqlite:///<file>"),
        ("hydra.sweeper.storage=no/such.journal", "No such file or directory: 'no/such.journal'); set it to sqlite"),
        ("hydra.sweeper.storage=.", "`hydra.sweeper.storage=.` cannot be used ([Errno 21] Is a directory: '.')"),
        ("hydra.sweeper.storage=text", "`hydra.sweeper.storage=text` is a file without studies of Optuna"),
        ("hydra.sweeper.storage=of_another", "`hydra.sweeper.storage=of_another` cannot be used (Should not reach.)"),
        ("hydra.sweeper.storage=redis://localhost", "redis://localhost` cannot be used (Can't load plugin"),
        ("hydra.sweeper.storage=sqlite://", "`hydra.sweeper.storage=sqlite://` is lost with its process"),
        (
            "hydra.sweeper.storage=postgresql://me:secret@localhost/studies",
            "`hydra.sweeper.storage=postgresql://***@localhost/studies` needs the driver of its database, which is",
        ),
    ],
)
def test_wrong_settings_of_the_search_are_answered_in_a_sentence(search, capsys, tmp_path, override, message):
    (tmp_path / "text").write_text("notes\n")
    (tmp_path / "of_another").write_text('{"op_code": 99}\n')
    changes = ["hydra.sweeper.n_trials=2"] * ("n_trials" not in override)
    values = "args.learning_rate=interval(1e-5, 1e-1)"
    assert search(*changes, override, values=values, seeded="sampler" not in override) == 1
    assert message in capsys.readouterr().err
