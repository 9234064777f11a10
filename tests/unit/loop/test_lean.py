"""Nobody can tell the lean loops from Lightning's: every hook sees the same, in the same order."""

import lightning.pytorch as pl
import pytest
import torch
import transformers
from lightning.pytorch.callbacks import TQDMProgressBar
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.strategies import SingleDeviceStrategy, StrategyRegistry
from torch.distributed.tensor import DTensor

from forked import run_in_processes
from models import toy_trainer
from portico.loop import run

HOOKS = [
    name for name in dir(pl.Callback) if name.startswith("on_") and name not in ("on_exception", "on_load_checkpoint")
]
STRATEGY_HOOKS = ("on_train_batch_start", "training_step", "pre_backward", "backward", "post_backward")


def seen_by(trainer, module):
    """Return what a hook can read of the loops and of the metrics."""
    fit, loops = trainer.fit_loop, (trainer.fit_loop.epoch_loop, trainer.validate_loop, trainer.test_loop)
    optimization = fit.epoch_loop.automatic_optimization.optim_progress
    return {
        "hook": module._current_fx_name,
        "epoch": trainer.current_epoch,
        "step": trainer.global_step,
        "progress": [loop.batch_progress.state_dict() for loop in (*loops, fit.epoch_loop.val_loop)],
        "optimizer": optimization.state_dict(),
        "scheduler": fit.epoch_loop.scheduler_progress.state_dict(),
        "stepped": fit.epoch_loop._batches_that_stepped,
        "first": trainer._logger_connector._first_loop_iter,
        "batch": None if trainer._results is None else trainer._results.batch is not None,
        "metrics": summary({name: float(value) for name, value in trainer.callback_metrics.items()}),
        "should_stop": trainer.should_stop,
        "gradients": [None if p.grad is None else part_of(p.grad) for p in module.parameters()],
    }


def part_of(tensor):
    """Return the numbers of a tensor that this process has."""
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).tolist()


def summary(value):
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {name: summary(item) for name, item in value.items() if "runtime" not in name and "per_sec" not in name}
    return value if isinstance(value, int | float | str | None) else type(value).__name__


class Spy(pl.Callback):
    """Notes what each hook is given and can see, and logs from the hooks of a batch as users do."""

    def __init__(self, trace, logs):
        self.trace, self.logs = trace, logs


def noting(name):
    def hook(self, trainer, module, *args, **kwargs):
        self.trace.append(("callback", name, summary_of(args), summary_of(kwargs.values()), seen_by(trainer, module)))
        if self.logs and name in ("on_train_batch_start", "on_train_batch_end", "on_validation_batch_end"):
            module.log(f"seen_{name}", float(len(self.trace)), on_step=True, on_epoch=True, prog_bar=True)

    return hook


def summary_of(values):
    return [summary(value) for value in values]


for hook_name in HOOKS:
    setattr(Spy, hook_name, noting(hook_name))


class SpyBar(TQDMProgressBar):
    def __init__(self, trace):
        super().__init__()
        self.trace = trace

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.trace.append(("bar", summary(dict(outputs)), batch_idx, summary(self.get_metrics(trainer, pl_module))))


class SpyLogger(DummyLogger):
    def __init__(self, trace):
        super().__init__()
        self.trace = trace

    def log_metrics(self, metrics, step=None):
        self.trace.append(("logger", summary(dict(metrics)), step))

    def save(self):
        self.trace.append(("save",))


class SpyStrategy(SingleDeviceStrategy):
    """Defines hooks of a strategy, so that Lightning's own methods run the steps."""

    trace = None


def noting_of_strategy(name):
    def hook(self, *args, **kwargs):
        self.trace.append(("strategy", name, self.lightning_module._current_fx_name, summary_of(args)))
        return getattr(SingleDeviceStrategy, name)(self, *args, **kwargs)

    return hook


for hook_name in STRATEGY_HOOKS:
    setattr(SpyStrategy, hook_name, noting_of_strategy(hook_name))


