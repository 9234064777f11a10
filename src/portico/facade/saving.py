"""Models and checkpoints on disk."""

import logging
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers.trainer_utils import sort_checkpoints

from portico.arguments import as_transformers_arguments
from portico.checkpoint.weights import load_weights, save_weights
from portico.checkpoint.writer import write_checkpoint
from portico.facade.reporting import ReportingMethods
from portico.sharded import refuse_sharded_weights

logger = logging.getLogger(__name__)


class SavingMethods(ReportingMethods):
    """How the facade saves and restores."""

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the model so that ``from_pretrained`` reads it, with tokenizer and arguments; from one process.

        Args:
            output_dir: Folder; by default ``args.output_dir``.
        """
        refuse_sharded_weights(self.lightning_trainer.strategy)
        self._save(self.args.output_dir if output_dir is None else output_dir)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        if not self.args.should_save:
            return
        folder = Path(self.args.output_dir if output_dir is None else output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        logger.debug("Saving the model to %s", folder)
        save_weights(
            self.model,
            self.accelerator.unwrap_model(self.model),
            str(folder),
            state_dict=state_dict,
            is_main_process=self.args.should_save,
        )
        processor = self.processing_class
        if processor is None:
            processor = getattr(self.data_collator, "tokenizer", None)
        if processor is not None:
            processor.save_pretrained(folder)
        torch.save(as_transformers_arguments(self.args), folder / "training_args.bin")

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        if self.hp_search_backend is None and trial is None:
            self.store_flos()
        write_checkpoint(
            self,
            self._get_output_dir(trial),
            f"checkpoint-{self.state.global_step}",
        )

    def _get_output_dir(self, trial: Any) -> str:
        folder: str = self.args.output_dir
        return folder

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        load_weights(self.model if model is None else model, resume_from_checkpoint)

    def _load_best_model(self) -> None:
        assert self.state.best_model_checkpoint is not None
        logger.info("Loading the best model from %s", self.state.best_model_checkpoint)
        load_weights(self.model, self.state.best_model_checkpoint)

    def _keep_only_best_and_last(self, trial: Any) -> None:
        """With ``save_total_limit=1``, leave the best checkpoint alone on disk once training has ended."""
        best = self.state.best_model_checkpoint
        if not self.args.should_save or best is None or self.args.save_total_limit != 1:
            return
        for checkpoint in sort_checkpoints(output_dir=self._get_output_dir(trial), best_model_checkpoint=best):
            if not Path(checkpoint).samefile(best):
                shutil.rmtree(checkpoint, ignore_errors=True)
