"""Whose a WebRTC connection is: a viewer's token is good for its own alone, and viewers leave places to controllers."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from tests.fakes import MODEL
from tests.rtc_peer import RtcPeer
from tests.served import Served, config_for, served

CANDIDATE = "a=mid:0\r\na=candidate:1 1 udp 1 192.0.2.7 9 typ host\r\n"
KEY = "a-key-of-this-test-only"
OPERATOR = {"Authorization": f"Bearer {KEY}"}


class Rig:
    def __init__(self, server: Served, session: dict[str, Any], offer: str) -> None:
        self.server = server
        self.session = session
        self.offer = offer
        self.path = f"/v1/sessions/{session['id']}"

    async def viewer(self) -> str:
        answer = await self.server.http.post(f"{self.path}/token", json={"role": "viewer"}, headers=OPERATOR)
        return str(answer.json()["token"])

    async def connect(self, token: str, carrier: str = "webrtc") -> httpx.Response:
        headers = {"Authorization": f"Bearer {token}"}
        if carrier == "whep":
            headers["Content-Type"] = "application/sdp"
            return await self.server.http.post(f"{self.path}/whep", content=self.offer.encode(), headers=headers)
        body = {"type": "offer", "sdp": self.offer}
        return await self.server.http.post(f"{self.path}/webrtc", json=body, headers=headers)

    async def touch(self, address: str, token: str) -> list[int]:
        """What adding a candidate and ending it are answered with."""
        headers = {"Authorization": f"Bearer {token}"}
        if "/whep/" in address:
            kind = {**headers, "Content-Type": "application/trickle-ice-sdpfrag"}
            patched = await self.server.http.patch(address, content=CANDIDATE, headers=kind)
        else:
            patched = await self.server.http.patch(address, json={"sdp_fragment": CANDIDATE}, headers=headers)
        ended = await self.server.http.delete(address, headers=headers)
        for refused in (patched, ended):
            assert refused.status_code < 300 or refused.json()["error"]["code"] == "role_not_allowed", refused.text
        return [patched.status_code, ended.status_code]


async def play(server: Served) -> Rig:
    peer = RtcPeer(with_video=True, with_channel=True)
    try:
        offer = await peer.offer()
    finally:
        await peer.close()
    created = await server.http.post("/v1/sessions", json={"model": MODEL, "delivery": "live"}, headers=OPERATOR)
    assert created.status_code == 201, created.text
    return Rig(server, created.json(), offer)


@pytest.mark.parametrize("carrier", ["webrtc", "whep"])
async def test_a_viewers_token_touches_only_what_it_made(carrier: str) -> None:
    async with served(config_for(access={"api_keys": [KEY]})) as server:
        rig = await play(server)
        mine, other = await rig.viewer(), await rig.viewer()
        assert mine != other
        for owner in (str(rig.session["token"]), other):
            address = (await rig.connect(owner, carrier)).headers["location"]
            assert await rig.touch(address, mine) == [403, 403]
            assert server.services.rtc.num_open == 1
            assert max(await rig.touch(address, owner)) < 300
            await server.until(lambda: server.services.rtc.num_open == 0)


@pytest.mark.parametrize("asker", ["controller", "operator"])
async def test_controller_and_operator_may_touch_all(asker: str) -> None:
    async with served(config_for(access={"api_keys": [KEY]})) as server:
        rig = await play(server)
        address = (await rig.connect(await rig.viewer())).headers["location"]
        assert max(await rig.touch(address, KEY if asker == "operator" else rig.session["token"])) < 300


async def test_viewers_leave_places_to_controllers() -> None:
    async with served(config_for(access={"api_keys": [KEY]}, webrtc={"max_connections": 4})) as server:
        rig = await play(server)
        token = await rig.viewer()
        assert [(await rig.connect(token)).status_code for _ in range(3)] == [201] * 3
        full = await rig.connect(token)
        assert (full.status_code, full.json()["error"]["code"]) == (503, "connections_full")
        assert (await rig.connect(rig.session["token"])).status_code == 201
        assert (await rig.connect(rig.session["token"])).status_code == 503
