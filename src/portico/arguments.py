"""Training arguments: Hugging Face's, with Lightning deciding where a run happens."""

import importlib.util
import logging
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from difflib import get_close_matches
from functools import cache
from numbers import Real
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, Self, cast, get_type_hints

import torch
from lightning.pytorch.strategies import Strategy

from portico import observers
from portico.compat.accelerate import forget_precision, share_processes
from portico.compat.older import add_newer_arguments
from portico.compat.releases import refuse_newer_values
from portico.compat.transformers import AcceleratorConfig, HFTrainingArguments, NewestArguments, ParallelMode
from portico.deprecated import RENAMED, AcceptsOlderNames, OlderArguments
from portico.distributed.accelerator import Accelerator
from portico.distributed.deepspeed import spread_loaded_models
from portico.distributed.launchers import join_mpi, join_processes_of_script
from portico.distributed.placement import PLACEMENT, resolve_strategy
from portico.distributed.processes import connect_early, connect_launched, first_process_first
from portico.distributed.settings import accelerator_settings, read_settings, refuse_missing_state
from portico.errors import InputError, InputTypeError, reason_of
from portico.rules import Rule, rule_of
from portico.trust.names import data_only

logger = logging.getLogger(__name__)

# Deviations of transformers that `corrections` corrects; `docs/corrections.md` shows the effect of each.
CORRECTIONS: Mapping[str, str] = {
    "loss_scale": "the training loss is the mean over all labels of a step, whatever the signature of the model",
    "train_duplicates": "examples that only complete the last batches of an epoch are not trained on twice",
    "stream_leftover": "batches that are left over at the end of a stream make a separate step",
    "train_loss": "the final `train_loss` covers all processes",
    "eval_duplicates": "examples that only complete the last batches of an evaluation do not count",
    "eval_batch_means": "`eval_loss` is the mean over all labels, not over the means of batches",
    "nan_losses": "a loss that is NaN or infinite is logged as it is",
    "renamed_weights": "weights that a checkpoint holds under other names than the model's are loaded",
    "resume_by_examples": "a run that is resumed with steps of another size continues after the examples it has seen",
    "resume_order": "a run that is resumed inside an epoch takes the rest of it in the order in which it had begun",
    "best_checkpoint": "the best model at the end is the best of those that were saved",
    "resume_at_max_steps": "a run that is resumed after its last step makes no further step",
}


def correction_names(value: str | Sequence[str] | None) -> list[str]:
    """Return the names in ``TrainingArguments.corrections``: a list, a string with commas, ``"all"`` or ``None``.

    Raises:
        InputError: If a name is unknown.
    """
    given = value.split(",") if isinstance(value, str) else list(value or [])
    names = [str(name).strip() for name in given]
    for name in names:
        if name not in CORRECTIONS and name != "all":
            nearest = get_close_matches(name, [*CORRECTIONS, "all"], n=1, cutoff=0)[0]
            raise InputError(
                f"Unknown name {name!r} in `corrections`; the nearest is {nearest!r}, and all are "
                f"{', '.join(map(repr, CORRECTIONS))}, or 'all'."
            )
    return [name for name in CORRECTIONS if name in names or "all" in names]


def metric_key(name: str) -> str:
    """Return the name of ``metric_for_best_model`` among the metrics of an evaluation."""
    return name if name.startswith("eval_") else f"eval_{name}"


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
    async_save: bool = False

    @property
    def lightning_strategy(self) -> Strategy:
        """The strategy of the current run, or the strategy that a run would use."""
        if "_lightning_strategy" not in self.__dict__:
            self.__dict__["_lightning_strategy"] = resolve_strategy(cast("TrainingArguments", self))
        return self.__dict__["_lightning_strategy"]

    @lightning_strategy.setter
    def lightning_strategy(self, strategy: Strategy) -> None:
        self.__dict__["_lightning_strategy"] = strategy
        share_processes(strategy)

    @property
    def distributed_state(self) -> Accelerator:
        """The processes of the strategy, with the attributes of accelerate's ``PartialState``."""
        return Accelerator(lambda: self.lightning_strategy)

    @property
    def _setup_devices(self) -> torch.device:
        return self.lightning_strategy.root_device

    @property
    def device(self) -> torch.device:
        return self.lightning_strategy.root_device

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
        # transformers makes accelerate's plugins here and, of `deepspeed`, right after it; the strategy reads the
        # arguments directly.
        self.__dict__["_deepspeed"] = self.__dict__["deepspeed"]
        self.__dict__["deepspeed"] = None
        return None

    @contextmanager
    def main_process_first(self, local: bool = True, desc: str = "work") -> Iterator[None]:
        """Run the block on the first process before the others, for example to fill a shared cache.

        With ``local`` the first process of each machine goes first. ``desc`` is unused; transformers logs it.
        """
        strategy = self.lightning_strategy
        connect_early(strategy)
        index = self.local_process_index if local else self.process_index
        with first_process_first(strategy, is_first=index == 0):
            yield

    def __getstate__(self) -> dict[str, Any]:
        # A strategy owns processes and devices: it belongs to the run and is not copied or pickled.
        left_out = ("_lightning_strategy", "hf_deepspeed_config")
        return {key: value for key, value in self.__dict__.items() if key not in left_out}


