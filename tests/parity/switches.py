"""Negative controls: functions that each break one thing that makes the numbers those of transformers.

Each takes pytest's ``monkeypatch`` and patches a method of a class. A comparison that still passes could never fail.
"""

import functools
import itertools
import logging
import os
import warnings
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler

import portico
from parity import peers
from portico.checkpoint.resume import load_rng_state
from portico.compat.accelerate import GradientState
from portico.compat.lightning import UnnormalizedLoss
from portico.data.loaders import DataLoaderShard, SeedableRandomSampler
from portico.distributed.accelerator import Accelerator
from portico.gradient_descent import GradientDescentTrainer
from portico.loop.core import TrainerCore
from portico.loop.corrections import Corrections
from portico.loop.datamodule import TrainFeed
from portico.loop.evaluation import EvaluationSession
from portico.loop.module import TrainerModule
from portico.loop.outputs import GrowingArray
from portico.loop.run import EventBridge, TrainingRun
from portico.trainer import Trainer

# Names the switches for processes that tests start.
VARIABLE = "PARITY_SWITCH"


def throw(names, patch):
    """Apply the switches of these names, separated by spaces."""
    for name in names.split():
        globals()[name](patch)


def throw_as_parent():
    """Apply the switches of the parent process, if any, for the rest of this one."""
    if VARIABLE in os.environ:
        throw(os.environ[VARIABLE], pytest.MonkeyPatch())


# ---- The order of the data, and when it is fetched ----


def order_not_seeded(patch):
    """Torch's own sampler shuffles, with the global generator."""
    patch.setattr(SeedableRandomSampler, "__iter__", RandomSampler.__iter__)


def same_order_each_epoch(patch):
    """The seed of the order ignores the epoch."""
    draw = SeedableRandomSampler.__iter__

    def first_epoch(self):
        self.epoch = 0
        yield from draw(self)

    patch.setattr(SeedableRandomSampler, "__iter__", first_epoch)


def extra_iterator(patch):
    """A loader is iterated once more than necessary, which draws a base seed."""
    open_epoch = TrainingRun._choose_epoch_loader

    def iterated_twice(self):
        opened = open_epoch(self)
        DataLoader.__iter__(opened[0])
        return opened

    patch.setattr(TrainingRun, "_choose_epoch_loader", iterated_twice)


def no_look_ahead(patch):
    """Each batch is fetched on demand, so the last one is not known to be the last."""

    def on_demand(self):
        self.end_of_dataloader, self.remainder = False, -1
        self.set_epoch(self.epoch)
        GradientState()._add_dataloader(self)
        for index, batch in enumerate(DataLoader.__iter__(self)):
            if index >= self.num_batches_to_skip:
                yield self._prepare(batch, False)
        GradientState()._remove_dataloader(self)
        self.epoch += 1

    patch.setattr(DataLoaderShard, "__iter__", on_demand)


def windows_batch_by_batch(patch):
    """The batches of a window are fetched between its training steps."""

    class Window:
        is_exhausted = False

        def __init__(self, batches, size):
            self.batches, self.size = batches, size

        def __len__(self):
            return self.size

        def __iter__(self):
            yield from itertools.islice(self.batches, self.size)
            self.is_exhausted = True

        def shares(self):
            while not self.is_exhausted:
                yield None

    patch.setattr(Trainer, "get_batch_samples", lambda self, batches, size, device: (Window(batches, size), None))
    patch.setattr(Corrections, "split_shares", lambda self, window, loader, num_items: (window, window.shares()))


def feed_without_length(patch):
    """Lightning does not know the number of batches."""
    patch.delattr(TrainFeed, "__len__")


def lengths_not_grouped(patch):
    """Batches are not made of examples of similar length or cost."""
    patch.setattr(Trainer, "_get_train_sampler", lambda self, dataset=None: RandomSampler(dataset))


# ---- Gradients, steps, schedules and the sum of losses ----


def clipping_by_groups(patch):
    """The norm is summed in the order of the optimizer's groups, as Lightning does."""

    def clip(self, model):
        groups = self.optimizer.param_groups
        parameters = [parameter for group in groups for parameter in group["params"]]
        return self.accelerator.clip_grad_norm_(parameters, self.args.max_grad_norm)

    patch.setattr(Trainer, "_clip_grad_norm", clip)


