"""Where the time of a session went, as ONNX Runtime's own profiler measures it."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

_KERNEL = "_kernel_time"


def operator_seconds(session: Any) -> Counter[str]:
    """End the profile of a session and return the seconds in each kind of operator.

    Args:
        session: An ``onnxruntime.InferenceSession`` that was made with profiling on.
    """
    path = Path(session.end_profiling())
    events = json.loads(path.read_text(encoding="utf-8"))
    path.unlink()
    seconds: Counter[str] = Counter()
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith(_KERNEL):
            # The profiler counts microseconds.
            seconds[event["args"]["op_name"]] += event["dur"] / 1e6
    return seconds
