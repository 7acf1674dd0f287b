"""What a compound packet of RTCP has to be before anything acts on it (RFC 3550, 4585, 5104). Pure; linear in its length."""

from __future__ import annotations

import struct
from dataclasses import dataclass

HEADER_BYTES = 4
FEEDBACK_BYTES = 8
"""Who sends a feedback message, and for which stream."""
REPORT_BYTES = 24
VERSION = 2
SENDER_REPORT, RECEIVER_REPORT, BYE, TRANSPORT_FEEDBACK, PAYLOAD_FEEDBACK = 200, 201, 203, 205, 206
NACK = 1
FIR = 4
FIR_ENTRY_BYTES = 8
APPLICATION = 15
"""A payload-specific message of an application's; REMB is one."""
REMB = b"REMB"
REMB_BYTES = 8


class RtcpError(Exception):
    """What is wrong with the packet, in a few words."""


@dataclass(frozen=True, slots=True)
class Compound:
    """``key_frame_ssrcs``: the streams of which a key frame is asked for by FIR. ``num_lost``: packets that NACKs name."""

    key_frame_ssrcs: frozenset[int] = frozenset()
    num_lost: int = 0


def read_compound(data: bytes) -> Compound:
    """Raises RtcpError, and nothing else."""
    if not data:
        raise RtcpError("it is empty")
    parts: list[Compound] = []
    place = 0
    while place < len(data):
        if len(data) - place < HEADER_BYTES:
            raise RtcpError("a header is cut off")
        first, kind, num_words = struct.unpack_from("!BBH", data, place)
        place += HEADER_BYTES
        if first >> 6 != VERSION:
            raise RtcpError(f"a version is {first >> 6}")
        if 4 * num_words > len(data) - place:
            raise RtcpError("a packet is cut off")
        body = data[place : place + 4 * num_words]
        place += len(body)
        parts.append(_read(kind, first & 0x1F, _without_padding(body) if first & 0x20 else body))
    return Compound(frozenset().union(*(part.key_frame_ssrcs for part in parts)), sum(part.num_lost for part in parts))


def _without_padding(body: bytes) -> bytes:
    """Raises RtcpError."""
    if not body or not 0 < body[-1] <= len(body):
        raise RtcpError("padding is longer than what is there")
    return body[: -body[-1]]


def _read(kind: int, count: int, body: bytes) -> Compound:
    """One packet of a compound. Raises RtcpError."""
    if kind == SENDER_REPORT:
        _check_length("a sender report", body, REPORT_BYTES + REPORT_BYTES * count)
    elif kind == RECEIVER_REPORT:
        _check_length("a receiver report", body, 4 + REPORT_BYTES * count)
    elif kind == BYE:
        _check_length("BYE", body, 4 * count)
    elif kind in (TRANSPORT_FEEDBACK, PAYLOAD_FEEDBACK):
        _check_length("feedback", body, FEEDBACK_BYTES)
        control = body[FEEDBACK_BYTES:]
        if kind == TRANSPORT_FEEDBACK and count == NACK:
            return Compound(num_lost=_count_lost(control))
        elif kind == PAYLOAD_FEEDBACK and count == FIR:
            return Compound(_read_fir(control))
        elif kind == PAYLOAD_FEEDBACK and count == APPLICATION and control.startswith(REMB):
            _check_length("REMB", control, REMB_BYTES)
            _check_length("REMB", control, REMB_BYTES + 4 * control[4])
    return Compound()


def _check_length(name: str, body: bytes, least_bytes: int) -> None:
    if len(body) < least_bytes:
        raise RtcpError(f"{name} has {len(body)} bytes, not {least_bytes}")


def _count_lost(control: bytes) -> int:
    """Of a NACK; each lost packet is named once: every name costs a packet. Raises RtcpError."""
    if len(control) % 4:
        raise RtcpError("NACK names half a packet")
    named: set[int] = set()
    for first, following in struct.iter_unpack("!HH", control):
        for offset in range(17):
            if offset and not following >> (offset - 1) & 1:
                continue
            number = (first + offset) % 2**16
            if number in named:
                raise RtcpError("NACK names a packet twice")
            named.add(number)
    return len(named)


def _read_fir(control: bytes) -> frozenset[int]:
    """Raises RtcpError."""
    if not control or len(control) % FIR_ENTRY_BYTES:
        raise RtcpError("FIR has no whole number of streams")
    return frozenset(ssrc for ssrc, _ in struct.iter_unpack("!LL", control))
