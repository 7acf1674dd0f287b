"""Which packets of SCTP are let through: all that aiortc builds, and none on which it fails."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from aiortc import rtcsctptransport as sctp
from google_crc32c import value as crc32c
from hypothesis import given
from hypothesis import strategies as st

from ithaka.server.transports.webrtc.sctp_packet import (
    MAX_COMMANDS,
    ChunkKind,
    SctpError,
    num_ahead,
    read_gaps,
    read_packet,
    read_parameters,
)

TAG = 77
U16, U32 = st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1)
PARAMETERS = st.lists(st.tuples(U16, st.binary(max_size=20)), max_size=5)
KINDS = st.one_of(st.sampled_from(list(ChunkKind)), st.integers(0, 255))


def packet(*chunks: bytes, tag: int = TAG) -> bytes:
    header, body = struct.pack("!HHL", 5000, 5000, tag), b"".join(chunks)
    return header + struct.pack("<L", crc32c(header + bytes(4) + body)) + body


def chunk(kind: int, value: bytes = b"", length: int | None = None) -> bytes:
    padding = bytes(-len(value) % 4)
    return struct.pack("!BBH", kind, 3, 4 + len(value) if length is None else length) + value + padding


def sack(*gaps: tuple[int, int], num_gaps: int | None = None) -> bytes:
    header = struct.pack("!LLHH", 1, 100_000, len(gaps) if num_gaps is None else num_gaps, 0)
    return chunk(ChunkKind.SACK, header + b"".join(struct.pack("!HH", *gap) for gap in gaps))


INIT = chunk(ChunkKind.INIT, struct.pack("!LLHHL", 1, 1, 1, 1, 1))
DATA = chunk(ChunkKind.DATA, struct.pack("!LHHL", 1, 0, 0, 51) + b"x")
SPARSE_GAPS = sack(*((0, 65_535),) * 250)


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        packet(),
        packet(DATA)[:-1],
        packet(DATA, bytes(1600)),
        packet(chunk(ChunkKind.HEARTBEAT, bytes(4))),
        packet(chunk(ChunkKind.HEARTBEAT)),
        packet(chunk(ChunkKind.HEARTBEAT, struct.pack("!HH", 1, 3))),
        packet(chunk(ChunkKind.HEARTBEAT, struct.pack("!HH", 1, 9) + bytes(4))),
        packet(chunk(ChunkKind.ABORT, bytes(4))),
        packet(chunk(ChunkKind.ERROR, bytes(4))),
        packet(chunk(ChunkKind.RE_CONFIG, bytes(4))),
        packet(chunk(ChunkKind.RE_CONFIG, struct.pack("!HH", 13, 4))),
        packet(chunk(ChunkKind.RE_CONFIG, struct.pack("!HHLLLBxxx", 13, 17, 1, 1, 1, 1))),
        packet(chunk(ChunkKind.RE_CONFIG, struct.pack("!HHL", 16, 8, 1))),
        packet(SPARSE_GAPS),
        packet(sack((1, 2), num_gaps=2)),
        packet(sack((2, 1))),
        packet(sack((0, 1))),
        packet(sack((1, 3), (3, 4))),
        packet(chunk(ChunkKind.DATA, bytes(12))),
        packet(chunk(ChunkKind.DATA, length=3)),
        packet(chunk(ChunkKind.DATA, length=400)),
        packet(chunk(ChunkKind.FORWARD_TSN, bytes(6))),
        packet(chunk(ChunkKind.SHUTDOWN, bytes(3))),
        packet(chunk(ChunkKind.COOKIE_ACK, bytes(4))),
        packet(INIT, INIT, tag=0),
        packet(INIT, DATA, tag=0),
        packet(INIT),
        packet(DATA, tag=0),
        packet(chunk(ChunkKind.INIT), tag=0),
        packet(chunk(ChunkKind.INIT, bytes(16)), tag=0),
        packet(*[chunk(ChunkKind.HEARTBEAT, struct.pack("!HH", 1, 4))] * (MAX_COMMANDS + 1)),
        *(
            packet(chunk(kind, bytes(num)), tag=0 if kind == ChunkKind.INIT else TAG)
            for kind in (ChunkKind.DATA, ChunkKind.INIT, ChunkKind.INIT_ACK, ChunkKind.SACK, ChunkKind.FORWARD_TSN)
            for num in (0, 1, 3)
        ),
    ],
)
def test_a_malformed_packet_is_refused(bad: bytes) -> None:
    with pytest.raises(SctpError):
        read_packet(bad)


def test_a_changed_byte_is_noticed() -> None:
    good = packet(DATA)
    assert read_packet(good).chunks[0].kind == ChunkKind.DATA
    for place in range(len(good)):
        changed = bytearray(good)
        changed[place] ^= 1
        with pytest.raises(SctpError):
            read_packet(bytes(changed))


def test_data_may_come_with_what_a_peer_bundles() -> None:
    read = read_packet(packet(chunk(ChunkKind.COOKIE_ECHO, b"cookie"), DATA, DATA))
    assert [one.kind for one in read.chunks] == [ChunkKind.COOKIE_ECHO, ChunkKind.DATA, ChunkKind.DATA]
    assert read.tag == TAG


@given(st.binary(max_size=1600))
def test_nothing_else_is_raised_whatever_the_bytes(data: bytes) -> None:
    for read in (read_packet, read_parameters, read_gaps):
        try:
            read(data)
        except SctpError:
            continue


@given(st.lists(st.tuples(KINDS, st.binary(max_size=64), st.none() | U16), max_size=6), st.sampled_from([0, TAG]))
def test_what_passes_is_parsed_by_aiortc(chunks: list[tuple[int, bytes, int | None]], tag: int) -> None:
    """A packet on which its parser would never end doesn't get to it."""
    data = packet(*(chunk(*one) for one in chunks), tag=tag)
    try:
        read = read_packet(data)
    except SctpError:
        return
    _, _, parsed_tag, parsed = sctp.parse_packet(data)
    assert parsed_tag == read.tag
    known = [one.kind for one in read.chunks if one.kind in sctp.CHUNK_TYPES]
    assert [one.type for one in parsed] == known


