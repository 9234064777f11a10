"""Lightning strategies behind the training arguments: data parallel as in transformers, FSDP, DeepSpeed."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import lightning.pytorch as pl
import torch
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy, Strategy
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_only
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from transformers import PreTrainedModel
from typing_extensions import override

from portico.compat.lightning import mesh_options, wrap_in_ddp
from portico.compat.transformers import HFTrainingArguments, logger
from portico.distributed.deepspeed import EngineStrategy, engine_strategy
from portico.distributed.model_parallel import WRAP_POLICIES, ShardedStrategy, Sharding
from portico.distributed.processes import count_launched_processes
from portico.distributed.sequence import UNSHARED, Sharing, SplitSequences, sequence_sharing, split_sequences
from portico.distributed.settings import accelerator_settings, read_number, read_settings, timeout_of
from portico.errors import InputError, InputTypeError

_START_METHODS = {"ddp": "popen", "ddp_spawn": "spawn", "ddp_fork": "fork", "ddp_notebook": "fork"}
# Training arguments by the option of `DistributedDataParallel` that they set.
_ARGUMENTS = {
    "bucket_cap_mb": "ddp_bucket_cap_mb",
    "broadcast_buffers": "ddp_broadcast_buffers",
    "static_graph": "ddp_static_graph",
}


class ModelDDPStrategy(DDPStrategy):
    """Lightning's ``DDPStrategy`` with ``DistributedDataParallel`` around the user's model, not the LightningModule.

    An override of ``training_step`` thus gets the same model as under ``transformers.Trainer``: with ``model.module``,
    ``model.no_sync()``, and gradients averaged by every backward pass, including a raw ``loss.backward()``.
    Evaluations run the bare model. With ``sync_each_batch`` gradients are averaged after each batch of an accumulation
    window, not only after the last. ``sequence_sharing`` says how many processes in a row share each sequence.
    With ``explains_search`` the first process says how to turn off the search for unused parameters if it finds none.
    """

    def __init__(
        self,
        *,
        sync_each_batch: bool = False,
        sequence_sharing: Sharing = UNSHARED,
        explains_search: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.sync_each_batch = sync_each_batch
        self.explains_search = explains_search
        self.sequence_sharing = sequence_sharing
        self._split: SplitSequences | None = None
        self.wrapped_model: DistributedDataParallel | None = None

    @override
    def setup(self, trainer: pl.Trainer) -> None:
        if trainer.state.fn is TrainerFn.FITTING:
            super().setup(trainer)
        else:
            self._set_up_evaluation(trainer)
        module: Any = self.lightning_module
        self._split = split_sequences(module.model, self, self.sequence_sharing)

    def _set_up_evaluation(self, trainer: pl.Trainer) -> None:
        # For evaluations Lightning would overwrite each model with the first process's (`_sync_module_states`),
        # although a step written by the user may have let them drift apart.
        assert self.accelerator is not None
        assert self.model is not None
        self.accelerator.setup(trainer)
        self.precision_plugin.convert_module(self.model)
        self.model_to_device()
        self.setup_precision_plugin()

    @override
    def configure_ddp(self) -> None:
        module: Any = self.lightning_module
        self.wrapped_model = wrap_in_ddp(self, module.model)
        module.set_wrapped_model(self.wrapped_model)

    @override
    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Do not average gradients before the last batch of the window, unless ``sync_each_batch`` is set."""
        module: Any = self.lightning_module
        # Lightning does not know that the last window of an epoch may be short.
        syncs = self.sync_each_batch or module.closes_window
        with nullcontext() if self.wrapped_model is None or syncs else self.wrapped_model.no_sync():
            yield

    @override
    def post_backward(self, closure_loss: torch.Tensor) -> None:
        super().post_backward(closure_loss)
        if not self.explains_search:
            return
        self.explains_search = False
        module: Any = self.lightning_module
        if self.is_global_zero and all(param.grad is not None for param in module.parameters() if param.requires_grad):
            # torch warns in the first step too, and does not know the name of the argument.
            logger.warning(
                "DDP looks for parameters without a gradient in each step, as under transformers, and found none. If "
                "all steps use all parameters, set `ddp_find_unused_parameters=False`, which is faster."
            )

    @override
    def teardown(self) -> None:
        self.wrapped_model = None
        if self._split is not None:
            self._split.remove()
        super().teardown()


