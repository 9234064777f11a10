import pytest
from hypothesis import given
from hypothesis import strategies as st

from portico.errors import InputError
from portico.loop.plan import ResumePoint, RunPlan


def make(**changes):
    options = {
        "max_steps": -1,
        "num_train_epochs": 3,
        "gradient_accumulation_steps": 1,
        "total_train_batch_size": 4,
        "num_batches": 8,
        "num_examples": 29,
    }
    return RunPlan.make(**{**options, **changes})


def test_steps_from_epochs():
    plan = make()
    assert (plan.max_steps, plan.num_train_epochs, plan.num_update_steps_per_epoch) == (24, 3, 8)
    assert plan.num_train_samples == 87
    assert plan.total_train_batch_size == 4


def test_max_steps_overrides_epochs():
    plan = make(max_steps=11, gradient_accumulation_steps=3, total_train_batch_size=12)
    assert (plan.max_steps, plan.num_update_steps_per_epoch, plan.num_train_epochs) == (11, 3, 4)
    assert plan.num_train_samples == 11 * 12


def test_fractional_epoch_is_rounded_up():
    plan = make(num_train_epochs=1.4, gradient_accumulation_steps=3)
    assert (plan.max_steps, plan.num_train_epochs) == (5, 2)


def test_stream_is_counted_in_steps():
    plan = make(
        max_steps=5, gradient_accumulation_steps=4, total_train_batch_size=16, num_batches=None, num_examples=None
    )
    assert (plan.steps_in_epoch, plan.num_update_steps_per_epoch, plan.num_examples) == (20, 5, 80)


@pytest.mark.parametrize(("num_batches", "match"), [(None, "has no length"), (0, "is empty")])
def test_missing_end_is_rejected(num_batches, match):
    with pytest.raises(InputError, match=match):
        make(num_batches=num_batches)


def test_last_window_is_partial():
    plan = make(gradient_accumulation_steps=3)
    assert [plan.num_batches_in_window(step) for step in range(3)] == [3, 3, 2]
    assert [plan.ends_window(batch) for batch in range(8)] == [False, False, True, False, False, True, False, True]


def test_last_window_is_full_when_divisible():
    assert make(gradient_accumulation_steps=4).num_batches_in_window(1) == 4


@given(num_batches=st.integers(1, 60), accumulation=st.integers(1, 70), epochs=st.integers(1, 4))
def test_windows_cover_each_epoch_once(num_batches, accumulation, epochs):
    plan = make(num_batches=num_batches, gradient_accumulation_steps=accumulation, num_train_epochs=epochs)
    windows = [plan.num_batches_in_window(step) for step in range(plan.num_update_steps_per_epoch)]
    assert sum(windows) == num_batches
    assert sum(plan.ends_window(batch) for batch in range(num_batches)) == len(windows)
    assert plan.max_steps == epochs * len(windows)


def resumed_after(global_step, *, skips_data):
    return ResumePoint.locate(
        global_step, num_update_steps_per_epoch=3, gradient_accumulation_steps=3, skips_data=skips_data
    )


@pytest.mark.parametrize(
    ("global_step", "point"),
    [(0, ResumePoint(0, 0)), (2, ResumePoint(0, 6)), (3, ResumePoint(1, 0)), (4, ResumePoint(1, 3))],
)
def test_resume_point(global_step, point):
    assert resumed_after(global_step, skips_data=True) == point


def test_ignore_data_skip():
    assert resumed_after(4, skips_data=False) == ResumePoint(1, 0)


def test_counts_in_order_of_set_initial_training_values():
    plan = make(max_steps=11, gradient_accumulation_steps=3)
    assert RunPlan(*plan.as_training_values(), gradient_accumulation_steps=3) == plan
