"""The bit rate of a live session follows its controller, and nobody else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from aiortc.rtp import RTCP_PSFB_APP, RtcpPsfbPacket, pack_remb_fci
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rtc_peer import RtcPeer, connected
from tests.rtc_served import exchange
from tests.served import Served, served

from ithaka.configs.schema import EncodeSection
from ithaka.server.live_rate import LiveRates

SECTION = EncodeSection(live_bits_per_s=2_000_000, live_min_bits_per_s=1_000_000, live_max_bits_per_s=4_000_000)


@settings(deadline=None)
@given(st.lists(st.integers(0, 10**9), max_size=30))
def test_the_rate_stays_in_its_bounds_and_small_changes_are_none(estimates: list[int]) -> None:
    rates, current = LiveRates(SECTION), 2_000_000
    assert rates.open("s") == current
    for estimate in estimates:
        changed = rates.estimate("s", estimate)
        wanted = min(max(estimate, 1_000_000), 4_000_000)
        assert changed == (wanted if abs(wanted - current) >= 0.1 * current else None)
        current = current if changed is None else changed


def test_a_session_without_a_rate_has_none_to_follow() -> None:
    rates = LiveRates(SECTION)
    assert rates.estimate("lossless", 3_000_000) is None
    rates.open("s")
    rates.close("s")
    assert rates.estimate("s", 3_000_000) is None


def test_bounds_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="live_bits_per_s lies between"):
        EncodeSection(live_bits_per_s=100_000)


async def send_estimate(server: Served, peer: RtcPeer, bits_per_s: int) -> None:
    """As a browser's receiver does; returns when the server's newest connection has heard it."""
    (receiver,) = peer.connection.getReceivers()
    link = [known.link for known in server.services.rtc._connections.values()][-1]
    heard, feedback = list[int](), link._feedback

    def note(estimate: int) -> None:
        heard.append(estimate)
        feedback.bitrate_estimated(estimate)

    link._feedback = replace(feedback, bitrate_estimated=note)
    (sender,) = link._connection.getSenders()
    fci = pack_remb_fci(bits_per_s, [sender._ssrc])
    await receiver._send_rtcp(RtcpPsfbPacket(fmt=RTCP_PSFB_APP, ssrc=1, media_ssrc=0, fci=fci))
    await server.until(lambda: any(abs(estimate - bits_per_s) < bits_per_s / 100 for estimate in heard))
    link._feedback = feedback


async def test_only_the_controllers_estimate_reaches_the_engine() -> None:
    async with served() as server:
        session = await server.create(delivery="live")
        async with connected(exchange(server, session), with_video=True) as controller:
            await controller.greet()
            await send_estimate(server, controller, 1_500_000)
            assert (session["id"], 1_500_000) in [(known, round(bits, -4)) for known, bits in server.engine.bitrates]
            token = (await server.http.post(f"/v1/sessions/{session['id']}/token", json={"role": "viewer"})).json()["token"]
            async with connected(exchange(server, session, token), with_video=True) as viewer:
                await viewer.expect("hello")
                await send_estimate(server, viewer, 300_000)
                assert all(bits > 1_000_000 for _, bits in server.engine.bitrates)
