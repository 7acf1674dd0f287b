"""What the channel in device memory refuses, and how: a device that fails, bad input, sides that are forgotten."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator

import pytest
from tests.unit.device_sides import (
    NOTHING,
    SLOT_BYTES,
    World,
    create,
    message,
    publish,
    take,
    take_number,
    wait_until,
)
from tests.unit.fake_device import FakeRuntime

from ithaka.comm_ext.channel import host_shm
from ithaka.comm_ext.channel.base import (
    ChannelClosedError,
    ChannelError,
    ChannelMessage,
    LayoutError,
    SlotStateError,
    TensorLayout,
)
from ithaka.comm_ext.channel.cuda_ipc import open_consumer, open_producer
from ithaka.comm_ext.channel.device import DeviceError
from ithaka.comm_ext.channel.host_shm import HostChannel


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


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


@pytest.mark.parametrize("method", ["copy", "wait"])
def test_a_device_that_fails_a_pull_ends_the_consumer_with_its_error(stack: contextlib.ExitStack, method: str) -> None:
    world, producer, (consumer,) = create(stack, [1])
    publish(producer, 1)
    publish(producer, 2)
    world.runtime.fails.add(method)
    for _ in range(2):
        with pytest.raises(DeviceError, match=f"channel 9, consumer 0: the device failed: {method} failed"):
            consumer.take()
    consumer.close()
    with pytest.raises(ChannelClosedError, match="every consumer is gone"):
        producer.claim()
    producer.close()
    gc.collect()
    wait_until(lambda: world.runtime.live[:3] == (0, 0, 0))


def test_a_consumer_without_room_on_its_device_says_so_and_lets_go(stack: contextlib.ExitStack) -> None:
    world, producer, (consumer,) = create(stack, [1])
    publish(producer, 1)
    world.runtime.fails.add("allocate")
    with pytest.raises(DeviceError, match="channel 9, consumer 0: no slots of its own on device 1: allocate failed"):
        consumer.take()
    assert producer.num_free == 3
    world.runtime.fails.clear()
    publish(producer, 2)
    assert take_number(consumer) == 2


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
