"""Several processes and accumulation change the curves of transformers; with ``corrections="all"`` there is one."""

import json

import pytest

from forked import run_in_processes
from parity.curves import MODELS, curves, generation, main

CORRECTED = {"library": "portico", "corrections": "all"}
# A final loss that is not logged: 6 steps, logged every 4.
UNLOGGED = {"model": "plain", "logging_steps": 4, "eval_strategy": "no"}
GENERATED = {"kind": "generation"}
MEANS = ["sequence classification", "token classification", "seq2seq", "plain with kwargs"]
# One of each form: means, with and without ignored labels; no `labels`; sums over the count; a shifted decoder.
FAMILIES = ["sequence classification", "token classification", "question answering", "causal LM", "seq2seq"]
QUICK = [{**CORRECTED, "model": name} for name in FAMILIES] + [
    {"library": "transformers", "model": "sequence classification"},
    {"library": "transformers", "model": "plain"},
    {"library": "transformers", **UNLOGGED},
    {**CORRECTED, **UNLOGGED},
    {"library": "transformers", **GENERATED},
    {**CORRECTED, **GENERATED},
    {"kind": "divergence", "stop_on_nan": True},
]
THOROUGH = [{**CORRECTED, "model": name, "num_batches": num} for name in MODELS for num in (1, 2)]


def launched(num_processes, folder, runs):
    file = folder / "curves.json"
    run_in_processes(num_processes, main, file, json.dumps(runs))
    return {json.dumps(run): result for run, result in zip(runs, json.loads(file.read_text()), strict=True)}


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    return launched(2, tmp_path_factory.mktemp("two"), QUICK)


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    """Return the curves of a run of one process without accumulation."""
    known = {}

    def of(**run):
        key = json.dumps(run)
        if key not in known:
            known[key] = curves(folder=tmp_path_factory.mktemp("one"), **run)
        return known[key]

    return of


def assert_one_curve(found, expected):
    for key, values in expected.items():
        assert found[key] == pytest.approx(values, rel=1e-5), key


@pytest.mark.parametrize("model", MODELS)
def test_training_of_one_process_is_right_but_for_the_means_of_batches(model, one_process):
    ours, theirs = one_process(**CORRECTED, model=model), one_process(library="transformers", model=model)
    for key in ("loss", "grad_norm", "train_loss"):
        assert ours[key] == theirs[key]
    assert ours["eval_loss"] == pytest.approx(theirs["eval_loss"], rel=0.01)


@pytest.mark.parametrize("model", MODELS)
def test_accumulation_does_not_change_a_corrected_curve(model, one_process, tmp_path):
    assert_one_curve(
        curves(folder=tmp_path, **CORRECTED, model=model, num_batches=4), one_process(**CORRECTED, model=model)
    )


@pytest.mark.parametrize("model", MEANS)
def test_transformers_adds_up_means(model, one_process, tmp_path):
    theirs = curves("transformers", model, tmp_path, num_batches=4)
    right = one_process(**CORRECTED, model=model)
    assert theirs["loss"][0] == pytest.approx(4 * right["loss"][0], rel=0.01)
    assert theirs["grad_norm"][0] == pytest.approx(4 * right["grad_norm"][0], rel=0.05)


@pytest.mark.parametrize("model", FAMILIES)
def test_two_processes_do_not_change_a_corrected_curve(model, two_processes, one_process):
    run = {**CORRECTED, "model": model}
    assert_one_curve(two_processes[json.dumps(run)], one_process(**run))


def test_transformers_multiplies_by_two_processes(two_processes, one_process):
    run = {"library": "transformers", "model": "sequence classification"}
    twice, right = two_processes[json.dumps(run)], one_process(**run)
    for key in ("loss", "grad_norm", "eval_loss"):
        assert twice[key][0] == pytest.approx(2 * right[key][0], rel=0.01)


def test_transformers_counts_duplicates_in_two_processes(two_processes, one_process):
    # No factor here: the model takes no `num_items_in_batch`.
    run = {"library": "transformers", "model": "plain"}
    twice, right = two_processes[json.dumps(run)], one_process(**run)
    assert twice["loss"][:2] == pytest.approx(right["loss"][:2], rel=1e-5)
    # The third step completes the epoch with 7 examples of its start; the evaluation ends with 11 of them.
    assert twice["loss"][2] != pytest.approx(right["loss"][2], rel=1e-3)
    assert twice["eval_loss"] != pytest.approx(right["eval_loss"], rel=1e-3)


def test_transformers_takes_the_final_loss_of_one_process(two_processes, one_process):
    ours, theirs = {**CORRECTED, **UNLOGGED}, {"library": "transformers", **UNLOGGED}
    right = one_process(**theirs)["train_loss"]
    assert two_processes[json.dumps(ours)]["train_loss"] == pytest.approx(right, rel=1e-5)
    assert two_processes[json.dumps(theirs)]["train_loss"] != pytest.approx(right, rel=1e-3)


def test_transformers_returns_duplicates_of_generated_sequences(two_processes, tmp_path):
    ours, theirs = (
        two_processes[json.dumps(run)]
        for run in ({**CORRECTED, **GENERATED}, {"library": "transformers", **GENERATED})
    )
    alone = generation(folder=tmp_path, **CORRECTED)
    assert alone["predictions"] == ours["predictions"]
    assert [len(found["predictions"]) for found in (alone, theirs)] == [13, 24]
    assert ours["loss"] == pytest.approx(alone["loss"], rel=1e-5)
    assert theirs["loss"] != pytest.approx(alone["loss"], rel=1e-3)


@pytest.mark.slow
def test_beam_search_in_three_processes_returns_the_same(tmp_path):
    beams = {"generation_num_beams": 2, "num_sources": 5}
    ways = [{**beams, "fsdp": fsdp, "corrections": names} for fsdp in (False, True) for names in ([], "all")]
    runs = [{"library": "portico", **GENERATED, **way} for way in ways]
    theirs, *ours = launched(3, tmp_path, [{"library": "transformers", **GENERATED, **beams}, *runs]).values()
    alone = generation(folder=tmp_path, **CORRECTED, **beams)
    assert [len(found["predictions"]) for found in (alone, theirs)] == [5, 12]
    assert ours[0] == ours[2] == theirs
    assert ours[1]["predictions"] == ours[3]["predictions"] == alone["predictions"]
    assert ours[1]["loss"] == pytest.approx(alone["loss"], rel=1e-5)


def test_all_processes_stop_before_the_step_in_which_one_diverges(two_processes):
    (first, why), second = two_processes[json.dumps({"kind": "divergence", "stop_on_nan": True})]
    assert [first, why] == second
    assert first == 2
    assert why.startswith("The loss of step 3 is NaN or infinite")


@pytest.mark.slow
@pytest.mark.parametrize("num_processes", [2, 3, 4])
def test_one_corrected_curve_for_any_number_of_processes(num_processes, one_process, tmp_path):
    runs = [run for run in THOROUGH if 12 % (num_processes * run["num_batches"]) == 0]
    for run, found in launched(num_processes, tmp_path, runs).items():
        assert_one_curve(found, one_process(**CORRECTED, model=json.loads(run)["model"]))