@st.composite
def built(draw: st.DrawFn) -> sctp.Chunk:
    """A chunk as aiortc builds it."""
    made: Any = draw(st.sampled_from(sctp.CHUNK_CLASSES))()
    if isinstance(made, sctp.DataChunk):
        made.tsn, made.stream_id, made.stream_seq, made.protocol = draw(U32), draw(U16), draw(U16), draw(U32)
        made.user_data = draw(st.binary(min_size=1, max_size=sctp.USERDATA_MAX_LENGTH))
    elif isinstance(made, sctp.BaseInitChunk):
        made.initiate_tag, made.advertised_rwnd, made.initial_tsn = draw(st.integers(1, 2**32 - 1)), draw(U32), draw(U32)
        made.outbound_streams, made.inbound_streams = draw(st.integers(1, 65_535)), draw(st.integers(1, 65_535))
        made.params = draw(PARAMETERS)
    elif isinstance(made, sctp.SackChunk):
        made.cumulative_tsn, made.advertised_rwnd = draw(U32), draw(U32)
        edges = sorted(draw(st.sets(st.integers(1, 65_535), max_size=40)))
        gaps = list(zip(edges[::2], edges[1::2], strict=False))
        turned = draw(st.integers(0, len(gaps)))
        made.gaps = gaps[turned:] + gaps[:turned]
        made.duplicates = draw(st.lists(U32, max_size=20))
    elif isinstance(made, sctp.ForwardTsnChunk):
        made.cumulative_tsn, made.streams = draw(U32), draw(st.lists(st.tuples(U16, U16), max_size=10))
    elif isinstance(made, sctp.HeartbeatAckChunk | sctp.HeartbeatChunk):
        made.params = draw(PARAMETERS.filter(bool))
    elif isinstance(made, sctp.ErrorChunk | sctp.AbortChunk):
        made.params = draw(PARAMETERS)
    elif isinstance(made, sctp.ShutdownChunk):
        made.cumulative_tsn = draw(U32)
    elif isinstance(made, sctp.CookieEchoChunk):
        made.body = draw(st.binary(max_size=100))
    elif isinstance(made, sctp.ReconfigChunk):
        made.params = [draw(resets())]
    return made  # type: ignore[no-any-return]


@st.composite
def resets(draw: st.DrawFn) -> tuple[int, bytes]:
    reset: Any = draw(
        st.one_of(
            st.builds(sctp.StreamResetOutgoingParam, U32, U32, U32, st.lists(U16, max_size=sctp.RECONFIG_MAX_STREAMS)),
            st.builds(sctp.StreamAddOutgoingParam, U32, U16),
            st.builds(sctp.StreamResetResponseParam, U32, U32),
        )
    )
    return next(kind for kind, cls in sctp.RECONFIG_PARAM_TYPES.items() if isinstance(reset, cls)), bytes(reset)


@given(built())
def test_whatever_aiortc_builds_passes(made: sctp.Chunk) -> None:
    tag = 0 if isinstance(made, sctp.InitChunk) else TAG
    read = read_packet(sctp.serialize_packet(5000, 5000, tag, made))
    assert (read.tag, [one.kind for one in read.chunks]) == (tag, [made.type])


@given(U32, st.integers(0, 2**31 - 1))
def test_serial_numbers_turn(known: int, ahead: int) -> None:
    assert num_ahead((known + ahead) % 2**32, known) == ahead
