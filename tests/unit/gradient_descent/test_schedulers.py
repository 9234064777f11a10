"""Every scheduler for 200 steps, compared with ``==`` to its formula."""

import math

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler as torch_schedules
from transformers.optimization import (
    Adafactor,
    get_constant_schedule_with_warmup,
    get_cosine_schedule_with_warmup,
    get_cosine_with_hard_restarts_schedule_with_warmup,
)

from portico import gradient_descent
from portico.gradient_descent import ConfigurationError, LearningRateScheduler, MomentumScheduler
from portico.gradient_descent.construction import from_params, make_lazy
from portico.gradient_descent.schedulers import wrap_scheduler

STEPS_PER_EPOCH = 4
NUM_EPOCHS = 50
BASE = 0.3


def make_optimizer(num_groups=1, momentum=0.9):
    parameters = [torch.nn.Parameter(torch.zeros(1)) for _ in range(num_groups)]
    return torch.optim.SGD([{"params": [parameter]} for parameter in parameters], lr=BASE, momentum=momentum)


def rates_of(params, *, optimizer=None, field="lr", base=LearningRateScheduler, metrics=None, **extras):
    """Return the value of the field in each of 200 steps, with the scheduler stepped as by the trainer."""
    optimizer = make_optimizer() if optimizer is None else optimizer
    scheduler = from_params(
        base, params, optimizer=optimizer, num_epochs=NUM_EPOCHS, num_steps_per_epoch=STEPS_PER_EPOCH, **extras
    )
    rates, step = [], 0
    for epoch in range(NUM_EPOCHS):
        for _ in range(STEPS_PER_EPOCH):
            step += 1
            scheduler.step_batch(step)
            rates.append([group[field] for group in optimizer.param_groups])
            optimizer.step()
        scheduler.step(None if metrics is None else metrics[epoch])
    return rates if len(optimizer.param_groups) > 1 else [rate for (rate,) in rates]


def by_step(rate):
    return [rate(step) for step in range(1, NUM_EPOCHS * STEPS_PER_EPOCH + 1)]


def by_epoch(rate):
    return [rate(epoch) for epoch in range(NUM_EPOCHS) for _ in range(STEPS_PER_EPOCH)]


def rates_of_torch(make, metrics=None):
    """Return the rates of a schedule of torch or transformers that is stepped after each epoch."""
    optimizer = make_optimizer()
    schedule, rates = make(optimizer), []
    for epoch in range(NUM_EPOCHS):
        rates += [optimizer.param_groups[0]["lr"]] * STEPS_PER_EPOCH
        optimizer.step()
        schedule.step(*(() if metrics is None else (metrics[epoch],)))
    return rates


def test_constant():
    assert rates_of("constant") == by_step(lambda step: BASE)


@pytest.mark.parametrize(
    ("params", "make"),
    [
        ({"type": "step", "step_size": 3, "gamma": 0.7}, lambda o: torch_schedules.StepLR(o, 3, 0.7)),
        (
            {"type": "multi_step", "milestones": [5, 20], "gamma": 0.5},
            lambda o: torch_schedules.MultiStepLR(o, [5, 20], 0.5),
        ),
        ({"type": "exponential", "gamma": 0.95}, lambda o: torch_schedules.ExponentialLR(o, 0.95)),
        (
            {"type": "constant_with_warmup", "num_warmup_steps": 6},
            lambda o: get_constant_schedule_with_warmup(o, 6),
        ),
        (
            {"type": "cosine_with_warmup", "num_warmup_steps": 6, "num_training_steps": 50},
            lambda o: get_cosine_schedule_with_warmup(o, 6, 50),
        ),
        (
            {
                "type": "cosine_hard_restarts_with_warmup",
                "num_warmup_steps": 6,
                "num_training_steps": 50,
                "num_cycles": 3,
            },
            lambda o: get_cosine_with_hard_restarts_schedule_with_warmup(o, 6, 50, 3),
        ),
    ],
    ids=lambda value: value["type"] if isinstance(value, dict) else "",
)
def test_torch_and_transformers_schedulers(params, make):
    rates = rates_of(params)
    assert rates == rates_of_torch(make)
    assert len(set(rates)) > 1


