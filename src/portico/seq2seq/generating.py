"""One batch of an evaluation whose predictions are generated tokens."""

from typing import Any

import torch
from torch import nn
from transformers import GenerationConfig

from portico.seq2seq.generation import generation_inputs, pad_tokens, padded_length, padding_token, settled_config
from portico.seq2seq.sharding import shards_weights, whole_weights
from portico.trainer import Trainer


class GeneratingMethods(Trainer):
    """How :class:`~portico.seq2seq.trainer.Seq2SeqTrainer` predicts a batch."""

    # Keywords of ``generate`` of the evaluation that is running.
    _gen_kwargs: dict[str, Any]

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
        **gen_kwargs: Any,
    ) -> tuple[torch.Tensor | None, Any, Any]:
        """Run one batch forward without training on it, and generate from it if the arguments say so.

        Args:
            model: The model to evaluate.
            inputs: Model inputs of the batch.
            prediction_loss_only: Return the loss alone.
            ignore_keys: Model outputs to leave out, where nothing is generated.
            **gen_kwargs: Keywords of ``generate``; by default those of the evaluation that is running.

        Returns:
            Loss (a scalar, or ``None`` without labels), generated tokens and labels (``None`` where there are none),
            both ``int64 [examples, length]``, padded to the longest that may be generated.
        """
        if not self.args.predict_with_generate or prediction_loss_only:
            return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys=ignore_keys)
        inputs = self._prepare_inputs(inputs)
        tokens = self._generate(inputs, gen_kwargs or self._gen_kwargs)
        config = settled_config(self.model)
        tokens = self._padded(tokens, config)
        has_labels = inputs.get("labels") is not None
        loss = self._generation_loss(model, inputs) if has_labels else None
        if self.args.prediction_loss_only:
            return loss, None, None
        labels = self._padded(inputs["labels"], config) if has_labels else None
        return loss, tokens, labels

    def _generate(self, inputs: dict[str, Any], gen_kwargs: dict[str, Any]) -> torch.Tensor:
        options = {
            name: value
            for name, value in gen_kwargs.items()
            if value is not None or name not in ("num_beams", "max_length")
        }
        strategy = self.lightning_trainer.strategy
        # A process that is done early must go on where a forward pass gathers the weights of all processes.
        options.setdefault("synced_gpus", shards_weights(strategy))
        with whole_weights(strategy), self.accelerator.autocast():
            tokens: torch.Tensor = self.model.generate(**generation_inputs(inputs), **options)
        return tokens

    def _generation_loss(self, model: nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
        with torch.no_grad(), self.accelerator.autocast():
            with self.compute_loss_context_manager():
                outputs = model(**inputs)
            if self.label_smoother is not None:
                loss = self.label_smoother(outputs, inputs["labels"])
            else:
                loss = outputs["loss"] if isinstance(outputs, dict) else outputs[0]
        mean: torch.Tensor = loss.detach().mean()
        return mean

    def _padded(self, tokens: torch.Tensor, config: GenerationConfig) -> torch.Tensor:
        length = padded_length(tokens, config)
        return self._pad_tensors_to_max_len(tokens, length) if length > tokens.shape[-1] else tokens

    def _pad_tensors_to_max_len(self, tensor: torch.Tensor, max_length: int) -> torch.Tensor:
        return pad_tokens(tensor, max_length, padding_token(self.processing_class, self.model))
