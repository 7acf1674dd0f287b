"""Shards of several ranks that a consumer sees whole: the arithmetic against numpy, then the consumer over a fake device."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import select
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.fake_device import FakeRuntime

from ithaka.comm_ext.channel.base import ChannelClosedError, ChannelError, ChannelMessage, Policy, TensorLayout
from ithaka.comm_ext.channel.cuda_ipc import DeviceProducer, ShardedConsumer, open_producer, open_sharded_consumer
from ithaka.comm_ext.channel.device import DeviceBytes, DeviceDelivery, ShardError
from ithaka.comm_ext.channel.host_shm import HostChannel
from ithaka.comm_ext.channel.sharding import assemble

SLOT_BYTES = 4096
DEADLINE_S = 20


@st.composite
def cuts(draw: st.DrawFn) -> tuple[tuple[int, ...], int, list[int]]:
    """A shape, the dimension it is cut along, and the lengths of the parts."""
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    shard_dim = draw(st.integers(0, len(shape) - 1))
    parts = draw(st.lists(st.integers(0, 4), min_size=1, max_size=4))
    shape[shard_dim] = sum(parts)
    return tuple(shape), shard_dim, parts


def split(whole: npt.NDArray[np.int32], shard_dim: int, parts: Sequence[int]) -> list[npt.NDArray[np.int32]]:
    return np.split(whole, np.cumsum(parts)[:-1], shard_dim)


@settings(deadline=None)
@given(cuts(), st.integers(0, 3))
def test_the_copies_make_what_numpy_concatenates(cut: tuple[tuple[int, ...], int, list[int]], lead: int) -> None:
    shape, shard_dim, parts = cut
    whole = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    shards = split(whole, shard_dim, parts)
    sources = [bytes(4 * lead) + shard.tobytes() for shard in shards]
    messages = [
        ChannelMessage(
            b"%d" % rank, (TensorLayout(shard.shape, "int32", 4 * lead, shard_dim), TensorLayout((lead,), "int32")), 5
        )
        for rank, shard in enumerate(shards)
    ]
    assembly = assemble([f"rank {rank}" for rank in range(len(parts))], messages)
    target = bytearray(assembly.num_bytes)
    for copy in assembly.copies:
        for row in range(copy.num_rows):
            source = copy.source_offset_bytes + row * copy.source_pitch_bytes
            at = copy.target_offset_bytes + row * copy.target_pitch_bytes
            target[at : at + copy.row_bytes] = sources[copy.rank][source : source + copy.row_bytes]
    first, second = assembly.message.tensors
    assert (first.shape, second.shape, first.shard_dim) == (shape, (lead,), None)
    assert (assembly.message.header, assembly.message.stream) == (b"0", 5)
    assert np.array_equal(np.frombuffer(target, np.int32, whole.size, first.offset_bytes).reshape(shape), whole)
    assert second.offset_bytes >= first.offset_bytes + whole.nbytes and second.offset_bytes % 256 == 0


GOOD = ChannelMessage(b"", (TensorLayout((2, 3), "int32", 0, 1),))


@pytest.mark.parametrize(
    "other",
    [
        replace(GOOD, tensors=()),
        replace(GOOD, stream=1),
        replace(GOOD, tensors=(TensorLayout((2, 3), "float32", 0, 1),)),
        replace(GOOD, tensors=(TensorLayout((2, 3), "int32", 0, 0),)),
        replace(GOOD, tensors=(TensorLayout((2, 3), "int32", 0),)),
        replace(GOOD, tensors=(TensorLayout((3, 3), "int32", 0, 1),)),
        replace(GOOD, tensors=(TensorLayout((2, 3, 1), "int32", 0, 1),)),
    ],
    ids=str,
)
def test_shards_that_make_no_whole_are_named(other: ChannelMessage) -> None:
    with pytest.raises(ShardError, match=r"channel 2, slot 1: .*channel 1, slot 0"):
        assemble(["channel 1, slot 0", "channel 2, slot 1"], [GOOD, other])


class Ranks:
    """A channel and a producer a rank, all on one fake runtime, and their consumer."""

    def __init__(
        self, stack: contextlib.ExitStack, num_ranks: int = 2, policy: Policy = "fifo", num_own_slots: int = 2
    ) -> None:
        self.runtime = FakeRuntime()
        self.channels = [HostChannel.create(rank, 3, SLOT_BYTES, 1, (policy,), on_device=True) for rank in range(num_ranks)]
        self.producers = [open_producer(self.fds(rank), rank % 2, self.runtime) for rank in range(num_ranks)]
        places = [(self.fds(rank), 0) for rank in range(num_ranks)]
        self.consumer = open_sharded_consumer(places, 0, num_own_slots=num_own_slots, runtime=self.runtime)
        for close in (*(channel.close for channel in self.channels), *(producer.close for producer in self.producers)):
            stack.callback(close)
        stack.callback(self.consumer.close)

    def fds(self, rank: int) -> list[int]:
        return [os.dup(fd) for fd in self.channels[rank].describe()]

    def publish(self, rank: int, values: npt.NDArray[np.int32], shard_dim: int | None, stream: int = 0) -> None:
        publish(self.producers[rank], values, shard_dim, stream)


def publish(producer: DeviceProducer, values: npt.NDArray[np.int32], shard_dim: int | None, stream: int = 0) -> None:
    slot = producer.claim()
    assert slot is not None
    ctypes.memmove(slot.data.address, np.ascontiguousarray(values).ctypes.data, values.nbytes)
    producer.publish(slot, ChannelMessage(b"", (TensorLayout(values.shape, "int32", 0, shard_dim),), stream))


def array(data: DeviceBytes, layout: TensorLayout) -> npt.NDArray[np.int32]:
    return np.frombuffer(
        ctypes.string_at(data.address + layout.offset_bytes, 4 * int(np.prod(layout.shape))), np.int32
    ).reshape(layout.shape)


def take(consumer: ShardedConsumer) -> DeviceDelivery:
    delivery = consumer.take()
    assert delivery is not None
    return delivery


def is_readable(fd: int) -> bool:
    return bool(select.select([fd], [], [], 0)[0])


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.mark.parametrize("shard_dim", [0, 1, 2])
def test_a_consumer_of_three_ranks_sees_the_whole(stack: contextlib.ExitStack, shard_dim: int) -> None:
    ranks = Ranks(stack, num_ranks=3)
    for number in range(10):
        whole = np.arange(6 * 7 * 5, dtype=np.int32).reshape(6, 7, 5) + number
        parts = split(whole, shard_dim, [2, 1, whole.shape[shard_dim] - 3])
        for rank in (2, 0, 1):
            assert ranks.consumer.take() is None, "a rank is missing"
            assert not is_readable(ranks.consumer.ready_fd())
            ranks.publish(rank, parts[rank], shard_dim)
            assert is_readable(ranks.consumer.ready_fd())
        delivery = take(ranks.consumer)
        assert delivery.sequence == number + 1
        assert np.array_equal(array(delivery.data, delivery.message.tensors[0]), whole)
        assert [producer.num_free for producer in ranks.producers] == [3, 3, 3], "the ranks' slots came back with the copy"
        ranks.consumer.release(delivery)


def test_mismatched_shards_are_released_and_the_next_whole_is_seen(stack: contextlib.ExitStack) -> None:
    ranks = Ranks(stack)
    ranks.publish(0, np.zeros((2, 3), np.int32), 1)
    ranks.publish(1, np.zeros((3, 3), np.int32), 1)
    for rank in (0, 1):
        ranks.publish(rank, np.full((2, rank), rank, np.int32), 1)
    with pytest.raises(ShardError, match=r"channel 1, slot 0: .*shape=\(3, 3\).*channel 0, slot 0"):
        ranks.consumer.take()
    delivery = take(ranks.consumer)
    assert delivery.sequence == 2 and delivery.message.tensors[0].shape == (2, 1)
    ranks.consumer.release(delivery)


def test_what_was_discarded_on_one_rank_is_passed_over_on_all(stack: contextlib.ExitStack) -> None:
    ranks = Ranks(stack)
    for stream in (7, 8):
        for rank in (0, 1):
            ranks.publish(rank, np.full((2, 2), stream, np.int32), 0, stream)
    ranks.producers[1].discard(7)
    delivery = take(ranks.consumer)
    assert delivery.message.stream == 8 and delivery.sequence == 2
    ranks.consumer.release(delivery)
    assert ranks.consumer.num_dropped == 1
    assert [producer.num_free for producer in ranks.producers] == [3, 3]


def test_a_newest_consumer_finds_the_newest_that_all_have(stack: contextlib.ExitStack) -> None:
    ranks = Ranks(stack, policy="newest")
    for number in range(1, 6):
        ranks.publish(0, np.full((1, 2), number, np.int32), 0)
    assert ranks.consumer.take() is None
    for number in range(1, 6):
        ranks.publish(1, np.full((1, 2), number, np.int32), 0)
    delivery = take(ranks.consumer)
    assert delivery.sequence == 5
    assert np.array_equal(array(delivery.data, delivery.message.tensors[0]), np.full((2, 2), 5))
    ranks.consumer.release(delivery)


def test_own_slots_are_bounded_and_misuse_is_named(stack: contextlib.ExitStack) -> None:
    ranks = Ranks(stack, num_own_slots=1)
    for number in (1, 2):
        for rank in (0, 1):
            ranks.publish(rank, np.full((1, 2), number, np.int32), 0)
    first = take(ranks.consumer)
    assert ranks.consumer.take() is None
    ranks.consumer.release(first)
    assert is_readable(ranks.consumer.ready_fd())
    with pytest.raises(ChannelError, match=r"channels 0, 1, slot 0: message 1 .*released before"):
        ranks.consumer.release(first)
    second = take(ranks.consumer)
    assert second.sequence == 2
    ranks.consumer.close()
    for act in (ranks.consumer.take, ranks.consumer.ready_fd, lambda: ranks.consumer.release(second)):
        with pytest.raises(ChannelClosedError):
            act()


def test_a_rank_that_ends_ends_the_whole(stack: contextlib.ExitStack) -> None:
    ranks = Ranks(stack)
    ranks.publish(0, np.zeros((1, 2), np.int32), 0)
    ranks.producers[1].close()
    with pytest.raises(ChannelClosedError, match="channel 1"):
        ranks.consumer.take()


def test_opening_and_closing_leaves_nothing() -> None:
    before = len(os.listdir("/proc/self/fd"))
    with contextlib.ExitStack() as stack:
        ranks = Ranks(stack)
        with pytest.raises(ChannelError, match=r"consumers 0\.\.0, not 3"):
            open_sharded_consumer([(ranks.fds(0), 3), (ranks.fds(1), 0)], 0, runtime=ranks.runtime)
        with pytest.raises(ChannelError, match="none given"):
            open_sharded_consumer([], 0, runtime=ranks.runtime)
        ranks.publish(0, np.zeros((1, 2), np.int32), 0)
    gc.collect()
    assert ranks.runtime.live == (0, 0, 0, 0)
    assert len(os.listdir("/proc/self/fd")) == before
