"""Arguments of ``lightning.Trainer`` and Lightning's own callbacks in a run."""

import csv
import inspect
import os
import pickle
import re

import lightning.pytorch as pl
import pytest
import torch
import transformers
from lightning.pytorch import callbacks as of_lightning
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.profilers import SimpleProfiler
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch.utils.data import DataLoader
from torchmetrics import MeanSquaredError
from transformers import ProgressCallback, TrainerCallback

import portico
from models import Line, Points, PointStream, toy_trainer
from portico.loop.validation import PASSED_ON, SAID_ELSEWHERE


def with_kwargs(output_dir, parts=None, changes=None, **kwargs):
    return toy_trainer(output_dir, parts={**(parts or {}), "lightning_kwargs": kwargs}, **(changes or {}))


def history(trainer, key):
    return {entry["step"]: entry[key] for entry in trainer.state.log_history if key in entry}


# Every argument ------------------------------------------------------------------------------------------------------

EVERY_ARGUMENT = [name for name in inspect.signature(pl.Trainer.__init__).parameters if name != "self"]


@pytest.mark.parametrize("name", EVERY_ARGUMENT)
def test_every_argument_is_passed_on_or_refused_with_what_says_it(name, tmp_path):
    assert (name in PASSED_ON) != (name in SAID_ELSEWHERE)
    if name in SAID_ELSEWHERE:
        match = rf"`lightning_kwargs` sets `{name}`, which the trainer decides; leave it out: \S.*\.$"
        with pytest.raises(portico.InputError, match=match):
            with_kwargs(tmp_path, **{name: None})


def test_arguments_named_instead_exist():
    constructor = inspect.signature(portico.Trainer).parameters
    for instead in SAID_ELSEWHERE.values():
        for owner, names in re.findall(r"`(Trainer|TrainingArguments)\((.*?)\)`", instead):
            for name in re.findall(r"(\w+)=", names):
                assert name in (constructor if owner == "Trainer" else vars(portico.TrainingArguments("x"))), name


def test_unknown_argument_is_refused(tmp_path):
    with pytest.raises(portico.InputError, match=r"sets `limit_batches`, which `lightning.Trainer` does not have"):
        with_kwargs(tmp_path, limit_batches=3)
    with pytest.raises(TypeError, match="`lightning_kwargs` is a list; give a dict"):
        toy_trainer(tmp_path, parts={"lightning_kwargs": ["fast_dev_run"]})


VALUES = {
    "fast_dev_run": (3, lambda trainer: trainer.fast_dev_run == 3),
    "limit_train_batches": (2, lambda trainer: trainer.limit_train_batches == trainer.num_training_batches == 2),
    "limit_val_batches": (0.5, lambda trainer: trainer.limit_val_batches == 0.5),
    "limit_test_batches": (2, lambda trainer: trainer.limit_test_batches == 2),
    "limit_predict_batches": (2, lambda trainer: trainer.limit_test_batches == 2),
    "overfit_batches": (2, lambda trainer: trainer.overfit_batches == 2),
    "max_time": ("00:00:10:00", lambda trainer: any(isinstance(c, of_lightning.Timer) for c in trainer.callbacks)),
    "num_sanity_val_steps": (1, lambda trainer: trainer.num_sanity_val_steps == 1),
    "enable_model_summary": (
        True,
        lambda trainer: any(isinstance(one, of_lightning.ModelSummary) for one in trainer.callbacks),
    ),
    "profiler": ("simple", lambda trainer: "TrainerModule.configure_optimizers" in trainer.profiler.summary()),
    "detect_anomaly": (True, lambda trainer: trainer._detect_anomaly),
    "deterministic": (False, lambda trainer: not torch.are_deterministic_algorithms_enabled()),
    "benchmark": (False, lambda trainer: not torch.backends.cudnn.benchmark),
    "sync_batchnorm": (False, lambda trainer: True),
    "enable_autolog_hparams": (False, lambda trainer: not trainer.enable_autolog_hparams),
}


