"""Data-parallel training by several processes, with the model wrapped as Hugging Face wraps it."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.strategies import DDPStrategy, Strategy
from lightning.pytorch.trainer.states import TrainerFn
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from transformers import PreTrainedModel
from typing_extensions import override

from portico.accelerator.settings import syncs_each_batch
from portico.errors import InputError

_START_METHODS = {"ddp": "popen", "ddp_spawn": "spawn", "ddp_fork": "fork", "ddp_notebook": "fork"}
_UNUSED = "_find_unused_parameters_"
# Training arguments by the option of `DistributedDataParallel` that they are.
_ARGUMENTS = {
    "bucket_cap_mb": "ddp_bucket_cap_mb",
    "broadcast_buffers": "ddp_broadcast_buffers",
    "static_graph": "ddp_static_graph",
}


class ModelDDPStrategy(DDPStrategy):
    """Lightning's ``DDPStrategy`` with ``DistributedDataParallel`` around the user's model, not the LightningModule.

    So a ``training_step`` of the user's gets what it gets under ``transformers.Trainer``: ``model.module``,
    ``model.no_sync()``, and gradients averaged by every backward pass, also a raw ``loss.backward()`` or several of
    them. Evaluations run the bare model.

    Args:
        sync_each_batch: Average gradients after each batch of an accumulation window, not only after the last.
        **options: Options of ``DDPStrategy``.
    """

    def __init__(self, *, sync_each_batch: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.sync_each_batch = sync_each_batch
        self.wrapped_model: DistributedDataParallel | None = None

    @override
    def setup(self, trainer: pl.Trainer) -> None:
        if trainer.state.fn is TrainerFn.FITTING:
            super().setup(trainer)
            return
        # Lightning would overwrite each process's model with that of the first one here.
        assert self.accelerator is not None
        assert self.model is not None
        self.accelerator.setup(trainer)
        self.precision_plugin.convert_module(self.model)
        self.model_to_device()
        self.setup_precision_plugin()

    @override
    def configure_ddp(self) -> None:
        module: Any = self.lightning_module
        self.wrapped_model = self._setup_model(module.model)
        module.take_wrapped(self.wrapped_model)

    @override
    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Keep gradients to this process until the last batch of the window, unless each is to be averaged."""
        module: Any = self.lightning_module
        model = self.wrapped_model
        # Lightning does not know that a window ends early when the data do.
        if model is None or self.sync_each_batch or module.closes_window:
            yield
            return
        with model.no_sync():
            yield

    @override
    def teardown(self) -> None:
        self.wrapped_model = None
        super().teardown()


def ddp_strategy(name: str, args: Any, model: nn.Module | None = None) -> ModelDDPStrategy | None:
    """Return the data-parallel strategy that Lightning calls ``name``, or ``None`` for a name of another kind.

    Args:
        name: ``"ddp"``, ``"ddp_spawn"``, ``"ddp_fork"`` or ``"ddp_notebook"``, perhaps with Lightning's ending
            ``"_find_unused_parameters_true"`` or ``"..._false"``.
        args: Training arguments; the ``ddp_*`` fields become options.
        model: What is trained, if known.
    """
    kind, _, unused = name.partition(_UNUSED)
    if kind not in _START_METHODS:
        return None
    find_unused = args.ddp_find_unused_parameters
    if find_unused is None:
        find_unused = unused == "true" if unused else not _recomputes_activations(args, model)
    given = {option: getattr(args, field) for option, field in _ARGUMENTS.items()}
    return ModelDDPStrategy(
        sync_each_batch=syncs_each_batch(args),
        start_method=_START_METHODS[kind],
        process_group_backend=args.ddp_backend,
        timeout=timedelta(seconds=args.ddp_timeout),
        find_unused_parameters=find_unused,
        **{option: value for option, value in given.items() if value is not None},
    )


def refuse_ddp_arguments(strategy: Strategy, args: Any) -> None:
    """Refuse ``ddp_*`` arguments beside a strategy that was made with options of its own.

    Raises:
        InputError: Names them.
    """
    fields = [
        field for field in ("ddp_find_unused_parameters", *_ARGUMENTS.values()) if getattr(args, field) is not None
    ]
    if fields and isinstance(strategy, DDPStrategy):
        raise InputError(
            f"`strategy` is a {type(strategy).__name__} with options of its own, beside {', '.join(fields)}; give the "
            "options to the strategy, or set `strategy='ddp'`."
        )


def _recomputes_activations(args: Any, model: nn.Module | None) -> bool:
    # Looking for unused parameters breaks it, as transformers found out; its models alone can tell.
    if model is not None and not isinstance(model, PreTrainedModel):
        return False
    # Transformers has the newer name only since 5.23, and warns about the older one.
    newer = hasattr(model, "is_activation_checkpointing")
    name = "is_activation_checkpointing" if newer else "is_gradient_checkpointing"
    return bool(args.gradient_checkpointing or getattr(model, name, False))
