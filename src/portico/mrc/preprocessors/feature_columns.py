"""Windows as columns of a ``datasets.Dataset``.

Shape suffixes: F features (windows), T tokens of all windows.
"""

from typing import Any

import numpy as np

from portico.mrc.arrays import Bools, Int64s
from portico.mrc.features.windows import Windows


def token_columns(windows: Windows, *, token_type_ids: bool, context_offsets_only: bool) -> dict[str, Any]:
    """Return the columns that hold a list a window, as Arrow arrays.

    Args:
        windows: ``F`` windows.
        token_type_ids: Whether the model reads segment ids.
        context_offsets_only: Whether ``offset_mapping`` is null outside the context.
    """
    starts = windows.row_starts
    columns = {
        "input_ids": _lists(windows.input_ids_T, starts),
        "attention_mask": _lists(windows.attention_mask_T.astype(np.int8), starts),
    }
    if token_type_ids:
        columns["token_type_ids"] = _lists(windows.token_type_ids_T.astype(np.int8), starts)
    missing_T = ~windows.in_context_T if context_offsets_only else None
    columns["offset_mapping"] = _lists(_pairs(windows.char_offsets_T2.astype(np.int64), missing_T), starts)
    return columns


def _lists(values: Any, row_starts: Int64s) -> Any:
    import pyarrow as pa

    return pa.ListArray.from_arrays(pa.array(row_starts.astype(np.int32)), pa.array(values))


def _pairs(offsets_T2: Int64s, missing_T: Bools | None) -> Any:
    import pyarrow as pa

    bounds = pa.array(np.arange(0, 2 * len(offsets_T2) + 1, 2, dtype=np.int32))
    mask = None if missing_T is None else pa.array(missing_T)
    return pa.ListArray.from_arrays(bounds, pa.array(offsets_T2.ravel()), mask=mask)