def no_norm_without_clipping(patch):
    """The gradient norm is not measured unless gradients are clipped."""
    patch.setattr(Trainer, "_get_grad_norm", lambda self, model, grad_norm=None: grad_norm)


def loss_divided_by_lightning(patch):
    """Lightning divides the loss by the accumulation steps a second time."""

    def divided(cls, training_step_output, normalize=1):
        return super(UnnormalizedLoss, cls).from_training_step_output(training_step_output, normalize)

    step = TrainerModule.training_step
    patch.setattr(UnnormalizedLoss, "from_training_step_output", classmethod(divided))
    patch.setattr(
        TrainerModule, "training_step", lambda self, *batch: step(self, *batch) / self.trainer.accumulate_grad_batches
    )


def partial_windows_counted_as_full(patch):
    """The last window of an epoch is divided by the size of a full window."""
    full = property(lambda self: self.args.gradient_accumulation_steps, lambda self, value: None)
    patch.setattr(portico.Trainer, "current_gradient_accumulation_steps", full, raising=False)


def labels_not_counted(patch):
    """The labels of a window are not counted."""
    patch.setattr(Trainer, "_get_num_items_in_batch", lambda self, window, device: None)


def losses_divided_twice(patch):
    """A loss that is a mean over the window is divided by its size again."""
    patch.setattr(TrainerCore, "sums_losses", lambda self, num_items: False)


def open_window_stepped(patch):
    """The optimizer steps on the last batch of the data, even inside a window, as Lightning does."""

    def step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
        optimizer_closure()
        optimizer.optimizer.step()
        self.run.finish_optimizer_step()

    patch.setattr(TrainerModule, "optimizer_step", step)


def gradients_zeroed_late(patch):
    """Gradients are zeroed before the next backward pass, as under Lightning, instead of after the step."""
    end_batch = TrainingRun.end_batch

    def keep_gradients(self, batch_idx):
        self.trainer.model.zero_grad = lambda: None
        try:
            end_batch(self, batch_idx)
        finally:
            del self.trainer.model.zero_grad

    patch.setattr(TrainingRun, "end_batch", keep_gradients)
    patch.setattr(
        TrainerModule, "optimizer_zero_grad", lambda self, epoch, batch_idx, optimizer: optimizer.zero_grad()
    )


def backward_deferred(patch):
    """An overridden training step leaves its backward pass to Lightning."""
    patch.setattr(TrainerCore, "runs_backward_in_step", False)


def schedule_not_stepped(patch):
    """The schedule is not stepped after an optimizer step."""
    patch.setattr(TrainerModule, "lr_scheduler_step", lambda self, scheduler, metric: None)


def plateau_not_stepped(patch):
    """The plateau schedule is not stepped after an evaluation."""
    evaluate = Trainer._evaluate
    patch.setattr(Trainer, "_evaluate", lambda self, *args, **kwargs: evaluate(self, *args, skip_scheduler=True))


def all_parameters_decayed(patch):
    """Weight decay also applies to biases and norms."""
    everything = lambda self, model: [name for name, _ in model.named_parameters()]  # noqa: E731
    patch.setattr(Trainer, "get_decay_parameter_names", everything)


def next_learning_rate_logged(patch):
    """The logged learning rate is that of the next step."""
    patch.setattr(TrainingRun, "finish_optimizer_step", lambda self: self._fire("on_optimizer_step"))


def infinite_losses_summed(patch):
    """Losses that are not finite are part of the logged mean."""

    def add(self, loss, inputs):
        self.tr_loss += loss
        self.step_to_count = None

    patch.setattr(TrainingRun, "add_loss", add)


def smoothing_not_shifted(patch):
    """Label smoothing of a causal model compares each logit with its own token instead of the next."""
    patch.setattr(TrainerCore, "get_smoothing_options", lambda self, model: {})


def learning_rate_halved(patch):
    """Every optimizer gets half the learning rate, and errors lose their message."""
    choose = portico.Trainer.get_optimizer_cls_and_kwargs

    def chosen(args, model=None):
        try:
            optimizer_cls, kwargs = choose(args, model)
        except ValueError as error:
            raise ValueError("no such optimizer") from error
        return optimizer_cls, {**kwargs, "lr": kwargs["lr"] / 2}

    patch.setattr(portico.Trainer, "get_optimizer_cls_and_kwargs", staticmethod(chosen))
    create = portico.Trainer.create_optimizer

    def created(trainer, *args):
        given = trainer.optimizer_cls_and_kwargs
        for optimizer in given[1].get("optimizer_dict", {}).values() if given else []:
            optimizer.param_groups[0]["lr"] /= 2
        return create(trainer, *args)

    patch.setattr(portico.Trainer, "create_optimizer", created)