@pytest.mark.parametrize("name", PASSED_ON)
def test_passed_argument_reaches_lightning(name, tmp_path):
    value, holds = VALUES[name]
    trainer = with_kwargs(tmp_path, changes={"eval_strategy": "epoch"}, **{name: value})
    trainer.train()
    assert holds(trainer.lightning_trainer)


# Limits --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [3, 0.6])
def test_limited_training_counts_an_epoch_of_fewer_batches(limit, tmp_path):
    changes = {"gradient_accumulation_steps": 2, "save_strategy": "epoch"}
    trainer = with_kwargs(tmp_path, changes=changes, limit_train_batches=limit)
    output = trainer.train()
    assert output.global_step == trainer.state.max_steps == 4
    assert [entry["epoch"] for entry in trainer.state.log_history if "loss" in entry] == [
        pytest.approx(2 / 3),
        1.0,
        pytest.approx(1 + 2 / 3),
        2.0,
    ]
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == ["checkpoint-2", "checkpoint-4"]
    assert trainer.lightning_trainer.global_step == 4


def test_limited_training_takes_the_first_batches_of_each_epoch(tmp_path):
    whole, limited = toy_trainer(tmp_path / "a"), with_kwargs(tmp_path / "b", limit_train_batches=3)
    for trainer in (whole, limited):
        trainer.args.lr_scheduler_type = transformers.SchedulerType.CONSTANT
        trainer.train()
    assert [history(whole, "loss")[step] for step in (1, 2, 3)] == [
        history(limited, "loss")[step] for step in (1, 2, 3)
    ]
    assert history(limited, "epoch")[6] == 2.0


def test_limited_training_resumes_in_the_middle_of_an_epoch(tmp_path):
    changes = {"save_strategy": "steps", "save_steps": 1}
    whole = with_kwargs(tmp_path, changes=changes, limit_train_batches=3)
    whole.train()
    resumed = with_kwargs(tmp_path / "resumed", changes=changes, limit_train_batches=3)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert torch.equal(resumed.model.linear.weight, whole.model.linear.weight)
    assert resumed.state.global_step == 6


def test_stream_can_be_limited_by_a_number(tmp_path):
    trainer = with_kwargs(tmp_path, {"train_dataset": PointStream()}, {"max_steps": 5}, limit_train_batches=2)
    assert trainer.train().global_step == 5
    assert trainer.state.epoch == 2.5
    trainer = with_kwargs(tmp_path, {"train_dataset": PointStream()}, {"max_steps": 5}, limit_train_batches=0.5)
    with pytest.raises(portico.InputError, match=r"`limit_train_batches=0\.5` is a part of data that have no length"):
        trainer.train()


@pytest.mark.parametrize("limit", [2, 0.7])
@pytest.mark.parametrize("changes", [{}, {"eval_do_concat_batches": False}])
def test_limited_evaluation_has_the_metrics_of_its_batches(limit, changes, tmp_path):
    def mean_error(prediction):
        if isinstance(prediction.predictions, list):
            return {"count": sum(map(len, prediction.predictions))}
        return {"count": len(prediction.predictions)}

    parts = {"compute_metrics": mean_error}
    limited = with_kwargs(tmp_path, parts, {"eval_strategy": "epoch", **changes}, limit_val_batches=limit)
    whole = toy_trainer(tmp_path).evaluate()
    result = limited.evaluate()
    assert result["eval_count"] == 4
    first = toy_trainer(tmp_path).evaluate(torch.utils.data.Subset(Points(6, seed=1), range(4)))
    assert result["eval_loss"] == first["eval_loss"] != whole["eval_loss"]
    limited.train()
    assert limited.state.log_history[-2]["eval_count"] == 4


