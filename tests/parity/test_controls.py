"""Negative controls: each parity test fails when the behaviour it tests is broken.

A control runs the body of a parity test with one switch of :mod:`parity.switches` thrown (in portico alone), and
requires the comparison with transformers to fail. :mod:`parity.scenarios` names the switches of each scenario,
``RESUME`` below those of each test of checkpoints. By family:

========================================  =====================================================================
cases                                     switched off
========================================  =====================================================================
basic, data_seed, prepared loaders        seeded order, its epoch, the single look into a loader
datasets and collators that draw         look-ahead of one batch, fetching a window at once
streams                                   length of the feed, the guard of open windows, remainder of the last batch
accumulation, partial windows             division by the real window and by nobody else, count of items
clipping, decay, schedules, optimizers    order of the norm, parameter groups, step of the schedule, rate logged
training steps of the user's own          backward passes at once
evaluation, metrics, predictions          truncation of the last batch, evaluation mode, padding, names
callbacks that steer or evaluate          stopping either way, mode after an evaluation
checkpoints and resuming                  states of optimizer, random numbers (and their moment), callbacks
arguments and parts                       the argument or the part itself: portico ignores it
========================================  =====================================================================
"""

import inspect

import pytest

from parity import peers, switches, test_resume
from parity.scenarios import SCENARIOS
from parity.switches import ignoring
from parity.test_training import test_same_numbers as compare_numbers

_RESUMED = test_resume.test_resumed_run_equals_uninterrupted_run
RESUME = [
    ((_RESUMED, "transformers", "portico", 1), switches.rng_not_restored),
    ((_RESUMED, "transformers", "portico", 3), switches.optimizer_not_restored),
    ((_RESUMED, "portico", "transformers", 2), switches.other_rng_saved),
    ((_RESUMED, "portico", "portico", 4), switches.optimizer_not_restored),
    ((test_resume.test_same_events_after_resume, False), switches.rng_restored_early),
    ((test_resume.test_same_events_after_resume, True), switches.rng_not_restored),
    ((test_resume.test_resume_of_finished_run,), ignoring("resume")),
    ((test_resume.test_callback_states_are_restored,), switches.callbacks_not_restored),
    ((test_resume.test_same_checkpoint_files,), switches.other_rng_saved),
    ((test_resume.test_arguments_unpickle_as_transformers_class,), switches.arguments_pickled_as_ours),
    ((test_resume.test_resumed_run_keeps_reduced_batch_size,), switches.order_not_seeded),
    ((test_resume.test_same_numbers_after_resume_with_batch_rebalancing,), switches.lengths_not_grouped),
    ((test_resume.test_same_checkpoint_on_sigterm,), switches.order_not_seeded),
]
CONTROLS = [
    *(
        pytest.param((compare_numbers, name), switch, marks=[pytest.mark.slow] * scenario.is_slow)
        for name, scenario in SCENARIOS.items()
        for switch in scenario.switches
    ),
    *RESUME,
]


def _name(value):
    if isinstance(value, tuple):
        return "-".join(_name(part) for part in value).removeprefix("test_")
    return getattr(value, "__name__", str(value))


uninterrupted = test_resume.uninterrupted

# Switches under which the run itself fails, before there is anything to compare.
BROKEN_RUNS = {switches.backward_deferred: (RuntimeError, TypeError)}


@pytest.mark.parametrize(("case", "switch"), CONTROLS, ids=_name)
@pytest.mark.filterwarnings("ignore")
def test_comparison_fails_with(case, switch, monkeypatch, request, tmp_path):
    test, *arguments = case
    if "uninterrupted" in inspect.signature(test).parameters:
        arguments.append(request.getfixturevalue("uninterrupted"))
    switch(monkeypatch)
    monkeypatch.setattr(test_resume, "run", peers.run)
    with pytest.raises(BROKEN_RUNS.get(switch, AssertionError)) as caught:
        test(*arguments, tmp_path)
    if switch not in BROKEN_RUNS:
        assert "parity" in caught.traceback[-1].path.parts, "the comparison itself fails"


def test_every_test_of_checkpoints_has_a_control():
    tests = {test for name, test in vars(test_resume).items() if name.startswith("test_") and inspect.isfunction(test)}
    # It compares two files of portico.
    tests.remove(test_resume.test_weights_round_trip)
    assert {case[0] for case, _ in RESUME} == tests
