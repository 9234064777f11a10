"""Optimizer and learning-rate schedule."""

from typing import Any

import torch
from torch import nn
from transformers.optimization import get_scheduler
from transformers.trainer import Trainer as TransformersTrainer

from portico.contract import Facade
from portico.errors import InputError, InputTypeError, MissingPackageError
from portico.optim import build_optimizer, decay_parameter_names, learning_rate, parameter_groups


def _check_optimizer_options(options: Any) -> None:
    parts = [part for part in (options or "").replace(" ", "").split(",") if part.count("=") != 1]
    if options and parts:
        raise InputError(
            f"`optim_args={options!r}` has the part {parts[0]!r}, which is not of the form `name=value`; separate the "
            "options of the optimizer by commas, as in 'momentum=0.9,nesterov=true'."
        )


def _unusable_optimizer(args: Any, error: Exception) -> str:
    options = f" with `optim_args={args.optim_args!r}`" if args.optim_args else ""
    name = getattr(args.optim, "value", args.optim)
    reason = str(error).rstrip(".")
    return f"`optim={name!r}`{options} cannot be used: {reason}. Or set `optim` to another name, as 'adamw_torch'."


def _unusable_schedule(args: Any, error: Exception) -> str:
    name = getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)
    reason = str(error).rstrip(".")
    return (
        f"`lr_scheduler_type={name!r}` with `lr_scheduler_kwargs={args.lr_scheduler_kwargs!r}` cannot be used: "
        f"{reason}. Set `lr_scheduler_kwargs` to what this schedule takes, or choose another one."
    )


class OptimizationMethods(Facade):
    """How the facade makes and reads optimizers and schedules."""

    def create_optimizer_and_scheduler(self, num_training_steps: int) -> None:
        """Make the optimizer and the schedule of a run of ``num_training_steps`` optimizer steps."""
        self.create_optimizer()
        self.create_scheduler(num_training_steps=num_training_steps)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Make the optimizer that ``args.optim`` names, unless there is one."""
        if self.optimizer is None:
            model = self.model if model is None else model
            assert model is not None
            groups = parameter_groups(model, self.get_decay_parameter_names(model), self.args.weight_decay)
            optimizer_cls, kwargs = self.optimizer_cls_and_kwargs or self.get_optimizer_cls_and_kwargs(
                self.args, model
            )
            self.optimizer = build_optimizer(model, groups, optimizer_cls, kwargs)
        optimizer: torch.optim.Optimizer = self.optimizer
        return optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> Any:
        """Make the schedule that ``args.lr_scheduler_type`` names, unless there is one.

        Raises:
            InputError: If ``args.lr_scheduler_kwargs`` do not go with it (a ``TypeError`` too for an unknown one).
        """
        if self.lr_scheduler is None:
            try:
                self.lr_scheduler = get_scheduler(
                    self.args.lr_scheduler_type,
                    optimizer=self.optimizer if optimizer is None else optimizer,
                    num_warmup_steps=self.args.get_warmup_steps(num_training_steps),
                    num_training_steps=num_training_steps,
                    scheduler_specific_kwargs=self.args.lr_scheduler_kwargs,
                )
            except (TypeError, ValueError) as error:
                kind = InputTypeError if isinstance(error, TypeError) else InputError
                raise kind(_unusable_schedule(self.args, error)) from error
            self._created_lr_scheduler = True
        return self.lr_scheduler

    @staticmethod
    def get_optimizer_cls_and_kwargs(args: Any, model: Any = None) -> tuple[Any, dict[str, Any]]:
        """Return the class of the optimizer that ``args.optim`` names, and its keyword arguments.

        Raises:
            InputError: If its package is missing (an ``ImportError`` too), or other arguments do not go with it.
        """
        _check_optimizer_options(args.optim_args)
        try:
            chosen: tuple[Any, dict[str, Any]] = TransformersTrainer.get_optimizer_cls_and_kwargs(args, model)
        except ImportError as error:
            raise MissingPackageError(_unusable_optimizer(args, error)) from error
        except ValueError as error:
            raise InputError(_unusable_optimizer(args, error)) from error
        return chosen

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """Return the names of the parameters that weight decay applies to."""
        return decay_parameter_names(model)

    def get_num_trainable_parameters(self) -> int:
        """Return the number of parameters that training changes."""
        return sum(parameter.numel() for parameter in self.model.parameters() if parameter.requires_grad)

    def get_learning_rates(self) -> list[float]:
        """Return the learning rate of every parameter group.

        Raises:
            ValueError: If there is no optimizer yet.
        """
        return [group["lr"] for group in self._existing_optimizer().param_groups]

    def get_optimizer_group(self, param: Any = None) -> Any:
        """Return the parameter group of ``param``, or all groups without it.

        Raises:
            ValueError: If there is no optimizer yet.
        """
        groups = self._existing_optimizer().param_groups
        if param is None:
            return [group["params"] for group in groups]
        return next((group for group in groups if any(member is param for member in group["params"])), None)

    def _existing_optimizer(self) -> torch.optim.Optimizer:
        if self.optimizer is None:
            raise ValueError("There is no optimizer yet; call `train()` or `create_optimizer()` first.")
        optimizer: torch.optim.Optimizer = self.optimizer
        return optimizer

    def _get_learning_rate(self) -> float:
        return learning_rate(self.optimizer, self.lr_scheduler)

    def _create_optimizer_and_scheduler_for(self, num_training_steps: int) -> None:
        """Make both for a new run, through whichever method a subclass overrides."""
        if self._created_lr_scheduler:
            # The schedule of an earlier run counts that run's steps.
            self.lr_scheduler = None
            self._created_lr_scheduler = False
        overridden = (
            type(self).create_optimizer_and_scheduler is not OptimizationMethods.create_optimizer_and_scheduler
        )
        if overridden:
            self.create_optimizer_and_scheduler(num_training_steps)
        else:
            self.create_optimizer()
            self.create_scheduler(num_training_steps=num_training_steps)
        for name in ("model", "optimizer", "lr_scheduler"):
            setattr(self.callback_handler, name, getattr(self, name))
