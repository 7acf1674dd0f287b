"""A peer without H.264 watches, and controls, in VP8, beside others that have it."""

from __future__ import annotations

import asyncio
from typing import Any

import av
import httpx
import pytest
from aiortc.codecs.vpx import VpxPayloadDescriptor
from aiortc.rtp import RtpPacket

from tests.e2e.live_daemon import OPERATOR, barcode_of, bearer, create, delete, look
from tests.e2e.running_daemon import RunningDaemon
from tests.rtc_peer import DEADLINE_S, BadNetwork, RtcPeer

FPS = 16


@pytest.fixture
def daemon(live: RunningDaemon) -> RunningDaemon:
    return live


async def connect(daemon: RunningDaemon, session: dict[str, Any], headers: dict[str, str], codec: str) -> RtcPeer:
    peer = RtcPeer(with_video=True, with_channel=True, codec=codec)
    body = {"type": "offer", "sdp": await peer.offer()}
    async with httpx.AsyncClient(base_url=daemon.url, trust_env=False) as http:
        answer = await http.post(f"/v1/sessions/{session['id']}/webrtc", json=body, headers=headers)
    assert answer.status_code == 201, answer.text
    sdp = answer.json()["sdp"]
    assert codec.removeprefix("video/") in sdp
    await peer.accept(sdp)
    return peer


async def viewers_headers(daemon: RunningDaemon, session: dict[str, Any]) -> dict[str, str]:
    async with httpx.AsyncClient(base_url=daemon.url, trust_env=False) as http:
        minted = await http.post(f"/v1/sessions/{session['id']}/token", json={"role": "viewer"}, headers=OPERATOR)
    return {"Authorization": f"Bearer {minted.json()['token']}"}


class Numbers:
    """What the messages say of the track, and what came of it; ``frame_of`` needs no look at the picture."""

    def __init__(self, peer: RtcPeer) -> None:
        self.told: dict[int, dict[str, Any]] = {}
        self.eos: dict[str, Any] | None = None
        self._peer = peer
        self._first_timestamp: int | None = None
        (receiver,) = [known for known in peer.connection.getReceivers() if known.track.kind == "video"]
        take = receiver._handle_rtp_packet

        async def note_and_take(packet: RtpPacket, arrival_time_ms: int) -> None:
            if self._first_timestamp is None:
                self._first_timestamp = packet.timestamp
            await take(packet, arrival_time_ms)

        receiver._handle_rtp_packet = note_and_take  # type: ignore[method-assign]

    async def hear(self) -> None:
        message = await self._peer.hear()
        assert isinstance(message, dict)
        if message["type"] == "numbered":
            assert message["rtp_timestamp"] not in self.told, "each picture has one number"
            self.told[message["rtp_timestamp"]] = message
        elif message["type"] == "eos":
            self.eos = message

    async def frame_of(self, picture: av.VideoFrame) -> dict[str, Any]:
        """Waits for the message, which may come after the picture."""
        assert self._first_timestamp is not None and picture.pts is not None
        # This side's own decoder counts from the first picture on.
        timestamp = (self._first_timestamp + picture.pts) % 2**32
        while timestamp not in self.told:
            await self.hear()
        return self.told[timestamp]


@pytest.mark.parametrize("delivery", ["live", "lossless"])
async def test_a_viewer_without_h264_sees_the_same_pictures(daemon: RunningDaemon, delivery: str) -> None:
    session = create(daemon, delivery=delivery)
    peers = []
    try:
        peers.append(controller := await connect(daemon, session, bearer(session), "video/H264"))
        await controller.greet()
        peers.append(viewer := await connect(daemon, session, await viewers_headers(daemon, session), "video/VP8"))
        numbers: list[int] = []
        if delivery == "live":
            numbers = [barcode_of(await viewer.picture()).number for _ in range(24)]
        else:
            for _ in range(40):
                seq = (await controller.frame()).seq
                await controller.say("ack", received_through=seq, decoded_through=seq)
            while len(numbers) < 8:
                numbers.append(barcode_of(await viewer.picture()).number)
        assert numbers == sorted(set(numbers))
        if delivery == "live":
            assert numbers == list(range(numbers[0], numbers[0] + 24))
            barcode_of(await controller.picture())
    finally:
        for peer in peers:
            await peer.close()
        delete(daemon, session)


