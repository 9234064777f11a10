"""Arguments of ``lightning.Trainer`` and Lightning's own callbacks in a run."""

import csv
import inspect
import re

import lightning.pytorch as pl
import pytest
import torch
import transformers
from lightning.pytorch import callbacks as of_lightning
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.profilers import SimpleProfiler
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torchmetrics import MeanSquaredError
from transformers import ProgressCallback

import portico
from models import Line, Points, PointStream, toy_trainer
from portico.validation import PASSED_ON, SAID_ELSEWHERE


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
    with pytest.raises(portico.InputError, match="`fast_dev_run` takes the first steps"):
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
