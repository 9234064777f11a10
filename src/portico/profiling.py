"""PyTorch's profiler as a callback."""

from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile, schedule, supported_activities
from transformers import TrainerCallback

_ROWS = 40


class ProfilerCallback(TrainerCallback):
    """Profiles steps of a training and writes ``operations.txt``, a table, and ``trace.json``.

    Args:
        folder: Folder for both files; made if it does not exist.
        skipped_steps: Optimizer steps before the profile, at least 1: the first ones allocate memory and compile.
        profiled_steps: Optimizer steps in the profile; a shorter training writes nothing.
    """

    def __init__(self, folder: str | Path, skipped_steps: int = 5, profiled_steps: int = 10) -> None:
        self.folder = Path(folder)
        self.skipped_steps = skipped_steps
        self.profiled_steps = profiled_steps
        self._profile: profile | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not state.is_world_process_zero:
            return
        steps = schedule(wait=self.skipped_steps - 1, warmup=1, active=self.profiled_steps, repeat=1)
        activities = supported_activities() & {ProfilerActivity.CPU, ProfilerActivity.CUDA}
        self._profile = profile(activities=activities, schedule=steps, on_trace_ready=self._write)
        self._profile.start()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._profile is not None:
            self._profile.step()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._profile is not None:
            self._profile.stop()
            self._profile = None

    def _write(self, profiled: profile) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        table = profiled.key_averages().table(sort_by="self_cpu_time_total", row_limit=_ROWS)
        (self.folder / "operations.txt").write_text(table + "\n", encoding="utf-8")
        profiled.export_chrome_trace(str(self.folder / "trace.json"))
