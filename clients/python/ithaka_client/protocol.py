"""Protocol version 1, pure: bytes and text in, frozen values out, and back. It does no I/O.

``parse_message`` and ``parse_frame`` raise ProtocolError for whatever they do not understand, and nothing else. Unknown fields
are ignored and an unknown message type is reported as such, so that a newer server of the same version can be talked to.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ithaka_client.errors import ProtocolError

VERSION = 1
SUBPROTOCOL = "ithaka.v1"
TOKEN_SUBPROTOCOL_PREFIX = "ithaka.token."

FRAME_KIND = 1
FLAG_KEY_FRAME = 1
FLAG_DECODE_ONLY = 2
HEADER = struct.Struct("!BBHIQQQII")
"""kind, flags, header_bytes, payload_bytes, seq, pts, control_id, chunk, age_ms: 40 bytes, network byte order."""

MAX_MESSAGE_BYTES = 32 * 1024 * 1024
MAX_SAFE_INTEGER = 2**53 - 1
"""Integers in JSON stay exact in every client up to here."""


# -- from the server ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """The stream behind this connection. ``next_seq`` is the first frame that the server counts as not yet decoded."""

    version: int
    session: str
    stream: str
    role: str
    next_seq: int
    window: int
    codec: str
    width: int
    height: int
    fps: int
    pixels: str
    model: str
    controls: tuple[str, ...]
    takes_prompt: bool
    takes_pointer: bool


@dataclass(frozen=True, slots=True)
class StateChanged:
    """``delivered`` stands on the last one only."""

    state: str
    reason: str
    delivered: bool | None


@dataclass(frozen=True, slots=True)
class Ping:
    id: int


@dataclass(frozen=True, slots=True)
class EndOfStream:
    """No frame follows ``last_seq``; ``count`` is the number of frames of the stream in all."""

    last_seq: int
    count: int
    reason: str
    retryable: bool


@dataclass(frozen=True, slots=True)
class Numbered:
    """On a track in VP8: the frame that is shown at this RTP time. ``generated_us``: the server's monotonic clock."""

    seq: int
    control_id: int
    generated_us: int
    rtp_timestamp: int


@dataclass(frozen=True, slots=True)
class ServerError:
    code: str
    message: str
    retryable: bool


@dataclass(frozen=True, slots=True)
class UnknownMessage:
    type: str


@dataclass(frozen=True, slots=True)
class EncodedFrame:
    """One access unit (H.264 Annex B). ``pts`` in 1/fps seconds, ``age_ms`` from generation to sending."""

    seq: int
    pts: int
    control_id: int
    chunk: int
    age_ms: int
    is_key: bool
    is_decode_only: bool
    payload: bytes


ServerMessage = Hello | StateChanged | Ping | EndOfStream | Numbered | ServerError | UnknownMessage


def parse_message(text: str) -> ServerMessage:
    """A text message of the server. Raises ProtocolError."""
    fields = _Fields.parse(text)
    match kind := fields.text("type"):
        case "hello":
            return _parse_hello(fields)
        case "state":
            return StateChanged(fields.text("state"), fields.text("reason", default=""), fields.flag_or_none("delivered"))
        case "ping":
            return Ping(fields.count("id"))
        case "eos":
            return EndOfStream(
                fields.count("last_seq"), fields.count("count"), fields.text("reason"), fields.flag("retryable", default=False)
            )
        case "numbered":
            return Numbered(
                fields.count("seq"), fields.count("control_id"), fields.count("generated_us"), fields.count("rtp_timestamp")
            )
        case "error":
            return ServerError(fields.text("code"), fields.text("message"), fields.flag("retryable", default=False))
        case _:
            return UnknownMessage(kind)


def _parse_hello(fields: _Fields) -> Hello:
    version = fields.count("version")
    if version != VERSION:
        raise ProtocolError(f"the server speaks version {version}, this client {VERSION}", code="version_unsupported")
    hello = Hello(
        version=version,
        session=fields.text("session"),
        stream=fields.text("stream"),
        role=fields.text("role"),
        next_seq=fields.count("next_seq"),
        window=fields.count("window"),
        codec=fields.text("codec"),
        width=fields.count("width"),
        height=fields.count("height"),
        fps=fields.count("fps"),
        pixels=fields.text("pixels"),
        model=fields.text("model"),
        controls=fields.texts("controls"),
        takes_prompt=fields.flag("takes_prompt"),
        takes_pointer=fields.flag("takes_pointer"),
    )
    if min(hello.next_seq, hello.window, hello.width, hello.height, hello.fps) < 1:
        raise ProtocolError("hello: next_seq, window, width, height and fps are at least 1")
    return hello


