"""The decode stage, or the leader beside it, dies or stops at each point of a chunk: the group falls as one and comes back."""

from __future__ import annotations

import asyncio

import pytest
from tests.process.engine_run import EngineRun, barcodes, children, descriptors
from tests.process.staged import staged
from tests.process.test_group_faults import Fault, exactly, suffer, with_action

from ithaka.server.engine_client import ModelState

# The third chunk is the one that fails; the stage was told of the channel, then of the session.
ON_DECODE = [
    Fault("stage.ordered:2:{}", exactly(0)),
    Fault("stage.before_decode:3:{}", exactly(4)),
    Fault("stage.in_decode:3:{}", exactly(4)),
    Fault("stage.after_decode:3:{}", exactly(4)),
    Fault("rank.claimed:6:{}", exactly(5)),
    Fault("rank.published:6:{}", exactly(6)),
]
# What the stage had not decoded yet when the leader fell is lost with it; a stopped leader's is decoded.
ON_LEADER = [
    Fault("latents.claimed:3:{}", range(0, 5)),
    Fault("latents.published:3:{}", range(0, 7)),
]


@pytest.mark.parametrize(("child", "faults"), [("decode", ON_DECODE), ("0", ON_LEADER)])
async def test_stage_or_leader_dies_or_stops_at_each_point(child: str, faults: list[Fault]) -> None:
    """Two models side by side: what one suffers, the other doesn't."""
    before = descriptors()
    lives = {name: with_action(faults, action) for name, action in (("killed", "kill"), ("stopped", "stop"))}
    first = {f"{name}/{child}": (suffered[0].point,) for name, suffered in lives.items()}
    async with EngineRun(*(staged(name) for name in lives), faults=first) as run:
        await asyncio.gather(*(suffer(run, name, f"{name}/{child}", suffered) for name, suffered in lives.items()))
    assert children() == []
    assert descriptors() == before


async def test_a_follower_s_death_fells_the_stage_and_the_stage_s_the_followers() -> None:
    model = staged(stages={"denoise": [0, 1], "decode": [2]})
    faults = {"s/1": "rank.before_step:3:kill", "s/decode": "stage.before_decode:3:kill"}
    async with EngineRun(model, faults={"s/1": (faults["s/1"],)}) as run:
        for life, child in enumerate(faults):
            assert (await run.ready()).restarts == life
            run.engine.inject({"s/decode": (faults["s/decode"],)} if life == 0 else {})
            run.begin(child, window=12)
            ended = await run.ended(child)
            assert (ended.code, ended.retryable) == ("worker_lost", True)
            assert ended.last_seq == len(run.packets(child)) <= 4
        await run.ready()
        run.begin("after", window=12)
        await run.frames("after", 20)
    assert children() == []


async def test_a_stage_that_dies_when_frames_are_attached_comes_back() -> None:
    async with EngineRun(staged(), faults={"s/decode": ("stage.received:1:kill",)}) as run:
        await run.until(lambda: run.status().restarts == 1 and run.status().state is ModelState.READY)
        run.begin("s1", window=8)
        packets = await run.frames("s1", 10)
        assert [code.number if code else None for code in barcodes(packets)][:10] == list(range(1, 11))
    assert children() == []


async def test_a_stage_that_raises_names_the_reason() -> None:
    async with EngineRun(staged(), faults={"s/decode": ("stage.in_decode:2:raise",)}) as run:
        await run.ready()
        run.begin("s1", window=8)
        ended = await run.ended("s1")
        assert (ended.code, ended.last_seq, ended.retryable) == ("worker_lost", 2, True)
        assert "s/decode" in ended.message and "stage.in_decode reached 2 times" in ended.message
    assert children() == []


async def test_encode_dies_and_the_stage_goes_on_with_the_next_one() -> None:
    async with EngineRun(staged(), faults={"encode-0": ("encode.encoded:6:kill",)}) as run:
        await run.ready()
        stage = children("ithaka.workers.main")[-1].pid
        run.begin("s1", window=40)
        ended = await run.ended("s1")
        assert (ended.code, ended.last_seq) == ("encoder_lost", 5)
        await run.ready()
        run.begin("s2", window=12)
        packets = await run.frames("s2", 20)
        assert [code.number if code else None for code in barcodes(packets)] == [packet.header.seq for packet in packets]
        assert run.status().restarts == 0
        assert children("ithaka.workers.main")[-1].pid == stage
    assert children() == []
