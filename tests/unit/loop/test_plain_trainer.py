"""The trainer's module and data under a ``lightning.Trainer`` that the user made."""

import csv
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch import callbacks as of_lightning
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.tuner import Tuner
from torch.utils.data import DataLoader
from torchmetrics.classification import MulticlassAccuracy
from transformers import TrainerCallback

import portico
from models import Line, Points, ToyDataset, ToyStream, tiny_bert, toy_trainer
from portico import TrainerModule

pytestmark = [
    # Lightning's own advice, given to every user.
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings(r"ignore:Found \d+ module\(s\) in eval mode"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`"),
    pytest.mark.filterwarnings("ignore:The dirpath has changed"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* is not empty"),
]


def lightning_trainer(**options):
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    return pl.Trainer(**{"accelerator": "cpu", "enable_model_summary": False, **quiet, **options})


def classifier(output_dir, parts=None, **changes):
    """Return a trainer of a model with dropout, whose losses show any difference in random draws."""
    data = {"train_dataset": ToyDataset(), "eval_dataset": ToyDataset(9, seed=1), **(parts or {})}
    options = {"per_device_train_batch_size": 4, "corrections": "all", **changes}
    return toy_trainer(output_dir, parts={"model": tiny_bert(), **data}, **options)


def trained(output_dir, parts=None, **changes):
    """Return a classifier that the facade trained; the seeds are set when a trainer is made."""
    trainer = classifier(output_dir, parts, **changes)
    trainer.train()
    return trainer


def history(trainer, *keys):
    return [{key: entry[key] for key in keys} for entry in trainer.state.log_history if keys[-1] in entry]


def weights(trainer):
    return torch.cat([tensor.flatten() for tensor in trainer.model.state_dict().values()])


# Training ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"gradient_accumulation_steps": 3},
        {"lr_scheduler_type": "cosine", "warmup_steps": 3, "max_grad_norm": 0.1, "optim": "adafactor"},
        {"train_sampling_strategy": "group_by_length", "label_smoothing_factor": 0.1},
        {"bf16": True},
    ],
)
def test_fit_trains_as_the_trainer_does(changes, tmp_path):
    facade = trained(tmp_path / "a", eval_strategy="epoch", **changes)
    plain = classifier(tmp_path / "b", **changes)
    lightning = lightning_trainer(max_epochs=2, precision="bf16-mixed" if "bf16" in changes else None)
    lightning.fit(plain.module, plain.datamodule)
    keys = ("step", "epoch", "learning_rate", "grad_norm", "loss")
    assert history(plain, *keys) == history(facade, *keys)
    assert history(plain, "step", "eval_loss") == history(facade, "step", "eval_loss")
    assert torch.equal(weights(plain), weights(facade))
    assert lightning.global_step == plain.state.global_step == facade.state.global_step
    assert plain.evaluate()["eval_loss"] == facade.evaluate()["eval_loss"]


@pytest.mark.parametrize("steps", [3, 10])
def test_fit_takes_the_steps_of_lightning(steps, tmp_path):
    facade = trained(tmp_path / "a", max_steps=steps, eval_strategy="epoch")
    plain = classifier(tmp_path / "b")
    lightning_trainer(max_steps=steps).fit(plain.module, plain.datamodule)
    assert history(plain, "step", "loss") == history(facade, "step", "loss")
    assert plain.state.global_step == plain.state.max_steps == steps


def test_smaller_limit_of_lightning_counts(tmp_path):
    for limits in ({"max_epochs": 1, "max_steps": 100}, {"max_epochs": 9, "max_steps": 8}):
        trainer = classifier(tmp_path)
        lightning_trainer(**limits).fit(trainer.module, trainer.datamodule)
        assert trainer.state.global_step == 8
        assert history(trainer, "learning_rate")[-1]["learning_rate"] == pytest.approx(0.1 / 8)


def test_without_a_limit_of_lightning_the_arguments_count(tmp_path):
    trainer = classifier(tmp_path, num_train_epochs=1)
    lightning_trainer(max_epochs=-1).fit(trainer.module, trainer.datamodule)
    assert trainer.state.global_step == 8


def test_fit_of_a_stream_and_of_limited_batches(tmp_path):
    stream = classifier(tmp_path, {"train_dataset": ToyStream()}, max_steps=5)
    lightning_trainer(max_steps=5).fit(stream.module, stream.datamodule)
    assert stream.state.global_step == 5
    limited = classifier(tmp_path)
    lightning_trainer(max_epochs=2, limit_train_batches=3, limit_val_batches=2).fit(limited.module, limited.datamodule)
    assert limited.state.global_step == 6
    assert [entry["step"] for entry in history(limited, "step", "eval_loss")] == [3, 6]
    trial = classifier(tmp_path)
    lightning_trainer(fast_dev_run=2).fit(trial.module, trial.datamodule)
    assert trial.state.global_step == 2


def test_module_brings_its_own_data(tmp_path):
    one = classifier(tmp_path)
    lightning_trainer(max_epochs=1).fit(one.module)
    other = classifier(tmp_path)
    lightning_trainer(max_epochs=1).fit(other.module, other.datamodule)
    assert torch.equal(weights(one), weights(other))


def test_fit_reads_a_given_loader(tmp_path):
    trainer = classifier(tmp_path)
    loader = DataLoader(ToyDataset(), batch_size=4)
    lightning_trainer(max_epochs=1).fit(trainer.module, loader, DataLoader(ToyDataset(9, seed=1), batch_size=2))
    sequential = {"train_sampling_strategy": "sequential", "num_train_epochs": 1}
    facade = trained(tmp_path / "a", eval_strategy="epoch", **sequential)
    assert history(trainer, "step", "loss") == history(facade, "step", "loss")
    (evaluated,), (expected,) = history(trainer, "eval_loss"), history(facade, "eval_loss")
    assert evaluated["eval_loss"] == pytest.approx(expected["eval_loss"], rel=1e-6)
    with pytest.raises(portico.InputError, match="got a list of loaders to train on; give one loader"):
        lightning_trainer(max_epochs=1).fit(trainer.module, [loader, loader])


def test_fit_without_evaluation_data(tmp_path):
    trainer = classifier(tmp_path, {"eval_dataset": None})
    lightning_trainer(max_epochs=1).fit(trainer.module, trainer.datamodule)
    assert trainer.state.global_step == 8


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"accumulate_grad_batches": 4}, r"accumulate_grad_batches=4\)` cannot .*`gradient_accumulation_steps=1`"),
        ({"gradient_clip_val": 0.5}, r"gradient_clip_val=0.5\)` cannot .*`max_grad_norm=1.0`; leave"),
        ({"reload_dataloaders_every_n_epochs": 1}, "leave it out, and define `set_epoch`"),
    ],
)
def test_setting_that_contradicts_the_arguments_is_refused(options, match, tmp_path):
    trainer = classifier(tmp_path)
    with pytest.raises(portico.InputError, match=match):
        lightning_trainer(max_epochs=1, **options).fit(trainer.module, trainer.datamodule)
    assert trainer.train().global_step == 16, "the trainer is as before"


