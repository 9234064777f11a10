import logging
import signal
import sys
import types
import warnings
from importlib.metadata import version

import lightning.pytorch as pl
import pytest
import torch
import transformers
from lightning.pytorch.accelerators import CUDAAccelerator

from models import toy_trainer
from portico.compat import lightning as lightning_internals
from portico.compat.lightning import (
    UnnormalizedLoss,
    continue_from,
    end_epoch_after,
    publish_metrics,
    quiet_lightning,
)
from portico.loop.datamodule import TrainFeed


def test_checked_version_is_installed():
    installed = version("lightning")
    assert installed.startswith(f"{lightning_internals.CHECKED_VERSION}."), (
        f"Lightning {installed} is installed, but src/portico/compat/lightning.py was read against "
        f"{lightning_internals.CHECKED_VERSION}: read its private names anew, run the tests, set `CHECKED_VERSION`."
    )


@pytest.fixture
def trainer():
    return pl.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)


def test_unnormalized_loss_is_not_divided():
    loss = torch.tensor(3.0, requires_grad=True)
    assert UnnormalizedLoss.from_training_step_output(loss, normalize=4).closure_loss == 3.0


def test_training_does_not_divide_losses(tmp_path):
    loop = toy_trainer(tmp_path).lightning_trainer.fit_loop.epoch_loop
    assert loop.automatic_optimization.output_result_cls is UnnormalizedLoss


@pytest.mark.parametrize("batches", [0, 3])
def test_continue_from_sets_loop_progress(trainer, batches):
    continue_from(trainer, epoch=2, num_batches_done=batches, batches_per_epoch=5, steps=7)
    assert trainer.current_epoch == 2
    assert trainer.global_step == 7
    assert trainer.fit_loop.epoch_loop.batch_idx == batches - 1
    assert trainer.fit_loop.epoch_loop.total_batch_idx == 10 + batches - 1


def test_continue_from_without_length(trainer):
    continue_from(trainer, epoch=0, num_batches_done=3, batches_per_epoch=sys.maxsize, steps=3)
    assert trainer.global_step == 3


def test_end_epoch_after(trainer):
    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def training_step(self, batch, batch_idx):
            return (self.weight * batch).sum()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1.0)

    def batches():
        for number in range(5):
            if number == 3:
                end_epoch_after(trainer, 5)
            yield torch.ones(1)

    trainer.accumulate_grad_batches = 3
    trainer.fit_loop.max_epochs = 1
    with quiet_lightning():
        trainer.fit(Module(), TrainFeed(sys.maxsize, batches))
    # A step of three batches, then one of the two that remain.
    assert trainer.global_step == 2


def test_publish_metrics_ignores_non_numbers(trainer):
    publish_metrics(trainer, {"loss": 0.5, "step": 3, "name": "x", "matrix": [1]})
    assert {name: value.item() for name, value in trainer.callback_metrics.items()} == {"loss": 0.5, "step": 3.0}


def test_evaluation_during_fit_restores_trainer_state(tmp_path):
    class Watch(pl.Callback):
        def __init__(self):
            self.stages = []

        def on_validation_start(self, trainer, pl_module):
            self.stages.append(trainer.state.stage)

        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            self.stages.append(trainer.state.stage)
            assert trainer.training

    watch = Watch()
    trainer = toy_trainer(tmp_path, parts={"lightning_callbacks": [watch]}, eval_strategy="steps", eval_steps=1)
    trainer.train()
    assert [str(stage.value) for stage in watch.stages] == ["validate", "train"] * 10


def test_loss_gets_no_extra_operation():
    loss = torch.tensor(3.0, requires_grad=True) * 2
    result = UnnormalizedLoss.from_training_step_output(loss, normalize=1)
    assert result.closure_loss is loss
    assert not result.loss.requires_grad


ANNOUNCER = logging.getLogger("lightning.pytorch.utilities.rank_zero")


def test_quiet_lightning_restores_log_levels(caplog):
    ANNOUNCER.setLevel(logging.INFO)
    with quiet_lightning():
        ANNOUNCER.info("tip")
        ANNOUNCER.warning("mind this")
    ANNOUNCER.info("later")
    assert [record.message for record in caplog.records] == ["mind this", "later"]


def test_quiet_lightning_ends_after_error(caplog):
    ANNOUNCER.setLevel(logging.INFO)
    with pytest.raises(KeyError), quiet_lightning():
        raise KeyError
    ANNOUNCER.info("later")
    assert [record.message for record in caplog.records] == ["later"]


class SignalSetter(transformers.TrainerCallback):
    def on_prediction_step(self, args, state, control, **kwargs):
        for one in (signal.SIGUSR2, signal.SIGTERM):
            signal.signal(one, signal.SIG_IGN)


def test_an_evaluation_restores_the_handlers_that_lightning_sets(tmp_path):
    before = {one: signal.getsignal(one) for one in (signal.SIGUSR2, signal.SIGTERM)}
    try:
        toy_trainer(tmp_path, parts={"callbacks": [SignalSetter()]}).evaluate()
        # Under transformers a handler that a callback sets stays.
        assert signal.getsignal(signal.SIGUSR2) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) is before[signal.SIGTERM]
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def test_hooks_are_looked_at_again_when_they_change(tmp_path):
    trainer = toy_trainer(tmp_path)
    for _ in range(2):
        trainer.evaluate()

    def needs_index(self, batch, batch_idx, dataloader_idx):
        """Never called."""

    trainer.module.validation_step = types.MethodType(needs_index, trainer.module)
    with pytest.raises(RuntimeError, match="only a single `val_dataloader`"):
        trainer.evaluate()


def test_run_on_a_gpu_starts_with_tf32(monkeypatch):
    """Lightning looks up torch's precision, which raises after `tf32=True`; seen on the CPU with a GPU's answers."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr("lightning.fabric.accelerators.cuda._is_ampere_or_later", lambda device: True)
    monkeypatch.setattr(torch.backends, "fp32_precision", "tf32")
    matmul, device = torch.backends.cuda.matmul, torch.device("cuda", 0)
    # What another test has set for these products alone, or by the older setting, would take precedence.
    before = matmul.fp32_precision
    torch.set_float32_matmul_precision("highest")
    matmul.fp32_precision = "tf32"
    try:
        with pytest.raises(RuntimeError, match="mix of the legacy and new APIs"):
            CUDAAccelerator().setup_device(device)
        with quiet_lightning():
            CUDAAccelerator().setup_device(device)
    finally:
        matmul.fp32_precision = before


def test_cpu_is_chosen_where_there_is_a_gpu_without_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(CUDAAccelerator, "is_available", staticmethod(lambda: True))
    assert toy_trainer(tmp_path, use_cpu=True).args.device.type == "cpu"


def test_quiet_lightning_keeps_other_warnings():
    with quiet_lightning():
        warnings.warn("Found 3 module(s) in eval mode at the start of training", stacklevel=1)
        with pytest.warns(UserWarning, match="mine"):
            warnings.warn("mine", stacklevel=1)
