"""Where things lie in a channel's arena, and a message as bytes. Pure arithmetic; no memory is touched here.

The arena: ``words`` (8 bytes each, see ``Geometry``), one message record a slot, then the slots, page aligned.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import get_args

from ithaka.comm_ext.channel.base import ChannelError, ChannelMessage, LayoutError, Policy, TensorLayout

MAGIC = 0x334C4E4843414854  # "THACHNL3" as little-endian bytes
PAGE_BYTES = 4096
RECORD_BYTES = 4096
"""Of one message: its length (8 bytes), header and layouts."""
MAX_SLOTS = 4096
MAX_SLOT_BYTES = 1 << 40
MAX_CONSUMERS = 32
MAX_TENSORS = 64
MAX_DIMENSIONS = 8
_NUM_REMEMBERED = 256
"""Layouts of a channel are few, and the same from message to message."""

WORD_BYTES = 8
WORD_MAGIC, WORD_CHANNEL_ID, WORD_NUM_SLOTS, WORD_SLOT_BYTES, WORD_NUM_CONSUMERS, WORD_NEWEST, WORD_ON_DEVICE = range(7)
WORD_PUBLISHED, WORD_CLOSED, WORD_CARD, WORD_ANNOUNCED = 7, 8, 9, 10
_NUM_FIXED_WORDS = 11
_PROGRESS_WORDS = 5
MIN_SLOTS_FOR_NEWEST = 3
"""One that the consumer holds, the newest, and one to write."""

ITEM_BYTES = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "uint16": 2,
    "int16": 2,
    "uint32": 4,
    "int32": 4,
    "uint64": 8,
    "int64": 8,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
}
"""The dtypes that travel, with their item's bytes."""

_COUNTS = struct.Struct("<QIH")
_TENSOR = struct.Struct("<QBBb")
_NOT_SHARDED = -1


@dataclass(frozen=True, slots=True)
class Geometry:
    """The shape of one channel; everything else follows from it.

    Words, in order: the fixed ones (``WORD_…``), ``gone``, ``progress`` and ``mapped`` of each consumer, ``queue`` (the slot of
    each sequence, modulo the slots), ``holds`` (the sequence it was last written for) and ``discarded`` (the sequence that was
    cancelled there) of each slot, ``released`` and ``taken`` of each consumer and slot (the sequence it last gave up there;
    the one a newest-wins consumer holds). Every word has one writer; ``gone`` may be the owner's, for a dead consumer.
    """

    channel_id: int
    num_slots: int
    slot_bytes: int
    num_consumers: int
    newest_mask: int = 0
    """Bit i: consumer i is newest-wins."""
    on_device: int = 0
    """1: the slots lie in device memory, named by a card (``device_card``) that follows the records; 0: behind the records."""
    _first_slot_word: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, value, low, high in (
            ("channel_id", self.channel_id, 0, 2**63),
            ("num_slots", self.num_slots, 1, MAX_SLOTS),
            ("slot_bytes", self.slot_bytes, 1, MAX_SLOT_BYTES),
            ("num_consumers", self.num_consumers, 1, MAX_CONSUMERS),
            ("on_device", self.on_device, 0, 1),
            ("newest_mask", self.newest_mask, 0, (1 << min(self.num_consumers, MAX_CONSUMERS)) - 1),
        ):
            if not low <= value <= high:
                raise ChannelError(f"channel {self.channel_id}: {name} is {value}, it must lie in {low}..{high}")
        if self.newest_mask and self.num_slots < MIN_SLOTS_FOR_NEWEST:
            raise ChannelError(
                f"channel {self.channel_id}: num_slots is {self.num_slots}, a newest-wins consumer needs {MIN_SLOTS_FOR_NEWEST}"
            )
        object.__setattr__(self, "_first_slot_word", self.mapped_word(self.num_consumers))

    def is_newest(self, consumer: int) -> bool:
        return bool(self.newest_mask >> consumer & 1)

    def gone_word(self, consumer: int) -> int:
        return _NUM_FIXED_WORDS + consumer

    def progress_word(self, consumer: int) -> int:
        """The first of ``_PROGRESS_WORDS``; see ``ring``."""
        return _NUM_FIXED_WORDS + self.num_consumers + consumer * _PROGRESS_WORDS

    def mapped_word(self, consumer: int) -> int:
        """The process that has the producer's device memory mapped for that consumer, or 0."""
        return self.progress_word(self.num_consumers) + consumer

    def queue_word(self, sequence: int) -> int:
        return self._first_slot_word + (sequence - 1) % self.num_slots

    def holds_word(self, slot: int) -> int:
        return self._first_slot_word + self.num_slots + slot

    def discarded_word(self, slot: int) -> int:
        return self._first_slot_word + 2 * self.num_slots + slot

    def released_word(self, consumer: int, slot: int) -> int:
        return self._first_slot_word + (3 + consumer) * self.num_slots + slot

    def taken_word(self, consumer: int, slot: int) -> int:
        return self.released_word(self.num_consumers + consumer, slot)

    @property
    def num_words(self) -> int:
        return self.taken_word(self.num_consumers, 0)

    def record_offset_bytes(self, slot: int) -> int:
        return _round_up(self.num_words * WORD_BYTES, PAGE_BYTES) + slot * RECORD_BYTES

    @property
    def control_bytes(self) -> int:
        """Words, records and the card; where the slots begin."""
        return self.record_offset_bytes(self.num_slots + self.on_device)

    def slot_offset_bytes(self, slot: int) -> int:
        """From the first slot's start."""
        return slot * _round_up(self.slot_bytes, PAGE_BYTES)

    @property
    def slots_bytes(self) -> int:
        """All slots, wherever they lie."""
        return self.slot_offset_bytes(self.num_slots)

    @property
    def arena_bytes(self) -> int:
        """Of the channel's host memory."""
        return self.control_bytes + (0 if self.on_device else self.slots_bytes)

    def fixed_words(self) -> tuple[int, ...]:
        """The words that the owner writes once, from index 0."""
        return (MAGIC, self.channel_id, self.num_slots, self.slot_bytes, self.num_consumers, self.newest_mask, self.on_device)

    @classmethod
    def from_words(cls, words: Sequence[int]) -> Geometry:
        """Raises ChannelError when the fixed words are not those of a channel."""
        if len(words) < WORD_PUBLISHED or words[WORD_MAGIC] != MAGIC:
            raise ChannelError("this descriptor is no tensor channel of this version")
        return cls(*(int(word) for word in words[WORD_CHANNEL_ID:WORD_PUBLISHED]))


