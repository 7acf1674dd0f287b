"""Whatever comes in is a message or a violation, never another exception."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from ithaka.server.errors import ProtocolViolation
from ithaka.server.session.messages import MAX_SEQ, ClientMessage, parse_client_message
from ithaka.server.transports.base import FrameToSend
from ithaka.server.transports.frame_bytes import HEADER, pack_frame
from ithaka.workers.contract import PacketHeader

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
field_names = st.sampled_from(
    ["stream", "next_seq", "received_through", "decoded_through", "control_id", "pressed", "pointer_dx", "prompt", "id", "x"]
)
types = st.sampled_from(["resume", "ack", "control", "pause", "play", "end", "fin", "pong", "hello", "frame", ""])


def parse(text: str | bytes) -> ClientMessage | None:
    try:
        return parse_client_message(text)
    except ProtocolViolation as violation:
        assert violation.code == "message_invalid"
        assert len(str(violation)) < 400, "an error does not repeat what came in"
        return None


@given(st.text() | st.binary())
def test_any_bytes(data: str | bytes) -> None:
    parse(data)


@given(types, st.dictionaries(field_names, json_values, max_size=6))
def test_messages_that_are_nearly_right(kind: str, fields: dict[str, object]) -> None:
    message = parse(json.dumps({"type": kind, **fields}))
    if message is not None:
        assert message.type == kind
        assert set(fields) <= set(type(message).model_fields)


@given(st.lists(st.tuples(st.sampled_from(["type", "id", "x"]), json_values), max_size=5))
def test_a_key_counts_once_or_not_at_all(pairs: list[tuple[str, object]]) -> None:
    text = ", ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in [("type", "pong"), ("id", 1), *pairs])
    assert (parse(f"{{{text}}}") is not None) == (pairs == [])


@given(st.integers(), st.integers())
def test_counts_are_whole_and_bounded(received: int, decoded: int) -> None:
    message = parse(json.dumps({"type": "ack", "received_through": received, "decoded_through": decoded}))
    assert (message is not None) == (0 <= received <= MAX_SEQ and 0 <= decoded <= MAX_SEQ)


def test_long_names_are_not_repeated() -> None:
    name = "x" * 60_000
    for fields in ({"type": name}, {"type": "pause", name: 1}, {"type": "control", "control_id": 1, "pressed": [name]}):
        assert parse(json.dumps(fields)) is None
    assert parse(f'{{"type": "pong", "id": 1, "{name}": 1, "{name}": 2}}') is None


def test_deep_nesting() -> None:
    assert parse("[" * 60_000) is None
    assert parse('{"type":' * 20_000) is None


@given(
    seq=st.integers(1, 2**64 - 1),
    pts=st.integers(0, 2**64 - 1),
    control_id=st.integers(0, MAX_SEQ),
    chunk=st.integers(0, 2**32 - 1),
    age_ms=st.integers(0, 2**40),
    key=st.booleans(),
    decode_only=st.booleans(),
    payload=st.binary(max_size=200),
)
def test_frames_pack_and_unpack(
    seq: int, pts: int, control_id: int, chunk: int, age_ms: int, key: bool, decode_only: bool, payload: bytes
) -> None:
    frame = FrameToSend(PacketHeader("s", seq, chunk, control_id, pts, key, 0, 0), payload, decode_only, age_ms)
    data = pack_frame(frame)
    assert HEADER.unpack_from(data) == (
        1,
        key + 2 * decode_only,
        40,
        len(payload),
        seq,
        pts,
        control_id,
        chunk,
        min(age_ms, 2**32 - 1),
    )
    assert data[40:] == payload
