"""Datagrams of strangers, and of peers that know their password and mean no good, at the socket of a connection."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aioice import Connection, stun
from tests.rtc_peer import RtcPeer
from tests.rtc_served import controller, exchange
from tests.served import Served, served

from ithaka.server.transports.webrtc.gathering import Gathering, IceSettings
from ithaka.server.transports.webrtc.listener import MAX_CONFLICTS, MAX_PLACES, MAX_WAITING, ROLE_CONFLICT, Listener
from ithaka.server.transports.webrtc.silence import LOOK_INTERVAL_S, MAX_SILENCE_S

LOCAL, REMOTE = "the-password-of-the-server", "the-password-of-the-peer"
PEER, STRANGER = ("192.0.2.1", 5000), ("192.0.2.9", 5000)
DTLS = b"\x16\xfe\xfd" + bytes(20)


class Door:
    """A listener without a network; what goes out is kept."""

    def __init__(self) -> None:
        self.num_heard = 0
        self.agent = Connection(ice_controlling=False, local_username="server", local_password=LOCAL.replace("-", "+"))
        self.sent: list[tuple[stun.Message, tuple[str, int]]] = []

    async def open(self) -> None:
        Gathering(IceSettings(("127.0.0.1",))).lead(self.agent, self._heard)
        await self.agent.gather_candidates()
        (self.listener,) = self.agent._protocols
        self.listener.send_stun = lambda message, addr: self.sent.append((message, addr))  # type: ignore[method-assign]

    def know_the_peer(self) -> None:
        self.agent.remote_username, self.agent.remote_password = "peer", REMOTE

    def receive(self, data: bytes | stun.Message, addr: tuple[str, int] = PEER) -> None:
        assert isinstance(self.listener, Listener)
        self.listener.datagram_received(bytes(data), addr)

    @property
    def num_waiting(self) -> int:
        return self.agent._queue.qsize()

    def _heard(self) -> None:
        self.num_heard += 1


def check(*, key: str = LOCAL, without: str = "", user: str = "server:peer") -> stun.Message:
    message = stun.Message(stun.Method.BINDING, stun.Class.REQUEST)
    message.attributes = {"USERNAME": user, "PRIORITY": 1, "ICE-CONTROLLING": 1}
    message.attributes.pop(without, None)
    message.add_message_integrity(key.replace("-", "+").encode())
    return message


def answer(code: int = 0, *, key: str = REMOTE, to: stun.Message | None = None) -> stun.Message:
    kind, asked = stun.Class.ERROR if code else stun.Class.RESPONSE, None if to is None else to.transaction_id
    message = stun.Message(stun.Method.BINDING, kind, asked)
    if code:
        message.attributes["ERROR-CODE"] = (code, "")
    message.add_message_integrity(key.encode())
    return message


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    door = Door()
    await door.open()
    try:
        yield door
    finally:
        await door.agent.close()


async def test_a_signed_check_is_heard_and_answered_and_opens_the_way_for_media(door: Door) -> None:
    door.receive(DTLS)
    assert door.num_waiting == 0
    door.receive(check())
    assert (door.num_heard, len(door.sent), door.num_waiting) == (1, 1, 0)
    door.receive(DTLS)
    door.receive(DTLS, STRANGER)
    assert door.num_waiting == 1 and door.num_heard == 1, "media alone proves nothing"


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        b"\x05",
        bytes(stun.Message(stun.Method.BINDING, stun.Class.REQUEST)),
        bytes(stun.Message(stun.Method.BINDING, stun.Class.INDICATION)),
        bytes(stun.Message(stun.Method.ALLOCATE, stun.Class.REQUEST)),
        bytes(check(key="another-password-of-22-characters")),
        bytes(check(user="other:peer")),
        bytes(check(without="PRIORITY")),
        bytes(check(without="USERNAME")),
        bytes(answer(key="another-password-of-22-characters")),
    ],
    ids=["empty", "unknown", "unsigned", "told", "relay", "password", "name", "no priority", "no name", "answer"],
)
async def test_whoever_signs_nothing_is_not_heard_nor_answered(door: Door, wrong: bytes) -> None:
    door.know_the_peer()
    door.receive(wrong)
    door.receive(DTLS)
    assert (door.num_heard, door.sent, door.num_waiting) == (0, [], 0)


async def test_a_signed_answer_is_heard_once_there_is_a_password_for_it(door: Door) -> None:
    door.receive(answer())
    assert door.num_heard == 0
    door.know_the_peer()
    door.receive(answer())
    door.receive(DTLS)
    assert (door.num_heard, door.num_waiting) == (1, 1)


async def test_a_peer_comes_from_so_many_places_and_no_more(door: Door) -> None:
    for index in range(MAX_PLACES + 10):
        door.receive(check(), ("192.0.2.1", 5000 + index))
    assert door.num_heard == len(door.sent) == MAX_PLACES
    door.receive(check())
    assert door.num_heard == MAX_PLACES + 1, "one that is known stays"


async def test_what_nobody_reads_is_lost_at_some_time(door: Door) -> None:
    door.receive(check())
    for _ in range(MAX_WAITING + 10):
        door.receive(DTLS)
    assert door.num_waiting == MAX_WAITING


async def test_a_peer_can_not_quarrel_for_ever_about_who_leads(door: Door) -> None:
    """Each such answer makes ICE ask once more, from within the last question."""
    loop, questions, all_asked = asyncio.get_running_loop(), set[bytes](), asyncio.Event()

    def quarrel(message: stun.Message, addr: tuple[str, int]) -> None:
        if message.message_class == stun.Class.REQUEST:
            questions.add(message.transaction_id)
            loop.call_soon(door.receive, answer(ROLE_CONFLICT, to=message))
            if len(questions) > MAX_CONFLICTS:
                all_asked.set()

    door.listener.send_stun = quarrel  # type: ignore[method-assign]
    door.know_the_peer()
    door.receive(check())
    connecting = asyncio.create_task(door.agent.connect())
    async with asyncio.timeout(10):
        await all_asked.wait()
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(questions) == MAX_CONFLICTS + 1
    await door.agent.close()
    with pytest.raises(ConnectionError):
        await connecting


async def media_address(server: Served, session: dict[str, Any], peer: RtcPeer) -> tuple[tuple[str, int], str]:
    answer = await exchange(server, session)(await peer.offer())
    (line,) = {line for line in answer.splitlines() if line.startswith("a=candidate")}
    fields = line.split()
    return (fields[4], int(fields[5])), answer


async def test_a_stranger_ends_nothing_while_a_connection_comes_up(caplog: pytest.LogCaptureFixture) -> None:
    async with served() as server:
        session = await server.create()
        peer = RtcPeer(with_video=False, with_channel=True)
        try:
            address, answer = await media_address(server, session, peer)
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
                for data in (b"", DTLS, b"\x15\xfe\xfd" + bytes(8) + b"\0\2\2\x28", b"\x80" + bytes(30)):
                    stranger.sendto(data, address)
            await peer.accept(answer)
            await peer.greet()
            await peer.frame()
        finally:
            await peer.close()
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]


async def test_a_stranger_keeps_no_dead_peer_alive() -> None:
    async with served() as server:
        session = await server.create()
        async with controller(server, session) as peer:
            await peer.greet()
            await peer.frame()
            (connection,) = server.services.rtc._connections.values()
            (listener,) = {
                protocol for transport in connection.link._ice_transports() for protocol in transport._connection._protocols
            }
            peer.fall_silent()
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
                for _ in range(int(MAX_SILENCE_S / LOOK_INTERVAL_S) + 1):
                    for data in (b"\x05junk", DTLS, bytes(stun.Message(stun.Method.BINDING, stun.Class.REQUEST))):
                        stranger.sendto(data, listener.transport.get_extra_info("sockname"))
                    await server.http.get("/healthz")
                    server.timers.advance(LOOK_INTERVAL_S)
            await server.until_state(session["id"], "detached")
            assert "webrtc.silent" in {entry["event"] for entry in server.logs}
