"""Where the parts of a trainer's model lie."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from portico.ipu.config import IPUConfig
from portico.ipu.padding import filled_up
from portico.ipu.pipelining.placement import Placement, place, unplaced
from portico.ipu.pipelining.report import PlacementReport
from portico.ipu.pipelining.serialization import serialize
from portico.trainer import Trainer
from portico.tree import map_tensors


class PlacingMethods(Trainer):
    """How the facade spreads its model over IPUs.

    Attributes:
        ipu_config: How the model is spread over IPUs.
        placement: Where the layers of the program made last lie; ``None`` on one IPU, or before there is a program.
        placement_report: What the training placement comes to; ``None`` as long as there is none.
    """

    ipu_config: IPUConfig
    placement: Placement | None
    placement_report: PlacementReport | None
    # Whether the model lies where the training program has it, or (False) where those of inference have it.
    _is_placed_for_training: bool | None

    @property
    def combined_train_batch_size(self) -> int:
        """Rows of a call that trains: micro-batch x replicas x accumulation x device iterations."""
        return int(self.args.per_device_train_batch_size) * self.ipu_config.batch_size_factor()

    @property
    def combined_eval_batch_size(self) -> int:
        """Rows of a call that evaluates: micro-batch x replicas x device iterations."""
        return int(self.args.per_device_eval_batch_size) * self.ipu_config.batch_size_factor(for_inference=True)

    def _place_for(self, training: bool, model: nn.Module, sample_batch: Mapping[str, Any] | None) -> None:
        """Let the model lie where the programs of a stage have it.

        A program takes the model as it lies when it is compiled, which may be long after it was made.

        Args:
            training: The stage.
            model: The model.
            sample_batch: A combined batch, to see in which order the model runs; by default the first of the loader.
        """
        if self._is_placed_for_training is training:
            return
        self._is_placed_for_training = None
        config = self.ipu_config.train() if training else self.ipu_config.eval()
        unplaced(model)
        serialize(model, config)
        self.placement = self._placement(model, config, training, sample_batch)
        self._is_placed_for_training = training
        if training and self.placement is not None and self.placement_report is None:
            self._report_placement(self.placement, model, config)

    def _placement(
        self, model: nn.Module, config: IPUConfig, training: bool, sample_batch: Mapping[str, Any] | None
    ) -> Placement | None:
        if config._ipus_per_replica == 1:
            return None
        batch = self._first_batch(training) if sample_batch is None else sample_batch
        size = int(self.args.per_device_train_batch_size if training else self.args.per_device_eval_batch_size)
        micro_batch = map_tensors(lambda tensor: tensor[:size] if tensor.dim() else tensor, dict(batch))
        return place(model, micro_batch, config)

    def _report_placement(self, placement: Placement, model: nn.Module, config: IPUConfig) -> None:
        self.placement_report = PlacementReport.of(
            placement,
            model,
            config,
            micro_batch_size=int(self.args.per_device_train_batch_size),
            optimizer=self.optimizer,
        )
        if self.is_world_process_zero():
            self.placement_report.save(self.args.output_dir)
            print(self.placement_report.text())

    def _first_batch(self, training: bool) -> Any:
        loader = self.get_train_dataloader() if training else self.get_eval_dataloader()
        size = self.combined_train_batch_size if training else self.combined_eval_batch_size
        return self._on_device(filled_up(next(iter(loader)), size))

    def _on_device(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return a plain batch in the program's precision."""
        if self.args.fp32:
            return batch
        halved: dict[str, Any] = map_tensors(
            lambda tensor: tensor.half() if tensor.dtype is torch.float32 else tensor, batch
        )
        return halved
