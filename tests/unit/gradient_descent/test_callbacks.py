"""Which callback is called when, with what."""

import csv
from pathlib import Path
from types import SimpleNamespace

import lightning.pytorch as pl
import pytest
import torch
import transformers
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.strategies import DDPStrategy
from transformers.trainer_callback import ExportableState

from portico import InputError
from portico.gradient_descent import (
    BatchCallback,
    ConfidenceCheckError,
    ConfigurationError,
    EndCallback,
    EpochCallback,
    LearningRateScheduler,
    TrackEpochCallback,
    TrainerCallback,
    from_params,
)
from portico.gradient_descent.callbacks import OnBackwardException
from unit.gradient_descent.plain_training import (
    Interruption,
    Net,
    PlainTraining,
    assert_same_weights,
    interrupted_at,
    make_trainer,
    trainer_with_everything,
    weights,
)


class Batch(BatchCallback):
    def __init__(self, calls):
        self.calls = calls

    def __call__(
        self, trainer, batch_inputs, batch_outputs, batch_metrics, epoch, batch_number, is_training, **kwargs
    ):
        assert kwargs["is_primary"]
        assert len(batch_inputs) == len(batch_outputs)
        assert all("loss" in outputs for outputs in batch_outputs)
        assert {"batch_loss", "loss", "count"} <= set(batch_metrics)
        if is_training:
            assert all(parameter.grad is not None for parameter in trainer.model.parameters())
        self.calls.append(("batch", epoch, batch_number, is_training, len(batch_inputs)))


class Epoch(EpochCallback):
    def __init__(self, calls):
        self.calls = calls

    def __call__(self, trainer, metrics, epoch, is_primary, **kwargs):
        assert bool(metrics) == (epoch >= 0)
        self.calls.append(("epoch", epoch))


class End(EndCallback):
    def __init__(self, calls):
        self.calls = calls

    def __call__(self, trainer, metrics, epoch, is_primary, **kwargs):
        self.calls.append(("end", epoch, metrics is not None))


def test_order_of_events():
    calls = []
    make_trainer(
        num_epochs=2,
        num_gradient_accumulation_steps=2,
        batch_callbacks=[Batch(calls)],
        epoch_callbacks=[Epoch(calls)],
        end_callbacks=[End(calls)],
    ).train()

    def one_epoch(epoch):
        training = [("batch", epoch, number, True, size) for number, size in ((1, 2), (2, 2), (3, 1))]
        validation = [("batch", epoch, number, False, 1) for number in (1, 2, 3)]
        return [*training, *validation, ("epoch", epoch)]

    assert calls == [("epoch", -1), *one_epoch(0), *one_epoch(1), ("end", 1, True)]


def test_end_callbacks_run_when_training_fails():
    class Broken(Net):
        def forward(self, x, labels):
            return {"loss": super().forward(x, labels)["loss"] * float("nan")}

    calls = []
    with pytest.raises(ValueError, match="nan loss encountered; lower the learning rate"):
        make_trainer(model=Broken(), end_callbacks=[End(calls)]).train()
    assert calls == [("end", None, False)]


def test_allennlp_1_callback_signatures():
    calls = []

    class Old(BatchCallback):
        def __call__(self, trainer, batch_inputs, batch_outputs, epoch, batch_number, is_training, is_master):
            calls.append((epoch, is_master))

    def old_epoch(trainer, metrics, epoch, is_master):
        calls.append((epoch, is_master))

    make_trainer(num_epochs=1, batch_callbacks=[Old()], epoch_callbacks=[old_epoch]).train()
    assert calls == [(-1, True), *[(0, True)] * 9]


def test_base_classes_do_nothing():
    idle = {
        "batch_callbacks": [BatchCallback()],
        "epoch_callbacks": [EpochCallback()],
        "end_callbacks": [EndCallback()],
    }
    make_trainer(num_epochs=1, **idle).train()


@pytest.mark.parametrize(
    ("callbacks", "message"),
    [
        ({"batch_callbacks": [lambda loss: None]}, r"requires the unknown argument `loss`; it may take: "),
        ({"epoch_callbacks": ["track_epoch_callback"]}, "cannot be called; pass an object with `__call__`"),
    ],
)
def test_callbacks_that_cannot_be_called_are_refused(callbacks, message):
    with pytest.raises(ConfigurationError, match=message):
        make_trainer(**callbacks)


def test_track_epoch_callback():
    trainer = make_trainer(num_epochs=2, epoch_callbacks=[TrackEpochCallback()])
    trainer.train()
    assert trainer.model.epoch == 2