def ddp_strategy(name: str, args: HFTrainingArguments, model: nn.Module | None = None) -> ModelDDPStrategy | None:
    """Return the data-parallel strategy that Lightning calls ``name``, or ``None`` for another kind of strategy.

    The name may have Lightning's ending ``"_find_unused_parameters_true"`` or ``"..._false"``; the ``ddp_*`` arguments
    become options.
    """
    kind, _, unused = name.partition("_find_unused_parameters_")
    if kind not in _START_METHODS:
        return None
    find_unused = args.ddp_find_unused_parameters
    if find_unused is None:
        find_unused = unused == "true"
        if not unused:
            find_unused = not _recomputes_activations(args, model)
    given = {option: getattr(args, field, None) for option, field in _ARGUMENTS.items()}
    if given["bucket_cap_mb"] is not None:
        given["bucket_cap_mb"] = read_number(args, "ddp_bucket_cap_mb", "megabytes")
    accumulation = accelerator_settings(args)["gradient_accumulation_kwargs"] or {}
    sizes = _mesh_sizes(args, None)
    return ModelDDPStrategy(
        sequence_sharing=UNSHARED if sizes is None else sizes.sequence,
        sync_each_batch=bool(accumulation.get("sync_each_batch", False)),
        start_method=_START_METHODS[kind],
        process_group_backend=args.ddp_backend,
        timeout=timeout_of(args),
        find_unused_parameters=find_unused,
        explains_search=find_unused and not unused and args.ddp_find_unused_parameters is None,
        **{option: value for option, value in given.items() if value is not None},
    )


def refuse_ddp_arguments(strategy: Strategy, args: HFTrainingArguments) -> None:
    """Raise ``InputError`` for ``ddp_*`` arguments next to a strategy object, which ignores them."""
    names = ("ddp_find_unused_parameters", *_ARGUMENTS.values())
    fields = [name for name in names if getattr(args, name, None) is not None]
    if fields and isinstance(strategy, DDPStrategy):
        raise InputError(
            f"`strategy` is a {type(strategy).__name__} object, which ignores {', '.join(fields)}; give the options "
            "to the strategy, or set `strategy='ddp'`."
        )


def _recomputes_activations(args: HFTrainingArguments, model: nn.Module | None) -> bool:
    # `find_unused_parameters` breaks activation checkpointing (transformers 5.23 switches it off for the same reason);
    # only its models know whether they use it.
    if model is not None and not isinstance(model, PreTrainedModel):
        return False
    modules = () if model is None else model.modules()
    # As `PreTrainedModel.is_activation_checkpointing`, which had another name until transformers 5.23.
    return bool(
        args.gradient_checkpointing or any(getattr(module, "gradient_checkpointing", False) for module in modules)
    )


# Keys of `fsdp_config`, grouped by how they are handled. transformers fills in False for the last ones.
_FSDP1_ONLY = ("backward_prefetch", "forward_prefetch", "limit_all_gathers", "sync_module_states", "use_orig_params")
_XLA = ("xla", "xla_fsdp_grad_ckpt", "xla_fsdp_settings", "xla_fsdp_v2")
_SWITCHES = ("cpu_offload", "activation_checkpointing")
# No effect: there is one way to write files, and the first process always sends its weights to the others.
_SETTLED = ("cpu_ram_efficient_loading", "state_dict_type", "version")
_KNOWN = {
    *_SWITCHES,
    *_SETTLED,
    *_FSDP1_ONLY,
    "auto_wrap_policy",
    "min_num_params",
    "reshard_after_forward",
    "transformer_layer_cls_to_wrap",
}
# As `accelerate config` and its plugin name them.
_NAMES_OF_ACCELERATE = {
    "offload_params": "cpu_offload",
    "sharding_strategy": "reshard_after_forward",
    "transformer_cls_names_to_wrap": "transformer_layer_cls_to_wrap",
    "transformer_cls_to_wrap": "transformer_layer_cls_to_wrap",
}
_STATE_DICT_TYPES = ("FULL_STATE_DICT", "SHARDED_STATE_DICT")
# Words of FSDP 1, and whether they free weights after the forward pass.
_WORDS = {"full_shard": True, "shard_grad_op": False, "hybrid_shard": True, "hybrid_shard_zero2": False}


