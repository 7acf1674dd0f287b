"""The Python client against the real daemon, frames counted by what is written in them."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import av
import httpx
import numpy as np
import pytest
import websockets
from websockets.typing import Subprotocol

from ithaka.workers.families.synthetic.barcode import Barcode, check, read
from ithaka_client import (
    CapacityError,
    Client,
    Frame,
    NotFoundError,
    RequestInvalidError,
    Session,
    StreamFailedError,
    StreamRefusedError,
)
from ithaka_client.protocol import EncodedFrame, Hello, ServerError, build_ack, build_resume, parse_frame, parse_message
from tests.e2e.cuttable_proxy import CuttableProxy
from tests.e2e.running_daemon import RunningDaemon

DEADLINE_S = 30


@pytest.fixture
async def client(daemon: RunningDaemon) -> AsyncIterator[Client]:
    async with Client(daemon.url) as opened:
        yield opened


def barcode_of(frame: Frame) -> Barcode:
    barcode = read(frame.yuv[0])
    assert barcode is not None
    return barcode


async def numbers_of(session: Session) -> list[int]:
    return [barcode_of(frame).number async for frame in session.frames()]


async def test_models_are_described(client: Client) -> None:
    # The daemon is ready with the first of them; a session tells that its model is.
    async with await client.create_session("chunks") as chunks_session, await client.create_session("numbers") as session:
        await chunks_session.connect()
        await session.connect()
        numbers, chunks, _ = await client.models()
    assert (numbers.name, numbers.state, numbers.width, numbers.height, numbers.fps) == ("numbers", "ready", 192, 128, 30)
    assert chunks.raw["chunk_frames"] == 4 and "KeyW" in numbers.controls and numbers.takes_prompt


@pytest.mark.parametrize("model", ["numbers", "chunks"])
async def test_500_frames_arrive_once_in_order(client: Client, model: str) -> None:
    async with await client.create_session(model, pacing="unpaced", window_frames=16, max_frames=500) as session:
        assert await numbers_of(session) == list(range(1, 501))
        assert session.outcome is not None
        assert (session.outcome.delivered, session.outcome.last_seq, session.outcome.decoded_count) == (True, 500, 500)
    info = await client.session(session.id)
    assert (info.state, info.delivered, info.decoded_seq) == ("closed", True, 500)


async def test_exact_pixels_are_exact(client: Client) -> None:
    async with await client.create_session("numbers", pixels="exact", max_frames=3) as session:
        async for frame in session.frames():
            barcode_area = frame.yuv[0][: 5 * 8, : 16 * 8]
            assert set(np.unique(barcode_area)) == {16, 235}


async def test_a_key_and_a_prompt_reach_the_frames_that_name_them(client: Client) -> None:
    async with await client.create_session("numbers", prompt="rain") as session:
        pressed = prompted = 0
        async for frame in session.frames():
            barcode = barcode_of(frame)
            if frame.seq == 1:
                assert barcode.prompt_check == check(b"rain")
                pressed = await session.control(pressed=["KeyW"])
                prompted = await session.control(prompt="snow")
            assert ("KeyW" in barcode.held) == (frame.control_id >= pressed > 0)
            if frame.control_id >= prompted > 0:
                assert barcode.prompt_check == check(b"snow")
                await session.end()
        assert session.outcome is not None and session.outcome.delivered is True and session.outcome.reason == "ended"


@pytest.mark.parametrize("model", ["numbers", "chunks"])
async def test_cut_twice_and_resumed_without_a_gap(proxy: CuttableProxy, model: str) -> None:
    async with Client(proxy.url) as client, await client.create_session(model, max_frames=80) as session:
        seen = []
        async for frame in session.frames():
            seen.append(barcode_of(frame).number)
            if frame.seq == 2:
                await session.control(pressed=["KeyA"])
            if frame.seq in (22, 51):
                assert proxy.cut() > 0
            if frame.seq == 80:
                assert "KeyA" in barcode_of(frame).held
        assert seen == list(range(1, 81))
        assert session.num_connections == 3
        assert session.outcome is not None and session.outcome.delivered is True


async def test_an_outage_of_a_while_is_waited_out(proxy: CuttableProxy) -> None:
    async with Client(proxy.url) as client, await client.create_session("numbers", max_frames=60) as session:
        seen = []
        async for frame in session.frames():
            seen.append(barcode_of(frame).number)
            if frame.seq == 20:
                proxy.go_down()
                asyncio.get_running_loop().call_later(0.5, proxy.come_back)
        assert seen == list(range(1, 61))


async def test_a_slow_consumer_stops_its_own_session_within_the_window(client: Client) -> None:
    async with await client.create_session("numbers", pacing="unpaced", window_frames=8) as slow:
        frames = slow.frames()
        for _ in range(3):
            await anext(frames)
        async with await client.create_session("numbers", pacing="unpaced", max_frames=120) as other:
            assert await numbers_of(other) == list(range(1, 121))
        info = await client.session(slow.id)
        assert info.decoded_seq == 3 and info.generated_seq == info.sent_seq == 3 + 8
        await slow.end()
        assert [frame.seq async for frame in frames] == list(range(4, 12))
        assert slow.outcome is not None and slow.outcome.delivered is True


async def test_paused_and_played_again(client: Client) -> None:
    async with await client.create_session("numbers", max_frames=40) as session:
        seen = []
        async for frame in session.frames():
            seen.append(frame.seq)
            if frame.seq == 10:
                await session.pause()
                asyncio.get_running_loop().call_later(0.3, lambda: asyncio.ensure_future(session.play()))
        assert seen == list(range(1, 41))


async def test_recorded_as_it_was_received(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "walk.mp4"
    async with await client.create_session("chunks", pacing="unpaced", max_frames=96) as session:
        await session.connect()
        session.record(path)
        await numbers_of(session)
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert (stream.width, stream.height, stream.frames) == (320, 192, 96) and stream.average_rate == 24
        numbers = []
        for picture in container.decode(stream):
            assert (picture.colorspace, picture.color_range) == (1, 1)
            barcode = read(np.asarray(picture.to_ndarray(format="gray"), np.uint8))
            numbers.append(barcode.number if barcode else None)
    assert numbers == list(range(1, 97))


async def test_the_command_records(daemon: RunningDaemon, tmp_path: Path) -> None:
    path = tmp_path / "walk.mp4"
    arguments = ["record", str(path), "--url", daemon.url, "--model", "numbers", "--frames", "30", "--hold", "KeyW"]
    code, said = await run_command(*arguments)
    assert (code, said) == (0, f"{path}: 30 frames\n")
    with av.open(str(path)) as container:
        *_, last = container.decode(video=0)
    barcode = read(np.asarray(last.to_ndarray(format="gray"), np.uint8))
    assert barcode is not None and (barcode.number, barcode.held) == (30, frozenset({"KeyW"}))

    code, said = await run_command("record", str(path), "--url", daemon.url, "--model", "nothing")
    assert code == 1 and said.startswith("ithaka-client: ") and "[model_unknown]" in said


async def run_command(*arguments: str) -> tuple[int | None, str]:
    """Exit code, and what was printed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "ithaka_client",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return process.returncode, output.decode()


