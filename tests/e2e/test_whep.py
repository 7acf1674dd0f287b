"""WHEP's endpoints behave as the draft says, for an aiortc player."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from tests.e2e.live_daemon import OPERATOR, PAGE_ORIGIN, barcode_of, bearer, create, delete
from tests.e2e.running_daemon import RunningDaemon
from tests.rtc_peer import RtcPeer

FRAGMENT = {"Content-Type": "application/trickle-ice-sdpfrag"}
SDP = {"Content-Type": "application/sdp"}


@pytest.fixture
def daemon(live: RunningDaemon) -> RunningDaemon:
    return live


@pytest.fixture
async def http(daemon: RunningDaemon) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=daemon.url, trust_env=False) as client:
        yield client


@pytest.fixture
def session(daemon: RunningDaemon) -> Iterator[dict[str, Any]]:
    created = create(daemon, delivery="live")
    yield created
    delete(daemon, created)


async def test_the_way_of_a_player(http: httpx.AsyncClient, session: dict[str, Any]) -> None:
    path = f"/v1/sessions/{session['id']}/whep"
    told = await http.options(path, headers=bearer(session))
    assert (told.status_code, told.headers["accept-post"]) == (204, "application/sdp")
    assert 'rel="ice-server"' in told.headers["link"] and session["id"] in told.headers["link"]
    peer = RtcPeer(with_video=True, with_channel=False)
    try:
        offer = await peer.offer()
        answer = await http.post(f"{path}?role=controller", content=offer, headers={**SDP, **bearer(session)})
        assert (answer.status_code, answer.headers["content-type"]) == (201, "application/sdp")
        assert answer.headers["accept-patch"] == FRAGMENT["Content-Type"] and answer.headers["etag"]
        address = answer.headers["location"]
        assert address.startswith(path)
        fragment = "a=mid:0\r\na=candidate:1 1 udp 1 192.0.2.1 9 typ host\r\n"
        patched = await http.patch(address, content=fragment, headers={**FRAGMENT, **bearer(session)})
        assert patched.status_code == 204
        await peer.accept(answer.text)
        assert (await peer.picture()).width == 320
        assert (await http.delete(address, headers=bearer(session))).status_code == 200
        await peer.closed()
        again = await http.delete(address, headers=bearer(session))
        assert again.status_code == 404
    finally:
        await peer.close()


async def test_controls_by_http_reach_a_session_that_a_player_controls(
    http: httpx.AsyncClient, session: dict[str, Any]
) -> None:
    peer = RtcPeer(with_video=True, with_channel=False)
    try:
        answer = await http.post(
            f"/v1/sessions/{session['id']}/whep?role=controller", content=await peer.offer(), headers={**SDP, **bearer(session)}
        )
        await peer.accept(answer.text)
        assert not barcode_of(await peer.picture()).held
        key = (await http.get("/v1/models/numbers", headers=bearer(session))).json()["controls"][0]
        path = f"/v1/sessions/{session['id']}/controls"
        taken = await http.post(path, json={"pressed": [key]}, headers=bearer(session))
        assert taken.status_code == 202
        async with asyncio.timeout(10):
            while key not in barcode_of(await peer.picture()).held:
                pass
    finally:
        await peer.close()


async def test_viewers_share_one_stream_and_may_not_control(http: httpx.AsyncClient, session: dict[str, Any]) -> None:
    path = f"/v1/sessions/{session['id']}/whep"
    minted = await http.post(f"/v1/sessions/{session['id']}/token", json={"role": "viewer"}, headers=OPERATOR)
    viewer = {"Authorization": f"Bearer {minted.json()['token']}"}
    peers = [RtcPeer(with_video=True, with_channel=False) for _ in range(3)]
    try:
        offers = [await peer.offer() for peer in peers]
        refused = await http.post(f"{path}?role=controller", content=offers[1], headers={**SDP, **viewer})
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "role_not_allowed")
        answers = [await http.post(f"{path}?role=controller", content=offers[0], headers={**SDP, **bearer(session)})]
        answers += [await http.post(path, content=offer, headers={**SDP, **viewer}) for offer in offers[1:]]
        for peer, answer in zip(peers, answers, strict=True):
            assert answer.status_code == 201, answer.text
            await peer.accept(answer.text)
        for peer in peers:
            barcode_of(await peer.picture())
    finally:
        for peer in peers:
            await peer.close()


async def test_what_is_no_offer_is_refused(http: httpx.AsyncClient, session: dict[str, Any]) -> None:
    path = f"/v1/sessions/{session['id']}/whep"

    async def refused(content: bytes, headers: dict[str, str]) -> tuple[int, str]:
        answer = await http.post(path, content=content, headers={**headers, **bearer(session)})
        return answer.status_code, answer.json()["error"]["code"]

    assert await refused(b"v=0\r\nnonsense", SDP) == (400, "sdp_invalid")
    assert await refused(b"\xff\xfe", SDP) == (400, "sdp_invalid")
    assert await refused(b"{}", {"Content-Type": "application/json"}) == (415, "unsupported_media_type")
    assert await refused(b"v=0", {"Content-Type": "text/plain"}) == (415, "unsupported_media_type")
    assert await refused(b"x" * 70_000, SDP) == (413, "body_too_large")


async def test_a_foreign_page_is_refused_and_an_allowed_one_is_told_what_it_may(
    http: httpx.AsyncClient, session: dict[str, Any]
) -> None:
    path = f"/v1/sessions/{session['id']}/whep"
    foreign = await http.post(path, content="v=0", headers={**SDP, **bearer(session), "Origin": "https://evil.example.org"})
    assert (foreign.status_code, foreign.json()["error"]["code"]) == (403, "origin_not_allowed")
    asked = {"Origin": PAGE_ORIGIN, "Access-Control-Request-Method": "PATCH", "Access-Control-Request-Headers": "authorization"}
    preflight = await http.options(f"{path}/x", headers=asked)
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == PAGE_ORIGIN
    assert "PATCH" in preflight.headers["access-control-allow-methods"]