def test_limited_evaluation_feeds_batched_metrics(tmp_path):
    seen = []

    def metric(prediction, compute_result):
        seen.append(compute_result)
        return {"number": len(seen)} if compute_result else {}

    changes = {"batch_eval_metrics": True}
    assert (
        with_kwargs(tmp_path, {"compute_metrics": metric}, changes, limit_val_batches=2).evaluate()["eval_number"] == 2
    )
    assert seen == [False, True]
    parts = {"compute_metrics": {"mse": MeanSquaredError()}}
    result = with_kwargs(tmp_path, parts, limit_val_batches=2).evaluate()
    assert result["eval_mse"] == pytest.approx(result["eval_loss"])


def test_limited_prediction(tmp_path):
    assert len(with_kwargs(tmp_path, limit_predict_batches=2).predict(Points(6)).predictions) == 4
    assert len(with_kwargs(tmp_path, limit_test_batches=1).predict(Points(6)).predictions) == 2
    with pytest.raises(portico.InputError, match="both limit `predict`"):
        with_kwargs(tmp_path, limit_predict_batches=2, limit_test_batches=1)


@pytest.mark.parametrize("name", ["limit_train_batches", "limit_val_batches", "limit_test_batches"])
def test_limit_that_leaves_nothing_is_refused(name, tmp_path):
    trainer = with_kwargs(tmp_path, **{name: 0.01})
    run = {"limit_train_batches": trainer.train, "limit_val_batches": trainer.evaluate}
    with pytest.raises(portico.InputError, match=f"`{name}=0.01` leaves none of"):
        run.get(name, lambda: trainer.predict(Points(4)))()


def test_overfitting_repeats_the_first_batches_in_order(tmp_path):
    class Seen(Points):
        def __init__(self):
            super().__init__()
            self.indices = []

        def __getitem__(self, index):
            self.indices.append(index)
            return super().__getitem__(index)

    data = Seen()
    trainer = with_kwargs(tmp_path, {"train_dataset": data}, {"eval_strategy": "epoch"}, overfit_batches=2)
    trainer.train()
    assert trainer.state.global_step == 4
    assert data.indices[:4] == data.indices[6:10] == [0, 1, 2, 3]
    assert trainer.evaluate()["eval_samples_per_second"] > 0


# A run of a few batches ----------------------------------------------------------------------------------------------

EVERYTHING = {
    "save_strategy": "best",
    "eval_strategy": "steps",
    "eval_steps": 1,
    "metric_for_best_model": "loss",
    "load_best_model_at_end": True,
}


@pytest.mark.parametrize("batches", [True, 3])
def test_fast_dev_run_trains_and_evaluates_once_and_writes_nothing(batches, tmp_path):
    logger = CSVLogger(tmp_path / "csv")
    keeper = of_lightning.ModelCheckpoint(tmp_path / "kept", every_n_train_steps=1, save_top_k=-1)
    parts = {"loggers": [logger], "lightning_callbacks": [keeper]}
    trainer = with_kwargs(tmp_path / "out", parts, EVERYTHING, fast_dev_run=batches)
    output = trainer.train()
    assert output.global_step == trainer.state.max_steps == int(batches)
    assert list(history(trainer, "eval_loss")) == [int(batches)]
    assert trainer.predict(Points(8)).predictions.shape[0] == 2 * int(batches)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert list((tmp_path / "out").iterdir()) == []


def test_fast_dev_run_evaluates_without_a_strategy_and_closes_its_window(tmp_path):
    changes = {"gradient_accumulation_steps": 4, "report_to": "tensorboard"}
    trainer = with_kwargs(tmp_path, changes=changes, fast_dev_run=2)
    assert trainer.train().global_step == 1
    assert "eval_loss" in trainer.state.log_history[1]
    assert not any("TensorBoard" in type(one).__name__ for one in trainer.callback_handler.callbacks)


def test_fast_dev_run_cannot_resume(tmp_path):
    toy_trainer(tmp_path, save_strategy="steps", save_steps=2).train()
    with pytest.raises(portico.InputError, match="`fast_dev_run` runs only the first steps"):
        with_kwargs(tmp_path, fast_dev_run=True).train(resume_from_checkpoint=True)


# What Lightning measures and checks ----------------------------------------------------------------------------------


