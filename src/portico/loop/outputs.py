"""What a model takes and returns: one batch, and the outputs of an evaluation joined into arrays.

The peak memory of an evaluation is near the size of its result.

Joining a list of arrays at the end is simpler, but measured a peak of 2.0 times the result for batches under 128 KiB,
because glibc keeps the freed blocks; this buffer measured 1.05 times.
"""

import math
import mmap
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from portico.compat.transformers import logger
from portico.compat.tree import collect_tensors, map_tensors
from portico.errors import InputError, InputRuntimeError

if TYPE_CHECKING:
    from portico.compat.annotations import Batch, Nested, NumItems, ProcessingClass

# On other systems a map cannot grow, and is copied instead.
_GROWS_IN_PLACE = sys.platform == "linux"


def _memory(num_bytes: int, earlier: mmap.mmap | None = None) -> mmap.mmap:
    """Return a buffer of ``num_bytes`` that starts with the contents of ``earlier``; no views of it may exist.

    A memory map grows by moving pages instead of bytes, and its pages cost nothing until they are written; growing an
    array holds it twice for a while. The pages are freed with the last view.
    """
    num_bytes = max(1, num_bytes)
    if earlier is not None and len(earlier) == num_bytes:
        return earlier
    if not _GROWS_IN_PLACE:
        made = mmap.mmap(-1, num_bytes)
        if earlier is not None:
            kept = min(num_bytes, len(earlier))
            made[:kept] = earlier[:kept]
        return made
    if earlier is None:
        # A shared map, which is the default, could not be written beyond its first length.
        return mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    earlier.resize(num_bytes)
    return earlier


_PADDING_INDEX = -100
# Upper limit of the first allocation: a first batch wider than the others would allocate too much.
_LARGEST_FIRST_BLOCK_BYTES = 2**30
_GROWTH = 1.25
_MOVED_AT_ONCE_BYTES = 2**20


