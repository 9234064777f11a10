"""Report of a placement: stages, memory of each IPU, batch sizes, and a picture of the pipeline."""

import json
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path

import torch
from torch import nn
from torch.optim import Optimizer

from portico.ipu.config import IPUConfig
from portico.ipu.pipelining.placement import LayerPlacement
from portico.trust.disk import write_text

# On-chip memory of a Mk2 IPU.
IPU_MEMORY_BYTES = 900 * 1024**2
_MEGABYTE = 1024**2
# Number of tensors that an optimizer keeps for each weight: first moments, second moments.
_STATE_TENSORS = {"AdamW": (1, 1), "Adam": (1, 1), "LAMB": (1, 1), "RMSprop": (0, 1)}


@dataclass(frozen=True)
class IPUMemory:
    """Memory that the weights on one IPU need; ``optimizer_bytes`` counts only the state on the chip."""

    ipu: int
    num_parameters: int
    weight_bytes: int
    gradient_bytes: int
    optimizer_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.weight_bytes + self.gradient_bytes + self.optimizer_bytes

    @property
    def share(self) -> float:
        """Share of the on-chip memory, not counting activations, code and temporaries."""
        return self.total_bytes / IPU_MEMORY_BYTES


@dataclass(frozen=True)
class PlacementReport:
    """Stages (each with its IPU and what runs in it), memory of each IPU and batch sizes of a training placement."""

    stages: list[tuple[int, list[str]]]
    minimum_gradient_accumulation: int
    memory: list[IPUMemory]
    batch_sizes: list[str]

    @classmethod
    def create(
        cls,
        placement: LayerPlacement,
        model: nn.Module,
        config: IPUConfig,
        *,
        micro_batch_size: int,
        optimizer: Optimizer,
    ) -> "PlacementReport":
        parameters = dict(model.named_parameters())
        held = [
            [parameters[name] for name, ipu in placement.ipu_of_parameter.items() if ipu == number]
            for number in range(placement.num_ipus)
        ]
        return cls(
            placement.stages(),
            placement.minimum_gradient_accumulation,
            [_memory(ipu, weights, config, optimizer) for ipu, weights in enumerate(held)],
            batch_arithmetic(config, micro_batch_size),
        )

    def text(self) -> str:
        lines = ["Placement"]
        for number, (ipu, names) in enumerate(self.stages):
            listed = names if len(names) <= 3 else [names[0], f"... {len(names) - 2} more ...", names[-1]]
            lines.append(f"  stage {number} on IPU {ipu}: {', '.join(listed)}")
        lines.append(
            f"  {len(self.stages)} stages; training needs a gradient accumulation of at least "
            f"{self.minimum_gradient_accumulation}"
        )
        lines.append("Memory of each IPU for weights (activations, code and temporaries are not counted)")
        for row in self.memory:
            lines.append(
                f"  IPU {row.ipu}: {row.num_parameters / 1e6:8.2f} M weights {row.weight_bytes / _MEGABYTE:8.1f} MB + "
                f"gradients {row.gradient_bytes / _MEGABYTE:8.1f} MB + optimizer "
                f"{row.optimizer_bytes / _MEGABYTE:8.1f} MB = {row.total_bytes / _MEGABYTE:8.1f} MB, {row.share:.0%}"
            )
            if row.share > 1:
                lines.append(
                    f"  IPU {row.ipu} has {IPU_MEMORY_BYTES // _MEGABYTE} MB: move layers to other IPUs, or set "
                    "`optimizer_state_offchip=True`"
                )
        return "\n".join([*lines, "Batch sizes", *(f"  {line}" for line in self.batch_sizes)])

    def save(self, folder: str | Path) -> None:
        """Write ``placement.json`` and ``placement.txt`` into a folder."""
        write_text(Path(folder, "placement.json"), json.dumps(asdict(self), indent=2))
        write_text(Path(folder, "placement.txt"), self.text() + "\n")


def batch_arithmetic(config: IPUConfig, micro_batch_size: int) -> list[str]:
    accumulation = config.gradient_accumulation_steps
    replicas = config.replication_factor
    one_update = micro_batch_size * accumulation * replicas
    one_call = one_update * config.device_iterations
    return [
        f"a micro-batch has {micro_batch_size} rows, on one replica",
        f"a weight update takes {micro_batch_size} x {accumulation} accumulated x {replicas} replicas = {one_update} "
        "rows",
        f"a call, which is counted as a step, makes {config.device_iterations} weight update(s) and takes "
        f"{one_update} x {config.device_iterations} = {one_call} rows",
    ]