@data_only
@dataclass
class TrainingArguments(LightningPlacement, OlderArguments, NewestArguments, metaclass=AcceptsOlderNames):
    """``transformers.TrainingArguments`` with additional fields for Lightning.

    Names, meanings and defaults are the same as in transformers 5.24 (``transformers/training_args.py``). The fields
    ``accelerator``, ``strategy``, ``devices``, ``num_nodes`` and ``precision`` are Lightning's; ``corrections``,
    ``stop_on_nan`` and ``async_save`` are portico's. A value that cannot be used raises ``ValueError`` before any work
    is done, and a field without effect logs a warning. Arguments of ``transformers`` 4 are accepted with a warning:
    see :mod:`portico.deprecated`.

    Args:
        output_dir: Folder of the run: checkpoints, final model and state; ``"trainer_output"`` if it is left out.
        num_train_epochs: Length of the run in epochs; may be fractional.
        max_steps: Length of the run in optimizer steps; above 0 it overrides ``num_train_epochs``.
        per_device_train_batch_size: Examples per training batch and process.
        per_device_eval_batch_size: Examples per evaluation batch and process.
        gradient_accumulation_steps: Batches per optimizer step; the last step of an epoch may have fewer.
        auto_find_batch_size: Start again with training batches a tenth smaller whenever memory runs out.
        optim: Name of the optimizer (``transformers.training_args.OptimizerNames``); an error names a missing package.
        optim_args: Options of the optimizer, as in ``"momentum=0.9,nesterov=True"``.
        optim_target_modules: Modules that GaLore, APOLLO and the like train in low rank: names, regular expressions,
            or ``"all-linear"``.
        learning_rate: Peak learning rate.
        weight_decay: Weight decay, of all parameters except biases and normalization layers.
        adam_beta1: Adam's decay rate of the first moment.
        adam_beta2: Adam's decay rate of the second moment.
        adam_epsilon: Adam's epsilon.
        lr_scheduler_type: Name of the learning rate schedule (``transformers.SchedulerType``), which moves with
            optimizer steps.
        lr_scheduler_kwargs: Options of the schedule, as a dict or JSON.
        warmup_steps: Optimizer steps in which the learning rate rises from 0; below 1: a fraction of all steps.
        average_tokens_across_devices: Divide a token loss by the labels of all processes instead of one process.
        corrections: Names of deviations of transformers to correct (:data:`portico.arguments.CORRECTIONS`), in
            a list or a string with commas, or ``"all"``; by default none, and a warning names each that matters.
        stop_on_nan: End training with an error at a loss that is NaN or infinite, before the optimizer uses its
            gradients.
        max_grad_norm: Largest total gradient norm, over all parameters; larger gradients are scaled down to it. 0: no
            clipping.
        label_smoothing_factor: Share of a label's probability that is spread over all classes; the trainer computes
            the loss from the logits.
        neftune_noise_alpha: Size of the NEFTune noise that is added to the input embeddings in training; by default
            none.
        bf16: Mixed precision with bfloat16; the model's ``forward`` casts, and weights stay in float32.
        fp16: Mixed precision with float16 and loss scaling; not on the CPU.
        bf16_full_eval: Cast the model to bfloat16 for evaluations outside training; it stays in bfloat16.
        fp16_full_eval: Cast the model to float16 for evaluations outside training; it stays in float16.
        tf32: Allow or forbid TF32 in matrix products, from the moment the arguments are created; by default torch's
            setting.
        activation_checkpointing: Recompute activations in the backward pass instead of storing them.
        activation_checkpointing_kwargs: ``every_n_layers``, ``offload``, and options of
            ``torch.utils.checkpoint.checkpoint``.
        gradient_checkpointing: Older name of ``activation_checkpointing``.
        gradient_checkpointing_kwargs: Older name of ``activation_checkpointing_kwargs``.
        torch_compile: Train a model compiled by ``torch.compile``; evaluations run the uncompiled model.
        torch_compile_backend: Backend of ``torch.compile``; setting it implies ``torch_compile``.
        torch_compile_mode: Mode of ``torch.compile``; setting it implies ``torch_compile``.
        use_liger_kernel: Replace layers of the model by Liger kernels; needs liger-kernel and a GPU.
        liger_kernel_config: Liger kernels to apply, as ``{"rope": True, ...}``; by default the usual kernels for the
            model's type.
        use_cache: Value of ``model.config.use_cache``: whether a decoder returns its keys and values.
        torch_empty_cache_steps: Empty the accelerator's memory cache every this many optimizer steps; by default
            never.
        logging_strategy: When to log loss, gradient norm and learning rate: every ``logging_steps`` (``"steps"``), at
            the end of each epoch (``"epoch"``), or never (``"no"``).
        logging_steps: Optimizer steps between two logs; below 1: a fraction of all steps. A logged loss is the mean
            since the last log.
        logging_first_step: Also log the first step.
        logging_nan_inf_filter: Leave NaN and infinite losses out of logged losses and of evaluation losses.
        include_num_input_tokens_seen: Count the input tokens of all processes and log them: ``"all"``,
            ``"non_padding"`` or ``"no"``.
        log_level: Log level of the first process: ``"debug"``, ``"info"``, ``"warning"``, ``"error"``, ``"critical"``;
            ``"passive"`` changes nothing.
        log_level_replica: Log level of the other processes.
        log_on_each_node: Apply ``log_level`` to the first process of every machine, not only of the first machine.
        disable_tqdm: Print logs as lines instead of showing a progress bar; by default only if the log level is above
            ``"warning"``.
        report_to: Experiment trackers, by name, in a list, or ``"all"`` that are installed.
        run_name: Name of the run in the trackers.
        project: Project in Trackio.
        trackio_space_id: Space that shows the run in Trackio.
        trackio_bucket_id: Bucket in which Trackio stores the run.
        trackio_static_space_id: Static Space that Trackio creates after training; ``False``: none.
        eval_strategy: When to evaluate ``eval_dataset`` during training: every ``eval_steps`` (``"steps"``), at the
            end of each epoch (``"epoch"``), or never (``"no"``).
        eval_steps: Optimizer steps between two evaluations; by default ``logging_steps``; below 1: a fraction of all
            steps.
        eval_delay: Epochs, or with ``eval_strategy="steps"`` optimizer steps, before the first evaluation.
        eval_on_start: Evaluate before the first step.
        prediction_loss_only: Return only the loss from evaluations, without predictions and metrics.
        eval_do_concat_batches: ``False``: predictions and labels are lists with one entry per batch, not one array.
        eval_use_gather_object: Gather the outputs of processes as Python objects; as in transformers 5.23, in the
            first evaluation of a trainer only.
        eval_accumulation_steps: Move outputs to the CPU every this many batches; by default at the end.
        include_for_metrics: What ``compute_metrics`` gets besides predictions and labels: ``"inputs"``, ``"loss"``.
        batch_eval_metrics: Call ``compute_metrics`` for every batch, with ``compute_result=True`` for the last, so
            that no outputs are kept.
        save_strategy: When to write a checkpoint: every ``save_steps`` (``"steps"``), at the end of each epoch
            (``"epoch"``), at each new best metric (``"best"``), or never (``"no"``).
        save_steps: Optimizer steps between two checkpoints; below 1: a fraction of all steps.
        save_total_limit: Number of checkpoints kept; the oldest go first, the best one is never deleted. By default
            all.
        save_only_model: Leave optimizer, schedule and random states out of checkpoints, which then cannot be resumed.
        async_save: Write checkpoints while training continues, from a copy of the state in host memory.
        save_on_each_node: Write files on every machine, not only on the first.
        enable_jit_checkpoint: On SIGTERM, save a checkpoint and end the run.
        load_best_model_at_end: Load the best checkpoint after training.
        metric_for_best_model: Metric that decides which checkpoint is best, with or without ``eval_``; by default the
            loss, if the best model is loaded.
        greater_is_better: Direction of that metric; by default lower is better for names that end in ``loss``.
        ignore_data_skip: A resumed run starts at the beginning of the data instead of skipping what was seen.
        restore_callback_states_from_checkpoint: A resumed run restores the callbacks saved in the checkpoint.
        push_to_hub: Upload the model whenever it is saved.
        hub_model_id: Repository; by default the name of ``output_dir`` in the user's namespace.
        hub_strategy: What to upload: the final model (``"end"``), each saved model (``"every_save"``), also the last
            checkpoint (``"checkpoint"``), or all of them (``"all_checkpoints"``).
        hub_token: Access token; by default the token of ``hf auth login``.
        hub_private_repo: Create the repository as private.
        hub_always_push: Start an upload even while the previous one is running.
        hub_revision: Branch to upload to; by default the main branch.
        seed: Seed of Python, NumPy and torch, set when the trainer is made and when training begins.
        data_seed: Seed of the order of the training data; by default it follows from ``seed``.
        full_determinism: Use deterministic algorithms only; slower.
        dataloader_drop_last: Drop the last batch if it is incomplete.
        dataloader_num_workers: Worker processes per data loader; 0: load in the main process.
        dataloader_pin_memory: Load batches into pinned memory; no effect on the CPU.
        dataloader_persistent_workers: Keep the workers alive between epochs.
        dataloader_prefetch_factor: Batches that each worker loads ahead; by default torch's 2.
        dataloader_multiprocessing_context: Start method of the workers: ``"fork"``, ``"spawn"`` or ``"forkserver"``.
        dataloader_in_order: ``False``: return batches as soon as a worker has one, in any order.
        remove_unused_columns: Remove columns that the model's ``forward`` does not take, and log which.
        label_names: Keys of a batch that are labels; by default the label arguments of the model's ``forward``.
        train_sampling_strategy: Order of the training data: ``"random"``, ``"sequential"``, ``"group_by_length"``
            (evaluations too) or ``"batch_rebalance"``.
        length_column_name: Column with the lengths of the examples, used by ``"group_by_length"`` and
            ``"batch_rebalance"``.
        use_cpu: Run on the CPU, as ``accelerator="cpu"`` does.
        accelerator: Lightning accelerator (``"cpu"``, ``"cuda"``, ``"ipu"``, ``"ort"``, ...); by default the best
            accelerator present, or the CPU with ``use_cpu``.
        strategy: Lightning strategy, by name (``"ddp"``, ``"fsdp"``, ...) or as an object, which every run copies; by
            default ``"ddp"`` on several devices.
        devices: Devices of this machine, one process each: a number, a list of indices, or ``"auto"``; by default 1,
            or as many as torchrun, SLURM or Ray started.
        num_nodes: Number of machines; by default 1, or as many as torchrun, SLURM or Ray started.
        precision: Lightning precision (``"bf16-mixed"``, ``"16-true"``, ...); by default according to ``bf16`` and
            ``fp16``.
        ddp_find_unused_parameters: Look for parameters without a gradient in each step; by default ``True`` unless
            activations are recomputed.
        ddp_bucket_cap_mb: Size of a bucket of gradients that processes exchange together, in MB.
        ddp_broadcast_buffers: Synchronize buffers in every forward pass.
        ddp_static_graph: Promise that every step uses the same parameters, so that DDP looks only once.
        ddp_backend: Communication backend: ``"nccl"``, ``"gloo"``, ...; by default the usual backend of the device.
        ddp_timeout: Seconds before a collective operation fails.
        accelerator_config: How processes share data (``split_batches``, ``dispatch_batches``, ``even_batches``,
            ``use_seedable_sampler``, ``non_blocking``) and when they average gradients
            (``gradient_accumulation_kwargs``).
        fsdp: Shard the model over the processes with torch's FSDP2, on GPUs or CPUs.
        fsdp_config: Which layers are gathered one at a time, when their weights are freed, offloading and
            recomputation, as a dict or a JSON file.
        deepspeed: Train with DeepSpeed's engine and this configuration, a dict or a JSON file, whose ``"auto"`` values
            are filled from the other arguments; needs DeepSpeed.
        parallelism_config: Sizes of the mesh of processes (``dp_replicate_size``, ``dp_shard_size``, ``tp_size``,
            ``cp_size``, ``sp_size``), as an object or a dict.
        debug: ``"underflow_overflow"``: stop at the first value that is NaN or infinite, and report where.
        skip_memory_metrics: ``False``: add memory use to the metrics, which slows training down.
        do_train: Not used by the trainer; scripts read it.
        do_eval: Not used by the trainer; scripts read it. ``True`` if ``eval_strategy`` is set.
        do_predict: Not used by the trainer; scripts read it.
        resume_from_checkpoint: Not used by the trainer; scripts pass it to ``train()``.
        local_rank: No effect, with a warning: Lightning's strategy, or ``torchrun``, says which process this is.
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
    async_save: bool = field(default=False, metadata={"help": "Write checkpoints while training continues."})

    def __post_init__(self) -> None:
        observers.tell_of_arguments(self)
        if self.use_cpu:  # as in transformers; processes on other devices are separate runs there
            join_mpi()
        join_processes_of_script()
        refuse_newer_values(self)
        refuse_wrong_kinds(self)
        self.corrections = correction_names(self.corrections)
        if isinstance(self.accelerator_config, str) and not self.accelerator_config.startswith("{"):
            # The error of transformers names neither the setting nor the fix.
            self.accelerator_config = read_settings("accelerator_config", self.accelerator_config)
        if isinstance(self.accelerator_config, Mapping):
            accelerator_settings(self)
        if not self.deepspeed and os.environ.get("ACCELERATE_USE_DEEPSPEED", "").lower() in ("1", "true"):
            raise InputError(
                "`accelerate launch` was told to use DeepSpeed (`ACCELERATE_USE_DEEPSPEED`), whose configuration is "
                "read from the training arguments only; set `deepspeed`, or start the script with `torchrun`."
            )
        with _showing_values(self):
            super().__post_init__()
        self.deepspeed, self.deepspeed_plugin = self.__dict__.pop("_deepspeed", self.deepspeed), None
        config: Any = self.accelerator_config
        if getattr(config, "use_configured_state", False):
            refuse_missing_state()
            return
        # Transformers drops the switch when it sets up the processes, so both write the same arguments.
        if isinstance(config, AcceleratorConfig):
            config.pop("use_configured_state")
        # As in transformers, an `accelerate.Accelerator` created later may have a different precision.
        forget_precision()
        share_processes(self.lightning_strategy)
        connect_launched(self.lightning_strategy)
        if self.deepspeed and torch.distributed.is_initialized():
            self.hf_deepspeed_config = spread_loaded_models(self)

    @classmethod
    def fast(cls, *args: Any, **settings: Any) -> Self:
        """Return arguments with the settings that make training fast on this machine; ``settings`` override them.

        On a CUDA device: bfloat16, TF32, ``torch.compile`` and worker processes for data; on a CPU with instructions
        for bfloat16 (AMX or AVX-512): bfloat16. Batches and their order stay the same; results differ within the
        precision of bfloat16, and a line in the log says so. Nothing is set for a backend (ONNX Runtime, IPU), which
        compiles the model and chooses the precision itself. ``docs/speed.md`` shows the gain of each setting;
        :func:`fastest_arguments` has the rules.

        Args:
            *args: Positional arguments of the class, such as ``output_dir``.
            **settings: Fields of the class.
        """
        accelerator = settings.get("accelerator", cls.accelerator)
        if accelerator not in (None, "auto", "cpu", "gpu", "cuda"):
            return cls(*args, **settings)
        chosen = fastest_arguments(use_cpu=settings.get("use_cpu", False) or accelerator == "cpu")
        if settings.get("fp16") or settings.get("precision") is not None:
            del chosen["bf16"], chosen["use_cpu"]
        added = {name: value for name, value in chosen.items() if name not in settings}
        made = cls(*args, **(settings | added))
        inexact = [f"{name}=True" for name in ("bf16", "tf32", "torch_compile") if added.get(name)]
        if inexact:
            logger.warning(
                "`fast()` set %s: results differ slightly from 32-bit training; give them as False to avoid it.",
                ", ".join(inexact),
            )
        return made

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments as plain values, without older arguments that are not set."""
        unset = {field.name for field in fields(OlderArguments) if getattr(self, field.name) == field.default}
        plain = copy(self)
        mesh = self.parallelism_config
        # transformers calls its `to_json`, which a dict does not have, and which returns None (accelerate 1.15).
        plain.parallelism_config = None
        values = super(TrainingArguments, plain).to_dict()
        if mesh is not None and not isinstance(mesh, str):
            sizes = mesh if isinstance(mesh, Mapping) else vars(mesh)
            values["parallelism_config"] = {name: size for name, size in sizes.items() if isinstance(size, int | str)}
        return {name: value for name, value in values.items() if name not in unset}


