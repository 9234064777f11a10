"""Switches that turn off, one at a time, what makes the numbers those of transformers.

Each takes pytest's ``monkeypatch``. A comparison that still holds with its switch off could never have failed.
"""

import functools
import itertools

import torch
from torch.utils.data import DataLoader

import portico
from parity import peers
from portico.accelerator import FacadeAccelerator
from portico.callbacks import EventBridge
from portico.checkpoint.rng import load_rng_state
from portico.evaluation.session import EvaluationSession
from portico.facade.data import DataMethods
from portico.facade.steps import StepMethods
from portico.facade.training import TrainingMethods
from portico.gradient_descent.gradients import rescale_gradients
from portico.loading.feeds import TrainFeed
from portico.loading.samplers import SeededRandomSampler
from portico.module import TrainerModule
from portico.state import TrainingRun

# Order and fetching of data


def plain_order(patch):
    """The global generator shuffles, as torch's own sampler has it."""
    patch.setattr("portico.loading.prepared_loaders._seed_order", lambda batches, sharing: None)


def same_order_each_epoch(patch):
    """The order's seed forgets the epoch."""
    draw = SeededRandomSampler.__iter__

    def first_epoch(self):
        self.epoch = 0
        yield from draw(self)

    patch.setattr(SeededRandomSampler, "__iter__", first_epoch)


def extra_iterator(patch):
    """A loader is looked into once too often."""
    open_epoch = TrainingRun._epoch_loader

    def looked_into(self):
        opened = open_epoch(self)
        DataLoader.__iter__(opened[0])
        return opened

    patch.setattr(TrainingRun, "_epoch_loader", looked_into)


def no_look_ahead(patch):
    """A batch is fetched when it is asked for, so nobody knows the last one."""
    patch.setattr("portico.loading.loaders.with_last_flag", lambda batches: ((batch, False) for batch in batches))


def windows_batch_by_batch(patch):
    """The batches of a window are fetched between its training steps."""

    class Window:
        def __init__(self, batches, size):
            self.batches, self.size = batches, size

        def __len__(self):
            return self.size

        def __iter__(self):
            return itertools.islice(self.batches, self.size)

    patch.setattr(DataMethods, "get_batch_samples", lambda self, batches, size, device: (Window(batches, size), None))


def feed_without_length(patch):
    """Lightning does not know how many batches come."""
    patch.delattr(TrainFeed, "__len__")


# Gradients and steps


def clipping_by_groups(patch):
    """The norm is summed in the order of the optimizer's groups, as Lightning clips."""

    def clip(self, model):
        groups = self.optimizer.param_groups
        parameters = [parameter for group in groups for parameter in group["params"]]
        return self.accelerator.clip_grad_norm_(parameters, self.args.max_grad_norm)

    patch.setattr(TrainingMethods, "_clip_grad_norm", clip)


def no_norm_without_clipping(patch):
    """Gradients that are not clipped are not measured."""
    patch.setattr(TrainingMethods, "_get_grad_norm", lambda self, model, grad_norm=None: grad_norm)


def lightning_divides(patch):
    """Lightning's division by the number of batches in a window comes on top."""
    patch.setattr("portico.lightning_trainer.take_losses_undivided", lambda trainer: None)


def windows_taken_for_full(patch):
    """The last window of an epoch is divided by the size of a full one."""
    full = property(lambda self: self.args.gradient_accumulation_steps, lambda self, value: None)
    patch.setattr(portico.Trainer, "current_gradient_accumulation_steps", full, raising=False)


def no_count_of_items(patch):
    """Nobody counts the labels of a window."""
    patch.setattr(DataMethods, "_get_num_items_in_batch", lambda self, window, device: None)


def losses_divided_twice(patch):
    """A loss that is scaled already is divided by the window."""
    patch.setattr(StepMethods, "_is_scaled_for_accumulation", lambda self, num_items: False)


