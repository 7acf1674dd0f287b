"""Where a connection listens: in the range of ports, at the chosen addresses, and what peers are told of it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aioice
import pytest
from aioice import ice
from aiortc.sdp import SessionDescription
from tests.fakes import READY, FakeEngine
from tests.rtc_peer import RtcPeer, connected
from tests.served import Served, config_for, served

from ithaka.configs.load import ConfigError, load_config
from ithaka.server.transports.webrtc.gathering import Gathering, GatheringError, IceSettings, PortsTakenError

NUM_PORTS = 3


@pytest.fixture
def ports() -> Iterator[range]:
    """So many free ones in a row; found by taking them."""
    for first in range(31_000, 32_700, NUM_PORTS):
        found = range(first, first + NUM_PORTS)
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in found:
                stack.enter_context(taken(port))
            stack.close()
            yield found
            return
    pytest.fail("no free ports in a row")


@contextlib.contextmanager
def taken(port: int) -> Iterator[None]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", port))
        yield


@contextlib.asynccontextmanager
async def agent(led_by: Gathering, **options: Any) -> AsyncIterator[aioice.Connection]:
    connection = aioice.Connection(ice_controlling=False, **options)
    led_by.lead(connection)
    try:
        yield connection
    finally:
        await connection.close()


def places(connection: aioice.Connection) -> list[tuple[str, int, str]]:
    return [(known.host, known.port, known.type) for known in connection.local_candidates]


async def offer_to(server: Served, session: dict[str, Any], peer: RtcPeer) -> tuple[int, dict[str, Any]]:
    answer = await server.http.post(
        f"/v1/sessions/{session['id']}/webrtc",
        json={"type": "offer", "sdp": await peer.offer()},
        headers={"Authorization": f"Bearer {session['token']}"},
    )
    return answer.status_code, answer.json()


def candidates_of(sdp: str) -> list[tuple[str, int]]:
    media = SessionDescription.parse(sdp).media
    return [(candidate.ip, candidate.port) for section in media for candidate in section.ice_candidates]


async def test_connections_listen_in_the_range_alone_and_one_too_many_is_refused(ports: range) -> None:
    config = config_for(webrtc={"udp_ports": f"{ports[0]}-{ports[-1]}"})
    async with served(config, FakeEngine(READY)) as server, contextlib.AsyncExitStack() as stack:
        session = await server.create()
        told: list[tuple[str, int]] = []
        for _ in ports:
            peer = RtcPeer(with_video=False, with_channel=True)
            stack.push_async_callback(peer.close)
            status, answer = await offer_to(server, session, peer)
            assert status == 201
            told += candidates_of(answer["sdp"])
        assert sorted(told) == [("127.0.0.1", port) for port in ports]
        last = RtcPeer(with_video=False, with_channel=True)
        stack.push_async_callback(last.close)
        status, answer = await offer_to(server, session, last)
        assert (status, answer["error"]["code"]) == (503, "connections_full")
        assert "webrtc.udp_ports" in answer["error"]["message"]
        assert server.services.rtc.num_open == len(ports), "a refused one holds nothing"


async def test_a_session_plays_over_a_port_of_the_range(ports: range) -> None:
    """The peer's own view of where the packets come from."""
    config = config_for(webrtc={"udp_ports": f"{ports[0]}-{ports[-1]}"})
    async with served(config, FakeEngine(READY)) as server:
        session = await server.create()

        async def exchange(offer: str) -> str:
            body, headers = {"type": "offer", "sdp": offer}, {"Authorization": f"Bearer {session['token']}"}
            return str(
                (await server.http.post(f"/v1/sessions/{session['id']}/webrtc", json=body, headers=headers)).json()["sdp"]
            )

        async with connected(exchange) as peer:
            await peer.greet()
            assert (await peer.frame()).seq == 1
            assert peer.connection.sctp is not None
            (pair,) = peer.connection.sctp.transport.transport._connection._nominated.values()
            assert pair.remote_addr[1] in ports


