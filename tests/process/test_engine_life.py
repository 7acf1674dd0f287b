"""Starts that fail, and every way to stop: nothing is left."""

from __future__ import annotations

import asyncio

import pytest
from tests.process.engine_run import LIMITS, EngineRun, children, descriptors, synthetic

from ithaka.server.engine_client import EngineError, ModelState


async def test_a_clean_stop_ends_sessions_and_leaves_nothing() -> None:
    before = descriptors()
    async with EngineRun(synthetic(ranks=4)) as run:
        await run.ready()
        assert len(children()) == 5
        run.begin("s1", window=4)
        run.begin("s2")
        await run.frames("s1", 6)
        await run.engine.stop(deadline_s=5)
        ended = await run.ended("s1")
        assert (ended.code, ended.last_seq) == ("ended", len(run.packets("s1")))
        assert (await run.ended("s2")).code == "ended"
        assert run.states()[-1] is ModelState.STOPPED
        with pytest.raises(EngineError) as refused:
            run.begin("late")
        assert refused.value.code == "engine_stopping"
    assert children() == []
    assert descriptors() == before
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


async def test_a_stop_during_start_leaves_nothing() -> None:
    before = descriptors()
    run = EngineRun(synthetic(ranks=2))
    await run.engine.start(run.events.append)
    with pytest.raises(EngineError) as early:
        run.begin("early")
    assert (early.value.code, early.value.retryable) == ("model_not_ready", True)
    await run.engine.stop(deadline_s=5)
    await run.engine.stop(deadline_s=5)
    assert children() == []
    assert descriptors() == before
    assert run.status().state is ModelState.STOPPED


async def test_a_stop_in_a_step_waits_for_it() -> None:
    async with EngineRun(synthetic(step_ms=600)) as run:
        await run.ready()
        run.begin("busy", window=4)
        await run.frames("busy", 2)
        await run.engine.stop(deadline_s=5)
        ended = await run.ended("busy")
        assert (ended.code, ended.last_seq % 2) == ("ended", 0)
        assert ended.last_seq == len(run.packets("busy"))
    assert children() == []


async def test_a_forced_stop_kills_at_once() -> None:
    async with EngineRun(synthetic(step_ms=60_000)) as run:
        await run.ready()
        run.begin("endless", window=4)
        await run.started("endless")
        stopping = asyncio.create_task(run.engine.stop(deadline_s=600))
        run.engine.kill()
        await stopping
        assert (await run.ended("endless")).code == "worker_lost"
    assert children() == []


async def test_a_step_that_outlasts_the_deadline_is_cut_off() -> None:
    limits = LIMITS.model_copy(update={"step_timeout_s": 600})
    async with EngineRun(synthetic(hang_at_chunk=1), limits=limits) as run:
        await run.ready()
        run.begin("endless", window=4)
        await run.frames("endless", 2)
        await run.engine.stop(deadline_s=0.3)
        ended = await run.ended("endless")
        assert (ended.code, ended.last_seq) == ("worker_lost", 2)
        assert run.states()[-1] is ModelState.STOPPED
    assert children() == []


async def test_a_model_that_can_never_load_is_given_up_at_once() -> None:
    limits = LIMITS.model_copy(update={"restart_backoff_s": 600})  # A second start would come too late.
    models = (synthetic("broken", fail_load=True), synthetic("typo", widht=1), synthetic("sound"))
    async with EngineRun(*models, limits=limits) as run:
        await run.until(lambda: run.status("broken").state is ModelState.FAILED)
        await run.until(lambda: run.status("typo").state is ModelState.FAILED)
        assert "models.broken.options.fail_load: " in run.status("broken").message
        assert "models.typo.options.widht: " in run.status("typo").message
        with pytest.raises(EngineError, match="fail_load") as refused:
            run.begin("x", "broken")
        assert (refused.value.code, refused.value.retryable) == ("model_not_ready", False)
        await run.ready("sound")
        run.begin("served", "sound", window=4)
        await run.frames("served", 4)
    assert children() == []