def test_profiler_measures_a_run(tmp_path, caplog):
    profiler = SimpleProfiler(dirpath=tmp_path, filename="profile")
    with_kwargs(tmp_path, profiler=profiler).train()
    (report,) = tmp_path.glob("*profile*.txt")
    assert "TrainerModule.optimizer_step" in report.read_text()


def test_anomaly_is_detected(tmp_path):
    class Breaks(Line):
        def forward(self, x, labels=None):
            outputs = super().forward(x, labels)
            return {**outputs, "loss": (outputs["loss"] * 0).sqrt()}

    parts = {"model": Breaks()}
    toy_trainer(tmp_path, parts=parts, max_steps=1).train()
    with pytest.warns(UserWarning, match="Error detected in"), pytest.raises(RuntimeError, match="nan values"):
        with_kwargs(tmp_path, {"model": Breaks()}, {"max_steps": 1}, detect_anomaly=True).train()


def test_run_ends_after_max_time(tmp_path):
    trainer = with_kwargs(tmp_path, changes={"num_train_epochs": 50}, max_time={"seconds": 0})
    assert trainer.train().global_step < 250
    assert trainer.lightning_trainer.should_stop


# Progress bars -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bar", [of_lightning.TQDMProgressBar, of_lightning.RichProgressBar])
def test_progress_bar_of_lightning_is_the_only_one(bar, tmp_path, capsys):
    shown = {}

    class Watched(bar):
        def on_train_end(self, trainer, pl_module):
            shown.update(self.get_metrics(trainer, pl_module))
            super().on_train_end(trainer, pl_module)

    trainer = toy_trainer(
        tmp_path, parts={"lightning_callbacks": [Watched()]}, disable_tqdm=False, eval_strategy="epoch"
    )
    assert not any(isinstance(one, ProgressCallback) for one in trainer.callback_handler.callbacks)
    trainer.train()
    trainer.evaluate()
    assert shown["loss"] == history(trainer, "loss")[10]
    assert {"eval_loss", "learning_rate"} <= shown.keys()
    assert "eval_runtime" not in shown
    captured = capsys.readouterr()
    assert "Epoch 1" in captured.out + captured.err


def test_progress_bar_of_transformers_stays_without_another(tmp_path):
    handler = toy_trainer(tmp_path, disable_tqdm=False).callback_handler
    assert any(isinstance(one, ProgressCallback) for one in handler.callbacks)


# Callbacks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("callback", "match"),
    [
        (of_lightning.GradientAccumulationScheduler({0: 2}), "set `gradient_accumulation_steps`"),
        (of_lightning.StochasticWeightAveraging(0.1), "replaces the learning rate schedule; use .*`WeightAveraging`"),
        (of_lightning.BatchSizeFinder(), "use `portico.callbacks.BatchSizeFinder`"),
        (of_lightning.LearningRateFinder(), "use `portico.callbacks.LearningRateFinder`"),
        (of_lightning.BackboneFinetuning(), "adds parameters that the schedule does not know"),
        (of_lightning.OnExceptionCheckpoint("x"), "set `save_strategy`, and resume with"),
    ],
)
def test_callback_that_contradicts_the_arguments_is_refused(callback, match, tmp_path):
    held = rf"`lightning_callbacks` holds a {type(callback).__name__}[,;] "
    with pytest.raises(portico.InputError, match=f"{held}.*{match}"):
        toy_trainer(tmp_path, parts={"lightning_callbacks": [callback]})


class Forwarding:
    """An object with the methods of another one, and of no class of Lightning's."""

    def __init__(self, target):
        self.target = target

    def __getattr__(self, name):
        return getattr(self.target, name)


def test_callbacks_and_loggers_of_any_class(tmp_path):
    logger = CSVLogger(tmp_path, name="csv", version="")
    callback = of_lightning.LambdaCallback(on_train_end=lambda trainer, module: logger.log_hyperparams({"ended": 1}))
    parts = {"lightning_callbacks": [Forwarding(callback)], "loggers": [Forwarding(logger)]}
    toy_trainer(tmp_path, parts=parts, max_steps=1).train()
    assert "ended: 1" in (tmp_path / "csv" / "hparams.yaml").read_text()


