"""DeepSpeed behind the training argument ``deepspeed``: as under transformers, its engine trains and writes its files.

:mod:`portico.checkpoint.engine_files` has its files. ``strategy="deepspeed_stage_2"`` is Lightning's own strategy.
"""

import os
from collections.abc import Callable
from copy import deepcopy
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.strategies import DDPStrategy, Strategy
from lightning.pytorch.trainer.states import TrainerFn
from torch import nn
from torch.optim import Optimizer
from typing_extensions import override

from portico.compat.lightning import run_closure
from portico.compat.transformers import (
    HfTrainerDeepSpeedConfig,
    HFTrainingArguments,
    logger,
    set_hf_deepspeed_config,
)
from portico.distributed.settings import read_settings
from portico.errors import InputError, MissingPackageError

if TYPE_CHECKING:
    from portico.compat.annotations import Scheduler

_STAGES = (0, 1, 2, 3)
# Settings that are untested, or whose checkpoints cannot be read, and what to do instead.
_REFUSED = {
    "checkpoint.writer": "leave it out, so that checkpoints are files of torch",
    "checkpoint.load_universal": "resume on as many processes as the checkpoint was saved on",
    "datastates_ckpt": "leave it out, so that checkpoints are files of torch",
    "tensor_parallel": "leave it out, or set `parallelism_config={'tp_size': ...}` without `deepspeed`",
    "amp": "set `bf16=True` in the training arguments",
}
# Training arguments that the engine would ignore or break, and what to do instead.
_REFUSED_ARGUMENTS = {
    "async_save": "leave it out, since the engine writes its files at once",
    "auto_find_batch_size": "set `per_device_train_batch_size`",
    "bf16_full_eval": "set `bf16=True`",
    "fp16_full_eval": "set `fp16=True`",
    "parallelism_config": "leave it out, or shard the model by `fsdp=True` instead",
    "precision": "set `bf16=True` or `fp16=True`",
    "stop_on_nan": "leave it out: the engine has stepped when a loss is looked at",
    "torch_compile": "leave it out",
}


class EngineConfig(HfTrainerDeepSpeedConfig):
    """The configuration in ``args.deepspeed``, whose ``"auto"`` values are filled as by transformers.

    Transformers' class fills them with methods of accelerate's class, which need not be installed.

    Raises:
        InputError: If the configuration cannot be used, or contradicts the training arguments.
    """

    def __init__(self, args: HFTrainingArguments) -> None:
        assert args.deepspeed
        given: Any = args.deepspeed
        self.config: dict[str, Any] = deepcopy(read_settings("deepspeed", given))
        self.mismatches: list[str] = []
        self._dtype: torch.dtype | None = None
        self.args = args
        zero = self.config.get("zero_optimization")
        if not isinstance(zero, dict) or zero.get("stage", 0) not in _STAGES:
            raise InputError(
                f"The configuration in `deepspeed` has `zero_optimization={zero!r}`; set it to an object with a "
                "`stage` from 0 to 3, such as {'stage': 2}."
            )
        for name, instead in _REFUSED.items():
            if self.get_value(name) is not None:
                raise InputError(f"`{name}` in the DeepSpeed configuration is not supported here; {instead}.")
        if "nvme" in self._offload_devices():
            raise InputError(
                "`device='nvme'` in the DeepSpeed configuration is not supported here, since a checkpoint would "
                "not hold what is on the drive; set it to 'cpu'."
            )

    @property
    def stage(self) -> int:
        return int(self.get_value("zero_optimization.stage", 0))

    def fill(self, model: nn.Module | None = None, num_training_steps: int | None = None) -> dict[str, Any]:
        """Fill in what the training arguments say, and ``model`` and the length of the run if they are known."""
        args = self.args
        self.trainer_config_process(args)
        for precision in ("bf16", "fp16"):
            if getattr(args, precision) and precision not in self.config:
                self.config[precision] = {"enabled": True}
        self._dtype = torch.bfloat16 if self.is_true("bf16.enabled") else self._dtype
        self._dtype = torch.float16 if self.is_true("fp16.enabled") else self._dtype
        # A size that is left out is the size that the loaders have, and not DeepSpeed's default.
        self.config.setdefault("train_micro_batch_size_per_gpu", args.per_device_train_batch_size)
        self.config.setdefault("gradient_accumulation_steps", args.gradient_accumulation_steps)
        self.config["steps_per_print"] = float("inf")
        if args.max_grad_norm > 0 and "gradient_clipping" not in self.config:
            logger.warning_once(
                f"`max_grad_norm={args.max_grad_norm}` has no effect, as under transformers, since the DeepSpeed "
                "configuration has no `gradient_clipping`; set it to 'auto'.",
                stacklevel=2,
            )
        if num_training_steps is not None:
            try:
                self.trainer_config_finalize(args, model, num_training_steps)
            except ValueError as error:
                raise InputError(str(error)) from error
        elif self.mismatches:
            raise InputError(
                f"The DeepSpeed configuration contradicts the training arguments: {' '.join(self.mismatches)}; set "
                "these values to 'auto'."
            )
        return self.config

    def offloads_optimizer(self) -> bool:
        return self.get_value("zero_optimization.offload_optimizer.device", "none") != "none"

    def _offload_devices(self) -> set[object]:
        return {self.get_value(f"zero_optimization.offload_{part}.device") for part in ("optimizer", "param")}

    # Of accelerate's `HfDeepSpeedConfig`, from which transformers' class inherits them where accelerate is installed.

    @override
    def find_config_node(self, ds_key_long: str) -> tuple[Any, str]:
        *path, name = ds_key_long.split(".")
        node: Any = self.config
        for part in path:
            node = node.get(part)
            if not isinstance(node, dict):
                return None, name
        return node, name

    @override
    def get_value(self, ds_key_long: str, default: Any = None) -> Any:
        node, name = self.find_config_node(ds_key_long)
        return default if node is None else node.get(name, default)

    @override
    def is_true(self, ds_key_long: str) -> bool:
        return bool(self.get_value(ds_key_long))

    @override
    def is_zero3(self) -> bool:
        return self.stage == 3


