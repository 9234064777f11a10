"""What releases of transformers before the newest lack. Each part names the release that it is needed until: when
`pyproject.toml` requires that release, delete the part.
"""

import logging
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal

import torch
import transformers
from packaging.version import Version
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.functional import log_softmax

from portico.errors import MissingPackageError

# Names that nothing stands in for, and values of arguments that need a release; of `None`, every value.
SINCE = {"BatchRebalanceSampler": "5.17", "GreedyLR": "5.4"}
_VALUES: Mapping[str, tuple[str | None, str]] = {
    "lr_scheduler_type": ("greedy", "5.4"),
    "train_sampling_strategy": ("batch_rebalance", "5.17"),
    "trackio_bucket_id": (None, "5.6"),
    "trackio_static_space_id": (None, "5.6"),
}
# What makes a stand-in of the name in the installed release, which may be `None`.
STAND_INS: dict[str, Callable[[Any], Any]] = {}


def is_before(release: str) -> bool:
    return Version(transformers.__version__).release < Version(release).release


def refuse_before(release: str, what: str) -> None:
    """Refuse ``what``, a feature in words, if the installed transformers is older than ``release``."""
    if is_before(release):
        raise MissingPackageError(
            f"{what} needs transformers {release} or newer, but {transformers.__version__} is installed; run "
            f"`pip install 'transformers>={release}'`, or leave it out."
        )


def refuse_newer_values(args: Any) -> None:
    """Refuse values of training arguments that the installed release cannot carry out."""
    for name, (value, release) in _VALUES.items():
        given = getattr(args, name)
        if given is not None and value in (None, getattr(given, "value", given)):
            refuse_before(release, f"`{name}={value or given!r}`")


def _until(release: str, name: str) -> Callable[[Callable[[Any], Any]], None]:
    return lambda make: STAND_INS.update({name: make} if is_before(release) else {})


CACHE_NAME = "past_key_values" if is_before("5.24") else "cache"


def enable_activation_checkpointing(model: Any, options: Any, placement: Mapping[str, Any]) -> None:
    """Recompute activations of a transformers model by the name that its method has until 5.23."""
    if placement:
        refuse_before("5.16", f"`{next(iter(placement))}` in `activation_checkpointing_kwargs`")
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options, **placement)


class ShardOperation:
    """Cuts this process's part out of a whole tensor, until 5.23; layers cannot be split by then."""

    def __init__(self, like: DTensor) -> None:
        self.like = like

    def shard_tensor(self, source: Any) -> torch.Tensor:
        whole, mesh = source[...], self.like.device_mesh
        return distribute_tensor(whole, mesh, self.like.placements, src_data_rank=None).to_local()


@_until("5.18", "align_special_tokens")
def _align_special_tokens(theirs: Any) -> Any:
    def align(model: Any, processing_class: Any) -> None:
        """Write the tokens that the tokenizer defines, and no others, into the configurations of the model."""
        tokenizer = getattr(processing_class, "tokenizer", processing_class)
        config, generation = model.config.get_text_config(), getattr(model, "generation_config", None)
        updated = {}
        for name in ("eos_token_id", "bos_token_id", "pad_token_id"):
            token, known, generated = (getattr(part, name, None) for part in (tokenizer, config, generation))
            lists = [ids if isinstance(ids, list) else [ids] for ids in (known, generated)]
            if token is None or (token in lists[0] and (generation is None or token in lists[1])):
                continue
            updated[name] = token
            several = [[token, *(one for one in ids if one not in (None, token))] for ids in lists]
            is_eos = name == "eos_token_id"
            setattr(config, name, several[0] if is_eos and isinstance(known, list) else token)
            if generation is not None:
                setattr(generation, name, several[1] if is_eos else token)
        if updated:
            logging.getLogger("transformers.trainer_utils").warning(
                "The tokenizer has new PAD/BOS/EOS tokens that differ from the model config and generation config. The "
                "model config and generation config were aligned accordingly, being updated with the tokenizer's "
                f"values. Updated tokens: {updated}."
            )

    return align


