"""What the channel in host memory asks of its descriptors, and what it leaves behind: nothing."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import psutil
import pytest
from tests.unit.channel_sides import SLOT_BYTES, create, publish, read, take

from ithaka.comm_ext.channel.base import ChannelClosedError, ChannelError
from ithaka.comm_ext.channel.host_shm import HostChannel, open_consumer, open_producer


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def foreign_descriptors() -> dict[str, list[int]]:
    channel = HostChannel.create(9, 2, SLOT_BYTES, 2)
    fds = [os.dup(fd) for fd in channel.describe()]
    channel.close()
    head = os.pread(fds[0], 4096, 0)
    unsealed = os.memfd_create("unsealed")
    os.pwrite(unsealed, head, 0)
    empty = os.memfd_create("empty")
    null = os.open("/dev/null", os.O_RDWR)
    events = [os.eventfd(0) for _ in range(9)]
    return {
        "none": [],
        "too few": fds[:3],
        "no arena": [events[0], *events[1:4]],
        "empty": [empty, *events[4:7]],
        "unsealed and short": [unsealed, *events[7:9], fds[3]],
        "null": [null],
    }


@pytest.mark.parametrize("case", ["none", "too few", "no arena", "empty", "unsealed and short", "null"])
@pytest.mark.parametrize("side", ["producer", "consumer"])
def test_descriptors_that_are_no_channel_are_refused_and_closed(case: str, side: str) -> None:
    cases = foreign_descriptors()
    fds = cases.pop(case)
    try:
        with pytest.raises(ChannelError):
            open_producer(fds) if side == "producer" else open_consumer(fds, 0)
        for fd in fds:
            with pytest.raises(OSError):
                os.fstat(fd)
    finally:
        for fd in (fd for others in cases.values() for fd in others):
            os.close(fd)


def test_an_unknown_index_is_refused_and_the_descriptors_closed(stack: contextlib.ExitStack) -> None:
    channel, _, _ = create(stack)
    before = psutil.Process().num_fds()
    for index in (-1, 1):
        with pytest.raises(ChannelError, match=r"consumers 0\.\.0"):
            channel.open_consumer(index)
    assert psutil.Process().num_fds() == before


def test_nobody_can_shrink_the_arena(stack: contextlib.ExitStack) -> None:
    channel, _, _ = create(stack)
    with pytest.raises(PermissionError):
        os.ftruncate(channel.describe()[0], 0)


def test_a_closed_owner_refuses() -> None:
    channel = HostChannel.create(9, 1, SLOT_BYTES, 1)
    channel.close()
    channel.close()
    for act in (channel.describe, channel.close_producer, lambda: channel.drop_consumer(0), channel.open_producer):
        with pytest.raises(ChannelClosedError):
            act()


def test_untouched_slots_take_no_memory(stack: contextlib.ExitStack) -> None:
    channel, producer, (consumer,) = create(stack, num_slots=64, slot_bytes=256 * 1024 * 1024)
    for number in range(20):
        publish(producer, number)
        consumer.release(take(consumer))
    assert os.fstat(channel.describe()[0]).st_blocks * 512 < 4 * 1024 * 1024


def test_memory_and_descriptors_stay_flat(stack: contextlib.ExitStack) -> None:
    process = psutil.Process()
    _, producer, (first, second) = create(stack, num_slots=4, num_consumers=2)

    def exchange(num_messages: int) -> None:
        for number in range(num_messages):
            publish(producer, number)
            for consumer in (first, second):
                delivery = take(consumer)
                assert read(delivery) == number
                consumer.release(delivery)

    exchange(2000)
    before = process.memory_info().rss, process.num_fds()
    exchange(20_000)
    after = process.memory_info().rss, process.num_fds()
    assert after[1] == before[1]
    assert after[0] - before[0] < 2 * 1024 * 1024


def test_opening_and_closing_leaves_nothing() -> None:
    process = psutil.Process()

    def cycle() -> None:
        with contextlib.ExitStack() as stack:
            _, producer, (consumer,) = create(stack, slot_bytes=1024 * 1024)
            publish(producer, 1)
            held = take(consumer)
            assert held.sequence == 1

    for _ in range(20):
        cycle()
    before = process.memory_info().rss, process.num_fds(), len(process.memory_maps(grouped=False))
    for _ in range(200):
        cycle()
    after = process.memory_info().rss, process.num_fds(), len(process.memory_maps(grouped=False))
    assert after[1] == before[1]
    assert after[2] <= before[2] + 4
    assert after[0] - before[0] < 4 * 1024 * 1024