def test_reduce_on_plateau():
    metrics = [1.0 / (1 + epoch // 7) for epoch in range(NUM_EPOCHS)]
    params = {"type": "reduce_on_plateau", "patience": 2, "factor": 0.5, "cooldown": 1}
    rates = rates_of(params, metrics=metrics)
    expected = rates_of_torch(
        lambda o: torch_schedules.ReduceLROnPlateau(o, patience=2, factor=0.5, cooldown=1), metrics
    )
    assert rates == expected
    assert len(set(rates)) > 3


@pytest.mark.parametrize(
    "params", ["reduce_on_plateau", "constant", {"type": "cosine", "t_initial": 2}, {"type": "step", "step_size": 1}]
)
def test_optimizer_with_a_rate_of_its_own_is_refused(params):
    optimizer = Adafactor([torch.nn.Parameter(torch.zeros(1))], lr=None)
    with pytest.raises(ConfigurationError, match=r"`lr=None` of Adafactor .* set `lr` .*`relative_step=False`"):
        make_lazy(LearningRateScheduler, params).construct(optimizer=optimizer)


def test_noam():
    rates = rates_of({"type": "noam", "model_size": 64, "warmup_steps": 30, "factor": 2.0})
    assert rates == by_step(lambda step: 2.0 * (64**-0.5 * min(step**-0.5, step * 30**-1.5)))


def polynomial(step, *, warmup=0, power=1.0, end=0.0, total=NUM_EPOCHS * STEPS_PER_EPOCH):
    if step < warmup:
        return step / warmup * BASE
    if step >= total:
        return end
    return ((total - step) / (total - warmup)) ** power * (BASE - end) + end


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"type": "polynomial_decay", "total_steps": 120}, {"total": 120}),
        ({"type": "polynomial_decay", "warmup_steps": 0, "end_learning_rate": 0.0}, {}),
        (
            {"type": "polynomial_decay", "power": 2.0, "warmup_steps": 30, "end_learning_rate": 0.01},
            {"power": 2.0, "warmup": 30, "end": 0.01},
        ),
        ({"type": "polynomial_decay", "power": 0.5, "warmup_steps": 1}, {"power": 0.5, "warmup": 1}),
        ({"type": "linear_with_warmup", "warmup_steps": 25}, {"warmup": 25}),
    ],
    ids=["total steps", "linear", "square", "root", "linear with warmup"],
)
def test_polynomial_decay(params, expected):
    rates = rates_of(params)
    assert rates == by_step(lambda step: polynomial(step, **expected))
    assert rates[-1] == expected.get("end", 0.0)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("step", {"step_size": 1}),
        ("multi_step", {"milestones": [1]}),
        ("exponential", {}),
        ("constant", {}),
        ("constant_with_warmup", {"num_warmup_steps": 1}),
        ("cosine_with_warmup", {"num_warmup_steps": 1, "num_training_steps": 2}),
        ("cosine_hard_restarts_with_warmup", {"num_warmup_steps": 1, "num_training_steps": 2}),
        ("reduce_on_plateau", {}),
    ],
)
def test_wrapped_schedulers_have_allennlps_class_names(name, options):
    words = name.title().replace("_", "")
    scheduler = getattr(gradient_descent, f"{words}LearningRateScheduler")
    assert LearningRateScheduler.by_name(name) is scheduler
    assert isinstance(scheduler(make_optimizer(), **options), LearningRateScheduler)


def test_what_a_scheduler_needs_is_required():
    for name in ("polynomial_decay", "linear_with_warmup"):
        with pytest.raises(ConfigurationError, match="'num_steps_per_epoch' is required"):
            LearningRateScheduler.by_name(name)(make_optimizer(), num_epochs=3, num_steps_per_epoch=None)
    with pytest.raises(ConfigurationError, match=r"requires a validation metric .* `validation_data_loader`"):
        rates_of("reduce_on_plateau")
    with pytest.raises(ConfigurationError, match=r"`t_initial=0`.*1 epoch or more"):
        rates_of({"type": "cosine", "t_initial": 0})


def test_cosine_with_restarts():
    def expected():
        rates, epoch, restarts, length, position = [], 0, 0, 6, 0
        while len(rates) < NUM_EPOCHS * STEPS_PER_EPOCH:
            highest = BASE * 0.8**restarts
            rate = BASE if epoch == 0 else 0.01 + ((highest - 0.01) / 2) * (np.cos(np.pi * position / length) + 1)
            rates += [rate] * STEPS_PER_EPOCH
            epoch, position = epoch + 1, position + 1
            if position % length == 0:
                restarts, position = restarts + 1, 0
                length = int(6 * 1.5**restarts)
        return rates

    params = {"type": "cosine", "t_initial": 6, "t_mul": 1.5, "eta_min": 0.01, "eta_mul": 0.8}
    assert rates_of(params) == expected()


