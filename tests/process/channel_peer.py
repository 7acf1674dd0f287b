"""The other side of a channel in its own process: obeys lines on stdin, answers each with one line on stdout."""

from __future__ import annotations

import select
import sys
from collections.abc import Iterator
from typing import Any

from tests.process.channel_memory import MEMORIES, ChannelMemory, read, write

from ithaka.comm_ext.channel.base import ChannelClosedError, ChannelMessage
from ithaka.comm_ext.channel.host_shm import clear_event


def deliveries(consumer: Any) -> Iterator[Any]:
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


def take_all(memory: ChannelMemory, consumer: Any) -> list[tuple[int, int]]:
    """Sequence and number of every message until the end of the channel; each is released."""
    seen = []
    for delivery in deliveries(consumer):
        seen.append((delivery.sequence, read(memory, delivery)))
        consumer.release(delivery)
    return seen


def claim(producer: Any) -> Any:
    while (slot := producer.claim()) is None:
        select.select([producer.free_fd()], [], [])
        clear_event(producer.free_fd())
    return slot


def produce(memory: ChannelMemory, producer: Any) -> None:
    slot: Any = None
    message: ChannelMessage | None = None
    for line in sys.stdin:
        match line.split():
            case ["claim"]:
                slot = claim(producer)
                answer("claimed")
            case ["write", number] if slot is not None:
                message = write(memory, slot, int(number))
                answer("written")
            case ["publish"] if slot is not None and message is not None:
                answer(f"published {producer.publish(slot, message)}")
            case ["stream", first, last]:
                for number in range(int(first), int(last) + 1):
                    slot = claim(producer)
                    producer.publish(slot, write(memory, slot, number))
                answer("streamed")
            case ["close"]:
                producer.close()
                answer("closed")
            case _:
                raise ValueError(line)


def consume(memory: ChannelMemory, consumer: Any) -> None:
    held: list[Any] = []
    stream = deliveries(consumer)
    for line in sys.stdin:
        match line.split():
            case ["take"]:
                delivery = next(stream, None)
                if delivery is None:
                    answer("end")
                else:
                    held.append(delivery)
                    answer(f"{delivery.sequence} {read(memory, delivery)}")
            case ["release"]:
                consumer.release(held.pop(0))
                answer("released")
            case ["dropped"]:
                answer(f"dropped {consumer.num_dropped}")
            case ["stream"]:
                for delivery in stream:
                    answer(f"{delivery.sequence} {read(memory, delivery)}")
                    consumer.release(delivery)
                answer("end")
            case ["close"]:
                consumer.close()
                held.clear()
                answer("closed")
            case _:
                raise ValueError(line)


def answer(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    role, memory_name, device, *fds = sys.argv[1:]
    memory: ChannelMemory = MEMORIES[memory_name]()
    if role == "producer":
        produce(memory, memory.open_producer([int(fd) for fd in fds], int(device)))
    else:
        consume(memory, memory.open_consumer([int(fd) for fd in fds], int(role), int(device)))


if __name__ == "__main__":
    main()
