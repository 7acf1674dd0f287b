"""Live sessions of the real daemon: over a track, through a bad network, and to clients that stand still."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import httpx
import pytest
import websockets
from websockets.typing import Subprotocol

from tests.e2e.live_daemon import OPERATOR, barcode_of, bearer, create, delete, look
from tests.e2e.running_daemon import RunningDaemon
from tests.rtc_peer import BadNetwork, RtcPeer, connected
from tests.served import read_frame

FPS = 16
KEY_INTERVAL = 2 * FPS
STALL_FRAMES = 5 * FPS


@pytest.fixture
def daemon(live: RunningDaemon) -> RunningDaemon:
    return live


@pytest.fixture
def session(daemon: RunningDaemon) -> Iterator[dict[str, Any]]:
    created = create(daemon, delivery="live")
    yield created
    delete(daemon, created)


def answering(daemon: RunningDaemon, session: dict[str, Any]) -> Callable[[str], Awaitable[str]]:
    async def exchange(offer: str) -> str:
        async with httpx.AsyncClient(base_url=daemon.url, trust_env=False) as http:
            body = {"type": "offer", "sdp": offer}
            answer = await http.post(f"/v1/sessions/{session['id']}/webrtc", json=body, headers=bearer(session))
            assert answer.status_code == 201, answer.text
            return str(answer.json()["sdp"])

    return exchange


@contextlib.asynccontextmanager
async def played(daemon: RunningDaemon, session: dict[str, Any]) -> AsyncIterator[RtcPeer]:
    """The controller, with a track."""
    async with connected(answering(daemon, session), with_video=True) as peer:
        await peer.greet()
        yield peer


async def until_generated(daemon: RunningDaemon, session: dict[str, Any], seq: int) -> None:
    await until_told(daemon, session, lambda told: told.get("generated_seq", 0) >= seq)


async def until_state(daemon: RunningDaemon, session: dict[str, Any], state: str) -> None:
    await until_told(daemon, session, lambda told: told.get("state") == state)


async def until_told(daemon: RunningDaemon, session: dict[str, Any], condition: Callable[[dict[str, Any]], bool]) -> None:
    """Follows the session's own events."""
    path = f"/v1/sessions/{session['id']}/events"
    async with (
        httpx.AsyncClient(base_url=daemon.url, trust_env=False, timeout=30) as http,
        http.stream("GET", path, headers=OPERATOR) as events,
    ):
        async for line in events.aiter_lines():
            if line.startswith("data: ") and condition(json.loads(line.removeprefix("data: "))):
                return


async def test_every_picture_arrives_on_a_good_network(daemon: RunningDaemon, session: dict[str, Any]) -> None:
    async with played(daemon, session) as peer:
        numbers = [barcode_of(await peer.picture()).number for _ in range(48)]
        assert numbers == sorted(set(numbers)), "in order, none twice"
        # A machine too busy to encode drops frames before the encoder: those are counted, and no others are missing.
        assert numbers[-1] - numbers[0] + 1 - len(numbers) <= look(daemon, session)["dropped_frames"]


async def test_a_lost_picture_brings_a_key_frame(daemon: RunningDaemon, session: dict[str, Any]) -> None:
    async with played(daemon, session) as peer:
        first = await peer.picture()
        assert first.key_frame
        for _ in range(9):
            await peer.picture()
        (receiver,) = [known for known in peer.connection.getReceivers() if known.track.kind == "video"]
        (source,) = receiver._RTCRtpReceiver__active_ssrc  # type: ignore[attr-defined]
        await receiver._send_rtcp_pli(source)
        seen = 10
        while not (await peer.picture()).key_frame:
            seen += 1
        assert seen < KEY_INTERVAL - 2, "sooner than by itself"


async def test_a_flood_of_requests_makes_no_flood_of_key_frames(daemon: RunningDaemon, session: dict[str, Any]) -> None:
    async with played(daemon, session) as peer:
        await peer.picture()
        (receiver,) = [known for known in peer.connection.getReceivers() if known.track.kind == "video"]
        (source,) = receiver._RTCRtpReceiver__active_ssrc  # type: ignore[attr-defined]
        keys = 0
        for _ in range(3 * FPS):
            for _ in range(10):
                await receiver._send_rtcp_pli(source)
            keys += (await peer.picture()).key_frame
        assert 3 <= keys <= 7, "about two a second"


async def test_a_bad_network_costs_few_pictures_and_no_time(daemon: RunningDaemon, session: dict[str, Any]) -> None:
    """2 % of the datagrams lost, 20 ms one way."""
    async with played(daemon, session) as peer:
        await peer.picture()
        network = BadNetwork(peer, loss=0.02, delay_s=0.02, seed=3)
        numbers = [barcode_of(await peer.picture()).number]
        while numbers[-1] - numbers[0] < 20 * FPS:
            numbers.append(barcode_of(await peer.picture()).number)
        assert network.num_lost > 20
        assert numbers == sorted(set(numbers)), "in order, none twice"
        assert len(numbers) >= 0.95 * (numbers[-1] - numbers[0] + 1)
        network.loss = 0.0
        for _ in range(8 * FPS):
            number = barcode_of(await peer.picture()).number
            if look(daemon, session)["generated_seq"] - number <= FPS:
                return
        pytest.fail("what the network held up stays behind for ever")


