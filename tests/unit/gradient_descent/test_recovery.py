"""A training that was interrupted ends as if it had not been, wherever it was."""

import json

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from portico.gradient_descent import BatchCallback, Checkpointer, ConfigurationError, ExponentialMovingAverage
from portico.gradient_descent.schedulers import InvertedTriangular, LinearWithWarmup, SlantedTriangular
from unit.gradient_descent.plain_training import (
    Net,
    NoisyPoints,
    assert_same_weights,
    make_trainer,
    weights,
)

# What an interruption may change: clocks, memory, and sums that the model keeps to itself.
CHANGING = ("memory_MB", "duration", "training_count", "training_start_epoch", "training_epochs")


class Interruption(Exception):
    pass


def lasting(metrics):
    return {name: value for name, value in metrics.items() if not any(mark in name for mark in CHANGING)}


def trainer_with_everything(folder, *, model=None, optimizer=None, **options):
    """Return a trainer that saves at every step, with all that has a state: averages, schedules, momentum."""
    model = Net() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) if optimizer is None else optimizer
    return make_trainer(
        folder,
        **{
            "model": model,
            "optimizer": optimizer,
            "num_epochs": 2,
            "patience": 5,
            "grad_norm": 0.5,
            "checkpointer": Checkpointer(folder, save_every_num_batches=1),
            "moving_average": ExponentialMovingAverage(model.named_parameters(), decay=0.5),
            "learning_rate_scheduler": LinearWithWarmup(optimizer, 2, 5, warmup_steps=3),
            "momentum_scheduler": InvertedTriangular(optimizer, cool_down=1, warm_up=1),
            **options,
        },
    )


def interrupted_at(step):
    def callback(trainer, is_training):
        if is_training and trainer.progress.total_batches == step:
            raise Interruption

    return callback


@pytest.mark.parametrize("accumulate", [1, 2])
def test_at_every_step(tmp_path, accumulate):
    options = {"num_gradient_accumulation_steps": accumulate}
    whole = trainer_with_everything(tmp_path / "whole", **options)
    expected = whole.train()
    steps = whole.progress.total_batches
    assert steps == 10 // accumulate + (accumulate == 2)
    for step in range(2, steps + 1):
        folder = tmp_path / f"stopped-{step}"
        with pytest.raises(Interruption):
            trainer_with_everything(folder, batch_callbacks=[interrupted_at(step)], **options).train()
        resumed = trainer_with_everything(folder, **options)
        assert lasting(resumed.train()) == lasting(expected), step
        assert_same_weights(weights(resumed.model), weights(whole.model))
        assert resumed.progress.total_batches == steps
        assert_same_weights(resumed.moving_average._shadows, whole.moving_average._shadows)
        assert resumed.optimizer.state_dict()["param_groups"] == whole.optimizer.state_dict()["param_groups"]
        assert resumed.lightning_trainer.global_step == steps


def test_between_the_last_step_and_the_end_of_its_epoch(tmp_path):
    def interrupt(trainer, epoch):
        if epoch == 0:
            raise Interruption

    whole = trainer_with_everything(tmp_path / "whole")
    expected = whole.train()
    with pytest.raises(Interruption):
        trainer_with_everything(tmp_path / "stopped", epoch_callbacks=[interrupt]).train()
    resumed = trainer_with_everything(tmp_path / "stopped")
    assert resumed.checkpointer.find_latest_checkpoint()[0].endswith("model_state_e0_b5.th")
    assert lasting(resumed.train()) == lasting(expected)
    assert_same_weights(weights(resumed.model), weights(whole.model))


def test_a_loader_with_a_generator_of_its_own(tmp_path):
    def trainer(folder, **options):
        generator = torch.Generator().manual_seed(4)
        loader = DataLoader(NoisyPoints(), batch_size=2, shuffle=True, generator=generator)
        return trainer_with_everything(folder, data_loader=loader, **options)

    whole = trainer(tmp_path / "whole")
    expected = whole.train()
    for step in (4, 6, 8):
        folder = tmp_path / f"stopped-{step}"
        with pytest.raises(Interruption):
            trainer(folder, batch_callbacks=[interrupted_at(step)]).train()
        resumed = trainer(folder)
        assert lasting(resumed.train()) == lasting(expected)
        assert_same_weights(weights(resumed.model), weights(whole.model))