def open_windows_stepped_on(patch):
    """Lightning steps on the last batch of the data, even inside a window."""

    def step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
        optimizer_closure()
        optimizer.optimizer.step()
        self._training_run.after_optimizer_step()

    patch.setattr(TrainerModule, "optimizer_step", step)


def gradients_zeroed_late(patch):
    """Gradients are zeroed before the next backward pass, as Lightning has it, and stay until then."""
    end_batch = TrainingRun.end_batch

    def keep_gradients(self, batch_idx):
        self.facade.model.zero_grad = lambda: None
        try:
            end_batch(self, batch_idx)
        finally:
            del self.facade.model.zero_grad

    patch.setattr(TrainingRun, "end_batch", keep_gradients)
    patch.setattr(
        TrainerModule, "optimizer_zero_grad", lambda self, epoch, batch_idx, optimizer: optimizer.zero_grad()
    )


def backward_deferred(patch):
    """Even a training step of the user's own leaves its backward pass to Lightning."""
    patch.setattr(StepMethods, "_runs_own_backward", False)


def schedule_standing_still(patch):
    """The schedule is not stepped after a step."""
    patch.setattr(TrainerModule, "lr_scheduler_step", lambda self, scheduler, metric: None)


def plateau_standing_still(patch):
    """The schedule is not stepped after an evaluation."""
    patch.setattr("portico.facade.evaluation.steps_after_evaluation", lambda scheduler: False)


def everything_decayed(patch):
    """Weight decay applies to biases and normalisations too."""
    names = "portico.facade.optimization.decay_parameter_names"
    patch.setattr(names, lambda model: [name for name, _ in model.named_parameters()])


def rate_after_the_schedule(patch):
    """The logged rate is that of the next step."""
    patch.setattr(TrainingRun, "after_optimizer_step", lambda self: self._fire("on_optimizer_step"))


def infinite_losses_counted(patch):
    """A loss that is not finite spoils the mean."""

    def add(self, loss, inputs):
        self.facade._tr_loss += loss
        self.unfinished = None

    patch.setattr(TrainingRun, "add_loss", add)


def smoothing_unshifted(patch):
    """Label smoothing of a causal model compares each logit with its own token."""
    patch.setattr("portico.facade.steps.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", {})


# Steering


def nothing_between_steps(patch):
    """No logs, evaluations or checkpoints."""
    patch.setattr(TrainingRun, "_log_save_evaluate", lambda self: None)


def training_not_stopped(patch):
    """Neither side hears that the other wants to stop."""
    patch.setattr(EventBridge, "_agree_on_stopping", lambda self, trainer: None)
    patch.setattr(TrainingRun, "batches", _unheeding(TrainingRun.batches))


def epoch_not_stopped(patch):
    """Nobody hears that an epoch shall end."""
    patch.setattr(TrainingRun, "batches", _unheeding(TrainingRun.batches))


def _unheeding(batches):
    def all_batches(self):
        control = self.facade.control
        for batch in batches(self):
            yield batch
            control = self.facade.control
            control.should_epoch_stop = control.should_training_stop = False

    return all_batches


def best_model_left(patch):
    """The last model stays instead of the best."""
    patch.setattr(portico.Trainer, "_load_best_model", lambda self: None)


def model_kept(patch):
    """A second run goes on with the model of the first."""
    patch.setattr(portico.Trainer, "_renew_model", lambda self, trial: None)


def rng_brought_back_early(patch):
    """Random states come back before the first window is fetched."""
    open_epoch = TrainingRun._epoch_loader

    def early(self):
        loader, first_step, late_rng = open_epoch(self)
        if late_rng:
            load_rng_state(self.checkpoint, self.facade.args)
        return loader, first_step, False

    patch.setattr(TrainingRun, "_epoch_loader", early)


def rng_not_brought_back(patch):
    """Random states stay as they are."""
    patch.setattr("portico.facade.saving.load_rng_state", lambda *args: None)


def optimizer_started_anew(patch):
    """The optimizer of a resumed run knows nothing of the run before."""
    patch.setattr("portico.facade.saving.load_optimizer_and_scheduler", lambda facade, folder: None)