def test_hugging_face_and_lightning_callbacks(tmp_path):
    events = []

    class OfHuggingFace(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            events.append(("hf step", state.global_step))

        def on_epoch_end(self, args, state, control, **kwargs):
            events.append(("hf epoch", state.epoch))

        def on_log(self, args, state, control, logs, **kwargs):
            if "training_loss" in logs:
                events.append(("hf log", "best_validation_loss" in logs))

        def on_train_end(self, args, state, control, **kwargs):
            events.append(("hf end",))

    class OfLightning(pl.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            events.append(("lightning batch", trainer.global_step))

        def on_train_epoch_end(self, trainer, pl_module):
            events.append(("lightning epoch", "validation_loss" in trainer.callback_metrics))

    table = CSVLogger(tmp_path)
    trainer = make_trainer(num_epochs=1, callbacks=[OfLightning(), OfHuggingFace], loggers=[table])
    metrics = trainer.train()
    steps = [event for step in range(1, 6) for event in (("hf step", step), ("lightning batch", step))]
    assert events == [*steps, ("hf epoch", 1.0), ("hf log", True), ("lightning epoch", True), ("hf end",)]
    table.save()
    with Path(table.experiment.metrics_file_path).open() as file:
        logged = {key: value for row in csv.DictReader(file) for key, value in row.items() if value}
    assert float(logged["training_loss"]) == metrics["training_loss"]
    assert float(logged["validation_loss"]) == metrics["validation_loss"]


def test_hugging_face_callback_can_stop_and_save(tmp_path):
    class Stopping(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 3:
                control.should_save = control.should_training_stop = True

    make_trainer(tmp_path, callbacks=[Stopping()]).train()
    assert (tmp_path / "model_state_e0_b3.th").is_file()


def test_lightning_early_stopping():
    stopping = pl.callbacks.EarlyStopping("validation_loss", patience=1, min_delta=10.0)
    trainer = make_trainer(num_epochs=9, callbacks=[stopping])
    assert trainer.train()["epoch"] == 1


class Recorder(TrainerCallback):
    def __init__(self, calls):
        super().__init__()
        self.calls = calls

    def on_start(self, trainer, is_primary=True, **kwargs):
        super().on_start(trainer, is_primary, **kwargs)
        self.calls.append("start")

    def on_batch(self, trainer, batch_inputs, batch_metrics, epoch, batch_number, is_training, batch_grad_norm):
        self.calls.append((epoch, batch_number, is_training, len(batch_inputs)))

    def on_epoch(self, metrics, epoch, **kwargs):
        self.calls.append(("epoch", epoch, "validation_loss" in metrics))

    def on_end(self, trainer, metrics=None, epoch=None, is_primary=True, **kwargs):
        self.calls.append(("end", epoch))


def test_trainer_callback_events():
    calls = []
    trainer = make_trainer(num_epochs=1, num_gradient_accumulation_steps=2, callbacks=[Recorder(calls)])
    trainer.train()
    training = [(0, 1, True, 2), (0, 2, True, 2), (0, 3, True, 1)]
    validation = [(0, number, False, 1) for number in (1, 2, 3)]
    assert calls == ["start", *training, *validation, ("epoch", 0, True), ("end", 0)]
    assert trainer.own_callbacks[0].trainer is trainer


class Backward(TrainerCallback):
    def __init__(self, factor=1.0):
        super().__init__()
        self.factor = factor

    def on_backward(self, trainer, batch_outputs, backward_called, **kwargs):
        super().on_backward(trainer, batch_outputs, backward_called)
        (batch_outputs["loss"] * self.factor / 2).backward()
        return True


def test_callback_runs_the_backward_pass():
    trainer = make_trainer(size=8, num_gradient_accumulation_steps=2, callbacks=[Backward()])
    trainer.train()
    assert_same_weights(weights(trainer.model), PlainTraining(size=8, accumulate=2).run().best)
    other = make_trainer(size=8, num_gradient_accumulation_steps=2, callbacks=[Backward(0.0)])
    other.train()
    assert_same_weights(weights(other.model), weights(Net()))
    with pytest.raises(OnBackwardException, match="Two callbacks would run the backward pass of the same batch"):
        make_trainer(callbacks=[Backward(), Backward()]).train()


def test_callback_that_runs_the_backward_pass_is_refused_where_gradients_are_not_averaged(monkeypatch):
    trainer = make_trainer(callbacks=[Backward()])
    whole = SimpleNamespace(strategy=DDPStrategy())  # around the whole module
    monkeypatch.setattr(trainer.loop._portico, "lightning_trainer", whole)
    with pytest.raises(InputError, match="where DDPStrategy does not average"):
        trainer.loop.train()


def test_callback_leaves_the_backward_pass_to_the_trainer():
    class Watching(TrainerCallback):
        def on_backward(self, trainer, batch_outputs, backward_called, **kwargs):
            return False

    trainer = make_trainer(num_gradient_accumulation_steps=2, callbacks=[Watching()])
    trainer.train()
    assert_same_weights(weights(trainer.model), PlainTraining(accumulate=2).run().best)


@pytest.mark.parametrize(
    ("options", "validated"),
    [
        ({}, [0, 1, 2, 3]),
        ({"validation_start": 2}, [2, 3]),
        ({"validation_interval": 2}, [0, 2]),
        ({"validation_start": 1, "validation_interval": 2}, [2]),
    ],
)
def test_should_validate_callback(options, validated):
    seen = set()

    def remember(epoch, is_training):
        if not is_training:
            seen.add(epoch)

    callback = from_params(TrainerCallback, {"type": "should_validate_callback", **options})
    trainer = make_trainer(num_epochs=4, callbacks=[callback], batch_callbacks=[remember])
    metrics = trainer.train()
    assert sorted(seen) == validated
    assert metrics["best_epoch"] in validated


def test_skipped_validation_does_not_count_towards_patience():
    callback = from_params(TrainerCallback, {"type": "should_validate_callback", "validation_interval": 2})
    # The loss grows from the first epoch on.
    assert make_trainer(num_epochs=9, patience=1, callbacks=[callback]).train()["epoch"] == 2


@pytest.mark.parametrize("options", [{"validation_start": -1}, {"validation_interval": 0}])
def test_invalid_validation_interval_is_refused(options):
    with pytest.raises(ConfigurationError, match="cannot be used; set the first to an int >= 0 and the second"):
        from_params(TrainerCallback, {"type": "should_validate_callback", **options})


class Normalized(Net):
    """Has a linear layer right before a normalization."""

    def __init__(self, *, bias):
        super().__init__()
        self.outer = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=bias), torch.nn.LayerNorm(4), self.outer)


@pytest.mark.parametrize("options", [{"run_confidence_checks": True}, {"callbacks": ["confidence_checks"]}])
def test_confidence_checks_refuse_a_bias_before_a_normalization(options):
    names = options.pop("callbacks", [])
    options["callbacks"] = [from_params(TrainerCallback, name) for name in names]
    model = Normalized(bias=True)
    with pytest.raises(ConfidenceCheckError, match=r"`outer.0` before `outer.1`; set `bias=False` in the first"):
        make_trainer(model=model, **options).train()
    assert not any(module._forward_hooks for module in model.modules())
    assert make_trainer(model=Normalized(bias=False), num_epochs=1, **options).train()["epoch"] == 0


def test_default_callbacks(caplog):
    caplog.set_level("INFO")
    make_trainer(num_epochs=1, enable_default_callbacks=True).train()
    assert "Epoch 0: metric" in caplog.text


class Counting(TrainerCallback):
    def __init__(self):
        super().__init__()
        self.count = 0

    def on_batch(self, is_training, **kwargs):
        self.count += is_training

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state_dict):
        self.count = state_dict["count"]


