"""What the channel in device memory deals in, and what it asks of a device. Contracts only; nothing here touches CUDA.

Addresses, streams and events are integers, as the driver gives them; a stream is a handle such as
``torch.cuda.current_stream().cuda_stream``, 0 the legacy default stream. Devices are this process's ordinals; between processes
a device is known by its 16-byte identity, because ordinals differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from ithaka.comm_ext.channel.base import ChannelError, ChannelMessage

HANDLE_BYTES = 64
IDENTITY_BYTES = 16
ALIGN_BYTES = 256
"""Of tensors within a slot, so that any kernel reads them at full width."""


class DeviceError(ChannelError):
    """The device refused, can't be reached, or is the wrong one."""

    code = "channel_device"


class ShardError(ChannelError):
    """The parts of a message that several ranks sent do not make a whole."""

    code = "channel_shards"


class DeviceBytes:
    """A range of device memory, as ``torch.as_tensor`` takes it. It, and a tensor made of it, keep the memory mapped."""

    def __init__(self, place: str, device: int, address: int, num_bytes: int, owner: object) -> None:
        """``place`` names channel and slot in errors."""
        self.place = place
        self.device = device
        self.address = address
        self.num_bytes = num_bytes
        self._owner = owner

    def part(self, offset_bytes: int, num_bytes: int) -> DeviceBytes:
        """A range within; the caller has checked it."""
        return DeviceBytes(self.place, self.device, self.address + offset_bytes, num_bytes, self._owner)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": (self.num_bytes,), "typestr": "|u1", "data": (self.address, False), "version": 3}


@dataclass(frozen=True, slots=True)
class DeviceSlot:
    """As ``base.Slot``; ``data`` lies on the producer's device."""

    index: int
    data: DeviceBytes


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class DeviceDelivery:
    """As ``base.Delivery``; ``data`` lies on the consumer's device, complete, and is for reading only."""

    index: int
    sequence: int
    message: ChannelMessage
    data: DeviceBytes


class DeviceRuntime(Protocol):
    """What a device can do. Every method raises DeviceError."""

    def identity(self, device: int) -> bytes:
        """The device's identity everywhere."""
        ...

    def find(self, identity: bytes) -> int:
        """The ordinal here of a device."""
        ...

    def allocate(self, device: int, num_bytes: int) -> int:
        """Memory that can be exported, whatever allocator else is in use."""
        ...

    def free(self, device: int, address: int) -> None: ...

    def export(self, device: int, address: int) -> bytes:
        """HANDLE_BYTES for ``map_handle`` in another process."""
        ...

    def map_handle(self, device: int, handle: bytes) -> int:
        """Another process's memory as ``device`` reaches it."""
        ...

    def unmap(self, device: int, address: int) -> None: ...

    def reach(self, device: int, peer: int) -> None:
        """Let ``device`` read memory of ``peer`` in this process."""
        ...

    def open_stream(self, device: int) -> int:
        """A stream of the highest priority that waits for no other."""
        ...

    def close_stream(self, device: int, stream: int) -> None: ...

    def copy(
        self,
        device: int,
        target: int,
        target_pitch: int,
        source: int,
        source_pitch: int,
        row_bytes: int,
        num_rows: int,
        stream: int,
    ) -> None:
        """Queue a copy of ``num_rows`` rows, by a copy engine where devices differ."""
        ...

    def record(self, device: int, stream: int, *, sleeps: bool) -> int:
        """An event after what ``stream`` has queued; ``sleeps``: ``wait`` spins for a moment only."""
        ...

    def is_idle(self, device: int, stream: int, *, within_us: int = 0) -> bool:
        """Whether all that the stream has queued is done, now or so soon."""
        ...

    def finish(self, device: int, stream: int) -> None:
        """Wait for all that the stream has queued."""
        ...

    def wait(self, device: int, event: int) -> None: ...

    def close_event(self, device: int, event: int) -> None: ...
