"""Tensors of a device on the host, without holding up who else uses the device."""

from __future__ import annotations

import torch


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` itself on the CPU; else its copy in pinned memory, as soon as the current stream has made it.

    A copy into pageable memory waits inside the driver, where another thread's launches wait behind it: the next step's
    behind the decoding of the last chunk.
    """
    if not tensor.is_cuda:
        return tensor
    host = tensor.to("cpu", non_blocking=True)
    copied = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    copied.record(torch.cuda.current_stream(tensor.device))
    copied.synchronize()
    return host