def test_model_of_a_backend_is_refused(tmp_path):
    trainer = toy_trainer(tmp_path, portico.ORTTrainer, arguments_class=portico.ORTTrainingArguments)
    with pytest.raises(portico.InputError, match=r"`ORTTrainer` runs by ORTStrategy, .* has Single"):
        lightning_trainer(max_epochs=1).fit(trainer.module, trainer.datamodule)


def test_overridden_training_step_is_called(tmp_path):
    class Own(portico.Trainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            loss = self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
            loss.backward()
            return loss.detach()

    runs = [toy_trainer(tmp_path / name, Own, parts={"model": Line()}) for name in "ab"]
    runs[0].train()
    lightning_trainer(max_epochs=2).fit(runs[1].module, runs[1].datamodule)
    assert history(runs[1], "loss") == history(runs[0], "loss")


def test_callbacks_of_hugging_face_get_events_and_may_stop(tmp_path):
    class Watch(TrainerCallback):
        def __init__(self):
            self.events = []

        def on_train_begin(self, *args, **kwargs):
            self.events.append("begin")

        def on_evaluate(self, args, state, control, metrics, **kwargs):
            self.events.append(("evaluated", state.global_step, "eval_loss" in metrics))

        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop = state.global_step == 11

        def on_train_end(self, *args, **kwargs):
            self.events.append("end")

    watch = Watch()
    trainer = classifier(tmp_path, {"callbacks": [watch]}, save_strategy="steps", save_steps=1, eval_strategy="no")
    lightning_trainer(max_epochs=4).fit(trainer.module, trainer.datamodule)
    assert trainer.state.global_step == 11
    assert watch.events == ["begin", ("evaluated", 8, True), ("evaluated", 11, True), "end"]
    assert list(tmp_path.iterdir()) == []


def test_early_stopping_of_lightning_stops(tmp_path):
    trainer = classifier(tmp_path)
    stopping = EarlyStopping("eval_loss", patience=1, min_delta=100.0)
    lightning_trainer(max_epochs=9, callbacks=[stopping]).fit(trainer.module, trainer.datamodule)
    assert trainer.state.global_step == 16


def test_loggers_of_lightning_get_losses_and_metrics(tmp_path):
    trainer = classifier(tmp_path, num_train_epochs=1)
    logger = CSVLogger(tmp_path, name="csv", version="")
    lightning_trainer(max_epochs=1, logger=logger, log_every_n_steps=1).fit(trainer.module, trainer.datamodule)
    with (tmp_path / "csv" / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["loss"]) for row in rows if row["loss"]] == [one["loss"] for one in history(trainer, "loss")]
    assert len([row for row in rows if row["eval_loss"]]) == 1