# ---- Rules ----

_LARGEST = sys.float_info.max
# Smaller values fail deep inside torch or numpy, or divide by zero; transformers checks other bounds itself.
_LEAST_ARGUMENTS = {
    "adam_beta1": 0,
    "adam_beta2": 0,
    "adam_epsilon": 0,
    "dataloader_num_workers": 0,
    "eval_accumulation_steps": 1,
    "gradient_accumulation_steps": 1,
    "learning_rate": 0,
    "neftune_noise_alpha": 0,
    "num_train_epochs": 0,
    "per_device_eval_batch_size": 1,
    "per_device_train_batch_size": 1,
    "seed": 0,
    "torch_empty_cache_steps": 1,
    "warmup_steps": 0,
}
# Numbers that transformers takes although their effect is hardly wanted: the smallest and largest usual one, and the
# effect of others.
UNUSUAL_NUMBERS: Mapping[str, tuple[float, float, str]] = {
    "eval_steps": (0, math.inf, "it counts as its absolute value"),
    "label_smoothing_factor": (0, 1, "the loss then rewards wrong labels"),
    "logging_steps": (0, math.inf, "it counts as its absolute value"),
    "max_grad_norm": (0, math.inf, "gradients are not clipped, as with 0"),
    "save_steps": (0, math.inf, "it counts as its absolute value"),
    "save_total_limit": (1, math.inf, "no checkpoint is deleted, as with None"),
    "weight_decay": (0, _LARGEST, "weights grow instead of shrinking, or become NaN"),
    "learning_rate": (0, _LARGEST, "weights become NaN"),
    "adam_epsilon": (0, _LARGEST, "weights do not change"),
}
_MOST = {"adam_beta1": 1, "adam_beta2": 1, "seed": 2**32 - 1}  # numpy takes seeds of 32 bits
# Infinity means: measure the norm without clipping; do not evaluate during training. The others train to no use.
_INFINITE_ARGUMENTS = (
    "adam_epsilon",
    "eval_delay",
    "learning_rate",
    "max_grad_norm",
    "save_total_limit",
    "weight_decay",
)


