"""What a packet of SCTP has to be before anything acts on it (RFC 9260, RFC 3758, RFC 6525). Pure; linear in its length.

Chunks of kinds that nobody here knows pass as they are: who receives them leaves them out.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from google_crc32c import value as crc32c

COMMON_HEADER_BYTES = 12
HEADER_BYTES = 4
"""Of a chunk, and of a parameter."""
DATA_HEADER_BYTES = 12
INIT_BYTES = 16
SACK_BYTES = 12
MAX_PACKET_BYTES = 1500
"""As much as DTLS hands over at once."""
MAX_COMMANDS = 8
"""Chunks of a packet beside DATA; each may be answered by a packet of its own."""
MAX_SERIAL_AHEAD = 2**31
"""Of two serial numbers (RFC 1982) this far apart and more, the second one is the older."""


class ChunkKind(enum.IntEnum):
    DATA = 0
    INIT = 1
    INIT_ACK = 2
    SACK = 3
    HEARTBEAT = 4
    HEARTBEAT_ACK = 5
    ABORT = 6
    SHUTDOWN = 7
    SHUTDOWN_ACK = 8
    ERROR = 9
    COOKIE_ECHO = 10
    COOKIE_ACK = 11
    SHUTDOWN_COMPLETE = 14
    RE_CONFIG = 130
    FORWARD_TSN = 192


class ResetKind(enum.IntEnum):
    """Parameters of RE-CONFIG that are acted on."""

    OUTGOING_RESET = 13
    RESPONSE = 16
    ADD_OUTGOING = 17


ALONE = frozenset({ChunkKind.INIT, ChunkKind.INIT_ACK, ChunkKind.SHUTDOWN_COMPLETE})
RESET_BYTES: Mapping[int, int] = {ResetKind.OUTGOING_RESET: 12, ResetKind.RESPONSE: 8, ResetKind.ADD_OUTGOING: 8}


class SctpError(Exception):
    """What is wrong with the packet, in a few words."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """``value`` is what follows the chunk's header, without padding."""

    kind: int
    value: bytes


@dataclass(frozen=True, slots=True)
class Packet:
    tag: int
    chunks: tuple[Chunk, ...]


def read_packet(data: bytes) -> Packet:
    """Raises SctpError, and nothing else."""
    if not COMMON_HEADER_BYTES + HEADER_BYTES <= len(data) <= MAX_PACKET_BYTES:
        raise SctpError(f"it has {len(data)} bytes")
    (tag,) = struct.unpack_from("!L", data, 4)
    (checksum,) = struct.unpack_from("<L", data, 8)
    if checksum != crc32c(data[:8] + bytes(4) + data[COMMON_HEADER_BYTES:]):
        raise SctpError("its checksum is wrong")
    chunks = _chunks(data)
    kinds = [chunk.kind for chunk in chunks]
    if len(kinds) > 1 and not ALONE.isdisjoint(kinds):
        raise SctpError("a chunk that comes alone has company")
    if len(kinds) - kinds.count(ChunkKind.DATA) > MAX_COMMANDS:
        raise SctpError(f"it has more than {MAX_COMMANDS} chunks beside data")
    if (ChunkKind.INIT in kinds) != (tag == 0):
        raise SctpError("a tag of 0 goes with INIT, and with nothing else")
    return Packet(tag, chunks)


def read_parameters(data: bytes) -> tuple[tuple[int, bytes], ...]:
    """Type and value of each. Raises SctpError, and nothing else."""
    found, place = [], 0
    while place < len(data):
        if len(data) - place < HEADER_BYTES:
            raise SctpError("a parameter is cut off")
        kind, length = struct.unpack_from("!HH", data, place)
        if not HEADER_BYTES <= length <= len(data) - place:
            raise SctpError(f"a parameter has a length of {length}")
        found.append((kind, data[place + HEADER_BYTES : place + length]))
        place += _padded(length)
    return tuple(found)