def test_monitor_without_logger(tmp_path):
    trainer = toy_trainer(tmp_path, parts={"lightning_callbacks": [of_lightning.LearningRateMonitor()]})
    trainer.evaluate()
    with pytest.raises(MisconfigurationException, match="Cannot use `LearningRateMonitor`"):  # Lightning's own
        trainer.train()


def test_monitors_log_as_often_as_the_trainer(tmp_path):
    logger = CSVLogger(tmp_path, name="csv", version="")
    monitors = [of_lightning.LearningRateMonitor(), of_lightning.DeviceStatsMonitor(cpu_stats=False)]
    parts = {"lightning_callbacks": monitors, "loggers": [logger]}
    trainer = toy_trainer(tmp_path, parts=parts, logging_steps=5)
    trainer.train()
    with (tmp_path / "csv" / "metrics.csv").open() as file:
        rates = [float(row["lr-AdamW/pg1"]) for row in csv.DictReader(file) if row["lr-AdamW/pg1"]]
    assert rates == list(history(trainer, "learning_rate").values())


@pytest.mark.parametrize("callback", [of_lightning.WeightAveraging, of_lightning.EMAWeightAveraging])
def test_weight_averages_are_evaluated_and_kept(callback, tmp_path):
    plain = toy_trainer(tmp_path / "a", eval_strategy="epoch")
    trainer = toy_trainer(tmp_path / "b", parts={"lightning_callbacks": [callback()]}, eval_strategy="epoch")
    for one in (plain, trainer):
        one.train()
    assert history(trainer, "loss") == history(plain, "loss")
    assert not torch.equal(trainer.model.linear.weight, plain.model.linear.weight)
    assert trainer.evaluate()["eval_loss"] == history(trainer, "eval_loss")[10]


@pytest.mark.parametrize(
    "callback",
    [
        of_lightning.ModelSummary(),
        of_lightning.Timer("00:00:10:00"),
        of_lightning.ModelPruning("l1_unstructured", amount=0.0),
        of_lightning.LambdaCallback(on_train_start=lambda trainer, module: None),
    ],
    ids=lambda callback: type(callback).__name__,
)
def test_callback_leaves_the_run_as_it_is(callback, tmp_path):
    plain = toy_trainer(tmp_path / "a", eval_strategy="epoch")
    trainer = toy_trainer(tmp_path / "b", parts={"lightning_callbacks": [callback]}, eval_strategy="epoch")
    for one in (plain, trainer):
        one.train()
    assert history(trainer, "loss") == history(plain, "loss")
    assert history(trainer, "eval_loss") == history(plain, "eval_loss")


def test_timer_ends_the_run(tmp_path):
    timer = of_lightning.Timer(duration={"seconds": 0})
    trainer = toy_trainer(tmp_path, parts={"lightning_callbacks": [timer]})
    assert trainer.train().global_step < 10


# States of callbacks in checkpoints ----------------------------------------------------------------------------------


def averaged(folder, callbacks=(), averages=True, every=3, **changes):
    """Return a trainer that evaluates and saves every 3 steps, with averages of weights."""
    callbacks = [*callbacks, *([of_lightning.EMAWeightAveraging(decay=0.5)] if averages else [])]
    often = {"eval_strategy": "steps", "eval_steps": every, "save_strategy": "steps", "save_steps": every}
    return toy_trainer(folder, parts={"lightning_callbacks": callbacks}, **often, **changes)


def test_what_is_measured_is_saved_restored_and_returned(tmp_path):
    trainer = averaged(tmp_path)
    trainer.train()
    for step in (3, 6, 9):
        other = toy_trainer(tmp_path / "other")
        other._load_from_checkpoint(str(tmp_path / f"checkpoint-{step}"))
        assert other.evaluate()["eval_loss"] == history(trainer, "eval_loss")[step]
        resumed = averaged(tmp_path / f"resumed-{step}")
        resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
        assert torch.equal(resumed.model.linear.weight, trainer.model.linear.weight)
        assert history(resumed, "loss") == history(trainer, "loss")
        assert history(resumed, "eval_loss") == history(trainer, "eval_loss")
    weight = trainer.model.linear.weight.clone()
    assert trainer.evaluate()["eval_loss"] == trainer.predict(trainer.eval_dataset).metrics["test_loss"]
    assert torch.equal(trainer.model.linear.weight, weight)


