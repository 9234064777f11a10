"""Fusion-in-decoder: passages are encoded one by one, and the decoder looks at all of them at once.

Source: arXiv:2007.01282.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import (
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    GenerationMixin,
    PreTrainedConfig,
)
from transformers.modeling_outputs import BaseModelOutput

from portico.errors import InputError, InputKeyError, InputTypeError
from portico.mrc.models.task_model import ModelByConfig

# The head is the language model head of the encoder-decoder itself.
FID_HEAD: Mapping[str, None] = {"fid_head": None}


class FiDModelForDownstreamTasks(ModelByConfig, GenerationMixin):
    """An encoder-decoder, such as BART or T5, that reads several passages for each question.

    Its inputs have a dimension more, ``[B, N, L]`` for ``N`` passages; with the usual ``[B, L]`` it is the plain
    encoder-decoder. Weights have the plain model's names, so either loads what the other has saved.

    The class of a model depends on its encoder-decoder: make models with :meth:`from_config` or
    :meth:`from_pretrained`.

    Args:
        config: Configuration of the encoder-decoder.
        task_heads: ``FID_HEAD``, the one head there is; or nothing.

    Raises:
        InputTypeError: If it is this class that is instantiated, and not one made for an encoder-decoder.
        InputError: If there is any other head.
    """

    # The loss is a mean of its batch, as in the plain models.
    accepts_loss_kwargs = False

    def __init__(self, config: PreTrainedConfig, task_heads: Mapping[str, Any] | None = None) -> None:
        if not self.base_model_prefix:
            raise InputTypeError(
                f"`{type(self).__name__}` itself has no encoder and no decoder; make a model with "
                "`from_config(config, path)` or `from_pretrained(path)`."
            )
        _check_heads(FID_HEAD if task_heads is None else task_heads)
        super().__init__(config)

    @classmethod
    def model_class_from_config(cls, config: PreTrainedConfig) -> "type[FiDModelForDownstreamTasks]":
        """Return the class of the models on the encoder-decoder of ``config``.

        Raises:
            InputError: If transformers knows no such encoder-decoder.
        """
        if type(config) not in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING:
            raise InputError(
                f"transformers knows no encoder-decoder of a `{type(config).__name__}`; give the configuration of one "
                "that `AutoModelForSeq2SeqLM` knows, such as a `BartConfig` or a `T5Config`."
            )
        plain: Any = MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING[type(config)]
        name = f"{type(config).__name__.removesuffix('Config')}{cls.__name__}"
        return type(name, (cls, plain), {"config_class": type(config), "__module__": __name__})

    def set_task_head(self, task_head: str) -> None:
        """Accept the one head there is, as the models with exchangeable heads are told theirs.

        Raises:
            InputKeyError: If it is another.
        """
        if task_head not in FID_HEAD:
            raise InputKeyError(f"The model has no head {task_head!r}; set {next(iter(FID_HEAD))!r}.")

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: Any = None,
        labels: Tensor | None = None,
        **options: Any,
    ) -> Any:
        """Encode each passage, and decode from all of them.

        Args:
            input_ids: Tokens of the passages with their question, ``int64 [B, N, L]``.
            attention_mask: 0 at padding, ``[B, N, L]``.
            decoder_input_ids: What the decoder reads, ``int64 [B, T]``; by default made of the labels.
            decoder_attention_mask: 0 at its padding, ``[B, T]``.
            encoder_outputs: What the encoder made of the passages, ``float [B, N * L, H]``, in place of ``input_ids``.
            labels: Tokens of the answer, -100 at padding, ``int64 [B, T]``.
            **options: Further inputs of the plain model.
        """
        if encoder_outputs is None and input_ids is not None and input_ids.dim() == 3:
            encoder_outputs = self.encode_passages(input_ids, attention_mask)
            input_ids = None
        return super().forward(
            input_ids=input_ids,
            attention_mask=_in_one_row(attention_mask),
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            labels=labels,
            **options,
        )

    @torch.no_grad()
    def generate(self, inputs: Tensor | None = None, *args: Any, **options: Any) -> Any:
        """Generate answers.

        Args:
            inputs: Tokens of the passages, ``int64 [B, N, L]``; also as ``input_ids``.
            *args: As in the plain model.
            **options: ``attention_mask``, ``[B, N, L]``, and keywords of ``generate``.
        """
        tokens = options.pop("input_ids", None) if inputs is None else inputs
        if tokens is not None and tokens.dim() == 3:
            mask = options.pop("attention_mask", None)
            options["encoder_outputs"] = self.encode_passages(tokens, mask)
            options["attention_mask"] = _in_one_row(torch.ones_like(tokens) if mask is None else mask)
            tokens = None
        return super().generate(tokens, *args, **options)  # type: ignore[misc]

    def encode_passages(self, input_ids_BNL: Tensor, attention_mask_BNL: Tensor | None) -> BaseModelOutput:
        """Return the hidden states of all passages of a question in a row, ``float [B, N * L, H]``."""
        num_questions, _, length = input_ids_BNL.shape
        mask = None if attention_mask_BNL is None else attention_mask_BNL.reshape(-1, length)
        encoded = self.get_encoder()(input_ids=input_ids_BNL.reshape(-1, length), attention_mask=mask)
        hidden = encoded.last_hidden_state
        return BaseModelOutput(last_hidden_state=hidden.reshape(num_questions, -1, hidden.shape[-1]))


def _in_one_row(mask: Any) -> Any:
    return mask.flatten(1) if mask is not None and mask.dim() == 3 else mask


def _check_heads(task_heads: Mapping[str, Any]) -> None:
    if set(task_heads) != set(FID_HEAD):
        raise InputError(
            f"Fusion-in-decoder has one head, that of its language model, and got the heads {list(task_heads)}; give "
            "`FID_HEAD`, or leave `task_heads` out."
        )