def test_user_trainer_is_left_as_it_was(tmp_path):
    trainer = classifier(tmp_path, gradient_accumulation_steps=2)
    own = trainer.lightning_trainer
    lightning = lightning_trainer(max_epochs=1)
    before = list(lightning.callbacks)
    lightning.fit(trainer.module, trainer.datamodule)
    assert lightning.callbacks == before
    assert lightning.accumulate_grad_batches == 1
    assert trainer.lightning_trainer is own
    assert not trainer.is_in_train
    assert trainer.train().global_step == 8


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp_spawn", "ddp_fork"])
def test_processes_of_lightning_share_the_data(strategy, tmp_path):
    seen = tmp_path / "seen"
    trainer = toy_trainer(tmp_path, parts={"callbacks": [WritesCounts(str(seen))]}, eval_strategy="no")
    lightning_trainer(max_epochs=1, strategy=strategy, devices=2).fit(trainer.module, trainer.datamodule)
    assert seen.read_text() == "2 3 3"
    assert not torch.equal(trainer.model.linear.weight, Line().linear.weight)


class WritesCounts(TrainerCallback):
    def __init__(self, file):
        self.file = file

    def on_train_end(self, args, state, control, **kwargs):
        if args.process_index == 0:
            steps = sorted({entry["step"] for entry in state.log_history if "loss" in entry})
            Path(self.file).write_text(f"{args.world_size} {state.global_step} {len(steps)}")


# Evaluation ----------------------------------------------------------------------------------------------------------


def test_validate_and_test_return_the_metrics_of_the_trainer(tmp_path):
    metrics = {"accuracy": MulticlassAccuracy(3, average="micro")}
    trainer = classifier(tmp_path, {"compute_metrics": metrics})
    expected = trainer.evaluate()
    lightning = lightning_trainer()
    (validated,) = lightning.validate(trainer.module, trainer.datamodule, verbose=False)
    (tested,) = lightning.test(trainer.module, trainer.datamodule, verbose=False)
    for name in ("loss", "accuracy"):
        assert validated[f"eval_{name}"] == tested[f"test_{name}"] == pytest.approx(expected[f"eval_{name}"])
    (other,) = lightning.test(trainer.module, trainer.get_test_dataloader(ToyDataset(5)), verbose=False)
    assert other["test_loss"] == pytest.approx(trainer.evaluate(ToyDataset(5))["eval_loss"])


