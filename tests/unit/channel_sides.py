"""Both sides of a host channel in one process, and numbered messages to send through it."""

from __future__ import annotations

import contextlib
import select
from collections.abc import Sequence

import numpy as np

from ithaka.comm_ext.channel.base import ChannelMessage, Delivery, Policy, TensorLayout
from ithaka.comm_ext.channel.host_shm import HostChannel, HostConsumer, HostProducer

SLOT_BYTES = 5000


def create(
    stack: contextlib.ExitStack,
    num_slots: int = 3,
    num_consumers: int = 1,
    slot_bytes: int = SLOT_BYTES,
    policies: Sequence[Policy] = (),
) -> tuple[HostChannel, HostProducer, list[HostConsumer]]:
    channel = HostChannel.create(9, num_slots, slot_bytes, num_consumers, policies)
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


def take_number(consumer: HostConsumer) -> int:
    """The next message's number; it is released."""
    delivery = take(consumer)
    number = read(delivery)
    consumer.release(delivery)
    return number


def is_readable(fd: int) -> bool:
    return bool(select.select([fd], [], [], 0)[0])
