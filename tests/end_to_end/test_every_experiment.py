"""Every experiment in every mode and with every debugging file, on models of a few hundred weights."""

import json
from pathlib import Path

import pytest

from portico.cli.composition import config_dir, experiment_names

# What the libraries below warn about is theirs.
pytestmark = pytest.mark.filterwarnings("ignore")

BERT = ("hidden_size=16", "num_hidden_layers=1", "num_attention_heads=2", "intermediate_size=16")
T5 = ("d_model=16", "d_kv=8", "d_ff=16", "num_layers=1", "num_heads=2")
SIZES = {
    **dict.fromkeys(experiment_names(), BERT),
    **dict.fromkeys(("mrc_seq2seq", "mrc_fid", "summarization", "translation"), T5),
    "causal_lm": ("n_embd=16", "n_layer=1", "n_head=2"),
    "gradient_descent": (),
    "mrc_ipu": (*BERT[:1], "num_hidden_layers=3", *BERT[2:]),
}
DEBUGGING = sorted(path.stem for path in (config_dir() / "debug").glob("*.yaml"))
QUESTIONS = [
    {"id": "a", "question": "Where does Ada live?", "context": ["Ada lives in Turku.", "She came there in 1901."]},
    {"id": "b", "question": "When did she come?", "context": "Ada lives in Turku. She came there in 1901."},
]
# The tasks run in every mode in tests/unit/tasks, and these are what differs from +experiment=mrc.
QUICK = ("mrc_ipu", "mrc_seq2seq")


@pytest.fixture
def run(monkeypatch, tmp_path, command_line):
    monkeypatch.chdir(tmp_path)

    def run(experiment, *overrides):
        quiet = () if experiment == "gradient_descent" else ("args.disable_tqdm=true",)
        return command_line(f"experiment={experiment}", "print_config=false", *quiet, *overrides)

    return run


def shape(experiment):
    return [f"model.{one}" for one in SIZES[experiment]]


@pytest.mark.parametrize(
    "experiment",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in experiment_names()],
)
def test_trains_evaluates_and_predicts(experiment, run, tmp_path):
    small = "debug=default"
    assert run(experiment, small, *shape(experiment), "paths.output_dir=run") == 0
    trained = "args.weights=run" if experiment == "gradient_descent" else "model.name_or_path=run"
    assert run(experiment, small, trained, "mode=evaluate", "paths.output_dir=scores") == 0
    assert json.loads((tmp_path / "scores/all_results.json").read_text())
    asked = ()
    if experiment.startswith("mrc"):
        (tmp_path / "questions.json").write_text(json.dumps(QUESTIONS))
        asked = ("data.predict_file=questions.json",)
    assert run(experiment, small, trained, *asked, "mode=predict", "paths.output_dir=answers") == 0
    written = {path.name for path in (tmp_path / "answers").iterdir()}
    assert any(name.startswith(("predict", "generated_predictions")) for name in written)
    if experiment.startswith("mrc"):
        answers = json.loads((tmp_path / "answers/predict_answers.json").read_text())
        assert [one["id"] for one in answers] == ["a", "b"]
        readable = (tmp_path / "answers/predict_answers.txt").read_text()
        assert all(one["question"] in readable for one in QUESTIONS)
        assert "predict_references.json" not in written


@pytest.mark.slow
@pytest.mark.parametrize("debug", DEBUGGING)
@pytest.mark.parametrize("experiment", experiment_names())
def test_debugging_works_with(experiment, debug, run, tmp_path):
    assert run(experiment, f"debug={debug}", *shape(experiment), "paths.output_dir=run") == 0
    assert (tmp_path / "run/all_results.json").is_file()
    assert (tmp_path / "run/profile/operations.txt").is_file() == (debug == "profiler")


@pytest.mark.slow
@pytest.mark.parametrize("experiment", experiment_names())
def test_evaluations_during_training_have_the_objective(experiment, run, tmp_path):
    """Without them nothing is pruned, and the page of a sweep has no learning curves."""
    evaluating = () if experiment == "gradient_descent" else ("args.eval_strategy=steps", "args.eval_steps=1")
    grid = ("args.seed=1,2", "hydra.sweep.dir=sweep", *evaluating, "-m")
    assert run(experiment, "debug=default", *shape(experiment), *grid) == 0
    jobs = json.loads(Path(tmp_path, "sweep/sweep.json").read_text())["jobs"]
    assert all(job["evaluations"] for job in jobs)
    for job in jobs:
        (objective,) = job["objective"].values()
        assert job["evaluations"][-1][1] == pytest.approx(objective, rel=0.5)