def test_compute_metrics_function_sees_all_examples(tmp_path):
    parts = {"compute_metrics": lambda prediction: {"count": len(prediction.predictions)}}
    trainer = classifier(tmp_path, parts)
    (validated,) = lightning_trainer().validate(trainer.module, trainer.datamodule, verbose=False)
    assert validated["eval_count"] == 9


def test_named_sets_are_validated_by_name(tmp_path):
    sets = {"short": ToyDataset(4), "long": ToyDataset(7, seed=2)}
    metrics = {"accuracy": MulticlassAccuracy(3, average="micro")}
    trainer = classifier(tmp_path, {"eval_dataset": sets, "compute_metrics": metrics})
    expected = trainer.evaluate()
    (validated, *_) = lightning_trainer().validate(trainer.module, trainer.datamodule, verbose=False)
    names = [f"eval_{name}_{metric}" for name in sets for metric in ("loss", "accuracy")]
    del sets["long"]
    assert lightning_trainer().validate(trainer.module, trainer.datamodule, verbose=False)[0]["eval_short_loss"]
    assert {name: validated[name] for name in names} == pytest.approx({name: expected[name] for name in names})


def test_predict_returns_the_logits_of_each_batch(tmp_path):
    trainer = classifier(tmp_path)
    expected = trainer.predict(trainer.eval_dataset).predictions
    batches = lightning_trainer().predict(trainer.module, trainer.datamodule)
    assert torch.equal(torch.cat(batches), torch.from_numpy(expected))
    loader = trainer.get_test_dataloader(ToyDataset(5))
    assert sum(map(len, lightning_trainer().predict(trainer.module, loader))) == 5


def test_evaluation_in_a_callback_of_a_plain_run(tmp_path):
    class Evaluates(TrainerCallback):
        trainer = None

        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 2:
                self.trainer.evaluate(metric_key_prefix="mine")

    evaluates = Evaluates()
    evaluates.trainer = trainer = classifier(tmp_path, {"callbacks": [evaluates]})
    lightning_trainer(max_steps=3).fit(trainer.module, trainer.datamodule)
    assert [entry["step"] for entry in history(trainer, "step", "mine_loss")] == [2]


class Exhausted(Line):
    def forward(self, x, labels=None):
        raise StopIteration


def test_only_the_data_end_a_loop(tmp_path):
    trainer, plain = toy_trainer(tmp_path, parts={"model": Exhausted()}), lightning_trainer(max_epochs=1)
    with pytest.raises(RuntimeError, match="StopIteration was raised in a step, a hook or a callback"):
        plain.fit(trainer.module, trainer.datamodule)
    with pytest.raises(RuntimeError, match="StopIteration was raised in a step, a hook or a callback"):
        plain.predict(trainer.module, trainer.datamodule)
    assert "advance" not in vars(plain.fit_loop)


def test_failed_run_can_be_repeated(tmp_path):
    class Fails(TrainerCallback):
        event = "on_step_end"

        def on_step_end(self, args, state, control, **kwargs):
            raise RuntimeError("mine")

        def on_prediction_step(self, args, state, control, **kwargs):
            raise RuntimeError("mine")

    trainer = classifier(tmp_path, {"callbacks": [Fails()]})
    for run in ("fit", "validate"):
        with pytest.raises(RuntimeError, match="mine"):
            getattr(lightning_trainer(max_epochs=1), run)(trainer.module, datamodule=trainer.datamodule)
    trainer.remove_callback(Fails)
    assert not trainer.is_in_train
    lightning_trainer(max_epochs=1).fit(trainer.module, trainer.datamodule)
    assert trainer.evaluate()["eval_loss"] == history(trainer, "eval_loss")[-2]["eval_loss"]


# A sanity check of the facade's own runs -----------------------------------------------------------------------------