class GrowingArray:
    """One array that grows by batches.

    Batches are stored end to end, each in its width. After the last one, rows are spread to the width of the widest,
    in place and from the last row to the first. So peak memory stays near the size of the result and time is linear,
    however many batches there are and however their widths vary.

    Tensors leave the device after ``move_every`` batches, by default at the end. ``num_rows`` is the expected number
    of rows; more or fewer may come.
    """

    def __init__(self, *, move_every: int | None = None, num_rows: int | None = None) -> None:
        self.move_every = move_every
        self.num_rows = num_rows
        self._on_device: list[torch.Tensor] = []
        self._block: mmap.mmap | None = None
        self._num_values = 0
        self._dtype: torch.dtype | None = None
        self._numpy_dtype: np.dtype[Any] = np.dtype(np.float32)
        # Rows of equal shape that follow each other: `[shape of a row, number of rows]`.
        self._runs: list[tuple[tuple[int, ...], int]] = []
        self._width = 0
        self._is_scalar = False
        # The block as an array; a map with views cannot grow, so it is dropped first.
        self._flat: npt.NDArray[Any] | None = None

    def append(self, tensor: torch.Tensor) -> None:
        """Add the rows of a batch, ``[rows, ...]``; a scalar is one row. Rows that cannot be joined are refused."""
        if tensor.requires_grad:
            tensor = tensor.detach()
        # As in transformers, the scalar of a single batch stays one.
        self._is_scalar = tensor.dim() == 0 and not (self._runs or self._on_device)
        if tensor.dim() == 0:
            tensor = tensor[None]
        if tensor.is_cpu:
            self._store(tensor)
            return
        self._on_device.append(_compact(tensor))
        if len(self._on_device) == self.move_every:
            self._take_from_device()

    def result(self) -> npt.NDArray[Any]:
        """Return the array of all rows, ``[all rows, widest, ...]``, padded with -100; may be called once."""
        if self._on_device:
            self._take_from_device()
        self._flat = None
        num_rows = sum(rows for _, rows in self._runs)
        row_shape = self._runs[0][0]
        if row_shape:
            row_shape = (self._width, *row_shape[1:])
        dtype, size = self._numpy_dtype, num_rows * math.prod(row_shape)
        values = np.frombuffer(_memory(size * dtype.itemsize, self._block), dtype, size)
        if self._num_values < size:
            self._spread(values, row_shape)
        return values.reshape(() if self._is_scalar else (num_rows, *row_shape))

    def _take_from_device(self) -> None:
        while self._on_device:
            # Removed one by one, so that the device frees what the host has received.
            self._store(self._on_device.pop(0))

    def _store(self, tensor: torch.Tensor) -> None:
        shape = tensor.shape
        num_rows, row_shape = shape[0], shape[1:]
        first, end = self._num_values, self._num_values + shape.numel()
        if not (self._runs and self._runs[-1][0] == row_shape and tensor.dtype is self._dtype):
            self._settle_dtype(tensor, row_shape)
            self._runs.append((row_shape, 0))
            self._width = max(self._width, *row_shape[:1], 0)
        if self._flat is None or end > len(self._flat):
            self._reserve(end, expected=(self.num_rows or 0) * math.prod(row_shape))
        assert self._flat is not None, "just reserved"
        if tensor.is_cpu and tensor.dtype is self._dtype is not torch.bfloat16:
            self._flat[first:end] = tensor.numpy().reshape(-1)
        else:
            # Copied by torch, which takes any device and casts if necessary.
            torch.from_numpy(self._flat[first:end]).view(tensor.shape).copy_(tensor)
        self._num_values = end
        self._runs[-1] = (row_shape, self._runs[-1][1] + num_rows)

    def _reserve(self, num_values: int, *, expected: int) -> None:
        """Make room for ``num_values``; the first time, for the number ``expected`` in all."""
        dtype, self._flat = self._numpy_dtype, None
        num_bytes = num_values * dtype.itemsize
        if self._block is None:
            self._block = _memory(max(num_bytes, min(expected * dtype.itemsize, _LARGEST_FIRST_BLOCK_BYTES)))
        elif num_bytes > len(self._block):
            self._block = _memory(max(num_bytes, int(len(self._block) * _GROWTH)), self._block)
        self._flat = np.frombuffer(self._block, dtype, len(self._block) // dtype.itemsize)

    def _settle_dtype(self, tensor: torch.Tensor, row_shape: tuple[int, ...]) -> None:
        """Choose the type as transformers' ``EvalLoopContainer``: concatenation promotes, padding keeps the type."""
        dtype = tensor.dtype
        if self._dtype is not None:
            known = self._runs[0][0]
            if len(known) != len(row_shape) or known[1:] != row_shape[1:]:
                raise InputRuntimeError(
                    f"The outputs of an evaluation cannot be joined: rows of shape {list(row_shape)} follow rows of "
                    f"shape {list(known)}, and only the first of these dimensions can be padded. Pad them to one "
                    "shape in `preprocess_logits_for_metrics` or in the data collator, leave the output out with "
                    "`ignore_keys`, or set `eval_do_concat_batches=False` to get a list with an entry per batch."
                )
            padded = row_shape and row_shape[0] != self._width
            dtype = self._dtype if padded else torch.promote_types(self._dtype, tensor.dtype)
        if dtype == self._dtype:
            return
        old = None if self._flat is None else self._flat[: self._num_values]
        self._dtype = dtype
        # numpy lacks bfloat16, which becomes float32.
        self._numpy_dtype = torch.empty(0, dtype=torch.float32 if dtype is torch.bfloat16 else dtype).numpy().dtype
        if old is not None:
            self._block = None
            self._reserve(self._num_values, expected=0)
            assert self._flat is not None, "just reserved"
            self._flat[: self._num_values] = old

    def _spread(self, values: npt.NDArray[Any], row_shape: tuple[int, ...]) -> None:
        """Spread rows stored end to end to rows of ``row_shape``, without overwriting a row that is still to move."""
        width, inner = self._width, math.prod(row_shape[1:])
        source_end, target_end = self._num_values, len(values)
        for (own_width, *_), num_rows in reversed(self._runs):
            own_size, size = own_width * inner, width * inner
            at_once = max(1, _MOVED_AT_ONCE_BYTES // max(1, size * values.itemsize))
            while num_rows:
                moved = min(num_rows, at_once)
                source = values[source_end - moved * own_size : source_end].reshape(moved, own_size)
                target = values[target_end - moved * size : target_end].reshape(moved, size)
                target[:, :own_size] = source.copy()
                # Filled by torch, whose types without a sign take the padding too.
                torch.from_numpy(target[:, own_size:]).fill_(_PADDING_INDEX)
                source_end -= moved * own_size
                target_end -= moved * size
                num_rows -= moved


class OutputBuffer:
    """Nested arrays of the whole set, grown by batches of nested tensors; takes the arguments of `GrowingArray`.

    Batches are joined along dimension 0, and dimension 1 is padded with -100 to the longest.
    """

    def __init__(self, *, move_every: int | None = None, num_rows: int | None = None) -> None:
        self._options = {"move_every": move_every, "num_rows": num_rows}
        self._columns: dict[str, GrowingArray] = {}
        self._form: Any = None
        self._only: GrowingArray | None = None  # the column of outputs that are not nested
        self._examples: list[Any] = []

    def add(self, tensors: "Nested | None", *, by_example: bool = False) -> None:
        """Keep the outputs of one batch; refuse outputs that are not tensors or cannot be joined to earlier ones.

        Outputs ``by_example`` are joined to one list, an entry for each example.
        """
        if by_example and not self._columns and self._only is None:
            self._examples += convert_to_arrays(list(tensors))  # type: ignore[arg-type]
            return
        if isinstance(tensors, torch.Tensor) and not self._columns:
            if self._only is None:
                self._only = GrowingArray(**self._options)
            self._only.append(tensors)
            return
        outputs = collect_tensors(tensors)
        if not self._columns and self._only is None:
            self._columns = {name: GrowingArray(**self._options) for name in outputs}
            self._form = map_tensors(lambda tensor: tensor.new_empty(0), tensors)
        if outputs.keys() != self._columns.keys() and isinstance(tensors, list) and isinstance(self._form, list):
            # Lists come from objects of several processes: entries that only some batches have are dropped, as
            # transformers does.
            length = min(len(tensors), len(self._form))
            self._form, outputs = self._form[:length], collect_tensors(tensors[:length])
            self._columns = {name: column for name, column in self._columns.items() if name in outputs}
        if self._only is None and self._columns.keys() < outputs.keys() and isinstance(tensors, Mapping):
            # As transformers does: later batches may have more outputs than the first, which are left out.
            more = sorted(set(outputs) - set(self._columns))
            logger.warning_once(
                f"The first batch of an evaluation had no output {', '.join(more)}: it is left out.", stacklevel=2
            )
            outputs = {name: outputs[name] for name in self._columns}
        if self._only is not None or outputs.keys() != self._columns.keys():
            raise InputError(
                f"A batch of an evaluation gave the outputs {sorted(outputs)} where those before it gave "
                f"{sorted(self._columns) or ['']}; let `prediction_step` return the same outputs for every batch."
            )
        for name, tensor in outputs.items():
            self._columns[name].append(tensor)

    def result(self) -> Any:
        """Return nested arrays of all examples, ``None`` if there were no batches; empties the buffer."""
        if self._examples:
            examples, self._examples = self._examples, []
            return examples
        if self._only is not None:
            array = self._only.result()
            self._only = None
            return array
        columns, form = self._columns, self._form
        self._columns, self._form = {}, None
        if not columns:
            return form
        arrays = iter([column.result() for column in columns.values()])
        return map_tensors(lambda _: next(arrays), form)


class OutputList:
    """A list of nested arrays, an entry per batch (``eval_do_concat_batches=False``)."""

    def __init__(self, *, move_every: int | None = None) -> None:
        self.move_every = move_every
        self._on_device: list[Any] = []
        self._moved: list[Any] = []

    def add(self, tensors: "Nested | None", *, by_example: bool = False) -> None:
        """Keep the outputs of one batch, whether or not they have an entry for each example."""
        self._on_device.append(map_tensors(_compact, tensors))
        if len(self._on_device) == self.move_every:
            self._move()

    def result(self) -> Any:
        """Return the arrays of each batch, ``None`` if there were no batches; empties the buffer."""
        self._move()
        batches, self._moved = self._moved, []
        return batches or None

    def _move(self) -> None:
        while self._on_device:
            self._moved.append(convert_to_arrays(self._on_device.pop(0)))


def convert_to_arrays(data: "Nested") -> Any:
    """Turn nested tensors into nested arrays; bfloat16, which numpy lacks, becomes float32."""

    def convert(tensor: torch.Tensor) -> npt.NDArray[Any]:
        tensor = tensor.detach().cpu()
        return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy()

    return map_tensors(convert, data)


def _compact(tensor: torch.Tensor) -> torch.Tensor:
    """Return ``tensor``, copied if it is a view that would keep a larger tensor alive."""
    tensor = tensor.detach()
    return tensor if tensor.untyped_storage().nbytes() <= tensor.nbytes else tensor.clone()


# ---- One batch: its labels and tokens before the model, the loss and the logits after it ----


def set_training(model: nn.Module) -> None:
    """Call ``model.train()``, unless every module is in training mode and none overrides ``train``.

    The check takes a tenth of the time of the call, which would set an attribute of each module at every step.
    """
    modules: list[nn.Module | None] = [model]
    plain = (nn.Module.train, DistributedDataParallel.train)  # which only calls the first
    for module in modules:
        if module is None:
            continue
        state = module.__dict__
        if not state.get("training") or "train" in state or type(module).train not in plain:
            model.train()
            return
        if children := state["_modules"]:
            modules += children.values()


def count_labels(batches: Sequence["Batch"], *, shifts_labels: bool) -> "NumItems":
    """Return the number of label positions in an accumulation window that a loss counts, an int64 scalar.

    It is ``None`` for labels that are not tensors, such as the boxes of object detection. A causal loss
    (``shifts_labels``) never predicts the first position.
    """
    num_labels: Any = 0
    try:
        for batch in batches:
            if "shift_labels" in batch:
                labels = batch["shift_labels"]
            else:
                labels = batch["labels"][..., 1:] if shifts_labels else batch["labels"]
            num_labels += labels.ne(-100).sum()
    except (TypeError, AttributeError):
        return None
    return num_labels


def count_tokens(
    batch: "Batch", main_input: str, processing_class: "ProcessingClass | None", *, padding: bool
) -> torch.Tensor:
    """Return the number of tokens in the input ``main_input`` of a batch, a scalar; ``padding`` may count or not.

    ``processing_class`` knows the padding token, for batches without an ``attention_mask``.
    """
    if not padding:
        if "attention_mask" in batch:
            return torch.as_tensor(batch["attention_mask"].sum())
        pad_token_id = getattr(processing_class, "pad_token_id", None)
        if pad_token_id is not None:
            return torch.as_tensor((batch[main_input] != pad_token_id).sum())
        logger.warning(
            "Could not determine method to count non-padding tokens, falling back to counting all tokens. The batch "
            "has no `attention_mask`; give the trainer a `processing_class` with a `pad_token_id`."
        )
    return torch.tensor(batch[main_input].numel())


def logits_of(outputs: "Nested", ignored: list[str], *, skip_first: bool) -> Any:
    """Return the detached outputs of a model, without the outputs named in ``ignored``.

    ``skip_first`` leaves out the first entry of a tuple, which is the loss.
    """
    if isinstance(outputs, dict):
        outputs = tuple(value for key, value in outputs.items() if key not in ignored)
    elif skip_first:
        outputs = outputs[1:]
    logits = map_tensors(torch.Tensor.detach, outputs)
    return logits[0] if len(logits) == 1 else logits


def labels_of(inputs: "Batch", names: list[str]) -> Any:
    """Return the detached labels of a batch: a tuple where the model takes several."""
    labels = map_tensors(torch.Tensor.detach, tuple(inputs.get(name) for name in names))
    return labels[0] if len(labels) == 1 else labels