def fsdp_sharding(
    fsdp: "bool | str | Sequence[str] | None", fsdp_config: "str | Mapping[str, Any] | None"
) -> tuple[Sharding, bool]:
    """Return the sharding in ``fsdp`` and ``fsdp_config``, and whether each machine has a copy of the model.

    ``fsdp`` may be the older words (``"full_shard auto_wrap offload"``), also in a list; ``fsdp_config`` may be the
    path of a JSON file. Settings without a counterpart in FSDP2 are refused, or announced where they have no effect.
    """
    config = _normalize_fsdp(fsdp, fsdp_config)
    of_xla = sorted(name for name in _XLA if _is_on(config.get(name)))
    if of_xla:
        raise InputError(
            f"`fsdp_config` sets {', '.join(of_xla)}, which torch's FSDP2 does not have; leave it out (known are "
            f"{', '.join(sorted(_KNOWN))}), or pass a strategy object as `strategy`."
        )
    if unknown := sorted(map(str, config.keys() - {*_KNOWN, *_XLA})):
        # transformers reads the keys that it knows and no others.
        _announce(
            f"`fsdp_config` sets {', '.join(unknown)}, which is no setting of FSDP2 and has no effect; known are "
            f"{', '.join(sorted(_KNOWN))}."
        )
    idle = [name for name in _FSDP1_ONLY if name in config] + ["version"] * (str(config.get("version", 2)) != "2")
    if idle:
        _announce(f"FSDP2 has no {', '.join(idle)}; `fsdp_config` sets them for FSDP 1, without effect here.")
    settled = ["cpu_ram_efficient_loading"] * _is_on(config.get("cpu_ram_efficient_loading", False))
    settled += ["state_dict_type"] * (config.get("state_dict_type") == "SHARDED_STATE_DICT")
    if settled:
        _announce(
            f"`fsdp_config` sets {' and '.join(settled)}, which changes nothing: all processes get the weights of the "
            "first, layer by layer, and checkpoints are files of safetensors with the optimizer in shards."
        )
    _one_of("state_dict_type", config.get("state_dict_type", "FULL_STATE_DICT"), _STATE_DICT_TYPES)
    reshards = str(config.get("reshard_after_forward", True)).lower()
    _one_of("reshard_after_forward", reshards, ("true", "false", *_WORDS))
    policy = config.get("auto_wrap_policy") or WRAP_POLICIES[0]
    _one_of("auto_wrap_policy", policy, WRAP_POLICIES)
    layers = config.get("transformer_layer_cls_to_wrap") or ()
    layers = layers.replace(",", " ").split() if isinstance(layers, str) else layers
    if not isinstance(layers, Iterable) or not all(isinstance(name, str) for name in layers):
        raise InputError(
            f"`transformer_layer_cls_to_wrap={layers!r}` in `fsdp_config` is not a list of names; write the classes "
            "as strings, as in ['BertLayer']."
        )
    num_parameters = str(config.get("min_num_params", 0))
    if not num_parameters.isdecimal():
        raise InputError(f"`min_num_params={num_parameters}` in `fsdp_config` is not a number; use an int >= 0.")
    sharding = Sharding(
        auto_wrap_policy=policy,
        transformer_layer_cls_to_wrap=frozenset(layers),
        min_num_params=int(num_parameters),
        reshard_after_forward=_WORDS.get(reshards, reshards == "true"),
        **{name: _switch(name, config.get(name, False)) for name in _SWITCHES},
    )
    return sharding, reshards.startswith("hybrid")


def _announce(message: str) -> None:
    # The strategy is made for the arguments and for each run, on every process.
    if getattr(rank_zero_only, "rank", 0) == 0:
        logger.warning_once(message, stacklevel=2)


