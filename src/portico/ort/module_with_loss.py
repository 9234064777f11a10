"""The loss as a part of the graph, where it is not the model that computes it."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn
from typing_extensions import override

from portico.ort.compiling import compile as compile_in_ort
from portico.ort.compiling import compiled_call
from portico.ort.run_settings import TellsStrategy

LossFunction = Callable[..., Any]


class ModuleWithLoss(nn.Module):
    """A model and a loss as one module.

    Args:
        model: The model.
        loss_function: Called with the outputs of the model, the labels, and ``num_items_in_batch``.
    """

    def __init__(self, model: nn.Module, loss_function: LossFunction) -> None:
        super().__init__()
        self.model = model
        self.loss_function = loss_function

    def forward(self, inputs: dict[str, Any], labels: Any, num_items_in_batch: Any) -> tuple[Any, Any]:
        """Return the loss and the outputs of the model."""
        outputs = self.model(**inputs)
        return self.loss_function(outputs, labels, num_items_in_batch=num_items_in_batch), outputs


class LossInGraph(TellsStrategy):
    """Honours ``use_module_with_loss``: ``compute_loss_func`` and label smoothing run in ONNX Runtime too.

    Without it the outputs of the model go to the loss in torch.
    """

    _module_with_loss: ModuleWithLoss | None = None

    @override
    def _forward_with_loss(
        self, model: nn.Module, inputs: dict[str, Any], labels: Any, num_items_in_batch: Any
    ) -> tuple[Any, Any]:
        call = compiled_call(self.model)
        has_own_loss = labels is not None or self.compute_loss_func is not None
        if not (self.args.use_module_with_loss and has_own_loss and call is not None and call.is_on):
            return super()._forward_with_loss(model, inputs, labels, num_items_in_batch)
        if self._module_with_loss is None or self._module_with_loss.model is not self.model:
            self._module_with_loss = ModuleWithLoss(self.model, self._loss_of_outputs())
        self._module_with_loss.train(self.model.training)
        settings, strict = call.options
        whole = compile_in_ort(self._module_with_loss, settings=settings, strict=strict, report=call.report)
        loss, outputs = whole(inputs, labels, num_items_in_batch)
        return loss, outputs

    def _loss_of_outputs(self) -> LossFunction:
        if self.compute_loss_func is not None:
            return self.compute_loss_func
        return partial(self.label_smoother, **self._smoothing_options(self.model))
