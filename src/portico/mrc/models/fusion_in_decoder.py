"""Fusion-in-decoder: passages are encoded one by one, and the decoder attends to all of them at once.

Shape suffixes: B questions, N passages of a question, L tokens of a passage.

Source: arXiv:2007.01282.
"""

from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor
from transformers import MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING, GenerationMixin, PreTrainedConfig

from portico.compat.transformers import BaseModelOutput
from portico.errors import InputError, InputKeyError
from portico.mrc.models.task_model import ModelByConfig, find_pretrained_class

# The head is the language model head of the encoder-decoder itself.
FID_HEAD: Mapping[str, None] = {"fid_head": None}


class FiDModelForDownstreamTasks(ModelByConfig, GenerationMixin):
    """An encoder-decoder, such as BART or T5, that reads several passages for each question.

    Inputs have one more dimension, ``[B, N, L]`` for ``N`` passages; with the usual ``[B, L]`` it is the plain
    encoder-decoder. Weights have the plain model's names, so each loads the other's checkpoints.

    The class of a model depends on its encoder-decoder: make models with :meth:`from_config` or
    :meth:`from_pretrained`.

    Args:
        config: Configuration of the encoder-decoder.
        task_heads: ``FID_HEAD``, the only head; optional.

    Raises:
        InputTypeError: If this class itself is instantiated, and not one made for an encoder-decoder.
        InputError: If another head is given.
    """

    def __init__(self, config: PreTrainedConfig, task_heads: Mapping[str, Any] | None = None) -> None:
        if task_heads is not None and set(task_heads) != set(FID_HEAD):
            raise InputError(
                "Fusion-in-decoder has one head, its language model head, and got the heads "
                f"{list(task_heads)}; give `FID_HEAD`, or leave `task_heads` out."
            )
        super().__init__(config)

    @classmethod
    def model_class_from_config(cls, config: PreTrainedConfig) -> type[Self]:
        known = "`AutoModelForSeq2SeqLM` knows, such as a `BartConfig` or a `T5Config`"
        plain = find_pretrained_class(MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING, config, "encoder-decoder", known)
        return cls._class_on(plain, config)

    def set_task_head(self, task_head: str) -> None:
        """Accept the only head, for code that sets the head of any model for downstream tasks."""
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

        Tokens and mask of the passages are ``[B, N, L]``; ``encoder_outputs``, which can replace the tokens, has
        hidden states ``float [B, N * L, H]``. All others are as in the plain model: without labels and decoder tokens,
        BART decodes from its input, and T5 refuses.
        """
        if encoder_outputs is None and input_ids is not None and input_ids.dim() == 3:
            encoder_outputs = self.encode_passages(input_ids, attention_mask)
            if not options.get("return_dict", self.config.return_dict):
                # T5 of transformers 5.10 joins it with the decoder's tuple.
                encoder_outputs = encoder_outputs.to_tuple()
            # Without labels BART makes the decoder's tokens from these.
            input_ids = input_ids.flatten(1)
        try:
            return super().forward(
                input_ids=input_ids,
                attention_mask=_join_mask(attention_mask),
                decoder_input_ids=decoder_input_ids,
                decoder_attention_mask=decoder_attention_mask,
                encoder_outputs=encoder_outputs,
                labels=labels,
                **options,
            )
        except ValueError as error:
            if labels is not None or decoder_input_ids is not None or "decoder_inputs_embeds" in options:
                raise
            raise InputError(
                f"{type(self).__name__} got neither `labels` nor `decoder_input_ids`; give one of them, or call "
                "`generate`, as `predict_with_generate=True` does."
            ) from error

    @torch.no_grad()
    def generate(self, inputs: Tensor | None = None, *args: Any, **options: Any) -> Any:
        """Generate answers from tokens of passages, ``int64 [B, N, L]``, also as ``input_ids``.

        ``options`` are ``attention_mask``, ``[B, N, L]``, and keywords of the plain model's ``generate``.
        """
        tokens = options.pop("input_ids", None) if inputs is None else inputs
        if tokens is not None and tokens.dim() == 3:
            mask = options.pop("attention_mask", None)
            # `generate` would run the encoder on the three dimensions of the tokens.
            options["encoder_outputs"] = self.encode_passages(tokens, mask)
            options["attention_mask"] = _join_mask(torch.ones_like(tokens) if mask is None else mask)
            tokens = None
        return super().generate(tokens, *args, **options)

    def encode_passages(self, input_ids_BNL: Tensor, attention_mask_BNL: Tensor | None) -> BaseModelOutput:
        """Return the hidden states of each question's passages one after another, ``float [B, N * L, H]``."""
        num_questions, _, length = input_ids_BNL.shape
        mask = None if attention_mask_BNL is None else attention_mask_BNL.reshape(-1, length)
        encoded = self.get_encoder()(input_ids=input_ids_BNL.reshape(-1, length), attention_mask=mask)
        hidden = encoded.last_hidden_state
        return BaseModelOutput(last_hidden_state=hidden.reshape(num_questions, -1, hidden.shape[-1]))


def _join_mask(mask: Tensor | None) -> Tensor | None:
    return mask.flatten(1) if mask is not None and mask.dim() == 3 else mask
