"""The channel in device memory over a runtime without a device: views, pulls, completion, ownership, errors."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import select
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest
from tests.unit.channel_sides import is_readable
from tests.unit.fake_device import FakeRuntime

from ithaka.comm_ext.channel import host_shm
from ithaka.comm_ext.channel.base import (
    ChannelClosedError,
    ChannelError,
    ChannelMessage,
    LayoutError,
    Policy,
    SlotStateError,
    TensorLayout,
)
from ithaka.comm_ext.channel.cuda_ipc import DeviceConsumer, DeviceProducer, clear_event, open_consumer, open_producer
from ithaka.comm_ext.channel.device import DeviceBytes, DeviceDelivery, DeviceError
from ithaka.comm_ext.channel.host_shm import HostChannel

SLOT_BYTES = 5000
NOTHING = (0, 0, 0, 0)
DEADLINE_S = 20


class World:
    """One channel, its owner, and a runtime each for producer and consumers, as if they were processes."""

    def __init__(self, num_slots: int = 3, num_consumers: int = 1, policies: Sequence[Policy] = ()) -> None:
        self.channel = HostChannel.create(9, num_slots, SLOT_BYTES, num_consumers, policies, on_device=True)
        self.runtime = FakeRuntime()

    def producer(self, device: int = 0) -> DeviceProducer:
        return open_producer(self.fds(), device, self.runtime)

    def consumer(self, index: int = 0, device: int = 0, num_own_slots: int | None = None) -> DeviceConsumer:
        return open_consumer(self.fds(), index, device, num_own_slots=num_own_slots, runtime=self.runtime)

    def fds(self) -> list[int]:
        return [os.dup(fd) for fd in self.channel.describe()]


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def create(
    stack: contextlib.ExitStack, devices: Sequence[int], num_slots: int = 3, policies: Sequence[Policy] = ()
) -> tuple[World, DeviceProducer, list[DeviceConsumer]]:
    """A producer on device 0 and consumers on ``devices``."""
    world = World(num_slots, len(devices), policies)
    stack.callback(world.channel.close)
    producer = world.producer()
    stack.callback(producer.close)
    consumers = [world.consumer(index, device) for index, device in enumerate(devices)]
    for consumer in consumers:
        stack.callback(consumer.close)
    return world, producer, consumers


def store(data: DeviceBytes, payload: bytes) -> None:
    ctypes.memmove(data.address, payload, len(payload))


def load(data: DeviceBytes, num_bytes: int) -> bytes:
    return ctypes.string_at(data.address, num_bytes)


def message(number: int, stream: int = 0) -> ChannelMessage:
    return ChannelMessage(b"%d" % number, (TensorLayout((30,), "float32", 256), TensorLayout((10,), "uint8")), stream)


def publish(producer: DeviceProducer, number: int, stream: int = 0) -> int:
    slot = producer.claim()
    assert slot is not None
    store(slot.data, bytes([number]) * 10)
    store(slot.data.part(256, 120), bytes([number]) * 120)
    return producer.publish(slot, message(number, stream))


def read(delivery: DeviceDelivery) -> int:
    number = int(delivery.message.header)
    assert load(delivery.data, 10) == bytes([number]) * 10
    assert load(delivery.data.part(256, 120), 120) == bytes([number]) * 120
    return number


def take(consumer: DeviceConsumer) -> DeviceDelivery:
    delivery = consumer.take()
    assert delivery is not None
    return delivery


def take_number(consumer: DeviceConsumer) -> int:
    delivery = take(consumer)
    number = read(delivery)
    consumer.release(delivery)
    return number


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


def wait_readable(fd: int) -> None:
    assert select.select([fd], [], [], DEADLINE_S)[0], "nobody wakes"


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


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = threading.Event()
    for _ in range(2000):
        if is_so():
            return
        deadline.wait(0.005)
    raise AssertionError("it never came to be")


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


def test_a_forgotten_release_and_forgotten_sides_warn(stack: contextlib.ExitStack) -> None:
    world = World()
    stack.callback(world.channel.close)
    producer, consumer = world.producer(), world.consumer(device=1)
    publish(producer, 1)
    delivery = take(consumer)
    with pytest.warns(ResourceWarning, match="channel 9, consumer 0, slot 0: message 1 was never released"):
        del delivery
        gc.collect()
    with pytest.warns(ResourceWarning, match="consumer 0 was never closed"):
        del consumer
        gc.collect()
    with pytest.warns(ResourceWarning, match="producer was never closed"):
        del producer
        gc.collect()
    world.channel.drop_consumer(0)
    wait_until(lambda: world.runtime.live[:2] == (0, 0))


def test_a_device_that_fails_ends_both_sides_with_its_error(stack: contextlib.ExitStack) -> None:
    world, producer, (consumer,) = create(stack, [0])
    world.runtime.hold()
    publish(producer, 1)
    world.runtime.fails.add("wait")
    world.runtime.let_run()
    wait_until(lambda: producer.num_free == 0)
    with pytest.raises(DeviceError, match="channel 9: the device failed: wait failed"):
        producer.claim()
    world.runtime.fails.clear()
    with pytest.raises(ChannelClosedError):
        consumer.take()


@pytest.mark.parametrize("method", ["identity", "allocate", "export"])
def test_a_producer_whose_device_refuses_leaves_nothing(stack: contextlib.ExitStack, method: str) -> None:
    world = World()
    before = len(os.listdir("/proc/self/fd"))
    world.runtime.fails.add(method)
    with pytest.raises(DeviceError, match=method):
        world.producer()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before and world.runtime.live == NOTHING
    world.runtime.fails.clear()
    with contextlib.closing(world.producer()) as second:
        assert publish(second, 1) == 1
    world.channel.close()


def test_memory_that_can_not_be_reached_is_an_error_and_the_message_released(stack: contextlib.ExitStack) -> None:
    world, producer, (consumer,) = create(stack, [1])
    publish(producer, 1)
    world.runtime.fails.add("reach")
    with pytest.raises(DeviceError, match="reach"):
        consumer.take()
    assert producer.num_free == 3


def test_bad_input_is_named(stack: contextlib.ExitStack) -> None:
    world, producer, (consumer,) = create(stack, [0])
    with pytest.raises(DeviceError, match="device 7"):
        world.consumer(device=7)
    with pytest.raises(ChannelError, match="had a producer"):
        world.producer()
    with pytest.raises(ChannelError, match=r"channel 9 has consumers 0\.\.0, not 1"):
        world.consumer(1)
    with pytest.raises(ChannelError, match="open it with cuda_ipc"):
        host_shm.open_producer(world.fds())
    with pytest.raises(ChannelError, match="open it with cuda_ipc"):
        world.channel.open_consumer(0)
    slot = producer.claim()
    assert slot is not None
    with pytest.raises(LayoutError, match=r"channel 9, slot 0: .*shape=\(5001,\)"):
        producer.publish(slot, ChannelMessage(b"", (TensorLayout((SLOT_BYTES + 1,), "uint8"),)))
    producer.publish(slot, message(1))
    with pytest.raises(SlotStateError, match=r"channel 9: slot 0 .*float32"):
        producer.publish(slot, message(1))
    producer.close()
    with pytest.raises(ChannelClosedError, match=r"channel 9, slot 0: .*float32"):
        producer.publish(slot, message(1))
    with pytest.raises(ChannelClosedError):
        producer.claim()
    consumer.close()
    with pytest.raises(ChannelClosedError):
        consumer.take()


def test_a_stream_that_the_device_refuses_is_named(stack: contextlib.ExitStack) -> None:
    world, producer, _ = create(stack, [0])
    slot = producer.claim()
    assert slot is not None
    world.runtime.fails.add("record")
    with pytest.raises(DeviceError, match=r"channel 9, slot 0: .*float32.*record failed"):
        producer.publish(slot, message(1))
    world.runtime.fails.clear()
    assert producer.publish(slot, message(1)) == 1


def test_host_channels_are_refused_here() -> None:
    channel = HostChannel.create(9, 1, SLOT_BYTES, 1)
    for opens in (
        lambda fds: open_producer(fds, 0, FakeRuntime()),
        lambda fds: open_consumer(fds, 0, 0, runtime=FakeRuntime()),
    ):
        with pytest.raises(ChannelError, match="open it with host_shm"):
            opens([os.dup(fd) for fd in channel.describe()])
    channel.close()


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

    cycle(0)
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    for number in range(30):
        cycle(number % 2)
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before
