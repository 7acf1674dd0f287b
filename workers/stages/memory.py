"""The memory that latents travel by, chosen in one place; whatever it is, the channel's face is the same."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Protocol, cast

import torch

from ithaka.comm_ext.channel import cuda_ipc, host_shm
from ithaka.comm_ext.channel.base import Consumer, Delivery, Policy, Producer, Slot, TensorLayout
from ithaka.comm_ext.channel.device import ALIGN_BYTES
from ithaka.comm_ext.channel.host_shm import HostChannel
from ithaka.comm_ext.channel.layout import MAX_TENSORS
from ithaka.comm_ext.channel.tensors import read, write
from ithaka.workers.contract import ConfigureRank
from ithaka.workers.device import pick_device
from ithaka.workers.host_copy import to_host

_CHANNEL_ID = 0
"""Each group has one, which nobody else sees."""


class LatentsMemory(Protocol):
    """Makes both ends of a channel, and moves tensors in and out of its slots."""

    def create(self, num_slots: int, latents_bytes: int, policies: Sequence[Policy]) -> tuple[Producer, tuple[int, ...]]:
        """The producer's end, and descriptors for the consumers, the caller's to close; slots for ``latents_bytes`` each.

        Raises ChannelError, OSError.
        """
        ...

    def open(self, fds: Sequence[int], consumer: int) -> Consumer:
        """Takes ``fds`` over, even when it fails. Raises ChannelError."""
        ...

    def write(self, slot: Slot, tensors: Sequence[torch.Tensor]) -> tuple[TensorLayout, ...]:
        """Returns when the data is complete. Raises LayoutError when it does not fit."""
        ...

    def read(self, delivery: Delivery) -> tuple[torch.Tensor, ...]:
        """For reading only, valid until the delivery is released."""
        ...


def memory_for(configure: ConfigureRank) -> LatentsMemory:
    """For the leader of a split model, and for each stage apart."""
    placement = configure.placement
    own, leader, *takers = (
        pick_device(configure.device, index, placement.num_devices)
        for index in (placement.device_index, *placement.latents_devices)
    )
    return memory_of(own, leader, takers)


def memory_of(own: torch.device, leader: torch.device, takers: Sequence[torch.device]) -> LatentsMemory:
    """The leader's device memory where every taker's device reaches it, else the host's; the same choice in every process."""
    if leader.type == "cuda" and all(taker == leader or torch.cuda.can_device_access_peer(taker, leader) for taker in takers):
        return DeviceMemory(own)
    return HostMemory()


class HostMemory:
    """Shared memory of the host; tensors of a device cross it as well."""

    def create(self, num_slots: int, latents_bytes: int, policies: Sequence[Policy]) -> tuple[Producer, tuple[int, ...]]:
        """See LatentsMemory."""
        channel = HostChannel.create(_CHANNEL_ID, num_slots, _slot_bytes(latents_bytes), len(policies), policies)
        try:
            return channel.open_producer(), _duplicates(channel.describe())
        finally:
            channel.close()

    def open(self, fds: Sequence[int], consumer: int) -> Consumer:
        """See LatentsMemory."""
        return host_shm.open_consumer(fds, consumer)

    def write(self, slot: Slot, tensors: Sequence[torch.Tensor]) -> tuple[TensorLayout, ...]:
        """See LatentsMemory; a device's tensors are waited for."""
        return write(slot, [to_host(tensor) for tensor in tensors])

    def read(self, delivery: Delivery) -> tuple[torch.Tensor, ...]:
        """See LatentsMemory; views on the CPU."""
        return read(delivery)


class DeviceMemory:
    """The leader's device memory by CUDA IPC; ``device`` is that of the process that asks."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._ordinal = device.index or 0

    def create(self, num_slots: int, latents_bytes: int, policies: Sequence[Policy]) -> tuple[Producer, tuple[int, ...]]:
        """See LatentsMemory."""
        slot_bytes = _slot_bytes(latents_bytes)
        channel = HostChannel.create(_CHANNEL_ID, num_slots, slot_bytes, len(policies), policies, on_device=True)
        try:
            producer = cuda_ipc.open_producer(_duplicates(channel.describe()), self._ordinal)
            # Its slots are of another kind; only ``write`` looks into them.
            return cast(Producer, producer), _duplicates(channel.describe())
        finally:
            channel.close()

    def open(self, fds: Sequence[int], consumer: int) -> Consumer:
        """See LatentsMemory."""
        return cast(Consumer, cuda_ipc.open_consumer(fds, consumer, self._ordinal))

    def write(self, slot: Slot, tensors: Sequence[torch.Tensor]) -> tuple[TensorLayout, ...]:
        """See LatentsMemory. Waits for the step: what it made is handed on only when it was clean."""
        layouts = write(slot, tensors)
        torch.cuda.current_stream(self._device).synchronize()
        return layouts

    def read(self, delivery: Delivery) -> tuple[torch.Tensor, ...]:
        """See LatentsMemory; on this process's device."""
        return read(delivery)


def _slot_bytes(latents_bytes: int) -> int:
    return latents_bytes + MAX_TENSORS * ALIGN_BYTES


def _duplicates(fds: Sequence[int]) -> tuple[int, ...]:
    return tuple(os.dup(fd) for fd in fds)
