"""Lightning runs on IPUs, in traced-step mode and in host-step mode."""

import json
import os

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.trainer.states import RunningStage as STAGES
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import poptorch_emulator as poptorch
import portico
from emulator_peers import Perceptron, free_ipus, largest_difference, options, weights
from portico.ipu.config import IPUConfig
from portico.ipu.precision import IPUPrecision

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

    @pytest.mark.parametrize("strategy", ["ipu", "ipu_strategy"])
    @pytest.mark.parametrize("devices", [1, "2", [0, 1, 2, 3]])
    def test_devices_are_replicas(self, tmp_path, strategy, devices):
        run = trainer(tmp_path, strategy=strategy, devices=devices)
        number = len(devices) if isinstance(devices, list) else int(devices)
        assert run.num_devices == run.strategy.replication_factor == number
        assert run.world_size == 1
        assert run.is_global_zero
        assert run.strategy.root_device == torch.device("cpu")

    @pytest.mark.parametrize("devices", [-1, "-1"])
    def test_all_devices_are_no_number_of_replicas(self, tmp_path, devices):
        with pytest.raises(ValueError, match=rf"`devices={devices!r}` is not a number of replicas; use an int >= 1"):
            trainer(tmp_path, devices=devices)

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

    @pytest.mark.parametrize(
        ("precision", "weight_type"), [("16-true", torch.float16), ("16-mixed", torch.float32), (16, torch.float32)]
    )
    @pytest.mark.filterwarnings(
        "ignore:.*GradScaler is enabled, but CUDA is not available",
        "ignore:`precision=16` is supported for historical",
    )
    def test_in_half_precision(self, tmp_path, precision, weight_type):
        module, seen = Traced(), []
        module.net.register_forward_hook(lambda net, inputs, output: seen.append(output.dtype))
        trainer(tmp_path, precision=precision).fit(module, loader(4))
        assert module.net.first.weight.dtype is weight_type
        # The first sixteen steps change each weight by up to 0.01.
        assert 0 < largest_difference(plain(4), weights(module.net)) < 0.02
        assert set(seen) == {torch.float16}

    def test_half_precision_module_with_mixed_precision(self, tmp_path):
        module = Traced().half()
        strategy = portico.IPUStrategy(precision_plugin=IPUPrecision("16-mixed"))
        trainer(tmp_path, strategy=strategy).fit(module, loader(4))
        assert module.net.first.weight.dtype is torch.float16

    def test_with_device_iterations(self, tmp_path):
        module = Traced()
        strategy = portico.IPUStrategy(device_iterations=4)
        run = trainer(tmp_path, strategy=strategy, devices=2, max_epochs=1)
        run.fit(module, loader(2), loader(2))
        assert strategy.device_iterations == 4
        assert run.global_step == 2
        # Weights are updated after each iteration, learning rates after each call.
        net = Perceptron()
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
        for number, (x, labels) in enumerate(loader(4)):
            optimizer.param_groups[0]["lr"] = 1e-2 * 0.9 ** (number // 4)
            optimizer.zero_grad()
            net(x, labels)[1].backward()
            optimizer.step()
        assert largest_difference(weights(net), weights(module.net)) < 1e-6

    def test_have_their_programs_by_stage(self, tmp_path):
        class Looking(Traced):
            def on_train_start(self):
                models = self.trainer.strategy.poptorch_models
                assert set(models) == {STAGES.TRAINING, STAGES.VALIDATING, STAGES.SANITY_CHECKING}
                assert models[STAGES.VALIDATING] is models[STAGES.SANITY_CHECKING]
                assert not models[STAGES.TRAINING].isCompiled()
                assert self.trainer.strategy.replication_factor == 2

            def on_train_end(self):
                assert self.trainer.strategy.poptorch_models[STAGES.TRAINING].isCompiled()

        run = trainer(tmp_path, strategy=portico.IPUStrategy(device_iterations=2), devices=2, max_epochs=1)
        run.fit(Looking(), loader(2), loader(2))
        for stage in (STAGES.TRAINING, STAGES.VALIDATING):
            chosen = run.strategy.poptorch_models[stage].options.toDict()
            assert (chosen["replication_factor"], chosen["device_iterations"]) == (2, 2)
        run.test(Looking(), loader(2), verbose=False)
        assert set(run.strategy.poptorch_models) == {STAGES.TESTING}

    @pytest.mark.parametrize(("training", "expected"), [(options(1, 4), 4), (None, 2)])
    def test_number_of_replicas_is_that_of_given_options(self, training, expected):
        strategy = portico.IPUStrategy(training_opts=training, inference_opts=options(1, 2))
        assert strategy.replication_factor == expected

    def test_accumulate_as_each_run_says(self, tmp_path):
        run, module = trainer(tmp_path, max_epochs=1), Traced()
        for number in (4, 2):
            run.accumulate_grad_batches = number
            run.fit_loop.max_epochs = run.current_epoch + 1
            before = run.global_step
            run.fit(module, loader(4))
            assert run.global_step - before == 8 // number
            assert run.accumulate_grad_batches == number

    def test_devices_draw_from_the_seed_of_the_run(self, tmp_path, monkeypatch):
        def outputs(seed):
            monkeypatch.setenv("PL_GLOBAL_SEED", str(seed))
            torch.manual_seed(0)
            module = Traced()
            module.net = Perceptron(dropout=0.5)
            module.configure_optimizers = lambda: torch.optim.SGD(module.net.parameters(), lr=0.1)
            torch.manual_seed(0)
            trainer(tmp_path, max_epochs=1, num_sanity_val_steps=0).fit(module, loader(4))
            # The host's generator, which is not seeded again.
            return torch.tensor(module.losses), torch.rand(1)

        (first, host), (again, _), (other, host_of_other) = outputs(1), outputs(1), outputs(2)
        assert torch.equal(first, again)
        assert not torch.equal(first, other)
        assert torch.equal(host, host_of_other)

    def test_the_seed_of_a_configuration_takes_precedence(self, monkeypatch):
        monkeypatch.setenv("PL_GLOBAL_SEED", "1")
        assert portico.IPUStrategy(IPUConfig(seed=7)).training_opts.random_seed == 7
        assert portico.IPUStrategy(IPUConfig()).training_opts.random_seed == 1

    def test_reports_are_requested_from_poplar(self, tmp_path, monkeypatch):
        monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", '{"opt.useAutoloader": "true"}')
        strategy = portico.IPUStrategy(autoreport=True, autoreport_dir=str(tmp_path / "reports"))
        assert strategy.autoreport
        assert json.loads(os.environ["POPLAR_ENGINE_OPTIONS"]) == {
            "opt.useAutoloader": "true",
            "autoReport.all": True,
            "autoReport.directory": str(tmp_path / "reports"),
        }
        assert (tmp_path / "reports").is_dir()

    @pytest.mark.parametrize("name", ["backward", "optimizer_zero_grad"])
    def test_overridden_hooks_without_effect_are_announced(self, tmp_path, name):
        module = type("Module", (Traced,), {name: lambda self, *args: None})()
        with pytest.warns(UserWarning, match=f"`{name}` of Module has no effect on IPUs"):
            trainer(tmp_path, max_epochs=1).fit(module, loader(4))

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

    def test_device_iterations_beside_a_configuration(self):
        with pytest.raises(ValueError, match="`device_iterations=2` is not used with an IPUConfig"):
            portico.IPUStrategy(IPUConfig(), device_iterations=2)

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
