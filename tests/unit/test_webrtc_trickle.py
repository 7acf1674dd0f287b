"""Candidates that trickle in: bounded for each fragment, each second and each connection's whole life."""

from __future__ import annotations

import pytest
from tests.rtc_peer import RtcPeer
from tests.served import served
from tests.unit.test_webrtc_offers import OFFER

from ithaka.server.errors import ApiError
from ithaka.server.transports.webrtc.offer import MAX_CANDIDATES, read_offer
from ithaka.server.transports.webrtc.trickle import MAX_FRAGMENTS_PER_S, Trickle

OF_OFFER = 1
"""The one of its candidates that is no multicast name."""


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def trickle(clock: Clock | None = None) -> Trickle:
    return Trickle(read_offer(OFFER), clock or Clock())


def fragment(ports: range, *, component: int = 1, transport: str = "udp", kind: str = "host", mid: str = "0") -> str:
    lines = [f"a=candidate:{port} {component} {transport} 1 192.0.2.7 {port} typ {kind}" for port in ports]
    return "\r\n".join([f"a=mid:{mid}", *lines])


def refused(trickle: Trickle, text: str) -> str:
    with pytest.raises(ApiError) as caught:
        trickle.read(text)
    return caught.value.code


def test_a_connection_takes_so_many_candidates_in_its_life_and_each_once() -> None:
    known = trickle()
    assert len(known.read(fragment(range(1, 31)))) == 30
    assert known.read(fragment(range(1, 31))) == [], "told again"
    assert known.read(fragment(range(1, 31), mid="1")) == [], "of another section that shares the connection"
    assert refused(known, fragment(range(20, 20 + MAX_CANDIDATES))) == "candidates_full"
    assert len(known.read(fragment(range(31, MAX_CANDIDATES + 1 - OF_OFFER)))) == MAX_CANDIDATES - 30 - OF_OFFER
    assert refused(known, fragment(range(100, 101))) == "candidates_full"
    assert known.read(fragment(range(1, 2))) == [] and known.read("a=end-of-candidates") == []


def test_those_of_the_offer_count_and_come_no_second_time() -> None:
    known = trickle()
    assert known.read("a=mid:0\r\na=candidate:9 1 udp 5 192.0.2.7 50000 typ host") == []
    assert known.read("a=mid:0\r\na=candidate:9 1 udp 5 192.0.2.7 50001 typ host") != []


def test_an_address_counts_once_however_it_is_spelled() -> None:
    known, line = trickle(), "a=mid:0\r\na=candidate:9 1 udp 5 {} 9 typ host"
    assert len(known.read(line.format("2001:db8::1"))) == 1
    assert known.read(line.format("2001:0DB8:0::1")) == []


@pytest.mark.parametrize("unusable", [{"component": 2}, {"transport": "tcp"}, {"kind": "prflx"}])
def test_a_candidate_that_no_connection_uses_is_left_out_and_counts_nowhere(unusable: dict[str, str | int]) -> None:
    """One for reports alone, at the peer's own place, would be taken for the peer's."""
    known = trickle()
    assert known.read(fragment(range(1, MAX_CANDIDATES + 1), **unusable)) == []  # type: ignore[arg-type]
    assert len(known.read(fragment(range(1, MAX_CANDIDATES + 1 - OF_OFFER)))) == MAX_CANDIDATES - OF_OFFER
    words = {"component": "1 2 udp", "transport": "1 1 tcp", "kind": "1 1 udp"}[next(iter(unusable))]
    line = f"a=candidate:{words} 1 192.0.2.8 9 typ {unusable.get('kind', 'host')}"
    offer = read_offer(OFFER.replace("a=ice-ufrag", f"{line}\na=ice-ufrag", 1))
    assert "192.0.2.8" not in offer.sdp and len(offer.places) == OF_OFFER


def test_fragments_have_a_rate() -> None:
    clock = Clock()
    known = trickle(clock)
    for _ in range(MAX_FRAGMENTS_PER_S):
        assert refused(known, "nonsense") == "sdp_invalid"
    assert refused(known, fragment(range(1, 2))) == "fragments_too_fast"
    clock.now_s = 1 / MAX_FRAGMENTS_PER_S
    assert len(known.read(fragment(range(1, 2)))) == 1
    assert refused(known, fragment(range(2, 3))) == "fragments_too_fast"


def test_a_fragment_that_is_refused_takes_no_place() -> None:
    known, all_that_fit = trickle(), range(1, MAX_CANDIDATES + 1 - OF_OFFER)
    assert refused(known, fragment(all_that_fit, mid="9")) == "sdp_invalid"
    assert refused(known, fragment(all_that_fit) + "\r\na=ice-ufrag:other") == "ice_restart_unsupported"
    assert len(known.read(fragment(all_that_fit))) == len(all_that_fit)


async def test_a_flood_of_candidates_is_stopped_at_the_door() -> None:
    async with served() as server:
        session, peer = await server.create(), RtcPeer(with_video=False, with_channel=True)
        try:
            body = {"type": "offer", "sdp": await peer.offer()}
        finally:
            await peer.close()
        answer = await server.http.post(f"/v1/sessions/{session['id']}/webrtc", json=body)
        seen = []
        for first in range(1, 64 * MAX_FRAGMENTS_PER_S, 60):
            text = fragment(range(first, first + 60))
            patched = await server.http.patch(answer.headers["location"], json={"sdp_fragment": text})
            seen.append((patched.status_code, "" if patched.status_code == 204 else patched.json()["error"]["code"]))
        assert seen[0] == (204, "")
        assert seen[1:MAX_FRAGMENTS_PER_S] == [(409, "candidates_full")] * (MAX_FRAGMENTS_PER_S - 1)
        assert seen[MAX_FRAGMENTS_PER_S:] and set(seen[MAX_FRAGMENTS_PER_S:]) == {(429, "fragments_too_fast")}
        assert patched.headers["retry-after"] == "1" and patched.json()["error"]["retryable"]
        (connection,) = server.services.rtc._connections.values()
        (transport,) = connection.link._ice_transports()
        assert len(transport._connection.remote_candidates) <= MAX_CANDIDATES
