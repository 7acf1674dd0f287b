"""A network that loses and delays datagrams, in user space: it stands between a peer and the server's candidates."""

from __future__ import annotations

import asyncio
import random
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass

Address = tuple[str, int]
_CANDIDATE = re.compile(r"^(a=candidate:\S+ \d+ udp \d+) (\S+) (\d+) (typ host.*)$", re.MULTILINE)


@dataclass(slots=True)
class Way:
    """One direction: what was passed on, and what was not."""

    loss: float
    delay_s: float
    random: random.Random
    passed: int = 0
    lost: int = 0

    def carry(self, send: Callable[[], None]) -> None:
        if self.random.random() < self.loss:
            self.lost += 1
            return
        self.passed += 1
        asyncio.get_running_loop().call_later(self.delay_s, send)


class LossyRelay:
    """Each datagram is lost with ``loss``, the others come ``delay_s`` later, either way; ``seed`` repeats a run's losses."""

    def __init__(self, *, loss: float, delay_s: float, seed: int) -> None:
        self.down = Way(loss, delay_s, random.Random(f"{seed} down"))
        """From the server."""
        self.up = Way(loss, delay_s, random.Random(f"{seed} up"))
        self._ends: list[asyncio.DatagramTransport] = []

    async def reroute(self, sdp: str) -> str:
        """The server's answer, with this relay in the place of its host candidates."""
        for _, host, port, _ in _CANDIDATE.findall(sdp):
            near_host, near_port = await self.stand_before((host, int(port)))
            sdp = sdp.replace(f" {host} {port} typ host", f" {near_host} {near_port} typ host")
        return sdp

    async def stand_before(self, server: Address) -> Address:
        """An address on loopback that leads to ``server``, for one peer."""
        loop = asyncio.get_running_loop()
        far_end, near_end = _End(), _End()
        far, _ = await loop.create_datagram_endpoint(lambda: far_end, remote_addr=server)
        near, _ = await loop.create_datagram_endpoint(lambda: near_end, local_addr=("127.0.0.1", 0), family=socket.AF_INET)
        self._ends += [far, near]
        peer: list[Address] = []

        def from_peer(data: bytes, address: Address) -> None:
            peer[:] = [address]
            self.up.carry(lambda: far.sendto(data))

        def from_server(data: bytes, _: Address) -> None:
            if peer:
                self.down.carry(lambda: near.sendto(data, peer[0]))

        near_end.received, far_end.received = from_peer, from_server
        host, port = near.get_extra_info("sockname")
        return str(host), int(port)

    async def close(self) -> None:
        for end in self._ends:
            end.close()
        # Sockets close in the loop's next turn.
        await asyncio.sleep(0)


class _End(asyncio.DatagramProtocol):
    def __init__(self) -> None:
        self.received: Callable[[bytes, Address], None] = lambda data, address: None

    def datagram_received(self, data: bytes, addr: Address) -> None:
        self.received(data, addr)