def parse_frame(data: bytes) -> EncodedFrame:
    """A binary message of the server. Raises ProtocolError."""
    if len(data) < HEADER.size:
        raise ProtocolError(f"a frame of {len(data)} bytes is shorter than its header of {HEADER.size}")
    kind, flags, header_bytes, payload_bytes, seq, pts, control_id, chunk, age_ms = HEADER.unpack_from(data)
    if kind != FRAME_KIND:
        raise ProtocolError(f"a binary message of kind {kind} is not known")
    if header_bytes < HEADER.size:
        raise ProtocolError(f"a frame's header has at least {HEADER.size} bytes, not {header_bytes}")
    if header_bytes + payload_bytes != len(data):
        raise ProtocolError(f"a frame of {len(data)} bytes says {header_bytes} of header and {payload_bytes} of payload")
    if seq == 0:
        raise ProtocolError("a frame's seq is at least 1")
    return EncodedFrame(
        seq=seq,
        pts=pts,
        control_id=control_id,
        chunk=chunk,
        age_ms=age_ms,
        is_key=bool(flags & FLAG_KEY_FRAME),
        is_decode_only=bool(flags & FLAG_DECODE_ONLY),
        payload=data[header_bytes:],
    )


# -- from the client ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Control:
    """Keys by KeyboardEvent.code; pointer motion in CSS pixels, right and down positive; ``prompt`` None: unchanged."""

    control_id: int
    pressed: tuple[str, ...] = ()
    released: tuple[str, ...] = ()
    pointer_dx: float = 0.0
    pointer_dy: float = 0.0
    prompt: str | None = None


def build_resume(stream: str, next_seq: int) -> str:
    """``next_seq``: the first frame that the client still needs shown."""
    return _build("resume", stream=stream, next_seq=next_seq)


def build_ack(received_through: int, decoded_through: int) -> str:
    return _build("ack", received_through=received_through, decoded_through=decoded_through)


def build_control(control: Control) -> str:
    """Only what changed is sent."""
    fields: dict[str, Any] = {"control_id": control.control_id}
    if control.pressed:
        fields["pressed"] = list(control.pressed)
    if control.released:
        fields["released"] = list(control.released)
    if control.pointer_dx:
        fields["pointer_dx"] = control.pointer_dx
    if control.pointer_dy:
        fields["pointer_dy"] = control.pointer_dy
    if control.prompt is not None:
        fields["prompt"] = control.prompt
    return _build("control", **fields)


def build_pause() -> str:
    return _build("pause")


def build_play() -> str:
    return _build("play")


def build_end() -> str:
    return _build("end")


def build_fin(decoded_count: int, last_seq: int) -> str:
    return _build("fin", decoded_count=decoded_count, last_seq=last_seq)


def build_pong(ping_id: int) -> str:
    return _build("pong", id=ping_id)


def _build(kind: str, **fields: Any) -> str:
    return json.dumps({"type": kind, **fields}, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


# -- reading JSON ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Fields:
    """A JSON object whose fields are checked as they are read."""

    values: Mapping[str, Any]

    @classmethod
    def parse(cls, text: str) -> _Fields:
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"a text message is not JSON: {error}") from None
        if not isinstance(values, dict):
            raise ProtocolError("a text message is not a JSON object")
        return cls(values)

    def text(self, name: str, *, default: str | None = None) -> str:
        value = self.values.get(name, default)
        if not isinstance(value, str):
            raise self._wrong(name, "a string")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        value = self.values.get(name)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._wrong(name, "a list of strings")
        return tuple(value)

    def count(self, name: str) -> int:
        value = self.values.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_SAFE_INTEGER:
            raise self._wrong(name, "an integer from 0 to 2^53 - 1")
        return value

    def flag(self, name: str, *, default: bool | None = None) -> bool:
        value = self.values.get(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false")
        return value

    def flag_or_none(self, name: str) -> bool | None:
        return None if self.values.get(name) is None else self.flag(name)

    def _wrong(self, name: str, wanted: str) -> ProtocolError:
        kind = self.values.get("type")
        shown = kind if isinstance(kind, str) else "message"
        return ProtocolError(f"{shown[:40]}: {name} must be {wanted}, not {json.dumps(self.values.get(name))[:80]}")