def triangle(step, num_steps, base=BASE):
    cut = int(num_steps * 0.1)
    share = step / cut if step < cut else 1 - (step - cut) / (num_steps - cut)
    return base * (1 + share * 31) / 32


def test_slanted_triangular():
    assert rates_of("slanted_triangular") == by_step(lambda step: triangle(step, 200))


def test_gradual_unfreezing_and_discriminative_fine_tuning():
    parameters = [torch.nn.Parameter(torch.zeros(1)) for _ in range(3)]
    groups = [{"params": [parameter]} for parameter in parameters]
    optimizer = torch.optim.SGD([*groups, {"params": []}], lr=BASE)
    params = {"type": "slanted_triangular", "gradual_unfreezing": True, "discriminative_fine_tuning": True}
    rates = rates_of(params, optimizer=optimizer)
    bases = [BASE * 0.38**2, BASE * 0.38, BASE, BASE]
    # Two epochs with a frozen layer, each one triangle; then a triangle over the rest.
    frozen = [[triangle(step, 4, base) for base in bases] for _ in range(2) for step in range(1, 5)]
    rest = [[triangle(step, 200 - 8, base) for base in bases] for step in range(1, 193)]
    assert rates == frozen + rest


def test_one_layer_is_unfrozen_per_epoch():
    parameters = [torch.nn.Parameter(torch.zeros(1)) for _ in range(3)]
    optimizer = torch.optim.SGD([*({"params": [parameter]} for parameter in parameters), {"params": []}], lr=BASE)
    scheduler = LearningRateScheduler.by_name("slanted_triangular")(optimizer, 5, 4, gradual_unfreezing=True)
    trains = []
    for _ in range(4):
        trains.append([parameter.requires_grad for parameter in parameters])
        scheduler.step()
    assert trains == [[False, False, True], [False, True, True], [True, True, True], [True, True, True]]


def test_unfreezing_needs_groups():
    with pytest.raises(ConfigurationError, match="the default group must be empty, but it holds 1"):
        rates_of({"type": "slanted_triangular", "gradual_unfreezing": True}, optimizer=make_optimizer(3))
    with pytest.raises(ConfigurationError, match="has 2 parameter groups, but there should be at least 3"):
        rates_of({"type": "slanted_triangular", "discriminative_fine_tuning": True}, optimizer=make_optimizer(2))


def test_combined():
    params = {
        "type": "combined",
        "schedulers": [
            [10, {"type": "polynomial_decay", "warmup_steps": 8, "end_learning_rate": 0.1}],
            [20, {"type": "linear_with_warmup", "warmup_steps": 48}],
        ],
    }
    rates = rates_of(params)
    first = [polynomial(step, warmup=8, power=1.0, end=0.1, total=40) for step in range(1, 41)]
    # The second starts from the last rate of the first; both count the steps of the whole training.
    second = [
        (step / 48 if step < 48 else (80 - step) / (80 - 48) if step < 80 else 0.0) * first[-1]
        for step in range(41, 121)
    ]
    assert rates == [*first, *second, *[second[-1]] * 80]


def test_combined_resumes():
    params = {
        "type": "combined",
        "schedulers": [
            [3, {"type": "noam", "model_size": 8, "warmup_steps": 5}],
            [4, {"type": "step", "step_size": 1, "gamma": 0.5}],
            [2, {"type": "cosine", "t_initial": 2}],
        ],
    }

    def make():
        optimizer = make_optimizer()
        return optimizer, from_params(LearningRateScheduler, params, optimizer=optimizer, num_steps_per_epoch=4)

    def run(optimizer, scheduler, first, last):
        rates = []
        for step in range(first, last):
            scheduler.step_batch(step)
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            if step % 4 == 0:
                scheduler.step()
        return rates

    whole = run(*make(), 1, 41)
    for stop in range(1, 41):
        optimizer, scheduler = make()
        start = run(optimizer, scheduler, 1, stop)
        later_optimizer, later = make()
        later_optimizer.load_state_dict(optimizer.state_dict())
        later.load_state_dict(scheduler.state_dict())
        assert start + run(later_optimizer, later, stop, 41) == whole, stop


