"""One batch: the loss of a training step, the outputs of a prediction step."""

import contextlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.trainer_pt_utils import nested_detach
from transformers.trainer_utils import unwrap_peft_model

from portico.facade.data import DataMethods
from portico.facade.historic_overrides import leaves_out


class StepMethods(DataMethods):
    """What the facade does with a batch; the methods users override most."""

    # Whether `compute_loss` divides by the accumulation window itself; `None` decides from the model.
    loss_is_scaled_for_ga: bool | None = None

    @property
    def _runs_own_backward(self) -> bool:
        """Whether a subclass has a training step of its own, whose backward passes run where it calls for them."""
        return type(self).training_step is not StepMethods.training_step or "training_step" in self.__dict__

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: torch.Tensor | int | None = None
    ) -> torch.Tensor:
        """Run one batch forward and have it differentiated.

        Args:
            model: The model to train.
            inputs: Model inputs of the batch.
            num_items_in_batch: What the losses of the accumulation window are a mean of, if known.

        Returns:
            The detached loss, scaled for accumulation, a scalar.
        """
        model.train()
        if hasattr(self.optimizer, "train") and callable(self.optimizer.train):
            self.optimizer.train()
        inputs = self._prepare_inputs(inputs)
        with self.compute_loss_context_manager():
            loss = self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
        if not isinstance(loss, torch.Tensor):
            raise TypeError(
                f"`compute_loss` returned {str(loss)[:80]!r} ({type(loss).__name__}); let it return the loss alone, a "
                "tensor with one element, and `(loss, outputs)` only if it was called with `return_outputs=True`."
            )
        self._empty_cache_if_due()
        if not self._is_scaled_for_accumulation(num_items_in_batch):
            loss = loss / self.current_gradient_accumulation_steps
        self.accelerator.backward(loss)
        return loss.detach()

    def _empty_cache_if_due(self) -> None:
        every = self.args.torch_empty_cache_steps
        if every is not None and self.state.global_step % every == 0 and torch.accelerator.is_available():
            torch.accelerator.empty_cache()

    def _is_scaled_for_accumulation(self, num_items_in_batch: Any) -> bool:
        if self.loss_is_scaled_for_ga is not None:
            return self.loss_is_scaled_for_ga
        by_model = self.model_accepts_loss_kwargs and num_items_in_batch is not None
        return by_model or self.compute_loss_func is not None

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """Return the loss of a batch: the model's own, a label-smoothed one, or that of ``compute_loss_func``.

        Args:
            model: The model.
            inputs: Model inputs of the batch.
            return_outputs: Return ``(loss, outputs)``.
            num_items_in_batch: What the losses of the accumulation window are a mean of, if known.

        Raises:
            ValueError: If the model returns no loss.
        """
        takes_labels = self.label_smoother is not None or self.compute_loss_func is not None
        labels = inputs.pop("labels") if takes_labels and "labels" in inputs else None
        if self.model_accepts_loss_kwargs and num_items_in_batch is not None:
            inputs = {**inputs, "num_items_in_batch": num_items_in_batch}
        loss, outputs = self._forward_with_loss(model, inputs, labels, num_items_in_batch)
        scales = self.model_accepts_loss_kwargs or self.compute_loss_func is not None
        if self.args.average_tokens_across_devices and scales and num_items_in_batch is not None:
            loss *= self.accelerator.num_processes
        return (loss, outputs) if return_outputs else loss

    def _forward_with_loss(
        self, model: nn.Module, inputs: dict[str, Any], labels: Any, num_items_in_batch: Any
    ) -> tuple[Any, Any]:
        outputs = model(**inputs)
        if self.compute_loss_func is not None:
            return self.compute_loss_func(outputs, labels, num_items_in_batch=num_items_in_batch), outputs
        if labels is not None:
            options = self._smoothing_options(model)
            return self.label_smoother(outputs, labels, num_items_in_batch=num_items_in_batch, **options), outputs
        return _loss_of(outputs, inputs), outputs

    def _smoothing_options(self, model: nn.Module) -> dict[str, bool]:
        name = type(unwrap_peft_model(self.accelerator.unwrap_model(model))).__name__
        return {"shift_labels": True} if name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values() else {}

    def compute_loss_context_manager(self) -> contextlib.ExitStack:
        """Return the contexts that the loss is computed in."""
        stack = contextlib.ExitStack()
        stack.enter_context(self.autocast_smart_context_manager())
        return stack

    def autocast_smart_context_manager(
        self, cache_enabled: bool | None = True
    ) -> contextlib.AbstractContextManager[Any]:
        """Return no context: the model's forward casts by itself."""
        return contextlib.nullcontext()

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[torch.Tensor | None, Any, Any]:
        """Run one batch forward without training on it.

        Args:
            model: The model to evaluate.
            inputs: Model inputs of the batch.
            prediction_loss_only: Return the loss alone.
            ignore_keys: Model outputs to leave out; by default what the model's configuration says.

        Returns:
            Loss (a scalar, or ``None`` without labels), logits and labels, each detached.
        """
        has_labels = bool(self.label_names) and all(inputs.get(name) is not None for name in self.label_names)
        return_loss = inputs.get("return_loss")
        return_loss = self.can_return_loss if return_loss is None else return_loss
        computes_loss = has_labels or (not self.label_names and return_loss)
        inputs = self._prepare_inputs(inputs)
        ignored = self._ignored_outputs() if ignore_keys is None else ignore_keys
        labels = _labels_of(inputs, self.label_names) if computes_loss else None
        with torch.no_grad():
            if computes_loss:
                num_items = self._get_num_items_in_batch([inputs], self.args.device)
                with self.compute_loss_context_manager():
                    loss, outputs = self._loss_and_outputs(model, inputs, num_items)
                loss = loss.detach().mean()
                logits = _logits_of(outputs, [*ignored, "loss"], skip_first=True)
            else:
                loss = None
                with self.compute_loss_context_manager():
                    outputs = model(**inputs)
                logits = _logits_of(outputs, ignored, skip_first=False)
        if prediction_loss_only:
            return loss, None, None
        logits = nested_detach(logits)
        return loss, logits[0] if len(logits) == 1 else logits, labels

    def _loss_and_outputs(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any) -> tuple[Any, Any]:
        if leaves_out(self.compute_loss, "return_outputs"):
            # The oldest form gives the loss alone, and may take labels out of the inputs.
            outputs = model(**inputs)
            return self.compute_loss(model, inputs), outputs
        loss, outputs = self.compute_loss(model, inputs, return_outputs=True, num_items_in_batch=num_items_in_batch)
        return loss, outputs

    def _ignored_outputs(self) -> list[str]:
        config = getattr(self.model, "config", None)
        return list(getattr(config, "keys_to_ignore_at_inference", ["past_key_values"])) if config is not None else []

    def floating_point_ops(self, inputs: Mapping[str, Any]) -> int:
        """Return the operations of a forward and a backward pass over ``inputs``, 0 where they cannot be told."""
        main_input = getattr(self.model, "main_input_name", "input_ids")
        if main_input in inputs and hasattr(self.model, "num_parameters"):
            return int(6 * inputs[main_input].numel() * self.model.num_parameters(exclude_embeddings=True))
        return 0


def _loss_of(outputs: Any, inputs: Mapping[str, Any]) -> Any:
    if isinstance(outputs, dict):
        if "loss" not in outputs:
            raise ValueError(
                f"The model returned no loss, only {', '.join(outputs)}; it received {', '.join(inputs)}. Give it "
                "labels under the name it takes, load one of the `AutoModelFor...` classes if it has no head for a "
                "task, or override `compute_loss`."
            )
        return outputs["loss"]
    return outputs[0]


def _logits_of(outputs: Any, ignored: list[str], *, skip_first: bool) -> Any:
    if isinstance(outputs, dict):
        return tuple(value for key, value in outputs.items() if key not in ignored)
    return outputs[1:] if skip_first else outputs


def _labels_of(inputs: Mapping[str, Any], names: list[str]) -> Any:
    # Taken before the loss is computed, which may pop them.
    labels = nested_detach(tuple(inputs.get(name) for name in names))
    return labels[0] if len(labels) == 1 else labels
