"""A small server of the client protocol for the clients' tests: real sockets, real H.264, failures on demand.

It keeps every frame, holds the client to the protocol, and writes down what it saw in ``violations`` and the lists beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from typing import Any

import av
import httpx
import numpy as np
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from ithaka.workers.families.synthetic.barcode import Barcode, draw
from ithaka_client.protocol import FLAG_DECODE_ONLY, FLAG_KEY_FRAME, FRAME_KIND, HEADER

WIDTH, HEIGHT, FPS = 128, 64, 16
KEY_INTERVAL = 8


@cache
def encoded_frames(count: int) -> tuple[bytes, ...]:
    """Access units of numbered frames, a key frame every KEY_INTERVAL."""
    encoder = av.CodecContext.create("libx264", "w")
    assert isinstance(encoder, av.VideoCodecContext)
    encoder.width, encoder.height, encoder.pix_fmt = WIDTH, HEIGHT, "yuv420p"
    encoder.time_base, encoder.framerate = Fraction(1, FPS), Fraction(FPS)
    encoder.colorspace = encoder.color_primaries = encoder.color_trc = encoder.color_range = 1
    encoder.gop_size = KEY_INTERVAL
    encoder.thread_count = 1
    encoder.options = {"preset": "ultrafast", "tune": "zerolatency", "crf": "20", "x264-params": "scenecut=0"}
    packets = []
    for seq in range(1, count + 1):
        samples = np.full((HEIGHT * 3 // 2, WIDTH), 128, np.uint8)
        draw(Barcode(seq), samples[:HEIGHT])
        picture = av.VideoFrame.from_ndarray(samples, format="yuv420p")
        picture.pts = seq - 1
        packets += [bytes(packet) for packet in encoder.encode(picture)]
    assert len(packets) == count
    return tuple(packets)


def frame_message(seq: int, payload: bytes, *, control_id: int = 0, decode_only: bool = False, chunk_frames: int = 1) -> bytes:
    is_key = (seq - 1) % KEY_INTERVAL == 0
    flags = (FLAG_KEY_FRAME if is_key else 0) | (FLAG_DECODE_ONLY if decode_only else 0)
    header = HEADER.pack(FRAME_KIND, flags, HEADER.size, len(payload), seq, seq - 1, control_id, (seq - 1) // chunk_frames, 3)
    return header + payload


@dataclass
class FakeServer:
    """``total`` frames, then eos. Fields above the line are knobs, those below are what was seen."""

    total: int = 40
    window: int = 8
    cut_before: set[int] = field(default_factory=set)
    """The connection is aborted, once each, instead of sending these seqs."""
    refuse_with: list[int] = field(default_factory=list)
    """Close codes with which the next connections are refused."""
    reason: str = "finished"
    final_state: str = "closed"
    cut_at_fin: bool = False
    mute_after_fin: bool = False
    stream: str = "s1"
    skip: int = 0
    """This seq is left out."""
    holds_hello: bool = False
    ping_at: int = 0
    takes_all: bool = True
    on_connection: Callable[[ServerConnection], None] = lambda socket: None
    # -------------------------------------------------------------------------------------------------------------
    url: str = ""
    sent_through: int = 0
    received_through: int = 0
    decoded_through: int = 0
    num_connections: int = 0
    resumes: list[int] = field(default_factory=list)
    controls: list[dict[str, Any]] = field(default_factory=list)
    others: list[dict[str, Any]] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    calls: list[tuple[str, str]] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    state: str = "admitted"
    delivered: bool | None = None
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    is_ended: bool = False

    # -- the stream ------------------------------------------------------------------------------------------------

    async def handle(self, socket: ServerConnection) -> None:
        assert socket.request is not None
        offered = socket.request.headers.get("Sec-WebSocket-Protocol", "")
        self.tokens += [name.strip()[13:] for name in offered.split(",") if name.strip().startswith("ithaka.token.")]
        self.num_connections += 1
        self.on_connection(socket)
        if self.refuse_with:
            await socket.close(self.refuse_with.pop(0), "refused")
            return
        if self.holds_hello:
            await socket.wait_closed()
            return
        with contextlib.suppress(ConnectionClosed):
            await self._serve(socket)

    async def _serve(self, socket: ServerConnection) -> None:
        await socket.send(json.dumps(self.hello()))
        first = json.loads(await socket.recv())
        if first.get("type") != "resume" or first["stream"] != self.stream or first["next_seq"] <= self.decoded_through:
            self.violations.append(f"bad resume {first} at {self.decoded_through}")
        self.resumes.append(first["next_seq"])
        self.state = "streaming"
        sending = asyncio.create_task(self._send_frames(socket, first["next_seq"]))
        try:
            async for text in socket:
                await self._receive(socket, json.loads(text))
        finally:
            sending.cancel()
            await asyncio.wait([sending])

    async def _send_frames(self, socket: ServerConnection, next_seq: int) -> None:
        with contextlib.suppress(ConnectionClosed):
            payloads = encoded_frames(self.total)
            start = (min(next_seq, self.total) - 1) // KEY_INTERVAL * KEY_INTERVAL + 1
            for seq in range(start, self.total + 1):
                async with self.changed:
                    while not self.is_ended and seq > self.decoded_through + self.window:
                        await self.changed.wait()
                if self.is_ended and seq > self.sent_through:
                    break
                if seq in self.cut_before:
                    self.cut_before.remove(seq)
                    socket.transport.abort()
                    return
                if seq == self.ping_at:
                    await socket.send(json.dumps({"type": "ping", "id": 77}))
                self.sent_through = max(self.sent_through, seq)
                control_id = max((control["control_id"] for control in self.controls), default=0)
                if seq != self.skip:
                    message = frame_message(seq, payloads[seq - 1], control_id=control_id, decode_only=seq < next_seq)
                    await socket.send(message)
            self.state = "draining"
            last = self.sent_through
            await socket.send(
                json.dumps({"type": "eos", "last_seq": last, "count": last, "reason": self.reason, "retryable": True})
            )

    async def _receive(self, socket: ServerConnection, message: dict[str, Any]) -> None:
        match message["type"]:
            case "ack":
                received, decoded = message["received_through"], message["decoded_through"]
                if not decoded <= received <= self.sent_through:
                    self.violations.append(f"{message} with {self.sent_through} sent")
                if received < self.received_through or decoded < self.decoded_through:
                    self.violations.append(f"{message} shrinks")
                async with self.changed:
                    self.received_through, self.decoded_through = received, decoded
                    self.changed.notify_all()
            case "control":
                self.controls.append(message)
            case "end":
                self.others.append(message)
                async with self.changed:
                    self.is_ended = True
                    self.changed.notify_all()
            case "fin":
                self.others.append(message)
                self.delivered = message["decoded_count"] == message["last_seq"] == self.sent_through
                self.state = self.final_state
                if self.cut_at_fin:
                    self.refuse_with.append(4404)
                    socket.transport.abort()
                elif not self.mute_after_fin:
                    verdict = {"type": "state", "state": self.state, "reason": self.reason, "delivered": self.delivered}
                    await socket.send(json.dumps(verdict))
                    await socket.close(1000 if self.state == "closed" else 1012)
            case _:
                self.others.append(message)

    def hello(self) -> dict[str, Any]:
        return {
            "type": "hello", "version": 1, "session": "abc", "stream": self.stream, "role": "controller",
            "next_seq": self.decoded_through + 1, "window": self.window, "codec": "avc1.42C00A", "width": WIDTH,
            "height": HEIGHT, "fps": FPS, "time_base": [1, FPS], "pixels": "lossy", "model": "numbers",
            "controls": ["KeyW"], "takes_prompt": self.takes_all, "takes_pointer": self.takes_all,
            "from_the_future": {"ignored": True},
        }  # fmt: skip

    # -- the HTTP calls --------------------------------------------------------------------------------------------

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.calls.append((request.method, request.url.raw_path.decode()))
        match request.method, request.url.path:
            case "POST", "/v1/sessions":
                return httpx.Response(201, json=self.session(token="tok-1"))
            case "POST", "/v1/sessions/abc/token":
                return httpx.Response(200, json={"token": "tok-2", "token_expires_at": "2030-01-01T00:00:00Z"})
            case "GET", "/v1/sessions/abc":
                return httpx.Response(200, json=self.session())
            case "DELETE", "/v1/sessions/abc":
                return httpx.Response(200, json=self.session())
        return httpx.Response(404, json={"error": {"code": "session_unknown", "message": "No.", "retryable": False}})

    def session(self, token: str | None = None) -> dict[str, Any]:
        return {
            "id": "abc", "state": self.state, "model": "numbers", "seed": 7, "prompt": "", "pixels": "lossy",
            "pacing": "media", "width": WIDTH, "height": HEIGHT, "fps": FPS, "window_frames": self.window,
            "created_at": "2030-01-01T00:00:00Z", "queue_position": None, "stream_path": "/v1/sessions/abc/stream",
            "token": token, "token_expires_at": None, "generated_seq": self.sent_through,
            "sent_seq": self.sent_through, "decoded_seq": self.decoded_through, "delivered": self.delivered,
            "reason": self.reason if self.state in ("closed", "failed") else "",
        }  # fmt: skip

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[FakeServer]:
        async with serve(self.handle, "127.0.0.1", 0, subprotocols=["ithaka.v1"], compression=None, close_timeout=1) as server:  # type: ignore[list-item]
            port = server.sockets[0].getsockname()[1]
            self.url = f"http://127.0.0.1:{port}"
            yield self