class _WithoutDestructor(LightningOptimizer):
    """Lightning's wrapper of an optimizer, without the destructor that it inherits from the optimizer's class.

    DeepSpeed's optimizer for states in host memory frees its part in C++ there, which must happen only once.
    """

    def __del__(self) -> None:
        """Leave the optimizer as it is."""


class EngineStrategy(DDPStrategy):
    """Processes as in ``DDPStrategy``, in which DeepSpeed's engine runs backward, clips, steps and shares the states.

    As under accelerate, the engine takes the step inside the last backward pass of a window, and a schedule that its
    configuration names moves with it.

    Attributes:
        places_model: Whether the trainer leaves it to the strategy to move the model to its device.
        wrapped_model: The engine, once it has been started.
        zero_stage_3: Whether each process has only a part of the weights.
    """

    places_model = True

    def __init__(self, config: EngineConfig, **options: Any) -> None:
        super().__init__(**options)
        self.config = config
        self.wrapped_model: Any = None
        self.zero_stage_3 = config.is_zero3()

    def check(self, *, has_optimizer: bool) -> None:
        """Raise ``InputError`` for what would fail once the engine is started."""
        if has_optimizer:
            raise InputError(
                "Passing `optimizers` is not allowed if DeepSpeed is enabled: the engine divides the parameters of an "
                "optimizer that is made for it; override `create_optimizer` and `create_scheduler`."
            )
        EngineConfig(self.config.args).fill()

    @property
    def skips_on_overflow(self) -> bool:
        """Whether a step may be skipped because a gradient overflows."""
        return self.config.is_true("fp16.enabled")

    @property
    def input_dtype(self) -> torch.dtype | None:
        """The type of the model's inputs, if they are no integers."""
        return None if self.wrapped_model is None else self.config.dtype()

    def norm_of_clipped_gradients(self) -> Any:
        """Return the norm that the gradients of the last step had before they were clipped, ``None`` at stage 0."""
        return self.wrapped_model.get_global_grad_norm()

    @override
    def setup(self, trainer: pl.Trainer) -> None:
        assert self.accelerator is not None
        module: Any = self.lightning_module
        if trainer.checkpoint_callbacks:
            self.save_checkpoint()
        self.accelerator.setup(trainer)
        if trainer.state.fn is TrainerFn.FITTING:
            self.setup_optimizers(trainer)
        elif self.zero_stage_3:
            module.start_engine()
        else:
            self.model_to_device()
        self.setup_precision_plugin()

    @property
    @override
    def optimizers(self) -> list[Optimizer]:
        return self._optimizers

    @optimizers.setter
    def optimizers(self, optimizers: list[Optimizer]) -> None:
        wrapped: list[Any] = [_WithoutDestructor(optimizer) for optimizer in optimizers]
        Strategy.optimizers.fset(self, wrapped)  # type: ignore[attr-defined]
        self._optimizers = optimizers

    @override
    def setup_optimizers(self, trainer: pl.Trainer) -> None:
        super().setup_optimizers(trainer)
        if self.wrapped_model.lr_scheduler is not None:
            self.lr_scheduler_configs = []  # the engine moves it

    def start_engine(
        self,
        model: nn.Module,
        num_training_steps: int,
        make_optimizer: Callable[[], Optimizer],
        make_scheduler: Callable[[Optimizer], "Scheduler"],
    ) -> tuple[Optimizer, "Scheduler"]:
        """Wrap ``model``; return optimizer and schedule, which the configuration names or the two functions make."""
        config = self.config.fill(model, num_training_steps)
        options: dict[str, Any] = {}
        if "optimizer" not in config:
            options["optimizer"] = make_optimizer()
            config["zero_allow_untested_optimizer"] = True
            if self.config.offloads_optimizer() and config.get("zero_force_ds_cpu_optimizer", True):
                options["optimizer"] = _on_host(options["optimizer"])
        else:
            options["model_parameters"] = [param for param in model.parameters() if param.requires_grad]
            if "scheduler" not in config:
                options["lr_scheduler"] = make_scheduler
        self._initialize(model, config, **options)
        engine = self.wrapped_model
        return engine.basic_optimizer, engine.lr_scheduler or make_scheduler(engine.basic_optimizer)

    def start_inference(self, model: nn.Module) -> None:
        """Wrap ``model`` for evaluations without a training; needed only if its weights are spread (stage 3)."""
        for section in ("optimizer", "scheduler"):
            self.config.config.pop(section, None)
        self._initialize(model, self.config.fill(model, 1))

    def _initialize(self, model: nn.Module, config: dict[str, Any], **options: Any) -> None:
        import deepspeed
        from deepspeed.accelerator import get_accelerator

        kind = get_accelerator().device_name()
        if kind != self.root_device.type:
            raise InputError(
                f"DeepSpeed has chosen the accelerator {kind!r}, and the run is placed on {self.root_device.type!r}; "
                f"set `DS_ACCELERATOR={self.root_device.type}` in the environment."
            )
        deepspeed.utils.logger.setLevel(self.config.args.get_process_log_level())
        os.environ.setdefault("LOCAL_RANK", str(self.local_rank))  # which it requires, and SLURM does not set
        self.wrapped_model, *_ = deepspeed.initialize(model=model, config=config, **options)

    @override
    def backward(self, closure_loss: torch.Tensor, optimizer: Optimizer | None, *args: Any, **kwargs: Any) -> Any:
        engine = self.wrapped_model
        module: Any = self.lightning_module
        is_last = module.run.makes_step
        closure_loss = self.precision_plugin.pre_backward(closure_loss, module)
        engine.set_gradient_accumulation_boundary(is_last)
        # The trainer divided by the batches of the window; an overridden `training_step` gets accelerate's default.
        kwargs.setdefault("scale_wrt_gas", module.run.backward.inside_step)
        engine.backward(closure_loss, *args, **kwargs)
        if is_last:
            engine.step()
        return self.precision_plugin.post_backward(closure_loss, module)

    @override
    def optimizer_step(self, optimizer: Any, closure: Callable[[], Any], model: Any = None, **kwargs: Any) -> Any:
        module: Any = model or self.lightning_module
        result = run_closure(self.precision_plugin, module, optimizer, closure)
        optimizer.has_stepped = self.wrapped_model.was_step_applied()
        return result

    @override
    def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        """Raise ``InputError``: what Lightning would write are parts of weights and states."""
        raise InputError(
            "Under `deepspeed` there are no checkpoints of Lightning: the engine writes its own files; set "
            "`save_strategy`, and leave `ModelCheckpoint` out."
        )

    @override
    def teardown(self) -> None:
        # Lightning would move the weights and the states of the optimizer, which the engine has placed.
        self.precision_plugin.teardown()
        assert self.accelerator is not None
        self.accelerator.teardown()


