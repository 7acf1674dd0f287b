"""A daemon that is told to stop while WebRTC connections are open, pending, or deaf."""

from __future__ import annotations

from pathlib import Path

import httpx

from tests.e2e.live_daemon import CONFIG, barcode_of, bearer, create
from tests.e2e.running_daemon import running_daemon
from tests.rtc_peer import RtcPeer


async def test_it_leaves_in_order_whatever_its_peers_do(tmp_path: Path) -> None:
    """While it stops this process waits, so its peers are deaf and answer nothing: no fin, no acknowledgement of any packet."""
    peers = [RtcPeer(with_video=True, with_channel=True) for _ in range(3)]
    try:
        with running_daemon(tmp_path, CONFIG) as daemon:
            live, lossless = create(daemon, delivery="live"), create(daemon)
            async with httpx.AsyncClient(base_url=daemon.url, trust_env=False) as http:
                for peer, session in zip(peers, (live, lossless, live), strict=True):
                    body = {"type": "offer", "sdp": await peer.offer()}
                    answer = await http.post(f"/v1/sessions/{session['id']}/webrtc", json=body, headers=bearer(session))
                    assert answer.status_code == 201
                    if peer is not peers[2]:
                        await peer.accept(answer.json()["sdp"])
            await peers[0].greet()
            barcode_of(await peers[0].picture())
            await peers[1].greet()
            await peers[1].frame()
        # Leaving the block stopped it, with code 0.
    finally:
        for peer in peers:
            await peer.close()
