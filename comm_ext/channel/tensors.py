"""Torch tensors in slots, of either memory. The one file of the channel that needs torch."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import torch

from ithaka.comm_ext.channel.base import Delivery, LayoutError, Slot, TensorLayout
from ithaka.comm_ext.channel.device import ALIGN_BYTES, DeviceBytes, DeviceDelivery, DeviceError, DeviceSlot
from ithaka.comm_ext.channel.layout import tensor_bytes


def view(data: memoryview | DeviceBytes, layout: TensorLayout) -> torch.Tensor:
    """A tensor of the layout's shape and dtype on a slot's bytes, C-contiguous; a delivery's is for reading only.

    Raises LayoutError when it does not lie within.
    """
    num_bytes = tensor_bytes(layout)
    end_bytes = layout.offset_bytes + num_bytes
    available_bytes = data.num_bytes if isinstance(data, DeviceBytes) else data.nbytes
    if end_bytes > available_bytes:
        raise LayoutError(f"{layout} ends at {end_bytes}, the slot has {available_bytes}")
    dtype = getattr(torch, layout.dtype)
    if num_bytes == 0:
        device = f"cuda:{data.device}" if isinstance(data, DeviceBytes) else "cpu"
        return torch.empty(layout.shape, dtype=dtype, device=device)
    if isinstance(data, DeviceBytes):
        flat = torch.as_tensor(data.part(layout.offset_bytes, num_bytes), device=f"cuda:{data.device}")
        return flat.view(dtype).view(layout.shape)
    # Torch warns of memory that it can't write; the array of ctypes does not say so, and keeps the bytes alive.
    start = np.frombuffer(data, np.uint8, num_bytes, layout.offset_bytes)
    flat_bytes = (ctypes.c_char * num_bytes).from_address(start.ctypes.data)
    flat_bytes.base = start  # type: ignore[attr-defined]
    return torch.frombuffer(flat_bytes, dtype=torch.uint8).view(dtype).view(layout.shape)


def write(
    slot: Slot | DeviceSlot, tensors: Sequence[torch.Tensor], shard_dims: Sequence[int | None] = ()
) -> tuple[TensorLayout, ...]:
    """Copy tensors into a claimed slot, one behind the other, on the current stream; returns their layouts for the message.

    ``shard_dims``, one a tensor or none: see ``TensorLayout.shard_dim``. Raises DeviceError for a tensor on another device
    than the slot, LayoutError when they do not fit.
    """
    layouts: list[TensorLayout] = []
    end_bytes = 0
    for tensor, shard_dim in zip(tensors, shard_dims or (None,) * len(tensors), strict=True):
        offset_bytes = -(-end_bytes // ALIGN_BYTES) * ALIGN_BYTES
        layout = TensorLayout(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), offset_bytes, shard_dim)
        expected = torch.device("cuda", slot.data.device) if isinstance(slot.data, DeviceBytes) else torch.device("cpu")
        if tensor.device != expected:
            place = slot.data.place if isinstance(slot.data, DeviceBytes) else f"slot {slot.index}"
            raise DeviceError(f"{place}: {layout} lies on {tensor.device}, the slot on {expected}")
        view(slot.data, layout).copy_(tensor)
        layouts.append(layout)
        end_bytes = offset_bytes + tensor_bytes(layout)
    return tuple(layouts)


def read(delivery: Delivery | DeviceDelivery) -> tuple[torch.Tensor, ...]:
    """The delivery's tensors where they lie, valid until release. A write to one of host memory ends the process: it is mapped
    for reading only."""
    return tuple(view(delivery.data, layout) for layout in delivery.message.tensors)
