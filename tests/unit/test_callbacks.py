import math
import os
import subprocess
import sys
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.tuner import Tuner
from torch.utils.data import DataLoader

import portico
from fresh_process import environment
from models import Line, Points, ToyDataset, ToyStream, tiny_bert, toy_arguments
from portico.callbacks import BatchSizeFinder, LearningRateFinder, find_spike, is_spike
from portico.inspection.recorder import hash_of


class Jumping(Line):
    """Its loss is multiplied by a thousand in the forward pass of one number."""

    def __init__(self, at):
        super().__init__()
        self.at, self.calls = at, 0

    def forward(self, x, labels=None):
        outputs = super().forward(x, labels)
        self.calls += 1
        return {**outputs, "loss": outputs["loss"] * (1000 if self.calls == self.at else 1)}


class Rooting(Line):
    def forward(self, x, labels=None):
        outputs = super().forward(x, labels)
        return {**outputs, "loss": outputs["loss"] + (0 * outputs["loss"]).sqrt()}


def trained(tmp_path, action, **options):
    watch = portico.LossSpike(action)
    args = toy_arguments(tmp_path, learning_rate=0.01, lr_scheduler_type="constant", **options)
    trainer = portico.Trainer(Jumping(at=7), args, train_dataset=Points(), callbacks=[watch])
    trainer.train()
    return trainer, watch


def test_find_spike():
    rows = [{"loss": loss, "step": number} for number, loss in enumerate([1.0, 1.1, 0.9, 4.0, 1.0, 2.0], 1)]
    assert find_spike(rows) == (4, 4.0)
    assert find_spike([*rows, {"loss": 0.0, "grad_norm": math.nan, "step": 7}])[0] == 7
    assert find_spike([{"loss": 3.0 - number, "step": number} for number in range(3)]) is None
    assert find_spike([{"eval_loss": 1.0, "step": 1}]) is None
    assert is_spike(math.nan, [], 3)
    assert not is_spike(3.0, [1.0], 3)


def test_report_and_stop(tmp_path, caplog):
    trainer, watch = trained(tmp_path, "report")
    assert [step for step, _ in watch.spikes] == [7]
    assert trainer.state.global_step == 10
    trainer, watch = trained(tmp_path, "stop")
    assert trainer.state.global_step == 7


def test_rollback_restores_weights_and_optimizer(tmp_path):
    trainer, watch = trained(tmp_path, "rollback", save_strategy="steps", save_steps=5)
    assert [step for step, _ in watch.spikes] == [7]
    # Without the two batches between the checkpoint and the spike, the run ends like one that never had them.
    before = torch.load(tmp_path / "checkpoint-5" / "optimizer.pt")["state"][0]["step"]
    assert trainer.optimizer.state_dict()["state"][0]["step"] == before + 3
    assert trainer.state.log_history[-2]["loss"] < 50


def test_a_run_that_was_rolled_back_is_resumable(tmp_path):
    trainer, watch = trained(tmp_path, "rollback", save_strategy="steps", save_steps=2)
    again = portico.LossSpike("rollback")
    args = toy_arguments(tmp_path, learning_rate=0.01, lr_scheduler_type="constant")
    resumed = portico.Trainer(Line(), args, train_dataset=Points(), callbacks=[again])
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-8"))
    assert again.spikes == watch.spikes
    assert again._before == watch._before
    assert torch.equal(resumed.model.linear.weight, trainer.model.linear.weight)
    assert [row.get("loss") for row in resumed.state.log_history][:-1] == [
        row.get("loss") for row in trainer.state.log_history
    ][:-1]


def test_rollback_passes_over_a_checkpoint_after_the_spike(tmp_path, caplog):
    # The spike of step 7 is logged with step 9; the checkpoint of step 8 already has its weights.
    trained(tmp_path, "rollback", save_strategy="steps", save_steps=2, logging_steps=3)
    assert "/checkpoint-6.\n" in caplog.text


