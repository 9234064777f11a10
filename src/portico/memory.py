"""Releasing memory, and retrying with smaller batches when it runs out."""

import gc
from collections.abc import Callable
from typing import TypeVar

import torch

Result = TypeVar("Result")

# Messages of torch's allocators (CUDA, ROCm and XPU share the first) and of cuDNN, as in accelerate's
# `should_reduce_batch_size`.
_OUT_OF_MEMORY = (
    " out of memory.",
    "MPS backend out of memory",
    "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED.",
    "DefaultCPUAllocator: can't allocate memory",
)


def is_out_of_memory(error: BaseException) -> bool:
    return (
        isinstance(error, RuntimeError)
        and len(error.args) == 1
        and any(words in str(error.args[0]) for words in _OUT_OF_MEMORY)
    )


def retry_with_smaller_batches(train: Callable[[int], Result], batch_size: int) -> Result:
    """Call ``train`` with ``batch_size`` examples, and again with a tenth less each time that memory runs out."""
    while batch_size > 0:
        release_memory()
        try:
            return train(batch_size)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        # As accelerate's `find_executable_batch_size`, which transformers' trainer uses.
        batch_size = int(batch_size * 0.9)
    raise RuntimeError(
        "No executable batch size found, reached zero. Even one example does not fit the memory; set "
        "`activation_checkpointing=True`, shorten the examples, or take a smaller model."
    )


def release_memory() -> None:
    # A failed attempt leaves activations in reference cycles, which would not be collected in time.
    gc.collect()
    if torch.accelerator.is_available():
        torch.accelerator.empty_cache()