# ---- Evaluation and prediction ----


def last_batch_left_whole(patch):
    """The last batch of an evaluation is not truncated to its real examples."""
    patch.setattr(Accelerator, "gather_for_metrics", lambda self, data, use_gather_object=False: data)


def dropout_left_on(patch):
    """The model stays in training mode during an evaluation."""
    start = EvaluationSession.start

    def stay(self):
        start(self)
        self.trainer.model.train()

    patch.setattr(EvaluationSession, "start", stay)


def training_mode_restored(patch):
    """The model returns to training mode after an evaluation, as under Lightning."""
    patch.setattr(TrainerModule, "on_validation_model_train", lambda self: self.train())
    patch.setattr(TrainerModule, "on_test_model_train", lambda self: self.train())


def padded_with_zero(patch):
    """Short rows are padded with 0, which is also a valid value."""
    result = GrowingArray.result

    def with_zeros(self):
        array = result(self)
        array[array == -100] = 0
        return array

    patch.setattr(GrowingArray, "result", with_zeros)


def names_without_prefix(patch):
    """Metric names do not get the prefix."""
    patch.setattr(EvaluationSession, "_add_prefix", lambda self, metrics: metrics)


# ---- Callbacks that steer a run, and what a checkpoint restores ----


def nothing_between_steps(patch):
    """No logs, evaluations or checkpoints."""
    patch.setattr(TrainingRun, "_log_save_evaluate", lambda self, **options: None)


def training_not_stopped(patch):
    """Requests to stop the training are ignored."""
    patch.setattr(EventBridge, "_agree_on_stopping", lambda self, trainer: None)
    patch.setattr(TrainingRun, "batches", _ignoring_stops(TrainingRun.batches))


def replaced_optimizer_ignored(patch):
    """Training goes on with the optimizer that it started with."""
    same = property(lambda self: self.hf_trainer.optimizer, lambda self, value: None)
    patch.setattr(TrainerModule, "_optimizer_in_use", same, raising=False)


def replaced_schedule_ignored(patch):
    """Lightning steps the schedule that it was given at the start."""
    patch.setattr(TrainerModule, "lr_scheduler_step", lambda self, scheduler, metric: scheduler.step())


def replaced_model_trained(patch):
    """Training goes on with the model that the trainer has now."""
    now = property(lambda self: self.trainer.model_wrapped, lambda self, value: None)
    patch.setattr(TrainingRun, "model_wrapped", now, raising=False)


def accumulation_not_followed(patch):
    """Accumulation windows keep the size that they had at the start of the run."""
    patch.setattr(TrainingRun, "_follow_arguments", lambda self: None)


def epoch_not_stopped(patch):
    """Requests to stop the epoch are ignored."""
    patch.setattr(TrainingRun, "batches", _ignoring_stops(TrainingRun.batches))


def _ignoring_stops(batches):
    def all_batches(self):
        control = self.trainer.control
        for batch in batches(self):
            yield batch
            control = self.trainer.control
            control.should_epoch_stop = control.should_training_stop = False

    return all_batches


def best_model_not_loaded(patch):
    """The run ends with the last model instead of the best."""
    patch.setattr(portico.Trainer, "_load_best_model", lambda self: None)


def model_kept(patch):
    """A second run continues with the model of the first."""
    patch.setattr(TrainerCore, "renew_model", lambda self, trial: None)


def rng_restored_early(patch):
    """Random states are restored before the first window is fetched."""
    open_epoch = TrainingRun._choose_epoch_loader

    def early(self):
        loader, first_step, late_rng = open_epoch(self)
        if late_rng:
            load_rng_state(self.checkpoint, self.trainer.args)
        return loader, first_step, False

    patch.setattr(TrainingRun, "_choose_epoch_loader", early)


def rng_not_restored(patch):
    """Random states are not restored."""
    patch.setattr(portico.Trainer, "_load_rng_state", lambda self, checkpoint: None)