def test_a_step_that_a_gradient_scaler_skips_is_no_spike(tmp_path):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**18)
    watch = portico.LossSpike("rollback")
    options = {"learning_rate": 0.01, "lr_scheduler_type": "constant"}
    args = toy_arguments(tmp_path, save_strategy="steps", save_steps=2, **options)
    trainer = portico.Trainer(
        Jumping(at=9),
        args,
        train_dataset=Points(),
        callbacks=[watch],
        plugins=[MixedPrecision("16-mixed", "cpu", scaler)],
    )
    trainer.train()
    rows = [row for row in trainer.state.log_history if "loss" in row]
    skipped = [row["step"] for row in rows if not math.isfinite(row["grad_norm"])]
    assert 1 in skipped
    assert 8 not in skipped
    assert [step for step, _ in watch.spikes] == [9]
    # The scaler is not rolled back: it halves its scale at each step that it skips.
    assert scaler.get_scale() == 2.0 ** (18 - len(skipped))
    again = portico.LossSpike("rollback")
    plugins = [MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))]
    resumed = portico.Trainer(Line(), args, train_dataset=Points(), callbacks=[again], plugins=plugins)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-10"))
    assert again.spikes == watch.spikes
    assert plugins[0].scaler.get_scale() == scaler.get_scale()


def test_a_gradient_norm_that_is_not_finite_is_a_spike(tmp_path):
    watch = portico.LossSpike("stop")
    # Finite losses, and weights that are not: the square root has no gradient at 0.
    args = toy_arguments(tmp_path, logging_nan_inf_filter=False)
    trainer = portico.Trainer(Rooting(), args, train_dataset=Points(), callbacks=[watch])
    trainer.train()
    assert math.isfinite(trainer.state.log_history[0]["loss"])
    assert [step for step, _ in watch.spikes] == [1]


TWO_PROCESSES = """
import portico, torch
from models import Points, toy_arguments
from test_callbacks import Jumping

watch = portico.LossSpike("rollback")
args = toy_arguments("out", learning_rate=0.01, devices=2, strategy="ddp", save_strategy="steps", save_steps=2)
trainer = portico.Trainer(Jumping(at=7), args, train_dataset=Points(20), callbacks=[watch])
trainer.train()
# Lines of two processes can mix in a common output.
ended = {"steps": [step for step, _ in watch.spikes], "weights": trainer.model.linear.weight.flatten().tolist()}
torch.save(ended, f"ended-{trainer.args.process_index}")
"""


@pytest.mark.slow
def test_rollback_in_two_processes(tmp_path):
    (tmp_path / "script.py").write_text(TWO_PROCESSES)
    here = os.pathsep.join([str(Path(__file__).parent), environment()["PYTHONPATH"]])
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "script.py"],
        cwd=tmp_path,
        env=environment(PYTHONPATH=here),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    first, second = (torch.load(tmp_path / f"ended-{rank}") for rank in range(2))
    assert first["steps"] == [7]
    assert first == second
    assert "Weights and optimizer are restored from out/checkpoint-6" in ended.stderr
    # The first process says it, torch and portico one line each.
    assert ended.stderr.count("did not find any unused parameters") == 1
    assert ended.stderr.count("set `ddp_find_unused_parameters=False`") == 1


def test_rollback_without_a_checkpoint_ends_the_training(tmp_path):
    trainer, _ = trained(tmp_path, "rollback")
    assert trainer.state.global_step == 7


def test_unknown_action():
    with pytest.raises(portico.InputError, match="`action='undo'` is unknown; set it to one of 'report', 'stop'"):
        portico.LossSpike("undo")


# Learning rates ------------------------------------------------------------------------------------------------------


class OtherStrategy(SingleDeviceStrategy):
    pass