@_until("5.15", "LabelSmoother")
def _counting(theirs: Any) -> Any:
    class LabelSmoother(theirs):
        """Divides by the number of labels of the step."""

        def __call__(
            self, model_output: Any, labels: Any, shift_labels: bool = False, num_items_in_batch: Any = None
        ) -> Any:
            if num_items_in_batch is None:
                return super().__call__(model_output, labels, shift_labels)
            logits = model_output["logits"] if isinstance(model_output, dict) else model_output[0]
            if shift_labels:
                logits, labels = logits[..., :-1, :].contiguous(), labels[..., 1:].contiguous()
            scores = -log_softmax(logits, dim=-1)
            labels = labels.unsqueeze(-1) if labels.dim() == scores.dim() - 1 else labels
            padding, count = labels.eq(self.ignore_index), torch.as_tensor(num_items_in_batch, device=logits.device)
            likelihood = scores.gather(dim=-1, index=labels.clamp(min=0)).masked_fill_(padding, 0.0)
            smoothed = scores.sum(dim=-1, keepdim=True, dtype=torch.float32).masked_fill_(padding, 0.0)
            smoothed_loss = smoothed.sum() / (count * scores.shape[-1])
            return (1 - self.epsilon) * (likelihood.sum() / count) + self.epsilon * smoothed_loss

    return LabelSmoother


@_until("5.4", "DefaultFlowCallback")
def _evaluating_at_the_end(theirs: Any) -> Any:
    class DefaultFlowCallback(theirs):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
            super().on_step_end(args, state, control, **kwargs)
            is_left_out = state.global_step >= state.max_steps and state.global_step % state.eval_steps != 0
            if args.eval_strategy == "steps" and is_left_out and args.eval_delay <= state.global_step:
                control.should_evaluate = True
            return control

    return DefaultFlowCallback


@_until("5.4", "ViTImageProcessorPil")
def _image_processor(theirs: Any) -> Any:
    return transformers.ViTImageProcessor


@_until("5.23", "NewestArguments")
def _newest_arguments(theirs: Any) -> Any:
    @dataclass
    class NewestArguments(theirs):
        activation_checkpointing: bool | None = None
        activation_checkpointing_kwargs: dict[str, Any] | str | None = None
        gradient_checkpointing: bool | None = None
        gradient_checkpointing_kwargs: dict[str, Any] | str | None = None
        dataloader_in_order: bool = True  # until 5.15, and the next
        dataloader_multiprocessing_context: str | None = field(
            default=None, metadata={"choices": ["fork", "spawn", "forkserver"]}
        )
        ddp_static_graph: bool | None = None  # until 5.6, and the rest
        trackio_bucket_id: str | None = None
        trackio_space_id: str | None = None
        trackio_static_space_id: str | None | Literal[False] = None  # noqa: RUF036, as it is there
        fsdp: str | None = None
        logging_dir: ClassVar[None] = None  # no arguments since 5.15
        warmup_ratio: ClassVar[None] = None
        _VALID_DICT_FIELDS = [*theirs._VALID_DICT_FIELDS, "activation_checkpointing_kwargs"]

        def __post_init__(self) -> None:
            for new in ("activation_checkpointing", "activation_checkpointing_kwargs"):
                old = new.replace("activation", "gradient")
                if getattr(self, new) is None and getattr(self, old) is not None:
                    message = f"`{old}` is deprecated and will be removed in v6. Use `{new}` instead."
                    warnings.warn(message, FutureWarning, stacklevel=2)
                    setattr(self, new, getattr(self, old))
                setattr(self, old, getattr(self, new))
            self.activation_checkpointing = self.gradient_checkpointing = bool(self.activation_checkpointing)
            logger = logging.getLogger("transformers.training_args")
            logger.addFilter(_is_not_of_the_past)
            try:
                super().__post_init__()
            finally:
                logger.removeFilter(_is_not_of_the_past)

    return NewestArguments


def _is_not_of_the_past(record: logging.LogRecord) -> bool:
    return not record.getMessage().lstrip("`").startswith(("warmup_ratio", "logging_dir"))


def add_newer_arguments(args: Any, newest: Any) -> None:
    """Set the arguments of ``newest``, a class, that an object of transformers' own class does not have, in place."""
    for one in fields(newest):
        if not hasattr(args, one.name):
            setattr(args, one.name, getattr(args, one.name.replace("activation", "gradient"), one.default))
