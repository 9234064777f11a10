"""Training arguments: Hugging Face's, with Lightning deciding where a run happens."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import cache
from typing import TYPE_CHECKING, Any, Self

import torch

from portico.corrections import correction_names
from portico.deprecated import AcceptsOldNames, RetiredArguments, with_old_names
from portico.hf_compat import AcceleratorConfig, HFTrainingArguments, ParallelMode
from portico.replacement import options

if TYPE_CHECKING:
    from lightning.pytorch.strategies import Strategy

    from portico.distributed.accelerator import Accelerator

logger = logging.getLogger(__name__)


class LightningPlacement:
    """Reads devices and processes from a Lightning strategy instead of from accelerate.

    The attributes are the defaults of portico's own fields, which adopted arguments of transformers lack.
    """

    accelerator: str | None = None
    strategy: str | None = None
    devices: int | str | list[int] | None = None
    num_nodes: int | None = None
    precision: str | None = None
    corrections: str | list[str] | None = None
    stop_on_nan: bool = False

    @property
    def lightning_strategy(self) -> "Strategy":
        """The strategy of the run, or the one that a run would use."""
        if "_lightning_strategy" not in self.__dict__:
            from portico.distributed.placement import resolve_strategy

            self.__dict__["_lightning_strategy"] = resolve_strategy(self)  # type: ignore[arg-type]  # mixed into training arguments
        return self.__dict__["_lightning_strategy"]

    @lightning_strategy.setter
    def lightning_strategy(self, strategy: "Strategy") -> None:
        from portico.accelerate_compat import share_processes

        self.__dict__["_lightning_strategy"] = strategy
        share_processes(strategy)

    @property
    def distributed_state(self) -> "Accelerator":
        """What accelerate's ``PartialState`` says of the processes, from the strategy."""
        from portico.distributed.accelerator import Accelerator

        return Accelerator(lambda: self.lightning_strategy)

    @property
    def _setup_devices(self) -> torch.device:
        return self.lightning_strategy.root_device

    @property
    def device(self) -> torch.device:
        return self._setup_devices

    @property
    def n_gpu(self) -> int:
        """CUDA devices of this process: at most one, since Lightning starts a process per device."""
        return int(self.device.type == "cuda")

    @property
    def world_size(self) -> int:
        return int(getattr(self.lightning_strategy, "world_size", 1))

    @property
    def process_index(self) -> int:
        return int(getattr(self.lightning_strategy, "global_rank", 0))

    @property
    def local_process_index(self) -> int:
        return int(getattr(self.lightning_strategy, "local_rank", 0))

    @property
    def parallel_mode(self) -> ParallelMode:
        return ParallelMode.DISTRIBUTED if self.world_size > 1 else ParallelMode.NOT_PARALLEL

    def _process_fsdp_args(self) -> Any:
        # transformers makes accelerate's plugin here; Lightning's strategy reads `fsdp` and `fsdp_config` directly.
        return None

    @contextmanager
    def main_process_first(self, local: bool = True, desc: str = "work") -> Iterator[None]:
        """Run the block on the first process before the others, for example to fill a shared cache.

        With ``local`` it is the first of each machine instead of the first of all; ``desc`` is transformers', unused.
        """
        from portico.distributed.processes import connect_early, first_process_first

        strategy = self.lightning_strategy
        connect_early(strategy)
        index = self.local_process_index if local else self.process_index
        with first_process_first(strategy, is_first=index == 0):
            yield

    def __getstate__(self) -> dict[str, Any]:
        # A strategy owns processes and devices: it belongs to the run and is not copied or pickled.
        return {key: value for key, value in self.__dict__.items() if key != "_lightning_strategy"}