def bert_run(folder, finder=None, *, data=ToyDataset, model=tiny_bert, checkpoint=None, parts=None, **changes):
    """Train a BERT with dropout; return its trainer, its log and its weights."""
    options = {"max_steps": 5, "learning_rate": 1e-2, "per_device_train_batch_size": 4, **changes}
    trainer = portico.Trainer(
        model(),
        toy_arguments(folder, **options),
        train_dataset=data(),
        lightning_callbacks=[] if finder is None else [finder],
        **(parts or {}),
    )
    trainer.train(resume_from_checkpoint=checkpoint)
    names = ("loss", "grad_norm", "learning_rate")
    history = [{name: row.get(name) for name in names} for row in trainer.state.log_history]
    return trainer, history, trainer.model.state_dict()


def assert_same_run(first, second):
    assert first[1] == second[1]
    assert all(torch.equal(first[2][name], second[2][name]) for name in first[2])
    states = [run[0].optimizer.state_dict() for run in (first, second)]
    assert hash_of(states[0]) == hash_of(states[1])


@pytest.mark.parametrize(
    ("settings", "changes"),
    [
        ({}, {}),
        ({"mode": "linear", "early_stop_threshold": None}, {"gradient_accumulation_steps": 2, "data": ToyStream}),
    ],
    ids=["exponential", "linear, on a stream"],
)
def test_search_for_a_learning_rate_changes_nothing(settings, changes, tmp_path, caplog):
    plain = bert_run(tmp_path / "plain", **changes)
    finder = LearningRateFinder(num_training_steps=30, **settings)
    searched = bert_run(tmp_path / "searched", finder, **changes)
    random = torch.get_rng_state()
    bert_run(tmp_path / "again", **changes)
    assert torch.equal(random, torch.get_rng_state())
    assert_same_run(searched, plain)
    assert searched[0].args.learning_rate == 1e-2
    rates, losses = finder.optimal_lr.results["lr"], finder.optimal_lr.results["loss"]
    assert len(set(losses)) == len(rates) > 12
    assert rates[0] == 1e-8
    assert f"Suggested learning rate: {finder.optimal_lr.suggestion():.4g}; `apply=True`" in caplog.text
    table = (tmp_path / "searched/lr_finder.csv").read_text().splitlines()
    assert table[0] == "lr,loss"
    assert len(table) == 1 + len(rates)
    assert (tmp_path / "searched/lr_finder.png").read_bytes().startswith(b"\x89PNG")


def test_suggested_rate_is_the_rate_of_the_run_if_asked(tmp_path):
    finder = LearningRateFinder(min_lr=1e-5, num_training_steps=30, apply=True)
    applied = bert_run(tmp_path / "applied", finder, warmup_steps=2, save_strategy="steps", save_steps=2)
    suggestion = finder.optimal_lr.suggestion()
    assert applied[0].args.learning_rate == suggestion != 1e-2
    assert_same_run(applied, bert_run(tmp_path / "given", learning_rate=suggestion, warmup_steps=2))
    # A resumed run continues with the rate of its checkpoint.
    again = LearningRateFinder(apply=True)
    checkpoint = str(tmp_path / "applied/checkpoint-4")
    assert_same_run(bert_run(tmp_path / "resumed", again, warmup_steps=2, checkpoint=checkpoint), applied)
    assert again.optimal_lr is None


@pytest.mark.parametrize(
    ("settings", "changes", "message"),
    [
        ({"mode": "log"}, {}, "`mode='log'` is unknown; set it to 'exponential' or 'linear'"),
        ({"num_training_steps": 12}, {}, "`num_training_steps=12` is too small; set it to 13 or more"),
        ({"min_lr": 1.0, "max_lr": 0.1}, {}, "`min_lr=1.0` and `max_lr=0.1` span no rates"),
        ({}, {"learning_rate": 0.0}, "a learning rate above 0"),
        ({}, {"parts": {"plugins": [MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))]}}, "fp16 skips"),
        (
            {"apply": True},
            {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "epoch"},
            "leave `apply`",
        ),
        ({}, {"strategy": OtherStrategy("cpu")}, "in one process on one device, without `strategy=OtherStrategy`"),
    ],
    ids=["mode", "steps", "rates", "no rate", "fp16", "plateau", "strategy"],
)
def test_search_for_a_learning_rate_is_refused(settings, changes, message, tmp_path):
    if "eval_strategy" in changes:
        changes = {**changes, "parts": {"eval_dataset": ToyDataset(4)}}
    with pytest.raises(portico.InputError, match=message):
        bert_run(tmp_path, LearningRateFinder(**settings), **changes)