def read_gaps(value: bytes) -> tuple[tuple[int, int], ...]:
    """First and last TSN of each gap block of a SACK, counted from its cumulative TSN. Raises SctpError, and nothing else.

    They have to be apart; their order is left open, since a sender that sorts TSNs turns it where these begin anew at 0.
    """
    if len(value) < SACK_BYTES:
        raise SctpError("SACK is too short")
    num_gaps, num_duplicates = struct.unpack_from("!HH", value, 8)
    if len(value) != SACK_BYTES + 4 * (num_gaps + num_duplicates):
        raise SctpError("SACK has another length than it says")
    gaps = tuple(struct.iter_unpack("!HH", value[SACK_BYTES : SACK_BYTES + 4 * num_gaps]))
    last_end = 0
    for start, end in sorted(gaps):
        if not last_end < start <= end:
            raise SctpError("gap blocks of SACK overlap, or are none")
        last_end = end
    return gaps


def num_ahead(number: int, known: int) -> int:
    """How far a serial number of 32 bits lies beyond a known one; ``MAX_SERIAL_AHEAD`` and more where it is older."""
    return (number - known) % 2**32


def _chunks(data: bytes) -> tuple[Chunk, ...]:
    """Raises SctpError."""
    found, place = [], COMMON_HEADER_BYTES
    while place < len(data):
        if len(data) - place < HEADER_BYTES:
            raise SctpError("a chunk is cut off")
        kind, _, length = struct.unpack_from("!BBH", data, place)
        if not HEADER_BYTES <= length <= len(data) - place:
            raise SctpError(f"a chunk has a length of {length}")
        value = data[place + HEADER_BYTES : place + length]
        check = _CHECKS.get(kind)
        if check is not None:
            check(value)
        found.append(Chunk(kind, value))
        place += _padded(length)
    return tuple(found)


def _padded(length: int) -> int:
    return (length + 3) // 4 * 4


def _check_data(value: bytes) -> None:
    if len(value) <= DATA_HEADER_BYTES:
        raise SctpError("DATA is empty")


def _check_init(value: bytes) -> None:
    if len(value) < INIT_BYTES:
        raise SctpError("INIT is too short")
    tag, _, num_outbound, num_inbound = struct.unpack_from("!LLHH", value)
    if not tag or not num_outbound or not num_inbound:
        raise SctpError("INIT names no tag or no streams")
    read_parameters(value[INIT_BYTES:])


def _check_heartbeat(value: bytes) -> None:
    if not read_parameters(value):
        raise SctpError("HEARTBEAT is empty")


def _check_shutdown(value: bytes) -> None:
    if len(value) != 4:
        raise SctpError("SHUTDOWN has another length than 8")


def _check_nothing(value: bytes) -> None:
    if value:
        raise SctpError("a chunk without a value has one")


def _check_re_config(value: bytes) -> None:
    for kind, parameter in read_parameters(value):
        if len(parameter) < RESET_BYTES.get(kind, 0):
            raise SctpError("a parameter of RE-CONFIG is too short")
        if kind == ResetKind.OUTGOING_RESET and len(parameter) % 2:
            raise SctpError("RE-CONFIG names half a stream")


def _check_forward_tsn(value: bytes) -> None:
    if len(value) < 4 or len(value) % 4:
        raise SctpError("FORWARD-TSN has no whole number of streams")


_CHECKS: Mapping[int, Callable[[bytes], object]] = {
    ChunkKind.DATA: _check_data,
    ChunkKind.INIT: _check_init,
    ChunkKind.INIT_ACK: _check_init,
    ChunkKind.SACK: read_gaps,
    ChunkKind.HEARTBEAT: _check_heartbeat,
    ChunkKind.HEARTBEAT_ACK: read_parameters,
    ChunkKind.ABORT: read_parameters,
    ChunkKind.SHUTDOWN: _check_shutdown,
    ChunkKind.SHUTDOWN_ACK: _check_nothing,
    ChunkKind.ERROR: read_parameters,
    ChunkKind.COOKIE_ACK: _check_nothing,
    ChunkKind.SHUTDOWN_COMPLETE: _check_nothing,
    ChunkKind.RE_CONFIG: _check_re_config,
    ChunkKind.FORWARD_TSN: _check_forward_tsn,
}
