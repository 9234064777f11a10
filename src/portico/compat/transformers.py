"""Every name of transformers that is not exported by `transformers` itself, looked up here and nowhere else.

transformers documents what its top level exports; the rest moves between minor releases. A name is therefore looked up
when it is used, in other modules too; if it is nowhere, whatever uses it is refused, and the rest of portico works.
:mod:`portico.compat.older` stands in for what older releases do not have, and :mod:`portico.compat.releases`
refuses the rest by name. To check a release, run `tests/unit/compat/test_transformers.py`, which looks up each name.
"""

import ast
import inspect
import logging
import sys
from contextlib import suppress
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import transformers
from torch import distributed, nn
from transformers import logging as transformers_logging

from portico.compat import older
from portico.compat.older import CACHE_NAME
from portico.compat.releases import SINCE, is_before
from portico.errors import MissingPackageError

CHECKED_VERSION = "5.24"
LOWEST_VERSION = "5.2"

# Type checkers read these imports; at run time `__getattr__` finds the names by them.
if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from huggingface_hub import HfApi
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor
    from transformers import PreTrainedModel, TrainingArguments
    from transformers.debug_utils import DebugUnderflowOverflow
    from transformers.hyperparameter_search import (
        HyperParamSearchBackendBase,
        OptunaBackend,
        RayTuneBackend,
        WandbBackend,
    )
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig, set_hf_deepspeed_config
    from transformers.integrations.integration_utils import (
        get_available_reporting_integrations,
        get_reporting_integration_callbacks,
    )
    from transformers.integrations.liger import apply_liger_kernel
    from transformers.integrations.neftune import activate_neftune, deactivate_neftune
    from transformers.loss.loss_utils import LOSS_MAPPING, ForCausalLMLoss
    from transformers.masking_utils import (
        ALL_MASK_ATTENTION_FUNCTIONS,
        and_masks,
        find_packed_sequence_indices,
        packed_sequence_mask_function,
    )
    from transformers.modelcard import TrainingSummary
    from transformers.modeling_outputs import BaseModelOutput, QuestionAnsweringModelOutput, Seq2SeqLMOutput
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    from transformers.models.bert.modeling_bert import BertEmbeddings, BertSelfAttention
    from transformers.models.roberta.modeling_roberta import RobertaClassificationHead
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil
    from transformers.models.xlm.modeling_xlm import XLMSQuADHead
    from transformers.models.xlnet.modeling_xlnet import XLNetForQuestionAnsweringOutput
    from transformers.optimization import GreedyLR
    from transformers.trainer_callback import CallbackHandler, DefaultFlowCallback, ExportableState
    from transformers.trainer_jit_checkpoint import JITCheckpointCallback
    from transformers.trainer_optimizer import (
        _OPTIMIZER_HANDLERS,
        OptimizerContext,
        _parse_optim_args,
        is_optimizer_factory,
    )
    from transformers.trainer_pt_utils import (
        AcceleratorConfig,
        BatchRebalanceSampler,
        IterableDatasetShard,
        LabelSmoother,
        LayerWiseDummyOptimizer,
        LengthGroupedSampler,
        find_batch_size,
        get_model_param_count,
        get_parameter_names,
        log_metrics,
        metrics_format,
        nested_numpify,
        safe_globals,
        set_rng_state_for_device,
    )
    from transformers.trainer_utils import (
        PREFIX_CHECKPOINT_DIR,
        BestRun,
        EvalLoopOutput,
        HPSearchBackend,
        PredictionOutput,
        RemoveColumnsCollator,
        TrainerMemoryTracker,
        TrainOutput,
        align_special_tokens,
        compare_trainer_and_checkpoint_args,
        default_compute_objective,
        denumpify_detensorize,
        has_length,
        number_of_arguments,
        seed_worker,
        sort_checkpoints,
        speed_metrics,
        unwrap_peft_model,
        validate_quantization_for_training,
    )
    from transformers.training_args import OptimizerNames, ParallelMode

    # From the module that defines it: a script may replace it in `transformers` with portico's class.
    from transformers.training_args import TrainingArguments as HFTrainingArguments
    from transformers.training_args import TrainingArguments as NewestArguments
    from transformers.utils import (
        GENERATION_CONFIG_NAME,
        SAFE_WEIGHTS_INDEX_NAME,
        SAFE_WEIGHTS_NAME,
        WEIGHTS_INDEX_NAME,
    )
    from transformers.utils.generic import ModelOutput, can_return_loss, find_labels
    from transformers.utils.hub import PushInProgress, cached_file
    from transformers.utils.import_utils import is_in_notebook, is_liger_kernel_available, is_peft_available
    from transformers.utils.notebook import NotebookProgressCallback
    from transformers.utils.peft_utils import ADAPTER_SAFE_WEIGHTS_NAME, ADAPTER_WEIGHTS_NAME

# Where a name is looked for that is not in its module: what moves is mostly still imported by one of these.
_OTHER_HOMES = (
    "transformers",
    "transformers.utils",
    "transformers.trainer_utils",
    "transformers.training_args",
    "transformers.trainer",
)


