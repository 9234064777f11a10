"""Lightning runs on IPUs, in traced-step mode and in host-step mode."""

import lightning.pytorch as pl
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import poptorch_emulator as poptorch
import portico
from emulator_peers import Perceptron, free_ipus, largest_difference, options, weights
from portico.ipu.config import IPUConfig

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec"),
    pytest.mark.filterwarnings("ignore:Couldn't infer the batch indices"),
]
GENERATOR = torch.Generator().manual_seed(0)
DATA = TensorDataset(torch.randn(32, 3, generator=GENERATOR), torch.randn(32, 2, generator=GENERATOR))


def loader(batch_size=2):
    return DataLoader(DATA, batch_size=batch_size)


class Traced(pl.LightningModule):
    """A plain module, whose whole steps are programs."""

    def __init__(self):
        super().__init__()
        self.net = Perceptron()
        self.losses = []

    def training_step(self, batch, batch_idx):
        return functional.mse_loss(self.net(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        return functional.mse_loss(self.net(batch[0]), batch[1])

    test_step = validation_step

    def predict_step(self, batch, batch_idx):
        return self.net(batch[0])

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.losses.append(float(outputs["loss"]))

    def configure_optimizers(self):
        optimizer = poptorch.optim.AdamW(self.net.parameters(), lr=1e-2)
        return [optimizer], [
            {"scheduler": torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 0.9**n), "interval": "step"}
        ]


class OnHost(Traced):
    """Keeps its steps on the host; only the network is a program."""

    def __init__(self):
        super().__init__()
        self.ipu_model = self.net

    def training_step(self, batch, batch_idx):
        loss = self.trainer.strategy.execute(*batch)[1].mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.trainer.strategy.execute(*batch)[1].mean())


def trainer(tmp_path, **changes):
    defaults = {
        "accelerator": "ipu",
        "strategy": "ipu",
        "max_epochs": 2,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": tmp_path,
    }
    return pl.Trainer(**{**defaults, **changes})


def plain(batch_size, epochs=2):
    """Return the weights after a plain training loop over global batches."""
    net = Perceptron()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 0.9**n)
    for _ in range(epochs):
        for x, labels in loader(batch_size):
            optimizer.zero_grad()
            net(x, labels)[1].backward()
            optimizer.step()
            schedule.step()
    return weights(net)


class TestRegistration:
    def test_names_and_default_device_count(self):
        assert portico.IPUStrategy.strategy_name == "ipu"
        assert portico.IPUAccelerator.name() == "ipu"
        assert portico.IPUAccelerator.auto_device_count() == 1

    def test_accelerator_without_strategy_is_an_error(self, tmp_path):
        with pytest.raises(ValueError, match=r"SingleDeviceStrategy would run on the CPU.*Set `strategy='ipu'`"):
            trainer(tmp_path, strategy="auto").fit(Traced(), loader())


class TestTracedSteps:
    def test_train_like_a_plain_loop(self, tmp_path):
        module = Traced()
        run = trainer(tmp_path, devices=2, accumulate_grad_batches=2)
        run.fit(module, loader(4))
        assert run.global_step == 2 * 2
        assert largest_difference(plain(16), weights(module.net)) < 1e-6
        assert run.accumulate_grad_batches == 2
        assert len(module.losses) == 4

    def test_accept_an_ipu_config(self, tmp_path):
        module = Traced()
        config = IPUConfig(replication_factor=2, gradient_accumulation_steps=4)
        run = trainer(tmp_path, strategy=portico.IPUStrategy(config))
        run.fit(module, loader(2))
        assert largest_difference(plain(16), weights(module.net)) < 1e-6

    def test_accept_poptorch_options(self, tmp_path):
        module = Traced()
        strategy = portico.IPUStrategy(training_opts=options(1, 2, 4), inference_opts=options(2))
        trainer(tmp_path, strategy=strategy).fit(module, loader(2))
        assert largest_difference(plain(16), weights(module.net)) < 1e-6

    def test_validate_test_and_predict(self, tmp_path):
        module = Traced()
        run = trainer(tmp_path)
        run.fit(module, loader(4), loader(4))
        run.validate(module, loader(4), verbose=False)
        run.test(module, loader(4), verbose=False)
        found = torch.cat(run.predict(module, loader(4)))
        assert torch.allclose(found, module.net(DATA.tensors[0]))

    def test_in_half_precision(self, tmp_path):
        module = Traced()
        trainer(tmp_path, precision="16-true").fit(module, loader(4))
        assert module.net.first.weight.dtype is torch.float16
        assert torch.isfinite(module.net.first.weight).all()

    def test_cannot_log(self, tmp_path):
        class Logging(Traced):
            def training_step(self, batch, batch_idx):
                loss = super().training_step(batch, batch_idx)
                self.log("loss", loss)
                return loss

        with pytest.warns(UserWarning, match=r"`self.log\('loss', ...\)` in `training_step` has no effect"):
            trainer(tmp_path, max_epochs=1).fit(Logging(), loader())

    def test_share_one_ipu_in_turn(self, tmp_path):
        with free_ipus(1):
            trainer(tmp_path, max_epochs=2).fit(Traced(), loader(4), loader(4))

    def test_resume_bit_for_bit(self, tmp_path):
        whole, first, second = Traced(), Traced(), Traced()
        trainer(tmp_path, max_epochs=4).fit(whole, loader(4))
        run = trainer(tmp_path, max_epochs=2)
        run.fit(first, loader(4))
        run.save_checkpoint(tmp_path / "half.ckpt", weights_only=False)
        trainer(tmp_path, max_epochs=4).fit(second, loader(4), ckpt_path=tmp_path / "half.ckpt")
        assert largest_difference(weights(whole.net), weights(second.net)) == 0


