"""Pictures out of RTP packets, in order and as soon as the last packet is there. Pure.

A lost packet is waited for while the frames behind it are few; then its frame is given up, and everything through the next
key frame with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

MAX_WAITING_PACKETS = 512
MAX_WAITING_FRAMES = 8
_HALF = 1 << 15
_MASK = (1 << 16) - 1


class Packet(Protocol):
    """As aiortc has it once the payload is unpacked; ``_data`` of H.264 with start codes."""

    sequence_number: int
    timestamp: int
    marker: int
    _data: bytes


class Assembler:
    """``on_picture`` gets the RTP timestamp and the bytes. ``is_key``: whether a decoder can begin with them."""

    def __init__(self, on_picture: Callable[[int, bytes], None], is_key: Callable[[bytes], bool]) -> None:
        self._on_picture = on_picture
        self._is_key = is_key
        self._packets: dict[int, Packet] = {}
        self._next: int | None = None
        self._is_broken = False

    def add(self, packet: Packet) -> tuple[bool, None]:
        """Whether a key frame is needed; the second is for a decoder that is not used."""
        number = packet.sequence_number
        if self._next is None:
            self._next = number
        if (number - self._next) & _MASK >= _HALF:
            return False, None
        self._packets[number] = packet
        self._emit()
        return self._give_up(), None

    def _emit(self) -> None:
        while (last := self._end_of_frame()) is not None:
            assert self._next is not None
            count = ((last - self._next) & _MASK) + 1
            packets = [self._packets.pop((self._next + offset) & _MASK) for offset in range(count)]
            picture = b"".join(packet._data for packet in packets)
            self._next = (last + 1) & _MASK
            if self._is_broken and not self._is_key(picture):
                continue
            self._is_broken = False
            self._on_picture(packets[0].timestamp, picture)

    def _end_of_frame(self) -> int | None:
        assert self._next is not None
        number = self._next
        while (packet := self._packets.get(number)) is not None:
            if packet.marker:
                return number
            number = (number + 1) & _MASK
        return None

    def _give_up(self) -> bool:
        """Go on behind a packet that does not come; True when it has been given up now."""
        assert self._next is not None
        ends = sorted((number - self._next) & _MASK for number, packet in self._packets.items() if packet.marker)
        if len(ends) <= MAX_WAITING_FRAMES and len(self._packets) <= MAX_WAITING_PACKETS:
            return False
        skipped = ends[0] + 1 if ends else MAX_WAITING_PACKETS
        base = self._next
        for offset in range(skipped):
            self._packets.pop((base + offset) & _MASK, None)
        self._next = (base + skipped) & _MASK
        self._is_broken = True
        self._emit()
        return True
