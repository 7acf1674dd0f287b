"""Stands between DTLS and aiortc's SCTP: what a peer sends there is looked at before anything is done or kept for it.

A packet that is malformed, or that belongs to another moment of the association, is dropped, as one that never came. A peer
that keeps to the form and asks for too much is refused: it is told so, and its connection ends.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from aiortc import RTCSctpTransport

from ithaka.server.errors import ProtocolViolation
from ithaka.server.transports.webrtc.sctp_packet import (
    MAX_SERIAL_AHEAD,
    Chunk,
    ChunkKind,
    Packet,
    SctpError,
    num_ahead,
    read_gaps,
    read_packet,
)
from ithaka.server.transports.webrtc.utf8 import is_utf8

MAX_STREAMS = 64
"""With something on them at once; a page needs one."""
MAX_CHUNKS_AHEAD = 256
"""Of the first one that is missing; later ones have to come again."""
MIN_PIECE_BYTES = 512
"""What a peer that cuts messages puts into one chunk at least, taken over a whole message."""
DCEP, TEXT = 50, 51
"""What a message is, in the words of SCTP (RFC 8831)."""
OPEN, ACK = 3, 2
"""Messages of DCEP, the protocol that opens data channels (RFC 8832)."""
OPEN_BYTES = 12
MAX_LABEL_BYTES = 1024
"""And of a protocol's name, together."""
BEGINNING_STATES = frozenset({"COOKIE_WAIT", "COOKIE_ECHOED"})
"""Those of an association that is not up yet; one that is, is not begun anew."""
NAMES = (
    "_advertised_rwnd",
    "_association_state",
    "_data_channels",
    "_handle_data",
    "_inbound_streams",
    "_last_received_tsn",
    "_local_tsn",
    "_local_verification_tag",
    "_receive",
    "_sack_misordered",
)
"""Of aiortc's own, that are used here."""


