"""Controls of gradients, optimizer steps, schedules and the sum of losses."""

import portico
from portico.compat.lightning import UnnormalizedLoss
from portico.loop.module import TrainerModule
from portico.loop.run import TrainingRun
from portico.trainer import Trainer


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
    patch.setattr(Trainer, "sums_losses", lambda self, num_items: False)


def open_window_stepped(patch):
    """The optimizer steps on the last batch of the data, even inside a window, as Lightning does."""

    def step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
        optimizer_closure()
        optimizer.optimizer.step()
        self.run.after_optimizer_step()

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
    patch.setattr(Trainer, "runs_backward_in_step", False)


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
    patch.setattr(TrainingRun, "after_optimizer_step", lambda self: self._fire("on_optimizer_step"))


def infinite_losses_summed(patch):
    """Losses that are not finite are part of the logged mean."""

    def add(self, loss, inputs):
        self.tr_loss += loss
        self.step_to_count = None

    patch.setattr(TrainingRun, "add_loss", add)


def smoothing_not_shifted(patch):
    """Label smoothing of a causal model compares each logit with its own token instead of the next."""
    patch.setattr(Trainer, "_smoothing_options", lambda self, model: {})


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