def test_averages_of_the_best_checkpoint_are_returned(tmp_path):
    trainer = averaged(tmp_path, load_best_model_at_end=True, learning_rate=2.0, num_train_epochs=3)
    trainer.train()
    assert trainer.state.best_global_step != 15
    assert trainer.evaluate()["eval_loss"] == trainer.state.best_metric
    assert trainer.predict(trainer.eval_dataset).metrics["test_loss"] == trainer.state.best_metric


def test_run_that_is_over_returns_the_averages(tmp_path):
    trainer = averaged(tmp_path, every=5)
    trainer.train()
    resumed = averaged(tmp_path, every=5)
    resumed.train(resume_from_checkpoint=True)
    assert torch.equal(resumed.model.linear.weight, trainer.model.linear.weight)


class EvaluatesInside(TrainerCallback):
    """Evaluates inside an evaluation, predicts, saves, and fails in an evaluation, all in the middle of a run."""

    def __init__(self):
        self.losses = []
        self.is_inside = False

    def on_prediction_step(self, args, state, control, **kwargs):
        if not self.is_inside:
            self.is_inside = True
            self.losses.append(self.trainer.evaluate()["eval_loss"])
            self.losses.append(self.trainer.predict(self.trainer.eval_dataset).metrics["test_loss"])
            self.is_inside = False

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 7:
            self.is_inside = True
            self.at_7 = self.trainer.predict(self.trainer.eval_dataset).metrics["test_loss"]
            assert self.trainer.evaluate()["eval_loss"] == self.at_7
            self.trainer.save_model(f"{args.output_dir}/saved")
            self.trainer.compute_metrics = lambda prediction: 1 / 0
            with pytest.raises(ZeroDivisionError):
                self.trainer.evaluate()
            self.trainer.compute_metrics = None
            self.is_inside = False


def test_evaluations_inside_a_run_measure_the_averages(tmp_path):
    plain = averaged(tmp_path / "plain")
    plain.train()
    inside = EvaluatesInside()
    trainer = averaged(tmp_path)
    inside.trainer = trainer
    trainer.add_callback(inside)
    trainer.train()
    at_3 = history(plain, "eval_loss")[3]
    assert inside.losses[:2] == [at_3, at_3]
    saved = toy_trainer(tmp_path / "other")
    saved._load_from_checkpoint(str(tmp_path / "saved"))
    assert saved.evaluate()["eval_loss"] == inside.at_7
    assert torch.equal(trainer.model.linear.weight, plain.model.linear.weight)


def test_second_run_averages_again(tmp_path):
    trainer = averaged(tmp_path)
    trainer.train()
    other = averaged(tmp_path / "other")
    other.model.load_state_dict(trainer.model.state_dict())
    other.optimizer = torch.optim.AdamW(other.model.parameters(), lr=0.1)
    trainer.optimizer = torch.optim.AdamW(trainer.model.parameters(), lr=0.1)
    trainer.train()
    other.train()
    assert torch.equal(trainer.model.linear.weight, other.model.linear.weight)


class CountsSteps(of_lightning.Callback):
    def __init__(self):
        self.num_steps, self.loaded = 0, None

    def on_train_batch_end(self, *args):
        self.num_steps += 1

    def state_dict(self):
        return {"num_steps": self.num_steps}

    def load_state_dict(self, state_dict):
        self.num_steps = state_dict["num_steps"]

    def on_save_checkpoint(self, trainer, pl_module, checkpoint):
        checkpoint["mine"] = torch.ones(2)

    def on_load_checkpoint(self, trainer, pl_module, checkpoint):
        self.loaded = checkpoint["mine"]