def other_rng_saved(patch):
    """A checkpoint holds random states of another moment."""

    def save(folder, args):
        with torch.random.fork_rng():
            torch.rand(1)
            saved(folder, args)

    saved = portico.checkpoint.rng.save_rng_state
    patch.setattr("portico.facade.saving.save_rng_state", save)


def callbacks_not_restored(patch):
    """Callbacks of a resumed run start anew."""
    patch.setattr("portico.facade.saving.restore_callbacks", lambda facade: None)


def arguments_pickled_as_ours(patch):
    """A checkpoint's arguments need portico to be read."""
    patch.setattr("portico.checkpoint.writer.as_transformers_arguments", lambda args: args)


# Evaluation


def last_batch_left_whole(patch):
    """A loss counts as often as a full batch has examples, in the last batch too."""
    patch.setattr(FacadeAccelerator, "gather_for_metrics", lambda self, data, use_gather_object=False: data)


def dropout_left_on(patch):
    """The model is not put into evaluation mode."""
    start = EvaluationSession.start

    def stay(self):
        start(self)
        self.facade.model.train()

    patch.setattr(EvaluationSession, "start", stay)


def training_mode_restored(patch):
    """The model is back in training mode after an evaluation, as Lightning has it."""
    patch.setattr(TrainerModule, "on_validation_model_train", lambda self: self.train())
    patch.setattr(TrainerModule, "on_test_model_train", lambda self: self.train())


def padded_with_zero(patch):
    """Short rows are filled with what could be a value."""
    patch.setattr("portico.evaluation.column._PADDING_INDEX", 0)


def names_without_prefix(patch):
    """Metrics keep the names that the user gave."""
    patch.setattr(EvaluationSession, "_prefixed", lambda self, metrics: metrics)


# What the user gave


def ignoring(*names):
    """Return the switch that lets portico ignore arguments, data or a subclass given to :func:`parity.peers.run`."""

    def switch(patch):
        patch.setattr(peers, "run", _dropping(peers.run, names))

    return switch


def ignoring_part(name):
    """Return the switch that lets portico ignore a part given to the trainer's constructor."""

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


# What is told


def mistakes_of_one_kind(patch):
    """Whatever goes wrong is told by the same plain exception."""
    for owner, names in (
        (portico.Trainer, ("__init__", "train", "evaluate", "predict")),
        (portico.Trainer, ("get_eval_dataloader", "get_learning_rates", "get_optimizer_group")),
        (portico.TrainingArguments, ("__post_init__",)),
    ):
        for name in names:
            patch.setattr(owner, name, _told_plainly(getattr(owner, name)))


def _told_plainly(method):
    @functools.wraps(method)
    def plain(self, *args, **kwargs):
        try:
            return method(self, *args, **kwargs)
        except Exception as error:
            raise Exception("something went wrong") from error

    return plain


def nothing_said(patch):
    """A run announces nothing."""
    for place in ("facade.running.announce_training", "evaluation.session.announce_evaluation"):
        patch.setattr(f"portico.{place}", lambda *args, **kwargs: None)


def nothing_uploaded(patch):
    """The hub hears of nothing but the repository, and there is no card."""
    for name in ("push_to_hub", "_push_from_checkpoint", "create_model_card"):
        patch.setattr(portico.Trainer, name, lambda self, *args, **kwargs: None)


def nothing_rescaled(patch):
    """AllenNLP's trainer measures gradients and leaves them as they are."""
    descent = "portico.gradient_descent.descent.rescale_gradients"
    patch.setattr(descent, lambda model, grad_norm: rescale_gradients(model, True))


def overrides_unheard(patch):
    """What a subclass has in the place of a method of the trainer is not called."""

    def forget(subclass, **options):
        own = {name for name in vars(subclass) if not name.startswith("__")}
        for name in own & set(dir(portico.Trainer)):
            delattr(subclass, name)

    patch.setattr(portico.Trainer, "__init_subclass__", classmethod(forget))
