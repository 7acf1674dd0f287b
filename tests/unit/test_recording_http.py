"""Recordings over HTTP: who may see them, ranges, deletion, and a server that records nothing."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.fakes import FakeEngine, FakeTimers
from tests.h264 import frames
from tests.served import Served, config_for, served

from ithaka.server.daemon import SignalLog, StartError, build
from ithaka.server.engine_client import PacketArrived

KEY = "0123456789abcdef0123"
OPERATOR = {"Authorization": f"Bearer {KEY}"}


async def recorded(server: Served, count: int = 24) -> dict[str, Any]:
    """A session whose engine made real pictures, up to its end."""
    server.engine.is_held = True
    session = await server.create(record=True)
    async with server.connect(session) as client:
        await client.greet()
        for frame in frames(count):
            header = frame.header
            object.__setattr__(header, "session_id", session["id"])
            server.engine.emit(PacketArrived(header, frame.payload))
        answer = await server.http.delete(f"/v1/sessions/{session['id']}?force=true")
        assert answer.status_code == 200
    return session


async def until_complete(server: Served) -> dict[str, Any]:
    """Looks again after each round trip."""
    while True:
        (found,) = (await server.http.get("/v1/recordings")).json()["recordings"]
        if found["complete"]:
            return dict(found)


def videos(folder: Path) -> list[Path]:
    return list(folder.glob("*.mp4"))


def is_complete(folder: Path) -> bool:
    return any(json.loads(note.read_text())["is_complete"] for note in folder.glob("*.json"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "recordings"


async def test_a_recorded_session_is_listed_and_downloaded_whole_and_in_ranges(folder: Path) -> None:
    async with served(config_for(recording={"folder": folder})) as server:
        session = await recorded(server)
        found = await until_complete(server)
        assert (found["session"], found["frames"], found["skipped_frames"]) == (session["id"], 24, 0)
        whole = await server.http.get(found["video_path"])
        assert (whole.status_code, whole.headers["content-type"]) == (200, "video/mp4")
        assert len(whole.content) == found["bytes"] and whole.content[4:8] == b"ftyp"
        assert whole.headers["accept-ranges"] == "bytes"
        part = await server.http.get(found["video_path"], headers={"Range": "bytes=100-199"})
        assert (part.status_code, part.content) == (206, whole.content[100:200])
        assert part.headers["content-range"] == f"bytes 100-199/{found['bytes']}"
        end = await server.http.get(found["video_path"], headers={"Range": "bytes=-50"})
        assert end.content == whole.content[-50:]
        beyond = await server.http.get(found["video_path"], headers={"Range": f"bytes={found['bytes']}-"})
        assert beyond.status_code == 416
        assert (await server.http.delete(f"/v1/recordings/{found['id']}")).status_code == 204
        gone = await server.http.get(f"/v1/recordings/{found['id']}")
        assert (gone.status_code, gone.json()["error"]["code"]) == (404, "recording_unknown")
        assert os.listdir(folder) == []


async def test_only_the_operator_and_the_sessions_controller_see_a_recording(folder: Path) -> None:
    config = config_for(access={"api_keys": (KEY,)}, recording={"folder": folder})
    async with served(config) as server:
        server.http.headers.update(OPERATOR)
        session = await recorded(server)
        other = await server.create()
        found = await until_complete(server)
        viewer, _ = server.services.access.tokens.mint(session["id"], "viewer")
        del server.http.headers["Authorization"]

        async def status(path: str, token: str | None) -> int:
            headers = {} if token is None else {"Authorization": f"Bearer {token}"}
            return (await server.http.get(path, headers=headers)).status_code

        assert await status(found["video_path"], session["token"]) == 200
        assert await status(found["video_path"], other["token"]) == 403
        assert await status(found["video_path"], viewer) == 403
        assert await status(found["video_path"], None) == 401
        assert await status("/v1/recordings", session["token"]) == 403


async def test_bounds_hold_when_a_recording_begins_and_when_it_ends(folder: Path) -> None:
    """Nobody lists, and no time passes."""
    async with served(config_for(recording={"folder": folder, "max_count": 1})) as server:
        await recorded(server)
        await server.until(lambda: is_complete(folder))
        (first,) = videos(folder)
        server.engine.is_held = True
        session = await server.create(record=True)
        async with server.connect(session) as client:
            await client.greet()
            for frame in frames(12):
                object.__setattr__(frame.header, "session_id", session["id"])
                server.engine.emit(PacketArrived(frame.header, frame.payload))
            await server.until(lambda: not first.exists())


async def test_a_recording_beyond_all_bytes_goes_when_it_ends(folder: Path) -> None:
    async with served(config_for(recording={"folder": folder, "max_total_bytes": 1024})) as server:
        await recorded(server)
        await server.until(lambda: any(log["event"] == "recordings.swept" for log in server.logs))
        assert os.listdir(folder) == []


async def test_one_that_runs_is_listed_with_what_is_in_it(folder: Path) -> None:
    async with served(config_for(recording={"folder": folder})) as server:
        server.engine.is_held = True
        session = await server.create(record=True)
        async with server.connect(session) as client:
            await client.greet()
            for frame in frames(20):
                object.__setattr__(frame.header, "session_id", session["id"])
                server.engine.emit(PacketArrived(frame.header, frame.payload))
            listed: list[dict[str, Any]] = []
            async with asyncio.timeout(10):
                while not listed or listed[0]["frames"] < 16:
                    listed = (await server.http.get("/v1/recordings")).json()["recordings"]
            assert (listed[0]["frames"], listed[0]["complete"]) == (16, False), "two whole groups of pictures"


async def test_a_server_without_a_folder_records_nothing_and_says_so() -> None:
    async with served() as server:
        answer = await server.http.post("/v1/sessions", json={"model": "fake", "record": True})
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "recording_off")
        assert (await server.http.get("/v1/sessions")).json()["sessions"] == [], "no session was made"
        assert (await server.http.get("/v1/recordings")).json() == {"recordings": []}


async def test_a_session_that_did_not_ask_is_not_recorded(folder: Path) -> None:
    async with served(config_for(recording={"folder": folder})) as server:
        session = await server.create()
        async with server.connect(session) as client:
            await client.greet()
            await client.frame()
        assert (await server.http.get("/v1/recordings")).json() == {"recordings": []}


async def test_what_runs_is_deleted_with_what_follows(folder: Path) -> None:
    async with served(config_for(recording={"folder": folder})) as server:
        server.engine.is_held = True
        session = await server.create(record=True)
        async with server.connect(session) as client:
            await client.greet()
            made = list(frames(16))
            for frame in made[:12]:
                object.__setattr__(frame.header, "session_id", session["id"])
                server.engine.emit(PacketArrived(frame.header, frame.payload))
            while not (found := (await server.http.get("/v1/recordings")).json()["recordings"]):
                pass
            assert (await server.http.delete(f"/v1/recordings/{found[0]['id']}")).status_code == 204
            for frame in made[12:]:
                object.__setattr__(frame.header, "session_id", session["id"])
                server.engine.emit(PacketArrived(frame.header, frame.payload))
            assert (await server.http.get("/v1/recordings")).json() == {"recordings": []}


async def test_what_is_too_old_is_gone_when_anybody_looks(folder: Path) -> None:
    async with served(config_for(recording={"folder": folder, "max_age_s": 60})) as server:
        await recorded(server)
        await until_complete(server)
        server.wall.now_s += 61
        assert (await server.http.get("/v1/recordings")).json() == {"recordings": []}


@pytest.mark.parametrize("recording_id", ["..%2f..%2fetc%2fpasswd", "x" * 24, "0" * 24])
async def test_an_unknown_id_finds_nothing(folder: Path, recording_id: str) -> None:
    async with served(config_for(recording={"folder": folder})) as server:
        answer: httpx.Response = await server.http.get(f"/v1/recordings/{recording_id}/video")
        assert answer.status_code == 404


async def test_a_folder_that_can_not_be_used_is_told_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    config, timers = config_for(recording={"folder": tmp_path / "file"}), FakeTimers()
    with pytest.raises(StartError, match=r"recording\.folder"):
        build(config, FakeEngine(), timers, SignalLog(timers))