# Arguments that take more kinds than their annotation says, and strings that transformers would fail to read as such.
_RULES = {
    "accelerator_config": Rule((dict, str, NoneType)),
    "fsdp": Rule((bool, str, list, NoneType)),
    "include_for_metrics": Rule((list, str)),
    "log_level": Rule((str,)),
    "log_level_replica": Rule((str,)),
    "metric_for_best_model": Rule((str, NoneType)),
    "optim_args": Rule((str, NoneType)),
    "output_dir": Rule((str, NoneType)),
    "save_total_limit": Rule((float, NoneType)),
    "torch_compile_mode": Rule((str, NoneType)),
}
_FALSE = ("false", "no", "off", "0", "f", "n", "none", "null")
# Arguments that must not be None; some only while another argument has one of these values.
_NEEDED: Mapping[str, tuple[str, ...] | None] = {
    **dict.fromkeys(
        (
            "dataloader_drop_last",
            "dataloader_num_workers",
            "include_for_metrics",
            "label_smoothing_factor",
            "log_level",
            "log_level_replica",
            "max_steps",
            "num_train_epochs",
            "per_device_eval_batch_size",
            "per_device_train_batch_size",
            "seed",
            "warmup_steps",
        )
    ),
    "eval_delay": ("eval_strategy", "steps", "epoch"),
    "logging_steps": ("logging_strategy", "steps"),
    "save_steps": ("save_strategy", "steps"),
}
NO_COMPILER = "no"
"""The name by which accelerate turns ``torch_compile_backend`` off."""

