"""Geometry, layouts and records: what fits travels unchanged, what does not is refused."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ithaka.comm_ext.channel import layout
from ithaka.comm_ext.channel.base import ChannelError, ChannelMessage, LayoutError, TensorLayout
from ithaka.comm_ext.channel.layout import Geometry

GEOMETRY = Geometry(channel_id=3, num_slots=4, slot_bytes=10_000, num_consumers=2)


@st.composite
def layouts(draw: st.DrawFn) -> TensorLayout:
    dtype = draw(st.sampled_from(sorted(layout.ITEM_BYTES)))
    shape = tuple(draw(st.lists(st.integers(0, 6), max_size=4)))
    return TensorLayout(shape, dtype, draw(st.integers(0, 100)) * layout.ITEM_BYTES[dtype])


MESSAGES = st.builds(
    ChannelMessage, st.binary(max_size=600), st.lists(layouts(), max_size=5).map(tuple), st.integers(0, 2**64 - 1)
)


def fits(message: ChannelMessage) -> bool:
    return all(tensor.offset_bytes + layout.tensor_bytes(tensor) <= GEOMETRY.slot_bytes for tensor in message.tensors)


@settings(deadline=None)
@given(MESSAGES)
def test_a_record_comes_back_equal(message: ChannelMessage) -> None:
    if not fits(message):
        with pytest.raises(LayoutError):
            layout.encode_record(GEOMETRY, 0, message)
        return
    record = layout.encode_record(GEOMETRY, 0, message)
    assert layout.decode_record(GEOMETRY, 0, record.ljust(layout.RECORD_BYTES, b"\xaa")) == message


@settings(deadline=None)
@given(MESSAGES.filter(fits), st.data())
def test_a_damaged_record_is_an_error_or_fits_the_slot(message: ChannelMessage, data: st.DataObject) -> None:
    record = bytearray(layout.encode_record(GEOMETRY, 0, message).ljust(layout.RECORD_BYTES, b"\x00"))
    for _ in range(data.draw(st.integers(1, 6))):
        record[data.draw(st.integers(0, 700))] = data.draw(st.integers(0, 255))
    try:
        read = layout.decode_record(GEOMETRY, 0, bytes(record))
    except LayoutError:
        return
    assert fits(read)


@settings(deadline=None)
@given(st.binary(max_size=layout.RECORD_BYTES))
def test_random_records_are_an_error_or_fit_the_slot(record: bytes) -> None:
    try:
        read = layout.decode_record(GEOMETRY, 0, record)
    except LayoutError:
        return
    assert fits(read)


@pytest.mark.parametrize(
    "tensor",
    [
        TensorLayout((10_001,), "uint8"),
        TensorLayout((10_000,), "uint8", 1),
        TensorLayout((0,), "uint8", 10_001),
        TensorLayout((2**62, 2**62), "float32"),
        TensorLayout((2,), "float32", 2),
        TensorLayout((2,), "float32", -4),
        TensorLayout((-1,), "uint8"),
        TensorLayout((2,), "object"),
        TensorLayout((1,) * 9, "uint8"),
    ],
    ids=str,
)
def test_a_layout_that_does_not_fit_is_refused(tensor: TensorLayout) -> None:
    with pytest.raises(LayoutError):
        layout.encode_record(GEOMETRY, 1, ChannelMessage(b"", (tensor,)))


def test_the_error_names_channel_slot_and_layout() -> None:
    with pytest.raises(LayoutError, match=r"channel 3, slot 1: .*shape=\(10001,\)"):
        layout.encode_record(GEOMETRY, 1, ChannelMessage(b"", (TensorLayout((10_001,), "uint8"),)))


def test_the_last_byte_of_slot_and_record_can_be_used() -> None:
    whole = ChannelMessage(b"", (TensorLayout((100, 100), "uint8"),))
    assert layout.decode_record(GEOMETRY, 0, layout.encode_record(GEOMETRY, 0, whole)) == whole
    header = b"h" * (layout.RECORD_BYTES - 8 - 14)
    assert len(layout.encode_record(GEOMETRY, 0, ChannelMessage(header, ()))) == layout.RECORD_BYTES
    with pytest.raises(LayoutError, match="header"):
        layout.encode_record(GEOMETRY, 0, ChannelMessage(header + b"h", ()))


def test_too_many_tensors_are_refused() -> None:
    tensors = (TensorLayout((1,), "uint8"),) * (layout.MAX_TENSORS + 1)
    with pytest.raises(LayoutError, match="at most"):
        layout.encode_record(GEOMETRY, 0, ChannelMessage(b"", tensors))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("channel_id", -1),
        ("num_slots", 0),
        ("num_slots", 4097),
        ("slot_bytes", 0),
        ("slot_bytes", 2**41),
        ("num_consumers", 0),
        ("num_consumers", 33),
    ],
)
def test_a_geometry_out_of_range_is_refused(field: str, value: int) -> None:
    sizes = {"channel_id": 1, "num_slots": 1, "slot_bytes": 1, "num_consumers": 1} | {field: value}
    with pytest.raises(ChannelError, match=field):
        Geometry(**sizes)


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 100_000), st.integers(1, 5))
def test_parts_of_the_arena_do_not_overlap(num_slots: int, slot_bytes: int, num_consumers: int) -> None:
    geometry = Geometry(1, num_slots, slot_bytes, num_consumers)
    assert geometry.record_offset_bytes(0) >= geometry.num_words * layout.WORD_BYTES
    assert geometry.control_bytes == geometry.record_offset_bytes(num_slots - 1) + layout.RECORD_BYTES
    assert geometry.control_bytes % layout.PAGE_BYTES == 0
    starts = [geometry.slot_offset_bytes(slot) for slot in range(num_slots + 1)]
    assert all(after - before >= slot_bytes for before, after in itertools.pairwise(starts))
    assert geometry.arena_bytes == geometry.control_bytes + starts[-1]


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**64 - 1), max_size=9))
def test_foreign_words_are_no_geometry(words: list[int]) -> None:
    with pytest.raises(ChannelError):
        Geometry.from_words(words)


def test_a_geometry_is_read_from_its_words() -> None:
    assert Geometry.from_words((*GEOMETRY.fixed_words(), 0)) == GEOMETRY