class TestHostSteps:
    def test_train_like_a_plain_loop_and_log(self, tmp_path):
        module = OnHost()
        run = trainer(tmp_path, devices=2, accumulate_grad_batches=2)
        run.fit(module, loader(4), loader(4))
        assert largest_difference(plain(16), weights(module.net)) < 1e-6
        assert {"loss", "val_loss"} <= set(run.callback_metrics)

    def test_execute_needs_an_ipu_model(self, tmp_path):
        class WithoutModel(OnHost):
            runs_steps_on_host = True

            def __init__(self):
                super().__init__()
                self.ipu_model = None

        with pytest.raises(ValueError, match=r"runs the module's `ipu_model`, which does not exist"):
            trainer(tmp_path).fit(WithoutModel(), loader())


class TestRefusals:
    def refused(self, tmp_path, match, module=None, train_loader=None, **changes):
        with pytest.raises(ValueError, match=match):
            trainer(tmp_path, **changes).fit(module or Traced(), train_loader or loader())

    def test_clipping_on_the_host(self, tmp_path):
        self.refused(tmp_path, r"`gradient_clip_val=1.0` clips on the host", gradient_clip_val=1.0)

    @pytest.mark.parametrize("precision", ["bf16-true", "64-true", "bf16-mixed"])
    @pytest.mark.filterwarnings("ignore")
    def test_other_precisions(self, tmp_path, precision):
        self.refused(tmp_path, f"`precision='{precision}'` is not supported on IPUs", precision=precision)

    def test_manual_optimization(self, tmp_path):
        module = Traced()
        module.automatic_optimization = False
        self.refused(tmp_path, "Manual optimization is not supported", module)

    def test_lbfgs(self, tmp_path):
        module = Traced()
        module.configure_optimizers = lambda: torch.optim.LBFGS(module.net.parameters())
        self.refused(tmp_path, "LBFGS calls the model several times per step", module)

    def test_batch_transfer_hooks(self, tmp_path):
        class Transferring(Traced):
            def on_after_batch_transfer(self, batch, dataloader_idx):
                return batch

        self.refused(tmp_path, "Overriding `on_after_batch_transfer` is not supported on IPUs", Transferring())

    def test_a_step_without_a_loss(self, tmp_path):
        module = Traced()
        module.training_step = lambda batch, batch_idx: None
        self.refused(tmp_path, "`training_step` returned NoneType", module)

    def test_contradictory_accumulation(self, tmp_path):
        strategy = portico.IPUStrategy(IPUConfig(gradient_accumulation_steps=4))
        self.refused(tmp_path, "contradicts the options of the program", strategy=strategy, accumulate_grad_batches=2)

    def test_custom_batch_samplers(self, tmp_path):
        class Pairs(torch.utils.data.Sampler):
            def __iter__(self):
                return iter([[0, 1], [2, 3]])

            def __len__(self):
                return 2

        batches = DataLoader(DATA, batch_sampler=Pairs())
        self.refused(tmp_path, "batch sampler of type Pairs", train_loader=batches)


def test_poptorch_data_loader_is_used_unchanged(tmp_path):
    kept = poptorch.DataLoader(options(1, 1, 2), DATA, batch_size=4)
    strategy = portico.IPUStrategy(training_opts=options(1, 1, 2))
    module = Traced()
    run = trainer(tmp_path, strategy=strategy)
    run.fit(module, kept)
    assert run.train_dataloader is kept
    assert largest_difference(plain(8), weights(module.net)) < 1e-6


def test_dict_with_loss_is_returned_with_mean_loss(tmp_path):
    class Returning(Traced):
        def training_step(self, batch, batch_idx):
            return {"loss": super().training_step(batch, batch_idx), "rows": batch[0]}

    module = Returning()
    trainer(tmp_path, devices=2).fit(module, loader())
    assert all(isinstance(loss, float) for loss in module.losses)
    assert isinstance(module.net, nn.Module)
