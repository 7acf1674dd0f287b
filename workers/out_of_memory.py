"""Telling a lack of memory from every other fault: torch has one error for CUDA, and only words for the CPU."""

from __future__ import annotations

import torch

OUT_OF_MEMORY = "out_of_memory"
"""Of WorkerFailed: another start may find more."""

_WORDS = ("DefaultCPUAllocator", "CUDA error: out of memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the device, or this machine, had no memory left."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _WORDS)
