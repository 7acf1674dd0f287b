"""The encode process dies or stops: its sessions end as retryable, the model's group lives on and serves again."""

from __future__ import annotations

import pytest
from tests.process.engine_run import LIMITS, EngineRun, barcodes, child, children, synthetic

from ithaka.server.engine_client import EngineError, ModelState

# Packets that arrive. A thread that stops its own process may go on for a moment; one that kills it does not.
FAULTS = {
    "encode.taken:6:kill": range(0, 6),
    "encode.encoded:6:kill": range(5, 6),
    "encode.published:6:kill": range(6, 7),
    "encode.taken:6:stop": range(0, 13),
    "encode.encoded:6:stop": range(5, 13),
    "encode.published:6:stop": range(6, 13),
}


async def test_encode_dies_or_stops_at_each_point() -> None:
    faults = list(FAULTS.items())
    async with EngineRun(synthetic(), faults={"encode-0": (faults[0][0],)}) as run:
        await run.ready()
        leader = child("ithaka.workers.main").pid
        for index, (point, frames) in enumerate(faults):
            await run.ready()
            if index + 1 < len(faults):
                run.engine.inject({"encode-0": (faults[index + 1][0],)})
            run.begin(point, window=12)
            ended = await run.ended(point)
            assert (ended.code, ended.retryable) == ("encoder_lost", True)
            assert ended.last_seq == len(run.packets(point))
            assert ended.last_seq in frames, point
        await run.ready()
        run.begin("after", window=12)
        packets = await run.frames("after", 20)
        codes = barcodes(packets)
        assert [code.number if code else None for code in codes] == [packet.header.seq for packet in packets]
        assert run.status().restarts == 0
        assert child("ithaka.workers.main").pid == leader
    assert children() == []


async def test_encode_that_does_not_start_fails_the_models() -> None:
    async with EngineRun(synthetic(), limits=LIMITS.model_copy(update={"max_failed_starts": 1})) as run:
        await run.ready()
        run.begin("s1", window=4)
        await run.frames("s1", 2)
        run.engine.inject({"encode-0": ("no fault at all",)})
        child("ithaka.workers.encode").kill()
        assert (await run.ended("s1")).code == "encoder_lost"
        await run.until(lambda: run.status().state is ModelState.FAILED)
        assert "encode process exited with status 1" in run.status().message
        assert run.states() == [ModelState.STARTING, ModelState.READY, ModelState.RESTARTING, ModelState.FAILED]
        with pytest.raises(EngineError, match="encode process") as refused:
            run.begin("s2")
        assert (refused.value.code, refused.value.retryable) == ("model_not_ready", False)
    assert children() == []
