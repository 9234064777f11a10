"""Models and checkpoints on disk."""

import shutil
from pathlib import Path
from typing import Any

from torch import nn
from transformers.trainer_utils import sort_checkpoints

from portico.checkpoint.callback_states import restore_callbacks
from portico.checkpoint.resume import load_optimizer_and_scheduler, load_scaler
from portico.checkpoint.rng import load_rng_state, save_rng_state
from portico.checkpoint.weights import announce_mismatch, load_weights, save_weights
from portico.checkpoint.writer import (
    destination,
    save_arguments,
    save_optimizer_and_scheduler,
    save_scaler,
    write_checkpoint,
)
from portico.distributed.sharded import refuse_sharded_weights
from portico.facade.reporting import ReportingMethods
from portico.run_log import logger
from portico.tuning.registry import search_backend


class SavingMethods(ReportingMethods):
    """How the facade saves and restores."""

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the model so that ``from_pretrained`` reads it, with tokenizer and arguments; from one process.

        Args:
            output_dir: Folder; by default ``args.output_dir``.
        """
        refuse_sharded_weights(self.lightning_trainer.strategy)
        self._save(self.args.output_dir if output_dir is None else output_dir)
        if self.args.push_to_hub and not _internal_call:
            self.push_to_hub(commit_message="Model save", revision=self.args.hub_revision)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        if not self.args.should_save:
            return
        folder = Path(self.args.output_dir if output_dir is None else output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        logger.info(f"Saving model checkpoint to {destination(output_dir or self.args.output_dir)}")
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
                logger.info("The tokenizer of the data collator is saved, since there is no `processing_class`.")
        if processor is not None:
            processor.save_pretrained(folder)
        save_arguments(self.args, str(folder))

    def _save_checkpoint(self, model: nn.Module, trial: Any, metrics: Any = None) -> None:
        """Write a checkpoint; ``metrics``, which older overrides give, were looked at when they were measured."""
        if self.hp_search_backend is None and trial is None:
            self.store_flos()
        write_checkpoint(
            self,
            self._get_output_dir(trial),
            f"checkpoint-{self.state.global_step}",
        )

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        save_optimizer_and_scheduler(self, output_dir)

    def _save_scaler(self, output_dir: str) -> None:
        save_scaler(self, output_dir)

    def _save_rng_state(self, output_dir: str) -> None:
        save_rng_state(output_dir, self.args)

    def _get_output_dir(self, trial: Any) -> str:
        folder: str = self.args.output_dir
        if self.hp_search_backend is None or trial is None:
            return folder
        backend = search_backend(self.hp_search_backend)
        return str(Path(folder) / (self.hp_name(trial) if self.hp_name else f"run-{backend.run_id(trial)}"))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        logger.info(f"Loading model from {resume_from_checkpoint}.")
        self._issue_warnings_after_load(load_weights(self.model if model is None else model, resume_from_checkpoint))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            load_optimizer_and_scheduler(self, checkpoint)

    def _optimizer_state_to_load(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return the state of a checkpoint's optimizer as this trainer's takes it."""
        return state

    def _load_scaler(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            load_scaler(self, checkpoint)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        load_rng_state(checkpoint, self.args)

    def _load_callback_state(self) -> None:
        restore_callbacks(self)

    def _load_best_model(self) -> None:
        best = self.state.best_model_checkpoint
        assert best is not None
        logger.info(f"Loading best model from {best} (score: {self.state.best_metric}).")
        self._issue_warnings_after_load(load_weights(self.model, best))

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        announce_mismatch(self.model, load_result)

    def _keep_only_best_and_last(self, trial: Any) -> None:
        """With ``save_total_limit=1``, leave the best checkpoint alone on disk once training has ended."""
        run_folder, best = self._get_output_dir(trial), self.state.best_model_checkpoint
        if not self.args.should_save or best is None or self.args.save_total_limit != 1:
            return
        for checkpoint in sort_checkpoints(output_dir=run_folder, best_model_checkpoint=best):
            if not Path(checkpoint).samefile(best):
                logger.info(f"Deleting older checkpoint [{checkpoint}] due to args.save_total_limit")
                shutil.rmtree(checkpoint, ignore_errors=True)
