"""The producer's device memory, as its consumers find it: written once into the channel's control memory. Pure."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ithaka.comm_ext.channel.base import ChannelError
from ithaka.comm_ext.channel.device import HANDLE_BYTES, IDENTITY_BYTES

_CARD = struct.Struct(f"<QQ{IDENTITY_BYTES}s{HANDLE_BYTES}s")


@dataclass(frozen=True, slots=True)
class DeviceCard:
    """``address`` is valid in process ``pid``, ``handle`` in the others."""

    pid: int
    address: int
    identity: bytes
    handle: bytes

    def encode(self) -> bytes:
        return _CARD.pack(self.pid, self.address, self.identity, self.handle)

    @classmethod
    def decode(cls, record: bytes) -> DeviceCard:
        """Raises ChannelError for what ``encode`` can't have made."""
        if len(record) < _CARD.size:
            raise ChannelError(f"the card has {len(record)} bytes, not {_CARD.size}")
        return cls(*_CARD.unpack_from(record))
