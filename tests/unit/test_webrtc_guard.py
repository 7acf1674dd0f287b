"""What comes through DTLS and means ill: no effect where it is malformed, an error where it asks for too much."""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiortc import RTCDtlsTransport, RTCSctpTransport
from tests import rtc_hostile as hostile
from tests.rtc_peer import RtcPeer
from tests.rtc_served import controller, until_decoded
from tests.served import Served, config_for, served

from ithaka.server.transports.webrtc.guard import AiortcError, check_aiortc
from ithaka.server.transports.webrtc.sctp_guard import MAX_CHUNKS_AHEAD, MAX_LABEL_BYTES, MAX_STREAMS

MAX_MESSAGE_BYTES = 4096


def sctp_here(server: Served) -> RTCSctpTransport:
    """The server's side of the one connection."""
    (connection,) = server.services.rtc._connections.values()
    sctp = connection.link._connection.sctp
    assert sctp is not None
    return sctp


async def still_speaks(server: Served, session: dict[str, Any], peer: RtcPeer) -> None:
    frame = await peer.frame()
    await peer.say("ack", received_through=frame.seq, decoded_through=frame.seq)
    await until_decoded(server, session, frame.seq)


def complaints(server: Served) -> list[Any]:
    return [line for line in server.logs if line["log_level"] in ("warning", "error", "critical")]


async def test_what_is_malformed_has_no_effect(caplog: pytest.LogCaptureFixture) -> None:
    async with served() as server:
        session = await server.create()
        async with controller(server, session) as peer:
            await peer.greet()
            await hostile.send_everything_odd(peer)
            await still_speaks(server, session, peer)
        assert not complaints(server)
    assert not caplog.records


async def test_what_lies_far_beyond_a_gap_is_not_kept() -> None:
    async with served() as server:
        session = await server.create()
        async with controller(server, session) as peer:
            await peer.greet()
            await peer.frame()
            await hostile.send_scattered(peer, 4 * MAX_CHUNKS_AHEAD)
            sctp = sctp_here(server)
            num_streams = sctp._inbound_streams_count
            # When this one is there, those before it were.
            await hostile.send(peer, hostile.chunk(hostile.RE_CONFIG, struct.pack("!HHLHH", 17, 12, 1, 1, 0)))
            await server.until(lambda: sctp._inbound_streams_count > num_streams)
            assert len(sctp._sack_misordered) == MAX_CHUNKS_AHEAD // 2
            assert sum(len(one.reassembly) for one in sctp._inbound_streams.values()) == MAX_CHUNKS_AHEAD // 2


async def test_every_record_of_a_datagram_is_taken() -> None:
    """None stays behind for ever: the last one of the last datagram is answered at once."""
    async with served() as server:
        session = await server.create()
        async with controller(server, session) as peer:
            await peer.greet()
            await peer.frame()
            sctp = sctp_here(server)
            num_streams, tag = sctp._inbound_streams_count, sctp._local_verification_tag
            more = hostile.chunk(hostile.RE_CONFIG, struct.pack("!HHLHH", 17, 12, 1, 1, 0))
            for _ in range(5):
                await hostile.send_bundled(peer, *[b"nothing"] * 20, hostile.packet(tag, more), b"nothing")
            await server.until(lambda: sctp._inbound_streams_count == num_streams + 5)


async def not_utf8(peer: RtcPeer) -> None:
    await hostile.sctp_of(peer)._send(channel_id(peer), hostile.TEXT, b"\xff\xfe{")


async def long_message(peer: RtcPeer) -> None:
    await hostile.sctp_of(peer)._send(channel_id(peer), hostile.TEXT, bytes(MAX_MESSAGE_BYTES + 1))


async def endless_message(peer: RtcPeer) -> None:
    await hostile.send_endless(peer, 1024 * 1024)


async def endless_message_in_crumbs(peer: RtcPeer) -> None:
    first = hostile.sctp_of(peer)._local_tsn
    for start in range(0, 600, 40):
        chunks = [
            hostile.data(first + number, channel_id(peer), b"x", flags=0 if number else hostile.FIRST)
            for number in range(start, start + 40)
        ]
        await hostile.send(peer, *chunks)


async def second_opening(peer: RtcPeer) -> None:
    await hostile.sctp_of(peer)._send(channel_id(peer), hostile.DCEP, opening(b"x"))


async def label_that_is_no_text(peer: RtcPeer) -> None:
    await hostile.sctp_of(peer)._send(channel_id(peer) + 2, hostile.DCEP, opening(b"\xff\xfe"))


async def long_label(peer: RtcPeer) -> None:
    await hostile.sctp_of(peer)._send(channel_id(peer) + 2, hostile.DCEP, opening(bytes(MAX_LABEL_BYTES + 1)))


