"""Peers of the real daemon that mean ill, inside a DTLS association of their own, while another session plays."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests import rtc_hostile as hostile
from tests.e2e.live_daemon import CONFIG, barcode_of, create, delete
from tests.e2e.running_daemon import RunningDaemon, running_daemon
from tests.e2e.test_webrtc_live import FPS, KEY_INTERVAL, answering, played
from tests.rtc_peer import RtcPeer, connected

MAX_GROWTH_MIB = 16.0
"""Allocators breathe; an endless message alone would be several times as much."""
ENDLESS_BYTES = 64 * 2**20


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    folder: Path = tmp_path_factory.mktemp("hostile")
    with running_daemon(folder, CONFIG + "log: {level: warning}\n") as running:
        yield running


@contextlib.asynccontextmanager
async def session_of(daemon: RunningDaemon) -> AsyncIterator[dict[str, Any]]:
    created = create(daemon, delivery="live")
    try:
        yield created
    finally:
        delete(daemon, created)


async def odd(peer: RtcPeer) -> None:
    await hostile.send_everything_odd(peer)


async def scattered(peer: RtcPeer) -> None:
    await hostile.send_scattered(peer, 20_000)


async def endless(peer: RtcPeer) -> None:
    await hostile.send_endless(peer, ENDLESS_BYTES)
    await peer.closed()


async def not_utf8(peer: RtcPeer) -> None:
    await hostile.sctp_of(peer)._send(channel_id(peer), hostile.TEXT, b"\xff\xfe{")
    await peer.closed()


async def opened_twice(peer: RtcPeer) -> None:
    opening = struct.pack("!BBHLHH", 3, 0, 0, 0, 1, 0) + b"x"
    await hostile.sctp_of(peer)._send(channel_id(peer), hostile.DCEP, opening)
    await peer.closed()


async def many_channels(peer: RtcPeer) -> None:
    for number in range(1500):
        peer.connection.createDataChannel(f"{number}")
    await peer.closed()


def asking_by_fir(daemon: RunningDaemon, session: dict[str, Any]) -> Callable[[str], Awaitable[str]]:
    """As browsers offer it, for H.264 alone; it stands in the answer too."""
    exchange = answering(daemon, session)

    async def offer_fir(offer: str) -> str:
        pli = next(line for line in offer.splitlines() if line.endswith(" nack pli"))
        fir = pli.replace(" nack pli", " ccm fir")
        assert fir not in offer
        answer = await exchange(offer.replace(pli, f"{pli}\r\n{fir}"))
        assert [line for line in answer.splitlines() if line.endswith(" ccm fir")] == [fir]
        return answer

    return offer_fir


def channel_id(peer: RtcPeer) -> int:
    assert peer.channel is not None and isinstance(peer.channel.id, int)
    return peer.channel.id


def resident_mib(daemon: RunningDaemon) -> float:
    return float(psutil.Process(daemon.pid).memory_info().rss) / 2**20


async def test_others_notice_nothing_of_peers_that_mean_ill(daemon: RunningDaemon) -> None:
    attacks: tuple[Callable[[RtcPeer], Awaitable[None]], ...] = (odd, scattered, endless, not_utf8, opened_twice, many_channels)
    async with session_of(daemon) as good, session_of(daemon) as bad, played(daemon, good) as player:
        numbers = [barcode_of(await player.picture()).number]
        before_mib = 0.0
        for attack in (odd, *attacks):
            async with connected(answering(daemon, bad), with_video=True) as peer:
                await peer.greet()
                await peer.picture()
                # Whatever the first connection of a kind loads is loaded by now.
                before_mib = before_mib or resident_mib(daemon)
                await attack(peer)
            while not player.pictures.empty():
                numbers.append(barcode_of(await player.picture()).number)
        for _ in range(FPS):
            numbers.append(barcode_of(await player.picture()).number)
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert resident_mib(daemon) - before_mib < MAX_GROWTH_MIB
    assert daemon.log.read_text() == ""


@pytest.mark.parametrize("names_media", [False, True])
async def test_a_full_intra_request_brings_a_key_frame(daemon: RunningDaemon, names_media: bool) -> None:
    """RFC 5104: the streams stand in its entries, and the header's field for one says 0; or not."""
    async with session_of(daemon) as session, connected(asking_by_fir(daemon, session), with_video=True) as peer:
        await peer.greet()
        assert (await peer.picture()).key_frame
        for _ in range(9):
            await peer.picture()
        (receiver,) = [known for known in peer.connection.getReceivers() if known.track.kind == "video"]
        (source,) = receiver._RTCRtpReceiver__active_ssrc  # type: ignore[attr-defined]
        fir = struct.pack("!BBHLLLBxxx", 0x84, 206, 4, 1, source if names_media else 0, source, 1)
        await hostile.dtls_of(peer)._send_rtp(fir)
        seen = 10
        while not (await peer.picture()).key_frame:
            seen += 1
        assert seen < KEY_INTERVAL - 2, "sooner than by itself"
