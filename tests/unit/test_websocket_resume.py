"""Connections that break, and clients that come back."""

from __future__ import annotations

import pytest
from tests.served import Client, Served, config_for, served

PERIOD_S = 2 / 16


async def kill(client: Client) -> None:
    """As a killed process does: no close frame, no fin."""
    client.socket.transport.abort()
    await client.socket.wait_closed()


async def stream(server: Served, client: Client, through: int, *, acked: int) -> None:
    """Frames 1 … ``through``, of which ``acked`` are acknowledged."""
    await client.greet()
    for seq in range(1, through + 1):
        assert (await client.frame()).seq == seq
        if seq <= acked:
            await client.ack(seq)
        if seq % 2 == 0 and seq < through:
            server.timers.advance(PERIOD_S)


async def test_a_killed_client_comes_back_and_misses_nothing() -> None:
    async with served() as server:
        session = await server.create(max_frames=12)
        async with server.connect(session) as client:
            await stream(server, client, 6, acked=4)
            await kill(client)
        await server.until_state(session["id"], "detached")
        async with server.connect(session) as client:
            hello = await client.greet()
            assert hello["next_seq"] == 5
            frames = await client.frames(6)
            assert [(frame.seq, frame.decode_only) for frame in frames] == [
                (1, True),
                (2, True),
                (3, True),
                (4, True),
                (5, False),
                (6, False),
            ]
            assert frames[0].key
            await client.ack(6)
            for seq in range(7, 13):
                server.timers.advance(PERIOD_S)
                frame = await client.frame()
                assert (frame.seq, frame.decode_only) == (seq, False)
                await client.ack(seq)
            await client.expect("eos")
            await client.say("fin", decoded_count=12, last_seq=12)
            assert (await client.expect_state("closed"))["delivered"] is True


async def test_resuming_twice_and_more() -> None:
    async with served() as server:
        session = await server.create()
        shown: list[int] = []
        for _ in range(5):
            async with server.connect(session) as client:
                hello = await client.greet()
                assert hello["next_seq"] == len(shown) + 1
                while len(shown) < hello["next_seq"] + 2:
                    server.timers.advance(PERIOD_S)
                    frame = await client.frame()
                    if not frame.decode_only:
                        shown.append(frame.seq)
                        await client.ack(frame.seq)
                await server.until(
                    lambda: (
                        (flow := server.session(session["id"]).flow) is not None and flow.delivery.decoded_through == len(shown)
                    )
                )
                await kill(client)
            await server.until_state(session["id"], "detached")
        assert shown == list(range(1, len(shown) + 1))


async def test_a_client_may_know_more_than_its_acknowledgements_said() -> None:
    async with served() as server:
        session = await server.create()
        async with server.connect(session) as client:
            await stream(server, client, 4, acked=1)
            await kill(client)
        await server.until_state(session["id"], "detached")
        async with server.connect(session) as client:
            await client.greet(next_seq=4)
            frames = await client.frames(4)
            assert [frame.decode_only for frame in frames] == [True, True, True, False]
        assert (await server.look(session["id"]))["decoded_seq"] == 3


@pytest.mark.parametrize(("next_seq", "code"), [(1, "resume_stale"), (2, "resume_stale"), (6, "resume_ahead")])
async def test_a_resume_that_cannot_be(next_seq: int, code: str) -> None:
    async with served() as server:
        session = await server.create()
        async with server.connect(session) as client:
            await stream(server, client, 4, acked=2)
            await kill(client)
        await server.until_state(session["id"], "detached")
        async with server.connect(session) as client:
            await client.greet(next_seq=next_seq)
            assert await client.refused() == (code, 4410)
        async with server.connect(session) as client:
            await client.greet()
            assert [frame.seq for frame in await client.frames(4)] == [1, 2, 3, 4]


async def test_a_foreign_stream() -> None:
    async with served() as server:
        first, second = await server.create(), await server.create()
        async with server.connect(first) as client:
            await stream(server, client, 2, acked=0)
            foreign = client.stream
        async with server.connect(second) as client:
            await client.expect("hello")
            await client.say("resume", stream=foreign, next_seq=1)
            assert await client.refused() == ("resume_foreign", 4410)
        assert (await server.look(second["id"]))["state"] == "connecting"


async def test_while_detached_generation_goes_on_within_the_window_only() -> None:
    async with served(config_for(sessions={"detach_timeout_s": 30})) as server:
        session = await server.create()
        async with server.connect(session) as client:
            await stream(server, client, 2, acked=2)
            await server.until(
                lambda: (flow := server.session(session["id"]).flow) is not None and flow.delivery.decoded_through == 2
            )
            await kill(client)
        await server.until_state(session["id"], "detached")
        server.timers.advance(20)
        engine_session = server.engine.sessions[session["id"]]
        assert engine_session.granted_through == 10
        async with server.connect(session) as client:
            await client.greet()
            assert [frame.seq for frame in await client.frames(10)] == list(range(1, 11))


