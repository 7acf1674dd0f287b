"""The load client against the real daemon, over every carrier."""

from __future__ import annotations

import asyncio

import pytest

from ithaka_client import AccessError, StreamRefusedError
from ithaka_client.bench.access_unit import AccessUnit
from ithaka_client.bench.carriers import Carrier, carrier_of
from ithaka_client.bench.load import run
from ithaka_client.bench.plan import Delivery, Plan, TransportName
from tests.e2e.live_daemon import KEY, create, delete
from tests.e2e.running_daemon import RunningDaemon


@pytest.fixture
def daemon(live: RunningDaemon) -> RunningDaemon:
    return live


@pytest.mark.parametrize(
    ("transport", "delivery"),
    [("websocket", "lossless"), ("datachannel", "lossless"), ("webrtc", "live"), ("websocket", "live")],
)
def test_every_declared_frame_is_accounted_for(daemon: RunningDaemon, transport: TransportName, delivery: Delivery) -> None:
    result = asyncio.run(run(Plan(daemon.url, KEY, "numbers", 2, transport, delivery, 3.0, 10.0, True)))
    for session in result.sessions:
        assert session.error is None
        assert session.declared_frames >= 32
        assert session.received_frames + session.lost_frames == session.declared_frames
        assert len(session.lost) == session.lost_frames, "each is named"
        if delivery == "lossless":
            assert session.lost_frames == 0, f"lost on loopback: {session.lost}"
        assert session.control_to_photon_ms.p50 is not None


def test_a_track_in_vp8_is_accounted_for_by_the_messages_beside_it(daemon: RunningDaemon) -> None:
    result = asyncio.run(run(Plan(daemon.url, KEY, "numbers", 1, "webrtc", "live", 3.0, 10.0, True, codec="vp8")))
    (session,) = result.sessions
    assert session.error is None
    assert session.received_frames + session.lost_frames == session.declared_frames >= 32
    assert session.lost_frames <= session.declared_frames // 4, session.lost
    assert session.control_to_photon_ms.p50 is not None


def test_without_controls_and_decoder_it_only_receives(daemon: RunningDaemon) -> None:
    result = asyncio.run(run(Plan(daemon.url, KEY, "numbers", 1, "webrtc", "live", 1.0, 0.0, False)))
    assert result.sessions[0].error is None and result.sessions[0].control_to_photon_ms.p50 is None


@pytest.mark.parametrize(
    ("transport", "delivery"), [("websocket", "lossless"), ("webrtc", "live"), ("datachannel", "lossless")]
)
def test_sessions_beyond_the_places_wait_for_theirs_whatever_carries_them(
    daemon: RunningDaemon, transport: TransportName, delivery: Delivery
) -> None:
    holders = [create(daemon) for _ in range(3)]
    try:
        result = asyncio.run(run(Plan(daemon.url, KEY, "numbers", 2, transport, delivery, 0.5, 0.0, False)))
    finally:
        for holder in holders:
            delete(daemon, holder)
    assert [(session.error, session.received_frames > 0) for session in result.sessions] == [(None, True)] * 2


@pytest.mark.parametrize(
    ("transport", "kind"), [("websocket", StreamRefusedError), ("webrtc", AccessError), ("datachannel", AccessError)]
)
def test_what_the_server_refuses_is_told_in_its_words(
    daemon: RunningDaemon, transport: TransportName, kind: type[Exception]
) -> None:
    held = create(daemon)
    plan = Plan(daemon.url, KEY, "numbers", 1, transport, "live", 1.0, 0.0, False)

    async def knock() -> None:
        carrier = carrier_of(plan, f"/v1/sessions/{held['id']}", "no-token")
        try:
            await carrier.open()
            # A WebSocket is closed with the words.
            while await carrier.receive() is not None:
                pass
        finally:
            await carrier.close()

    with pytest.raises(kind, match=r"\[[a-z_]+\]$") as caught:
        asyncio.run(knock())
    assert "http" not in str(caught.value)
    delete(daemon, held)


class EndingCarrier:
    """A real one that is over after its first picture."""

    def __init__(self, inner: Carrier) -> None:
        self._inner = inner
        self._is_over = False
        self.acknowledges = inner.acknowledges
        self.open, self.send, self.close = inner.open, inner.send, inner.close

    async def receive(self) -> str | AccessUnit | None:
        if self._is_over:
            return None
        item = await self._inner.receive()
        self._is_over = isinstance(item, AccessUnit)
        return item


def test_a_connection_that_is_over_too_early_is_an_error(daemon: RunningDaemon) -> None:
    plan = Plan(daemon.url, KEY, "numbers", 1, "websocket", "lossless", 1.0, 0.0, False)
    result = asyncio.run(run(plan, lambda *known: EndingCarrier(carrier_of(*known))))
    assert result.sessions[0].error == "The connection ended while waiting for frame 2. [connection_lost]"
