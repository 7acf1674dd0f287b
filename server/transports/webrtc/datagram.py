"""What a datagram is, by its own bytes, before anything else looks at them: most ports hear strangers too. Pure.

Source: RFC 7983 (first bytes), RFC 8489 (STUN), RFC 9147 (DTLS), RFC 3550 (RTP).
"""

from __future__ import annotations

import binascii
import struct
from collections.abc import Callable, Iterator
from typing import Literal

from ithaka.server.transports.webrtc.utf8 import is_utf8

Kind = Literal["stun", "dtls", "rtp"]
"""``rtp`` is its reports too; both are still encrypted."""

MAX_DATAGRAM_BYTES = 2048
"""Nothing of WebRTC's is longer than what an Ethernet carries at once."""
DTLS_RECORD_BYTES = 13
DTLS_VERSION_MAJOR = 0xFE
RTP_BYTES = 12
STUN_BYTES = 20
STUN_COOKIE = 0x2112A442
STUN_METHODS = frozenset({1, 2, 3, 4, 6, 7, 8, 9})
FINGERPRINT = 0x8028
FINGERPRINT_XOR = 0x5354554E
_HEADER = struct.Struct("!HHI12s")
_ATTRIBUTE = struct.Struct("!HH")
_NUMBER = struct.Struct("!I")
_ADDRESS_BYTES = {1: 8, 2: 20}
"""By family, which is the second byte."""


def kind_of(data: bytes) -> Kind | None:
    """None for what no part of a connection could take; never raises."""
    if not data or len(data) > MAX_DATAGRAM_BYTES:
        return None
    first = data[0]
    if first < 4:
        return "stun" if _is_stun(data) else None
    if 20 <= first < 64:
        return "dtls" if _is_dtls(data) else None
    if 128 <= first < 192:
        return "rtp" if len(data) >= RTP_BYTES else None
    return None


def _is_dtls(data: bytes) -> bool:
    """From 32 on the short headers of version 1.3 begin, whose form only a connection knows."""
    return data[0] >= 32 or (len(data) >= DTLS_RECORD_BYTES and data[1] == DTLS_VERSION_MAJOR)


def _is_stun(data: bytes) -> bool:
    if len(data) < STUN_BYTES:
        return False
    kind, length, cookie, _ = _HEADER.unpack_from(data)
    if len(data) != STUN_BYTES + length or length % 4 or cookie != STUN_COOKIE or kind & 0x3EEF not in STUN_METHODS:
        return False
    for place, number, value in _attributes(data):
        if value is None or not _VALUES.get(number, _any)(value):
            return False
        if number == FINGERPRINT and not _is_fingerprint(data, place, value):
            return False
    return True


def _attributes(data: bytes) -> Iterator[tuple[int, int, bytes | None]]:
    """Where each begins, its type and its value; None for one that goes beyond the end."""
    place = STUN_BYTES
    while place < len(data):
        number, length = _ATTRIBUTE.unpack_from(data, place)
        begin = place + _ATTRIBUTE.size
        after = begin + length + -length % 4
        yield place, number, data[begin : begin + length] if after <= len(data) else None
        place = after


def _is_fingerprint(data: bytes, place: int, value: bytes) -> bool:
    """It is the last one, and sums up all before it; the header's length counts it already."""
    is_last = place + _ATTRIBUTE.size + len(value) == len(data)
    return is_last and _NUMBER.unpack(value)[0] == binascii.crc32(data[:place]) ^ FINGERPRINT_XOR


def _any(value: bytes) -> bool:
    return True


def _of_bytes(num_bytes: int) -> Callable[[bytes], bool]:
    return lambda value: len(value) == num_bytes


def _is_address(value: bytes) -> bool:
    return len(value) >= 4 and len(value) == _ADDRESS_BYTES.get(value[1])


def _is_error(value: bytes) -> bool:
    return len(value) >= 4 and is_utf8(value[4:])


_VALUES: dict[int, Callable[[bytes], bool]] = {
    0x0001: _is_address,  # MAPPED-ADDRESS
    0x0003: _of_bytes(4),  # CHANGE-REQUEST
    0x0004: _is_address,  # SOURCE-ADDRESS
    0x0005: _is_address,  # CHANGED-ADDRESS
    0x0006: is_utf8,  # USERNAME
    0x0008: _of_bytes(20),  # MESSAGE-INTEGRITY
    0x0009: _is_error,  # ERROR-CODE
    0x000C: _of_bytes(4),  # CHANNEL-NUMBER
    0x000D: _of_bytes(4),  # LIFETIME
    0x0012: _is_address,  # XOR-PEER-ADDRESS
    0x0014: is_utf8,  # REALM
    0x0016: _is_address,  # XOR-RELAYED-ADDRESS
    0x0019: _of_bytes(4),  # REQUESTED-TRANSPORT
    0x0020: _is_address,  # XOR-MAPPED-ADDRESS
    0x0024: _of_bytes(4),  # PRIORITY
    0x0025: _of_bytes(0),  # USE-CANDIDATE
    0x8022: is_utf8,  # SOFTWARE
    FINGERPRINT: _of_bytes(4),
    0x8029: _of_bytes(8),  # ICE-CONTROLLED
    0x802A: _of_bytes(8),  # ICE-CONTROLLING
    0x802B: _is_address,  # RESPONSE-ORIGIN
    0x802C: _is_address,  # OTHER-ADDRESS
}
