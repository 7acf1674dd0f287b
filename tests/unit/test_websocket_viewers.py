"""Viewers read along, begin at a key frame, and hold up nobody."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from tests.fakes import READY, FakeEngine
from tests.served import Served, config_for, served

PERIOD_S = 2 / 16


async def viewer_of(server: Served, session: dict[str, Any]) -> dict[str, Any]:
    answer = await server.http.post(f"/v1/sessions/{session['id']}/token", json={"role": "viewer"})
    assert answer.status_code == 201
    return {**session, "token": answer.json()["token"]}


async def test_a_viewer_begins_at_the_next_key_frame_and_sees_the_end() -> None:
    async with served() as server:
        session = await server.create(max_frames=6)
        async with server.connect(session) as client:
            await client.greet()
            await client.frames(2)
            await client.ack(2)
            async with server.connect(await viewer_of(server, session)) as viewer:
                hello = await viewer.expect("hello")
                assert (hello["role"], hello["next_seq"]) == ("viewer", 3)
                server.timers.advance(PERIOD_S)
                first = await viewer.frame()
                assert (first.seq, first.key, first.decode_only) == (3, True, False)
                assert (await viewer.frame()).seq == 4
                await client.frames(2)
                server.timers.advance(PERIOD_S)
                await client.frames(2)
                await client.ack(6)
                await client.expect("eos")
                assert [frame.seq for frame in await viewer.frames(2)] == [5, 6]
                assert (await viewer.expect("eos"))["last_seq"] == 6
                await client.say("fin", decoded_count=6, last_seq=6)
                assert (await viewer.expect_state("closed"))["delivered"] is True
                assert await viewer.closed() == 1000


async def test_a_viewer_that_reads_nothing_holds_up_nobody_and_skips_when_it_lags() -> None:
    engine = FakeEngine(READY, payload_bytes=500_000)
    async with served(engine=engine) as server:
        session = await server.create()
        async with server.connect(session) as client, server.connect(await viewer_of(server, session), max_queue=1) as viewer:
            await client.greet()
            await viewer.expect("hello")
            for seq in range(1, 65):
                assert (await client.frame()).seq == seq
                await client.ack(seq)
                if seq % 2 == 0:
                    server.timers.advance(PERIOD_S)
            flow = server.session(session["id"]).flow
            assert flow is not None
            await server.until(lambda: flow.delivery.decoded_through == 64)
            assert flow.retention.retained_bytes <= 18 * 500_000
            seen = [await viewer.frame()]
            while seen[-1].seq < 64:
                seen.append(await viewer.frame())
            numbers = [frame.seq for frame in seen]
            assert numbers == sorted(set(numbers))
            assert len(numbers) < 60
            jumps = [after for before, after in pairwise(seen) if after.seq != before.seq + 1]
            assert jumps and all(frame.key for frame in jumps)
        await server.until_state(session["id"], "detached")
        await server.until(lambda: server.session(session["id"]).num_viewers == 0)
        text = (await server.http.get("/metrics")).text
        skipped = next(line for line in text.splitlines() if line.startswith("ithaka_carrier_frames_skipped_total"))
        assert float(skipped.split()[-1]) == numbers[-1] - numbers[0] + 1 - len(numbers)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("ack", {"received_through": 0, "decoded_through": 0}),
        ("control", {"control_id": 1}),
        ("pause", {}),
        ("end", {}),
        ("fin", {"decoded_count": 0, "last_seq": 0}),
    ],
)
async def test_a_viewer_says_nothing(kind: str, fields: dict[str, Any]) -> None:
    async with served() as server:
        session = await server.create()
        async with server.connect(await viewer_of(server, session)) as viewer:
            await viewer.greet()
            await viewer.say(kind, **fields)
            assert await viewer.refused() == ("role_not_allowed", 4403)


async def test_viewers_are_bounded() -> None:
    async with served(config_for(sessions={"max_viewers": 2})) as server:
        session = await server.create()
        view = await viewer_of(server, session)
        connections = [server.connect(view) for _ in range(2)]
        try:
            for connection in connections:
                viewer = await connection.__aenter__()
                await viewer.expect("hello")
            async with server.connect(view) as one_more:
                assert await one_more.refused() == ("viewers_full", 1013)
        finally:
            for connection in connections:
                await connection.__aexit__(None, None, None)


async def test_a_viewer_that_comes_before_the_model_waits_for_hello() -> None:
    engine = FakeEngine()
    engine.holds_starts = True
    async with served(engine=engine) as server:
        session = await server.create()
        async with server.connect(await viewer_of(server, session)) as viewer:
            assert (await server.look(session["id"]))["state"] == "admitted"
            engine.emit_started(session["id"])
            await viewer.expect("hello")
