"""Offers that a peer got wrong: answered and lived through, or refused in our words; nothing fails later, nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import re
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
import structlog.testing
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.rtc_peer import RtcPeer
from tests.served import Served, config_for, served

from ithaka.server.errors import ApiError
from ithaka.server.transports.webrtc.gathering import Gathering, IceSettings
from ithaka.server.transports.webrtc.link import Feedback, Link
from ithaka.server.transports.webrtc.offer import read_offer
from ithaka.server.transports.webrtc.track import PacketTrack

PYTHONS_WORDS = re.compile(r"Error|Exception|NoneType|StopIteration|invalid literal|not in list|unpack|Traceback|object has no")
ODD_NUMBERS = [
    "0",
    "-1",
    "1",
    "15",
    "72",
    "96",
    "128",
    "256",
    "300",
    "4096",
    "65535",
    "65536",
    "99999",
    "4294967296",
    "9" * 25,
    "",
    "x",
]
ODD_LINES = [
    "a=sctp-port:99999",
    "a=sctp-port:1",
    "a=extmap:300 urn:ietf:params:rtp-hdrext:sdes:mid",
    "a=extmap:1 urn:ietf:params:rtp-hdrext:sdes:mid",
    "a=extmap:14/sendonly urn:x with more",
    "a=max-message-size:1",
    "a=max-message-size:-1",
    "a=max-message-size:0",
    "a=max-message-size:16384",
    "a=rtpmap:99 VP8/90000",
    "a=rtpmap:120 rtx/90000",
    "a=fmtp:99 packetization-mode",
    "a=fmtp:99 apt=x",
    "a=fmtp:99 profile-level-id=zzzzzz",
    "a=fmtp:200 apt=99",
    "a=rtcp-fb:99",
    "a=rtcp-fb:* nack",
    "a=ssrc:4294967296 cname:x",
    "a=ssrc:1",
    "a=ssrc-group:FID x",
    "a=msid:x ",
    "a=mid:0",
    "a=mid:nowhere",
    "a=ice-ufrag:a",
    "a=ice-pwd:short",
    "a=ice-pwd:" + "x" * 256,
    "a=ice-lite",
    "a=fingerprint:sha-256 AB",
    "a=fingerprint:sha-256",
    "a=setup:holdconn",
    "a=setup:active",
    "a=setup:passive",
    "a=group:BUNDLE",
    "a=group:BUNDLE 1 0",
    "a=group:BUNDLE 0 0",
    "a=group:BUNDLE nowhere",
    "a=group:LS 7",
    "a=inactive",
    "a=sendonly",
    "a=candidate:1 1 udp 1 127.0.0.1 0 typ host",
    "m=audio 9 UDP/TLS/RTP/SAVPF 0",
    "m=video 9 UDP/TLS/RTP/SAVPF 99",
    "m=application 9 DTLS/SCTP 5000",
    "m=text 9 RTP 0",
    "c=nonsense",
    "\x00",
]
LINES = st.integers(0, 70)
CHANGES = st.one_of(
    st.tuples(st.just("number"), LINES, st.sampled_from(ODD_NUMBERS)),
    st.tuples(st.just("insert"), LINES, st.sampled_from(ODD_LINES)),
    st.tuples(st.just("drop"), LINES, st.just("")),
    st.tuples(st.just("double"), LINES, st.just("")),
    st.tuples(st.just("cut"), LINES, st.integers(1, 30).map(str)),
    st.tuples(st.just("text"), LINES, st.text(max_size=8)),
)
Changes = list[tuple[str, int, str]]


def changed(offer: str, changes: Changes) -> str:
    lines = offer.splitlines()
    for kind, place, value in changes:
        at = place % max(1, len(lines))
        lines[at : at + 1] = replaced(kind, "".join(lines[at : at + 1]), place, value)
    return "\r\n".join([*lines, ""])


def replaced(kind: str, line: str, place: int, value: str) -> list[str]:
    """What stands in the line's place."""
    match kind:
        case "insert":
            return [line, value]
        case "drop":
            return []
        case "double":
            return [line, line]
        case "cut":
            return [line[: -int(value)]]
        case "number":
            return [re.sub("[0-9]+", lambda _: value, line, count=1 + place % 2)]
        case _:
            return [line[: place % 12] + value + line[place % 12 :]]


