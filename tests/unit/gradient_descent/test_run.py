"""The numbers of a training are those of a loop in plain PyTorch, bit for bit."""

import pytest

from portico.gradient_descent import ExponentialMovingAverage
from unit.gradient_descent.plain_training import (
    Net,
    PenalizedNet,
    PlainTraining,
    Unsized,
    assert_same_weights,
    make_trainer,
    weights,
)


class Recorder:
    """Records what callbacks receive."""

    def __init__(self):
        self.norms, self.rates, self.epochs = [], [], []

    def batch(self, trainer, batch_grad_norm=None, is_training=None):
        if is_training:
            self.norms.append(batch_grad_norm)
            self.rates.append(trainer.optimizer.param_groups[0]["lr"])

    def epoch(self, metrics):
        self.epochs.append(dict(metrics))


def train_both(plain: PlainTraining, **options):
    """Run both trainings with the features of ``plain``, and compare losses, norms, metrics and weights."""
    recorder = Recorder()
    model = type(plain.model)(plain.model.penalty)
    trainer = make_trainer(
        model=model,
        batch_callbacks=[recorder.batch],
        epoch_callbacks=[recorder.epoch],
        num_epochs=plain.num_epochs,
        size=plain.size,
        num_gradient_accumulation_steps=plain.accumulate,
        **{"grad_norm": plain.grad_norm, "grad_clipping": plain.grad_clipping, **options},
    )
    metrics = trainer.train()
    plain.run()
    epochs = recorder.epochs[1:]
    assert [epoch["training_loss"] for epoch in epochs] == plain.losses
    assert [epoch["validation_loss"] for epoch in epochs] == plain.validation_losses
    assert metrics["best_epoch"] == plain.best_epoch
    assert metrics["best_validation_loss"] == min(plain.validation_losses)
    assert_same_weights(weights(model), plain.best)
    if plain.norms:
        assert recorder.norms == plain.norms
    return recorder


# The last group of an epoch is smaller; gradients are rescaled before they are clipped.
@pytest.mark.parametrize(
    "features",
    [
        {},
        *({"accumulate": accumulate} for accumulate in (2, 3, 4, 7)),
        {"grad_norm": 0.4},
        {"grad_clipping": 0.05},
        {"grad_norm": 0.4, "grad_clipping": 0.2, "accumulate": 2},
    ],
)
def test_steps_are_those_of_the_plain_training(features):
    plain = PlainTraining(**features)
    train_both(plain)
    assert max(plain.norms, default=1.0) > 0.4


def test_norm_is_measured_without_rescaling():
    recorder = train_both(PlainTraining(), grad_norm=True)
    plain = PlainTraining(grad_norm=float("inf")).run()
    assert recorder.norms == plain.norms


@pytest.mark.parametrize("decay", [0.9999, 0.3])
def test_moving_averages_are_validated_and_saved(decay):
    model = Net()
    averages = ExponentialMovingAverage(model.named_parameters(), decay=decay)
    trainer = make_trainer(model=model, moving_average=averages)
    metrics = trainer.train()
    plain = PlainTraining(decay=decay).run()
    assert metrics["validation_loss"] == plain.validation_losses[-1]
    assert_same_weights(weights(model), plain.best)


def test_regularization_penalty_is_added_and_reported():
    plain = PlainTraining(model=PenalizedNet(0.1), accumulate=2)
    recorder = train_both(plain)
    assert recorder.epochs[-1]["training_reg_loss"] > 0
    assert "validation_reg_loss" not in recorder.epochs[-1]


def test_zero_penalty_is_reported():
    class Unpenalized(Net):
        def get_regularization_penalty(self):
            return 0.0

    metrics = make_trainer(model=Unpenalized(), num_epochs=1).train()
    assert metrics["training_reg_loss"] == 0.0


def test_loader_without_length_trains_its_last_group():
    plain = PlainTraining(accumulate=2)
    trainer = make_trainer(num_gradient_accumulation_steps=2)
    trainer.data_loader = Unsized(trainer.data_loader)
    metrics = trainer.train()
    plain.run()
    assert metrics["training_loss"] == plain.losses[-1]
    assert trainer.progress.total_batches == 9
    assert trainer.lightning_trainer.global_step == 9
    assert_same_weights(weights(trainer.model), plain.best)


def test_best_weights_are_restored_without_a_folder():
    plain = PlainTraining(num_epochs=12).run()
    assert plain.best_epoch < 11, "the test needs a training whose last epoch is not the best"
    trainer = make_trainer(num_epochs=12)
    trainer.train()
    assert_same_weights(weights(trainer.model), plain.best)


def test_without_validation_the_last_weights_are_best():
    trainer = make_trainer(validation_data_loader=None, num_epochs=2)
    metrics = trainer.train()
    assert metrics["best_epoch"] == 1
    assert not any("validation" in key for key in metrics)
