"""What a peer sends that means ill, inside a DTLS association of its own."""

from __future__ import annotations

import asyncio
import itertools
import struct

from aiortc import RTCDtlsTransport, RTCSctpTransport
from aiortc.rtcsctptransport import DataChunk, InitAckChunk, InitChunk
from google_crc32c import value as crc32c

from tests.rtc_peer import RtcPeer

DATA, INIT, INIT_ACK, SACK, HEARTBEAT, SHUTDOWN_ACK, ERROR = 0, 1, 2, 3, 4, 8, 9
COOKIE_ECHO, COOKIE_ACK, RE_CONFIG, FORWARD_TSN = 10, 11, 130, 192
TEXT, DCEP = 51, 50
RE_CONFIG = 130
FIRST, LAST = 2, 1
REMB_WITHOUT_SSRCS = bytes.fromhex("8fce0004000000010000000152454d4205ffffff")
ODD_RTCP = (
    REMB_WITHOUT_SSRCS,
    bytes.fromhex("8fce0003000000010000000152454d42"),
    bytes.fromhex("80c8000100000000"),
    bytes.fromhex("81ce00020000000000000000"),
    bytes.fromhex("81cd00020000000100000001"),
    bytes.fromhex("9fc9000100000001"),
    bytes.fromhex("8fca0001ffffffff"),
    bytes.fromhex("81cb0001ffffffff"),
    bytes.fromhex("84ce00020000000100000001"),
)
ODD_RTP = (
    b"\x80\x60" + bytes(10),
    b"\x90\x60" + bytes(10) + bytes.fromhex("bede0001ffffffff"),
)


def sctp_of(peer: RtcPeer) -> RTCSctpTransport:
    assert peer.connection.sctp is not None
    return peer.connection.sctp


def dtls_of(peer: RtcPeer) -> RTCDtlsTransport:
    return sctp_of(peer).transport


def chunk(kind: int, value: bytes = b"", flags: int = 3) -> bytes:
    return struct.pack("!BBH", kind, flags, 4 + len(value)) + value + bytes(-len(value) % 4)


def packet(tag: int, *chunks: bytes) -> bytes:
    header, body = struct.pack("!HHL", 5000, 5000, tag), b"".join(chunks)
    return header + struct.pack("<L", crc32c(header + bytes(4) + body)) + body


def endless_parameter() -> bytes:
    return chunk(HEARTBEAT, bytes(4))


def wide_sack(peer: RtcPeer, num_gaps: int = 250) -> bytes:
    known = sctp_of(peer)._last_received_tsn
    return chunk(SACK, struct.pack("!LLHH", known, 100_000, num_gaps, 0) + struct.pack("!HH", 0, 65_535) * num_gaps)


def data(tsn: int, stream_id: int, text: bytes, *, protocol: int = TEXT, flags: int = FIRST | LAST) -> bytes:
    return chunk(DATA, struct.pack("!LHHL", tsn % 2**32, stream_id, 0, protocol) + text, flags)


async def send(peer: RtcPeer, *chunks: bytes, tag: int | None = None) -> None:
    """``tag`` None: the right one."""
    right = sctp_of(peer)._remote_verification_tag
    await dtls_of(peer)._send_data(packet(right if tag is None else tag, *chunks))
    await asyncio.sleep(0)


async def send_everything_odd(peer: RtcPeer) -> None:
    """Nothing of which is to have any effect."""
    await send(peer, endless_parameter(), tag=0)
    await send(peer, endless_parameter())
    await send(peer, wide_sack(peer))
    kinds = (DATA, INIT, INIT_ACK, SACK, HEARTBEAT, 5, ERROR, COOKIE_ECHO, COOKIE_ACK, 12, 13, 15, RE_CONFIG, FORWARD_TSN)
    bodies = (b"", b"\0", b"\xff" * 3, b"\xff" * 12, bytes(16), bytes(40))
    for kind, body in itertools.product(kinds, bodies):
        await send(peer, chunk(kind, body), tag=0 if kind == INIT else None)
    for parameter in (b"\0\x0d\0\x04", b"\0\x0d\0\x05\0", b"\0\x10\0\x04", b"\0\x11\0\x04"):
        await send(peer, chunk(RE_CONFIG, parameter))
    await send(peer, chunk(INIT, struct.pack("!LLHHL", 1, 1, 1, 1, 1)) * 2, tag=0)
    for made in (InitChunk(), InitAckChunk()):
        made.initiate_tag, made.outbound_streams, made.inbound_streams, made.initial_tsn = 1, 1, 1, 1
        await send(peer, bytes(made), tag=0 if isinstance(made, InitChunk) else None)
    await sctp_of(peer)._send(11, DCEP, b"\2")
    for odd in (*ODD_RTCP, *ODD_RTP):
        await dtls_of(peer)._send_rtp(odd)


async def send_bundled(peer: RtcPeer, *packets: bytes) -> None:
    """Each in a record of its own, all in one datagram."""
    dtls = dtls_of(peer)
    assert dtls._ssl is not None
    for one in packets:
        dtls._ssl.send(one)
    await dtls.transport._send(dtls._ssl.bio_read(65_000))


async def send_scattered(peer: RtcPeer, num: int) -> None:
    """Middles of messages under every other TSN, so that none of them can be given on."""
    assert peer.channel is not None and isinstance(peer.channel.id, int)
    first = sctp_of(peer)._local_tsn + 1
    for start in range(0, num, 32):
        tsns = range(first + 2 * start, first + 2 * (start + 32), 2)
        await send(peer, *(data(tsn, peer.channel.id, b"x", flags=0) for tsn in tsns))


async def send_endless(peer: RtcPeer, num_bytes: int) -> None:
    """A message that has begun and does not end, as fast as the other side takes it."""
    assert peer.channel is not None and isinstance(peer.channel.id, int)
    sctp = sctp_of(peer)
    await sctp._send(peer.channel.id, TEXT, bytes(num_bytes))
    if sctp._outbound_queue:
        last: DataChunk = sctp._outbound_queue[-1]
        last.flags &= ~LAST
