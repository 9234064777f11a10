import copy
import json

import numpy as np
import pytest
import torch

from portico.inspection.comparison import (
    Growth,
    RecordedRun,
    drop_times,
    first_difference,
    irreproducible,
    likely_causes,
    list_shared_files,
    loss_growth,
    reproducible_difference,
)


def step(number):
    return {
        "step": number,
        "batches": [number],
        "losses": [1.0 / number],
        "learning_rate": [0.1],
        "gradients": {"a.weight": 3.0, "b.weight": 4.0},
        "gradient_norm": 5.0,
        "weights": {"a.weight": 1.0, "b.weight": 1.0},
        "weights_hash": 7,
        "random": {"python": 1, "numpy": 2, "torch": 3},
    }


def record():
    return {
        "initial_weights": 1,
        "steps": [step(1), step(2), step(3)],
        "events": [["on_train_begin", 0], ["on_step_end", 1]],
        "draws": {},
        "calls": {"Mine.compute_loss": 3},
        "log_history": [{"loss": 1.0, "step": 1, "train_runtime": 0.5}],
        "final_weights": {"a.weight": 5},
    }


def run(tmp_path, label, change=None, **options):
    folder = tmp_path / label
    (folder / "output").mkdir(parents=True)
    (folder / "output" / "all_results.json").write_text(json.dumps({"loss": 1.0, "train_runtime": len(label)}))
    one = record()
    if change is not None:
        change(one)
    return RecordedRun(label, folder, 0, "", [one], **options)


def changed(place, value):
    def change(one):
        *path, last = place
        for name in path:
            one = one[name]
        one[last] = value

    return change


def test_equal_runs_have_no_difference(tmp_path):
    nan = changed(["steps", 1, "losses"], [float("nan")])
    assert first_difference(run(tmp_path, "a", nan), run(tmp_path, "other", nan)) is None


@pytest.mark.parametrize(
    ("place", "value", "told"),
    [
        (["initial_weights"], 2, "initial weights before the first step: 00000001 and 00000002"),
        (["steps", 1, "batches"], [9], "batch at step 2: 00000002 and 00000009"),
        (["steps", 1, "losses"], [0.75], "loss at step 2: 0.5 and 0.75"),
        (
            ["steps", 2, "gradients", "b.weight"],
            4.5,
            "gradients at step 3: 5.0 and 5.0; largest in b.weight (gradient norm 4 and 4.5)",
        ),
        (["steps", 0, "learning_rate"], [0.2], "learning rate at step 1: 0.1 and 0.2"),
        (["steps", 0, "weights_hash"], 8, "weights at step 1: 00000007 and 00000008"),
        (["steps", 0, "random", "torch"], 4, "random states at step 1: torch 00000003 and torch 00000004"),
        (["log_history", 0, "loss"], 2.0, "log history at step 1: {'loss': 1.0, 'step': 1}"),
        (["events", 1], ["on_save", 1], "events at step 1: ['on_step_end', 1] and ['on_save', 1]"),
        (["final_weights", "a.weight"], 6, "final weights at step 3: 00000005 and 00000006; largest in a.weight"),
        (["steps"], [step(1)], "number of steps at step 3: 3 and 1"),
        (
            ["events"],
            [["on_train_begin", 0], ["on_step_end", 1], ["on_save", 4]],
            "events at step 4: 2 entries and 3, the next being ['on_save', 4]",
        ),
    ],
)
def test_first_difference(place, value, told, tmp_path):
    found = str(first_difference(run(tmp_path, "a"), run(tmp_path, "b", changed(place, value))))
    assert found.startswith(told)


def test_files_are_compared_without_times(tmp_path):
    first, second = run(tmp_path, "a"), run(tmp_path, "other")
    assert list(list_shared_files(first.folder / "output")) == ["all_results.json"]
    (second.folder / "output" / "more.txt").write_text("more")
    assert str(first_difference(first, second)) == "file more.txt: missing and written"
    (first.folder / "output" / "more.txt").write_text("less")
    assert first_difference(first, second).quantity == "file more.txt"
    assert drop_times([{"eval_runtime": 1, "eval_loss": 2}]) == [{"eval_loss": 2}]


