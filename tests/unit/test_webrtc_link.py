"""A connection that is closed while it comes up."""

from __future__ import annotations

import asyncio

from tests.rtc_peer import RtcPeer

from ithaka.server.transports.webrtc.gathering import Gathering, IceSettings
from ithaka.server.transports.webrtc.link import Feedback, Link
from ithaka.server.transports.webrtc.offer import read_offer
from ithaka.server.transports.webrtc.track import PacketTrack


async def test_nothing_is_started_that_closing_has_passed_by() -> None:
    """The task that brings the parts up may have waited for its last step just then."""
    peer = RtcPeer(with_video=True, with_channel=True)
    try:
        link = Link(
            Gathering(IceSettings(("127.0.0.1",))),
            Feedback(lambda codec: None, lambda bits: None),
            PacketTrack(16),
            max_message_bytes=65_536,
        )
        await link.answer(read_offer(await peer.offer()))
    finally:
        await peer.close()
    connection = link._connection
    (transceiver,) = connection.getTransceivers()
    parameters = connection._RTCPeerConnection__localRtp(transceiver)  # type: ignore[attr-defined]
    await link.close()
    before = asyncio.all_tasks()
    await transceiver.sender.send(parameters)
    assert connection.sctp is not None
    await connection.sctp.start(None, 5000)
    assert asyncio.all_tasks() == before
    assert connection.sctp.state == "closed"