def newest_mask(channel_id: int, num_consumers: int, policies: Sequence[Policy]) -> int:
    """The policies, one a consumer or none for fifo everywhere, as ``Geometry.newest_mask``. Raises ChannelError."""
    if policies and len(policies) != num_consumers:
        raise ChannelError(f"channel {channel_id}: {len(policies)} policies for {num_consumers} consumers")
    mask = 0
    for index, policy in enumerate(policies):
        if policy not in get_args(Policy):
            raise ChannelError(f"channel {channel_id}, consumer {index}: no policy {policy!r}, there are {get_args(Policy)}")
        mask |= (policy == "newest") << index
    return mask


@functools.lru_cache(_NUM_REMEMBERED)
def tensor_bytes(layout: TensorLayout) -> int:
    """Bytes that the tensor takes. Raises LayoutError for a layout that is none."""
    item_bytes = ITEM_BYTES.get(layout.dtype)
    if item_bytes is None:
        raise LayoutError(f"{layout}: the dtype is none of {', '.join(ITEM_BYTES)}")
    if len(layout.shape) > MAX_DIMENSIONS or any(not 0 <= length < 2**63 for length in layout.shape):
        raise LayoutError(f"{layout}: at most {MAX_DIMENSIONS} dimensions, none negative")
    if layout.shard_dim is not None and not 0 <= layout.shard_dim < len(layout.shape):
        raise LayoutError(f"{layout}: shard_dim is none of its {len(layout.shape)} dimensions")
    if layout.offset_bytes < 0 or layout.offset_bytes % item_bytes:
        raise LayoutError(f"{layout}: the offset must be a multiple of the item's {item_bytes} bytes, from 0")
    return item_bytes * math.prod(layout.shape)