def test_sanity_check_changes_nothing(tmp_path):
    class Count(TrainerCallback):
        def __init__(self):
            self.predicted = []

        def on_prediction_step(self, args, state, control, **kwargs):
            self.predicted.append(state.global_step)

    seen = []
    metric = {"compute_metrics": lambda prediction: seen.append(len(prediction.predictions)) or {}}
    count = Count()
    plain = trained(tmp_path / "a", metric)
    checks = {"lightning_kwargs": {"num_sanity_val_steps": 2}, "callbacks": [count]}
    checked = trained(tmp_path / "b", {**metric, **checks})
    assert seen == [4]
    assert count.predicted == []
    assert history(checked, "loss") == history(plain, "loss")
    assert history(checked, "eval_loss") == []


# Checkpoints of Lightning --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("every", [3, 8, 11])
@pytest.mark.parametrize("accumulation", [1, 3])
def test_fit_resumes_from_a_checkpoint_of_lightning(every, accumulation, tmp_path):
    # Steps inside the first epoch, at its end and inside the second.
    step = {3: 1, 8: 3, 11: 4}[every] if accumulation == 3 else every

    def run(folder, **options):
        model = tiny_bert()
        if every == 8:
            # At the end of an epoch the checkpoint comes before a validation, which Lightning does not repeat.
            for module in model.modules():
                module.p = 0.0
        trainer = classifier(folder / "out", {"model": model}, gradient_accumulation_steps=accumulation)
        keeper = ModelCheckpoint(folder, filename="{step}", every_n_train_steps=step, save_top_k=-1)
        lightning = lightning_trainer(max_epochs=2, enable_checkpointing=True, callbacks=[keeper])
        lightning.fit(trainer.module, trainer.datamodule, **options)
        return trainer

    whole = run(tmp_path / "whole")
    resumed = run(tmp_path / "resumed", ckpt_path=tmp_path / "whole" / f"step={step}.ckpt")
    assert history(resumed, "step", "epoch", "loss") == history(whole, "step", "epoch", "loss")
    assert torch.equal(weights(resumed), weights(whole))


