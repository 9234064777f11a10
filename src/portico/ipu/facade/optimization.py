"""Optimizers of programs, made from arguments."""

import functools
from typing import Any

import torch
from torch import nn

from portico.ipu import backend
from portico.ipu.facade.conversion import OptimizerConversion, rebind_schedule
from portico.trainer import Trainer


class OptimizerMethods(Trainer):
    """How the facade makes the optimizer of its program."""

    original_model: Any

    def create_optimizer(self, model: nn.Module | None = None) -> Any:
        """Make AdamW, or LAMB if the arguments say so, unless there is an optimizer."""
        if self.optimizer is None:
            self.optimizer = self._lamb() if self.args.uses_lamb else self._adamw()
        return self.optimizer

    def pytorch_optimizer_to_poptorch(
        self, optimizer: torch.optim.Optimizer, model: nn.Module, pipelined_model: nn.Module
    ) -> Any:
        """Return the counterpart of an optimizer of torch, with its hyperparameters and its state.

        Args:
            optimizer: SGD, Adam, AdamW or RMSprop of torch.
            model: The model whose parameters it has.
            pipelined_model: The model that is trained; parameters are matched by name.

        Raises:
            KeyError: If there is no counterpart.
            InputError: If a hyperparameter has none.
        """
        return OptimizerConversion(model, pipelined_model).counterpart(optimizer, self._optimizer_options())

    def _take_optimizer(self, model: nn.Module) -> None:
        """Let the user's optimizer train the copy of the model; bind the user's schedule to what became of it."""
        if self.optimizer is None:
            return
        if isinstance(self.optimizer, backend.optim.Optimizer):
            conversion = OptimizerConversion(model, self.model)
            for group in self.optimizer.param_groups:
                group["params"] = conversion.trained_parameters(group["params"])
            return
        users, self.optimizer = self.optimizer, self.pytorch_optimizer_to_poptorch(self.optimizer, model, self.model)
        if isinstance(self.lr_scheduler, functools.partial):
            self.lr_scheduler = self.lr_scheduler(self.optimizer)
        elif getattr(self.lr_scheduler, "optimizer", None) is users:
            rebind_schedule(self.lr_scheduler, self.optimizer)

    def _adamw(self) -> Any:
        args = self.args
        decayed = set(self.get_decay_parameter_names(self.model))
        trainable = [(name, parameter) for name, parameter in self.model.named_parameters() if parameter.requires_grad]
        groups = [
            {"params": [p for name, p in trainable if name in decayed], "weight_decay": args.weight_decay},
            {"params": [p for name, p in trainable if name not in decayed], "weight_decay": 0.0},
        ]
        optimizer = backend.optim.AdamW(
            groups,
            lr=args.learning_rate,
            betas=(args.adam_beta1, args.adam_beta2),
            eps=args.adam_epsilon,
            bias_correction=False,
            **self._optimizer_options(),
        )
        optimizer.variable_attrs.markAsConstant("weight_decay")
        return optimizer

    def _lamb(self) -> Any:
        args = self.args
        decayed = set(self.get_decay_parameter_names(self.model))
        trainable = [(name, parameter) for name, parameter in self.model.named_parameters() if parameter.requires_grad]
        biases = [p for name, p in trainable if "bias" in name]
        rest = [p for name, p in trainable if name not in decayed and "bias" not in name]
        options = self._optimizer_options()
        # LAMB scales its steps by norms instead of clipping by them.
        options.pop("max_grad_norm")
        optimizer = backend.optim.LAMB(
            [
                {"params": [p for name, p in trainable if name in decayed], "weight_decay": args.weight_decay},
                {"params": biases, "weight_decay": 0.0, "max_weight_norm": 0.0},
                {"params": rest, "weight_decay": 0.0},
            ],
            lr=args.learning_rate,
            eps=args.adam_epsilon,
            bias_correction=not args.lamb_no_bias_correction,
            **options,
        )
        for name in ("weight_decay", "max_weight_norm"):
            optimizer.variable_attrs.markAsConstant(name)
        return optimizer

    def _optimizer_options(self) -> dict[str, Any]:
        dtype = torch.float32 if self.args.fp32 else torch.float16
        return {
            "loss_scaling": self.args.loss_scaling,
            "accum_type": dtype,
            "first_order_momentum_accum_type": dtype,
            "second_order_momentum_accum_type": torch.float32,
            "max_grad_norm": self.args.max_grad_norm or None,
        }

    def _clip_grad_norm(self, model: nn.Module) -> Any:
        # The program clips, and its gradients never reach the host.
        return None

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        return None