def check_message(geometry: Geometry, slot: int, message: ChannelMessage) -> None:
    """Raises LayoutError unless every tensor lies within the slot."""
    if len(message.tensors) > MAX_TENSORS:
        raise LayoutError(f"{_place(geometry, slot)}: {len(message.tensors)} tensors, a message has at most {MAX_TENSORS}")
    for layout in message.tensors:
        end_bytes = layout.offset_bytes + tensor_bytes(layout)
        if end_bytes > geometry.slot_bytes:
            raise LayoutError(f"{_place(geometry, slot)}: {layout} ends at {end_bytes}, the slot has {geometry.slot_bytes}")


def encode_record(geometry: Geometry, slot: int, message: ChannelMessage) -> bytes:
    """The message as its slot's record. Raises LayoutError when it fits neither slot nor record."""
    check_message(geometry, slot, message)
    if not 0 <= message.stream < 2**64:
        raise LayoutError(f"{_place(geometry, slot)}: stream is {message.stream}, it must lie in 0..2**64 - 1")
    counts = _COUNTS.pack(message.stream, len(message.header), len(message.tensors))
    body = counts + message.header + _encoded(message.tensors)
    if WORD_BYTES + len(body) > RECORD_BYTES:
        raise LayoutError(
            f"{_place(geometry, slot)}: header ({len(message.header)} bytes) and layouts take {len(body)} bytes, "
            f"{RECORD_BYTES - WORD_BYTES} fit"
        )
    return len(body).to_bytes(WORD_BYTES, "little") + body


def record_stream(record: bytes | memoryview) -> int:
    """The stream of the message in a record."""
    return int.from_bytes(record[WORD_BYTES : 2 * WORD_BYTES], "little")


def decode_record(geometry: Geometry, slot: int, record: bytes | memoryview) -> ChannelMessage:
    """The message in a record of RECORD_BYTES. Raises LayoutError for what ``encode_record`` can't have made."""
    length = int.from_bytes(record[:WORD_BYTES], "little")
    if WORD_BYTES + length > len(record):
        raise LayoutError(f"{_place(geometry, slot)}: the record claims {length} bytes")
    body = bytes(record[WORD_BYTES : WORD_BYTES + length])
    try:
        message = _parse(body)
    except (struct.error, UnicodeDecodeError, ValueError) as error:
        raise LayoutError(f"{_place(geometry, slot)}: the record is damaged: {error}") from error
    check_message(geometry, slot, message)
    return message


def _parse(body: bytes) -> ChannelMessage:
    stream, header_bytes, num_tensors = _COUNTS.unpack_from(body)
    end = _COUNTS.size + header_bytes
    if end > len(body):
        raise ValueError(f"{len(body)} bytes, the header alone ends at {end}")
    return ChannelMessage(body[_COUNTS.size : end], _decoded(body[end:], num_tensors), stream)


@functools.lru_cache(_NUM_REMEMBERED)
def _encoded(tensors: tuple[TensorLayout, ...]) -> bytes:
    parts = []
    for layout in tensors:
        name = layout.dtype.encode()
        shard_dim = _NOT_SHARDED if layout.shard_dim is None else layout.shard_dim
        parts.append(_TENSOR.pack(layout.offset_bytes, len(name), len(layout.shape), shard_dim))
        parts.append(name)
        parts.append(struct.pack(f"<{len(layout.shape)}Q", *layout.shape))
    return b"".join(parts)


@functools.lru_cache(_NUM_REMEMBERED)
def _decoded(body: bytes, num_tensors: int) -> tuple[TensorLayout, ...]:
    """Raises struct.error, UnicodeDecodeError, ValueError."""
    at = 0
    tensors = []
    for _ in range(num_tensors):
        offset_bytes, name_bytes, num_dimensions, shard_dim = _TENSOR.unpack_from(body, at)
        at += _TENSOR.size
        name = body[at : at + name_bytes].decode()
        at += name_bytes
        shape = struct.unpack_from(f"<{num_dimensions}Q", body, at)
        at += 8 * num_dimensions
        tensors.append(TensorLayout(shape, name, offset_bytes, None if shard_dim == _NOT_SHARDED else shard_dim))
    if at != len(body):
        raise ValueError(f"{len(body)} bytes, {at} read")
    return tuple(tensors)


def _place(geometry: Geometry, slot: int) -> str:
    return f"channel {geometry.channel_id}, slot {slot}"


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
