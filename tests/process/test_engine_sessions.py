"""Sessions through a real engine: one rank, encode, packets decoded."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import groupby

import psutil
import pytest
import pytest_asyncio
from tests.process.engine_run import EngineRun, barcodes, children, synthetic

from ithaka.server.engine_client import EngineError, ModelState, SessionRequest, StepTimed
from ithaka.workers.contract import ApplyControl
from ithaka.workers.families.synthetic import barcode

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def run() -> AsyncIterator[EngineRun]:
    async with EngineRun(synthetic(max_sessions=2), synthetic("short", frames=7), synthetic("shy", refuse_at_chunk=2)) as run:
        await run.ready()
        yield run


async def test_readiness_is_told_with_the_model_s_description(run: EngineRun) -> None:
    assert run.states()[0] is ModelState.STARTING and run.states()[-1] is ModelState.READY
    description = run.status().description
    assert description is not None
    assert (description.width, description.height, description.chunk_frames) == (128, 64, 2)
    assert (run.status().restarts, run.status().message) == (0, "")


async def test_frames_arrive_in_order_and_show_their_number(run: EngineRun) -> None:
    run.begin("order", window=8, prompt="a maze")
    assert (await run.started("order")).codec.startswith("avc1.")
    await run.frames("order", 30)
    run.engine.end_session("order")
    ended = await run.ended("order")
    packets = run.packets("order")
    assert (ended.code, ended.last_seq, ended.retryable) == ("ended", len(packets), False)
    headers = [packet.header for packet in packets]
    assert [header.seq for header in headers] == list(range(1, len(packets) + 1))
    assert [header.pts for header in headers] == [header.seq - 1 for header in headers]
    assert [header.chunk for header in headers] == [(header.seq - 1) // 2 for header in headers]
    assert headers[0].key
    assert all(header.generated_ns <= header.encoded_ns for header in headers)
    prompt = barcode.check(b"a maze")
    assert barcodes(packets) == [barcode.Barcode(header.seq, prompt_check=prompt) for header in headers]
    timed = [event for event in run.events if isinstance(event, StepTimed) and event.session_id == "order"]
    assert [step.chunk for step in timed] == list(range(len(packets) // 2))


async def test_without_a_grant_nothing_is_generated_and_never_more_than_granted(run: EngineRun) -> None:
    run.begin("none")
    run.begin("some")
    await run.started("none")
    await run.started("some")
    run.engine.grant("some", 5)
    await run.frames("some", 4)
    run.engine.grant("some", 3)
    for session_id in ("none", "some"):
        run.engine.end_session(session_id)
    assert (await run.ended("none")).last_seq == 0
    assert (await run.ended("some")).last_seq == 4


async def test_two_sessions_take_turns(run: EngineRun) -> None:
    for session_id in ("left", "right"):
        run.begin(session_id, window=40)
    await run.frames("left", 120)
    await run.frames("right", 120)
    for session_id in ("left", "right"):
        run.engine.end_session(session_id)
        await run.ended(session_id)
    steps = [event.session_id for event in run.events if isinstance(event, StepTimed)]
    turns = [name for name in steps if name in ("left", "right")]
    both = turns[turns.index("right") : len(turns) - turns[::-1].index("left")]
    streaks = [len(list(streak)) for _, streak in groupby(both)]
    assert both.count("left") > 10 and both.count("right") > 10
    # A turn is lost only while nothing is granted, and the window is twenty chunks.
    assert max(streaks) <= 20


async def test_controls_reach_the_frames_that_name_them(run: EngineRun) -> None:
    run.begin("keys", window=4)
    await run.frames("keys", 4)
    run.engine.apply_control(ApplyControl("keys", 1, pressed=("KeyW", "KeyUnknown")))
    run.engine.apply_control(ApplyControl("keys", 2, pressed=("KeyA",), released=("KeyA",), prompt="snow"))
    await run.until(lambda: run.packets("keys")[-1].header.control_id == 2)
    run.engine.apply_control(ApplyControl("keys", 3, released=("KeyW",)))
    await run.until(lambda: run.packets("keys")[-1].header.control_id == 3)
    run.engine.end_session("keys")
    await run.ended("keys")
    packets = run.packets("keys")
    codes = barcodes(packets)
    by_control: dict[int, list[barcode.Barcode]] = {}
    for packet, code in zip(packets, codes, strict=True):
        assert code is not None
        by_control.setdefault(packet.header.control_id, []).append(code)
    assert all(not code.held and not code.tapped for code in by_control[0])
    assert all(code.held == {"KeyW"} and code.prompt_check == barcode.check(b"snow") for code in by_control[2])
    assert [code.tapped for code in by_control[2][:2]] == [{"KeyA"}] * 2
    assert all(not code.tapped for code in by_control[2][2:])
    assert all(not code.held for code in by_control[3])


async def test_a_key_frame_comes_when_asked_for(run: EngineRun) -> None:
    run.begin("key", window=4)
    await run.frames("key", 3)
    seen = len(run.packets("key"))
    run.engine.request_key_frame("key")
    await run.until(lambda: any(packet.header.key for packet in run.packets("key")[seen:]))
    run.engine.end_session("key")
    await run.ended("key")


async def test_a_family_with_no_more_frames_finishes(run: EngineRun) -> None:
    await run.ready("short")
    run.begin("finishing", "short", window=8)
    ended = await run.ended("finishing")
    assert (ended.code, ended.last_seq, ended.retryable) == ("finished", 7, False)
    assert len(run.packets("finishing")) == 7
    run.begin("shorter", "short", window=8, frames=3)
    assert (await run.ended("shorter")).last_seq == 3


async def test_a_refusal_ends_the_session_and_nothing_else(run: EngineRun) -> None:
    await run.ready("shy")
    run.begin("refused", "shy", window=8)
    ended = await run.ended("refused")
    assert (ended.code, ended.last_seq, ended.retryable) == ("invalid_session_options", 4, False)
    assert "refuse_at_chunk" in ended.message
    run.begin("typo", window=4, widht=9)
    ended = await run.ended("typo")
    assert (ended.code, ended.last_seq, ended.retryable) == ("invalid_session_options", 0, False)
    assert "widht" in ended.message
    assert run.status("shy").restarts == 0


async def test_one_session_too_many_is_refused_as_retryable(run: EngineRun) -> None:
    for session_id in ("one", "two", "three"):
        run.begin(session_id)
    ended = await run.ended("three")
    assert (ended.code, ended.retryable) == ("session_limit", True)
    for session_id in ("one", "two"):
        run.engine.end_session(session_id)
        assert (await run.ended(session_id)).code == "ended"


async def test_commands_that_can_t_be_taken_are_named(run: EngineRun) -> None:
    with pytest.raises(EngineError, match="nowhere") as unknown:
        run.begin("x", "nowhere")
    assert (unknown.value.code, unknown.value.retryable) == ("model_unknown", False)
    with pytest.raises(EngineError, match="200044 bytes") as too_large:
        run.begin("x", prompt="x" * 200_000)
    assert too_large.value.code == "invalid_session_options"
    run.begin("twice")
    with pytest.raises(EngineError, match="surrogates") as no_text:
        run.engine.apply_control(ApplyControl("twice", 1, prompt="\ud800"))
    assert no_text.value.code == "invalid_control"
    with pytest.raises(EngineError) as twice:
        run.engine.start_session(SessionRequest("twice", "s", 0, "", "lossy"))
    assert twice.value.code == "session_exists"
    run.engine.end_session("twice")
    await run.ended("twice")
    run.engine.apply_control(ApplyControl("twice", 1))
    run.engine.grant("twice", 100)
    run.engine.end_session("twice")
    run.engine.request_key_frame("twice")


async def test_thirty_sessions_leave_nothing_behind(run: EngineRun) -> None:
    async def cycle(name: str) -> None:
        run.begin(name, window=6, prompt="again", pixels="exact" if name.endswith("7") else "lossy")
        await run.frames(name, 6)
        run.engine.end_session(name)
        await run.ended(name)

    def footprint() -> tuple[list[int], list[int], list[int]]:
        processes = [psutil.Process(), *children()]
        return (
            [process.num_fds() for process in processes],
            [process.num_threads() for process in processes],
            [process.memory_info().rss for process in processes],
        )

    for index in range(10):
        await cycle(f"warm{index}")
    run.events.clear()
    fds, threads, memory = footprint()
    for index in range(30):
        await cycle(f"cycle{index}")
    run.events.clear()
    fds_after, threads_after, memory_after = footprint()
    # One session's thread or descriptor may still be on its way out; thirty would not.
    for before, after in ((fds, fds_after), (threads, threads_after)):
        assert all(late <= early + 1 for early, late in zip(before, after, strict=True))
    for early_bytes, late_bytes in zip(memory, memory_after, strict=True):
        assert late_bytes - early_bytes < 6 * 1024 * 1024
