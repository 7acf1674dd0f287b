"""The channel in host memory, both sides in one process."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import numpy as np
import pytest
from tests.unit.channel_sides import SLOT_BYTES, create, is_readable, publish, read, take, take_number

from ithaka.comm_ext.channel.base import (
    ChannelClosedError,
    ChannelError,
    ChannelMessage,
    LayoutError,
    SlotStateError,
    TensorLayout,
)
from ithaka.comm_ext.channel.host_shm import (
    clear_event,
)
from ithaka.comm_ext.channel.layout import Geometry


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


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
    deliveries.append(take(consumer))
    assert [read(deliveries[index]) for index in (0, 2, 3)] == [1, 3, 4]
    consumer.close()


def test_the_whole_slot_can_be_used_and_not_a_byte_more(stack: contextlib.ExitStack) -> None:
    _, producer, (consumer,) = create(stack, num_slots=1)
    slot = producer.claim()
    assert slot is not None and len(slot.data) == SLOT_BYTES
    slot.data[:] = b"\x07" * SLOT_BYTES
    with pytest.raises(LayoutError, match="channel 9, slot 0"):
        producer.publish(slot, ChannelMessage(b"", (TensorLayout((SLOT_BYTES + 1,), "uint8"),)))
    producer.publish(slot, ChannelMessage(b"", (TensorLayout((SLOT_BYTES,), "uint8"),)))
    delivery = take(consumer)
    assert delivery.data == b"\x07" * SLOT_BYTES
    consumer.release(delivery)


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
    with pytest.raises(SlotStateError, match="channel 9, consumer 0, slot 0: message 1"):
        consumer.release(foreign)
    consumer.release(delivery)
    with pytest.raises(SlotStateError):
        consumer.release(delivery)
    assert producer.num_free == 3 and other_producer.num_free == 2
    other_consumer.release(foreign)


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
    assert [take_number(consumer) for _ in range(2)] == [1, 2]
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
    assert take_number(consumer) == 1
    with pytest.raises(ChannelClosedError):
        consumer.take()
    with pytest.raises(ChannelClosedError):  # it lives after all
        producer.publish(slot, ChannelMessage(b"", ()))


def test_a_dropped_consumer_holds_nothing(stack: contextlib.ExitStack) -> None:
    channel, producer, (first, second) = create(stack, num_slots=2, num_consumers=2)
    publish(producer, 1)
    publish(producer, 2)
    held = take(first)
    for _ in range(2):
        second.release(take(second))
    assert producer.num_free == 0
    channel.drop_consumer(0)
    channel.drop_consumer(0)
    assert producer.num_free == 2
    with pytest.raises(ChannelClosedError, match="consumer 0"):
        first.take()
    assert publish(producer, 3) == 3
    assert take_number(second) == 3
    first.close()
    with pytest.raises(ChannelClosedError):
        first.release(held)
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
    dead.close()


def test_a_successor_of_the_producer_goes_on(stack: contextlib.ExitStack) -> None:
    channel, dead, (consumer,) = create(stack, num_slots=2)
    publish(dead, 1)
    assert dead.claim() is not None
    successor = stack.enter_context(contextlib.closing(channel.open_producer()))
    assert successor.num_free == 1
    assert publish(successor, 2) == 2
    assert [take_number(consumer) for _ in range(2)] == [1, 2]


def test_views_outlive_the_side_that_gave_them(stack: contextlib.ExitStack) -> None:
    _, producer, (consumer,) = create(stack)
    publish(producer, 7)
    delivery = take(consumer)
    values = np.frombuffer(delivery.data, np.int32, 100, 40)
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
    assert take_number(consumer) == 2
