"""Which modules of a ``LightningModule`` run in ONNX Runtime: those that it calls."""

import logging
from collections.abc import Iterator, Mapping

from torch import nn

from portico.ort.report import Report

logger = logging.getLogger(__name__)


def called_parts(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield the submodules that are called as a whole, with their names.

    Children without parameters are left out: losses, and metrics of torchmetrics, which keep state in ways that a
    compiler would not see. Those that only hold others, such as an ``nn.ModuleList``, have no ``forward``: what they
    hold is called.

    Args:
        module: The module whose children are looked at.
        prefix: What their names begin with.
    """
    for name, part in module.named_children():
        if not any(True for _ in part.parameters()):
            continue
        if type(part).forward is nn.Module.forward:
            yield from called_parts(part, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", part


def warn_of_idle_parts(parts: Mapping[str, nn.Module], reports: Mapping[str, Report]) -> None:
    """Name the trainable parts that a training did not run in ONNX Runtime.

    Args:
        parts: Submodules by name.
        reports: What was built for them, under the same names.
    """
    for name, part in parts.items():
        is_trained = any(parameter.requires_grad for parameter in part.parameters())
        if is_trained and all(graph.kind != "forward" for graph in reports[name].graphs):
            logger.warning(
                "`%s` was not trained in ONNX Runtime: its `forward` was not called, or torch could not trace it, "
                "which the report would tell. Calls of the submodule itself run there; its other methods, and what "
                "a step computes beside it, run in torch.",
                name,
            )
