"""The resident memory of this process, as the kernel counts it, in MiB."""

import os
from pathlib import Path

MEBIBYTE = 2**20


def resident() -> float:
    """Return the memory that is resident now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MEBIBYTE


def forget_peak() -> None:
    """Begin to look for the highest point anew."""
    Path("/proc/self/clear_refs").write_text("5")


def peak() -> float:
    """Return the highest point since then."""
    status = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in status if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024
