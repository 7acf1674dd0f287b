"""A channel in device memory that is none (``fake_device``), and numbered messages to send through it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import threading
from collections.abc import Callable, Sequence

from tests.unit.fake_device import FakeRuntime

from ithaka.comm_ext.channel.base import (
    ChannelMessage,
    Policy,
    TensorLayout,
)
from ithaka.comm_ext.channel.cuda_ipc import DeviceConsumer, DeviceProducer, open_consumer, open_producer
from ithaka.comm_ext.channel.device import DeviceBytes, DeviceDelivery
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


def wait_readable(fd: int) -> None:
    assert select.select([fd], [], [], DEADLINE_S)[0], "nobody wakes"


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = threading.Event()
    for _ in range(2000):
        if is_so():
            return
        deadline.wait(0.005)
    raise AssertionError("it never came to be")
