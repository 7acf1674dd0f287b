"""Where a connection listens, and what its peer is told of it: chosen addresses, chosen ports, another address in their place.

aioice has a setting for none of these, so its gathering is replaced, by its own parts. ``check`` says whether they are there.
"""

from __future__ import annotations

import asyncio
import errno
import inspect
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import structlog
from aioice import Candidate, Connection, ice
from aioice.candidate import candidate_foundation, candidate_priority
from aiortc import RTCIceServer

from ithaka.server.transports.webrtc.listener import Hearing, Listener

RECEIVE_BUFFER_BYTES = 256 * 1024
STUN_TIMEOUT_S = 5.0
_ANY_ADDRESS = {4: "0.0.0.0", 6: "::"}

log = structlog.get_logger()


class GatheringError(Exception):
    """The settings can't be met on this machine; the message says what to change."""


class PortsTakenError(Exception):
    """Every port of the range has a connection."""


@dataclass(frozen=True, slots=True)
class IceSettings:
    """``host_addresses`` None: every address of this machine but loopback. ``ports`` None: as the system hands them out.

    ``announced_address``: what peers are told in place of this machine's own addresses, at the same port; then one socket
    listens on all of them.
    """

    host_addresses: tuple[str, ...] | None
    servers: tuple[RTCIceServer, ...] = ()
    ports: range | None = None
    announced_address: str | None = None


def _ignore() -> None:
    """Nobody wants to know."""


class Gathering:
    """For all connections of a server: a port is used again as late as possible, so that nobody hears the one before."""

    def __init__(self, settings: IceSettings) -> None:
        self._settings = settings
        self._num_taken = 0

    @property
    def servers(self) -> tuple[RTCIceServer, ...]:
        return self._settings.servers

    def check(self) -> None:
        """Raises GatheringError."""
        parameters = list(inspect.signature(Connection.get_component_candidates).parameters)
        is_known = parameters[:3] == ["self", "component", "addresses"]
        if not is_known or not {"StunProtocol", "server_reflexive_candidate"} <= vars(ice).keys():
            raise GatheringError("this aioice is none that the server knows; install the version of requirements.lock")
        for address in self._settings.host_addresses or ():
            try:
                _bound(address, 0).close()
            except OSError as error:
                raise GatheringError(
                    f"webrtc.host_candidates: {address} is no address of this machine: {error.strerror}"
                ) from None

    def lead(self, agent: Connection, on_heard: Callable[[], None] = _ignore) -> None:
        """``agent``, which has not gathered yet, gathers here; ``on_heard`` is called when its peer has proven to be there."""
        hearing = Hearing(agent, on_heard)

        async def gather(component: int, addresses: list[str]) -> list[Candidate]:
            protocols = []
            for address in self._addresses(addresses):
                protocol = await self._listen(agent, component, address, hearing)
                if protocol is not None:
                    agent._protocols.append(protocol)
                    protocols.append(protocol)
            candidates = [protocol.local_candidate for protocol in protocols]
            if agent.stun_server is not None:
                candidates += await _reflexive(protocols, agent.stun_server)
            return candidates

        agent.get_component_candidates = gather  # type: ignore[method-assign,assignment]

    def _addresses(self, found: list[str]) -> list[str]:
        announced = self._settings.announced_address
        if announced is not None:
            return [_ANY_ADDRESS[6 if ":" in announced else 4]]
        return found if self._settings.host_addresses is None else list(self._settings.host_addresses)

    async def _listen(self, agent: Connection, component: int, address: str, hearing: Hearing) -> ice.StunProtocol | None:
        """None where this address can't be used. Raises PortsTakenError."""
        try:
            listener = self._take(address)
        except OSError as error:
            log.warning("webrtc.address_unusable", address=address, reason=error.strerror)
            return None
        told, port = self._settings.announced_address or address, listener.getsockname()[1]
        loop = asyncio.get_running_loop()
        _, protocol = await loop.create_datagram_endpoint(lambda: Listener(agent, hearing), sock=listener)
        protocol.local_candidate = Candidate(
            foundation=candidate_foundation("host", "udp", told),
            component=component,
            transport="udp",
            priority=candidate_priority(component, "host"),
            host=told,
            port=port,
            type="host",
        )
        return protocol

    def _take(self, address: str) -> socket.socket:
        """Raises PortsTakenError, OSError."""
        for port in self._ports():
            self._num_taken += 1
            try:
                return _bound(address, port)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
        raise PortsTakenError(f"no UDP port is free at {address}; webrtc.udp_ports may take more")

    def _ports(self) -> Iterator[int]:
        ports = self._settings.ports
        if ports is None:
            yield 0
            return
        first = self._num_taken
        for index in range(len(ports)):
            yield ports[(first + index) % len(ports)]


def _bound(address: str, port: int) -> socket.socket:
    """Raises OSError."""
    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        listener.setblocking(False)
        listener.bind((address, port))
    except OSError:
        listener.close()
        raise
    return listener


async def _reflexive(protocols: list[ice.StunProtocol], server: tuple[str, int]) -> list[Candidate]:
    """As a STUN server sees them; it is asked over IPv4, and one that does not answer in time is left out."""
    asked = [
        asyncio.create_task(ice.server_reflexive_candidate(protocol, server))
        for protocol in protocols
        if ":" not in protocol.local_candidate.host
    ]
    if not asked:
        return []
    done, late = await asyncio.wait(asked, timeout=STUN_TIMEOUT_S)
    for task in late:
        task.cancel()
    return [task.result()[0] for task in done if task.exception() is None]