class SctpGuard:
    """``on_refused`` is called once, ``on_fault`` whenever aiortc fails on what passed."""

    def __init__(
        self,
        sctp: RTCSctpTransport,
        *,
        max_message_bytes: int,
        on_refused: Callable[[ProtocolViolation], None],
        on_fault: Callable[[Exception], None],
    ) -> None:
        self._sctp = sctp
        self._max_message_bytes = max_message_bytes
        self._max_chunks = MAX_CHUNKS_AHEAD + max_message_bytes // MIN_PIECE_BYTES
        self._window_bytes = sctp._advertised_rwnd
        self._on_refused = on_refused
        self._on_fault = on_fault
        self._is_refused = False
        self._handle = sctp._handle_data
        self._deliver = sctp._receive
        sctp._handle_data = self._handle_data  # type: ignore[method-assign]
        sctp._receive = self._receive  # type: ignore[method-assign]

    async def _handle_data(self, data: bytes) -> None:
        try:
            packet = read_packet(data)
        except SctpError:
            return
        if not self._belongs(packet):
            return
        try:
            await self._handle(data)
        except ConnectionError:
            raise
        except Exception as error:
            self._on_fault(error)
            return
        self._look_at_what_is_held()

    async def _receive(self, stream_id: int, pp_id: int, data: bytes) -> None:
        """One whole message."""
        if self._is_refused:
            return
        if len(data) > self._max_message_bytes:
            self._refuse_long_message()
        elif pp_id == DCEP:
            await self._receive_opening(stream_id, data)
        elif pp_id == TEXT and not is_utf8(data):
            self._refuse("a text message has to be UTF-8")
        else:
            await self._deliver(stream_id, pp_id, data)

    async def _receive_opening(self, stream_id: int, message: bytes) -> None:
        kind = message[0]
        is_known = stream_id in self._sctp._data_channels
        if kind == OPEN and is_known:
            self._refuse(f"the data channel of stream {stream_id} is open already")
        elif kind == OPEN and len(self._sctp._data_channels) >= MAX_STREAMS:
            # Its stream may be reset and forgotten; the channel is not.
            self._refuse_channel()
        elif kind == OPEN and len(message) > OPEN_BYTES + MAX_LABEL_BYTES:
            self._refuse(f"a data channel's label and protocol have at most {MAX_LABEL_BYTES} bytes")
        elif kind == OPEN and not _is_opening(message):
            self._refuse("a data channel's label and protocol have to be there, in UTF-8")
        elif kind != ACK or is_known:
            await self._deliver(stream_id, DCEP, message)

    def _belongs(self, packet: Packet) -> bool:
        """Whether the association, as it is now, may see this packet."""
        sctp = self._sctp
        is_init = packet.chunks[0].kind == ChunkKind.INIT
        if not is_init and packet.tag != sctp._local_verification_tag:
            return False
        if sctp._association_state is sctp.State.CLOSED:
            return False
        return all(self._chunk_belongs(chunk) for chunk in packet.chunks) and not self._opens_too_much(packet)

    def _chunk_belongs(self, chunk: Chunk) -> bool:
        sctp = self._sctp
        if chunk.kind in (ChunkKind.INIT, ChunkKind.INIT_ACK):
            # With data there, it would begin its count anew and take the same data twice.
            return sctp._association_state.name in BEGINNING_STATES and not sctp._inbound_streams
        if chunk.kind == ChunkKind.SACK:
            return self._was_sent(chunk.value)
        if chunk.kind in (ChunkKind.DATA, ChunkKind.FORWARD_TSN):
            known = sctp._last_received_tsn
            if known is None or self._is_refused:
                return False
            (tsn,) = struct.unpack_from("!L", chunk.value)
            return not MAX_CHUNKS_AHEAD < num_ahead(tsn, known) < MAX_SERIAL_AHEAD
        return True

    def _was_sent(self, sack: bytes) -> bool:
        """Whether everything that it acknowledges was given to SCTP."""
        (cumulative,) = struct.unpack_from("!L", sack)
        num_later = num_ahead(self._sctp._local_tsn - 1, cumulative)
        furthest = max((end for _, end in read_gaps(sack)), default=0)
        return furthest <= num_later < MAX_SERIAL_AHEAD

    def _opens_too_much(self, packet: Packet) -> bool:
        """Refuses where it does."""
        named = {stream for chunk in packet.chunks for stream in _streams(chunk)}
        if len(named | self._sctp._inbound_streams.keys()) <= MAX_STREAMS or not named - self._sctp._inbound_streams.keys():
            return False
        self._refuse_channel()
        return True

    def _look_at_what_is_held(self) -> None:
        """Refuses where messages grow without end."""
        sctp = self._sctp
        num_bytes = self._window_bytes - sctp._advertised_rwnd
        if num_bytes > self._max_message_bytes and not sctp._sack_misordered:
            self._refuse_long_message()
        elif sum(len(stream.reassembly) for stream in sctp._inbound_streams.values()) > self._max_chunks:
            self._refuse(f"more than {self._max_chunks} pieces of messages wait for the rest")

    def _refuse_channel(self) -> None:
        self._refuse(f"a connection has at most {MAX_STREAMS} data channels")

    def _refuse_long_message(self) -> None:
        self._refuse(f"a message has at most {self._max_message_bytes} bytes")

    def _refuse(self, why: str) -> None:
        if not self._is_refused:
            self._is_refused = True
            self._on_refused(ProtocolViolation("message_invalid", why))


def missing_names() -> list[str]:
    """Of aiortc's private ones, what this version lacks."""
    present = {*vars(RTCSctpTransport), *RTCSctpTransport.__init__.__code__.co_names}
    return [name for name in NAMES if name not in present]


def _streams(chunk: Chunk) -> list[int]:
    if chunk.kind == ChunkKind.DATA:
        return [*struct.unpack_from("!H", chunk.value, 4)]
    if chunk.kind == ChunkKind.FORWARD_TSN:
        return [stream for stream, _ in struct.iter_unpack("!HH", chunk.value[4:])]
    return []


def _is_opening(message: bytes) -> bool:
    if len(message) < OPEN_BYTES:
        return False
    num_label, num_protocol = struct.unpack_from("!HH", message, 8)
    label, protocol = message[OPEN_BYTES : OPEN_BYTES + num_label], message[OPEN_BYTES + num_label :][:num_protocol]
    return len(label) + len(protocol) == num_label + num_protocol and is_utf8(label) and is_utf8(protocol)