async def test_a_port_that_another_program_has_is_passed_over(ports: range) -> None:
    settings = IceSettings(("127.0.0.1",), ports=ports)
    with taken(ports[0]), taken(ports[2]):
        led = Gathering(settings)
        for _ in range(3):
            async with agent(led) as connection:
                await connection.gather_candidates()
                assert places(connection) == [("127.0.0.1", ports[1], "host")]


async def test_a_port_comes_again_as_late_as_it_can(ports: range) -> None:
    led, seen = Gathering(IceSettings(("127.0.0.1",), ports=ports)), []
    for _ in range(2 * NUM_PORTS):
        async with agent(led) as connection:
            await connection.gather_candidates()
            seen.append(connection.local_candidates[0].port)
    assert seen == [*ports, *ports]


async def test_ports_that_are_all_taken_are_told(ports: range) -> None:
    led = Gathering(IceSettings(("127.0.0.1",), ports=range(ports[0], ports[0] + 1)))
    with taken(ports[0]):
        async with agent(led) as connection:
            with pytest.raises(PortsTakenError, match="no UDP port is free"):
                await connection.gather_candidates()


async def test_peers_are_told_the_announced_address_and_find_the_server_there(ports: range) -> None:
    """One socket on all addresses; here another of loopback's stands for the one outside."""
    led = Gathering(IceSettings(None, ports=ports, announced_address="127.0.0.7"))
    async with agent(led) as server, agent(Gathering(IceSettings(("127.0.0.1",)))) as peer:
        peer.ice_controlling = True
        for one in (server, peer):
            await one.gather_candidates()
        assert places(server) == [("127.0.0.7", ports[0], "host")]
        for one, other in ((server, peer), (peer, server)):
            for candidate in other.local_candidates:
                await one.add_remote_candidate(candidate)
            await one.add_remote_candidate(None)
            one.remote_username, one.remote_password = other.local_username, other.local_password
        await asyncio.gather(server.connect(), peer.connect())
        packet = b"\x80 and what a packet has"
        await peer.send(packet)
        assert await server.recv() == packet


async def test_without_settings_every_address_that_was_found_is_used() -> None:
    async with agent(Gathering(IceSettings(None))) as connection:
        found = await connection.get_component_candidates(component=1, addresses=["127.0.0.1", "127.0.0.2"])
        assert [known.host for known in found] == ["127.0.0.1", "127.0.0.2"]
        assert len({known.port for known in found}) == 2


async def test_an_address_that_has_gone_is_left_out() -> None:
    async with agent(Gathering(IceSettings(("127.0.0.1", "192.0.2.7")))) as connection:
        await connection.gather_candidates()
        assert [host for host, _, _ in places(connection)] == ["127.0.0.1"]


def test_an_address_of_another_machine_keeps_the_server_from_starting() -> None:
    with pytest.raises(GatheringError, match=r"webrtc\.host_candidates: 192\.0\.2\.7"):
        Gathering(IceSettings(("192.0.2.7",))).check()


def test_another_aioice_keeps_the_server_from_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    Gathering(IceSettings(None)).check()
    monkeypatch.delattr(ice, "server_reflexive_candidate")
    with pytest.raises(GatheringError, match=r"requirements\.lock"):
        Gathering(IceSettings(None)).check()


@pytest.mark.parametrize("text", ["50000", "50010-50000", "80-90", "50000-70000", "a-b", "50000-50010-50020"])
def test_a_range_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"webrtc\.udp_ports"):
        load_config(None, {"webrtc": {"udp_ports": text}}, {})


def test_the_range_comes_from_the_environment_too() -> None:
    config = load_config(None, {}, {"ITHAKA_WEBRTC__UDP_PORTS": "50000-50063"})
    assert config.webrtc.udp_port_range == range(50_000, 50_064)
    assert load_config(None, {}, {}).webrtc.udp_port_range is None


def test_an_announced_address_and_chosen_ones_contradict_each_other() -> None:
    both = {"announced_address": "203.0.113.7", "host_candidates": ["127.0.0.1"]}
    with pytest.raises(ConfigError, match="give one of them"):
        load_config(None, {"webrtc": both}, {})