def _on_host(optimizer: Optimizer) -> Optimizer:
    """Return DeepSpeed's optimizer for states in host memory, of the kind of ``optimizer``, as accelerate does."""
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    if not isinstance(optimizer, torch.optim.Adam):  # from which AdamW inherits
        raise InputError(
            "`offload_optimizer` in the DeepSpeed configuration keeps Adam's states in host memory, and the optimizer "
            f"is a {type(optimizer).__name__}; set `optim='adamw_torch'`, name the optimizer in the configuration, or "
            "set `zero_force_ds_cpu_optimizer` to false there."
        )
    options = {name: optimizer.defaults[name] for name in ("lr", "weight_decay")}
    return DeepSpeedCPUAdam(optimizer.param_groups, **options, adamw_mode=isinstance(optimizer, torch.optim.AdamW))


def engine_strategy(args: HFTrainingArguments, **options: Any) -> EngineStrategy:
    """Return the strategy behind ``args.deepspeed``.

    Raises:
        InputError: If the configuration, or another argument next to it, cannot be used.
        MissingPackageError: If DeepSpeed is not installed.
    """
    config = EngineConfig(args)
    for name, instead in _REFUSED_ARGUMENTS.items():
        if getattr(args, name, None):
            raise InputError(f"`{name}` and `deepspeed` are both set, and do not go together; {instead}.")
    if args.save_only_model and args.load_best_model_at_end:
        raise InputError(
            "DeepSpeed can't be used with `save_only_model` along with `load_best_model_at_end`; leave one out."
        )
    if config.is_zero3() and args.save_on_each_node:
        raise InputError(
            "`save_on_each_node=True` writes weights on each machine, and at stage 3 of DeepSpeed only the first "
            "process gathers them; leave it out."
        )
    if find_spec("deepspeed") is None:
        raise MissingPackageError(
            "DeepSpeed is not installed; install it with `DS_BUILD_OPS=0 pip install 'portico[deepspeed]'`, or set "
            "`fsdp=True`."
        )
    return EngineStrategy(config, **options)


def spread_loaded_models(args: HFTrainingArguments) -> EngineConfig:
    """Let ``from_pretrained`` spread weights at stage 3 while the result exists, as transformers' arguments do."""
    config = EngineConfig(args)
    config.fill()
    if config.is_zero3():
        import deepspeed

        deepspeed.init_distributed()  # else it takes this process for the only one
    set_hf_deepspeed_config(config)
    return config
