"""Peers that no UDP reaches play over a real TURN server, with the passwords that the daemon made for it."""

from __future__ import annotations

import base64
import hmac
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiortc import RTCConfiguration, RTCIceServer, RTCIceTransportPolicy

from tests.e2e.browser import WatchedPage, running_chromium
from tests.e2e.live_daemon import KEY, barcode_of, bearer, create, delete
from tests.e2e.running_daemon import RunningDaemon, running_daemon
from tests.e2e.turn_server import SECRET, TurnServer, running_turn_server
from tests.rtc_peer import RtcPeer, connected

PLAY = (Path(__file__).parent / "live_page.js").read_text()
AGES_HENCE_S = 2_100_000_000
NO_UDP = "--webrtc-ip-handling-policy=disable_non_proxied_udp"
"""Chromium's own switch for networks where UDP must not be used: TURN over TCP is all that is left."""


@pytest.fixture(scope="module")
def turn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TurnServer]:
    with running_turn_server(tmp_path_factory.mktemp("turn")) as running:
        yield running


def config(turn: TurnServer, access: str) -> str:
    urls = [turn.url("udp"), turn.url("tcp")]
    return f"""
{access}
webrtc: {{ice_servers: [{{urls: {urls}, secret: {SECRET}}}]}}
models:
  - {{name: numbers, family: synthetic, device: cpu, max_sessions: 4, options: {{width: 320, height: 192, fps: 16}}}}
sessions: {{drain_timeout_s: 2}}
"""


@pytest.fixture(scope="module")
def daemon(turn: TurnServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    with running_daemon(tmp_path_factory.mktemp("relayed"), config(turn, f"access: {{api_keys: [{KEY}]}}")) as running:
        yield running


@pytest.fixture
def session(daemon: RunningDaemon) -> Iterator[dict[str, Any]]:
    created = create(daemon, delivery="live")
    yield created
    delete(daemon, created)


def relayed(url: str, username: str, credential: str) -> RTCConfiguration:
    return RTCConfiguration([RTCIceServer(url, username, credential)], RTCIceTransportPolicy.RELAY)


def told_servers(daemon: RunningDaemon, session: dict[str, Any]) -> dict[str, Any]:
    answer = httpx.get(f"{daemon.url}/v1/sessions/{session['id']}/webrtc", headers=bearer(session))
    (server,) = answer.json()["ice_servers"]
    told: dict[str, Any] = server
    return told


@pytest.mark.parametrize("transport", ["udp", "tcp"])
async def test_a_session_is_played_and_steered_through_the_relay(
    daemon: RunningDaemon, turn: TurnServer, session: dict[str, Any], transport: str
) -> None:
    told = told_servers(daemon, session)
    (url,) = [url for url in told["urls"] if url.endswith(transport)]

    async def exchange(offer: str) -> str:
        async with httpx.AsyncClient(base_url=daemon.url, trust_env=False) as http:
            body = {"type": "offer", "sdp": offer}
            answer = await http.post(f"/v1/sessions/{session['id']}/webrtc", json=body, headers=bearer(session))
            assert answer.status_code == 201, answer.text
            return str(answer.json()["sdp"])

    configuration = relayed(url, told["username"], told["credential"])
    async with connected(exchange, with_video=True, configuration=configuration) as peer:
        await peer.greet()
        pictures = [barcode_of(await peer.picture()) for _ in range(24)]
        assert [known.number for known in pictures] == list(range(pictures[0].number, pictures[0].number + 24))
        await peer.say("control", control_id=1, pressed=["KeyW"])
        while "KeyW" not in barcode_of(await peer.picture()).held:
            pass
        assert peer.connection.sctp is not None
        agent = peer.connection.sctp.transport.transport._connection
        assert {(known.type, known.port in turn.relay_ports) for known in agent.local_candidates} == {("relay", True)}
        (pair,) = agent._nominated.values()
        assert pair.local_candidate.type == "relay"
        # The only socket that this peer has.
        (protocol,) = agent._protocols
        carrier = repr(protocol.transport._TurnTransport__inner_protocol)  # type: ignore[attr-defined]
        assert carrier == f"turn/{transport}"


def password(username: str, secret: str) -> str:
    return base64.b64encode(hmac.digest(secret.encode(), username.encode(), "sha1")).decode()


@pytest.mark.parametrize(
    ("ends_at_s", "secret", "is_let_in"),
    [(AGES_HENCE_S, SECRET, True), (1_000_000_000, SECRET, False), (AGES_HENCE_S, "?", False)],
)
async def test_the_relay_takes_a_password_of_the_shared_secret_until_it_ends(
    turn: TurnServer, ends_at_s: int, secret: str, is_let_in: bool
) -> None:
    username = f"{ends_at_s}:a-session"
    configuration = relayed(turn.url("tcp"), username, password(username, secret))
    peer = RtcPeer(with_video=False, with_channel=True, configuration=configuration)
    try:
        assert ("typ relay" in await peer.offer()) is is_let_in
    finally:
        await peer.close()


@pytest.mark.browser
def test_where_a_browser_may_not_use_udp_the_relay_carries_it_over_tcp(turn: TurnServer, tmp_path: Path) -> None:
    with running_daemon(tmp_path, config(turn, "")) as daemon, running_chromium(NO_UDP) as chromium:
        context = chromium.new_context()
        page = WatchedPage(context.new_page())
        page.open(daemon.url)
        seen = page.evaluate(PLAY, {"model": "numbers", "waitFor": 24})
        assert page.complaints == []
        context.close()
    assert (seen["carrier"], seen["why"]) == ("webrtc", None)
    assert seen["path"] == {"type": "relay", "relayProtocol": "tcp"}
    assert seen["frames"] >= 24 and seen["error"] is None