def _one_of(name: str, value: object, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise InputError(f"`{name}={value!r}` in `fsdp_config` is not known; use one of {', '.join(allowed)}.")


def _normalize_fsdp(
    fsdp: "bool | str | Sequence[str] | None", fsdp_config: "str | Mapping[str, Any] | None"
) -> dict[str, Any]:
    config: dict[str, Any] = {}
    settings = read_settings("fsdp_config", fsdp_config) if fsdp_config else {}
    # As in transformers, a name with the prefix counts where both are set.
    for given in sorted(settings, key=lambda name: name.startswith("fsdp_")):
        name = _NAMES_OF_ACCELERATE.get(given.removeprefix("fsdp_"), given.removeprefix("fsdp_"))
        if config.get(name, settings[given]) != settings[given]:
            _announce(f"`fsdp_config` sets {name} twice, and the value of {given} counts; leave one out.")
        config[name] = settings[given]
    words: Sequence[str] = ()
    if isinstance(fsdp, str):
        words = fsdp.split()
    elif isinstance(fsdp, Iterable):
        words = list(fsdp)
    elif fsdp is not None and not isinstance(fsdp, bool):
        raise InputTypeError(f"`fsdp={fsdp!r}` cannot be used; set it to True or False, or a string of words.")
    for word in (str(getattr(word, "value", word)) for word in words):
        if word in _WORDS:
            config.setdefault("reshard_after_forward", word)
        elif word == "offload":
            config.setdefault("cpu_offload", True)
        elif word == "no_shard":
            raise InputError(f"`fsdp={fsdp!r}` does not shard the model; set `strategy='ddp'` instead.")
        elif word not in ("auto_wrap", "true", "True"):
            raise InputError(
                f"`fsdp={fsdp!r}` has the word {word!r}; use {', '.join(_WORDS)}, offload and auto_wrap, or "
                "`fsdp=True` with `fsdp_config`."
            )
    return config


# As accelerate's `str_to_bool` reads them.
_ON, _OFF = ("true", "1", "yes", "on", "y", "t"), ("false", "0", "no", "off", "n", "f")


def _is_on(value: object) -> bool:
    return bool(value) and str(value).lower() not in _OFF


def _switch(name: str, value: object) -> bool:
    if value and str(value).lower() not in (*_ON, *_OFF):
        _announce(f"`{name}={value!r}` in `fsdp_config` counts as on; use true or false.")
        return True
    return _is_on(value)


# Keys of `parallelism_config`, as of accelerate's `ParallelismConfig`.
_SIZES = ("dp_replicate_size", "dp_shard_size", "tp_size", "cp_size", "sp_size")
_PARALLELISM = (*_SIZES, "cp_backend", "sp_backend", "tp_handler", "cp_handler", "sp_handler")


def resolve_sharding(args: HFTrainingArguments, model: nn.Module | None = None) -> Strategy | None:
    """Return the strategy of ``fsdp``, ``deepspeed`` or a mesh of processes; ``None`` if the model stays whole.

    Contradictions, and what cannot run here, are refused.
    """
    strategy = getattr(args, "strategy", None)
    by_name = strategy == "fsdp"
    names = [name for name in ("fsdp", "deepspeed") if getattr(args, name)]
    is_configured = isinstance(args.fsdp_config, Mapping | str) and bool(args.fsdp_config)
    if is_configured and not (by_name or "fsdp" in names):
        _announce("`fsdp_config` has no effect without `fsdp`; set `fsdp=True`, or leave it out.")
    if names and strategy is not None and not (by_name and names == ["fsdp"]):
        names.append("strategy")
    if len(names) > 1:
        both = ""
        if {"fsdp", "deepspeed"} <= set(names):
            both = "Using --fsdp xxx together with --deepspeed is not possible, deactivate one of those flags. "
        named = " and ".join(f"`{name}`" for name in names)
        raise InputError(f"{both}{named} each choose a strategy; set one of them.")
    if names == ["deepspeed"]:
        process_group = {"process_group_backend": args.ddp_backend, "timeout": timeout_of(args)}
        return engine_strategy(args, **process_group)
    sizes = _mesh_sizes(args, model)
    is_sharded = args.parallelism_config is not None and sizes is not None and max(sizes.shards or 1, sizes.tensor) > 1
    if is_sharded and strategy not in (None, "auto", "fsdp"):
        name = strategy if isinstance(strategy, str) else type(strategy).__name__
        raise InputError(f"`parallelism_config` shards the model, and `strategy` is {name!r}; set one of them.")
    if type(strategy) is ModelParallelStrategy:
        return _fsdp_strategy(args, Sharding(), **mesh_options(strategy))
    shards = bool(names) or by_name
    if not shards and (sizes is None or isinstance(strategy, Strategy)):
        return None
    sharding = Sharding()
    copies_per_machine = False
    if shards:
        sharding, copies_per_machine = fsdp_sharding(args.fsdp, args.fsdp_config)
    if sharding.activation_checkpointing and args.gradient_checkpointing:
        _announce(
            "`activation_checkpointing` in `fsdp_config` and `gradient_checkpointing` both recompute each layer, "
            "which is done once, as the latter says; leave it out to recompute as FSDP does."
        )
        sharding = dataclasses.replace(sharding, activation_checkpointing=False)
    if sizes is None:
        replicas = 1
        if copies_per_machine:
            _, launched_machines = count_launched_processes() or (1, 1)
            replicas = getattr(args, "num_nodes", None) or launched_machines
        return _fsdp_strategy(args, sharding, replicas=replicas, is_alone_refused=bool(names))
    num_shards = sizes.shards
    if not shards:
        num_shards = num_shards or 1
        if num_shards * sizes.tensor == 1:
            return None
    return _fsdp_strategy(
        args,
        sharding,
        replicas=sizes.replicas,
        # Weights are sharded over the processes that share a sequence, too.
        shards=None if num_shards is None else num_shards * sizes.sequence.size,
        tensor_parallel_size=sizes.tensor,
        sequence_sharing=sizes.sequence,
    )


def _fsdp_strategy(
    args: HFTrainingArguments, sharding: Sharding, *, is_alone_refused: bool = False, **options: Any
) -> ShardedStrategy:
    if args.optim == "adafactor":
        raise InputError(
            "`optim='adafactor'` keeps moments for rows and columns of full weights, and the model is sharded; "
            "set an optimizer of torch, such as 'adamw_torch' or 'sgd'."
        )
    accumulation = accelerator_settings(args)["gradient_accumulation_kwargs"] or {}
    return ShardedStrategy(
        sharding,
        is_alone_refused=is_alone_refused,
        sync_each_batch=bool(accumulation.get("sync_each_batch", False)),
        **{"process_group_backend": args.ddp_backend, "timeout": timeout_of(args), **options},
    )


class _MeshSizes(NamedTuple):
    replicas: int = 1
    shards: int | None = None
    tensor: int = 1
    sequence: Sharing = UNSHARED


def _mesh_sizes(args: HFTrainingArguments, model: nn.Module | None) -> _MeshSizes | None:
    """Return the sizes of the mesh that the arguments or the model set, or ``None``.

    The model sets them if ``from_pretrained(distributed_config=...)`` has sharded it.
    """
    loaded = getattr(getattr(model, "config", None), "distributed_config", None)
    if getattr(model, "is_distributed_loading_by_transformers", False) and loaded is not None:
        if loaded.pp_size > 1:
            raise InputError(
                f"The model was loaded with `pp_size={loaded.pp_size}`, but pipeline parallelism is not trained here; "
                "load it with `fsdp_size`, `dp_replicate_size`, `tp_size` and `ep_size`."
            )
        return _MeshSizes(loaded.dp_replicate_size, loaded.fsdp_size, loaded.tp_size)
    config = args.parallelism_config
    if config is None:
        return None
    if isinstance(config, str):
        config = read_settings("parallelism_config", config)
    if not isinstance(config, Mapping) and not hasattr(config, "tp_size"):
        raise InputError(
            f"`parallelism_config` is a {type(config).__name__}; give a dict of sizes, such as {{'tp_size': 2}}, a "
            "JSON file or accelerate's `ParallelismConfig`."
        )
    given = config if isinstance(config, Mapping) else vars(config)
    if isinstance(config, Mapping) and (unknown := sorted(config.keys() - _PARALLELISM)):
        raise InputError(
            f"`parallelism_config` sets {', '.join(unknown)}, which is unknown; use {', '.join(_PARALLELISM)}."
        )
    for name in _SIZES:
        size = given.get(name)
        if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 1):
            raise InputError(
                f"`{name}={size!r}` in `parallelism_config` is not a number of processes; use an int >= 1."
            )
    tensor, sharing = given.get("tp_size") or 1, _parse_sharing(given)
    if sharing.size > 1 and tensor > 1:
        raise InputError(
            f"`{sharing.argument}={sharing.size}` and `tp_size={tensor}` in `parallelism_config` would both split "
            "attention; set one of them."
        )
    return _MeshSizes(given.get("dp_replicate_size") or 1, given.get("dp_shard_size"), tensor, sharing)


