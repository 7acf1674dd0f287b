"""Models of several stages through a real engine: the same frames, the same counts, decoding beside the next step."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import psutil
import pytest
import pytest_asyncio
from tests.process.engine_run import LIMITS, EngineRun, barcodes, children, descriptors
from tests.process.staged import labyrinth, staged

from ithaka.server.engine_client import FramesCompared, ModelState, PacketArrived, StepTimed
from ithaka.workers.contract import ApplyControl
from ithaka.workers.families.synthetic import barcode

FRAMES = 10
PATIENT = LIMITS.model_copy(update={"heartbeat_timeout_s": 600, "step_timeout_s": 600})


def pictures(packets: list[PacketArrived]) -> list[npt.NDArray[Any]]:
    decoder = av.CodecContext.create("h264", "r")
    frames = [frame for packet in packets for frame in decoder.decode(av.Packet(packet.payload))] + decoder.decode(None)
    return [frame.to_ndarray(format="yuv420p") for frame in frames]


def steps(run: EngineRun, session_id: str) -> list[StepTimed]:
    return [event for event in run.events if isinstance(event, StepTimed) and event.session_id == session_id]


def compared(run: EngineRun, model: str) -> list[FramesCompared]:
    return [event for event in run.events if isinstance(event, FramesCompared) and event.model == model]


def held_child() -> psutil.Process:
    """The child that a fault has stopped."""
    (found,) = [process for process in children() if process.status() == psutil.STATUS_STOPPED]
    return found


@pytest.mark.parametrize("denoise", [[0], [0, 1]])
async def test_the_labyrinth_s_pictures_are_the_same_to_the_bit(denoise: list[int]) -> None:
    models = (
        labyrinth("whole", ranks=len(denoise)),
        labyrinth("split", stages={"denoise": denoise, "decode": [len(denoise)]}),
        labyrinth("shared", stages={"denoise": denoise, "decode": [0]}),
    )
    made = []
    for model in models:
        async with EngineRun(model) as run:
            await run.ready(model.name)
            assert len(children("ithaka.workers.main")) == len(denoise) + (model.name == "split")
            run.begin("walk", model.name, window=4, seed=3, prompt="sunset", pixels="exact")
            await run.frames("walk", FRAMES)
            run.engine.end_session("walk")
            ended = await run.ended("walk")
            assert ended.last_seq == len(run.packets("walk"))
            made.append(pictures(run.packets("walk"))[:FRAMES])
    whole, split, shared = made
    assert len(whole) == FRAMES and any(not np.array_equal(whole[0], later) for later in whole)
    for other in (split, shared):
        assert all(np.array_equal(a, b) for a, b in zip(whole, other, strict=True))


async def test_the_next_steps_end_while_a_chunk_is_held_in_decode_and_only_as_many_as_there_are_slots() -> None:
    async with EngineRun(staged(), limits=PATIENT, faults={"s/decode": ("stage.before_decode:3:stop",)}) as run:
        await run.ready()
        run.begin("s1", window=40)
        await run.frames("s1", 4)
        # The held chunk, the one that waits, the one that was written last.
        await run.until(lambda: len(steps(run, "s1")) == 5)
        # The leader has been through its loop again when it answers: nothing was planned.
        run.begin("late", window=4)
        await run.started("late")
        run.engine.end_session("late")
        assert (await run.ended("late")).last_seq == 0
        assert len(steps(run, "s1")) == 5
        assert len(run.packets("s1")) == 4
        held_child().resume()
        await run.frames("s1", 40)
        run.engine.end_session("s1")
        ended = await run.ended("s1")
        packets = run.packets("s1")
        assert ended.last_seq == len(packets)
        assert [code.number if code else None for code in barcodes(packets)] == list(range(1, len(packets) + 1))


async def test_an_end_waits_for_the_last_decoded_frame() -> None:
    async with EngineRun(staged(), limits=PATIENT, faults={"s/decode": ("stage.before_decode:2:stop",)}) as run:
        await run.ready()
        run.begin("s1")
        await run.started("s1")
        run.engine.grant("s1", 6)
        await run.until(lambda: len(steps(run, "s1")) == 3)
        await run.frames("s1", 2)
        run.engine.end_session("s1")
        run.begin("after", window=2)
        await run.started("after")
        assert run.ended_event("s1") is None
        held_child().resume()
        ended = await run.ended("s1")
        assert (ended.code, ended.last_seq, len(run.packets("s1"))) == ("ended", 6, 6)
        assert (await run.frames("after", 2))[0].header.seq == 1


async def test_a_cancelled_session_ends_while_its_latents_are_held_and_the_next_one_is_served() -> None:
    async with EngineRun(staged(max_sessions=1), limits=PATIENT, faults={"s/decode": ("stage.before_decode:2:stop",)}) as run:
        await run.ready()
        run.begin("s1", window=40)
        await run.frames("s1", 2)
        await run.until(lambda: len(steps(run, "s1")) == 4)
        run.engine.end_session("s1", discard=True)
        ended = await run.ended("s1")
        assert (ended.code, ended.last_seq) == ("ended", 2)
        run.begin("s2", window=8)
        await run.started("s2")
        held_child().resume()
        packets = await run.frames("s2", 10)
        assert [code.number if code else None for code in barcodes(packets)][:10] == list(range(1, 11))
        assert len(run.packets("s1")) == 2
    assert children() == []


async def test_a_stop_ends_sessions_and_leaves_nothing() -> None:
    before = descriptors()
    async with EngineRun(staged(stages={"denoise": [0, 1], "decode": [2]})) as run:
        await run.ready()
        assert len(children()) == 4
        run.begin("s1", window=8)
        await run.frames("s1", 6)
        await run.engine.stop(deadline_s=5)
        ended = await run.ended("s1")
        assert (ended.code, ended.last_seq) == ("ended", len(run.packets("s1")))
        assert run.states()[-1] is ModelState.STOPPED
    assert children() == []
    assert descriptors() == before


async def test_a_session_whose_encoder_fails_is_discarded_and_the_group_goes_on() -> None:
    async with EngineRun(staged(decode_ms=20), faults={"encode-0": ("encode.encoded:3:raise",)}) as run:
        await run.ready()
        run.begin("broken", window=40)
        ended = await run.ended("broken")
        assert (ended.code, ended.last_seq) == ("encode_failed", 2)
        run.begin("after", window=8)
        packets = await run.frames("after", 12)
        assert [code.number if code else None for code in barcodes(packets)] == list(range(1, len(packets) + 1))
        assert run.status().restarts == 0
    assert children() == []


async def test_a_verify_stage_decodes_again_and_agrees() -> None:
    """Each chunk where the decoder needs every one; what it has time for where it does not."""
    stages = {"denoise": [0], "decode": [1], "verify": [2]}
    async with EngineRun(staged(stages=stages), labyrinth("l", stages=stages)) as run:
        for model, count in (("s", 20), ("l", 6)):
            await run.ready(model)
            run.begin(model, model, window=4)
            await run.frames(model, count)
            run.engine.end_session(model)
            await run.ended(model)
        await run.until(lambda: sum(event.num_equal for event in compared(run, "s")) == len(run.packets("s")))
        await run.until(lambda: len(compared(run, "l")) > 0)
        for model in ("s", "l"):
            assert all(event.num_different == 0 and event.num_equal > 0 for event in compared(run, model))
            assert sum(event.num_equal for event in compared(run, model)) <= len(run.packets(model))
    assert children() == []


async def test_a_verify_stage_that_dies_takes_the_group_along() -> None:
    stages = {"denoise": [0], "decode": [1], "verify": [2]}
    async with EngineRun(staged(stages=stages), faults={"s/verify": ("stage.before_decode:2:kill",)}) as run:
        await run.ready()
        run.begin("s1", window=8)
        ended = await run.ended("s1")
        assert (ended.code, ended.retryable) == ("worker_lost", True) and "s/verify" in ended.message
        await run.ready()
        run.begin("s2", window=8)
        await run.frames("s2", 8)
    assert children() == []


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def run() -> AsyncIterator[EngineRun]:
    async with EngineRun(staged(max_sessions=2), staged("short", frames=7), staged("shy", refuse_at_chunk=2)) as run:
        for model in ("s", "short", "shy"):
            await run.ready(model)
        yield run


@pytest.mark.asyncio(loop_scope="module")
async def test_controls_reach_the_frames_that_name_them(run: EngineRun) -> None:
    run.begin("keys", window=4, prompt="a maze")
    await run.frames("keys", 4)
    run.engine.apply_control(ApplyControl("keys", 1, pressed=("KeyW",)))
    run.engine.apply_control(ApplyControl("keys", 2, pressed=("KeyA",), released=("KeyA",), prompt="snow"))
    await run.until(lambda: run.packets("keys")[-1].header.control_id == 2)
    run.engine.end_session("keys")
    await run.ended("keys")
    packets = run.packets("keys")
    headers = [packet.header for packet in packets]
    assert [header.seq for header in headers] == list(range(1, len(packets) + 1))
    assert [header.pts for header in headers] == [header.seq - 1 for header in headers]
    assert [header.chunk for header in headers] == [(header.seq - 1) // 2 for header in headers]
    codes = barcodes(packets)
    for header, code in zip(headers, codes, strict=True):
        assert code is not None and code.number == header.seq
        assert code.held == ({"KeyW"} if header.control_id == 2 else frozenset())
        assert code.prompt_check == barcode.check(b"snow" if header.control_id == 2 else b"a maze")
    tapped = [header.chunk for header, code in zip(headers, codes, strict=True) if code is not None and code.tapped]
    assert len(tapped) == 2 and len(set(tapped)) == 1


@pytest.mark.asyncio(loop_scope="module")
async def test_never_more_than_granted_is_generated(run: EngineRun) -> None:
    run.begin("some")
    await run.started("some")
    run.engine.grant("some", 5)
    await run.frames("some", 4)
    run.engine.end_session("some")
    assert (await run.ended("some")).last_seq == 4
    assert len(steps(run, "some")) == 2


@pytest.mark.asyncio(loop_scope="module")
async def test_a_family_with_no_more_frames_finishes_and_a_refusal_ends_its_session_alone(run: EngineRun) -> None:
    run.begin("finishing", "short", window=8)
    ended = await run.ended("finishing")
    assert (ended.code, ended.last_seq, ended.retryable) == ("finished", 7, False)
    assert [code.number if code else None for code in barcodes(run.packets("finishing"))] == list(range(1, 8))
    run.begin("refused", "shy", window=8)
    ended = await run.ended("refused")
    assert (ended.code, ended.last_seq) == ("invalid_session_options", 4)
    assert run.status("shy").restarts == 0


@pytest.mark.asyncio(loop_scope="module")
async def test_sessions_one_after_another_and_side_by_side_leave_nothing_behind(run: EngineRun) -> None:
    async def pair(name: str) -> None:
        sessions = [f"{name}-{side}" for side in ("left", "right")]
        for session_id in sessions:
            run.begin(session_id, window=6)
        for session_id in sessions:
            await run.frames(session_id, 6)
            run.engine.end_session(session_id)
        for session_id in sessions:
            ended = await run.ended(session_id)
            assert ended.last_seq == len(run.packets(session_id))

    def footprint() -> list[int]:
        return [process.num_fds() + process.num_threads() for process in (psutil.Process(), *children())]

    for index in range(3):
        await pair(f"warm{index}")
    before = footprint()
    for index in range(15):
        await pair(f"pair{index}")
    # One session's thread may still be on its way out; thirty would not.
    assert all(late <= early + 2 for early, late in zip(before, footprint(), strict=True))
    assert run.status().restarts == 0
