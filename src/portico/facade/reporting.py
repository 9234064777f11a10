"""Logs, metrics files, callbacks, processes."""

import json
from pathlib import Path
from typing import Any

import torch
from transformers.trainer_callback import TrainerCallback
from transformers.trainer_pt_utils import log_metrics as _print_metrics
from transformers.trainer_pt_utils import metrics_format as _format_metrics
from transformers.trainer_utils import speed_metrics

from portico.contract import Facade
from portico.lightning_internals import publish_metrics
from portico.run_log import logger


class ReportingMethods(Facade):
    """How the facade tells what happens."""

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Write ``logs`` into the history, to the callbacks, to the Lightning loggers and to Lightning's monitors.

        Args:
            logs: Values by name; the epoch is added.
            start_time: Start of training, for the token throughput.
        """
        if self.state.epoch is not None:
            logs["epoch"] = self.state.epoch
        if self.args.include_num_input_tokens_seen != "no":
            logs["num_input_tokens_seen"] = self.state.num_input_tokens_seen
            if start_time is not None:
                num_tokens = self.state.num_input_tokens_seen - self._initial_num_input_tokens_seen
                logs.update(speed_metrics("train", start_time, num_tokens=num_tokens))
        self.state.log_history.append({**logs, "step": self.state.global_step})
        self.control = self.callback_handler.on_log(self.args, self.state, self.control, logs)
        numbers = {key: value for key, value in logs.items() if isinstance(value, int | float)}
        publish_metrics(self.lightning_trainer, numbers)
        for lightning_logger in self._loggers:
            lightning_logger.log_metrics(numbers, step=self.state.global_step)

    def log_metrics(self, split: str, metrics: dict[str, float]) -> None:
        """Print ``metrics`` as a table, from one process.

        Args:
            split: ``"train"``, ``"eval"`` or ``"test"``.
            metrics: Values by name.
        """
        _print_metrics(self, split, metrics)

    def metrics_format(self, metrics: dict[str, float]) -> dict[str, Any]:
        """Return ``metrics`` with times, memory and operations in units a person reads."""
        formatted: dict[str, Any] = _format_metrics(metrics)
        return formatted

    def save_metrics(self, split: str, metrics: dict[str, float], combined: bool = True) -> None:
        """Write ``metrics`` to ``{split}_results.json`` in the output folder, from one process.

        Args:
            split: ``"train"``, ``"eval"``, ``"test"`` or ``"all"``.
            metrics: Values by name.
            combined: Add them to ``all_results.json`` too.
        """
        if not self.is_world_process_zero():
            return
        folder = Path(self.args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        _write_json(folder / f"{split}_results.json", metrics)
        if combined:
            everything = folder / "all_results.json"
            known = json.loads(everything.read_text(encoding="utf-8")) if everything.is_file() else {}
            _write_json(everything, {**known, **metrics})

    def save_state(self) -> None:
        """Write the trainer state to ``trainer_state.json`` in the output folder, from one process."""
        if self.is_world_process_zero():
            Path(self.args.output_dir).mkdir(parents=True, exist_ok=True)
            self.state.save_to_json(str(Path(self.args.output_dir) / "trainer_state.json"))

    def store_flos(self) -> None:
        """Move the operations counted since the last call, of all processes, into the state."""
        flos = self.current_flos
        if self.args.world_size > 1:
            flos = self.accelerator.gather(torch.tensor(flos, device=self.args.device)).sum().item()
        self.state.total_flos += flos
        self.current_flos = 0

    def add_callback(self, callback: type[TrainerCallback] | TrainerCallback) -> None:
        """Add a callback, given as an instance or as a class to instantiate."""
        self.callback_handler.add_callback(callback)

    def pop_callback(self, callback: type[TrainerCallback] | TrainerCallback) -> TrainerCallback | None:
        """Take out a callback, or the first of a class, and return it; ``None`` where there is none."""
        return self.callback_handler.pop_callback(callback)

    def remove_callback(self, callback: type[TrainerCallback] | TrainerCallback) -> None:
        """Take out a callback, or the first of a class."""
        self.callback_handler.remove_callback(callback)

    def is_local_process_zero(self) -> bool:
        """Tell whether this is the first process of its machine."""
        return bool(self.args.local_process_index == 0)

    def is_world_process_zero(self) -> bool:
        """Tell whether this is the first process of all."""
        return bool(self.args.process_index == 0)

    def _track_num_input_tokens(self, inputs: Any) -> None:
        mode = self.args.include_num_input_tokens_seen
        if mode == "no":
            return
        main_input = getattr(self.model, "main_input_name", "input_ids")
        if main_input not in inputs:
            logger.warning(
                "`include_num_input_tokens_seen=%r` counts no tokens, because the batch holds no `%s`; name the input "
                "in a class attribute `main_input_name` of the model.",
                mode,
                main_input,
            )
            return
        tokens = _count_tokens(inputs, main_input, self.processing_class, padding=mode != "non_padding")
        self.state.num_input_tokens_seen += int(self.accelerator.gather(tokens.to(self.args.device)).sum().item())


def _count_tokens(inputs: Any, main_input: str, processing_class: Any, *, padding: bool) -> Any:
    if not padding and "attention_mask" in inputs:
        return inputs["attention_mask"].sum()
    pad_token_id = getattr(processing_class, "pad_token_id", None)
    if not padding and pad_token_id is not None:
        return (inputs[main_input] != pad_token_id).sum()
    if not padding:
        logger.warning(
            "`include_num_input_tokens_seen='non_padding'` counts padding too, because there is neither an "
            "`attention_mask` in the batch nor a `pad_token_id`; give the trainer its `processing_class`."
        )
    return torch.tensor(inputs[main_input].numel())


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=4, sort_keys=True), encoding="utf-8")
