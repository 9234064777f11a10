"""The trainer's module and data under the user's own ``lightning.Trainer``.

``lightning.Trainer(max_epochs=3).fit(trainer.module, trainer.datamodule)`` trains with the loss, optimizer, schedule
and data of the training arguments. Lightning's trainer says where, for how long, and when to validate, save and stop,
as for any module. The steps run as in :mod:`portico.loop.run`, so on CPU the losses equal the losses of
``trainer.train()``. Callbacks of Hugging Face get their events, and their logs reach Lightning's loggers.
"""

import copy
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    BatchSizeFinder,
    Callback,
    GradientAccumulationScheduler,
    LearningRateFinder,
    StochasticWeightAveraging,
)

from portico.compat import lightning as lightning_compat
from portico.compat.transformers import logger
from portico.distributed.precision import autocast_forward
from portico.distributed.strategies import ModelDDPStrategy, refuse_own_backward
from portico.errors import InputError
from portico.loop.datamodule import TrainFeed
from portico.loop.model_setup import prepared_for_training
from portico.loop.plan import RunPlan
from portico.loop.run import EventBridge

if TYPE_CHECKING:
    from portico.arguments import TrainingArguments
    from portico.compat.annotations import Loader
    from portico.loop.hooks import TrainerHooks
    from portico.loop.module import TrainerModule

# Training arguments that Lightning's trainer decides instead, and the value that asks for nothing.
_DECIDED_BY_LIGHTNING = {
    "eval_strategy": "no",
    "save_strategy": "no",
    "load_best_model_at_end": False,
    "auto_find_batch_size": False,
    "push_to_hub": False,
}


class PlainTrainerBridge(EventBridge):
    """Connects a run of the user's ``lightning.Trainer`` with the trainer whose module it runs.

    ``TrainerModule.configure_callbacks`` adds it; its hooks enclose the hooks of the module.
    """

    def __init__(self, module: "TrainerModule", trainer: "TrainerHooks") -> None:
        self.module, self.hf_trainer = module, trainer
        self._contexts = ExitStack()
        # Here, before the hooks of the callbacks, which may fail with the module in their own words.
        for callback in module.trainer.callbacks:  # type: ignore[attr-defined]  # set by a connector
            _check_callback(callback, module)

    # Around the run

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        _check_backend(trainer, self.hf_trainer)
        if lightning_compat.launches_workers(trainer.strategy):
            # This is a worker. With a launcher the strategy would seem not to have started its workers.
            lightning_compat.drop_launcher(trainer.strategy)
        self._contexts.enter_context(_in_charge(trainer, self.module, self.hf_trainer))
        self._contexts.callback(_remove, self, trainer)
        self._contexts.enter_context(autocast_forward(self.module.model, trainer.strategy))
        self._contexts.callback(lightning_compat.end_loops_with_the_data(trainer))
        if stage == "fit":
            self._prepare_fit(trainer)

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self._contexts.close()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self.module.abandon_evaluation()
        self._contexts.close()

    def _prepare_fit(self, pl_trainer: pl.Trainer) -> None:
        trainer, args = self.hf_trainer, self.hf_trainer.args
        trainer._portico.refuse_uncalled_hooks()
        if trainer._portico.runs_backward_in_step:
            refuse_own_backward(pl_trainer.strategy)
        _check_settings(pl_trainer, args)
        self._set(pl_trainer, "accumulate_grad_batches", args.gradient_accumulation_steps)
        if trainer.eval_dataset is None and lightning_compat.validates_own_data(pl_trainer):
            self._set(pl_trainer, "limit_val_batches", 0)
        self._contexts.enter_context(_training(trainer))
        self._contexts.enter_context(lightning_compat.unscaled_losses(pl_trainer))
        given = lightning_compat.get_user_train_loader(pl_trainer)
        if given is not None and lightning_compat.overfits(pl_trainer):
            given = lightning_compat.disable_shuffling(given)
        loader = trainer.get_train_dataloader() if given is None else _prepare_loader(given, trainer)
        plan, self._is_limited = _plan_of(pl_trainer, trainer, loader)
        self.run = trainer._portico.set_up_run(plan, loader)
        self.run.is_lightnings = True
        self._contexts.enter_context(self.run.backward.serving(trainer.accelerator))
        self.module.run = trainer._portico.datamodule.run = self.run
        if given is not None:
            lightning_compat.use_train_loader(pl_trainer, TrainFeed(plan.steps_in_epoch, self.run.batches))
        overruled = [name for name, nothing in _DECIDED_BY_LIGHTNING.items() if getattr(args, name) != nothing]
        logger.info(
            f"`lightning.Trainer` decides when to validate, save and stop; {', '.join(overruled) or 'no argument'} of "
            "the training arguments has no effect."
        )

    def _set(self, pl_trainer: pl.Trainer, name: str, value: Any) -> None:
        """Set an attribute of the user's trainer until the end of the run."""
        self._contexts.callback(setattr, pl_trainer, name, getattr(pl_trainer, name))
        setattr(pl_trainer, name, value)

    def _agree_on_stopping(self, trainer: pl.Trainer) -> None:
        control, state = self.hf_trainer.control, self.hf_trainer.state
        # Lightning would validate once more if it were told to stop where it stops by itself.
        if self._is_limited and state.global_step >= self.run.plan.max_steps:
            control.should_training_stop = False
        super()._agree_on_stopping(trainer)

    # Lightning's checkpoints

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        if trainer.state.fn == "fit":
            self.run.resume_at(checkpoint)


