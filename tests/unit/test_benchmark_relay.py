"""The lossy network of the benchmarks: what it loses is told by its seed, and nothing else is changed."""

from __future__ import annotations

import asyncio
import socket
from functools import partial
from typing import cast

from benchmarks.lossy_relay import LossyRelay

DEADLINE_S = 10
NUM_DATAGRAMS = 400


class Echo(asyncio.DatagramProtocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self.transport.sendto(data, addr)


async def test_a_network_without_loss_passes_everything() -> None:
    loop = asyncio.get_running_loop()
    relay = LossyRelay(loss=0.0, delay_s=0.0, seed=1)
    server, _ = await loop.create_datagram_endpoint(Echo, local_addr=("127.0.0.1", 0))
    near = await relay.stand_before(server.get_extra_info("sockname"))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.setblocking(False)
        peer.connect(near)
        for number in range(20):
            await loop.sock_sendall(peer, bytes([number]))
            async with asyncio.timeout(DEADLINE_S):
                assert await loop.sock_recv(peer, 16) == bytes([number])
    server.close()
    await relay.close()
    assert (relay.up.lost, relay.down.lost, relay.up.passed, relay.down.passed) == (0, 0, 20, 20)


async def passed_of(seed: int, *, loss: float) -> list[int]:
    relay, passed, done = LossyRelay(loss=loss, delay_s=0.001, seed=seed), list[int](), asyncio.Event()
    for number in range(NUM_DATAGRAMS):
        relay.down.carry(partial(passed.append, number))
    asyncio.get_running_loop().call_later(0.002, done.set)
    await done.wait()
    assert (relay.down.passed, relay.down.lost) == (len(passed), NUM_DATAGRAMS - len(passed))
    return passed


async def test_the_seed_says_which_are_lost() -> None:
    first, again, other = [await passed_of(seed, loss=0.1) for seed in (1, 1, 2)]
    assert first == again != other
    assert 0.8 * NUM_DATAGRAMS < len(first) < NUM_DATAGRAMS
    assert await passed_of(1, loss=1.0) == []


async def test_an_answer_leads_to_the_relay() -> None:
    relay = LossyRelay(loss=0.0, delay_s=0.0, seed=1)
    line = "a=candidate:1 1 udp 2130706431 127.0.0.1 50000 typ host"
    rerouted = await relay.reroute(f"v=0\r\n{line}\r\na=mid:0\r\n")
    await relay.close()
    assert line not in rerouted and rerouted.startswith("v=0\r\na=candidate:1 1 udp 2130706431 127.0.0.1 ")
    assert rerouted.endswith(" typ host\r\na=mid:0\r\n")