def test_what_transformers_itself_does_not_reproduce_is_no_difference(tmp_path):
    first, second, again = (run(tmp_path, label) for label in ("transformers", "portico", "again"))
    for one, content in ((first, "cold"), (second, "warm"), (again, "warm")):
        (one.folder / "output/cache.txt").write_text(content)
    assert list(irreproducible(first, again)) == ["file cache.txt"]
    assert reproducible_difference(first, second, again) is None
    (second.folder / "output/cache.txt").write_text("another")
    assert reproducible_difference(first, second, again) is None
    (second.folder / "output/all_results.json").write_text("{}")
    difference = reproducible_difference(first, second, again)
    assert difference.quantity == "file all_results.json"
    assert "is not reproducible" not in likely_causes(difference, first, second, again)[0]


def test_no_run_is_equal_to_an_irreproducible_training(tmp_path):
    first = run(tmp_path, "transformers")
    second, again = (
        run(tmp_path, label, changed(["steps", 1, "losses"], [loss])) for label, loss in (("b", 2.0), ("c", 3.0))
    )
    assert str(reproducible_difference(first, second, again)).startswith("loss at step 2: 3.0 and 2.0")
    assert [str(one) for one in irreproducible(first, again).values()] == ["loss at step 2: 0.5 and 3.0"]
    assert reproducible_difference(first, run(tmp_path, "d"), run(tmp_path, "e")) is None


@pytest.mark.parametrize("kind", [torch.Tensor, np.ndarray])
def test_every_number_of_a_pickled_file_is_compared(tmp_path, kind):
    first, second = run(tmp_path, "a"), run(tmp_path, "other")
    for one, number in ((first, 0.0), (second, 1.0)):
        values = torch.zeros(5000)
        values[2500] = number  # a representation leaves out the middle
        torch.save({"state": [values if kind is torch.Tensor else values.numpy()]}, one.folder / "output/optimizer.pt")
    assert first_difference(first, second).quantity == "file optimizer.pt"


def cause(first, second, again=None):
    return likely_causes(first_difference(first, second), first, second, again)[0]


def test_names_an_override_that_is_never_called(tmp_path):
    def change(one):
        one["calls"] = {"Mine.compute_loss": 0}
        one["steps"][0]["losses"] = [9.0]

    found = cause(run(tmp_path, "transformers"), run(tmp_path, "portico", change))
    assert found == "Mine.compute_loss is called 3 times under transformers and never here"


def test_names_random_draws_and_arguments_without_effect(tmp_path):
    def change(one):
        one["steps"][1]["random"]["numpy"] = 8
        one["draws"] = {"Noise.on_step_end": 2}

    first, second = run(tmp_path, "a"), run(tmp_path, "b", change, announced=["`x=1` has no effect: because."])
    found = likely_causes(first_difference(first, second), first, second, run(tmp_path, "again"))
    assert found == [
        "the callback Noise.on_step_end draws random numbers, first at step 2",
        "an argument without effect: `x=1` has no effect: because.",
    ]


@pytest.mark.parametrize(
    ("place", "value", "told"),
    [
        (["initial_weights"], 2, "the model is made before the seed is set"),
        (["steps", 1, "batches"], [9], "the data or its order are not seeded"),
        (["steps", 1, "losses"], [0.75], "an operator is not deterministic (torch names put_)"),
        (["log_history", 0, "loss"], 2.0, "something outside the training"),
    ],
)
def test_names_what_a_script_does_not_reproduce(place, value, told, tmp_path):
    change = changed(place, value)
    again = run(tmp_path, "again", change, operators=["put_"])
    found = cause(run(tmp_path, "transformers"), run(tmp_path, "portico", change), again)
    assert "two runs under transformers differ" in found
    assert f"likeliest cause: {told}" in found


def test_growth_of_the_difference(tmp_path):
    rows = [{"loss": 1.0, "step": number} for number in range(1, 9)]
    grown = copy.deepcopy(rows)
    grown[6]["loss"] = 1.25
    first, second = (run(tmp_path, name, changed(["log_history"], log)) for name, log in (("a", rows), ("b", grown)))
    growth = loss_growth(first, second, 0.1)
    assert growth.beyond == (7, 0.25)
    assert growth.quarters == [("1 to 2", 0.0), ("3 to 4", 0.0), ("5 to 6", 0.0), ("7 to 8", 0.25)]
    assert Growth(0.5, growth.by_step).beyond is None
    assert Growth(0.5, [(1, float("nan"))]).beyond is not None
