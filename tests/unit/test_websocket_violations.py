"""Clients that say the wrong thing: a specific code, a close code, and a session that lives on where it can."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.fakes import MODEL
from tests.served import Client, Served, config_for, served

from ithaka.server.session.peer import GIVE_WAY_S


async def streaming(server: Served, client: Client, frames: int = 2) -> None:
    await client.greet()
    await client.frames(frames)


async def still_resumable(server: Served, session: dict[str, Any]) -> None:
    await server.until_state(session["id"], "detached")
    async with server.connect(session) as client:
        await client.greet()
        assert (await client.frame()).seq == 1


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "message_invalid"),
        ("not json", "message_invalid"),
        ("[1, 2]", "message_invalid"),
        ("{}", "message_invalid"),
        ('{"type": "rewind"}', "message_invalid"),
        ('{"type": "pause", "why": 1}', "message_invalid"),
        ('{"type": "ack", "received_through": "2", "decoded_through": 2}', "message_invalid"),
        ('{"type": "ack", "received_through": -1, "decoded_through": -1}', "message_invalid"),
        ('{"type": "ack", "received_through": 1e400, "decoded_through": 1}', "message_invalid"),
        ('{"type": "control", "control_id": 1, "pointer_dx": NaN}', "message_invalid"),
        ('{"type": "control", "control_id": 0}', "message_invalid"),
        ('{"type": "control", "control_id": 1, "pressed": ["' + "a" * 40 + '"]}', "message_invalid"),
        ('{"type": "pong", "id": 1, "id": 2}', "message_invalid"),
        ('{"type": "end", "type": "pause"}', "message_invalid"),
        ('{"type": "resume", "stream": "x", "next_seq": 1}', "resume_missing"),
        ('{"type": "ack", "received_through": 3, "decoded_through": 2}', "ack_beyond_sent"),
        ('{"type": "ack", "received_through": 1, "decoded_through": 2}', "ack_invalid"),
    ],
)
async def test_a_wrong_message_ends_the_connection_not_the_session(text: str, code: str) -> None:
    async with served() as server:
        session = await server.create()
        async with server.connect(session) as client:
            await streaming(server, client)
            await client.socket.send(text)
            assert await client.refused() == (code, 1008)
        await still_resumable(server, session)


async def test_binary_from_a_client() -> None:
    async with served() as server:
        session = await server.create()
        async with server.connect(session) as client:
            await streaming(server, client)
            await client.socket.send(b"\x00")
            assert await client.refused() == ("binary_not_allowed", 1008)
        await still_resumable(server, session)


async def test_a_message_above_the_bound() -> None:
    async with served(config_for(server={"max_body_bytes": 2048})) as server:
        session = await server.create()
        async with server.connect(session) as client:
            await streaming(server, client)
            await client.socket.send(json.dumps({"type": "control", "control_id": 1, "prompt": "x" * 4000}))
            assert await client.closed() == 1009
        await still_resumable(server, session)


async def test_an_acknowledgement_that_shrinks() -> None:
    async with served() as server:
        session = await server.create()
        async with server.connect(session) as client:
            await streaming(server, client)
            await client.ack(2)
            await client.ack(1)
            assert await client.refused() == ("ack_shrunk", 1008)


async def test_an_acknowledgement_before_anything_was_sent() -> None:
    async with served() as server:
        server.engine.is_held = True
        session = await server.create()
        async with server.connect(session) as client:
            await client.greet()
            await client.ack(1)
            assert await client.refused() == ("ack_beyond_sent", 1008)


async def test_acknowledgements_that_never_come() -> None:
    """The window stops the generator, then the client is taken for lost; what it has not shown waits for it."""
    async with served(config_for(sessions={"ack_timeout_s": 5})) as server:
        session = await server.create()
        async with server.connect(session) as client:
            await client.greet()
            await client.frames(2)
            server.timers.advance(4)
            assert (await client.frames(6))[-1].seq == 8
            assert server.engine.sessions[session["id"]].granted_through == 8
            server.timers.advance(1)
            assert await client.refused() == ("ack_timeout", 1008)
        await still_resumable(server, session)


async def test_late_acknowledgements_are_taken() -> None:
    """Each one that says something new sets the deadline anew."""
    async with served(config_for(sessions={"ack_timeout_s": 5})) as server:
        session = await server.create()
        delivery = server.session(session["id"]).flow
        assert delivery is not None
        async with server.connect(session) as client:
            await streaming(server, client)
            for through in (1, 2, 4, 6):
                server.timers.advance(4)
                await client.ack(through)
                await server.until(lambda through=through: delivery.delivery.decoded_through == through)  # type: ignore[misc]
            assert (await server.look(session["id"]))["state"] == "streaming"


@pytest.mark.parametrize("kind", ["ack", "control", "pause", "play", "end", "fin"])
async def test_nothing_comes_before_resume(kind: str) -> None:
    fields: dict[str, dict[str, Any]] = {
        "ack": {"received_through": 0, "decoded_through": 0},
        "control": {"control_id": 1},
        "fin": {"decoded_count": 0, "last_seq": 0},
    }
    async with served() as server:
        session = await server.create()
        async with server.connect(session) as client:
            await client.expect("hello")
            await client.say(kind, **fields.get(kind, {}))
            assert await client.refused() == ("resume_missing", 1008)
        assert (await server.look(session["id"]))["state"] == "connecting"


async def test_resume_before_hello() -> None:
    async with served() as server:
        server.engine.holds_starts = True
        session = await server.create()
        async with server.connect(session) as client:
            await client.say("resume", stream="guess", next_seq=1)
            assert await client.refused() == ("resume_missing", 1008)


async def test_controls_that_go_backwards() -> None:
    async with served() as server:
        session = await server.create()
        async with server.connect(session) as client:
            await streaming(server, client)
            await client.say("control", control_id=2)
            await client.say("control", control_id=2)
            assert await client.refused() == ("control_stale", 1008)


async def test_a_flood_of_controls() -> None:
    async with served(config_for(server={"max_messages_per_s": 20})) as server:
        session = await server.create()
        async with server.connect(session) as client:
            await streaming(server, client)
            for control_id in range(1, 25):
                await client.say("control", control_id=control_id, pressed=["KeyW"])
            assert await client.refused() == ("rate_exceeded", 4429)
        assert len(server.engine.controls) <= 20
        await still_resumable(server, session)


async def test_as_many_controls_as_allowed() -> None:
    async with served(config_for(server={"max_messages_per_s": 20})) as server:
        session = await server.create()
        async with server.connect(session) as client:
            await streaming(server, client)
            for control_id in range(1, 60):
                server.timers.advance(0.05)
                await client.say("control", control_id=control_id)
                await server.until(lambda wanted=control_id: len(server.engine.controls) == wanted)  # type: ignore[misc]


async def test_a_second_controller_is_refused_while_the_first_is_there() -> None:
    async with served() as server:
        session = await server.create()
        async with server.connect(session) as first:
            await streaming(server, first)
            async with server.connect(session) as second:
                assert await second.refused() == ("controller_connected", 4409)
            await first.ack(2)
            server.timers.advance(1)
            assert (await first.frame()).seq == 3


async def test_a_controller_that_does_not_answer_gives_its_place_to_the_next_one() -> None:
    """Its network is gone and nobody told the server: no close, no word."""
    async with served() as server:
        session = await server.create()
        async with server.connect(session) as silent:
            await streaming(server, silent)
            await silent.ack(1)
            flow = server.session(session["id"]).flow
            assert flow is not None
            await server.until(lambda: flow.delivery.decoded_through == 1)
            await silent.say("pause")
            await server.until_state(session["id"], "paused")
            async with server.connect(session) as early:
                assert await early.refused() == ("controller_connected", 4409), "it is asked first"
            await silent.expect("ping")
            server.timers.advance(GIVE_WAY_S)
            async with server.connect(session) as successor:
                assert (await successor.greet())["next_seq"] == 2
                assert (await successor.frame()).seq == 1, "again, to be decoded only"
                assert await silent.refused() == ("controller_connected", 4409)
                assert (await successor.frame()).seq == 2


async def test_a_controller_that_answers_stays() -> None:
    async with served() as server:
        session = await server.create()
        async with server.connect(session) as first:
            await streaming(server, first)
            await first.say("pause")
            await server.until_state(session["id"], "paused")
            for number in range(1, 4):
                async with server.connect(session) as second:
                    assert (await second.refused())[0] == "controller_connected"
                ping = await first.expect("ping")
                await first.say("pong", id=ping["id"])
                await first.say("control", control_id=number)
                await server.until(lambda wanted=number: len(server.engine.controls) == wanted)  # type: ignore[misc]
                server.timers.advance(GIVE_WAY_S)


async def test_fin_before_eos_ends_the_session_undelivered() -> None:
    async with served() as server:
        session = await server.create()
        async with server.connect(session) as client:
            await streaming(server, client)
            await client.ack(2)
            await client.say("fin", decoded_count=2, last_seq=2)
            last = await client.expect_state("closed")
            assert (last["reason"], last["delivered"]) == ("fin_early", False)
            assert await client.refused() == ("fin_early", 1008)
        await server.until(lambda: server.daemon.registry.num_inside(MODEL) == 0)


@pytest.mark.parametrize(("acked", "count", "last_seq"), [(2, 1, 2), (2, 2, 1), (2, 3, 3), (1, 2, 2)])
async def test_a_wrong_fin_is_not_delivered(acked: int, count: int, last_seq: int) -> None:
    async with served() as server:
        session = await server.create(max_frames=2)
        async with server.connect(session) as client:
            await streaming(server, client)
            await client.ack(acked)
            await client.expect("eos")
            await client.say("fin", decoded_count=count, last_seq=last_seq)
            assert (await client.expect_state("closed"))["delivered"] is False
            assert await client.closed() == 1000
        assert (await server.look(session["id"]))["decoded_seq"] == acked


async def test_fin_that_never_comes() -> None:
    async with served(config_for(sessions={"drain_timeout_s": 8})) as server:
        session = await server.create(max_frames=2)
        async with server.connect(session) as client:
            await streaming(server, client)
            await client.ack(1)
            await client.expect("eos")
            server.timers.advance(7.9)
            assert (await server.look(session["id"]))["state"] == "draining"
            server.timers.advance(0.1)
            assert (await client.expect_state("closed"))["delivered"] is False
            assert await client.closed() == 1000
        found = await server.look(session["id"])
        assert (found["delivered"], found["decoded_seq"], found["reason"]) == (False, 1, "max_frames")


async def test_a_client_without_the_subprotocol() -> None:
    async with served() as server:
        session = await server.create()
        async with server.connect(session, subprotocols=None) as client:
            assert await client.refused() == ("subprotocol_missing", 1008)


async def test_an_unknown_and_an_ended_session() -> None:
    async with served() as server:
        session = await server.create()
        async with server.connect({"stream_path": "/v1/sessions/nothing/stream"}) as client:
            assert await client.refused() == ("session_unknown", 4404)
        await server.http.delete(f"/v1/sessions/{session['id']}?force=true")
        async with server.connect(session) as client:
            assert await client.refused() == ("session_ended", 4404)


async def test_a_fault_of_ours_is_told_and_kept_to_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served() as server:
        session = await server.create()

        def broken() -> None:
            raise RuntimeError("a bug")

        monkeypatch.setattr(server.session(session["id"]), "pause", broken)
        async with server.connect(session) as client:
            await streaming(server, client)
            await client.say("pause")
            assert await client.refused() == ("internal", 1011)
        await still_resumable(server, session)


async def test_many_wrong_connections_leave_nothing_behind() -> None:
    async with served() as server:
        session = await server.create()
        before = len(asyncio.all_tasks())
        for _ in range(20):
            async with server.connect(session) as client:
                await client.expect("hello")
                await client.socket.send("{")
                assert await client.refused() == ("message_invalid", 1008)
        await server.until(lambda: server.session(session["id"]).data.controller == "absent")
        assert len(asyncio.all_tasks()) <= before + 2
        assert server.timers.num_pending == 2, "connect and duration"