# As under transformers, a trainer that only evaluates may have None.
_NEEDED_TO_TRAIN = ("gradient_accumulation_steps", "max_grad_norm", "weight_decay")
Stage = Literal["construction", "training", "evaluation"]
"""When an argument is read first: a trainer that never comes to the stage may have any value, as in transformers."""
# Only training reads them.
READ_IN_TRAINING = (
    "activation_checkpointing",
    "activation_checkpointing_kwargs",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "data_seed",
    "gradient_accumulation_steps",
    "gradient_checkpointing",
    "gradient_checkpointing_kwargs",
    "learning_rate",
    "lr_scheduler_kwargs",
    "max_grad_norm",
    "neftune_noise_alpha",
    "per_device_train_batch_size",
    "save_total_limit",
    "warmup_steps",
    "weight_decay",
)
# Of these, what is compared with a number, or multiplied, where the arguments are made; other kinds fail there.
_COMPUTED_WITH: Mapping[str, tuple[type, ...]] = {
    "max_steps": (Real,),
    "per_device_train_batch_size": (Real, str, Sequence),
    "warmup_steps": (Real,),
}
READ_IN_EVALUATION = ("eval_accumulation_steps", "include_for_metrics", "per_device_eval_batch_size")
# Arguments that nothing reads while another one has this value.
_UNREAD = {"save_total_limit": ("save_strategy", "no"), "eval_delay": ("eval_strategy", "no")}