@contextlib.contextmanager
def nothing_fails() -> Any:
    """In the loop, in its tasks, or in a log."""
    failures: list[Any] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info or record.levelno >= logging.ERROR:
                failures.append(record.getMessage())

    loop, listener = asyncio.get_running_loop(), Listener()
    loop.set_exception_handler(lambda _, context: failures.append(context))
    logging.getLogger().addHandler(listener)
    gc.freeze()  # What was there before is not looked through each time.
    try:
        with structlog.testing.capture_logs() as logs:
            yield
        gc.collect()
    finally:
        gc.unfreeze()
        logging.getLogger().removeHandler(listener)
    failures += [entry for entry in logs if entry.get("exc_info") or entry["log_level"] in ("error", "critical")]
    assert not failures


async def no_task_is_left(before: set[asyncio.Task[Any]]) -> None:
    while left := asyncio.all_tasks() - before - {asyncio.current_task()}:
        await asyncio.wait(left, timeout=10)
        assert all(task.done() for task in left), left


def run(play: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        with nothing_fails():
            await play()
            await no_task_is_left(set())

    asyncio.run(whole())


@pytest.fixture(scope="module")
def offer() -> str:
    async def make() -> str:
        peer = RtcPeer(with_video=True, with_channel=True)
        try:
            return await peer.offer()
        finally:
            await peer.close()

    return asyncio.run(make())


@settings(deadline=None, max_examples=200)
@given(st.lists(CHANGES, min_size=1, max_size=3))
@example([("insert", 11, "a=m")])
def test_every_offer_is_answered_or_refused_in_our_words(offer: str, changes: Changes) -> None:
    async def play() -> None:
        gathering = Gathering(IceSettings(("127.0.0.1",)))
        link: Link | None = None
        try:
            read = read_offer(changed(offer, changes))
            link = Link(
                gathering,
                Feedback(lambda codec: None, lambda bits: None),
                PacketTrack(16) if read.has_video else None,
                max_message_bytes=65_536,
            )
            assert "a=setup" in await link.answer(read)
        except ApiError as error:
            assert error.code in ("sdp_invalid", "codec_unsupported")
            assert not PYTHONS_WORDS.search(str(error)), str(error)
        finally:
            if link is not None:
                await link.close()

    run(play)


@contextlib.asynccontextmanager
async def rig() -> AsyncIterator[tuple[Served, dict[str, Any]]]:
    async with served(config_for(webrtc={"connect_timeout_s": 0.4})) as server:
        yield server, await server.create(delivery="live")


@settings(deadline=None, max_examples=25)
@given(st.lists(CHANGES, min_size=1, max_size=2))
@example([("insert", 60, "a=sctp-port:99999")])
@example([("insert", 8, "a=extmap:300 urn:ietf:params:rtp-hdrext:sdes:mid")])
@example([("insert", 60, "a=max-message-size:1")])
@example([("insert", 60, "a=max-message-size:-1")])
@example([("insert", 60, "a=max-message-size:16384")])
@example([("insert", 60, "a=sctp-port:1")])
@example([("insert", 4, "a=group:BUNDLE 1 0"), ("drop", 4, "")])
def test_a_peer_with_a_wrong_offer_lives_or_is_refused_and_leaves_nothing_behind(changes: Changes) -> None:
    async def play() -> None:
        async with rig() as (server, session):
            peer = RtcPeer(with_video=True, with_channel=True)
            try:
                sdp = changed(await peer.offer(), changes)
                answer = await server.http.post(f"/v1/sessions/{session['id']}/webrtc", json={"type": "offer", "sdp": sdp})
                if answer.status_code == 201:
                    await live(server, peer, answer.json()["sdp"])
                else:
                    error = answer.json()["error"]
                    codes = {400: "sdp_invalid", 406: "codec_unsupported", 409: "track_unsupported"}
                    assert error["code"] == codes[answer.status_code], error
                    assert not PYTHONS_WORDS.search(error["message"]), error
            finally:
                await peer.close()
            await server.until(lambda: server.services.rtc.num_open == 0)
            assert not [entry for entry in server.logs if entry["event"] == "webrtc.failed"]

    run(play)


async def live(server: Served, peer: RtcPeer, answer: str) -> None:
    """Until the connection is up, or given up. The peer may find the answer to what it never said odd."""
    with contextlib.suppress(Exception):
        await peer.accept(answer)
    connections = server.services.rtc._connections
    await server.until(lambda: not connections or any(known.is_up for known in connections.values()))
    if connections and peer.channel is not None and peer.channel.readyState == "open":
        await peer.greet()
