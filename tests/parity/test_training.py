"""The same training under both libraries: losses, rates, norms, events, history and weights are equal with ``==``.

Negative controls: each of these tests, and of :mod:`parity.test_resume`, fails when the behaviour it tests is broken.
A control runs the body of a test with one switch of :mod:`parity.switches` thrown (in portico alone), and requires the
comparison with transformers to fail. :mod:`parity.scenarios` names the switches of each scenario, ``RESUME`` below the
switches of each test of checkpoints. Comparisons and controls share a file because a file runs in one process, where
transformers trains each scenario once. By family:

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
import torch

import portico
from parity import peers, switches, test_resume
from parity.peers import compare, run
from parity.scenarios import SCENARIOS, SHRINKING, out_of_memory_beyond
from parity.switches import ignoring

CASES = [
    pytest.param(name, marks=[pytest.mark.slow] * scenario.is_slow, id=name) for name, scenario in SCENARIOS.items()
]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore:Using EarlyStoppingCallback without load_best_model_at_end")
@pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated:FutureWarning")
def test_same_numbers(name, tmp_path):
    scenario = SCENARIOS[name]
    ours, theirs = compare(tmp_path, scenario=name, **scenario.options)
    if scenario.check is not None:
        scenario.check(ours, theirs, tmp_path)


# ---- portico alone ----


def test_model_does_not_autocast_after_training(tmp_path):
    trainer = run(portico, tmp_path, bf16=True, max_steps=1).trainer
    assert "forward" not in trainer.model.__dict__


def test_model_is_compiled_once(tmp_path):
    def after(trainer):
        before = trainer.model_wrapped
        trainer.train()
        return {"again": trainer.model_wrapped is before}

    ours = run(portico, tmp_path, max_steps=1, torch_compile_backend="eager", after=after)
    assert ours.extra["again"]


def test_out_of_memory_at_smallest_batch_size(tmp_path):
    with pytest.raises(RuntimeError, match=r"reached zero\. Even one example does not fit"):
        run(portico, tmp_path, base=out_of_memory_beyond(-1), **SHRINKING)


def test_out_of_memory_in_evaluation_keeps_batch_size(tmp_path):
    def base(trainer_class):
        class Big(trainer_class):
            def prediction_step(self, *args, **kwargs):
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

        return Big

    with pytest.raises(RuntimeError, match=r"reduce `per_device_eval_batch_size` instead\. It is 4;"):
        run(portico, tmp_path, base=base, **SHRINKING)


# ---- Negative controls ----

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
        pytest.param((test_same_numbers, name), switch, marks=[pytest.mark.slow] * scenario.is_slow)
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