class MissingName:
    """Stands for a name that the installed transformers lacks. Its use raises an error that names releases with it.

    An import, an annotation, a check of a type and a base class may name it, since they run when a module is imported.
    """

    def __init__(self, module: str, name: str, since: str | None = None, reason: BaseException | None = None) -> None:
        self._missing = (module, name, since, reason)

    def refuse(self, *args: object, **kwargs: object) -> Any:
        import portico

        module, name, since, reason = self._missing
        cause = f" ({reason})" if isinstance(reason, ImportError) else ""
        newer = "" if since is not None else ", or a newer portico"
        raise MissingPackageError(
            f"portico {portico.__version__} needs `{name}` of `{module}`, which transformers "
            f"{transformers.__version__} does not have{cause}; install transformers {since or LOWEST_VERSION} to "
            f"{CHECKED_VERSION}{newer}."
        ) from reason

    __call__ = __contains__ = __fspath__ = __getitem__ = __iter__ = __str__ = refuse

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked by `inspect`, `typing` and the like
            raise AttributeError(name)
        return self.refuse()

    def __instancecheck__(self, instance: object) -> bool:
        return False

    def __or__(self, other: object) -> Any:
        return Any

    __ror__ = __or__

    def __mro_entries__(self, bases: tuple[object, ...]) -> tuple[type, ...]:
        return (type(self._missing[1], (), {"__new__": self.refuse}),)


def _look_up(name: str) -> Any:
    if name in older.STAND_INS:
        return older.STAND_INS[name]
    module, original = _HOMES[name]
    since = SINCE[name] if name in SINCE and is_before(SINCE[name]) else None
    reason: Exception | None = None
    for home in (module, *_OTHER_HOMES) if since is None else ():
        try:
            return getattr(import_module(home), original)
        except (ImportError, AttributeError) as error:
            reason = reason or error
    return MissingName(module, original, since, reason)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found = _look_up(name)
    return found


# The module and the name there, by the name here, of what is imported for type checkers above.
_HOMES = {
    alias.asname or alias.name: (node.module, alias.name)
    for block in ast.parse(Path(__file__).read_text(encoding="utf-8")).body
    if isinstance(block, ast.If)
    for node in block.body
    if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("transformers.")
    for alias in node.names
}
# For the functions below, whose names of transformers are looked up like those of other modules.
_names: Any = sys.modules[__name__]

# Scripts set the level of the logger `transformers` and attach handlers and filters to it or to
# `transformers.trainer`; a logger of another name would bypass all of them.
logger = transformers_logging.get_logger("transformers.trainer")
_PACKAGE = str(Path(__file__).parent.parent)


class _PrefixFormatter(logging.Formatter):
    """Formats as transformers does, and begins what portico says with "[portico]" instead of "[transformers]"."""

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self.formatter = formatter

    def format(self, record: logging.LogRecord) -> str:
        text = self.formatter.format(record)
        # `warning_once` is a function of transformers: with `stacklevel=2` the record names the module that called it.
        is_own = record.pathname.startswith(_PACKAGE)
        return text.replace("[transformers]", "[portico]", 1) if is_own else text


for _handler in logging.getLogger("transformers").handlers:
    if _handler.formatter is not None:
        _handler.setFormatter(_PrefixFormatter(_handler.formatter))


def optimizer_cls_and_kwargs(args: "TrainingArguments", model: "nn.Module | None") -> tuple[Any, dict[str, Any]]:
    """Look up an optimizer in transformers' table, as ``transformers.Trainer.get_optimizer_cls_and_kwargs`` does.

    The method itself is not used: a script may have replaced the trainer with portico's.
    """
    context = _names.OptimizerContext(
        args=args,
        model=model,
        optimizer_kwargs={"lr": args.learning_rate},
        adam_kwargs={"betas": (args.adam_beta1, args.adam_beta2), "eps": args.adam_epsilon},
        optim_args=_names._parse_optim_args(args.optim_args),
    )
    if args.optim not in _names._OPTIMIZER_HANDLERS:
        raise ValueError(
            f"Trainer cannot instantiate unsupported optimizer: {args.optim}; set `optim` to a value of "
            "`transformers.training_args.OptimizerNames`."
        )
    return _names._OPTIMIZER_HANDLERS[args.optim](context)


# ---- Attention of models whose sequences are split ----


def register_attention(name: str, attend: "Callable[..., Any]", make_mask: "Callable[..., Any]") -> None:
    """Let models use ``name`` as their attention implementation, with masks from ``make_mask``."""
    _names.ALL_ATTENTION_FUNCTIONS.register(name, attend)
    _names.ALL_MASK_ATTENTION_FUNCTIONS.register(name, make_mask)


def attention_function(name: str, module: nn.Module) -> "Callable[..., Any]":
    """Return the attention ``name``, ``"eager"`` from the file that defines ``module``."""
    own = getattr(
        sys.modules[type(module).__module__], "eager_attention_forward", _names.ALL_ATTENTION_FUNCTIONS["sdpa"]
    )
    return _names.ALL_ATTENTION_FUNCTIONS.get_interface(name, own)


