"""The channel in host memory, both sides in one process."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Iterator

import numpy as np
import psutil
import pytest

from ithaka.comm_ext.channel.base import (
    ChannelClosedError,
    ChannelError,
    ChannelMessage,
    Delivery,
    LayoutError,
    SlotStateError,
    TensorLayout,
)
from ithaka.comm_ext.channel.host_shm import (
    HostChannel,
    HostConsumer,
    HostProducer,
    clear_event,
    open_consumer,
    open_producer,
)
from ithaka.comm_ext.channel.layout import Geometry

SLOT_BYTES = 5000


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def create(
    stack: contextlib.ExitStack, num_slots: int = 3, num_consumers: int = 1, slot_bytes: int = SLOT_BYTES
) -> tuple[HostChannel, HostProducer, list[HostConsumer]]:
    channel = HostChannel.create(9, num_slots, slot_bytes, num_consumers)
    stack.callback(channel.close)
    producer = channel.open_producer()
    stack.callback(producer.close)
    consumers = [channel.open_consumer(index) for index in range(num_consumers)]
    for consumer in consumers:
        stack.callback(consumer.close)
    return channel, producer, consumers


def publish(producer: HostProducer, number: int) -> int:
    slot = producer.claim()
    assert slot is not None
    payload = np.arange(number, number + 100, dtype=np.int32)
    slot.data[40:440] = payload.view(np.uint8).data
    return producer.publish(slot, ChannelMessage(b"number %d" % number, (TensorLayout((4, 25), "int32", 40),)))


def read(delivery: Delivery) -> int:
    """The number in a delivery whose bytes and header agree."""
    (layout,) = delivery.message.tensors
    values = np.frombuffer(delivery.data, np.dtype(layout.dtype), 100, layout.offset_bytes).reshape(layout.shape)
    number = int(values[0, 0])
    assert (values.ravel() == np.arange(number, number + 100)).all()
    assert delivery.message.header == b"number %d" % number
    return number


def take(consumer: HostConsumer) -> Delivery:
    delivery = consumer.take()
    assert delivery is not None
    return delivery


def is_readable(fd: int) -> bool:
    return bool(select.select([fd], [], [], 0)[0])


@pytest.mark.parametrize("num_consumers", [1, 2, 3])
def test_every_consumer_gets_every_message_in_order(stack: contextlib.ExitStack, num_consumers: int) -> None:
    _, producer, consumers = create(stack, num_slots=4, num_consumers=num_consumers)
    seen: list[list[int]] = [[] for _ in consumers]
    for number in range(1, 41):
        assert publish(producer, number) == number
        for index, consumer in enumerate(consumers):
            # The consumers lag by different amounts.
            while number - len(seen[index]) > index:
                delivery = take(consumer)
                assert delivery.sequence == len(seen[index]) + 1
                seen[index].append(read(delivery))
                consumer.release(delivery)
    assert seen == [list(range(1, 41 - index)) for index in range(num_consumers)]


def test_a_slot_is_free_when_every_consumer_released_it(stack: contextlib.ExitStack) -> None:
    _, producer, (first, second) = create(stack, num_slots=2, num_consumers=2)
    publish(producer, 1)
    publish(producer, 2)
    assert producer.claim() is None and producer.num_free == 0
    first.release(take(first))
    assert producer.claim() is None and producer.num_free == 0
    delivery = take(second)
    assert producer.claim() is None
    second.release(delivery)
    assert producer.num_free == 1
    assert publish(producer, 3) == 3
    assert producer.num_free == 0


def test_releases_in_any_order(stack: contextlib.ExitStack) -> None:
    _, producer, (consumer,) = create(stack, num_slots=3)
    for number in (1, 2, 3):
        publish(producer, number)
    deliveries = [take(consumer) for _ in range(3)]
    assert consumer.take() is None
    consumer.release(deliveries[1])
    assert producer.num_free == 1
    publish(producer, 4)
    assert [read(delivery) for delivery in (deliveries[0], deliveries[2], take(consumer))] == [1, 3, 4]


def test_the_whole_slot_can_be_used_and_not_a_byte_more(stack: contextlib.ExitStack) -> None:
    _, producer, (consumer,) = create(stack, num_slots=1)
    slot = producer.claim()
    assert slot is not None and len(slot.data) == SLOT_BYTES
    slot.data[:] = b"\x07" * SLOT_BYTES
    with pytest.raises(LayoutError, match="channel 9, slot 0"):
        producer.publish(slot, ChannelMessage(b"", (TensorLayout((SLOT_BYTES + 1,), "uint8"),)))
    producer.publish(slot, ChannelMessage(b"", (TensorLayout((SLOT_BYTES,), "uint8"),)))
    assert take(consumer).data == b"\x07" * SLOT_BYTES


def test_views_end_with_publish_and_release(stack: contextlib.ExitStack) -> None:
    _, producer, (consumer,) = create(stack)
    slot = producer.claim()
    assert slot is not None
    producer.publish(slot, ChannelMessage(b"", ()))
    with pytest.raises(ValueError, match="released"):
        slot.data[0] = 1
    delivery = take(consumer)
    assert delivery.data.readonly
    consumer.release(delivery)
    with pytest.raises(ValueError, match="released"):
        bytes(delivery.data)


def test_misuse_is_an_error_that_changes_nothing(stack: contextlib.ExitStack) -> None:
    _, producer, (consumer,) = create(stack)
    _, other_producer, (other_consumer,) = create(stack)
    message = ChannelMessage(b"", ())
    slot, other_slot = producer.claim(), other_producer.claim()
    assert slot is not None and other_slot is not None
    with pytest.raises(SlotStateError, match="channel 9: slot 0"):
        producer.publish(other_slot, message)
    producer.publish(slot, message)
    with pytest.raises(SlotStateError):
        producer.publish(slot, message)
    other_producer.publish(other_slot, message)
    delivery, foreign = take(consumer), take(other_consumer)
    with pytest.raises(SlotStateError, match="channel 9, slot 0: message 1"):
        consumer.release(foreign)
    consumer.release(delivery)
    with pytest.raises(SlotStateError):
        consumer.release(delivery)
    assert producer.num_free == 3 and other_producer.num_free == 2


def test_events_say_when_to_try_again(stack: contextlib.ExitStack) -> None:
    channel, producer, (first, second) = create(stack, num_slots=1, num_consumers=2)
    for fd in (producer.free_fd(), first.ready_fd(), second.ready_fd()):
        clear_event(fd)  # opening makes them readable: look once
        assert not is_readable(fd)
        clear_event(fd)
    publish(producer, 1)
    for consumer in (first, second):
        assert is_readable(consumer.ready_fd())
        clear_event(consumer.ready_fd())
        assert not is_readable(consumer.ready_fd())
    first.release(take(first))
    assert is_readable(producer.free_fd())
    clear_event(producer.free_fd())
    channel.drop_consumer(1)
    assert is_readable(producer.free_fd())
    producer.close()
    assert is_readable(first.ready_fd())


def test_what_was_published_can_be_taken_after_the_producer_closed(stack: contextlib.ExitStack) -> None:
    _, producer, (consumer,) = create(stack)
    publish(producer, 1)
    publish(producer, 2)
    producer.close()
    producer.close()
    assert [read(take(consumer)) for _ in range(2)] == [1, 2]
    for _ in range(2):
        with pytest.raises(ChannelClosedError, match="channel 9"):
            consumer.take()
    for act in (producer.claim, producer.free_fd):
        with pytest.raises(ChannelClosedError):
            act()
    assert producer.num_free == 0


def test_the_owner_ends_a_dead_producer(stack: contextlib.ExitStack) -> None:
    channel, producer, (consumer,) = create(stack)
    publish(producer, 1)
    slot = producer.claim()
    assert slot is not None
    channel.close_producer()
    channel.close_producer()
    assert read(take(consumer)) == 1
    with pytest.raises(ChannelClosedError):
        consumer.take()
    with pytest.raises(ChannelClosedError):  # it lives after all
        producer.publish(slot, ChannelMessage(b"", ()))


def test_a_dropped_consumer_holds_nothing(stack: contextlib.ExitStack) -> None:
    channel, producer, (first, second) = create(stack, num_slots=2, num_consumers=2)
    publish(producer, 1)
    publish(producer, 2)
    take(first)
    for _ in range(2):
        second.release(take(second))
    assert producer.num_free == 0
    channel.drop_consumer(0)
    channel.drop_consumer(0)
    assert producer.num_free == 2
    with pytest.raises(ChannelClosedError, match="consumer 0"):
        first.take()
    assert publish(producer, 3) == 3
    assert read(take(second)) == 3
    with pytest.raises(ChannelError, match="not 2"):
        channel.drop_consumer(2)


def test_a_consumer_that_leaves_releases_what_it_holds(stack: contextlib.ExitStack) -> None:
    channel, producer, (consumer,) = create(stack, num_slots=2)
    publish(producer, 1)
    publish(producer, 2)
    delivery = take(consumer)
    consumer.close()
    consumer.close()
    with pytest.raises(ChannelClosedError, match="every consumer is gone"):
        producer.claim()
    for act in (consumer.take, consumer.ready_fd, lambda: consumer.release(delivery)):
        with pytest.raises(ChannelClosedError):
            act()
    with pytest.raises(ChannelClosedError, match="left or was dropped"):
        channel.open_consumer(0)


def test_a_successor_takes_again_what_was_not_released(stack: contextlib.ExitStack) -> None:
    channel, producer, (dead,) = create(stack, num_slots=4)
    for number in (1, 2, 3, 4):
        publish(producer, number)
    held = [take(dead) for _ in range(3)]
    dead.release(held[1])
    # The dead one says nothing more; the same descriptors go to another.
    successor = stack.enter_context(contextlib.closing(channel.open_consumer(0)))
    assert is_readable(successor.ready_fd())
    publish(producer, 5)
    taken = [take(successor) for _ in range(4)]
    assert [(delivery.sequence, read(delivery)) for delivery in taken] == [(1, 1), (3, 3), (4, 4), (5, 5)]
    assert successor.take() is None
    for delivery in taken:
        successor.release(delivery)
    assert producer.num_free == 4


def test_a_successor_of_the_producer_goes_on(stack: contextlib.ExitStack) -> None:
    channel, dead, (consumer,) = create(stack, num_slots=2)
    publish(dead, 1)
    assert dead.claim() is not None
    successor = stack.enter_context(contextlib.closing(channel.open_producer()))
    assert successor.num_free == 1
    assert publish(successor, 2) == 2
    assert [read(take(consumer)) for _ in range(2)] == [1, 2]


def test_views_outlive_the_side_that_gave_them(stack: contextlib.ExitStack) -> None:
    _, producer, (consumer,) = create(stack)
    publish(producer, 7)
    values = np.frombuffer(take(consumer).data, np.int32, 100, 40)
    consumer.close()
    producer.close()
    assert values[0] == 7


def test_a_damaged_record_is_an_error_and_released(stack: contextlib.ExitStack) -> None:
    channel, producer, (consumer,) = create(stack, num_slots=2)
    publish(producer, 1)
    publish(producer, 2)
    geometry = Geometry(9, 2, SLOT_BYTES, 1)
    os.pwrite(channel.describe()[0], b"\xff" * 16, geometry.record_offset_bytes(0))
    with pytest.raises(LayoutError, match="channel 9, slot 0"):
        consumer.take()
    assert producer.num_free == 1
    assert read(take(consumer)) == 2


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
            take(consumer)

    for _ in range(20):
        cycle()
    before = process.memory_info().rss, process.num_fds(), len(process.memory_maps(grouped=False))
    for _ in range(200):
        cycle()
    after = process.memory_info().rss, process.num_fds(), len(process.memory_maps(grouped=False))
    assert after[1] == before[1]
    assert after[2] <= before[2] + 4
    assert after[0] - before[0] < 4 * 1024 * 1024
