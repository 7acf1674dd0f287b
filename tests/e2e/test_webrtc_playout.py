"""A peer that knows the header extension ``playout-delay`` is told, on every packet, to show pictures at once."""

from __future__ import annotations

import asyncio

import httpx
from aiortc.rtp import RtpPacket

from ithaka.server.transports.webrtc.playout_delay import MID_URI, NO_DELAY, URI
from tests.e2e.live_daemon import bearer, create, delete
from tests.e2e.running_daemon import RunningDaemon
from tests.rtc_peer import DEADLINE_S, connected

NUM_PACKETS = 20


async def test_every_packet_of_a_track_says_that_pictures_are_shown_at_once(live: RunningDaemon) -> None:
    """The peer's stack reads no such extension, so its offer and answer are rewritten: it reads it as a media id."""
    answers: list[str] = []
    delays: list[object] = []
    enough = asyncio.Event()

    session = create(live, delivery="live")

    async def exchange(offer: str) -> str:
        assert MID_URI in offer
        async with httpx.AsyncClient(base_url=live.url, trust_env=False) as http:
            body = {"type": "offer", "sdp": offer.replace(MID_URI, URI)}
            answer = await http.post(f"/v1/sessions/{session['id']}/webrtc", json=body, headers=bearer(session))
        assert answer.status_code == 201, answer.text
        answers.append(str(answer.json()["sdp"]))
        return answers[0].replace(URI, MID_URI)

    async with connected(exchange, with_video=True) as peer:
        receiver = peer.connection.getReceivers()[0]
        handle = receiver._handle_rtp_packet

        async def note(packet: RtpPacket, arrival_time_ms: int) -> None:
            delays.append(packet.extensions.mid)
            if len(delays) == NUM_PACKETS:
                enough.set()
            await handle(packet, arrival_time_ms)

        receiver._handle_rtp_packet = note  # type: ignore[method-assign]
        await peer.greet()
        async with asyncio.timeout(DEADLINE_S):
            await enough.wait()
    delete(live, session)

    assert URI in answers[0] and MID_URI not in answers[0]
    assert set(delays) == {NO_DELAY}