def _parse_sharing(given: Mapping[str, Any]) -> Sharing:
    """Return how a ``parallelism_config`` shares sequences; announce options of it without effect."""
    num_by_heads, num_by_keys = given.get("sp_size") or 1, given.get("cp_size") or 1
    if num_by_heads > 1 and num_by_keys > 1:
        raise InputError(
            f"`sp_size={num_by_heads}` and `cp_size={num_by_keys}` in `parallelism_config` are two ways to share the "
            "same sequences; set one of them."
        )
    if num_by_heads > 1 and (given.get("sp_backend") or given.get("sp_handler")):
        _announce(
            "`sp_backend` and `sp_handler` of `parallelism_config` have no effect: portico exchanges the heads of "
            "attention itself, without DeepSpeed."
        )
    handler = given.get("cp_handler") or {}
    options = handler if isinstance(handler, Mapping) else vars(handler)
    if num_by_keys > 1 and options.get("cp_comm_strategy", "allgather") != "allgather":
        _announce(
            "`cp_comm_strategy` of `cp_handler` in `parallelism_config` has no effect: each process gathers the keys "
            "and values of all others before attention, as with 'allgather'."
        )
    return Sharing(num_by_keys, gathers_keys=True) if num_by_keys > 1 else Sharing(num_by_heads)