async def many_channels_of_reset_streams(peer: RtcPeer) -> None:
    """Each stream is forgotten before the next begins, and the server's own resets are never answered."""
    sctp = hostile.sctp_of(peer)

    async def never_answer(param: object) -> None:
        pass

    async def receive_text(stream_id: int, pp_id: int, data: bytes) -> None:
        if pp_id == hostile.TEXT:
            await receive(stream_id, pp_id, data)

    receive = sctp._data_channel_receive
    sctp._data_channel_receive = receive_text  # type: ignore[method-assign]
    sctp._receive_reconfig_param = never_answer  # type: ignore[method-assign]
    first, reset = sctp._local_tsn, sctp._reconfig_request_seq
    for number in range(MAX_STREAMS):
        stream = channel_id(peer) + 2 * (number + 1)
        await hostile.send(peer, hostile.data(first + number, stream, opening(b"x"), protocol=hostile.DCEP))
        body = struct.pack("!HHLLLHxx", 13, 18, reset + number, 0, first + number, stream)
        await hostile.send(peer, hostile.chunk(hostile.RE_CONFIG, body, flags=0))


async def cut_opening(peer: RtcPeer) -> None:
    await hostile.sctp_of(peer)._send(channel_id(peer) + 2, hostile.DCEP, opening(b"label")[:-1])


async def many_streams(peer: RtcPeer) -> None:
    first = hostile.sctp_of(peer)._local_tsn
    for number in range(MAX_STREAMS):
        await hostile.send(peer, hostile.data(first + number, channel_id(peer) + 2 * (number + 1), b"x"))


async def many_forgotten_streams(peer: RtcPeer) -> None:
    streams = b"".join(struct.pack("!HH", number, 0) for number in range(100, 100 + MAX_STREAMS))
    tsn = hostile.sctp_of(peer)._local_tsn
    await hostile.send(peer, hostile.chunk(hostile.FORWARD_TSN, struct.pack("!L", tsn) + streams))


def opening(label: bytes) -> bytes:
    return struct.pack("!BBHLHH", 3, 0, 0, 0, len(label), 0) + label


def channel_id(peer: RtcPeer) -> int:
    assert peer.channel is not None and isinstance(peer.channel.id, int)
    return peer.channel.id


@pytest.mark.parametrize(
    ("ask", "why"),
    [
        (not_utf8, "UTF-8"),
        (long_message, f"at most {MAX_MESSAGE_BYTES} bytes"),
        (endless_message, f"at most {MAX_MESSAGE_BYTES} bytes"),
        (endless_message_in_crumbs, "pieces of messages"),
        (second_opening, "open already"),
        (label_that_is_no_text, "label"),
        (long_label, "label"),
        (cut_opening, "label"),
        (many_channels_of_reset_streams, f"at most {MAX_STREAMS} data channels"),
        (many_streams, f"at most {MAX_STREAMS} data channels"),
        (many_forgotten_streams, f"at most {MAX_STREAMS} data channels"),
    ],
)
async def test_who_asks_for_too_much_is_told_so(
    ask: Callable[[RtcPeer], Awaitable[None]], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(config_for(server={"max_body_bytes": MAX_MESSAGE_BYTES})) as server:
        session = await server.create()
        async with controller(server, session) as peer:
            await peer.greet()
            await peer.frame()
            await ask(peer)
            error = await peer.expect_error()
            assert error["code"] == "message_invalid" and why in error["message"]
            await server.until(lambda: server.services.rtc.num_open == 0)
            await peer.closed()
        assert (await server.look(session["id"]))["state"] == "detached"
        assert not complaints(server)
    assert not caplog.records


async def test_what_aiortc_fails_on_all_the_same_ends_the_connection_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    async with served() as server:
        session = await server.create()
        async with controller(server, session) as peer:
            await peer.greet()
            await peer.frame()
            sctp = sctp_here(server)

            async def fail(chunk: object) -> None:
                raise AssertionError("out of its depth")

            sctp._receive_chunk = fail  # type: ignore[method-assign]
            await peer.say("ack", received_through=1, decoded_through=1)
            await server.until(lambda: server.services.rtc.num_open == 0)
            await peer.closed()
        assert [line["event"] for line in complaints(server)] == ["webrtc.packet_unhandled"]
    assert not caplog.records


@pytest.mark.parametrize(
    ("owner", "name"),
    [(RTCSctpTransport, "_handle_data"), (RTCDtlsTransport, "_handle_rtcp_data"), (RTCDtlsTransport, "_recv_next")],
)
def test_another_aiortc_keeps_the_server_from_starting(owner: type, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_aiortc()
    monkeypatch.delattr(owner, name)
    with pytest.raises(AiortcError, match=rf"{name}; install the version of requirements\.lock"):
        check_aiortc()