def test_fit_resumes_a_run_of_the_facade(tmp_path):
    keeper = ModelCheckpoint(tmp_path / "kept", filename="{step}", every_n_train_steps=5, save_top_k=-1)
    whole = trained(tmp_path / "a", {"lightning_callbacks": [keeper]})
    resumed = classifier(tmp_path / "b", {"eval_dataset": None})
    lightning_trainer(max_epochs=2).fit(
        resumed.module, resumed.datamodule, ckpt_path=tmp_path / "kept" / "step=5.ckpt"
    )
    assert torch.equal(weights(resumed), weights(whole))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return a trained classifier and the path of its checkpoint, which a plain Lightning run wrote."""
    folder = tmp_path_factory.mktemp("saved")
    trainer = classifier(folder)
    keeper = ModelCheckpoint(folder, filename="last")
    lightning = lightning_trainer(max_steps=3, enable_checkpointing=True, callbacks=[keeper])
    lightning.fit(trainer.module, trainer.datamodule)
    return trainer, folder / "last.ckpt"


def test_checkpoint_is_loaded_into_a_trainer(saved, tmp_path):
    trained, path = saved
    trainer = classifier(tmp_path)
    module = TrainerModule.load_from_checkpoint(path, trainer=trainer)
    assert module.model is trainer.model
    assert trainer.evaluate()["eval_loss"] == trained.evaluate()["eval_loss"]
    (validated,) = lightning_trainer().validate(module, trainer.datamodule, verbose=False)
    assert validated["eval_loss"] == pytest.approx(trained.evaluate()["eval_loss"])
    (tested,) = lightning_trainer().test(trainer.module, trainer.datamodule, ckpt_path=path, verbose=False)
    assert tested["test_loss"] == validated["eval_loss"]


@pytest.mark.parametrize("weights_only", [None, True])
def test_checkpoint_of_a_transformers_model_is_loaded_alone(weights_only, saved):
    trained, path = saved
    module = TrainerModule.load_from_checkpoint(path, weights_only=weights_only)
    inputs = {"input_ids": ToyDataset(4).tokens}
    assert type(module.model) is type(trained.model)
    assert torch.equal(module.eval()(**inputs).logits, trained.model.eval()(**inputs).logits)
    with pytest.raises(portico.InputError, match=r"loaded without a trainer, .*load_from_checkpoint"):
        lightning_trainer().validate(module, DataLoader(ToyDataset(4)))


def test_checkpoint_of_another_model_needs_the_model(tmp_path):
    trainer = toy_trainer(tmp_path)
    lightning = lightning_trainer(max_steps=1)
    lightning.fit(trainer.module, trainer.datamodule)
    lightning.save_checkpoint(tmp_path / "line.ckpt")
    module = TrainerModule.load_from_checkpoint(tmp_path / "line.ckpt", model=Line())
    assert torch.equal(module.model.linear.weight, trainer.model.linear.weight)
    with pytest.raises(portico.InputError, match=r"not one of transformers; make it, and give it to .*model=model"):
        TrainerModule.load_from_checkpoint(tmp_path / "line.ckpt")


def test_data_without_a_run_is_refused(tmp_path):
    with pytest.raises(
        portico.InputError, match=r"call `lightning.Trainer.fit\(trainer.module, trainer.datamodule\)`"
    ):
        toy_trainer(tmp_path).datamodule.train_dataloader()


# Every callback of Lightning -----------------------------------------------------------------------------------------


class TwoLines(Line):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(3, 3)

    def forward(self, x, labels=None):
        return super().forward(self.body(x), labels)


class Plain(pl.LightningModule):
    """What ``trainer.module`` computes, without portico."""

    def __init__(self):
        super().__init__()
        self.model = TwoLines()

    def training_step(self, batch, batch_idx):
        return self.model(**batch)["loss"]

    def validation_step(self, batch, batch_idx):
        self.log("eval_loss", self.model(**batch)["loss"])

    def test_step(self, batch, batch_idx):
        pass

    def configure_optimizers(self):
        return torch.optim.SGD([one for one in self.parameters() if one.requires_grad], lr=0.05)


class Later(of_lightning.BaseFinetuning):
    def freeze_before_training(self, pl_module):
        self.freeze(pl_module.model.body)

    def finetune_function(self, pl_module, epoch, optimizer):
        if epoch == 1:
            self.unfreeze_and_add_param_group(pl_module.model.body, optimizer, lr=0.02)


class KeepsPredictions(of_lightning.BasePredictionWriter):
    def write_on_batch_end(self, *args):
        pass


WITH_MODULE = {
    "BaseFinetuning": lambda folder: Later(),
    "BasePredictionWriter": lambda folder: KeepsPredictions("batch"),
    "Callback": lambda folder: of_lightning.Callback(),
    "Checkpoint": lambda folder: of_lightning.Checkpoint(),
    "DeviceStatsMonitor": lambda folder: of_lightning.DeviceStatsMonitor(cpu_stats=True),
    "EMAWeightAveraging": lambda folder: of_lightning.EMAWeightAveraging(decay=0.5),
    "EarlyStopping": lambda folder: of_lightning.EarlyStopping("eval_loss", min_delta=100.0, patience=1),
    "LambdaCallback": lambda folder: of_lightning.LambdaCallback(on_train_start=lambda *args: None),
    "LearningRateMonitor": lambda folder: of_lightning.LearningRateMonitor(),
    "ModelCheckpoint": lambda folder: ModelCheckpoint(folder, monitor="eval_loss"),
    "ModelPruning": lambda folder: of_lightning.ModelPruning(
        "l1_unstructured", amount=0.4, use_global_unstructured=True
    ),
    "ModelSummary": lambda folder: of_lightning.ModelSummary(),
    "OnExceptionCheckpoint": lambda folder: of_lightning.OnExceptionCheckpoint(folder),
    "ProgressBar": lambda folder: of_lightning.ProgressBar(),
    "RichModelSummary": lambda folder: of_lightning.RichModelSummary(),
    "RichProgressBar": lambda folder: of_lightning.RichProgressBar(),
    "SpikeDetection": lambda folder: of_lightning.SpikeDetection(exclude_batches_path=folder, atol=1e9, rtol=1e9),
    "StochasticWeightAveraging": lambda folder: of_lightning.StochasticWeightAveraging(
        1e-3, swa_epoch_start=1, annealing_epochs=2
    ),
    "TQDMProgressBar": lambda folder: of_lightning.TQDMProgressBar(),
    "ThroughputMonitor": lambda folder: of_lightning.ThroughputMonitor(lambda batch: len(batch["x"]), window_size=2),
    "Timer": lambda folder: of_lightning.Timer("00:00:10:00"),
    "WeightAveraging": lambda folder: of_lightning.WeightAveraging(),
}
REFUSED = {
    "BackboneFinetuning": lambda: of_lightning.BackboneFinetuning(),
    "BatchSizeFinder": lambda: of_lightning.BatchSizeFinder(),
    "GradientAccumulationScheduler": lambda: of_lightning.GradientAccumulationScheduler({1: 2}),
    "LearningRateFinder": lambda: of_lightning.LearningRateFinder(),
}
# `lightning_callbacks` refuses these two too: the first anneals the rate of the schedule, the second saves as
# `save_strategy` does.
NOT_WITH_FACADE = ("OnExceptionCheckpoint", "StochasticWeightAveraging")
WITH_FACADE = {name: make for name, make in WITH_MODULE.items() if name not in NOT_WITH_FACADE}


def plain_arguments():
    """Return arguments under which ``trainer.module`` trains as ``Plain`` does."""
    return {"optim": "sgd", "learning_rate": 0.05, "lr_scheduler_type": "constant", "max_grad_norm": 0.0}


def fitted(module, callback, folder, *data):
    logger = CSVLogger(folder, name="", version="")
    options = {"logger": logger, "num_sanity_val_steps": 0, "log_every_n_steps": 2, "enable_checkpointing": True}
    options["enable_progress_bar"] = isinstance(callback, of_lightning.ProgressBar)
    plain = lightning_trainer(max_epochs=4, callbacks=[callback], **options)
    plain.fit(module, *data)
    logged = Path(folder, "metrics.csv")
    names = set(logged.read_text().splitlines()[0].split(",")) if logged.is_file() else set()
    files = sorted(path.name for path in folder.glob("*.ckpt"))
    return plain, {name: value.tolist() for name, value in module.model.state_dict().items()}, names, files


def guide_rows(head):
    """Return the cells of the guide's table whose head row begins with ``head``."""
    guide = (Path(__file__).parents[3] / "docs/guides/from_lightning.md").read_text()
    table = guide.split(f"| {head} |")[1].split("\n\n")[0]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()[2:]]