def test_a_later_slanted_triangle_spans_its_own_epochs():
    """AllenNLP divides by zero at its first step."""
    slanted = {"type": "slanted_triangular", "cut_frac": 0.25, "ratio": 8}

    def make(params, num_epochs):
        optimizer = make_optimizer()
        counts = {"num_epochs": num_epochs, "num_steps_per_epoch": 4}
        return optimizer, from_params(LearningRateScheduler, params, optimizer=optimizer, **counts)

    def rates(params, num_epochs):
        (optimizer, scheduler), found = make(params, num_epochs), []
        for step in range(1, 4 * num_epochs + 1):
            scheduler.step_batch(step)
            found.append(optimizer.param_groups[0]["lr"])
            if step % 4 == 0:
                scheduler.step()
            # A restart after each step.
            earlier = optimizer, scheduler
            optimizer, scheduler = make(params, num_epochs)
            optimizer.load_state_dict(earlier[0].state_dict())
            scheduler.load_state_dict(earlier[1].state_dict())
        return found

    alone = rates(slanted, 3)
    combined = rates({"type": "combined", "schedulers": [[2, {"type": "constant"}], [3, slanted]]}, 5)
    assert combined == [BASE] * 8 + alone
    both = rates({"type": "combined", "schedulers": [[1, slanted], [3, slanted]]}, 4)
    assert both[:4] == rates(slanted, 1)
    assert both[4:] == pytest.approx([rate * both[3] / BASE for rate in alone])


def test_epochs_of_different_lengths_may_leave_no_step_to_a_triangle():
    optimizer = make_optimizer(num_groups=3)
    optimizer.add_param_group({"params": []})
    params = {"type": "slanted_triangular", "gradual_unfreezing": True}
    scheduler = from_params(LearningRateScheduler, params, optimizer=optimizer, num_epochs=3, num_steps_per_epoch=None)
    ends = (1, 3, 5)
    for step in range(1, 6):
        scheduler.step_batch(step)
        assert all(0 < group["lr"] <= BASE for group in optimizer.param_groups)
        if step in ends:
            scheduler.step()


def test_shrinking_cycles_of_cosine_end_with_one_epoch():
    rates = rates_of({"type": "cosine", "t_initial": 4, "t_mul": 0.5})
    assert rates[-1] == BASE
    with pytest.raises(ConfigurationError, match=r"`t_mul=0` and `eta_min=0.0`; set the first to 1 epoch"):
        rates_of({"type": "cosine", "t_initial": 4, "t_mul": 0})


def test_a_later_decay_that_has_ended_already_is_announced(caplog):
    decay = {"type": "polynomial_decay"}
    rates = rates_of({"type": "combined", "schedulers": [[2, {"type": "constant"}], [3, decay]]})
    assert rates[8:12] == [BASE * left / 12 for left in (3, 2, 1, 0)], "as in AllenNLP"
    assert (
        "Scheduler 2 of 'combined' (PolynomialDecay) counts steps from the start of the training, as in AllenNLP: it "
        "falls until step 12 and starts after step 8. Put it first, or use 'polynomial_decay' with `total_steps=20`"
    ) in caplog.text
    caplog.clear()
    rates_of({"type": "combined", "schedulers": [[2, {"type": "constant"}], [3, {**decay, "total_steps": 20}]]})
    assert not caplog.text


def test_inverted_triangular_momentum():
    params = {"type": "inverted_triangular", "cool_down": 10, "warm_up": 30, "ratio": 5}
    momenta = rates_of(params, field="momentum", base=MomentumScheduler)
    low = 0.9 / 5

    def expected(epoch):
        if epoch == 0:
            return 0.9
        if epoch <= 10:
            return 0.9 - (0.9 - low) * (epoch / 10)
        return low + (0.9 - low) * (epoch - 10) / 30 if epoch <= 40 else 0.9

    assert momenta == by_epoch(expected)
    assert math.isclose(min(momenta), low)


def test_momentum_field_is_required():
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])
    with pytest.raises(ConfigurationError, match="changes `momentum`, which parameter group 0 of Adam does not have"):
        MomentumScheduler.by_name("inverted_triangular")(optimizer, 1, 1)


def test_torch_schedulers_are_wrapped():
    optimizer = make_optimizer()
    scheduler = wrap_scheduler(torch_schedules.StepLR(optimizer, 1))
    optimizer.step()
    scheduler.step()
    assert scheduler.get_values() == [BASE * 0.1]
    plateau = wrap_scheduler(torch_schedules.ReduceLROnPlateau(optimizer))
    with pytest.raises(ConfigurationError, match="requires a validation metric"):
        plateau.step()
