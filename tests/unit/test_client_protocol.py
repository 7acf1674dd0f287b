"""The Python client's reading and writing of the protocol, and where it stands in a stream: pure, so tried with anything."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ithaka_client.errors import (
    ApiError,
    ConnectionLostError,
    IthakaError,
    ProtocolError,
    ResumeRefusedError,
    api_error,
    close_error,
)
from ithaka_client.held_keys import HeldKeys
from ithaka_client.position import StreamPosition
from ithaka_client.protocol import (
    FLAG_DECODE_ONLY,
    FLAG_KEY_FRAME,
    HEADER,
    Control,
    EncodedFrame,
    EndOfStream,
    Hello,
    Numbered,
    Ping,
    ServerError,
    StateChanged,
    UnknownMessage,
    build_ack,
    build_control,
    build_end,
    build_fin,
    build_pause,
    build_play,
    build_pong,
    build_resume,
    parse_frame,
    parse_message,
)

FOLDER = Path(__file__).parents[2] / "clients" / "protocol"
GOLDEN: dict[str, Any] = json.loads((FOLDER / "golden.json").read_text())

HELLO: dict[str, Any] = {
    "type": "hello",
    "version": 1,
    "session": "abc",
    "stream": "s1",
    "role": "controller",
    "next_seq": 1,
    "window": 8,
    "codec": "avc1.42E01F",
    "width": 128,
    "height": 64,
    "fps": 16,
    "time_base": [1, 16],
    "pixels": "lossy",
    "model": "numbers",
    "controls": ["KeyW"],
    "takes_prompt": True,
    "takes_pointer": False,
}


def hello(stream: str = "s1") -> Hello:
    parsed = parse_message(json.dumps({**HELLO, "stream": stream}))
    assert isinstance(parsed, Hello)
    return parsed


# -- messages ----------------------------------------------------------------------------------------------------------


def test_golden_server_messages_are_read() -> None:
    read = {name: parse_message(json.dumps(message)) for name, message in GOLDEN["server_messages"].items()}
    golden_hello = read.pop("hello")
    assert isinstance(golden_hello, Hello)
    expected = {name: value for name, value in GOLDEN["server_messages"]["hello"].items() if name not in ("type", "time_base")}
    assert {**asdict(golden_hello), "controls": list(golden_hello.controls)} == expected
    assert read == {
        "state": StateChanged("streaming", "", None),
        "last_state": StateChanged("closed", "ended", True),
        "ping": Ping(3),
        "eos": EndOfStream(48, 48, "worker_lost", True),
        "numbered": Numbered(12, 5, 2**50, 2**32 - 1),
        "error": ServerError("ack_beyond_sent", "received_through 9, but only 8 frames were sent", False),
    }
    assert parse_message('{"type":"weather"}') == UnknownMessage("weather")


@pytest.mark.parametrize("code", json.loads((FOLDER / "errors.json").read_text()), ids=lambda code: str(code["code"]))
def test_every_code_of_the_server_has_an_error(code: dict[str, Any]) -> None:
    if code["close_code"] is not None:
        error: IthakaError = close_error(code["close_code"], "words", code=code["code"], retryable=code["retryable"])
        assert (error.code, error.message) == (code["code"], "words")
    if code["status"] is not None:
        answer = api_error(code["status"], code["code"], "words", retryable=code["retryable"])
        assert type(answer) is not ApiError or code["status"] >= 500


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{",
        "{}",
        '{"type":1}',
        '{"type":"ping"}',
        '{"type":"ping","id":-1}',
        '{"type":"ping","id":true}',
        '{"type":"ping","id":9007199254740992}',
        '{"type":"state","state":"closed","delivered":"yes"}',
        '{"type":"eos","last_seq":1.5,"count":1,"reason":""}',
        json.dumps({**HELLO, "version": 2}),
        json.dumps({**HELLO, "width": 0}),
        json.dumps({**HELLO, "controls": [1]}),
        json.dumps({key: value for key, value in HELLO.items() if key != "stream"}),
        "[" * 100_000,
    ],
)
def test_what_is_no_message_is_refused(text: str) -> None:
    with pytest.raises(ProtocolError):
        parse_message(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@given(st.text() | JSON.map(json.dumps))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(ProtocolError):
        parse_message(text)


@given(st.sampled_from(sorted(HELLO)), JSON)
def test_a_hello_with_one_strange_field_is_read_or_refused(field: str, value: Any) -> None:
    with contextlib.suppress(ProtocolError):
        parse_message(json.dumps({**HELLO, field: value}))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_frame_or_refused(data: bytes) -> None:
    try:
        frame = parse_frame(data)
    except ProtocolError:
        return
    assert frame.seq >= 1 and data.endswith(frame.payload)


U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)


@given(st.integers(0, 3), st.integers(1, 2**64 - 1), U64, U64, U32, U32, st.binary(max_size=50), st.integers(0, 30))
def test_a_frame_is_read_as_it_was_written(
    flags: int, seq: int, pts: int, control_id: int, chunk: int, age_ms: int, payload: bytes, extra: int
) -> None:
    header = HEADER.pack(1, flags, HEADER.size + extra, len(payload), seq, pts, control_id, chunk, age_ms)
    frame = parse_frame(header + bytes(extra) + payload)
    assert frame == EncodedFrame(
        seq, pts, control_id, chunk, age_ms, bool(flags & FLAG_KEY_FRAME), bool(flags & FLAG_DECODE_ONLY), payload
    )


@pytest.mark.parametrize("name", sorted(GOLDEN["frames"]))
def test_golden_frames_are_read(name: str) -> None:
    golden = GOLDEN["frames"][name]
    frame = parse_frame(bytes.fromhex(golden["hex"]))
    assert frame == EncodedFrame(
        golden["seq"],
        golden["pts"],
        golden["control_id"],
        golden["chunk"],
        golden["age_ms"],
        golden["key"],
        golden["decode_only"],
        bytes.fromhex(golden["payload"]),
    )


@pytest.mark.parametrize("change", [{0: 2}, {3: 39}, {7: 1}, {7: 3}, {15: 0}])
def test_a_frame_with_a_wrong_header_is_refused(change: dict[int, int]) -> None:
    data = bytearray(HEADER.pack(1, 1, 40, 2, 1, 0, 0, 0, 0) + b"ab")
    for offset, value in change.items():
        data[offset] = value
    with pytest.raises(ProtocolError):
        parse_frame(bytes(data))


def test_golden_client_messages_are_written() -> None:
    control = Control(5, ("KeyW",), ("KeyA",), 1.5, -2.0, "a red door")
    written = {
        "resume": build_resume("89abcdef0123", 1),
        "ack": build_ack(8, 7),
        "control": build_control(control),
        "smallest_control": build_control(Control(1)),
        "pause": build_pause(),
        "play": build_play(),
        "end": build_end(),
        "fin": build_fin(48, 48),
        "pong": build_pong(3),
    }
    assert {name: json.loads(text) for name, text in written.items()} == GOLDEN["client_messages"]


def test_a_control_holds_numbers_only() -> None:
    assert json.loads(build_control(Control(2, prompt=""))) == {"type": "control", "control_id": 2, "prompt": ""}
    with pytest.raises(ValueError, match="JSON compliant"):
        build_control(Control(2, pointer_dx=float("nan")))


# -- where the client stands -------------------------------------------------------------------------------------------


def frame(seq: int, *, is_key: bool = False, is_decode_only: bool = False) -> EncodedFrame:
    return EncodedFrame(seq, seq - 1, 0, 0, 0, is_key, is_decode_only, b"x")


@given(st.data())
def test_each_frame_is_shown_once_however_often_the_connection_is_cut(data: st.DataObject) -> None:
    """A model server with a key frame every 4 frames; connections are cut anywhere, decoding lags anyhow."""
    total = data.draw(st.integers(1, 30))
    position, acknowledged = StreamPosition(), (0, 0)
    shown: list[int] = []
    for connection in range(40):
        next_seq = position.begin(hello())
        assert next_seq == len(shown) + 1
        start = (min(next_seq, total) - 1) // 4 * 4 + 1
        cut = total if connection == 39 else data.draw(st.integers(start - 1, total))
        undecoded: list[int] = []
        for seq in range(start, cut + 1):
            position.receive(frame(seq, is_key=seq % 4 == 1, is_decode_only=seq < next_seq))
            undecoded.append(seq)
            for _ in range(len(undecoded) if connection == 39 else data.draw(st.integers(0, len(undecoded)))):
                if position.decode(decoded := undecoded.pop(0)):
                    shown.append(decoded)
            now = (position.received_through, position.decoded_through)
            assert now[0] >= acknowledged[0] and now[1] >= acknowledged[1] and now[1] <= now[0]
            acknowledged = now
        if connection == 39:
            position.finish(EndOfStream(total, total, "finished", False))
    assert shown == list(range(1, total + 1))
    assert position.is_complete and position.decoded_count == total


def test_frames_out_of_order_are_refused() -> None:
    position = StreamPosition()
    position.begin(hello())
    with pytest.raises(ProtocolError, match="missing after a resume"):
        position.receive(frame(2, is_key=True))
    with pytest.raises(ProtocolError, match="no key frame"):
        position.receive(frame(1))
    with pytest.raises(ProtocolError, match="wrongly marked"):
        position.receive(frame(1, is_key=True, is_decode_only=True))
    position.receive(frame(1, is_key=True))
    for seq in (1, 3):
        with pytest.raises(ProtocolError, match="was expected"):
            position.receive(frame(seq))
    with pytest.raises(ProtocolError, match="was decoded after"):
        position.decode(2)


def test_an_end_that_contradicts_the_frames_is_refused() -> None:
    position = StreamPosition()
    position.begin(hello())
    position.receive(frame(1, is_key=True))
    position.receive(frame(2))
    with pytest.raises(ProtocolError, match="was received"):
        position.finish(EndOfStream(1, 1, "ended", False))
    with pytest.raises(ProtocolError, match="never came"):
        position.finish(EndOfStream(3, 3, "ended", False))
    position.finish(EndOfStream(2, 2, "ended", False))
    assert not position.is_complete
    with pytest.raises(ProtocolError, match="after the stream ended"):
        position.receive(frame(3))


def test_another_stream_is_refused() -> None:
    position = StreamPosition()
    position.begin(hello("s1"))
    with pytest.raises(ResumeRefusedError):
        position.begin(hello("s2"))


KEYS = st.lists(st.sampled_from(["KeyW", "KeyA", "KeyS"]), max_size=3)


@given(st.lists(st.tuples(KEYS, KEYS)))
def test_a_snapshot_leaves_the_server_with_the_keys_that_are_held(changes: list[tuple[list[str], list[str]]]) -> None:
    keys, held = HeldKeys(), set[str]()
    for control_id, (pressed, released) in enumerate(changes, 1):
        keys.apply(Control(control_id, tuple(pressed), tuple(released)))
        held = (held | set(pressed)) - set(released)
    snapshot = keys.snapshot(99)
    if snapshot is None:
        assert not any(pressed or released for pressed, released in changes)
    else:
        assert ({"KeyW", "KeyA", "KeyS"} | set(snapshot.pressed)) - set(snapshot.released) >= held == set(snapshot.pressed)


def test_a_prompt_is_repeated_until_a_frame_used_it() -> None:
    keys = HeldKeys()
    keys.apply(Control(4, prompt="snow"))
    keys.confirm(3)
    assert keys.snapshot(5) == Control(5, prompt="snow")
    keys.confirm(4)
    assert keys.snapshot(6) is None


# -- errors ------------------------------------------------------------------------------------------------------------


@given(st.integers(0, 5000), st.text(max_size=20), st.text(max_size=20), st.booleans())
def test_every_close_code_has_an_error(close_code: int, message: str, code: str, retryable: bool) -> None:
    error = close_error(close_code, message, code=code, retryable=retryable)
    assert error.code and error.message


def test_an_overdue_answer_counts_as_a_lost_connection() -> None:
    assert isinstance(close_error(1008, "overdue", code="ack_timeout", retryable=True), ConnectionLostError)
    assert isinstance(close_error(1008, "wrong", code="ack_shrunk"), ProtocolError)
    assert isinstance(close_error(1006), ConnectionLostError)
