"""A stranger's datagrams at the port of a session that plays: it goes on, says nothing of them, and keeps nothing of them."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest

from tests.e2e.live_daemon import barcode_of, bearer, create, delete
from tests.e2e.running_daemon import RunningDaemon
from tests.rtc_peer import connected

NUM_ROUNDS = 4
PICTURES_A_ROUND = 16
MAX_GROWTH_BYTES = 8 * 1024 * 1024
COOKIE = bytes.fromhex("2112a442")
ATTRIBUTES = (0x01, 0x06, 0x08, 0x09, 0x0C, 0x0D, 0x12, 0x14, 0x16, 0x19, 0x20, 0x24, 0x25, 0x8022, 0x8028, 0x8029, 0x802A)
KINDS = (0x0001, 0x0011, 0x0101, 0x0111)


@pytest.fixture
def daemon(live: RunningDaemon) -> RunningDaemon:
    return live


@pytest.fixture
def session(daemon: RunningDaemon) -> Iterator[dict[str, Any]]:
    created = create(daemon, delivery="live")
    yield created
    delete(daemon, created)


def hostile(seed: int) -> list[bytes]:
    """A little more than a thousand."""
    chance = random.Random(seed)
    datagrams = [b"", *(bytes([first]) for first in range(256))]
    for kind in KINDS:
        for number in ATTRIBUTES:
            for length in (0, 1, 3, 4, 9):
                datagrams.append(stun(kind, struct.pack("!HH", number, length) + b"\xff" * length + bytes(-length % 4)))
            datagrams.append(stun(kind, struct.pack("!HH", number, 60_000)))
    for first in (0, 1, 20, 21, 22, 23, 47, 128, 191):
        datagrams += [bytes([first]) + chance.randbytes(chance.randrange(1400)) for _ in range(40)]
    for record in (20, 21, 22, 23):
        body = chance.randbytes(40)
        datagrams += [struct.pack("!BHHIHH", record, 0xFEFD, epoch, 0, 0, len(body)) + body for epoch in (0, 1, 2)]
    chance.shuffle(datagrams)
    return datagrams


def stun(kind: int, body: bytes) -> bytes:
    return struct.pack("!HH", kind, len(body)) + COOKIE + bytes(12) + body


async def test_a_session_plays_on_through_a_strangers_datagrams(daemon: RunningDaemon, session: dict[str, Any]) -> None:
    told: list[str] = []

    async def exchange(offer: str) -> str:
        async with httpx.AsyncClient(base_url=daemon.url, trust_env=False) as http:
            body = {"type": "offer", "sdp": offer}
            answer = await http.post(f"/v1/sessions/{session['id']}/webrtc", json=body, headers=bearer(session))
            told.append(answer.json()["sdp"])
            return told[0]

    process = psutil.Process(daemon.pid)
    async with connected(exchange, with_video=True) as peer:
        await peer.greet()
        numbers = [barcode_of(await peer.picture()).number]
        log_bytes = daemon.log.stat().st_size
        (line,) = {line for line in told[0].splitlines() if line.startswith("a=candidate")}
        address, port = line.split()[4:6]
        num_sent, sizes = 0, []
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            for seed in range(NUM_ROUNDS):
                for datagram in hostile(seed):
                    stranger.sendto(datagram, (address, int(port)))
                    num_sent += 1
                    await asyncio.sleep(0)
                numbers += [barcode_of(await peer.picture()).number for _ in range(PICTURES_A_ROUND)]
                sizes.append(process.memory_info().rss)
        assert num_sent > 4000
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), "no picture is lost"
        assert daemon.log.read_bytes()[log_bytes:] == b""
        assert sizes[-1] - sizes[0] < MAX_GROWTH_BYTES, "nothing is kept"
