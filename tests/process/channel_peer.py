"""The other side of a channel in its own process: obeys lines on stdin, answers each with one line on stdout."""

from __future__ import annotations

import select
import sys
from collections.abc import Iterator

import numpy as np

from ithaka.comm_ext.channel.base import ChannelClosedError, ChannelMessage, Delivery, Slot, TensorLayout
from ithaka.comm_ext.channel.host_shm import HostConsumer, HostProducer, clear_event, open_consumer, open_producer

ITEMS = 50_000


def write(slot: Slot, number: int) -> ChannelMessage:
    np.frombuffer(slot.data, np.uint32, ITEMS)[:] = number
    return ChannelMessage(b"%d" % number, (TensorLayout((ITEMS,), "uint32"),))


def read(delivery: Delivery) -> int:
    """The delivery's number. Raises ValueError when bytes, header and layout do not agree."""
    values = np.frombuffer(delivery.data, np.uint32, ITEMS)
    number = int(values[0])
    if (values != number).any() or delivery.message.header != b"%d" % number:
        raise ValueError(f"message {delivery.sequence} is torn")
    return number


def deliveries(consumer: HostConsumer) -> Iterator[Delivery]:
    """Every message until the end of the channel."""
    while True:
        try:
            delivery = consumer.take()
        except ChannelClosedError:
            return
        if delivery is None:
            select.select([consumer.ready_fd()], [], [])
            clear_event(consumer.ready_fd())
        else:
            yield delivery


def take_all(consumer: HostConsumer) -> list[tuple[int, int]]:
    """Sequence and number of every message until the end of the channel; each is released."""
    seen = []
    for delivery in deliveries(consumer):
        seen.append((delivery.sequence, read(delivery)))
        consumer.release(delivery)
    return seen


def claim(producer: HostProducer) -> Slot:
    while (slot := producer.claim()) is None:
        select.select([producer.free_fd()], [], [])
        clear_event(producer.free_fd())
    return slot


def produce(producer: HostProducer) -> None:
    slot: Slot | None = None
    message: ChannelMessage | None = None
    for line in sys.stdin:
        match line.split():
            case ["claim"]:
                slot = claim(producer)
                answer("claimed")
            case ["write", number] if slot is not None:
                message = write(slot, int(number))
                answer("written")
            case ["publish"] if slot is not None and message is not None:
                answer(f"published {producer.publish(slot, message)}")
            case ["stream", first, last]:
                for number in range(int(first), int(last) + 1):
                    slot = claim(producer)
                    producer.publish(slot, write(slot, number))
                answer("streamed")
            case ["close"]:
                producer.close()
                answer("closed")
            case _:
                raise ValueError(line)


def consume(consumer: HostConsumer) -> None:
    held: list[Delivery] = []
    stream = deliveries(consumer)
    for line in sys.stdin:
        match line.split():
            case ["take"]:
                delivery = next(stream, None)
                if delivery is None:
                    answer("end")
                else:
                    held.append(delivery)
                    answer(f"{delivery.sequence} {read(delivery)}")
            case ["release"]:
                consumer.release(held.pop(0))
                answer("released")
            case ["stream"]:
                for delivery in stream:
                    answer(f"{delivery.sequence} {read(delivery)}")
                    consumer.release(delivery)
                answer("end")
            case _:
                raise ValueError(line)


def answer(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    role, *fds = sys.argv[1:]
    if role == "producer":
        produce(open_producer([int(fd) for fd in fds]))
    else:
        consume(open_consumer([int(fd) for fd in fds], int(role)))
