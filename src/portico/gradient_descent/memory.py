"""Memory of the processes and GPUs of a run, in MB of 1024 * 1024 bytes."""

import sys
from typing import Any

import torch


def peak_memory_mb(trainer: Any) -> dict[int, float]:
    """Return the most memory that each process has held, by its rank; every process must call this."""
    accelerator = trainer.accelerator
    peak = torch.tensor([_peak_of_this_process()], dtype=torch.float64, device=accelerator.device)
    return dict(enumerate(accelerator.gather(peak).tolist()))


def gpu_memory_mb() -> dict[int, float]:
    """Return the most memory that torch has held on each GPU of this process, by its index; nothing without a GPU."""
    if not torch.cuda.is_available():
        return {}
    return {
        index: torch.cuda.max_memory_allocated(index) / (1024 * 1024) for index in range(torch.cuda.device_count())
    }


def _peak_of_this_process() -> float:
    try:
        import resource
    except ImportError:
        # Not on Windows.
        return 0.0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts in kilobytes, macOS in bytes.
    return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)