async def test_a_client_that_stays_away() -> None:
    async with served(config_for(sessions={"detach_timeout_s": 30})) as server:
        session = await server.create()
        async with server.connect(session) as client:
            await stream(server, client, 2, acked=1)
            await kill(client)
        await server.until_state(session["id"], "detached")
        server.timers.advance(29)
        assert (await server.look(session["id"]))["state"] == "detached"
        server.timers.advance(1)
        found = await server.look(session["id"])
        assert (found["state"], found["reason"], found["delivered"]) == ("closed", "detach_timeout", False)
        assert server.engine.end_requests == [session["id"]]


async def test_keys_of_a_lost_client_are_let_go() -> None:
    async with served() as server:
        session = await server.create()
        async with server.connect(session) as client:
            await stream(server, client, 2, acked=0)
            await client.say("control", control_id=9, pressed=["KeyW"])
            await server.until(lambda: len(server.engine.controls) == 1)
            await kill(client)
        await server.until(lambda: len(server.engine.controls) == 2)
        released = server.engine.controls[1]
        assert (released.control_id, released.released) == (9, ("KeyW",))


async def test_a_fresh_page_counts_its_controls_from_one() -> None:
    async with served() as server:
        session = await server.create()
        async with server.connect(session) as client:
            await stream(server, client, 2, acked=0)
            await client.say("control", control_id=50)
            await server.until(lambda: len(server.engine.controls) == 1)
            await kill(client)
        await server.until_state(session["id"], "detached")
        async with server.connect(session) as client:
            await client.greet()
            await client.frames(2)
            await client.say("control", control_id=1, pressed=["KeyA"])
            await server.until(lambda: len(server.engine.controls) == 2)


async def test_a_close_without_fin_detaches() -> None:
    async with served() as server:
        session = await server.create()
        async with server.connect(session) as client:
            await stream(server, client, 2, acked=2)
        await server.until_state(session["id"], "detached")


async def test_a_session_paused_stays_paused_over_a_broken_connection() -> None:
    async with served() as server:
        session = await server.create()
        async with server.connect(session) as client:
            await stream(server, client, 2, acked=2)
            await client.say("pause")
            await client.expect_state("paused")
            await kill(client)
        await server.until_state(session["id"], "detached")
        server.timers.advance(5)
        assert server.engine.sessions[session["id"]].granted_through == 2
        async with server.connect(session) as client:
            await client.greet()
            await client.frames(2)
            await server.until_state(session["id"], "paused")


async def test_the_end_waits_for_a_client_that_comes_back() -> None:
    """The worker is lost while the client is away; what was generated still arrives, and is confirmed."""
    async with served(config_for(sessions={"drain_timeout_s": 8})) as server:
        session = await server.create()
        async with server.connect(session) as client:
            await stream(server, client, 4, acked=1)
            await kill(client)
        await server.until_state(session["id"], "detached")
        server.engine.emit_ended(session["id"], "worker_lost", retryable=True)
        server.timers.advance(7)
        async with server.connect(session) as client:
            await client.greet()
            assert [frame.seq for frame in await client.frames(4)] == [1, 2, 3, 4]
            await client.ack(4)
            assert (await client.expect("eos"))["reason"] == "worker_lost"
            await client.say("fin", decoded_count=4, last_seq=4)
            last = await client.expect_state("failed")
            assert last["delivered"] is True


async def test_a_client_lost_between_eos_and_fin_hears_eos_again() -> None:
    async with served() as server:
        session = await server.create(max_frames=2)
        async with server.connect(session) as client:
            await stream(server, client, 2, acked=2)
            await client.expect("eos")
            await kill(client)
        await server.until(lambda: server.session(session["id"]).data.controller == "absent")
        async with server.connect(session) as client:
            await client.greet()
            assert all(frame.decode_only for frame in await client.frames(2))
            await client.expect("eos")
            await client.say("fin", decoded_count=2, last_seq=2)
            assert (await client.expect_state("closed"))["delivered"] is True


async def test_frames_that_are_no_longer_kept() -> None:
    """Bounded memory: an encoder that gives no key frame, a client that keeps up, and then a fresh decoder."""
    async with served(config_for(sessions={"retained_bytes": 1024 * 1024})) as server:
        session = await server.create()
        server.engine.payload_bytes = 300_000
        server.engine.obeys_key_requests = False
        async with server.connect(session) as client:
            await stream(server, client, 4, acked=4)
            flow = server.session(session["id"]).flow
            assert flow is not None
            await server.until(lambda: flow.delivery.decoded_through == 4)
            assert flow.retention.retained_bytes == 0
            server.timers.advance(PERIOD_S)
            assert (await client.frame()).seq == 5
            await kill(client)
        await server.until_state(session["id"], "detached")
        assert session["id"] in server.engine.key_requests
        async with server.connect(session) as client:
            await client.greet()
            assert await client.refused() == ("resume_gone", 4410)
