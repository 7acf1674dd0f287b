"""A recording outlives its server: after SIGKILL the file plays, and a new server lists it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import av
import httpx
import websockets
from benchmarks.daemon import await_ready, read_url, start
from websockets.typing import Subprotocol

from tests.e2e.live_daemon import barcode_of
from tests.e2e.running_daemon import RunningDaemon, running_daemon

CONFIG = """
models:
  - {{name: numbers, family: synthetic, device: cpu, options: {{width: 320, height: 192, fps: 16, chunk_frames: 2}}}}
encode: {{key_frame_interval_s: 0.5}}
recording: {{folder: {folder}}}
"""


def test_after_kill_9_the_file_plays_and_is_listed(tmp_path: Path) -> None:
    folder = tmp_path / "recordings"
    (tmp_path / "first.yaml").write_text(CONFIG.format(folder=folder))
    process = start("-c", tmp_path / "first.yaml")
    try:
        url = read_url(process)
        await_ready(process, url)
        through = asyncio.run(stream(url, 40))
    finally:
        process.kill()
        process.communicate()
    (video,) = folder.glob("*.mp4")
    with av.open(str(video)) as container:
        numbers = [barcode_of(picture).number for picture in container.decode(video=0)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert through - 9 <= len(numbers), "all but the last half second of pictures"
    with running_daemon(tmp_path, CONFIG.format(folder=folder)) as daemon:
        (listed,) = list_all(daemon)
        assert listed["id"] == video.stem and not listed["complete"]
        assert listed["frames"] == len(numbers), "what is in the file, though nobody could write it down"
        downloaded = httpx.get(daemon.url + str(listed["video_path"]), trust_env=False)
        assert downloaded.content == video.read_bytes()


async def stream(url: str, through: int) -> int:
    """Take and acknowledge frames up to one; returns the last."""
    async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
        session = (await http.post("/v1/sessions", json={"model": "numbers", "record": True})).json()
    address = url.replace("http", "ws", 1) + session["stream_path"]
    protocols = [Subprotocol("ithaka.v1"), Subprotocol(f"ithaka.token.{session['token']}")]
    async with websockets.connect(address, subprotocols=protocols, compression=None, proxy=None) as socket:
        hello = json.loads(await socket.recv())
        await socket.send(json.dumps({"type": "resume", "stream": hello["stream"], "next_seq": 1}))
        seq = 0
        while seq < through:
            message = await socket.recv()
            if isinstance(message, bytes):
                seq += 1
                await socket.send(json.dumps({"type": "ack", "received_through": seq, "decoded_through": seq}))
        return seq


def list_all(daemon: RunningDaemon) -> list[dict[str, object]]:
    recordings: list[dict[str, object]] = httpx.get(f"{daemon.url}/v1/recordings", trust_env=False).json()["recordings"]
    return recordings