async def test_after_a_dead_network_the_picture_is_live_again(daemon: RunningDaemon, session: dict[str, Any]) -> None:
    async with played(daemon, session) as peer:
        network = BadNetwork(peer, loss=0, delay_s=0, seed=1)
        stalled_at = barcode_of(await peer.picture()).number
        network.is_down = True
        await until_generated(daemon, session, stalled_at + STALL_FRAMES)
        while not peer.pictures.empty():
            peer.pictures.get_nowait()
        network.is_down = False
        back_at = look(daemon, session)["generated_seq"]
        # This peer's decoder shows what it makes of the first packets; a browser waits for the key frame.
        while not (picture := await peer.picture()).key_frame:
            pass
        number = barcode_of(picture).number
        assert back_at - FPS // 2 <= number <= back_at + FPS, "within a second, and not what was missed"


def socket_of(daemon: RunningDaemon, session: dict[str, Any]) -> websockets.connect:
    """The controller's."""
    address = daemon.url.replace("http", "ws", 1) + session["stream_path"]
    protocols = [Subprotocol("ithaka.v1"), Subprotocol(f"ithaka.token.{session['token']}")]
    return websockets.connect(address, subprotocols=protocols, compression=None, proxy=None)


async def test_a_websocket_that_stood_still_gets_what_is_new(daemon: RunningDaemon, session: dict[str, Any]) -> None:
    async with socket_of(daemon, session) as socket:

        async def next_seq() -> int:
            while True:
                message = await socket.recv()
                if isinstance(message, bytes):
                    return read_frame(message).seq

        hello = json.loads(await socket.recv())
        await socket.send(json.dumps({"type": "resume", "stream": hello["stream"], "next_seq": 1}))
        assert await next_seq() == 1
        await until_generated(daemon, session, STALL_FRAMES)
        in_flight = [await next_seq() for _ in range(7)]
        assert in_flight == list(range(2, 9)), "half a second, and nothing else waits in the sockets"
        resumed_at = look(daemon, session)["generated_seq"]
        await socket.send(json.dumps({"type": "ack", "received_through": 8, "decoded_through": 8}))
        seq = await next_seq()
        assert resumed_at - FPS // 2 <= seq <= resumed_at + FPS
        # A busy machine may be one.
        assert look(daemon, session)["dropped_frames"] < STALL_FRAMES / 4, (
            "a slow client is no reason to drop before the encoder"
        )


async def test_a_viewer_that_stood_still_over_a_websocket_skips_what_it_missed(
    daemon: RunningDaemon, session: dict[str, Any]
) -> None:
    """It acknowledges nothing, so only the socket says that it lags."""
    address = daemon.url.replace("http", "ws", 1) + session["stream_path"]
    async with httpx.AsyncClient(base_url=daemon.url, trust_env=False) as http:
        minted = await http.post(f"/v1/sessions/{session['id']}/token", json={"role": "viewer"}, headers=OPERATOR)
    protocols = [Subprotocol("ithaka.v1"), Subprotocol(f"ithaka.token.{minted.json()['token']}")]
    async with played(daemon, session) as peer:
        await peer.picture()
        async with websockets.connect(
            address, subprotocols=protocols, compression=None, proxy=None, max_queue=1, close_timeout=0.5
        ) as viewer:
            began = look(daemon, session)["generated_seq"]
            await until_generated(daemon, session, began + 2 * STALL_FRAMES)
            resumed_at = look(daemon, session)["generated_seq"]
            stale = 0
            while True:
                message = await viewer.recv()
                if isinstance(message, bytes) and read_frame(message).seq >= resumed_at - FPS:
                    break
                stale += isinstance(message, bytes)
            assert stale < STALL_FRAMES, "most of what it missed was never sent"


def as_viewer(daemon: RunningDaemon, session: dict[str, Any]) -> Callable[[str], Awaitable[str]]:
    async def exchange(offer: str) -> str:
        path = f"/v1/sessions/{session['id']}"
        async with httpx.AsyncClient(base_url=daemon.url, trust_env=False) as http:
            token = (await http.post(f"{path}/token", json={"role": "viewer"}, headers=OPERATOR)).json()["token"]
            body, headers = {"type": "offer", "sdp": offer}, {"Authorization": f"Bearer {token}"}
            return str((await http.post(f"{path}/webrtc", json=body, headers=headers)).json()["sdp"])

    return exchange


async def test_a_viewer_of_a_paused_session_sees_the_picture_that_stands(
    daemon: RunningDaemon, session: dict[str, Any]
) -> None:
    async with played(daemon, session) as peer:
        for _ in range(12):
            await peer.picture()
        await peer.say("pause")
        while (await peer.expect("state"))["state"] != "paused":
            pass
        async with connected(as_viewer(daemon, session), with_video=True) as viewer:
            assert (await viewer.picture()).key_frame
        assert look(daemon, session)["state"] == "paused"