def refuse_other_replicas(strategy: Strategy, args: HFTrainingArguments) -> None:
    """Raise ``InputError`` if the arguments ask for another number of replicas than ``strategy`` has processes.

    A sharded strategy compares its mesh itself.
    """
    sizes = _mesh_sizes(args, None)
    if sizes is None:
        return
    num_processes = getattr(strategy, "world_size", 1)
    sharing = sizes.sequence
    if num_processes % sharing.size:
        raise InputError(
            f"`{sharing.argument}={sharing.size}` in `parallelism_config` does not divide the {num_processes} "
            f"processes of the run; start {sharing.size}, or a multiple."
        )
    if sequence_sharing(strategy).size != sharing.size:
        raise InputError(
            f"`{sharing.argument}={sharing.size}` in `parallelism_config` splits sequences under `strategy='ddp'` or "
            f"`fsdp`, and the run has a {type(strategy).__name__}; leave `strategy` out, or `{sharing.argument}`."
        )
    expected = sizes.replicas * sharing.size
    if not isinstance(strategy, ShardedStrategy) and sizes.replicas > 1 and num_processes != expected:
        raise InputError(
            f"`dp_replicate_size={sizes.replicas}` in `parallelism_config` asks for {expected} processes, but the run "
            f"has {num_processes}; start {expected}, or leave it out."
        )


def refuse_sharded_weights(strategy: "Strategy") -> None:
    """Raise ``InputError`` instead of writing Hugging Face's files from sharded weights."""
    if isinstance(strategy, DeepSpeedStrategy | FSDPStrategy):
        raise InputError(
            f"Under {type(strategy).__name__} each process has only a part of the weights, which are not written as "
            "Hugging Face's files; set `save_strategy='no'`, and save with Lightning's `ModelCheckpoint` in "
            "`lightning_callbacks` or with `trainer.lightning_trainer.save_checkpoint(...)`."
        )


def refuse_own_backward(strategy: "Strategy") -> None:
    """Raise ``InputError`` for a step that runs backward itself under a strategy around the whole LightningModule."""
    wraps_module = isinstance(strategy, DDPStrategy) and not isinstance(strategy, ModelDDPStrategy | EngineStrategy)
    if wraps_module or isinstance(strategy, DeepSpeedStrategy | FSDPStrategy):
        raise InputError(
            f"`training_step` is overridden, or `compute_loss` calls `accelerator.backward`: backward runs inside it, "
            f"where {type(strategy).__name__} does not average the gradients of the processes; set `strategy='ddp'`, "
            "or override `compute_loss` without that call instead."
        )