def test_a_loader_without_a_length(tmp_path):
    class Unsized:
        def __init__(self):
            self.loader = DataLoader(NoisyPoints(), batch_size=2)

        def __iter__(self):
            return iter(self.loader)

    def trainer(folder, **options):
        return trainer_with_everything(folder, data_loader=Unsized(), num_gradient_accumulation_steps=2, **options)

    whole = trainer(tmp_path / "whole")
    expected = whole.train()
    for step in range(2, 7):
        folder = tmp_path / f"stopped-{step}"
        with pytest.raises(Interruption):
            trainer(folder, batch_callbacks=[interrupted_at(step)]).train()
        assert lasting(trainer(folder).train()) == lasting(expected), step


def test_layers_that_were_unfrozen_stay_so(tmp_path):
    def trainer(folder, **options):
        model = Net()
        groups = [{"params": model.inner.parameters()}, {"params": model.outer.parameters()}, {"params": []}]
        optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
        schedule = SlantedTriangular(optimizer, 3, 5, gradual_unfreezing=True, discriminative_fine_tuning=True)
        return trainer_with_everything(
            folder, model=model, optimizer=optimizer, learning_rate_scheduler=schedule, num_epochs=3, **options
        )

    whole = trainer(tmp_path / "whole")
    assert not whole.model.inner.weight.requires_grad
    expected = whole.train()
    assert whole.model.inner.weight.requires_grad
    with pytest.raises(Interruption):
        trainer(tmp_path / "stopped", batch_callbacks=[interrupted_at(8)]).train()
    resumed = trainer(tmp_path / "stopped")
    assert lasting(resumed.train()) == lasting(expected)
    assert_same_weights(weights(resumed.model), weights(whole.model))


def test_a_finished_training_is_not_trained_further(tmp_path):
    finished = trainer_with_everything(tmp_path)
    expected = finished.train()
    again = trainer_with_everything(tmp_path)
    metrics = again.train()
    assert again.progress.total_batches == 10
    assert metrics["best_validation_loss"] == expected["best_validation_loss"]
    assert_same_weights(weights(again.model), weights(finished.model))


def test_more_epochs_go_on_from_the_end(tmp_path):
    longer = make_trainer(tmp_path / "longer", num_epochs=3)
    expected = longer.train()
    make_trainer(tmp_path / "shorter", num_epochs=2).train()
    assert lasting(make_trainer(tmp_path / "shorter", num_epochs=3).train()) == lasting(expected)


def test_the_saved_model_has_the_averages_and_training_goes_on_from_the_weights(tmp_path):
    trainer = trainer_with_everything(tmp_path)
    trainer.train()
    model_state, training_state = trainer.checkpointer.load_checkpoint()
    averages = training_state["moving_average"]
    assert_same_weights(dict(model_state), averages["shadows"])
    assert not torch.equal(averages["backups"]["inner.weight"], averages["shadows"]["inner.weight"])
    with trainer.get_checkpoint_state() as state:
        assert torch.equal(trainer.model.inner.weight, trainer.moving_average._shadows["inner.weight"])
        assert state.trainer_state["epochs_completed"] == 2


def test_a_file_half_written_is_no_checkpoint(tmp_path):
    trainer = make_trainer(tmp_path, num_epochs=2)
    trainer.train()
    (tmp_path / "training_state_e2_b0.th").unlink()
    assert trainer.checkpointer.find_latest_checkpoint()[0].endswith("e1_b0.th")


def refused(trainer, folder, match):
    """Require that training is refused, and that nothing in the folder has changed."""
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(ConfigurationError, match=match):
        trainer.train()
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_folder_with_the_run_of_another_model_is_refused(tmp_path):
    make_trainer(tmp_path, num_epochs=1).train()
    model = torch.nn.Linear(3, 1)
    other = make_trainer(tmp_path, model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    refused(other, tmp_path, "Could not recover training from the checkpoint .* other weights .*Did you mean")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"num_gradient_accumulation_steps": 2}, "data counts"),
        ({"size": 12}, "data counts"),
    ],
)
def test_a_folder_with_a_run_on_other_data_is_refused(tmp_path, options, why):
    make_trainer(tmp_path, num_epochs=1).train()
    refused(make_trainer(tmp_path, **options), tmp_path, why)