def _memory(ipu: int, weights: list[nn.Parameter], config: IPUConfig, optimizer: Optimizer) -> IPUMemory:
    count = sum(weight.numel() for weight in weights)
    accumulator = getattr(optimizer, "accum_type", None)
    accumulated = weights if config.gradient_accumulation_steps > 1 else []
    first, second = _STATE_TENSORS.get(type(optimizer).__name__, (0, 0))
    has_velocity = any(group.get("momentum") for group in optimizer.param_groups)
    first_type = getattr(optimizer, "first_order_momentum_accum_type", None) or torch.float32
    state_bytes = count * ((first or has_velocity) * first_type.itemsize + second * torch.float32.itemsize)
    if config.replicated_tensor_sharding:
        state_bytes //= config.replication_factor
    return IPUMemory(
        ipu=ipu,
        num_parameters=count,
        weight_bytes=sum(weight.numel() * weight.dtype.itemsize for weight in weights),
        gradient_bytes=sum(weight.numel() * (accumulator or weight.dtype).itemsize for weight in accumulated),
        optimizer_bytes=0 if config.optimizer_state_offchip else int(state_bytes),
    )


# ---- The picture, in pixels ----

_BOX_WIDTH = 150
_BOX_HEIGHT = 52
_GAP = 26
_MARGIN = 60
_LABEL_WIDTH = _BOX_WIDTH - 16
_LABEL_CHARACTERS = 20


def pipeline_picture(report: PlacementReport) -> str:
    """Return the stages of a report as SVG: a row for each IPU, a column for each stage, arrows between them."""
    column_width = _BOX_WIDTH + _GAP
    row_height = _BOX_HEIGHT + _GAP
    width = _MARGIN + len(report.stages) * column_width
    height = len(report.memory) * row_height
    parts = []
    for row in report.memory:
        top = row.ipu * row_height
        parts.append(
            f'<rect x="0" y="{top}" width="{width}" height="{_BOX_HEIGHT}" fill="currentColor" opacity="0.06"/>'
            f'<text x="6" y="{top + 22}" fill="currentColor">IPU {row.ipu}</text>'
            f'<text x="6" y="{top + 40}" fill="currentColor" opacity="0.7">{row.share:.1%}</text>'
        )
    for number, (ipu, names) in enumerate(report.stages):
        left = _MARGIN + number * column_width
        top = ipu * row_height
        label = _stage_label(names)
        # Longer labels are squeezed, as fonts differ in width.
        squeezed = f' textLength="{_LABEL_WIDTH}" lengthAdjust="spacingAndGlyphs"' * (len(label) > _LABEL_CHARACTERS)
        parts.append(
            f'<rect x="{left}" y="{top}" width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" rx="6" fill="none" '
            'stroke="currentColor"/>'
            f"<title>{escape(', '.join(names))}</title>"
            f'<text x="{left + 8}" y="{top + 22}" fill="currentColor">stage {number}</text>'
            f'<text x="{left + 8}" y="{top + 40}" fill="currentColor" opacity="0.7"{squeezed}>{escape(label)}</text>'
        )
        if number:
            start, end = (stage[0] * row_height + _BOX_HEIGHT // 2 for stage in report.stages[number - 1 : number + 1])
            parts.append(
                f'<path d="M{left - _GAP} {start} L{left} {end}" stroke="currentColor" fill="none"/>'
                f'<circle cx="{left}" cy="{end}" r="3" fill="currentColor"/>'
            )
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="The pipeline, stage by stage" '
        f'style="max-width:100%;font:12px system-ui,sans-serif">{"".join(parts)}</svg>'
    )


def _stage_label(names: list[str]) -> str:
    """Return the label of a stage: the end of its last name, with as many whole parts of it as fit."""
    before = "" if len(names) == 1 else "to "
    parts = names[-1].split(".")
    while len(parts) > 1 and len(before + ".".join(parts)) > _LABEL_CHARACTERS:
        del parts[0]
    return before + ".".join(parts)
