"""What stands in on older releases of transformers for what the newest does.

Each part names the release that it is needed until. When `pyproject.toml` requires that release, delete the part.
"""

import logging
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
import transformers
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.functional import log_softmax

from portico.compat.releases import is_before, refuse_before

if TYPE_CHECKING:
    from transformers import PreTrainedModel, TrainingArguments

STAND_INS: dict[str, Any] = {}
_SWITCH = {"nargs": "?", "const": True}  # on a command line
CACHE_NAME = "past_key_values" if is_before("5.24") else "cache"


def enable_gradient_checkpointing(model: Any, options: object, placement: Mapping[str, Any]) -> None:
    """Recompute activations of a transformers model by the name that its method has until 5.23."""
    if placement:
        refuse_before("5.16", f"`{next(iter(placement))}` in `activation_checkpointing_kwargs`")
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options, **placement)


def whole_tensor_operation(like: DTensor) -> Any:
    """Return what cuts this process's part out of a whole tensor until 5.23, which cannot split layers."""
    mesh, how = like.device_mesh, like.placements
    return SimpleNamespace(
        shard_tensor=lambda source: distribute_tensor(source[...], mesh, how, src_data_rank=None).to_local()
    )


if is_before("5.23"):
    from transformers.training_args import TrainingArguments as OlderArguments

    @dataclass
    class NewestArguments(OlderArguments):
        activation_checkpointing: bool | None = field(default=None, metadata=_SWITCH)
        activation_checkpointing_kwargs: dict[str, Any] | str | None = None
        gradient_checkpointing: bool | None = field(default=None, metadata=_SWITCH)
        gradient_checkpointing_kwargs: dict[str, Any] | str | None = None
        dataloader_in_order: bool = True  # until 5.15, and the next
        dataloader_multiprocessing_context: str | None = None
        ddp_static_graph: bool | None = None  # until 5.6, and the rest
        trackio_bucket_id: str | None = None
        trackio_space_id: str | None = None
        trackio_static_space_id: str | None | Literal[False] = None  # noqa: RUF036, as it is there
        fsdp: str | None = None
        logging_dir: ClassVar[None] = None  # no arguments since 5.15
        warmup_ratio: ClassVar[None] = None
        _VALID_DICT_FIELDS = [*OlderArguments._VALID_DICT_FIELDS, "activation_checkpointing_kwargs"]  # noqa: RUF012

        def __post_init__(self) -> None:
            for new in ("activation_checkpointing", "activation_checkpointing_kwargs"):
                old = new.replace("activation", "gradient")
                if getattr(self, new) is None and getattr(self, old) is not None:
                    warnings.warn(f"`{old}` is deprecated, use `{new}` instead.", FutureWarning, stacklevel=2)
                    setattr(self, new, getattr(self, old))
                setattr(self, old, getattr(self, new))
            self.activation_checkpointing = self.gradient_checkpointing = bool(self.activation_checkpointing)
            past = ("logging_dir", "warmup_ratio")  # as if nobody had set them: portico reads them itself
            kept = {name: vars(self)[name] for name in past if name in vars(self)}
            vars(self).update(dict.fromkeys(past))
            super().__post_init__()
            for name in past:
                del vars(self)[name]
            vars(self).update(kept)

    STAND_INS["NewestArguments"] = NewestArguments

if is_before("5.18"):

    def align_special_tokens(model: "PreTrainedModel", processing_class: object) -> None:
        tokenizer = getattr(processing_class, "tokenizer", processing_class)
        config, generation = model.config.get_text_config(), getattr(model, "generation_config", None)
        updated = {}
        for name in ("eos_token_id", "bos_token_id", "pad_token_id"):
            token, known, generated = (getattr(part, name, None) for part in (tokenizer, config, generation))
            lists = [ids if isinstance(ids, list) else [ids] for ids in (known, generated)]
            if token is None or (token in lists[0] and (generation is None or token in lists[1])):
                continue
            updated[name] = token
            several = [[token, *(token_id for token_id in ids if token_id not in (None, token))] for ids in lists]
            is_eos = name == "eos_token_id"
            setattr(config, name, several[0] if is_eos and isinstance(known, list) else token)
            if generation is not None:
                setattr(generation, name, several[1] if is_eos else token)
        if updated:
            logger = logging.getLogger("transformers.trainer_utils")
            logger.warning("The tokens of the tokenizer replace those in the model's configurations: %s.", updated)

    STAND_INS["align_special_tokens"] = align_special_tokens

if is_before("5.15"):
    from transformers.trainer_pt_utils import LabelSmoother

    class CountingLabelSmoother(LabelSmoother):
        def __call__(
            self, outputs: Any, labels: Any, shift_labels: bool = False, num_items_in_batch: Any = None
        ) -> Any:
            if num_items_in_batch is None:
                return super().__call__(outputs, labels, shift_labels)
            logits = outputs["logits"] if isinstance(outputs, dict) else outputs[0]
            if shift_labels:
                logits, labels = logits[..., :-1, :].contiguous(), labels[..., 1:].contiguous()
            scores = -log_softmax(logits, dim=-1)
            labels = labels.unsqueeze(-1) if labels.dim() == scores.dim() - 1 else labels
            padding, count = labels.eq(self.ignore_index), torch.as_tensor(num_items_in_batch, device=logits.device)
            likelihood = scores.gather(dim=-1, index=labels.clamp(min=0)).masked_fill_(padding, 0.0)
            smoothed = scores.sum(dim=-1, keepdim=True, dtype=torch.float32).masked_fill_(padding, 0.0)
            share = self.epsilon * (smoothed.sum() / (count * scores.shape[-1]))
            return (1 - self.epsilon) * (likelihood.sum() / count) + share

    STAND_INS["LabelSmoother"] = CountingLabelSmoother

if is_before("5.4"):

    class DefaultFlowCallback(transformers.DefaultFlowCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: object) -> Any:
            super().on_step_end(args, state, control, **kwargs)
            is_left_out = state.global_step >= state.max_steps and state.global_step % state.eval_steps != 0
            if args.eval_strategy == "steps" and is_left_out and args.eval_delay <= state.global_step:
                control.should_evaluate = True
            return control

    STAND_INS |= {"DefaultFlowCallback": DefaultFlowCallback, "ViTImageProcessorPil": transformers.ViTImageProcessor}


def add_newer_arguments(args: object, newest: "type[TrainingArguments]") -> None:
    """Set what an object of transformers' own class does not have of the arguments of ``newest``, a class."""
    for newest_field in fields(newest):
        if not hasattr(args, newest_field.name):
            setattr(
                args,
                newest_field.name,
                getattr(args, newest_field.name.replace("activation", "gradient"), newest_field.default),
            )
