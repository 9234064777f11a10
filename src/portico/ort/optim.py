"""AdamW whose step runs in ONNX Runtime."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper

from portico.errors import InputError
from portico.optim import ParameterwiseOptimizer
from portico.ort.compiler.graph import IR_VERSION, OPSET
from portico.ort.runtime import make_session
from portico.ort.settings import SessionSettings, require

_TENSORS = ("parameter", "gradient", "mean", "square")
# Scalars that change from step to step; `_numbers` computes them.
_NUMBERS = ("keep", "beta1", "one_minus_beta1", "beta2", "one_minus_beta2", "root_correction", "eps", "step_size")


class FusedAdamW(ParameterwiseOptimizer):
    """``torch.optim.AdamW`` whose step of each parameter is one run of an ONNX Runtime graph, in place.

    The state has torch's names and values, so that checkpoints fit both classes.

    Args:
        params: Parameters or groups of them, float32, on the CPU.
        lr: Learning rate.
        betas: Decay of the running means of gradient and squared gradient.
        eps: Added to the root.
        weight_decay: Decoupled weight decay.
        settings: How ONNX Runtime runs.

    Raises:
        InputError: If a parameter is not float32 on the CPU.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        settings: SessionSettings | None = None,
    ) -> None:
        require()
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        for group in self.param_groups:
            _check(group["params"])
        self._session = make_session(_step_model(), settings or SessionSettings())

    def _update(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.contiguous_format)
            state["exp_avg_sq"] = torch.zeros_like(parameter, memory_format=torch.contiguous_format)
        state["step"] += 1
        weights = parameter.contiguous()
        tensors = (weights, parameter.grad.contiguous(), state["exp_avg"], state["exp_avg_sq"])  # type: ignore[union-attr]
        self._run(dict(zip(_TENSORS, tensors, strict=True)), _numbers(group, state["step"].item()))
        if weights is not parameter:
            parameter.copy_(weights)

    def _run(self, tensors: dict[str, torch.Tensor], numbers: tuple[float, ...]) -> None:
        binding = self._session.io_binding()
        for name, tensor in tensors.items():
            place = ("cpu", 0, np.float32, [tensor.numel()], tensor.data_ptr())
            binding.bind_input(name, *place)
            # Outputs overwrite their inputs: each input's last read is an ancestor of the node that writes over it.
            if name != "gradient":
                binding.bind_output(f"new_{name}", *place)
        for name, number in zip(_NUMBERS, numbers, strict=True):
            binding.bind_cpu_input(name, np.asarray(number, np.float32))
        self._session.run_with_iobinding(binding)


def _check(parameters: Iterable[torch.Tensor]) -> None:
    for parameter in parameters:
        if parameter.dtype is not torch.float32 or parameter.device.type != "cpu":
            raise InputError(
                f"`optim='adamw_ort_fused'` takes float32 parameters on the CPU, but one is {parameter.dtype} on "
                f"{parameter.device}; set `optim='adamw_torch'`."
            )


def _numbers(group: dict[str, Any], step: float) -> tuple[float, ...]:
    (beta1, beta2), rate = group["betas"], float(group["lr"])
    return (
        1 - rate * group["weight_decay"],
        beta1,
        1 - beta1,
        beta2,
        1 - beta2,
        (1 - beta2**step) ** 0.5,
        group["eps"],
        rate / (1 - beta1**step),
    )


def _step_model() -> onnx.ModelProto:
    nodes = [
        _node("Mul", "mean", "beta1", out="old_mean"),
        _node("Mul", "gradient", "one_minus_beta1", out="added_mean"),
        _node("Add", "old_mean", "added_mean", out="new_mean"),
        _node("Mul", "square", "beta2", out="old_square"),
        _node("Mul", "gradient", "gradient", out="squared"),
        _node("Mul", "squared", "one_minus_beta2", out="added_square"),
        _node("Add", "old_square", "added_square", out="new_square"),
        _node("Sqrt", "new_square", out="root"),
        _node("Div", "root", "root_correction", out="corrected"),
        _node("Add", "corrected", "eps", out="divisor"),
        _node("Div", "new_mean", "divisor", out="direction"),
        _node("Mul", "direction", "step_size", out="update"),
        _node("Mul", "parameter", "keep", out="decayed"),
        _node("Sub", "decayed", "update", out="new_parameter"),
    ]
    vectors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["size"]) for name in _TENSORS]
    numbers = [helper.make_tensor_value_info(name, TensorProto.FLOAT, []) for name in _NUMBERS]
    outputs = [
        helper.make_tensor_value_info(f"new_{name}", TensorProto.FLOAT, ["size"])
        for name in _TENSORS
        if name != "gradient"
    ]
    graph = helper.make_graph(nodes, "adamw", [*vectors, *numbers], outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)


def _node(operator: str, *inputs: str, out: str) -> onnx.NodeProto:
    return helper.make_node(operator, list(inputs), [out])