@dataclass
@with_old_names
class TrainingArguments(LightningPlacement, RetiredArguments, HFTrainingArguments, metaclass=AcceptsOldNames):
    """``transformers.TrainingArguments`` with the fields that choose Lightning's side of a run.

    Args:
        accelerator: Lightning accelerator (``"cpu"``, ``"cuda"``, ...); by default the best one present, or the CPU
            with ``use_cpu``.
        strategy: Lightning strategy (``"ddp"``, ...); by default Lightning's choice.
        devices: Devices of this machine, one process each; by default 1, or as many as ``torchrun`` started.
        num_nodes: Number of machines.
        precision: Lightning precision (``"bf16-mixed"``, ...); by default according to ``bf16`` and ``fp16``.
        corrections: Names of deviations of transformers to correct (:data:`portico.corrections.CORRECTIONS`), in a
            list or a string with commas, or ``"all"``; by default none.
        stop_on_nan: End training with an error at a loss that is NaN or infinite.

    Arguments of ``transformers`` 4 are accepted too, with a warning: :mod:`portico.deprecated`.
    """

    if TYPE_CHECKING:
        # transformers annotates these as optional, but fills them in when the arguments are made.
        output_dir: str = ""
        report_to: Any = None

    accelerator: str | None = field(default=None, metadata={"help": "Lightning accelerator."})
    strategy: str | None = field(default=None, metadata={"help": "Lightning strategy."})
    devices: int | None = field(default=None, metadata={"help": "Devices of this machine, one process each."})
    num_nodes: int | None = field(default=None, metadata={"help": "Machines."})
    precision: str | None = field(default=None, metadata={"help": "Lightning precision."})
    # `HfArgumentParser` takes the second type.
    corrections: None | str | list[str] = field(  # noqa: RUF036
        default=None, metadata={"help": "Deviations of transformers to correct, separated by commas, or 'all'."}
    )
    stop_on_nan: bool = field(default=False, metadata={"help": "End training at a loss that is NaN or infinite."})

    def __post_init__(self) -> None:
        options().fill(self)
        self.corrections = correction_names(self.corrections)
        super().__post_init__()
        from portico.accelerate_compat import forget_precision, share_processes

        config: Any = self.accelerator_config
        if getattr(config, "use_configured_state", False):
            return
        # Transformers drops the switch when it sets up the processes, so both write the same arguments.
        if isinstance(config, AcceleratorConfig):
            config.pop("use_configured_state")
        # As in transformers, an `accelerate.Accelerator` made after these arguments may have a precision of its own.
        forget_precision()
        share_processes(self.lightning_strategy)

    @classmethod
    def fast(cls, *args: Any, **settings: Any) -> Self:
        """Return arguments with the settings that make training fast on this machine; ``settings`` replace them.

        On a CUDA device: bfloat16, TF32, ``torch.compile`` and worker processes for data; on a CPU with matrix units
        for bfloat16 (AMX): bfloat16. Batches and their order stay; results differ within the precision of bfloat16,
        and a line in the log says so. A backend (ONNX Runtime, IPU) compiles and chooses its precision itself:
        nothing is set for it. :func:`portico.speed.fastest_arguments` has the rules.

        Args:
            *args: Positional arguments of the class, such as ``output_dir``.
            **settings: Fields of the class.
        """
        from portico.speed import fastest_arguments

        accelerator = settings.get("accelerator", cls.accelerator)
        if accelerator not in (None, "auto", "cpu", "gpu", "cuda"):
            return cls(*args, **settings)
        chosen = fastest_arguments(use_cpu=settings.get("use_cpu", False) or accelerator == "cpu")
        if settings.get("fp16") or settings.get("precision") is not None:
            del chosen["bf16"]
        added = {name: value for name, value in chosen.items() if name not in settings}
        made = cls(*args, **(settings | added))
        inexact = [f"{name}=True" for name in ("bf16", "tf32", "torch_compile") if added.get(name)]
        if inexact:
            logger.warning("`fast()` set %s: results differ slightly from 32-bit training.", ", ".join(inexact))
        return made

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments as plain values; retired ones that are not set are left out."""
        unset = {one.name for one in fields(RetiredArguments) if getattr(self, one.name) == one.default}
        return {name: value for name, value in super().to_dict().items() if name not in unset}


def adopt_arguments(args: Any) -> "TrainingArguments":
    """Add Lightning's placement to plain ``transformers.TrainingArguments``, in place, and return them.

    The object remains the user's (``trainer.args is args``); only its class changes, to a subclass of the original.
    """
    if isinstance(args, LightningPlacement):
        return args  # type: ignore[return-value]
    # The class as imported: a script may have put another one in its place in transformers since.
    if not isinstance(args, HFTrainingArguments):
        raise TypeError(
            f"`args` is an instance of {type(args).__module__}.{type(args).__qualname__}; give "
            "`portico.TrainingArguments` or `transformers.TrainingArguments`."
        )
    # mypy checks the `__hash__` of the instances, which is None, instead of that of the class.
    args.__class__ = _adopting_class(type(args))  # type: ignore[arg-type]
    adopted: TrainingArguments = args  # type: ignore[assignment]
    options().fill(adopted)
    adopted.corrections = correction_names(adopted.corrections)
    return adopted


class _AdoptedPlacement(LightningPlacement):
    """The placement of adopted arguments; their class is made at run time, so copies and pickles rebuild it."""

    def __reduce__(self) -> tuple[Any, ...]:
        own_class = type(self).__bases__[1]
        return _new_adopted, (own_class,), self.__getstate__()


@cache
def _adopting_class(own_class: type) -> type:
    return type(own_class.__name__, (_AdoptedPlacement, own_class), {"__module__": own_class.__module__})


def _new_adopted(own_class: type) -> Any:
    return object.__new__(_adopting_class(own_class))


def as_transformers_arguments(args: Any) -> HFTrainingArguments:
    """Return a copy of ``args`` that unpickles as Hugging Face's class where portico is not installed."""
    theirs = (base for base in type(args).__mro__ if base.__module__.startswith("transformers."))
    nearest = next(base for base in theirs if not issubclass(base, LightningPlacement))
    plain: HFTrainingArguments = object.__new__(nearest)  # type: ignore[assignment]
    added = (
        set(RetiredArguments.__annotations__)
        | set(LightningPlacement.__annotations__)
        | {"_lightning_strategy", "_setup_devices", "distributed_state"}
    )
    plain.__dict__.update({key: value for key, value in args.__dict__.items() if key not in added})
    return plain