@cache
def argument_rules(arguments_class: type | None = None) -> dict[str, Rule]:
    """Return a rule for each training argument that its annotation restricts to plain values.

    Most strings have none, since scripts give paths and numbers for names.
    """
    rules = {}
    for name, hint in get_type_hints(arguments_class or TrainingArguments).items():
        rule = _RULES.get(name) or rule_of(hint)
        if rule is None or (name not in _RULES and set(rule.kinds) <= {str, NoneType} and not rule.choices):
            continue
        if any(isinstance(choice, str) for choice in rule.choices):  # an enumeration, which refuses other strings
            rule = replace(rule, kinds=tuple(kind for kind in rule.kinds if kind is not str))
        elif {int, float}.intersection(rule.kinds):
            is_finite = float in rule.kinds and name not in _INFINITE_ARGUMENTS
            rule = replace(rule, least=_LEAST_ARGUMENTS.get(name), most=_MOST.get(name), is_finite=is_finite)
        rules[name] = rule
    return rules | {old: rules[row.new] for old, row in RENAMED.items() if row.new in rules}


# Arguments that are read only together with others or by several processes, so that a wrong value may do no harm.
_READ_IN_SOME_RUNS = (
    "ddp_bucket_cap_mb",
    "ddp_timeout",
    "deepspeed",
    "fsdp_config",
    "include_num_input_tokens_seen",
    "liger_kernel_config",
    "local_rank",
    "optim_args",
    "optim_target_modules",
    "torch_compile_mode",
    "trackio_static_space_id",
)