def _remove(bridge: PlainTrainerBridge, pl_trainer: pl.Trainer) -> None:
    """Remove ``bridge`` from the user's trainer, which may run something else next."""
    pl_trainer.callbacks = [callback for callback in pl_trainer.callbacks if callback is not bridge]  # type: ignore[attr-defined]


def _check_backend(pl_trainer: pl.Trainer, trainer: "TrainerHooks") -> None:
    """Refuse another strategy for the model of a backend, whose strategy runs the model outside torch."""
    own, given = trainer._portico.lightning_trainer.strategy, pl_trainer.strategy
    is_of_backend = type(own).__module__.startswith("portico.") and not isinstance(own, ModelDDPStrategy)
    if is_of_backend and not isinstance(given, type(own)):
        raise InputError(
            f"The model of `{type(trainer).__name__}` runs by {type(own).__name__}, but this `lightning.Trainer` has "
            f"{type(given).__name__}; call `trainer.train()` or `trainer.evaluate()`, or use `portico.Trainer`."
        )


@contextmanager
def _in_charge(pl_trainer: pl.Trainer, module: "TrainerModule", trainer: "TrainerHooks") -> Iterator[None]:
    """Let ``trainer`` work on the devices and processes of ``pl_trainer``, with ``module``, during the block."""
    own = trainer._portico.lightning_trainer
    trainer._portico.module = module
    if trainer.model is not module.model:
        trainer.model = trainer.model_wrapped = module.model
    try:
        _use(trainer, pl_trainer)
        yield
    finally:
        _use(trainer, own)
        # Lightning's `Strategy.teardown` moves the module to the CPU.
        trainer._portico.move_model_to_its_device()


def _use(trainer: "TrainerHooks", pl_trainer: pl.Trainer) -> None:
    trainer._portico.lightning_trainer = pl_trainer
    trainer.args.lightning_strategy = pl_trainer.strategy
    trainer.create_accelerator_and_postprocess()


@contextmanager
def _training(trainer: "TrainerHooks") -> Iterator[None]:
    trainer.is_in_train = True
    try:
        with prepared_for_training(trainer.model, trainer.args, trainer.neftune_noise_alpha):
            yield
    finally:
        trainer.is_in_train = False