def mask_function(name: str) -> "Callable[..., Any]":
    """Return what makes the masks of the attention ``name``."""
    return _names.ALL_MASK_ATTENTION_FUNCTIONS[name]


def restrict_to_packed(pattern: "Callable[..., Any]", packed_BL: "torch.Tensor") -> "Callable[..., Any]":
    """Return the mask ``pattern`` restricted to the positions of one of several sequences in a row."""
    return _names.and_masks(pattern, _names.packed_sequence_mask_function(packed_BL))


def hf_api() -> "HfApi":
    """Return a client that identifies itself to the hub as transformers."""
    from huggingface_hub import HfApi

    return HfApi(library_name="transformers", library_version=transformers.__version__)


def accepts_loss_kwargs(model: nn.Module) -> bool:
    """Return whether ``model`` takes ``num_items_in_batch``, by its attribute or its signature, as in transformers."""
    parameters = inspect.signature(model.forward).parameters.values()
    takes_kwargs = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
    return bool(getattr(model, "accepts_loss_kwargs", takes_kwargs))


def split_layers(model: "PreTrainedModel", mesh: "DeviceMesh") -> None:
    """Split the layers of ``model`` over ``mesh`` in place, as its ``tp_plan`` says; needs transformers 5.23."""
    from transformers.distributed.tensor_parallel import apply_tensor_parallelism

    # The plan names tied weights under each of their names; transformers splits them before it ties them.
    for name in model.all_tied_weights_keys or ():
        owner, _, own = name.rpartition(".")
        tensor = model.get_submodule(owner)._parameters[own]
        assert tensor is not None
        model.get_submodule(owner)._parameters[own] = nn.Parameter(tensor.detach(), requires_grad=tensor.requires_grad)
    apply_tensor_parallelism(model, mesh, model._expand_parallel_plan(model.tp_plan))
    model.tie_weights(recompute_mapping=False)
    # Read by `Trainer.get_tp_size` of transformers.
    model._tp_size = mesh.size()  # type: ignore[assignment]  # None in the class
    sum_gradients_of_replicated(model, mesh)


def mesh_of_loaded(model: nn.Module) -> "DeviceMesh | None":
    """Return the processes over which transformers has split the layers of ``model`` while loading it."""
    mesh = getattr(model, "_device_mesh", None)
    return mesh["tp"] if mesh is not None and "tp" in (mesh.mesh_dim_names or ()) else None


def sum_gradients_of_replicated(model: nn.Module, mesh: "DeviceMesh") -> None:
    """Sum each gradient of a norm between split layers over ``mesh`` once, in windows of several batches too.

    transformers (``ReplicatedWithGradAllReduce``) sums ``param.grad`` after each batch, so that the first of two
    batches counts once for each process.
    """
    group = mesh.get_group()

    def sum_gradient(gradient: "torch.Tensor") -> "torch.Tensor":
        gradient = gradient.clone()
        distributed.all_reduce(gradient, group=group)
        return gradient

    # FSDP replaces the parameters until the first forward pass.
    def hook_parameters(module: nn.Module, inputs: object, hooked: dict[str, nn.Parameter]) -> None:
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.requires_grad and hooked.get(name) is not parameter:
                parameter.register_hook(sum_gradient)
                hooked[name] = parameter

    for module in model.modules():
        replaced = vars(module).get("forward")
        if getattr(replaced, "__qualname__", "").startswith("ReplicatedWithGradAllReduce."):
            del module.forward
            module.register_forward_pre_hook(partial(hook_parameters, hooked={}))


def shard_operation(tensor: "DTensor") -> Any:
    """Return the operation that cuts this process's part of ``tensor`` out of a full tensor or file."""
    if is_before("5.23"):
        return older.whole_tensor_operation(tensor)
    from transformers.distributed.sharding_utils import DtensorShardOperation

    return DtensorShardOperation(tensor)


def revert_weight_conversion(model: "PreTrainedModel", weights: dict[str, Any]) -> dict[str, Any]:
    """Return ``weights`` with the names and the splits that ``save_pretrained`` writes."""
    from transformers import core_model_loading

    return core_model_loading.revert_weight_conversion(model, weights)


def products_of_experts(name: str) -> list[Any]:
    """Return an operator that transformers registers with torch for mixtures of experts, if this release has it."""
    import torch

    with suppress(ImportError):
        from transformers.integrations import moe  # registers the operators
    operator = getattr(torch.ops.transformers, name, None)
    return [] if operator is None else [operator.default]


@cache
def make_deberta_traceable() -> None:
    """Let torch trace DeBERTa's attention span as a number: transformers' tensor would break the graph."""
    import torch
    from transformers.models.deberta.modeling_deberta import compute_attention_span

    @torch.compiler.substitute_in_graph(compute_attention_span)
    def attention_span(query_layer: Any, key_layer: Any, max_relative_positions: int) -> int:
        return min(max(query_layer.size(-2), key_layer.size(-2)), max_relative_positions)
