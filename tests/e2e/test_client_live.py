"""The Python client plays a live session of the real daemon and has it recorded."""

from __future__ import annotations

from pathlib import Path

import httpx

from ithaka_client import Client
from tests.e2e.live_daemon import CONFIG, KEY, OPERATOR
from tests.e2e.running_daemon import running_daemon


async def test_live_frames_come_in_order_and_are_recorded(tmp_path: Path) -> None:
    with running_daemon(tmp_path, f"{CONFIG}recording: {{folder: {tmp_path / 'recordings'}}}\n") as daemon:
        async with (
            Client(daemon.url, KEY) as client,
            await client.create_session("numbers", delivery="live", record=True, max_frames=32) as session,
        ):
            seqs = [frame.seq async for frame in session.frames()]
        assert seqs == sorted(set(seqs)) and len(seqs) >= 24
        assert session.outcome is not None and session.outcome.last_seq == 32
        async with httpx.AsyncClient(base_url=daemon.url, headers=OPERATOR, trust_env=False) as http:
            (recording,) = (await http.get("/v1/recordings")).json()["recordings"]
        assert recording["session"] == session.id
