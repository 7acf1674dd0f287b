"""Peers on a data channel whose machine or network is gone without a word, and peers that only have nothing to say."""

from __future__ import annotations

import pytest
from tests.rtc_served import controller, until_decoded
from tests.served import Served, served

from ithaka.server.session.peer import GIVE_WAY_S
from ithaka.server.transports.webrtc.silence import LOOK_INTERVAL_S, MAX_SILENCE_S


async def until_heard(server: Served, num_more: int) -> None:
    """From the machine of the one peer there is."""
    (connection,) = server.services.rtc._connections.values()
    wanted = connection.link.num_heard + num_more
    await server.until(lambda: connection.link.num_heard >= wanted)


async def test_a_silent_peer_is_lost_long_before_ice_gives_up() -> None:
    async with served() as server:
        session = await server.create()
        async with controller(server, session) as peer:
            await peer.greet()
            await peer.frame()
            peer.fall_silent()
            server.timers.advance(MAX_SILENCE_S + LOOK_INTERVAL_S)
            await server.until_state(session["id"], "detached")
            await server.until(lambda: server.services.rtc.num_open == 0)
            assert peer.connection.connectionState == "connected", "nobody told this side"


async def test_a_peer_that_has_nothing_to_say_is_asked_and_stays() -> None:
    async with served() as server:
        session = await server.create()
        async with controller(server, session) as peer:
            await peer.greet()
            assert [(await peer.frame()).seq for _ in range(2)] == [1, 2]
            await peer.say("pause")
            await server.until_state(session["id"], "paused")
            for _ in range(4 * int(MAX_SILENCE_S / LOOK_INTERVAL_S)):
                server.timers.advance(LOOK_INTERVAL_S)
                server.timers.advance(LOOK_INTERVAL_S)
                await until_heard(server, 1)
                message = await peer.hear() if peer.heard.qsize() else None
                if isinstance(message, dict) and message["type"] == "ping":
                    await peer.say("pong", id=message["id"])
            assert (await server.look(session["id"]))["state"] == "paused"


@pytest.mark.parametrize("carrier", ["channel", "websocket"])
async def test_whoever_comes_back_takes_the_place_of_a_silent_peer_at_once(carrier: str) -> None:
    async with served() as server:
        session = await server.create()
        async with controller(server, session) as silent:
            await silent.greet()
            await silent.frame()
            await silent.say("ack", received_through=1, decoded_through=1)
            await until_decoded(server, session, 1)
            silent.fall_silent()
            server.timers.advance(GIVE_WAY_S + LOOK_INTERVAL_S)
            if carrier == "websocket":
                async with server.connect(session) as client:
                    assert (await client.greet())["next_seq"] == 2
            else:
                async with controller(server, session) as peer:
                    assert (await peer.greet())["next_seq"] == 2
