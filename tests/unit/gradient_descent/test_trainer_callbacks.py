"""AllenNLP 2's callbacks: one object for every event."""

import lightning.pytorch as pl
import pytest
import torch
import transformers
from transformers.trainer_callback import ExportableState

from portico.gradient_descent import ConfigurationError, TrainerCallback, from_params
from portico.gradient_descent.callbacks import OnBackwardException
from unit.gradient_descent.plain_training import Net, PlainTraining, assert_same_weights, make_trainer, weights
from unit.gradient_descent.test_recovery import Interruption, interrupted_at, trainer_with_everything


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


def test_the_order_of_calls():
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


def test_a_callback_may_run_the_backward_pass():
    trainer = make_trainer(size=8, num_gradient_accumulation_steps=2, callbacks=[Backward()])
    trainer.train()
    assert_same_weights(weights(trainer.model), PlainTraining(size=8, accumulate=2).run().best)
    other = make_trainer(size=8, num_gradient_accumulation_steps=2, callbacks=[Backward(0.0)])
    other.train()
    assert_same_weights(weights(other.model), weights(Net()))


def test_a_callback_may_leave_the_backward_pass_to_the_trainer():
    class Watching(TrainerCallback):
        def on_backward(self, trainer, batch_outputs, backward_called, **kwargs):
            return False

    trainer = make_trainer(num_gradient_accumulation_steps=2, callbacks=[Watching()])
    trainer.train()
    assert_same_weights(weights(trainer.model), PlainTraining(accumulate=2).run().best)


def test_two_backward_passes_are_refused():
    with pytest.raises(OnBackwardException, match="Two callbacks would run the backward pass of the same batch"):
        make_trainer(callbacks=[Backward(), Backward()]).train()


@pytest.mark.parametrize(
    ("options", "validated"),
    [
        ({}, [0, 1, 2, 3]),
        ({"validation_start": 2}, [2, 3]),
        ({"validation_interval": 2}, [0, 2]),
        ({"validation_start": 1, "validation_interval": 2}, [1, 3]),
    ],
)
def test_validation_may_be_left_out(options, validated):
    seen = set()

    def remember(epoch, is_training):
        if not is_training:
            seen.add(epoch)

    callback = from_params(TrainerCallback, {"type": "should_validate_callback", **options})
    trainer = make_trainer(num_epochs=4, callbacks=[callback], batch_callbacks=[remember])
    metrics = trainer.train()
    assert sorted(seen) == validated
    assert metrics["best_epoch"] in validated


def test_epochs_without_validation_do_not_count_for_the_patience():
    callback = from_params(TrainerCallback, {"type": "should_validate_callback", "validation_interval": 2})
    # The loss grows from the first epoch on.
    assert make_trainer(num_epochs=9, patience=1, callbacks=[callback]).train()["epoch"] == 2


@pytest.mark.parametrize("options", [{"validation_start": -1}, {"validation_interval": 0}])
def test_a_wrong_interval_is_refused(options):
    with pytest.raises(ConfigurationError, match="cannot be used; set the first to an int >= 0 and the second"):
        from_params(TrainerCallback, {"type": "should_validate_callback", **options})


def test_the_writer_of_a_callback_takes_the_place_of_the_default(tmp_path):
    config = {"type": "tensorboard", "summary_interval": 2, "distribution_interval": 5}
    callback = from_params(TrainerCallback, config, serialization_dir=str(tmp_path))
    trainer = make_trainer(tmp_path, num_epochs=1, callbacks=[callback])
    trainer.train()
    assert trainer.tensorboard_writer is callback._writer
    assert list((tmp_path / "log" / "train").iterdir())


def test_the_default_callbacks_are_there_on_request(caplog):
    caplog.set_level("INFO")
    make_trainer(num_epochs=1, enable_default_callbacks=True).train()
    assert "Epoch 0: metric" in caplog.text


def test_names_are_those_of_allennlp_2():
    assert set(TrainerCallback.list_available()) == {
        "null",
        "console_logger",
        "should_validate_callback",
        "tensorboard",
        "track_epoch_callback",
    }


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


def test_callbacks_of_every_library_go_on_from_their_states(tmp_path, caplog):
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
