"""The memory in which sessions compute, of which all of a process share one part."""

from functools import cache

# What makes a session compute in the memory that is shared.
SHARED = ("session.use_env_allocators", "1")


@cache
def share_memory() -> None:
    """Register memory of the CPU for all sessions of this process.

    With memory of its own, each session would keep what it once needed, where torch and the others cannot use it.
    """
    import onnxruntime

    place = onnxruntime.OrtMemoryInfo(
        "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
    )
    onnxruntime.create_and_register_allocator(place, None)
