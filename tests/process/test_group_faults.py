"""A rank dies or stops at each point of a chunk: what was published arrives, the session may be retried, the group is back."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from tests.process.engine_run import LIMITS, EngineRun, barcodes, children, synthetic

from ithaka.server.engine_client import ModelState


@dataclass(frozen=True)
class Fault:
    """``frames``: those that were published before, and so must arrive; a chunk has two."""

    point: str
    frames: range

    def spec(self, child: str) -> dict[str, tuple[str, ...]]:
        return {child: (self.point,)}


def exactly(count: int) -> range:
    return range(count, count + 1)


# The third chunk is the one that fails; a leader of one rank receives AttachFrames, StartSession and a grant before it, and
# shows progress twice in a step: when it has made a chunk, and when it has drawn it.
ON_LEADER = [
    Fault("rank.received:3:{}", exactly(0)),
    Fault("rank.planned:3:{}", exactly(4)),
    Fault("rank.before_step:3:{}", exactly(4)),
    Fault("rank.in_step:5:{}", exactly(4)),
    Fault("rank.after_step:3:{}", exactly(4)),
    Fault("rank.claimed:6:{}", exactly(5)),
    Fault("rank.published:6:{}", exactly(6)),
]
# The leader's step may be clean before it hears of a follower that dies after its own.
ON_FOLLOWER = [
    Fault("rank.received:1:{}", exactly(0)),
    Fault("rank.before_step:3:{}", exactly(4)),
    Fault("rank.in_step:3:{}", range(4, 20)),
    Fault("rank.after_step:3:{}", range(4, 20)),
]


def with_action(faults: list[Fault], action: str) -> list[Fault]:
    return [Fault(fault.point.format(action), fault.frames) for fault in faults]


async def suffer(run: EngineRun, model: str, child: str, faults: list[Fault]) -> None:
    """One life of the group for each fault, the first of which is in place; then one without."""
    for life, fault in enumerate(faults):
        status = await run.ready(model)
        assert status.restarts == life
        if life + 1 < len(faults):
            run.engine.inject(faults[life + 1].spec(child))
        session_id = f"{model} {fault.point}"
        run.begin(session_id, model, window=12)
        ended = await run.ended(session_id)
        assert (ended.code, ended.retryable) == ("worker_lost", True)
        packets = run.packets(session_id)
        assert ended.last_seq == len(packets)
        assert len(packets) in fault.frames, fault
        assert [code.number if code else None for code in barcodes(packets)] == list(range(1, len(packets) + 1))
    assert (await run.ready(model)).restarts == len(faults)
    run.begin(f"{model} after", model, window=12)
    await run.frames(f"{model} after", 20)


async def test_a_leader_dies_or_stops_at_each_point() -> None:
    """Two models side by side: what one suffers, the other doesn't."""
    killed, stopped = with_action(ON_LEADER, "kill"), with_action(ON_LEADER, "stop")
    models = synthetic("killed"), synthetic("stopped")
    async with EngineRun(*models, faults=killed[0].spec("killed/0") | stopped[0].spec("stopped/0")) as run:
        await asyncio.gather(
            suffer(run, "killed", "killed/0", killed),
            suffer(run, "stopped", "stopped/0", stopped),
        )
    assert children() == []


@pytest.mark.parametrize("action", ["kill", "stop"])
async def test_a_follower_dies_or_stops_at_each_point(action: str) -> None:
    faults = with_action(ON_FOLLOWER, action)
    async with EngineRun(synthetic(ranks=2), faults=faults[0].spec("s/1")) as run:
        await suffer(run, "s", "s/1", faults)
        assert run.states()[:4] == [ModelState.STARTING, ModelState.READY, ModelState.RESTARTING, ModelState.READY]
    assert children() == []


async def test_a_rank_that_waits_in_vain_for_another_names_it() -> None:
    limits = LIMITS.model_copy(update={"communicator_timeout_s": 0.5, "heartbeat_timeout_s": 10})
    async with EngineRun(synthetic(ranks=2), limits=limits, faults={"s/1": ("rank.before_step:2:stop",)}) as run:
        await run.ready()
        run.begin("s1", window=8)
        ended = await run.ended("s1")
        assert (ended.code, ended.last_seq, ended.retryable) == ("worker_lost", 2, True)
        assert ended.message.startswith("s/0") and "rank 1 is to blame" in ended.message
    assert children() == []


async def test_a_rank_that_raises_or_hangs_names_the_reason() -> None:
    models = synthetic("raises", ranks=2, fail_at_chunk=1), synthetic("hangs", hang_at_chunk=1)
    async with EngineRun(*models) as run:
        await run.ready("raises")
        await run.ready("hangs")
        for model, reason in (("raises", "fail_at_chunk"), ("hangs", "no progress in a step")):
            run.begin(model, model, window=8)
            ended = await run.ended(model)
            assert (ended.code, ended.last_seq, ended.retryable) == ("worker_lost", 2, True)
            assert reason in ended.message
    assert children() == []
