"""Which packets of RTCP are let through: all that aiortc builds, and none on which it fails."""

from __future__ import annotations

import contextlib
import struct
from types import SimpleNamespace
from typing import cast

import pytest
from aiortc import RTCDtlsTransport, rtp
from aiortc.rtcdtlstransport import RtpRouter
from hypothesis import given
from hypothesis import strategies as st

from ithaka.server.transports.webrtc.rtcp_guard import MAX_LOST_PER_S, RtcpGuard
from ithaka.server.transports.webrtc.rtcp_packet import RtcpError, read_compound

U8, U16, U32 = st.integers(0, 255), st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1)
SSRC, OTHER = 0x1234, 0x5678


def feedback(kind: int, fmt: int, control: bytes, media_ssrc: int = SSRC) -> bytes:
    return rtp.pack_rtcp_packet(kind, fmt, struct.pack("!LL", 1, media_ssrc) + control)


def nack(*fields: tuple[int, int]) -> bytes:
    return feedback(rtp.RTCP_RTPFB, rtp.RTCP_RTPFB_NACK, b"".join(struct.pack("!HH", *field) for field in fields))


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"\x80\xc9\x00",
        bytes.fromhex("40c9000100000001"),
        bytes.fromhex("80c9000200000001"),
        bytes.fromhex("81c9000100000001"),
        bytes.fromhex("80c8000100000000"),
        bytes.fromhex("82cb0001ffffffff"),
        bytes.fromhex("81ce000100000000"),
        bytes.fromhex("a0c9000100000009"),
        bytes.fromhex("a0c9000100000000"),
        bytes.fromhex("a0c90000"),
        bytes.fromhex("8fce0004000000010000000152454d4205ffffff"),
        bytes.fromhex("8fce0003000000010000000152454d42"),
        nack((7, 0), (7, 0)),
        nack((7, 1), (8, 0)),
        nack((65_535, 1), (0, 0)),
        feedback(rtp.RTCP_PSFB, rtp.RTCP_PSFB_FIR, b""),
        feedback(rtp.RTCP_PSFB, rtp.RTCP_PSFB_FIR, bytes(12)),
    ],
)
def test_a_malformed_packet_is_refused(bad: bytes) -> None:
    with pytest.raises(RtcpError):
        read_compound(bad)


@pytest.mark.parametrize("media_ssrc", [0, SSRC])
def test_a_fir_names_its_streams_in_its_entries(media_ssrc: int) -> None:
    entries = struct.pack("!LLLL", SSRC, 1 << 24, OTHER, 2 << 24)
    fir = feedback(rtp.RTCP_PSFB, rtp.RTCP_PSFB_FIR, entries, media_ssrc)
    report = bytes(rtp.RtcpRrPacket(ssrc=1))
    assert read_compound(report + fir).key_frame_ssrcs == {SSRC, OTHER}
    assert not read_compound(report + feedback(rtp.RTCP_PSFB, rtp.RTCP_PSFB_PLI, b"")).key_frame_ssrcs


def test_lost_packets_that_are_named_once_are_counted_over_the_compound() -> None:
    lost = nack((7, 0xFFFF), (24, 1), (65_535, 1))
    assert read_compound(lost).num_lost == 21
    assert read_compound(lost + lost).num_lost == 42
    assert read_compound(bytes(rtp.RtcpRrPacket(ssrc=1))).num_lost == 0


async def test_packets_are_sent_again_at_a_bounded_rate() -> None:
    handled: list[bytes] = []
    clock = [0.0]

    async def handle(data: bytes) -> None:
        handled.append(data)

    dtls = SimpleNamespace(_handle_rtcp_data=handle, _handle_rtp_data=None)
    RtcpGuard(
        cast(RTCDtlsTransport, dtls),
        on_key_frame=lambda ssrcs: None,
        on_fault=lambda error: pytest.fail(str(error)),
        now_s=lambda: clock[0],
    )
    every = nack(*((17 * number, 0xFFFF) for number in range(MAX_LOST_PER_S // 17)))
    for _ in range(3):
        await dtls._handle_rtcp_data(every)
    assert handled == [every]
    report = bytes(rtp.RtcpRrPacket(ssrc=1))
    await dtls._handle_rtcp_data(report)
    clock[0] = 1.0
    await dtls._handle_rtcp_data(every)
    assert handled == [every, report, every]


@given(st.binary(max_size=200))
def test_nothing_else_is_raised_whatever_the_bytes(data: bytes) -> None:
    with contextlib.suppress(RtcpError):
        read_compound(data)


PARTS = st.tuples(
    st.integers(0, 63),
    st.sampled_from([200, 201, 202, 203, 204, 205, 206, 207]),
    st.one_of(
        st.integers(0, 12).flatmap(lambda words: st.binary(min_size=4 * words, max_size=4 * words)),
        st.binary(max_size=10).map(lambda rest: bytes(8) + b"REMB" + rest + bytes(-len(rest) % 4)),
    ),
)


@given(st.lists(PARTS, min_size=1, max_size=4))
def test_what_passes_is_parsed_and_routed_by_aiortc_or_found_to_be_too_odd(parts: list[tuple[int, int, bytes]]) -> None:
    data = b"".join(struct.pack("!BBH", 0x80 | flags, kind, len(body) // 4) + body for flags, kind, body in parts)
    try:
        read_compound(data)
    except RtcpError:
        return
    router = RtpRouter()
    with contextlib.suppress(ValueError):
        for packet in rtp.RtcpPacket.parse(data):
            router.route_rtcp(packet)


REPORTS = st.lists(st.builds(rtp.RtcpReceiverInfo, U32, U8, st.integers(-(2**23), 2**23 - 1), U32, U32, U32, U32), max_size=3)
INFO = st.builds(rtp.RtcpSenderInfo, st.integers(0, 2**64 - 1), U32, U32, U32)
BUILT = st.one_of(
    st.builds(rtp.RtcpByePacket, st.lists(U32, max_size=5)),
    st.builds(rtp.RtcpRrPacket, U32, REPORTS),
    st.builds(rtp.RtcpSrPacket, U32, INFO, REPORTS),
    st.builds(
        rtp.RtcpSdesPacket, st.lists(st.builds(rtp.RtcpSourceInfo, U32, st.just([(1, b"name")])), min_size=1, max_size=2)
    ),
    st.builds(rtp.RtcpRtpfbPacket, st.just(rtp.RTCP_RTPFB_NACK), U32, U32, st.sets(U16, max_size=100).map(sorted)),
    st.builds(rtp.RtcpPsfbPacket, st.just(rtp.RTCP_PSFB_PLI), U32, U32),
    st.builds(
        rtp.RtcpPsfbPacket,
        st.just(rtp.RTCP_PSFB_APP),
        U32,
        st.just(0),
        st.builds(rtp.pack_remb_fci, st.integers(0, 2**63), st.lists(U32, max_size=5)),
    ),
)


@given(st.lists(BUILT, min_size=1, max_size=4))
def test_whatever_aiortc_builds_passes(packets: list[rtp.AnyRtcpPacket]) -> None:
    data = b"".join(map(bytes, packets))
    assert not read_compound(data).key_frame_ssrcs
