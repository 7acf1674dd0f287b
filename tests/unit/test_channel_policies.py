"""What each consumer's policy promises, over host memory: the newest only, drops counted, cancelled streams, forgetting."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator

import numpy as np
import pytest
from tests.unit.channel_sides import SLOT_BYTES, create, is_readable, publish, read, take, take_number

from ithaka.comm_ext.channel.base import ChannelClosedError, ChannelError, ChannelMessage, LayoutError, SlotStateError
from ithaka.comm_ext.channel.host_shm import HostChannel, HostConsumer, HostProducer, clear_event


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def publish_of(producer: HostProducer, stream: int) -> int:
    slot = producer.claim()
    assert slot is not None
    return producer.publish(slot, ChannelMessage(b"", (), stream))


def take_all(consumer: HostConsumer) -> list[int]:
    sequences = []
    while (delivery := consumer.take()) is not None:
        sequences.append(delivery.sequence)
        consumer.release(delivery)
    return sequences


def test_a_consumer_that_is_behind_gets_only_the_newest(stack: contextlib.ExitStack) -> None:
    channel, producer, (every, newest) = create(stack, num_slots=3, num_consumers=2, policies=("fifo", "newest"))
    assert (every.policy, newest.policy) == ("fifo", "newest")
    for number in range(1, 11):
        publish(producer, number)
        assert take_number(every) == number
    assert take_number(newest) == 10
    assert newest.take() is None
    assert newest.num_dropped == producer.num_dropped(1) == channel.num_dropped(1) == 9
    assert every.num_dropped == producer.num_dropped(0) == channel.num_dropped(0) == 0


def test_a_newest_consumer_that_holds_one_never_makes_the_producer_wait(stack: contextlib.ExitStack) -> None:
    _, producer, (newest,) = create(stack, num_slots=3, policies=("newest",))
    publish(producer, 1)
    held = take(newest)
    for number in range(2, 50):
        assert publish(producer, number) == number
        assert producer.num_dropped(0) == newest.num_dropped == number - 2
    assert read(held) == 1
    newest.release(held)
    assert take_number(newest) == 49


def test_the_newest_message_survives_the_end_of_the_channel(stack: contextlib.ExitStack) -> None:
    _, producer, (newest,) = create(stack, num_slots=3, policies=("newest",))
    for number in (1, 2, 3):
        publish(producer, number)
    producer.close()
    assert take_number(newest) == 3
    with pytest.raises(ChannelClosedError):
        newest.take()
    assert newest.num_dropped == 2


def test_drops_stop_counting_when_the_consumer_leaves(stack: contextlib.ExitStack) -> None:
    channel, producer, (every, newest) = create(stack, num_slots=3, num_consumers=2, policies=("fifo", "newest"))
    for number in (1, 2, 3, 4, 5):
        if number == 4:
            newest.close()
        publish(producer, number)
        assert take_number(every) == number
    assert channel.num_dropped(1) == producer.num_dropped(1) == 2


def test_a_successor_of_a_newest_consumer_takes_what_is_newest(stack: contextlib.ExitStack) -> None:
    channel, producer, (dead,) = create(stack, num_slots=4, policies=("newest",))
    publish(producer, 1)
    held = take(dead)
    assert read(held) == 1
    again = stack.enter_context(contextlib.closing(channel.open_consumer(0)))
    same = take(again)
    assert read(same) == 1 and again.num_dropped == 0
    for number in (2, 3):
        publish(producer, number)
    last = stack.enter_context(contextlib.closing(channel.open_consumer(0)))
    assert take_number(last) == 3 and last.num_dropped == 1
    for number in range(4, 10):
        publish(producer, number)
    for consumer in (dead, again):
        consumer.close()
    del held, same


def test_a_full_channel_takes_its_end_and_a_cancelled_streams_messages_never_arrive(stack: contextlib.ExitStack) -> None:
    _, producer, (consumer,) = create(stack, num_slots=4)
    for stream in (7, 8, 7, 8):
        publish_of(producer, stream)
    assert producer.claim() is None
    held = take(consumer)
    assert held.message.stream == 7
    producer.discard(7)
    producer.discard(99)
    producer.close()
    with pytest.raises(ChannelClosedError):
        producer.discard(8)
    consumer.release(held)
    sequences = []
    with pytest.raises(ChannelClosedError):
        while (delivery := consumer.take()) is not None:
            sequences.append(delivery.sequence)
            consumer.release(delivery)
    assert sequences == [2, 4]
    assert consumer.num_dropped == 1


def test_a_discarded_message_frees_its_slot_at_the_next_take(stack: contextlib.ExitStack) -> None:
    _, producer, (consumer, newest) = create(stack, num_slots=3, num_consumers=2, policies=("fifo", "newest"))
    for _ in range(3):
        publish_of(producer, 5)
    producer.discard(5)
    clear_event(producer.free_fd())
    assert producer.num_free == 0
    assert consumer.take() is None and newest.take() is None
    assert is_readable(producer.free_fd()) and producer.num_free == 3
    assert consumer.num_dropped == newest.num_dropped == 3
    # The stream's number may be used again.
    assert publish_of(producer, 5) == 4
    assert take_all(consumer) == take_all(newest) == [4]


def test_interleaved_streams_keep_their_order(stack: contextlib.ExitStack) -> None:
    _, producer, (consumer,) = create(stack, num_slots=6)
    seen: dict[int, list[int]] = {1: [], 2: [], 3: []}
    for round_number in range(10):
        for stream in (1, 2, 3):
            publish_of(producer, stream)
        if round_number == 4:
            producer.discard(2)
        while (delivery := consumer.take()) is not None:
            seen[delivery.message.stream].append(delivery.sequence)
            consumer.release(delivery)
    assert seen[1] == [3 * number + 1 for number in range(10)]
    assert seen[2] == [3 * number + 2 for number in range(10) if number != 4]
    assert seen[3] == [3 * number + 3 for number in range(10)]


def test_a_forgotten_release_warns_and_the_slot_stays_taken(stack: contextlib.ExitStack) -> None:
    _, producer, (consumer,) = create(stack, num_slots=1)
    publish(producer, 1)
    delivery = take(consumer)
    values = np.frombuffer(delivery.data, np.int32, 100, 40)
    with pytest.warns(ResourceWarning, match="channel 9, consumer 0, slot 0: message 1 was never released"):
        del delivery
        gc.collect()
    # Somebody may stand on its bytes.
    assert producer.claim() is None
    assert values[0] == 1


def test_forgotten_sides_warn_and_keep_no_descriptor(stack: contextlib.ExitStack) -> None:
    channel = HostChannel.create(9, 1, SLOT_BYTES, 1)
    fds = channel.describe()
    producer, consumer = channel.open_producer(), channel.open_consumer(0)
    with pytest.warns(ResourceWarning, match="channel 9: producer was never closed"):
        del producer
        gc.collect()
    with pytest.warns(ResourceWarning, match="channel 9: consumer 0 was never closed"):
        del consumer
        gc.collect()
    # To the others it is as if it had died: the owner speaks for it, or a successor goes on.
    with contextlib.closing(channel.open_producer()) as successor, contextlib.closing(channel.open_consumer(0)) as other:
        publish(successor, 1)
        assert take_number(other) == 1
    with pytest.warns(ResourceWarning, match="channel 9: owner was never closed"):
        del channel
        gc.collect()
    with pytest.raises(OSError):
        os.fstat(fds[0])


@pytest.mark.parametrize(
    ("num_slots", "policies", "complaint"),
    [
        (4, ("fifo",), "1 policies for 2 consumers"),
        (4, ("fifo", "latest"), "channel 9, consumer 1: no policy 'latest'"),
        (2, ("fifo", "newest"), "num_slots is 2"),
    ],
)
def test_policies_that_can_not_be_are_refused(num_slots: int, policies: tuple[str, ...], complaint: str) -> None:
    with pytest.raises(ChannelError, match=complaint):
        HostChannel.create(9, num_slots, SLOT_BYTES, 2, policies)  # type: ignore[arg-type]


def test_errors_name_channel_slot_and_layout(stack: contextlib.ExitStack) -> None:
    channel, producer, (consumer,) = create(stack)
    publish(producer, 1)
    delivery = take(consumer)
    consumer.release(delivery)
    with pytest.raises(SlotStateError, match=r"channel 9, consumer 0, slot 0: message 1 .*shape=\(4, 25\).*released before"):
        consumer.release(delivery)
    slot = producer.claim()
    assert slot is not None
    for stream in (-1, 2**64):
        with pytest.raises(LayoutError, match="channel 9, slot 1: stream"):
            producer.publish(slot, ChannelMessage(b"", (), stream))
    for act in (producer.num_dropped, channel.num_dropped):
        with pytest.raises(ChannelError, match=r"consumers 0\.\.0, not 1"):
            act(1)
    producer.close()
    with pytest.raises(ChannelClosedError, match=r"channel 9, slot 1: .*shape=\(4, 25\)"):
        producer.publish(slot, delivery.message)