class AtOnce:
    """Decodes a picture with its last packet, as browsers do; this side's own receiver waits for the next picture to begin."""

    def __init__(self, peer: RtcPeer) -> None:
        self._packets: asyncio.Queue[RtpPacket] = asyncio.Queue()
        (receiver,) = [known for known in peer.connection.getReceivers() if known.track.kind == "video"]
        take = receiver._handle_rtp_packet

        async def note_and_take(packet: RtpPacket, arrival_time_ms: int) -> None:
            self._packets.put_nowait(packet)
            await take(packet, arrival_time_ms)

        receiver._handle_rtp_packet = note_and_take  # type: ignore[method-assign]

    async def first(self) -> av.VideoFrame:
        unit, is_whole = b"", False
        async with asyncio.timeout(DEADLINE_S):
            while not is_whole:
                packet = await self._packets.get()
                unit += VpxPayloadDescriptor.parse(packet.payload)[1]
                is_whole = bool(packet.marker)
        (picture,) = av.VideoCodecContext.create("vp8", "r").decode(av.Packet(unit))
        return picture


@pytest.mark.parametrize("delivery", ["live", "lossless"])
async def test_a_viewer_without_h264_sees_the_picture_that_stands(daemon: RunningDaemon, delivery: str) -> None:
    session = create(daemon, delivery=delivery)
    peers = []
    try:
        peers.append(controller := await connect(daemon, session, bearer(session), "video/H264"))
        await controller.greet()
        if delivery == "live":
            for _ in range(20):
                await controller.picture()
        else:
            for _ in range(20):
                seq = (await controller.frame()).seq
                await controller.say("ack", received_through=seq, decoded_through=seq)
        await controller.say("pause")
        while not (isinstance(message := await controller.hear(), dict) and message.get("state") == "paused"):
            pass
        headers = await viewers_headers(daemon, session)
        peers.append(first := await connect(daemon, session, headers, "video/VP8"))
        stands = barcode_of(await AtOnce(first).first()).number
        peers.append(second := await connect(daemon, session, headers, "video/VP8"))
        assert barcode_of(await AtOnce(second).first()).number == stands == look(daemon, session)["generated_seq"]
        assert look(daemon, session)["state"] == "paused"
        await controller.say("play")
        for viewer in (first, second):
            numbers = [barcode_of(await viewer.picture()).number for _ in range(6 if delivery == "live" else 2)]
            assert numbers == list(range(stands, stands + len(numbers)))
    finally:
        for peer in peers:
            await peer.close()
        delete(daemon, session)


async def test_a_controller_without_h264_plays(daemon: RunningDaemon) -> None:
    session = create(daemon, delivery="live")
    peer = await connect(daemon, session, bearer(session), "video/VP8")
    try:
        await peer.greet()
        assert barcode_of(await peer.picture()).number <= 16
        await peer.say("control", control_id=1, pressed=["KeyW"])
        while "KeyW" not in barcode_of(await peer.picture()).held:
            pass
    finally:
        await peer.close()
        delete(daemon, session)


@pytest.mark.parametrize("loss", [0.0, 0.05])
async def test_each_picture_has_its_number_and_each_lost_one_is_named(daemon: RunningDaemon, loss: float) -> None:
    session = create(daemon, delivery="live")
    peer = await connect(daemon, session, bearer(session), "video/VP8")
    try:
        numbers = Numbers(peer)
        await peer.greet()
        await peer.picture()
        network = BadNetwork(peer, loss=loss, delay_s=0.0, seed=5)
        await peer.say("control", control_id=7, pressed=["KeyW"])
        shown: set[int] = set()
        for _ in range(8 * FPS):
            picture = await peer.picture()
            told, seen = await numbers.frame_of(picture), barcode_of(picture)
            assert told["seq"] == seen.number, "the number is that of the picture"
            assert (told["control_id"] >= 7) == ("KeyW" in seen.held)
            shown.add(told["seq"])
        network.loss = 0.0
        await peer.say("end")
        while numbers.eos is None:
            await numbers.hear()
        told_us = [told["generated_us"] for told in sorted(numbers.told.values(), key=lambda told: int(told["seq"]))]
        assert told_us == sorted(told_us)
        sent = {told["seq"] for told in numbers.told.values() if min(shown) <= told["seq"] <= max(shown)}
        lost = sent - shown
        assert shown <= sent and len(lost) <= 0.2 * len(sent)
        if not loss:
            assert lost == set()
        assert max(told["seq"] for told in numbers.told.values()) <= numbers.eos["count"]
    finally:
        await peer.close()
        delete(daemon, session)
