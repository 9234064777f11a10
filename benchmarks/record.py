"""What a benchmark found, for the script that runs them all."""

import json
import os
import statistics
from collections.abc import Sequence
from pathlib import Path

RECORD = "BENCHMARK_RECORD"
"""Environment variable with the file that results are appended to, a JSON object per line."""


def record(name: str, ratios: Sequence[float]) -> None:
    """Note what a measurement took of its peer's, one ratio per round; smaller is better."""
    path = os.environ.get(RECORD)
    if path:
        result = {"name": name, "median": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(result) + "\n")
