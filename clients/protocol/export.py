"""Write the machine-readable half of this folder from the server's own code: ``python clients/protocol/export.py``.

A test compares the files with what is written here, so neither can drift from the other.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ithaka.server.errors import ERROR_CODES
from ithaka.server.session.events import State
from ithaka.server.session.messages import (
    Eos,
    ErrorRaised,
    Hello,
    Numbered,
    Ping,
    ServerMessage,
    StateChanged,
    json_schemas,
    write_message,
)
from ithaka.server.transports.base import FrameToSend
from ithaka.server.transports.frame_bytes import pack_frame
from ithaka.workers.contract import PacketHeader

FOLDER = Path(__file__).parent

SERVER_MESSAGES: dict[str, ServerMessage] = {
    "hello": Hello(
        session="0123456789abcdef01234567",
        stream="89abcdef0123",
        role="controller",
        next_seq=1,
        window=8,
        codec="avc1.42E01E",
        width=128,
        height=128,
        fps=16,
        time_base=(1, 16),
        pixels="lossy",
        model="labyrinth",
        controls=("KeyW", "KeyA", "KeyS", "KeyD"),
        takes_prompt=True,
        takes_pointer=False,
    ),
    "state": StateChanged(state=State.STREAMING),
    "last_state": StateChanged(state=State.CLOSED, reason="ended", delivered=True),
    "ping": Ping(id=3),
    "eos": Eos(last_seq=48, count=48, reason="worker_lost", retryable=True),
    "numbered": Numbered(seq=12, control_id=5, generated_us=2**50, rtp_timestamp=2**32 - 1),
    "error": ErrorRaised(code="ack_beyond_sent", message="received_through 9, but only 8 frames were sent", retryable=False),
}
CLIENT_MESSAGES: dict[str, dict[str, Any]] = {
    "resume": {"type": "resume", "stream": "89abcdef0123", "next_seq": 1},
    "ack": {"type": "ack", "received_through": 8, "decoded_through": 7},
    "control": {
        "type": "control",
        "control_id": 5,
        "pressed": ["KeyW"],
        "released": ["KeyA"],
        "pointer_dx": 1.5,
        "pointer_dy": -2.0,
        "prompt": "a red door",
    },
    "smallest_control": {"type": "control", "control_id": 1},
    "pause": {"type": "pause"},
    "play": {"type": "play"},
    "end": {"type": "end"},
    "fin": {"type": "fin", "decoded_count": 48, "last_seq": 48},
    "pong": {"type": "pong", "id": 3},
}
REFUSED_CLIENT_MESSAGES: dict[str, Any] = {
    "no_object": [],
    "no_type": {"stream": "89abcdef0123", "next_seq": 1},
    "unknown_type": {"type": "rewind"},
    "unknown_field": {"type": "pause", "why": "tea"},
    "missing_field": {"type": "ack", "received_through": 8},
    "negative_seq": {"type": "ack", "received_through": -1, "decoded_through": -1},
    "text_for_a_number": {"type": "ack", "received_through": "8", "decoded_through": "7"},
    "seq_from_zero": {"type": "resume", "stream": "89abcdef0123", "next_seq": 0},
    "control_without_id": {"type": "control", "pressed": ["KeyW"]},
    "key_with_a_space": {"type": "control", "control_id": 1, "pressed": ["Key W"]},
}
FRAMES: dict[str, FrameToSend] = {
    "key_frame": FrameToSend(
        PacketHeader("0123456789abcdef01234567", 1, 0, 0, 0, True, 0, 0), b"\x00\x00\x00\x01\x65\x88", False, 12
    ),
    "decode_only": FrameToSend(
        PacketHeader("0123456789abcdef01234567", 41, 13, 7, 40, False, 0, 0), b"\x00\x00\x00\x01\x41", True, 1500
    ),
    "large_numbers": FrameToSend(
        PacketHeader("0123456789abcdef01234567", 2**40 + 1, 2**32 - 1, 2**53 - 1, 2**40, True, 0, 0), b"", False, 2**40
    ),
}


def documents() -> dict[str, str]:
    """File name → text."""
    schemas = {f"{name}.schema.json": _text(schema) for name, schema in json_schemas().items()}
    return {**schemas, "errors.json": _text(_errors()), "golden.json": _text(_golden())}


def _errors() -> list[dict[str, Any]]:
    return [
        {
            "code": code,
            "status": known.status,
            "close_code": known.close_code,
            "retryable": known.retryable,
            "places": list(known.places),
            "meaning": known.meaning,
        }
        for code, known in ERROR_CODES.items()
    ]


def _golden() -> dict[str, Any]:
    return {
        "server_messages": {name: json.loads(write_message(message)) for name, message in SERVER_MESSAGES.items()},
        "client_messages": CLIENT_MESSAGES,
        "refused_client_messages": REFUSED_CLIENT_MESSAGES,
        "frames": {name: {"hex": pack_frame(frame).hex(), **_fields(frame)} for name, frame in FRAMES.items()},
    }


def _fields(frame: FrameToSend) -> dict[str, Any]:
    header = frame.header
    return {
        "key": header.key,
        "decode_only": frame.decode_only,
        "seq": header.seq,
        "pts": header.pts,
        "control_id": header.control_id,
        "chunk": header.chunk,
        "age_ms": min(frame.age_ms, 2**32 - 1),
        "payload": frame.payload.hex(),
    }


def _text(value: Any) -> str:
    return json.dumps(value, indent=2) + "\n"


if __name__ == "__main__":
    for name, text in documents().items():
        (FOLDER / name).write_text(text)