def refuse_wrong_kinds(args: HFTrainingArguments, stage: Stage = "construction") -> None:
    """Refuse values that transformers would compare, convert or join, and fail at in ``stage`` without their name."""
    for name, value, rule in _values_of_other_kinds(args):
        if stage_that_reads(args, name) != stage:
            continue
        if value is not None and bool in rule.kinds and not _is_misread(value):
            continue
        problem = "is a string" if isinstance(value, str) and not rule.choices else "cannot be used"
        raise InputTypeError(f"`{name}={value!r}` {problem}; set it to {rule.describe_in_python()}.")


def stage_that_reads(args: HFTrainingArguments, name: str) -> Stage | None:
    """Return when the argument ``name`` is read first, ``None`` if some runs do not read it, or none does."""
    if name in _READ_IN_SOME_RUNS:
        return None
    other, unread = _UNREAD.get(name, ("", None))
    if unread is not None and getattr(args, other, None) == unread:
        return None
    if name in READ_IN_EVALUATION:
        return "evaluation"
    is_computed_with = not isinstance(getattr(args, name, None), _COMPUTED_WITH.get(name, object))
    # `greater_is_better` is derived from the name of the metric where the arguments are made.
    is_derived = name == "metric_for_best_model" and getattr(args, "greater_is_better", None) is None
    is_of_training = name in (*READ_IN_TRAINING, "max_steps", "metric_for_best_model")
    return "training" if is_of_training and not (is_computed_with or is_derived) else "construction"


def warn_of_other_kinds(args: HFTrainingArguments) -> None:
    """Warn about values that are taken as transformers takes them, but whose kind is unexpected."""
    for name, value, rule in _values_of_other_kinds(args):
        effect = f"; it counts as {bool(value)}" if bool in rule.kinds and name not in _READ_IN_SOME_RUNS else ""
        logger.warning("`%s=%r` is not %s%s.", name, value, rule.describe_in_python(), effect)


def _values_of_other_kinds(args: HFTrainingArguments) -> Iterator[tuple[str, Any, Rule]]:
    # Only fields of transformers and portico, since the annotations of a script's class may be anything.
    owner = next((cls for cls in type(args).__mro__ if cls.__module__.startswith("portico.")), None)
    for name, rule in argument_rules(owner).items():
        value = getattr(args, name, None)
        if name in RENAMED and hasattr(args, RENAMED[name].new):
            continue
        if name in PLACEMENT or (value is None and not _is_needed(args, name, rule)):  # the placement refuses its own
            continue
        if value is None or not rule.suits(value):
            yield name, value, rule


def _is_misread(value: object) -> bool:
    """Return whether a switch would be on although its value says off, or has no truth value."""
    if isinstance(value, str):
        return value.strip().lower() in _FALSE
    try:
        return not isinstance(bool(value), bool)
    except (RuntimeError, TypeError, ValueError):  # of arrays and tensors of several numbers
        return True


def refuse_none(args: TrainingArguments) -> None:
    """Refuse None for an argument that training computes with and an evaluation does not read."""
    for name in _NEEDED_TO_TRAIN:
        if getattr(args, name) is None:
            raise InputTypeError(
                f"`{name}=None` cannot be used to train; set it to {argument_rules()[name].describe_in_python()}."
            )


def _is_needed(args: HFTrainingArguments, name: str, rule: Rule) -> bool:
    if NoneType in rule.kinds or name in RENAMED:
        return False
    condition = _NEEDED.get(name)
    return bool(rule.choices) or (name in _NEEDED and (not condition or getattr(args, condition[0]) in condition[1:]))


@contextmanager
def _showing_values(args: HFTrainingArguments) -> Iterator[None]:
    """Turn an error of transformers' checks into an :class:`InputError` that shows the arguments it is about."""
    try:
        yield
    except InputError:
        raise
    except ValueError as error:
        values = _values_meant(error, args)
        if not values:
            raise
        shown = " and ".join(f"`{name}={getattr(value, 'value', value)!r}`" for name, value in values.items())
        reason = reason_of(error).rstrip(".")
        if len(values) > 1:
            raise InputError(f"{shown} cannot be combined: {reason}; set one of them to another value.") from error
        (default,) = [_default(field) for field in fields(args) if field.name in values]
        raise InputError(
            f"{shown} cannot be used: {reason}; set it to another value, or leave it out (the default is {default!r})."
        ) from error


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _values_meant(error: ValueError, args: HFTrainingArguments) -> dict[str, Any]:
    """Return the arguments that were set and that a message mentions, with or without their underscores."""
    words = set(re.findall(r"[a-z0-9]+", str(error)))
    text = getattr(error, "doc", None)  # of JSON that cannot be parsed, whose argument the message does not mention
    values = {field.name: getattr(args, field.name) for field in fields(HFTrainingArguments)}
    return {
        field.name: values[field.name]
        for field in fields(HFTrainingArguments)
        if values[field.name] != _default(field)
        and (words.issuperset(field.name.split("_")) or (text is not None and values[field.name] == text))
    }


# ---- The fastest arguments ----