class InterruptedAt(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            raise KeyboardInterrupt


def stateful(folder):
    return [
        of_lightning.EarlyStopping("eval_loss", patience=3, min_delta=100.0),
        of_lightning.ModelCheckpoint(folder / "best", monitor="eval_loss", save_top_k=1),
        of_lightning.ModelCheckpoint(folder / "newest"),
        of_lightning.Timer("00:00:10:00"),
        CountsSteps(),
    ]


@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
def test_states_of_lightnings_callbacks_are_restored(tmp_path):
    changes = {"averages": False, "num_train_epochs": 8}
    trainer = averaged(tmp_path / "whole", stateful(tmp_path / "whole"), **changes)
    assert trainer.train().global_step == 12  # at the fourth evaluation without an improvement
    trainer = averaged(tmp_path, stateful(tmp_path), **changes)
    trainer.add_callback(InterruptedAt(6))
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    resumed = averaged(tmp_path, callbacks := stateful(tmp_path), **changes)
    assert resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-6")).global_step == 12
    assert callbacks[-1].num_steps == 12
    assert torch.equal(callbacks[-1].loaded, torch.ones(2))
    assert [len(list((tmp_path / name).glob("*.ckpt"))) for name in ("best", "newest")] == [1, 1]
    peer = toy_trainer(tmp_path, transformers.Trainer, arguments_class=transformers.TrainingArguments)
    assert peer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-6")).global_step == 10


def test_missing_states_are_announced(tmp_path, caplog):
    averaged(tmp_path, averages=False).train()
    resumed = averaged(tmp_path, [of_lightning.EarlyStopping("eval_loss"), CountsSteps()], averages=False)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert "has no state of EarlyStopping{'monitor': 'eval_loss', 'mode': 'min'}, " in caplog.text


class HoldsObjects(of_lightning.Callback):
    def state_dict(self):
        return {"held": CountsSteps()}


def test_states_hold_no_objects(tmp_path, caplog):
    averaged(tmp_path, [HoldsObjects(), CountsSteps()], averages=False).train()
    assert "The state of HoldsObjects is not in " in caplog.text
    states = torch.load(tmp_path / "checkpoint-3" / "lightning_states.pt", weights_only=True)
    assert states["CountsSteps"] == {"num_steps": 3}
    assert "HoldsObjects" not in states


@pytest.mark.parametrize("content", [b"", pickle.dumps({"CountsSteps": os.system}, 2), pickle.dumps([1], 2)])
def test_damaged_states_are_refused(content, tmp_path):
    averaged(tmp_path, [CountsSteps()], averages=False).train()
    for name in ("portico_manifest.json", "lightning_states.pt"):
        (tmp_path / "checkpoint-3" / name).unlink()
    (tmp_path / "checkpoint-3" / "lightning_states.pt").write_bytes(content)
    with pytest.raises(portico.InputError, match=r"lightning_states\.pt cannot be read"):
        averaged(tmp_path, [CountsSteps()], averages=False).train(
            resume_from_checkpoint=str(tmp_path / "checkpoint-3")
        )


# What Lightning does with these arguments, or says -------------------------------------------------------------------


class SeesBatches(of_lightning.Callback):
    def __init__(self):
        self.sums = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.sums.append(float(batch["x"].sum()))


class ShuffledPoints(pl.LightningDataModule):
    def train_dataloader(self):
        return DataLoader(Points(), 2, shuffle=True)


@pytest.mark.filterwarnings("ignore:You requested to overfit but enabled train")
@pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:.*LeafSpec:FutureWarning")
@pytest.mark.filterwarnings(r"ignore:Found \d+ module\(s\) in eval mode")
def test_overfitting_repeats_the_batches_of_loaders_that_shuffle(tmp_path):
    for data in (DataLoader(Points(), 2, shuffle=True), ShuffledPoints(), Points()):
        sees = SeesBatches()
        with_kwargs(tmp_path, {"train_dataset": data, "lightning_callbacks": [sees]}, overfit_batches=2).train()
        assert sees.sums == sees.sums[:2] * 2
    sees = SeesBatches()
    trainer = toy_trainer(tmp_path)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "barebones": True}
    runner = pl.Trainer(
        max_epochs=2, accelerator="cpu", overfit_batches=2, callbacks=[sees], **{**quiet, "barebones": False}
    )
    runner.fit(trainer.module, DataLoader(Points(), 2, shuffle=True))
    assert sees.sums == sees.sums[:2] * 2


