"""The memory that latents travel by, chosen in one place; whatever it is, the channel's face is the same."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch

from ithaka.comm_ext.channel.base import Consumer, Delivery, Policy, Producer, Slot, TensorLayout
from ithaka.comm_ext.channel.host_shm import HostChannel, open_consumer

_ALIGNMENT_BYTES = 64
_MAX_TENSORS = 64


class LatentsMemory(Protocol):
    """Makes both ends of a channel, and moves tensors in and out of its slots."""

    def create(self, num_slots: int, latents_bytes: int, policies: Sequence[Policy]) -> tuple[Producer, tuple[int, ...]]:
        """The producer's end, and descriptors for the consumers, the caller's to close; slots for ``latents_bytes`` each."""
        ...

    def open(self, fds: Sequence[int], consumer: int) -> Consumer:
        """Takes ``fds`` over, even when it fails. Raises ChannelError."""
        ...

    def write(self, slot: Slot, tensors: Sequence[torch.Tensor]) -> tuple[TensorLayout, ...]:
        """Returns when the data is complete. Raises ValueError when it does not fit."""
        ...

    def read(self, delivery: Delivery) -> tuple[torch.Tensor, ...]:
        """Valid until the delivery is released."""
        ...


def memory_of(device: torch.device) -> LatentsMemory:
    """What fits stages on devices like ``device``: stages of one group are all on CUDA devices, or all on the CPU."""
    return HostMemory()


class HostMemory:
    """Shared memory of the host; tensors of a device cross it as well."""

    def create(self, num_slots: int, latents_bytes: int, policies: Sequence[Policy]) -> tuple[Producer, tuple[int, ...]]:
        """See LatentsMemory. Raises ChannelError, OSError."""
        slot_bytes = latents_bytes + _MAX_TENSORS * _ALIGNMENT_BYTES
        channel = HostChannel.create(0, num_slots, slot_bytes, len(policies), policies)
        try:
            return channel.open_producer(), tuple(os.dup(fd) for fd in channel.describe())
        finally:
            channel.close()

    def open(self, fds: Sequence[int], consumer: int) -> Consumer:
        """See LatentsMemory."""
        return open_consumer(fds, consumer)

    def write(self, slot: Slot, tensors: Sequence[torch.Tensor]) -> tuple[TensorLayout, ...]:
        """See LatentsMemory; a device's tensors are waited for."""
        sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
        ends = itertools.accumulate((_aligned(size) for size in sizes), initial=0)
        offsets = list(ends)
        if offsets[-1] > len(slot.data) or len(tensors) > _MAX_TENSORS:
            raise ValueError(f"{len(tensors)} tensors of {sum(sizes)} bytes do not fit a slot of {len(slot.data)}")
        layouts = []
        for tensor, size, offset in zip(tensors, sizes, offsets, strict=False):
            flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            slot.data[offset : offset + size] = flat.numpy().data
            layouts.append(TensorLayout(tuple(tensor.shape), _name(tensor.dtype), offset))
        return tuple(layouts)

    def read(self, delivery: Delivery) -> tuple[torch.Tensor, ...]:
        """Copies on the CPU: torch has no tensor that may not be written to."""
        return tuple(_tensor(delivery.data, layout) for layout in delivery.message.tensors)


def _tensor(data: memoryview, layout: TensorLayout) -> torch.Tensor:
    tensor = torch.empty(layout.shape, dtype=getattr(torch, layout.dtype))
    flat = tensor.reshape(-1).view(torch.uint8).numpy()
    flat[:] = np.frombuffer(data, np.uint8, flat.size, layout.offset_bytes)
    return tensor


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