class Stop(transformers.TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step == 4


class AddsCallback(pl.Callback):
    """Adds a callback in the middle of an epoch."""

    def __init__(self, added):
        self.added = added

    def on_train_batch_end(self, trainer, *args):
        if self.added not in trainer.callbacks:
            trainer.callbacks.append(self.added)


RUNS = {
    "plain": {},
    "accumulation": {"gradient_accumulation_steps": 3, "num_train_epochs": 2.0},
    "evaluations": {"eval_strategy": "steps", "eval_steps": 2, "gradient_accumulation_steps": 2},
    "mixed precision": {"bf16": True},
    "plateau": {
        "lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "epoch", "metric_for_best_model": "loss"
    },
}  # fmt: skip


def trace_of(
    folder, monkeypatch, changes, *, is_lean, logs=False, parts=None, strategy=False, resume=False, adds=False
):
    trace = []
    with monkeypatch.context() as patched:
        if not is_lean:
            patched.setattr(run, "use_lean_loops", lambda trainer: None)
        callbacks = [Spy(trace, logs), SpyBar(trace)]
        if adds:
            callbacks.append(AddsCallback(Spy(trace, logs)))
        options = {"lightning_callbacks": callbacks, "loggers": [SpyLogger(trace)], **(parts or {})}
        if strategy:
            patched.setattr(SpyStrategy, "trace", trace)
            changes = {**changes, "strategy": "spy"}
        trainer = toy_trainer(folder, parts=options, logging_steps=1, **changes)
        trainer.train(resume_from_checkpoint=resume)
        kinds = type(trainer.lightning_trainer.fit_loop.epoch_loop), type(trainer.lightning_trainer.test_loop)
        assert all(kind.__name__.startswith("Lean") == is_lean for kind in kinds)
        if is_lean:
            assert trainer.lightning_trainer.fit_loop.epoch_loop.takes_plain_steps == (not strategy)
        trainer.evaluate()
        trainer.predict(trainer.eval_dataset)
    weights = [part_of(parameter) for parameter in trainer.model.parameters()]
    return trace, weights


def compare(*args, **options):
    lean, weights = trace_of(*args, is_lean=True, **options)
    full, weights_of_lightning = trace_of(*args, is_lean=False, **options)
    for index, (ours, theirs) in enumerate(zip(lean, full, strict=False)):
        assert ours == theirs, f"record {index}"
    assert len(lean) == len(full) > 50
    assert weights == weights_of_lightning


@pytest.mark.parametrize("logs", [False, True], ids=["silent", "logging"])
@pytest.mark.parametrize("changes", RUNS.values(), ids=RUNS)
def test_every_hook_sees_the_same(tmp_path, monkeypatch, changes, logs):
    compare(tmp_path, monkeypatch, changes, logs=logs)


def test_a_strategy_with_hooks_sees_the_same(tmp_path, monkeypatch):
    monkeypatch.setitem(StrategyRegistry, "spy", {})
    StrategyRegistry.register("spy", SpyStrategy, device="cpu", override=True)
    compare(tmp_path, monkeypatch, RUNS["evaluations"], strategy=True)


def test_a_run_that_is_stopped_sees_the_same(tmp_path, monkeypatch):
    compare(tmp_path, monkeypatch, {}, parts={"callbacks": [Stop()]})


def test_a_callback_that_comes_in_the_middle_of_an_epoch_sees_the_same(tmp_path, monkeypatch):
    compare(tmp_path, monkeypatch, {"max_steps": 4}, adds=True)


def test_a_resumed_run_sees_the_same(tmp_path, monkeypatch):
    toy_trainer(tmp_path, max_steps=3, save_strategy="steps", save_steps=3, gradient_accumulation_steps=2).train()
    changes = {"max_steps": 8, "gradient_accumulation_steps": 2, "save_strategy": "no"}
    compare(tmp_path, monkeypatch, changes, resume=str(tmp_path / "checkpoint-3"))


SEVERAL = {
    "ddp": {"gradient_accumulation_steps": 3, "eval_strategy": "steps", "eval_steps": 2},
    "ddp, bf16": {"bf16": True},
    "ddp, averaged after each batch": {
        "gradient_accumulation_steps": 2,
        "accelerator_config": {"gradient_accumulation_kwargs": {"sync_each_batch": True}},
    },
    "fsdp": {"fsdp": True, "gradient_accumulation_steps": 2},
    "fsdp, bf16": {"fsdp": True, "bf16": True},
}


def compare_in_process(folder):
    for changes in SEVERAL.values():
        with pytest.MonkeyPatch.context() as patched:
            compare(folder, patched, changes)


def test_every_hook_of_several_processes_sees_the_same(tmp_path):
    run_in_processes(2, compare_in_process, tmp_path)
