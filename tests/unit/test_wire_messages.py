"""The wire form: every message survives it, and nothing but a message does."""

from __future__ import annotations

import typing

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ithaka.workers import contract, wire
from ithaka.workers.stages import contract as stage_contract
from ithaka.workers.wire import WireError

KINDS: tuple[type[wire.Message], ...] = typing.get_args(wire.Message)
TEXT = st.text(max_size=40)
NUMBERS = st.integers(-(2**63), 2**63 - 1)
OPTIONS = st.dictionaries(TEXT, st.none() | st.booleans() | NUMBERS | TEXT, max_size=3)
SHAPES = st.recursive(
    NUMBERS | TEXT | st.none() | st.binary(max_size=8), lambda inner: st.lists(inner, max_size=4), max_leaves=8
)
SIMPLE: dict[type, st.SearchStrategy[object]] = {
    int: NUMBERS,
    str: TEXT,
    float: st.floats(allow_nan=False, allow_infinity=False),
}


def messages_of(kind: type) -> st.SearchStrategy[typing.Any]:
    return st.builds(kind, **{name: values_of(hint) for name, hint in typing.get_type_hints(kind).items()})


def values_of(hint: typing.Any) -> st.SearchStrategy[typing.Any]:
    if hint in SIMPLE:
        return SIMPLE[hint]
    if isinstance(hint, type) and hint.__module__ in (contract.__name__, stage_contract.__name__):
        return messages_of(hint)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        return st.lists(values_of(args[0]), max_size=3).map(tuple)
    if origin is dict:
        return OPTIONS if args[1] is typing.Any else st.dictionaries(TEXT, values_of(args[1]), max_size=3)
    return st.from_type(hint)


MESSAGES = st.one_of([messages_of(kind) for kind in KINDS])


def test_every_kind_has_a_tag_of_its_own() -> None:
    assert set(KINDS) == set(wire._TAGS.values())
    assert len(wire._TAGS) == len(wire._TAG_OF)


@pytest.mark.parametrize("fields", [{"surprise": 1}, [], None, "text", 7])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_foreign_fields_are_refused(kind: type[wire.Message], fields: object) -> None:
    with pytest.raises(WireError):
        wire.decode(msgpack.packb([wire.VERSION, wire._TAG_OF[kind], fields]))


@settings(deadline=None)
@given(MESSAGES)
def test_a_message_comes_back_equal(message: wire.Message) -> None:
    data = wire.encode(message)
    assert wire.decode(data) == message
    assert wire.decode_as(type(message), data) == message


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_are_an_error_and_nothing_else(data: bytes) -> None:
    try:
        message = wire.decode(data)
    except WireError:
        return
    assert isinstance(message, KINDS)


@settings(deadline=None)
@given(MESSAGES, st.data())
def test_a_damaged_message_is_an_error_or_a_message(message: wire.Message, data: st.DataObject) -> None:
    damaged = bytearray(wire.encode(message))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    damaged = damaged[: data.draw(st.integers(0, len(damaged)))]
    try:
        read = wire.decode(bytes(damaged))
    except WireError:
        return
    assert wire.decode(wire.encode(read)) == read or read != read  # a damaged float may be NaN


@settings(deadline=None)
@given(SHAPES)
def test_other_shapes_are_errors(value: object) -> None:
    with pytest.raises(WireError):
        wire.decode(msgpack.packb([wire.VERSION, value, value], default=str))


def test_another_version_and_unknown_tags_are_refused() -> None:
    with pytest.raises(WireError, match="version"):
        wire.decode(msgpack.packb([2, 6, {}]))
    with pytest.raises(WireError):
        wire.decode(msgpack.packb([wire.VERSION, 999, {}]))


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(WireError):
        wire.decode(b"\x91" * 100_000)


def test_too_large_is_refused_on_both_sides() -> None:
    with pytest.raises(WireError, match="fit"):
        wire.encode(contract.StartSession("s", 1, "p" * wire.MAX_MESSAGE_BYTES))
    with pytest.raises(WireError, match="fit"):
        wire.decode(b"\x00" * (wire.MAX_MESSAGE_BYTES + 1))


def test_decode_as_takes_one_kind() -> None:
    with pytest.raises(WireError, match="expected FrameHeader"):
        wire.decode_as(contract.FrameHeader, wire.encode(contract.Shutdown()))
