"""The Python client against a server of real sockets and real H.264."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import av
import httpx
import numpy as np
import pytest
from tests.unit.client_fake_server import FPS, FakeServer

from ithaka.workers.families.synthetic.barcode import read
from ithaka_client import (
    Client,
    ConnectFailedError,
    ConnectionLostError,
    DeadlineError,
    Frame,
    ProtocolError,
    ResumeRefusedError,
    Session,
    StreamFailedError,
    StreamRefusedError,
    UsageError,
)


@asynccontextmanager
async def session_of(
    server: FakeServer, *, api_key: str | None = None, connect_timeout_s: float = 10, resume_timeout_s: float = 10
) -> AsyncIterator[Session]:
    async with (
        server.running(),
        Client(server.url, api_key, transport=httpx.MockTransport(server.answer)) as client,
        await client.create_session(
            "numbers", seed=7, connect_timeout_s=connect_timeout_s, resume_timeout_s=resume_timeout_s
        ) as session,
    ):
        yield session


def number_of(picture: av.VideoFrame) -> int:
    barcode = read(np.asarray(picture.to_ndarray(format="gray"), np.uint8))
    assert barcode is not None
    return barcode.number


def number_in(frame: Frame) -> int:
    barcode = read(frame.yuv[0])
    assert barcode is not None
    return barcode.number


async def numbers_of(session: Session) -> list[int]:
    return [number_in(frame) async for frame in session.frames()]


async def test_every_frame_arrives_once_in_order_and_delivery_is_confirmed() -> None:
    server = FakeServer(total=40)
    async with session_of(server) as session:
        assert await numbers_of(session) == list(range(1, 41))
        assert session.outcome is not None
        assert (session.outcome.delivered, session.outcome.reason, session.outcome.last_seq) == (True, "finished", 40)
        assert session.num_connections == 1
    assert server.violations == []
    assert server.tokens == ["tok-1"]
    assert server.others == [{"type": "fin", "decoded_count": 40, "last_seq": 40}]
    assert ("DELETE", "/v1/sessions/abc?force=true") not in server.calls


@pytest.mark.parametrize("cuts", [{1}, {6}, {9}, {17, 18}, {40}, {3, 12, 25, 33}])
async def test_a_cut_connection_is_resumed_without_a_gap(cuts: set[int]) -> None:
    server = FakeServer(total=40, cut_before=set(cuts))
    async with session_of(server) as session:
        assert await numbers_of(session) == list(range(1, 41))
        assert session.num_connections == len(cuts) + 1
        assert session.outcome is not None and session.outcome.delivered is True
    assert server.violations == []
    assert server.resumes == sorted(server.resumes) and len(server.resumes) == len(cuts) + 1


async def test_a_consumer_that_does_not_take_frames_stops_the_server_within_the_window() -> None:
    server = FakeServer(total=40, window=4)
    async with session_of(server) as session:
        frames = session.frames()
        first = await anext(frames)
        async with server.changed:
            await server.changed.wait_for(lambda: server.received_through == 5)
        assert (first.seq, server.decoded_through, server.sent_through) == (1, 1, 5)
        assert [frame.seq async for frame in frames] == list(range(2, 41))
        assert session.outcome is not None and session.outcome.delivered is True
    assert server.violations == []


async def test_pings_are_answered_while_the_consumer_is_away() -> None:
    server = FakeServer(total=40, ping_at=3)
    async with session_of(server) as session:
        await session.connect()
        async with server.changed:
            await server.changed.wait_for(lambda: server.received_through == 8)
        assert {"type": "pong", "id": 77} in server.others


async def test_controls_carry_growing_ids_and_come_back_in_frames() -> None:
    server = FakeServer(total=40)
    async with session_of(server) as session:
        frames = session.frames()
        await anext(frames)
        first = await session.control(pressed=["KeyW"], pointer=(3, -4.5))
        second = await session.control(released=["KeyW"], prompt="snow")
        assert (first, second) == (1, 2)
        used = [frame.control_id async for frame in frames]
        assert used[-1] == 2
    assert server.controls == [
        {"type": "control", "control_id": 1, "pressed": ["KeyW"], "pointer_dx": 3, "pointer_dy": -4.5},
        {"type": "control", "control_id": 2, "released": ["KeyW"], "prompt": "snow"},
    ]


async def test_what_the_model_does_not_take_is_not_sent() -> None:
    server = FakeServer(takes_all=False)
    async with session_of(server) as session:
        with pytest.raises(UsageError, match="no prompt"):
            await session.control(prompt="snow")
        with pytest.raises(UsageError, match="no pointer"):
            await session.control(pointer=(1, 0))
        assert await session.control(pressed=["KeyW"]) == 1


async def test_a_resume_tells_the_keys_again_and_what_was_asked_for() -> None:
    server = FakeServer(total=40)
    async with session_of(server) as session:
        frames = session.frames()
        await anext(frames)
        await session.control(pressed=["KeyW", "KeyA"])
        await session.control(released=["KeyA"])
        await session.play()
        server.cut_before = {20}
        assert [frame.seq async for frame in frames] == list(range(2, 41))
    assert server.controls[2:] == [{"type": "control", "control_id": 3, "pressed": ["KeyW"], "released": ["KeyA"]}]
    assert [message["type"] for message in server.others] == ["play", "play", "fin"]


async def test_end_drains_and_delivers_what_was_generated() -> None:
    server = FakeServer(total=40, reason="ended")
    async with session_of(server) as session:
        seen = []
        async for frame in session.frames():
            seen.append(frame.seq)
            if frame.seq == 10:
                await session.end()
        assert seen == list(range(1, server.sent_through + 1)) and 10 <= len(seen) < 40
        assert session.outcome is not None and session.outcome.delivered is True
        with pytest.raises(UsageError, match="ended"):
            await session.control(pressed=["KeyW"])


async def test_a_failed_session_raises_after_its_last_frame() -> None:
    server = FakeServer(total=12, reason="worker_lost", final_state="failed")
    async with session_of(server) as session:
        seen = []
        with pytest.raises(StreamFailedError) as caught:
            async for frame in session.frames():
                seen.append(frame.seq)
        assert seen == list(range(1, 13))
        assert (caught.value.code, caught.value.retryable, caught.value.last_seq) == ("worker_lost", True, 12)


async def test_leaving_early_discards_the_session() -> None:
    server = FakeServer(total=40)
    async with session_of(server) as session:
        await anext(session.frames())
    assert ("DELETE", "/v1/sessions/abc?force=true") in server.calls
    assert session.outcome is not None and session.outcome.delivered is False
    await session.aclose()


async def test_a_verdict_that_got_lost_is_asked_for() -> None:
    server = FakeServer(total=12, cut_at_fin=True)
    async with session_of(server) as session:
        assert await numbers_of(session) == list(range(1, 13))
        assert session.outcome is not None and session.outcome.delivered is True


async def test_a_session_that_ended_while_the_client_was_away_says_why() -> None:
    server = FakeServer(total=40, cut_before={9}, reason="detach_timeout")
    async with session_of(server) as session:
        frames = session.frames()
        await anext(frames)
        server.on_connection = lambda socket: server.refuse_with.append(4404)
        server.state, server.delivered = "closed", False
        with pytest.raises(StreamFailedError, match="detach_timeout"):
            async for _ in frames:
                server.state = "closed"
        assert session.outcome is not None and session.outcome.delivered is False


async def test_a_foreign_stream_is_not_taken_for_the_own_one() -> None:
    server = FakeServer(total=40, cut_before={9})
    async with session_of(server) as session:
        frames = session.frames()
        await anext(frames)
        server.stream = "s2"
        with pytest.raises(ResumeRefusedError):
            async for _ in frames:
                pass


async def test_a_controller_that_the_server_still_counts_is_waited_for() -> None:
    server = FakeServer(total=40, cut_before={9})
    async with session_of(server) as session:
        frames = session.frames()
        await anext(frames)
        server.refuse_with = [4409, 4409]
        assert [frame.seq async for frame in frames] == list(range(2, 41))
    assert server.num_connections == 4


async def test_an_expired_token_is_renewed_with_the_key() -> None:
    server = FakeServer(total=40, cut_before={9})
    async with session_of(server, api_key="k" * 16) as session:
        frames = session.frames()
        await anext(frames)
        server.refuse_with = [4401]
        assert [frame.seq async for frame in frames] == list(range(2, 41))
    assert server.tokens == ["tok-1", "tok-1", "tok-2"]


@pytest.mark.parametrize(("close_code", "code"), [(4401, "token_invalid"), (4403, "forbidden"), (4404, "session_unknown")])
async def test_a_refused_first_connection_raises_at_once(close_code: int, code: str) -> None:
    server = FakeServer(refuse_with=[close_code])
    async with session_of(server) as session:
        with pytest.raises(StreamRefusedError) as caught:
            await session.connect()
        assert (caught.value.code, caught.value.close_code) == (code, close_code)


async def test_a_missing_frame_is_an_error_and_never_shown_as_delivered() -> None:
    server = FakeServer(total=40, skip=5)
    async with session_of(server) as session:
        with pytest.raises(ProtocolError, match="frame 6 came where 5 was expected"):
            await numbers_of(session)
        assert session.decoded_through <= 4
    assert session.outcome is not None and session.outcome.delivered is False


async def test_an_outage_that_lasts_ends_in_an_error() -> None:
    server = FakeServer(total=40, cut_before={9})
    async with session_of(server, resume_timeout_s=0.3) as session:
        frames = session.frames()
        await anext(frames)
        server.on_connection = lambda socket: socket.transport.abort()
        with pytest.raises(ConnectionLostError, match="could not be resumed"):
            async for _ in frames:
                pass


async def test_no_hello_within_the_deadline() -> None:
    async with session_of(FakeServer(holds_hello=True), connect_timeout_s=0.2) as session:
        with pytest.raises(DeadlineError):
            await session.connect()


async def test_no_server_at_all() -> None:
    async with Client("http://127.0.0.1:1") as client:
        with pytest.raises(ConnectFailedError):
            await client.models()


async def test_frames_can_be_asked_for_once() -> None:
    async with session_of(FakeServer(total=8)) as session:
        await numbers_of(session)
        with pytest.raises(UsageError):
            await numbers_of(session)


async def test_a_recording_holds_each_frame_once_though_the_connection_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "out.mp4"
    server = FakeServer(total=40, cut_before={13, 30})
    async with session_of(server) as session:
        recorder = session.record(path)
        await numbers_of(session)
    assert recorder.num_frames == 40
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert stream.average_rate == FPS
        pictures = list(container.decode(stream))
    assert [number_of(picture) for picture in pictures] == list(range(1, 41))
    assert {(picture.colorspace, picture.color_range) for picture in pictures} == {(1, 1)}
    assert b"colr" in path.read_bytes()


async def test_a_recording_that_starts_late_starts_at_a_key_frame(tmp_path: Path) -> None:
    path = tmp_path / "late.mp4"
    async with session_of(FakeServer(total=24)) as session:
        async for frame in session.frames():
            if frame.seq == 4:
                recorder = session.record(path)
    assert recorder.num_frames == 24 - 8
    with av.open(str(path)) as container:
        first = next(container.decode(video=0))
        assert (first.pts, number_of(first)) == (0, 9)


async def test_a_recording_of_nothing_leaves_no_broken_task(tmp_path: Path) -> None:
    async with session_of(FakeServer(total=8)) as session:
        session.record(tmp_path / "none.mp4")
        await session.connect()
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("ithaka-stream")]