class HuggingFaceCounting(transformers.TrainerCallback, ExportableState):
    def __init__(self):
        self.count = 0

    def on_step_end(self, args, state, control, **kwargs):
        self.count += 1

    def state(self):
        return {"args": {}, "attributes": {"count": self.count}}


def test_callback_states_are_restored(tmp_path, caplog):
    def trainer(**options):
        stopping = pl.callbacks.EarlyStopping("validation_loss", patience=5)
        callbacks = [Counting(), Counting(), HuggingFaceCounting(), stopping]
        return trainer_with_everything(tmp_path, callbacks=callbacks, **options), callbacks

    with pytest.raises(Interruption):
        trainer(batch_callbacks=[interrupted_at(8)])[0].train()
    resumed, (first, second, hugging_face, stopping) = trainer()
    metrics = resumed.train()
    assert first.count == second.count == hugging_face.count == 10
    assert stopping.best_score.item() == torch.tensor(metrics["best_validation_loss"]).item()
    assert stopping.wait_count == 1 - metrics["best_epoch"]
    assert "states of callbacks that this training does not have" not in caplog.text
    trainer_with_everything(tmp_path).train()
    assert "states of callbacks that this training does not have: Counting, Counting 2." in caplog.text


# No loss is high enough.
PLATEAU = {"type": "reduce_on_plateau", "patience": 0, "mode": "max", "threshold": 1e9}
LATER_PLATEAU = {"type": "combined", "schedulers": [[1, {"type": "constant"}], [5, PLATEAU]]}


def plateau_trainer(params, **options):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    counts = {"num_epochs": 4, "num_steps_per_epoch": 5}
    scheduler = from_params(LearningRateScheduler, params, optimizer=optimizer, **counts)
    return make_trainer(model=model, optimizer=optimizer, learning_rate_scheduler=scheduler, num_epochs=4, **options)


@pytest.mark.parametrize("params", [PLATEAU, LATER_PLATEAU])
@pytest.mark.parametrize("options", [{"validation_start": 2}, {"validation_interval": 2}])
def test_reduce_on_plateau_waits_for_a_validation(options, params):
    """AllenNLP asks for a validation dataset after the first epoch without validation."""
    callback = from_params(TrainerCallback, {"type": "should_validate_callback", **options})
    trainer = plateau_trainer(params, callbacks=[callback])
    trainer.train()
    # Two validations, of which the second is no improvement.
    assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(0.01)


@pytest.mark.parametrize("params", [PLATEAU, LATER_PLATEAU])
def test_reduce_on_plateau_without_a_validation_loader_is_refused_before_training(params):
    with pytest.raises(ConfigurationError, match=r"requires a validation metric .* `validation_data_loader`"):
        plateau_trainer(params, validation_data_loader=None)


def test_a_plateau_that_is_never_reached_needs_no_validation():
    params = {"type": "combined", "schedulers": [[5, {"type": "constant"}], [5, PLATEAU]]}
    plateau_trainer(params, validation_data_loader=None).train()
