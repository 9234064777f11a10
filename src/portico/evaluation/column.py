"""One output of an evaluation: the rows of all batches, in one block of memory that grows where it lies."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from portico.errors import InputError

_PADDING_INDEX = -100
# Blocks of this size are maps of their own: untouched pages cost nothing, and growing moves pages instead of bytes.
_FIRST_BLOCK_BYTES = 64 * 2**20
# A first batch that is wider than the others would ask for more than there is.
_LARGEST_FIRST_BLOCK_BYTES = 2**30
_GROWTH = 17 / 16
_MOVED_AT_ONCE_BYTES = 2**20


class Column:
    """Tensors of many batches that become one array.

    Batches lie end to end, each in its own width. Only when the last one is in are the rows spread to the width of the
    widest, in place and from the last row to the first. So the peak stays near the size of the result, and the time
    is linear, however many batches there are and however their widths vary.

    Args:
        move_every: Batches after which tensors leave the device; ``None`` keeps them there until the end.
        num_rows: Rows to make room for; ``None`` when nobody knows. More or fewer may come.
    """

    def __init__(self, *, move_every: int | None = None, num_rows: int | None = None) -> None:
        self.move_every = move_every
        self.num_rows = num_rows
        self._on_device: list[torch.Tensor] = []
        self._values: npt.NDArray[Any] = np.empty(0)
        self._num_values = 0
        self._dtype: torch.dtype | None = None
        # Rows of equal shape that follow each other: `[shape of a row, number of rows]`.
        self._runs: list[tuple[tuple[int, ...], int]] = []
        self._width = 0

    def append(self, tensor: torch.Tensor) -> None:
        """Add the rows of a batch, ``[rows, ...]``; a scalar is one row.

        Raises:
            InputError: If the rows cannot follow those before them, even padded along dimension 1.
        """
        self._on_device.append(torch.atleast_1d(tensor.detach()))
        if tensor.device.type == "cpu" or len(self._on_device) == self.move_every:
            self._take_from_device()

    def result(self) -> npt.NDArray[Any]:
        """Return the array of all rows, ``[all rows, widest, ...]``, padded with -100; the column is used up."""
        self._take_from_device()
        num_rows = sum(rows for _, rows in self._runs)
        row_shape = self._runs[0][0]
        if row_shape:
            row_shape = (self._width, *row_shape[1:])
        self._resize(num_rows * math.prod(row_shape))
        if len(self._runs) > 1:
            self._spread(row_shape)
        return self._values.reshape(num_rows, *row_shape)

    def _take_from_device(self) -> None:
        waiting, self._on_device = self._on_device, []
        waiting.reverse()
        while waiting:
            # Taken out one by one, so that the device gives up what the host has got.
            self._store(waiting.pop())

    def _store(self, tensor: torch.Tensor) -> None:
        num_rows, *rest = tensor.shape
        row_shape = tuple(rest)
        self._settle_dtype(tensor, row_shape)
        first, self._num_values = self._num_values, self._num_values + tensor.numel()
        if self._num_values > len(self._values):
            self._make_room(tensor)
        # Copied by torch: from any device, in any layout, and with a cast where one is due.
        torch.from_numpy(self._values)[first : self._num_values].view(tensor.shape).copy_(tensor)
        self._note_rows(row_shape, num_rows)

    def _note_rows(self, row_shape: tuple[int, ...], num_rows: int) -> None:
        if self._runs and self._runs[-1][0] == row_shape:
            num_rows += self._runs.pop()[1]
        self._runs.append((row_shape, num_rows))
        self._width = max(self._width, *row_shape[:1], 0)

    def _settle_dtype(self, tensor: torch.Tensor, row_shape: tuple[int, ...]) -> None:
        """Agree on a type as Hugging Face does: concatenation promotes, padding keeps the type so far."""
        if self._dtype is None:
            self._dtype = tensor.dtype
            self._values = np.empty(0, _numpy_dtype(tensor.dtype))
            return
        known = self._runs[0][0]
        if len(known) != len(row_shape) or known[1:] != row_shape[1:]:
            raise InputError(
                f"The outputs of an evaluation cannot be joined: rows of shape {list(row_shape)} follow rows of shape "
                f"{list(known)}, and only the first of these dimensions can be padded. Bring them to one shape in "
                "`preprocess_logits_for_metrics` or in the data collator, leave the output out with `ignore_keys`, "
                "or set `eval_do_concat_batches=False` to get a list with an entry per batch."
            )
        padded = row_shape and row_shape[0] != self._width
        joined = self._dtype if padded else torch.promote_types(self._dtype, tensor.dtype)
        if joined != self._dtype:
            self._dtype = joined
            self._values = self._values.astype(_numpy_dtype(joined))

    def _make_room(self, tensor: torch.Tensor) -> None:
        if len(self._values):
            self._resize(max(self._num_values, int(len(self._values) * _GROWTH)))
            return
        size = _FIRST_BLOCK_BYTES // self._values.itemsize
        if self.num_rows is not None:
            largest = _LARGEST_FIRST_BLOCK_BYTES // self._values.itemsize
            size = min(self.num_rows * math.prod(tensor.shape[1:]), largest)
        self._values = np.empty(max(self._num_values, size), self._values.dtype)

    def _resize(self, size: int) -> None:
        # In place, which for a block that is a map of its own copies nothing. Nothing else refers to the block: the
        # only views of it are made and dropped within a line.
        self._values.resize(size, refcheck=False)

    def _spread(self, row_shape: tuple[int, ...]) -> None:
        """Move rows that lie end to end to where rows of ``row_shape`` lie; none moves over one that waits."""
        width, inner = self._width, math.prod(row_shape[1:])
        source_end, target_end = self._num_values, len(self._values)
        for (own_width, *_), num_rows in reversed(self._runs):
            own_size, size = own_width * inner, width * inner
            at_once = max(1, _MOVED_AT_ONCE_BYTES // max(1, size * self._values.itemsize))
            while num_rows:
                moved = min(num_rows, at_once)
                source = self._values[source_end - moved * own_size : source_end].reshape(moved, own_size)
                target = self._values[target_end - moved * size : target_end].reshape(moved, size)
                target[:, :own_size] = source.copy()
                # Filled by torch, whose types without a sign take the padding too.
                torch.from_numpy(target[:, own_size:]).fill_(_PADDING_INDEX)
                source_end -= moved * own_size
                target_end -= moved * size
                num_rows -= moved


def _numpy_dtype(dtype: torch.dtype) -> "np.dtype[Any]":
    """Return the type an array gets; bfloat16, which numpy lacks, becomes float32."""
    return torch.empty(0, dtype=torch.float32 if dtype is torch.bfloat16 else dtype).numpy().dtype
