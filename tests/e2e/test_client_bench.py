"""The load client against the real daemon, over every carrier."""

from __future__ import annotations

import asyncio

import pytest

from ithaka_client.bench.load import run
from ithaka_client.bench.plan import Delivery, Plan, TransportName
from tests.e2e.live_daemon import KEY
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
