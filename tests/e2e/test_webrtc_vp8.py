"""A peer without H.264 watches, and controls, in VP8, beside others that have it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.e2e.live_daemon import CONFIG, OPERATOR, barcode_of, bearer, create, delete
from tests.e2e.running_daemon import RunningDaemon, running_daemon
from tests.rtc_peer import RtcPeer


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    with running_daemon(tmp_path_factory.mktemp("vp8"), CONFIG) as running:
        yield running


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