_MOST_WORKERS = 8
# Torch's names for CPU instructions that multiply in bfloat16. AMD's processors gain more, since MKL's 32-bit products
# use only half of their registers.
_COMPUTE_IN_BFLOAT16 = ("amx_bf16", "avx512_bf16")
# The arguments set below, with their values when nothing makes training faster.
_NEUTRAL: dict[str, Any] = {
    "use_cpu": False,
    "bf16": False,
    "tf32": None,
    "torch_compile": False,
    "dataloader_num_workers": 0,
    "dataloader_persistent_workers": False,
}


def fastest_arguments(*, use_cpu: bool = False, small_model: bool = False) -> dict[str, Any]:
    """Return training arguments for speed, for an accelerator if there is one, else for the CPU.

    They change numbers within the precision of bfloat16, but neither the batches nor their order. On a CPU mixed
    precision is faster only with instructions for bfloat16 (AMX or AVX-512), and with AMX not for small models;
    compiled code was slower than eager mode in every training measured, so nothing else is set there.

    Args:
        use_cpu: Leave accelerators unused.
        small_model: Whether the model is so small (width 128, for example) that bfloat16 may slow it down on a CPU.

    Returns:
        Values of ``use_cpu``, ``bf16``, ``tf32``, ``torch_compile``, ``dataloader_num_workers`` and
        ``dataloader_persistent_workers``.
    """
    if use_cpu or not torch.cuda.is_available():
        # Torch 2.9 does not report the features of a CPU.
        capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
        bf16 = any(capabilities.get(name, False) for name in _COMPUTE_IN_BFLOAT16) and not small_model
        # Transformers refuses mixed precision on a CPU unless the CPU was asked for.
        return {**_NEUTRAL, "bf16": bf16, "use_cpu": use_cpu or bf16}
    workers = min(_MOST_WORKERS, len(os.sched_getaffinity(0)) // torch.cuda.device_count())
    has_tensor_cores = torch.cuda.get_device_capability() >= (8, 0)
    return {
        "use_cpu": False,
        "bf16": torch.cuda.is_bf16_supported(including_emulation=False),
        "tf32": True if has_tensor_cores else None,
        # Inductor needs Triton, which is not installed with torch on every system.
        "torch_compile": importlib.util.find_spec("triton") is not None,
        "dataloader_num_workers": workers,
        "dataloader_persistent_workers": workers > 0,
    }


# ---- Arguments of transformers ----


def adopt_arguments(args: object) -> "TrainingArguments":
    """Add Lightning's placement to plain ``transformers.TrainingArguments``, in place, and return them.

    As in transformers, ``trainer.args is args``: scripts keep setting fields on the object they created and reading
    devices and processes from it. The object's class is therefore changed to a subclass of the original; otherwise
    devices and processes would come from accelerate.
    """
    if isinstance(args, LightningPlacement):
        return cast("TrainingArguments", args)
    # The class as imported: a script may have replaced it in transformers since.
    if not isinstance(args, HFTrainingArguments):
        raise InputTypeError(
            f"`args` is an instance of {type(args).__module__}.{type(args).__qualname__}; give "
            "`portico.TrainingArguments` or `transformers.TrainingArguments`."
        )
    # mypy compares with `__hash__` of the instances, which is None, instead of the class's.
    args.__class__ = _build_adopting_class(type(args))  # type: ignore[arg-type]
    adopted = cast("TrainingArguments", args)
    add_newer_arguments(adopted, NewestArguments)
    observers.tell_of_arguments(adopted)
    adopted.corrections = correction_names(adopted.corrections)
    return adopted


class _AdoptedPlacement(LightningPlacement):
    """The placement of adopted arguments; their class is made at run time, so copies and pickles rebuild it."""

    def __reduce__(self) -> tuple[Any, ...]:
        own_class = type(self).__bases__[1]
        return _new_adopted, (own_class,), self.__getstate__()


@cache
def _build_adopting_class(own_class: type) -> type:
    return type(own_class.__name__, (_AdoptedPlacement, own_class), {"__module__": own_class.__module__})


def _new_adopted(own_class: type) -> Any:
    return object.__new__(_build_adopting_class(own_class))


def build_transformers_arguments(args: HFTrainingArguments) -> HFTrainingArguments:
    """Return a copy of ``args`` that unpickles as Hugging Face's class where portico is not installed."""
    theirs = (base for base in type(args).__mro__ if base.__module__.startswith("transformers."))
    nearest = next(base for base in theirs if not issubclass(base, LightningPlacement))
    plain = cast("HFTrainingArguments", object.__new__(nearest))
    added = (
        set(OlderArguments.__annotations__)
        | set(LightningPlacement.__annotations__)
        | {"_lightning_strategy", "_setup_devices", "distributed_state", "hf_deepspeed_config"}
    )
    plain.__dict__.update({key: value for key, value in args.__dict__.items() if key not in added})
    return plain