CRASHING_CLIENT = """
import asyncio, os, signal, sys
from ithaka_client import Client

async def main():
    async with Client(sys.argv[1]) as client:
        session = await client.create_session("numbers")
        print(session.id, flush=True)
        async for frame in session.frames():
            if frame.seq == 12:
                os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


async def test_a_killed_client_is_never_called_delivered(client: Client, daemon: RunningDaemon) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CRASHING_CLIENT, daemon.url, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert process.returncode == -signal.SIGKILL
    session_id = output.decode().strip()
    closed = await closed_event(daemon, session_id)
    assert closed["delivered"] is False and closed["reason"] == "detach_timeout"
    info = await client.session(session_id)
    assert info.delivered is False and 11 <= info.decoded_seq <= 12


async def closed_event(daemon: RunningDaemon, session_id: str) -> dict[str, Any]:
    async with (
        asyncio.timeout(DEADLINE_S),
        httpx.AsyncClient(trust_env=False, timeout=DEADLINE_S) as http,
        http.stream("GET", f"{daemon.url}/v1/sessions/{session_id}/events") as events,
    ):
        is_last = False
        async for line in events.aiter_lines():
            if line.startswith("event:"):
                is_last = line.removeprefix("event:").strip() == "closed"
            elif line.startswith("data:") and is_last:
                found: dict[str, Any] = json.loads(line.removeprefix("data:"))
                return found
    raise AssertionError("the events ended without closed")


@pytest.mark.parametrize(
    ("change", "code"), [("stale", "resume_stale"), ("foreign", "resume_foreign"), ("ahead", "resume_ahead")]
)
async def test_a_resume_from_elsewhere_is_refused_and_costs_nothing(
    daemon: RunningDaemon, client: Client, change: str, code: str
) -> None:
    """The refused one leaves; the rightful one goes on with the next frame."""
    session = await client.create_session("numbers")
    hello, _ = await watch(daemon, session, next_seq=1, frames=10)
    resume = {
        "resume_stale": build_resume(hello.stream, 5),
        "resume_foreign": build_resume("another", 11),
        "resume_ahead": build_resume(hello.stream, 1000),
    }[code]
    async with stream_of(daemon, session) as socket:
        await next_hello(socket)
        await socket.send(resume)
        error = None
        with pytest.raises(websockets.ConnectionClosed) as closed:
            while True:
                message = await socket.recv()
                if isinstance(message, str) and isinstance(parsed := parse_message(message), ServerError):
                    error = parsed
        assert error is not None and error.code == code
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 4410
    _, seqs = await watch(daemon, session, next_seq=11, frames=20)
    assert seqs == list(range(11, 31))
    await session.aclose()


def stream_of(daemon: RunningDaemon, session: Session) -> websockets.connect:
    protocols = [Subprotocol("ithaka.v1"), Subprotocol(f"ithaka.token.{session.info.token}")]
    return websockets.connect(
        f"ws://127.0.0.1:{daemon.port}{session.info.stream_path}", subprotocols=protocols, compression=None, proxy=None
    )


async def next_hello(socket: websockets.ClientConnection) -> Hello:
    while True:
        message = await socket.recv()
        assert isinstance(message, str)
        if isinstance(hello := parse_message(message), Hello):
            return hello


async def watch(daemon: RunningDaemon, session: Session, *, next_seq: int, frames: int) -> tuple[Hello, list[int]]:
    """Take so many frames that are to be shown, acknowledge them, wait until that arrived, drop the connection."""
    seqs: list[int] = []
    async with asyncio.timeout(DEADLINE_S), stream_of(daemon, session) as socket:
        hello = await next_hello(socket)
        await socket.send(build_resume(hello.stream, next_seq))
        while len(seqs) < frames:
            message = await socket.recv()
            if isinstance(message, bytes):
                frame: EncodedFrame = parse_frame(message)
                if not frame.is_decode_only:
                    seqs.append(frame.seq)
                    await socket.send(build_ack(frame.seq, frame.seq))
        await (await socket.ping())
    return hello, seqs


async def test_a_second_controller_is_refused_and_the_first_goes_on(daemon: RunningDaemon, client: Client) -> None:
    async with await client.create_session("numbers", max_frames=40) as session:
        seen = []
        async for frame in session.frames():
            seen.append(frame.seq)
            if frame.seq == 5:
                async with stream_of(daemon, session) as socket:
                    with pytest.raises(websockets.ConnectionClosed) as closed:
                        while True:
                            await socket.recv()
                assert closed.value.rcvd is not None and closed.value.rcvd.code == 4409
        assert seen == list(range(1, 41)) and session.num_connections == 1


async def test_a_session_that_fails_delivers_what_it_had(client: Client) -> None:
    seen = []
    async with await client.create_session("broken") as session:
        with pytest.raises(StreamFailedError) as failed:
            async for frame in session.frames():
                seen.append(barcode_of(frame).number)
        assert seen == list(range(1, 21)) and failed.value.last_seq == 20
        assert session.outcome is not None and (session.outcome.state, session.outcome.delivered) == ("failed", True)
    assert (await client.session(session.id)).reason == failed.value.code


async def test_leaving_early_ends_the_session_on_the_server(client: Client) -> None:
    async with await client.create_session("numbers") as session:
        async for frame in session.frames():
            if frame.seq == 5:
                break
    info = await client.session(session.id)
    assert (info.state, info.delivered) == ("closed", False)


async def test_what_is_wrong_is_named(client: Client) -> None:
    with pytest.raises(NotFoundError) as unknown_model:
        await client.create_session("nothing")
    assert unknown_model.value.code == "model_unknown"
    with pytest.raises(RequestInvalidError) as out_of_range:
        await client.create_session("numbers", window_frames=1)
    assert out_of_range.value.field == "body.window_frames"
    with pytest.raises(NotFoundError):
        await client.session("0" * 24)
    session = await client.create_session("numbers")
    await client.delete_session(session.id, force=True)
    with pytest.raises((StreamRefusedError, StreamFailedError)):
        await session.connect()


async def test_the_queue_is_waited_in_and_has_an_end(client: Client) -> None:
    """Four places, sixteen in the queue."""
    async with contextual_sessions(client, 4) as running, contextual_sessions(client, 16) as waiting:
        assert [session.info.queue_position for session in running] == [None] * 4
        assert [session.info.queue_position for session in waiting] == list(range(1, 17))
        with pytest.raises(CapacityError) as full:
            await client.create_session("numbers")
        assert full.value.code == "queue_full" and full.value.retryable and full.value.retry_after_s is not None
        await client.delete_session(running[0].id, force=True)
        first = anext(waiting[0].frames())
        assert (await first).seq == 1


class contextual_sessions:
    """So many sessions; the server forgets them at the end."""

    def __init__(self, client: Client, count: int) -> None:
        self._client = client
        self._count = count
        self._sessions: list[Session] = []

    async def __aenter__(self) -> list[Session]:
        for _ in range(self._count):
            self._sessions.append(await self._client.create_session("numbers"))
        return self._sessions

    async def __aexit__(self, *_: object) -> None:
        for session in reversed(self._sessions):
            await session.aclose()