def test_guide_says_what_becomes_of_every_callback_of_lightning():
    assert sorted(of_lightning.__all__) == sorted([*WITH_MODULE, *REFUSED])
    rows = {name.strip("`"): (facade, own) for name, facade, own in guide_rows("Callback")}
    assert sorted(rows) == sorted(of_lightning.__all__)
    assert {name for name, (facade, _) in rows.items() if facade.startswith("works")} == {*WITH_FACADE}
    assert {name for name, (facade, _) in rows.items() if facade.startswith("refused")} == {*REFUSED, *NOT_WITH_FACADE}
    assert {name for name, (_, own) in rows.items() if own.startswith("works")} == {*WITH_MODULE}
    assert {name for name, (_, own) in rows.items() if own.startswith("refused")} == {*REFUSED}


ADVICE_OF_CALLBACKS = pytest.mark.filterwarnings(
    "ignore:SWA is currently only supported every epoch",
    "ignore:.*lr_scheduler.step:UserWarning",
    r"ignore:`.fit\(ckpt_path=None\)` was called without a model",
    'ignore:.fit\\(ckpt_path="last"\\) is set',
    "ignore:When using the `ThroughputMonitor`",
)


@ADVICE_OF_CALLBACKS
@pytest.mark.parametrize("name", sorted(WITH_MODULE))
def test_callback_works_with_the_module_as_with_a_plain_one(name, tmp_path):
    train, dev = DataLoader(Points(), 2), DataLoader(Points(6, seed=1), 2)
    folders = tmp_path / "plain", tmp_path / "module"
    expected = fitted(Plain(), WITH_MODULE[name](folders[0]), folders[0], train, dev)
    parts = {"model": TwoLines(), "train_dataset": train, "eval_dataset": dev}
    trainer = toy_trainer(tmp_path, parts=parts, logging_strategy="no", **plain_arguments())
    runner, weights, logged, files = fitted(
        trainer.module, WITH_MODULE[name](folders[1]), folders[1], trainer.datamodule
    )
    assert weights == expected[1]
    assert files == expected[3]
    # Names of groups differ in a `LearningRateMonitor`: there are two, with and without weight decay.
    assert {one.split("/")[0] for one in expected[2]} <= {one.split("/")[0] for one in logged}
    assert runner.global_step == expected[0].global_step
    assert runner.current_epoch == expected[0].current_epoch