def test_time_limit_says_that_it_ends_the_run(tmp_path, caplog):
    with caplog.at_level("INFO", "lightning.pytorch"):
        with_kwargs(tmp_path, max_time={"seconds": 0}).train()
    assert "Time limit reached" in caplog.text
    assert "GPU available" not in caplog.text


def test_files_are_named_after_the_epoch_of_lightning(tmp_path):
    saves = of_lightning.ModelCheckpoint(tmp_path, save_top_k=-1, every_n_train_steps=5)
    toy_trainer(tmp_path, parts={"lightning_callbacks": [saves]}).train()
    assert sorted(path.name for path in tmp_path.glob("*.ckpt")) == ["epoch=0-step=5.ckpt", "epoch=1-step=10.ckpt"]


def test_limit_of_training_batches_says_nothing_of_evaluations(tmp_path):
    with pytest.raises(
        portico.InputError, match=r"leaves none of 5 batches; set it to an int >= 1 or a larger part\.$"
    ):
        with_kwargs(tmp_path, limit_train_batches=0.01).train()


class TwoLines(Line):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(3, 3)

    def forward(self, x, labels=None):
        return super().forward(self.body(x), labels)


class UnfreezesBody(of_lightning.BaseFinetuning):
    def freeze_before_training(self, pl_module):
        self.freeze(pl_module.model.body)

    def finetune_function(self, pl_module, epoch, optimizer):
        if epoch == 1:
            self.unfreeze_and_add_param_group(pl_module.model.body, optimizer, lr=0.02)


def finetuned(folder, **changes):
    parts = {"model": TwoLines(), "lightning_callbacks": [UnfreezesBody()]}
    options = {"num_train_epochs": 3, "save_strategy": "epoch", "lr_scheduler_type": "linear", **changes}
    return toy_trainer(folder, parts=parts, **options)


def test_parameters_added_by_a_callback_follow_the_schedule(tmp_path):
    trainer = finetuned(tmp_path)
    before = trainer.model.body.weight.detach().clone()
    trainer.train()
    assert not torch.equal(trainer.model.body.weight, before)
    assert [group["initial_lr"] for group in trainer.optimizer.param_groups] == pytest.approx([0.1, 0.1, 0.03])
    assert [group["lr"] for group in trainer.optimizer.param_groups] == [0.0, 0.0, 0.0]
    resumed = finetuned(tmp_path / "resumed")
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-10"))
    assert torch.equal(resumed.model.body.weight, trainer.model.body.weight)
    assert history(resumed, "loss") == history(trainer, "loss")


@pytest.mark.parametrize("kind", ["StepLR", "CosineAnnealingLR", "MultiplicativeLR", "ReduceLROnPlateau"])
def test_parameters_added_by_a_callback_train_with_any_scheduler(kind, tmp_path):
    model = TwoLines()
    before = model.body.weight.detach().clone()
    optimizer = torch.optim.SGD(model.linear.parameters(), lr=0.01)
    option = {"StepLR": 2, "CosineAnnealingLR": 20, "MultiplicativeLR": lambda step: 0.9, "ReduceLROnPlateau": "min"}
    scheduler = getattr(torch.optim.lr_scheduler, kind)(optimizer, option[kind])
    parts = {"model": model, "lightning_callbacks": [UnfreezesBody()], "optimizers": (optimizer, scheduler)}
    toy_trainer(tmp_path, parts=parts, eval_strategy="epoch", metric_for_best_model="loss").train()
    assert not torch.equal(model.body.weight, before)
