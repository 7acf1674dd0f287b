"""Peers of a server in the test's own loop."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from tests.rtc_peer import RtcPeer, connected
from tests.served import Served


def exchange(server: Served, session: dict[str, Any], token: str | None = None) -> Callable[[str], Awaitable[str]]:
    async def post(offer: str) -> str:
        answer = await server.http.post(
            f"/v1/sessions/{session['id']}/webrtc",
            json={"type": "offer", "sdp": offer},
            headers={"Authorization": f"Bearer {token or session['token']}"},
        )
        assert answer.status_code == 201, answer.text
        assert answer.headers["location"].endswith(answer.json()["id"])
        return str(answer.json()["sdp"])

    return post


@contextlib.asynccontextmanager
async def controller(server: Served, session: dict[str, Any]) -> AsyncIterator[RtcPeer]:
    async with connected(exchange(server, session)) as peer:
        yield peer


async def until_decoded(server: Served, session: dict[str, Any], seq: int) -> None:
    flow = server.session(session["id"]).flow
    assert flow is not None
    await server.until(lambda: flow.delivery.decoded_through == seq)