def test_a_run_with_another_optimizer_or_schedule_is_refused(tmp_path):
    make_trainer(tmp_path, num_epochs=1).train()
    model = Net()
    groups = [{"params": model.inner.parameters()}, {"params": model.outer.parameters()}]
    other = make_trainer(tmp_path, model=model, optimizer=torch.optim.SGD(groups, lr=0.1))
    refused(other, tmp_path, "other parameter groups")
    model = Net()
    averages = ExponentialMovingAverage(model.named_parameters())
    refused(make_trainer(tmp_path, model=model, moving_average=averages), tmp_path, "without a `moving_average`")


@pytest.mark.parametrize("sign", ["best.th", "metrics.json", "model_state_epoch_0.th", "trainer_state.json"])
def test_a_folder_with_a_run_that_cannot_go_on_is_refused(tmp_path, sign):
    (tmp_path / sign).write_text("old")
    refused(make_trainer(tmp_path), tmp_path, f"already holds a run \\({sign}\\).*Specify another directory")


def test_a_checkpoint_of_another_version_is_refused(tmp_path):
    make_trainer(tmp_path, num_epochs=1).train()
    path = tmp_path / "training_state_e1_b0.th"
    state = torch.load(path, weights_only=False)
    torch.save({**state, "version": 9}, path)
    refused(make_trainer(tmp_path), tmp_path, "of version 9")


def test_a_loader_that_has_become_shorter_is_refused(tmp_path):
    class Loader:
        def __init__(self, batches):
            self.batches = batches

        def __len__(self):
            return 5

        def __iter__(self):
            return iter(self.batches)

    batches = list(DataLoader(NoisyPoints(), batch_size=2))
    with pytest.raises(Interruption):
        trainer_with_everything(tmp_path, data_loader=Loader(batches), batch_callbacks=[interrupted_at(4)]).train()
    shorter = trainer_with_everything(tmp_path, data_loader=Loader(batches[:2]))
    with pytest.raises(ConfigurationError, match="gives only 2"):
        shorter.train()


@pytest.mark.parametrize("content", [b"", b"no archive"])
def test_a_damaged_checkpoint_is_refused(tmp_path, content):
    make_trainer(tmp_path, num_epochs=1).train()
    (tmp_path / "training_state_e1_b0.th").write_bytes(content)
    refused(make_trainer(tmp_path), tmp_path, r"Could not recover training from the checkpoint .* damaged, or a callb")


def test_states_of_callbacks_and_numbers_of_numpy_come_back(tmp_path):
    class Counting(BatchCallback):
        def __init__(self):
            self.count = 0

        def __call__(self, is_training, **kwargs):
            self.count += is_training

        def state_dict(self):
            return {"count": self.count}

        def load_state_dict(self, state):
            self.count = state["count"]

    class NumpyNet(Net):
        def get_metrics(self, reset=False):
            return {"count": np.float64(super().get_metrics(reset)["count"]), "tensor": torch.tensor(2)}

    def trainer(**options):
        counting = Counting()
        made = trainer_with_everything(
            tmp_path, model=NumpyNet(), moving_average=None, batch_callbacks=[counting], **options
        )
        return made, counting

    trainer(num_epochs=1)[0].train()
    later, counting = trainer()
    metrics = later.train()
    assert counting.count == 10
    assert type(metrics["validation_count"]) is float
    assert metrics["validation_tensor"] == 2


def test_metrics_are_written_for_each_epoch_and_at_the_end(tmp_path):
    metrics = make_trainer(tmp_path, num_epochs=2).train()
    written = json.loads((tmp_path / "metrics.json").read_text())
    assert written == metrics
    assert json.loads((tmp_path / "metrics_epoch_1.json").read_text())["epoch"] == 1
    assert json.loads((tmp_path / "metrics_epoch_0.json").read_text())["epoch"] == 0
    assert (tmp_path / "best.th").is_file()