def test_search_without_matplotlib_or_a_suggestion_says_so(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("portico.callbacks.find_spec", lambda name: None)
    bert_run(tmp_path, LearningRateFinder(min_lr=1e3, max_lr=1e9, num_training_steps=13))
    assert "No learning rate can be suggested: the loss diverged after" in caplog.text
    assert "lr_finder.csv has the points; `pip install matplotlib`" in caplog.text
    assert not (tmp_path / "lr_finder.png").exists()


# Batch sizes ---------------------------------------------------------------------------------------------------------


def of_limited_memory(limit):
    """Return what makes a BERT whose forward pass runs out of memory above ``limit`` examples."""

    def run_out(model, args, kwargs):
        size = len(kwargs["input_ids"])
        if size > limit:
            raise RuntimeError(f"CUDA out of memory. Tried to allocate room for {size} examples.")

    def model():
        bert = tiny_bert()
        bert.register_forward_pre_hook(run_out, with_kwargs=True)
        return bert

    return model


class Tuned(pl.LightningModule):
    """A module whose batch size Lightning's tuner searches."""

    def __init__(self, limit, batch_size):
        super().__init__()
        self.limit, self.batch_size, self.line = limit, batch_size, torch.nn.Linear(1, 1)

    def train_dataloader(self):
        return DataLoader(torch.zeros(5000, 1), batch_size=self.batch_size)

    def training_step(self, batch):
        if len(batch) > self.limit:
            raise RuntimeError("CUDA out of memory.")
        return self.line(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters())


@pytest.mark.parametrize(
    ("settings", "limit", "size"),
    [
        ({}, 17, 16),
        ({"init_val": 16, "steps_per_trial": 1}, 3, 2),
        ({"max_trials": 3}, 4000, 8),
        ({"mode": "binsearch"}, 27, 25),
        ({"mode": "binsearch", "margin": 0.0, "init_val": 5}, 27, 27),
        ({"mode": "binsearch", "init_val": 16}, 7, 6),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")  # Lightning's, about loaders and its tuner
def test_search_finds_the_batch_size_of_lightning(settings, limit, size, tmp_path):
    trainer = pl.Trainer(max_epochs=1, accelerator="cpu", logger=False, default_root_dir=tmp_path)
    # Lightning's first trial uses a loader that it has made before it sets `init_val`.
    tuned = Tuned(limit, settings.get("init_val", 2))
    assert Tuner(trainer).scale_batch_size(tuned, **settings) == size
    finder = BatchSizeFinder(**settings)
    options = {"per_device_train_batch_size": 1, "max_steps": 1}
    bert_run(tmp_path, finder, data=lambda: ToyDataset(5000), model=of_limited_memory(limit), **options)
    assert finder.optimal_batch_size == size


@pytest.mark.parametrize(
    ("settings", "changes", "size", "why"),
    [
        ({}, {"gradient_accumulation_steps": 2}, 8, "16 ran out of memory"),
        ({"max_val": 7}, {"data": ToyStream}, 7, "no larger size was tried"),
        ({"mode": "binsearch"}, {"data": lambda: ToyDataset(9)}, 9, "no larger size was tried"),
    ],
    ids=["accumulation", "stream", "all examples fit"],
)
def test_search_for_a_batch_size_changes_nothing(settings, changes, size, why, tmp_path, caplog):
    changes = {"model": of_limited_memory(9), **changes}
    plain = bert_run(tmp_path / "plain", **changes)
    finder = BatchSizeFinder(**settings)
    searched = bert_run(tmp_path / "searched", finder, **changes)
    assert_same_run(searched, plain)
    assert finder.optimal_batch_size == size
    assert searched[0].args.per_device_train_batch_size == searched[0].state.train_batch_size == 4
    assert f"Suggested `per_device_train_batch_size`: {size}; {why}. `apply=True`" in caplog.text


@pytest.mark.parametrize(
    "length", [{"max_steps": -1, "num_train_epochs": 3}, {"max_steps": 6}], ids=["epochs", "steps"]
)
def test_suggested_batch_size_is_the_size_of_the_run_if_asked(length, tmp_path):
    changes = {**length, "model": of_limited_memory(9), "warmup_steps": 2, "save_strategy": "steps", "save_steps": 2}
    applied = bert_run(tmp_path / "applied", BatchSizeFinder(apply=True), **changes)
    given = bert_run(tmp_path / "given", per_device_train_batch_size=8, **changes)
    assert applied[0].args.per_device_train_batch_size == applied[0].state.train_batch_size == 8
    assert applied[0].state.max_steps == given[0].state.max_steps != 5
    assert_same_run(applied, given)
    # A resumed run does not search, and continues with the batch size of its checkpoint.
    again = BatchSizeFinder(apply=True)
    assert_same_run(
        bert_run(tmp_path / "resumed", again, checkpoint=str(tmp_path / "applied/checkpoint-4"), **changes), given
    )
    assert again.optimal_batch_size is None


@pytest.mark.parametrize(
    ("settings", "changes", "message"),
    [
        ({"mode": "half"}, {}, "`mode='half'` is unknown; set it to 'power' or 'binsearch'"),
        ({"steps_per_trial": 0}, {}, "`steps_per_trial=0` is not positive; set it to an int >= 1"),
        ({"margin": 1.0}, {}, "`margin=1.0` is not a part of the batch size; set 0 <= `margin` < 1"),
        ({"init_val": 4, "max_val": 3}, {}, "`max_val=3` is below `init_val=4`; set it to 4 or more"),
        ({}, {"model": of_limited_memory(0)}, "No batch size fits the memory: even 1 runs out of it; set"),
        ({}, {"data": lambda: DataLoader(ToyDataset(), 4)}, "a DataLoader has a batch size; give its dataset"),
        ({}, {"strategy": OtherStrategy("cpu")}, "in one process on one device, without `strategy=OtherStrategy`"),
    ],
    ids=["mode", "steps", "margin", "largest", "memory", "loader", "strategy"],
)
def test_search_for_a_batch_size_is_refused(settings, changes, message, tmp_path):
    with pytest.raises(portico.InputError, match=message):
        bert_run(tmp_path, BatchSizeFinder(**settings), **changes)


class FixedTrainer(portico.Trainer):
    def get_train_dataloader(self):
        return self.accelerator.prepare(DataLoader(self.train_dataset, 4, drop_last=True))


def test_search_is_refused_where_the_batch_size_has_no_effect(tmp_path):
    args = toy_arguments(tmp_path)
    trainer = FixedTrainer(Line(), args, train_dataset=Points(), lightning_callbacks=[BatchSizeFinder()])
    with pytest.raises(portico.InputError, match="`get_train_dataloader` returns batches of 4 examples, whatever"):
        trainer.train()


def test_errors_other_than_memory_end_the_search(tmp_path):
    def model():
        bert = tiny_bert()
        bert.register_forward_pre_hook(lambda *_: torch.zeros(2) @ torch.zeros(3))
        return bert

    with pytest.raises(RuntimeError, match="inconsistent tensor size"):
        bert_run(tmp_path, BatchSizeFinder(), model=model)