async def test_a_controller_that_comes_back_to_a_paused_session_sees_the_picture_that_stands(
    daemon: RunningDaemon, session: dict[str, Any]
) -> None:
    async with played(daemon, session) as peer:
        for _ in range(12):
            await peer.picture()
        await peer.say("pause")
        while (await peer.expect("state"))["state"] != "paused":
            pass
    stood_at = look(daemon, session)["generated_seq"]
    async with played(daemon, session) as peer:
        # Each of its group comes at once, and the last few may be shown as one.
        assert (await peer.picture()).key_frame
        while barcode_of(await peer.picture()).number < stood_at - 1:
            pass
    async with socket_of(daemon, session) as socket:
        hello = json.loads(await socket.recv())
        await socket.send(json.dumps({"type": "resume", "stream": hello["stream"], "next_seq": hello["next_seq"]}))
        seq = 0
        while seq < stood_at:
            message = await socket.recv()
            if isinstance(message, bytes):
                seq = read_frame(message).seq
                await socket.send(json.dumps({"type": "ack", "received_through": seq, "decoded_through": seq}))
    assert look(daemon, session)["generated_seq"] == stood_at


async def test_a_viewer_sees_a_picture_within_half_a_second_of_frames(daemon: RunningDaemon, session: dict[str, Any]) -> None:
    async with played(daemon, session) as peer:
        for _ in range(12):
            await peer.picture()
        before = look(daemon, session)["generated_seq"]
        async with connected(as_viewer(daemon, session), with_video=True) as viewer:
            assert (await viewer.expect("hello"))["role"] == "viewer"
            attached = look(daemon, session)["generated_seq"]
            picture = await viewer.picture()
            assert picture.key_frame and before <= barcode_of(picture).number <= attached + FPS // 2


async def test_a_peer_that_falls_silent_is_given_up_long_before_ice_notices(
    daemon: RunningDaemon, session: dict[str, Any]
) -> None:
    async with played(daemon, session) as peer:
        await peer.picture()
        peer.fall_silent()
        async with asyncio.timeout(20):
            await until_state(daemon, session, "detached")
        assert peer.connection.connectionState == "connected", "nobody told this side, and ICE waits"
    async with played(daemon, session) as peer:
        assert (await peer.picture()).key_frame


async def test_a_peer_that_falls_silent_on_the_data_channel_alone_is_given_up_too(daemon: RunningDaemon) -> None:
    """Without a track nobody reports once a second; the daemon asks instead."""
    session = create(daemon)
    try:
        async with connected(answering(daemon, session)) as peer:
            await peer.greet()
            seq = (await peer.frame()).seq
            await peer.say("ack", received_through=seq, decoded_through=seq)
            peer.fall_silent()
            async with asyncio.timeout(20):
                await until_state(daemon, session, "detached")
            assert peer.connection.connectionState == "connected", "nobody told this side, and ICE waits"
    finally:
        delete(daemon, session)


async def test_whoever_comes_back_by_websocket_need_not_wait_until_the_silent_peer_is_given_up(daemon: RunningDaemon) -> None:
    session = create(daemon)
    address = daemon.url.replace("http", "ws", 1) + session["stream_path"]
    protocols = [Subprotocol("ithaka.v1"), Subprotocol(f"ithaka.token.{session['token']}")]
    try:
        async with connected(answering(daemon, session)) as peer:
            await peer.greet()
            await peer.frame()
            peer.fall_silent()
            codes = set()
            async with asyncio.timeout(20):
                while True:
                    async with websockets.connect(address, subprotocols=protocols, compression=None, proxy=None) as socket:
                        first = json.loads(await socket.recv())
                    if first["type"] == "hello":
                        break
                    codes.add(first["code"])
            assert codes <= {"controller_connected"} and (first["role"], first["next_seq"]) == ("controller", 1)
    finally:
        delete(daemon, session)


async def test_a_paused_session_loses_nobody(daemon: RunningDaemon, session: dict[str, Any]) -> None:
    """No frame until the first ping, which comes later than a silence may last; the receiver goes on reporting."""
    async with played(daemon, session) as peer:
        await peer.picture()
        await peer.say("pause")
        while (await peer.expect("state"))["state"] != "paused":
            pass
        ping = await peer.expect("ping")
        await peer.say("pong", id=ping["id"])
        assert look(daemon, session)["state"] == "paused"
        while not peer.pictures.empty():
            peer.pictures.get_nowait()
        await peer.say("play")
        await peer.picture()


async def test_a_killed_client_leaves_the_session_resumable(daemon: RunningDaemon, session: dict[str, Any]) -> None:
    async with played(daemon, session) as peer:
        await peer.picture()
    await until_state(daemon, session, "detached")
    async with played(daemon, session) as peer:
        assert (await peer.picture()).key_frame