def _check_settings(pl_trainer: pl.Trainer, args: "TrainingArguments") -> None:
    """Refuse settings of ``lightning.Trainer`` that contradict the training arguments, which set accumulation."""
    same = {
        "accumulate_grad_batches": ("gradient_accumulation_steps", (1, args.gradient_accumulation_steps)),
        "gradient_clip_val": ("max_grad_norm", (None, args.max_grad_norm)),
    }
    if every := getattr(pl_trainer, "reload_dataloaders_every_n_epochs"):  # noqa: B009  # set by a connector
        raise InputError(
            f"`lightning.Trainer(reload_dataloaders_every_n_epochs={every})` cannot be used with `trainer.module`, "
            "which reads one training loader in the whole run; leave it out, and define `set_epoch` in the dataset, "
            "which is called in every epoch."
        )
    for name, (argument, allowed) in same.items():
        value = getattr(pl_trainer, name)
        if value not in allowed:
            raise InputError(
                f"`lightning.Trainer({name}={value})` cannot be used with `trainer.module`, whose training arguments "
                f"say `{argument}={getattr(args, argument)}`; leave `{name}` out, and set `{argument}`."
            )


# Callbacks that change what a run of the trainer's module is made of, and what to do instead.
REFUSED_CALLBACKS: Mapping[type[Callback], str] = {
    GradientAccumulationScheduler: "the training arguments say how many batches make a step; set "
    "`gradient_accumulation_steps`",
    LearningRateFinder: "it trains without the callback that counts the steps of the module; give "
    "`portico.callbacks.LearningRateFinder` to the trainer in `lightning_callbacks`, and call `trainer.train()`",
    BatchSizeFinder: "it changes an attribute that the module does not read; give "
    "`portico.callbacks.BatchSizeFinder` to the trainer in `lightning_callbacks`, and call `trainer.train()`",
    BackboneFinetuning: "it needs a module with a `backbone`; derive from `BaseFinetuning`, and freeze parts of "
    "`pl_module.model`",
}


def _check_callback(callback: Callback, module: "TrainerModule") -> None:
    """Refuse a callback that would not do with the module what it does with any other."""
    if module.trainer.state.fn != "fit" and not isinstance(callback, BatchSizeFinder):
        return
    reason = next((why for kind, why in REFUSED_CALLBACKS.items() if isinstance(callback, kind)), None)
    if isinstance(callback, StochasticWeightAveraging) and callback.pl_module_contains_batch_norm(module):
        reason = (
            "for batch normalization it adds an epoch that the plan of the run does not have; use `WeightAveraging`"
        )
    if reason is not None:
        raise InputError(
            f"`lightning.Trainer` has a {type(callback).__name__}, which cannot be used with `trainer.module`; leave "
            f"it out: {reason}."
        )


def _prepare_loader(given: Any, trainer: "TrainerHooks") -> Any:
    if isinstance(given, list | tuple | dict):
        raise InputError(
            f"`lightning.Trainer.fit` got a {type(given).__name__} of loaders to train on; give one loader, or "
            "`trainer.datamodule`."
        )
    return trainer.accelerator.prepare(given)


def _plan_of(pl_trainer: pl.Trainer, trainer: "TrainerHooks", loader: "Loader") -> tuple[RunPlan, bool]:
    """Return the plan of a fit, and whether Lightning's trainer limits it instead of the training arguments."""
    args = trainer.args
    epochs, steps = -1 if pl_trainer.max_epochs is None else pl_trainer.max_epochs, pl_trainer.max_steps

    def plan_for(max_steps: int, num_train_epochs: float) -> RunPlan:
        planned = copy.copy(args)
        planned.max_steps, planned.num_train_epochs = max_steps, num_train_epochs
        counts: tuple[int, int, int, float, int, int, int]
        counts = trainer.set_initial_training_values(planned, loader)  # type: ignore[assignment]  # none of it unknown
        return RunPlan(*counts, gradient_accumulation_steps=args.gradient_accumulation_steps)

    is_trial = lightning_compat.is_fast_dev_run(pl_trainer)
    if is_trial or (epochs < 0 and steps < 0):
        return plan_for(args.max_steps, args.num_train_epochs), is_trial
    plans = [plan_for(steps, args.num_train_epochs)] if steps >= 0 else []
    if epochs >= 0:
        plans.append(plan_for(-1, epochs))
    return min(plans, key=lambda plan: plan.max_steps), True