@ADVICE_OF_CALLBACKS
@pytest.mark.parametrize("name", sorted(WITH_FACADE))
def test_callback_works_in_the_facade_as_in_lightning(name, tmp_path):
    train, dev = DataLoader(Points(), 2), DataLoader(Points(6, seed=1), 2)
    folders = tmp_path / "plain", tmp_path / "facade"
    plain, expected, logged, files = fitted(Plain(), WITH_FACADE[name](folders[0]), folders[0], train, dev)
    parts = {"model": TwoLines(), "train_dataset": train, "eval_dataset": dev}
    parts |= {
        "lightning_callbacks": [WITH_FACADE[name](folders[1])],
        "loggers": [CSVLogger(folders[1], name="", version="")],
    }
    when = {"num_train_epochs": 4, "logging_steps": 2, "eval_strategy": "epoch", "save_strategy": "no"}
    trainer = toy_trainer(tmp_path / "out", parts=parts, **when, **plain_arguments())
    trainer.train()
    assert {key: value.tolist() for key, value in trainer.model.state_dict().items()} == expected
    assert sorted(path.name for path in folders[1].glob("*.ckpt")) == files
    columns = (folders[1] / "metrics.csv").read_text().splitlines()[0].split(",")
    assert {column.split("/")[0] for column in logged} <= {column.split("/")[0] for column in columns}
    assert trainer.state.global_step == plain.global_step


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_callback_that_would_do_something_else_is_refused(name, tmp_path):
    trainer, runner = toy_trainer(tmp_path), lightning_trainer(max_epochs=1, callbacks=[REFUSED[name]()])
    match = f"`lightning.Trainer` has a {name}, which cannot be used with `trainer.module`; leave it out: "
    with pytest.raises(portico.InputError, match=match):
        runner.fit(trainer.module, trainer.datamodule)


def test_tuner_is_refused(tmp_path):
    trainer = toy_trainer(tmp_path)
    with pytest.raises(portico.InputError, match=r"give `portico.callbacks.LearningRateFinder` to the trainer"):
        Tuner(lightning_trainer(max_epochs=1)).lr_find(trainer.module, trainer.datamodule)


def test_averages_of_batch_normalization_are_refused(tmp_path):
    class Normed(Line):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.BatchNorm1d(3)

    trainer = toy_trainer(tmp_path, parts={"model": Normed()})
    runner = lightning_trainer(max_epochs=2, callbacks=[of_lightning.StochasticWeightAveraging(0.1)])
    with pytest.raises(portico.InputError, match="for batch normalization it adds an epoch"):
        runner.fit(trainer.module, trainer.datamodule)


def test_files_are_named_after_the_epoch_of_lightning(tmp_path):
    trainer = toy_trainer(tmp_path, logging_steps=2)
    saves = ModelCheckpoint(tmp_path, save_top_k=-1, every_n_train_steps=5)
    lightning_trainer(max_epochs=2, callbacks=[saves], enable_checkpointing=True).fit(
        trainer.module, trainer.datamodule
    )
    assert sorted(path.name for path in tmp_path.glob("*.ckpt")) == ["epoch=0-step=5.ckpt", "epoch=1-step=10.ckpt"]