def optimizer_not_restored(patch):
    """Optimizer and schedule of a resumed run start fresh."""
    patch.setattr(portico.Trainer, "_load_optimizer_and_scheduler", lambda self, checkpoint: None)


def other_rng_saved(patch):
    """A checkpoint holds random states of another moment."""
    saved = portico.Trainer._save_rng_state

    def save(self, output_dir):
        with torch.random.fork_rng():
            torch.rand(1)
            saved(self, output_dir)

    patch.setattr(portico.Trainer, "_save_rng_state", save)


def callbacks_not_restored(patch):
    """Callbacks of a resumed run start fresh."""
    patch.setattr(portico.Trainer, "_load_callback_state", lambda self: None)


def arguments_pickled_as_ours(patch):
    """The arguments of a checkpoint can only be unpickled where portico is installed."""
    save = portico.Trainer._save

    def save_with_ours(self, output_dir=None, state_dict=None):
        save(self, output_dir, state_dict)
        torch.save(self.args, Path(output_dir or self.args.output_dir) / "training_args.bin")

    patch.setattr(portico.Trainer, "_save", save_with_ours)


# ---- Messages, uploads and user hooks ----


def all_errors_alike(patch):
    """Every error becomes the same plain exception."""
    for owner, names in (
        (portico.Trainer, ("__init__", "train", "evaluate", "predict", "hyperparameter_search")),
        (portico.Trainer, ("get_eval_dataloader", "get_learning_rates", "get_optimizer_group")),
        (portico.TrainingArguments, ("__post_init__",)),
    ):
        for name in names:
            patch.setattr(owner, name, _with_plain_error(getattr(owner, name)))


def _with_plain_error(method):
    @functools.wraps(method)
    def plain(self, *args, **kwargs):
        try:
            return method(self, *args, **kwargs)
        except Exception as error:
            raise Exception("something went wrong") from error

    return plain


def nothing_logged(patch):
    """All loggers and warnings are silent in portico's arguments and trainer."""
    for owner, names in (
        (portico.Trainer, ("__init__", "train", "evaluate", "predict", "hyperparameter_search")),
        (portico.TrainingArguments, ("__post_init__",)),
    ):
        for name in names:
            patch.setattr(owner, name, _silent(getattr(owner, name)))


def _silent(method):
    @functools.wraps(method)
    def run(self, *args, **kwargs):
        before = logging.root.manager.disable
        logging.disable()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return method(self, *args, **kwargs)
        finally:
            logging.disable(before)

    return run


def nothing_uploaded(patch):
    """Nothing but the repository is created on the hub, and there is no model card."""
    for name in ("push_to_hub", "_push_from_checkpoint", "create_model_card"):
        patch.setattr(portico.Trainer, name, lambda self, *args, **kwargs: None)


def gradients_not_rescaled(patch):
    """AllenNLP's trainer measures the gradient norm without clipping."""

    def measured(self):
        return torch.nn.utils.clip_grad_norm_(self.model.parameters(), float("inf")).item()

    patch.setattr(GradientDescentTrainer, "rescale_gradients", measured)


def overrides_ignored(patch):
    """A subclass's overrides of the trainer's methods are not called."""

    def forget(subclass, **options):
        own = {name for name in vars(subclass) if not name.startswith("__")}
        for name in own & set(dir(portico.Trainer)):
            delattr(subclass, name)

    patch.setattr(portico.Trainer, "__init_subclass__", classmethod(forget))


# ---- Arguments, datasets and parts that portico ignores ----


def ignoring(*names):
    """Return a control under which portico ignores these options of :func:`parity.peers.run`."""

    def switch(patch):
        patch.setattr(peers, "run", _dropping(peers.run, names))

    return switch


def ignoring_part(name):
    """Return a control under which portico ignores an argument of the trainer's constructor."""

    def switch(patch):
        construct = portico.Trainer.__init__

        def without(self, *args, **parts):
            parts.pop(name)
            construct(self, *args, **parts)

        patch.setattr(portico.Trainer, "__init__", without)

    return switch


def _dropping(run, names):
    def run_without(library, *args, **options):
        kept = options if library is not portico else {key: options[key] for key in options if key not in names}
        return run(library, *args, **kept)

    return run_without
