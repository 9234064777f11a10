"""Memory: given back, and training again with smaller batches where it runs out."""

import gc
from collections.abc import Callable
from typing import TypeVar

import torch

Result = TypeVar("Result")

# The words of torch's allocators (CUDA, ROCm and XPU share the first) and of cuDNN.
_OUT_OF_MEMORY = (
    " out of memory.",
    "MPS backend out of memory",
    "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED.",
    "DefaultCPUAllocator: can't allocate memory",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether ``error`` reports that a device is out of memory."""
    return (
        isinstance(error, RuntimeError)
        and len(error.args) == 1
        and any(words in str(error.args[0]) for words in _OUT_OF_MEMORY)
    )


def retry_with_smaller_batches(train: Callable[[int], Result], batch_size: int) -> Result:
    """Call ``train`` with ``batch_size``, and with a tenth less each time that memory runs out.

    Args:
        train: Trains from the start with batches of the given size.
        batch_size: Size to begin with, in examples.

    Raises:
        RuntimeError: If memory runs out with batches of one example.
    """
    while batch_size > 0:
        release_memory()
        try:
            return train(batch_size)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        batch_size = int(batch_size * 0.9)
    raise RuntimeError(
        "No executable batch size found, reached zero. Even one example does not fit the memory; set "
        "`activation_checkpointing=True`, shorten the examples, or take a smaller model."
    )


def release_memory() -> None:
    """Give back what no object holds any more."""
    # A failed attempt leaves activations in reference circles, which nothing else collects soon enough.
    gc.collect()
    if torch.accelerator.is_available():
        torch.accelerator.empty_cache()
