"""The channel in device memory over a runtime without a device: views, pulls, completion, ownership."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Iterator

import pytest
from tests.unit.channel_sides import is_readable
from tests.unit.device_sides import (
    NOTHING,
    World,
    create,
    load,
    message,
    publish,
    read,
    store,
    take,
    take_number,
    wait_readable,
    wait_until,
)

from ithaka.comm_ext.channel.base import ChannelClosedError, ChannelMessage, SlotStateError
from ithaka.comm_ext.channel.cuda_ipc import clear_event
from ithaka.comm_ext.channel.host_shm import HostChannel


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def test_the_same_device_gets_views_and_nothing_moves(stack: contextlib.ExitStack) -> None:
    world, producer, (consumer,) = create(stack, [0])
    for number in range(1, 11):
        publish(producer, number)
        delivery = take(consumer)
        assert delivery.sequence == read(delivery) == number
        consumer.release(delivery)
    assert world.runtime.num_copied_bytes == 0


def test_another_device_pulls_what_the_message_has_and_frees_the_slot(stack: contextlib.ExitStack) -> None:
    world, producer, (consumer,) = create(stack, [1])
    publish(producer, 1)
    held = take(consumer)
    assert producer.num_free == 3, "the producer's slot came back with the copy, not with the release"
    publish(producer, 2)
    assert read(held) == 1
    consumer.release(held)
    assert take_number(consumer) == 2
    assert world.runtime.num_copied_bytes == 2 * (256 + 120)


def test_own_slots_are_bounded(stack: contextlib.ExitStack) -> None:
    world = World(num_slots=4)
    stack.callback(world.channel.close)
    producer = world.producer()
    stack.callback(producer.close)
    consumer = world.consumer(device=1, num_own_slots=2)
    stack.callback(consumer.close)
    for number in (1, 2, 3, 4):
        publish(producer, number)
    held = [take(consumer), take(consumer)]
    assert consumer.take() is None
    clear_event(consumer.ready_fd())
    consumer.release(held[1])
    assert is_readable(consumer.ready_fd()), "there is room again"
    third = take(consumer)
    assert [read(delivery) for delivery in (held[0], third)] == [1, 3]
    consumer.release(third)
    consumer.release(held[0])
    assert take_number(consumer) == 4


def test_a_message_is_sent_when_its_data_is_complete_and_in_order(stack: contextlib.ExitStack) -> None:
    world, producer, (consumer,) = create(stack, [0])
    clear_event(consumer.ready_fd())
    world.runtime.hold()
    slot = producer.claim()
    assert slot is not None
    assert producer.publish(slot, message(1), stream=0) == 1
    second = producer.claim()
    assert second is not None
    store(second.data, bytes([2]) * 10)
    store(second.data.part(256, 120), bytes([2]) * 120)
    idle_stream = world.runtime.open_stream(0)
    clear_event(consumer.ready_fd())
    assert producer.publish(second, message(2), stream=idle_stream) == 2, "complete, but behind the first"
    assert consumer.take() is None and not is_readable(consumer.ready_fd())
    store(slot.data, bytes([1]) * 10)
    store(slot.data.part(256, 120), bytes([1]) * 120)
    world.runtime.let_run()
    seen: list[int] = []
    while len(seen) < 2:
        wait_readable(consumer.ready_fd())
        clear_event(consumer.ready_fd())
        while (delivery := consumer.take()) is not None:
            seen.append(read(delivery))
            consumer.release(delivery)
    assert seen == [1, 2]
    world.runtime.close_stream(0, idle_stream)


def test_a_claim_wakes_who_then_stays_awake_for_the_message(stack: contextlib.ExitStack) -> None:
    _, producer, (consumer,) = create(stack, [0])
    clear_event(consumer.ready_fd())
    slot = producer.claim()
    assert slot is not None and is_readable(consumer.ready_fd())
    assert consumer.take() is None, "it is not awake for ever"
    store(slot.data, bytes([1]) * 10)
    store(slot.data.part(256, 120), bytes([1]) * 120)
    producer.publish(slot, message(1))
    assert take_number(consumer) == 1


def test_what_is_announced_is_told_once_and_news_are_awaited(stack: contextlib.ExitStack) -> None:
    channel = stack.enter_context(contextlib.closing(HostChannel.create(9, 2, 100, 1)))
    producer = stack.enter_context(contextlib.closing(channel.open_producer()))
    consumer = stack.enter_context(contextlib.closing(channel.open_consumer(0)))
    assert not consumer.was_announced() and not consumer.await_news(within_us=1)
    producer.announce()
    assert [consumer.was_announced(), consumer.was_announced()] == [True, False]
    slot = producer.claim()
    assert slot is not None
    publishing = threading.Thread(target=producer.publish, args=(slot, ChannelMessage(b"", ())))
    publishing.start()
    assert consumer.await_news(within_us=10**9)
    publishing.join()
    delivery = consumer.take()
    assert delivery is not None and not consumer.await_news(within_us=1)
    consumer.release(delivery)
    producer.announce()
    slot = producer.claim()
    assert slot is not None
    producer.publish(slot, ChannelMessage(b"", ()))
    assert not consumer.was_announced(), "it is there"
    producer.close()
    assert consumer.await_news(within_us=10**9), "the end is news too"
    consumer.close()
    for ask in (consumer.was_announced, lambda: consumer.await_news(within_us=1)):
        with pytest.raises(ChannelClosedError):
            ask()


def test_a_consumer_on_another_device_rehearses_its_copy(stack: contextlib.ExitStack) -> None:
    world, producer, (consumer,) = create(stack, [1])
    publish(producer, 1)
    assert take_number(consumer) == 1
    copied_bytes = world.runtime.num_copied_bytes
    slot = producer.claim()
    assert slot is not None and consumer.take() is None and consumer.take() is None
    assert 0 < world.runtime.num_copied_bytes - copied_bytes <= 16, "once"
    store(slot.data, bytes([2]) * 10)
    store(slot.data.part(256, 120), bytes([2]) * 120)
    producer.publish(slot, message(2))
    assert take_number(consumer) == 2
    producer.claim()
    world.runtime.fails.add("copy")
    assert consumer.take() is None, "what fails then fails when it counts"


def test_a_release_waits_for_the_stream_that_reads(stack: contextlib.ExitStack) -> None:
    world, producer, (consumer,) = create(stack, [0], num_slots=1)
    publish(producer, 1)
    delivery = take(consumer)
    world.runtime.hold()
    clear_event(producer.free_fd())
    consumer.release(delivery)
    assert producer.num_free == 0
    with pytest.raises(SlotStateError, match=r"channel 9, consumer 0, slot 0: message 1 .*float32"):
        consumer.release(delivery)
    world.runtime.let_run()
    wait_readable(producer.free_fd())
    assert producer.num_free == 1


def test_close_sends_what_waits_for_its_data_first(stack: contextlib.ExitStack) -> None:
    world, producer, (consumer,) = create(stack, [0])
    world.runtime.hold()
    publish(producer, 1)
    producer.close()
    producer.close()
    assert consumer.take() is None
    clear_event(consumer.ready_fd())
    world.runtime.let_run()
    wait_readable(consumer.ready_fd())
    assert take_number(consumer) == 1
    while True:
        try:
            assert consumer.take() is None
        except ChannelClosedError:
            break
        wait_readable(consumer.ready_fd())
        clear_event(consumer.ready_fd())


@pytest.mark.parametrize("devices", [[0, 0, 0], [1, 1, 1], [0, 1, 0]])
def test_three_consumers_of_different_speed(stack: contextlib.ExitStack, devices: list[int]) -> None:
    _, producer, consumers = create(stack, devices, num_slots=4, policies=("fifo", "fifo", "newest"))
    seen: list[list[int]] = [[], [], []]
    for number in range(1, 31):
        assert publish(producer, number) == number
        seen[0].append(take_number(consumers[0]))
        if number % 2 == 0:
            seen[1] += [take_number(consumers[1]), take_number(consumers[1])]
        if number % 5 == 0:
            seen[2].append(take_number(consumers[2]))
    assert seen == [list(range(1, 31)), list(range(1, 31)), [5, 10, 15, 20, 25, 30]]
    assert [producer.num_dropped(index) for index in range(3)] == [0, 0, 24]
    assert consumers[2].num_dropped == 24


def test_a_cancelled_sessions_messages_are_discarded(stack: contextlib.ExitStack) -> None:
    world, producer, (consumer,) = create(stack, [0], num_slots=4)
    world.runtime.hold()
    for number, session in ((1, 7), (2, 8), (3, 7)):
        publish(producer, number, session)
    producer.discard(7)
    publish(producer, 4, 7)  # the stream's number may be used again
    world.runtime.let_run()
    wait_until(lambda: producer.num_waiting == 0)
    assert [take_number(consumer), take_number(consumer)] == [2, 4]
    assert consumer.take() is None
    assert consumer.num_dropped == producer.num_dropped(0) == 2


ORDERS = [
    ("producer", "consumer", "owner"),
    ("consumer", "producer", "owner"),
    ("owner", "producer", "consumer"),
    ("owner", "consumer", "producer"),
    ("producer", "owner", "consumer"),
    ("consumer", "owner", "producer"),
]


@pytest.mark.parametrize("device", [0, 1])
@pytest.mark.parametrize("has_untaken", [False, True])
@pytest.mark.parametrize("order", ORDERS, ids=" ".join)
def test_close_in_every_order_leaves_nothing(order: tuple[str, ...], has_untaken: bool, device: int) -> None:
    world = World()
    before = len(os.listdir("/proc/self/fd"))
    producer, consumer = world.producer(), world.consumer(device=device)
    close = {"producer": producer.close, "consumer": consumer.close, "owner": world.channel.close}
    publish(producer, 1)
    publish(producer, 2)
    held = take(consumer)
    if not has_untaken:
        assert take_number(consumer) == 2
    for name in order:
        close[name]()
    del held, producer, consumer, close
    gc.collect()
    wait_until(lambda: world.runtime.live == NOTHING)
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before - 3)


def test_what_was_published_can_be_taken_after_the_producer_closed(stack: contextlib.ExitStack) -> None:
    world, producer, (consumer,) = create(stack, [1])
    publish(producer, 1)
    producer.close()
    assert world.runtime.live[0] == 1, "somebody may still read it"
    assert take_number(consumer) == 1
    with pytest.raises(ChannelClosedError):
        consumer.take()


def test_memory_under_a_view_stays_until_the_view_is_gone(stack: contextlib.ExitStack) -> None:
    world, producer, (consumer,) = create(stack, [0])
    publish(producer, 1)
    delivery = take(consumer)
    data = delivery.data
    consumer.close()
    producer.close()
    del delivery
    assert world.runtime.live[0] == 1
    assert load(data, 10) == bytes([1]) * 10
    del data
    gc.collect()
    wait_until(lambda: world.runtime.live == NOTHING)


def test_the_owner_speaks_for_the_dead(stack: contextlib.ExitStack) -> None:
    world, producer, (dead, living) = create(stack, [0, 1], num_slots=1)
    publish(producer, 1)
    held = take(dead)
    assert take_number(living) == 1
    assert producer.claim() is None
    world.channel.drop_consumer(0)
    publish(producer, 2)
    world.channel.close_producer()
    assert take_number(living) == 2
    with pytest.raises(ChannelClosedError):
        living.take()
    with pytest.raises(ChannelClosedError):
        dead.take()
    dead.close()
    del held


@pytest.mark.parametrize("device", [0, 1])
def test_messages_open_nothing_complete_or_not(stack: contextlib.ExitStack, device: int) -> None:
    world, producer, (consumer,) = create(stack, [device])

    def exchange(num_messages: int) -> None:
        for number in range(num_messages):
            world.runtime.hold()
            publish(producer, number)
            assert consumer.take() is None
            world.runtime.let_run()
            publish(producer, number)
            for _ in range(2):
                while (delivery := consumer.take()) is None:
                    wait_readable(consumer.ready_fd())
                    clear_event(consumer.ready_fd())
                consumer.release(delivery)
            wait_until(lambda: producer.num_free == 3)

    def footprint() -> tuple[int, int, tuple[int, int, int, int]]:
        return len(os.listdir("/proc/self/fd")), threading.active_count(), world.runtime.live

    exchange(20)
    before = footprint()
    exchange(200)
    wait_until(lambda: footprint() == before)


def test_memory_and_descriptors_stay_flat() -> None:
    def cycle(device: int) -> None:
        world = World()
        producer, consumer = world.producer(), world.consumer(device=device)
        publish(producer, 1)
        assert take_number(consumer) == 1
        for side in (producer, consumer, world.channel):
            side.close()
        gc.collect()
        wait_until(lambda: world.runtime.live == NOTHING)

    def footprint() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    cycle(0)
    before = footprint()
    for number in range(12):
        cycle(number % 2)
    wait_until(lambda: all(map(int.__le__, footprint(), before)))  # a thread that frees memory closes its descriptors after it
