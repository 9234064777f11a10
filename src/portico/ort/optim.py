"""AdamW whose step runs in ONNX Runtime."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper

from portico.errors import InputError
from portico.loop.optim import ParameterwiseOptimizer
from portico.ort.compiler.graph import IR_VERSION, OPSET
from portico.ort.runtime import make_session
from portico.ort.settings import SessionSettings, require

_TENSORS = ("parameter", "gradient", "mean", "square")
_OUTPUTS = ("new_parameter", "new_mean", "new_square")


class FusedAdamW(ParameterwiseOptimizer):
    """``torch.optim.AdamW`` whose step of each parameter is one run of an ONNX Runtime graph, in place.

    The state has torch's names and values, so that checkpoints fit both classes.

    Args:
        params: Parameters or groups of them, float32, on the CPU.
        lr: Learning rate.
        betas: Decay of the running means of gradient and squared gradient.
        eps: Added to the root.
        weight_decay: Decoupled weight decay.

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
    ) -> None:
        require()
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.dtype is not torch.float32 or parameter.device.type != "cpu":
                    raise InputError(
                        "`optim='adamw_ort_fused'` takes float32 parameters on the CPU, but one is "
                        f"{parameter.dtype} on {parameter.device}; set `optim='adamw_torch'`."
                    )
        self._session = make_session(_step_model(), SessionSettings())

    def _update(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.contiguous_format)
            state["exp_avg_sq"] = torch.zeros_like(parameter, memory_format=torch.contiguous_format)
        state["step"] += 1
        weights = parameter.contiguous()
        gradient = parameter.grad
        assert gradient is not None, "the base class leaves out parameters without a gradient"
        tensors = (weights, gradient.contiguous(), state["exp_avg"], state["exp_avg_sq"])
        binding = self._session.io_binding()
        for name, tensor in zip(_TENSORS, tensors, strict=True):
            place = ("cpu", 0, np.float32, [tensor.numel()], tensor.data_ptr())
            binding.bind_input(name, *place)
            # Outputs overwrite their inputs: each input's last read is an ancestor of the node that writes over it.
            if f"new_{name}" in _OUTPUTS:
                binding.bind_output(f"new_{name}", *place)
        for name, number in _numbers(group, state["step"].item()).items():
            binding.bind_cpu_input(name, np.asarray(number, np.float32))
        self._session.run_with_iobinding(binding)
        if weights is not parameter:
            parameter.copy_(weights)


def _numbers(group: dict[str, Any], step: float) -> dict[str, float]:
    """Return the scalars that the graph reads, which change from step to step."""
    beta1, beta2 = group["betas"]
    rate = float(group["lr"])
    return {
        "keep": 1 - rate * group["weight_decay"],
        "beta1": beta1,
        "one_minus_beta1": 1 - beta1,
        "beta2": beta2,
        "one_minus_beta2": 1 - beta2,
        "root_correction": (1 - beta2**step) ** 0.5,
        "eps": group["eps"],
        "step_size": rate / (1 - beta1**step),
    }


def _step_model() -> onnx.ModelProto:
    # Operator, inputs, output.
    steps = [
        ("Mul", "mean", "beta1", "old_mean"),
        ("Mul", "gradient", "one_minus_beta1", "added_mean"),
        ("Add", "old_mean", "added_mean", "new_mean"),
        ("Mul", "square", "beta2", "old_square"),
        ("Mul", "gradient", "gradient", "squared"),
        ("Mul", "squared", "one_minus_beta2", "added_square"),
        ("Add", "old_square", "added_square", "new_square"),
        ("Sqrt", "new_square", "root"),
        ("Div", "root", "root_correction", "corrected"),
        ("Add", "corrected", "eps", "divisor"),
        ("Div", "new_mean", "divisor", "direction"),
        ("Mul", "direction", "step_size", "update"),
        ("Mul", "parameter", "keep", "decayed"),
        ("Sub", "decayed", "update", "new_parameter"),
    ]
    nodes = [helper.make_node(operator, inputs, [output]) for operator, *inputs, output in steps]
    computed = {output for *_, output in steps}
    read = dict.fromkeys(name for _, *inputs, _ in steps for name in inputs if name not in computed)
    shapes: dict[str, list[str]] = {name: ["size"] if name in _TENSORS else [] for name in read}
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["size"]) for name in _OUTPUTS]
    graph = helper.make_graph(nodes, "adamw", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
