"""The tensor channel in host memory between two processes: frames a second, publish → take, idle cost.

``python -m benchmarks.channel_host [--size 832x480] [--seconds 3] [--messages 100000]``
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import select
import time
from collections import deque
from collections.abc import Iterator
from multiprocessing.connection import Connection

import numpy as np
import psutil

from benchmarks.percentiles import percentiles
from ithaka.comm_ext.channel.base import ChannelClosedError, ChannelMessage, Slot, TensorLayout
from ithaka.comm_ext.channel.host_shm import HostChannel, HostConsumer, HostProducer, clear_event, open_consumer
from ithaka.workers import wire
from ithaka.workers.contract import FrameHeader

NUM_SLOTS = 8
PACED_HZ = 100
NUM_KEPT = 10_000
"""Newest latencies that are kept, so that the measure does not grow itself."""


def consume(fds: list[int], results: Connection, copies_out: bool) -> None:
    """Take until the end; sends (frames, publish → take in µs)."""
    consumer = open_consumer(fds, 0)
    copied = bytearray(2**22)
    latencies_us: deque[float] = deque(maxlen=NUM_KEPT)
    num_taken = 0
    results.send("ready")
    try:
        while True:
            delivery = consumer.take()
            if delivery is None:
                wait(consumer)
                continue
            header = wire.decode_as(FrameHeader, delivery.message.header)
            latencies_us.append((time.monotonic_ns() - header.generated_ns) / 1000)
            if copies_out:
                copied[: len(delivery.data)] = delivery.data
            consumer.release(delivery)
            num_taken += 1
    except ChannelClosedError:
        results.send((num_taken, list(latencies_us)))


def wait(consumer: HostConsumer) -> None:
    select.select([consumer.ready_fd()], [], [])
    clear_event(consumer.ready_fd())


def claim(producer: HostProducer) -> Slot:
    while (slot := producer.claim()) is None:
        select.select([producer.free_fd()], [], [])
        clear_event(producer.free_fd())
    return slot


def publish(producer: HostProducer, slot: Slot, seq: int, shape: tuple[int, int]) -> None:
    header = FrameHeader("session", seq, seq // 4, 0, seq - 1, time.monotonic_ns())
    producer.publish(slot, ChannelMessage(wire.encode(header), (TensorLayout(shape, "uint8"),)))


def run(shape: tuple[int, int], seconds: float, *, writes: bool, copies_out: bool, hz: float) -> tuple[float, list[float]]:
    """Frames a second and publish → take in µs; ``hz`` 0 goes as fast as slots come free."""
    channel = HostChannel.create(1, NUM_SLOTS, shape[0] * shape[1], 1)
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(
        target=consume, args=([os.dup(fd) for fd in channel.describe()], theirs, copies_out)
    )
    child.start()
    ours.recv()
    producer = channel.open_producer()
    frame = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    started = time.perf_counter()
    seq = 0
    while (now := time.perf_counter() - started) < seconds:
        if hz:
            time.sleep(max(0.0, seq / hz - now))
        slot = claim(producer)
        if writes:
            np.copyto(np.frombuffer(slot.data, np.uint8).reshape(shape), frame)
        seq += 1
        publish(producer, slot, seq, shape)
    producer.close()
    num_frames, latencies_us = ours.recv()
    elapsed_s = time.perf_counter() - started
    child.join()
    channel.close()
    return num_frames / elapsed_s, latencies_us


def idle_core_percent(seconds: float) -> float:
    """CPU that a consumer uses while nothing comes, in percent of a core."""
    channel = HostChannel.create(1, NUM_SLOTS, 4096, 1)
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(
        target=consume, args=([os.dup(fd) for fd in channel.describe()], theirs, False)
    )
    child.start()
    ours.recv()
    process = psutil.Process(child.pid)
    before = sum(process.cpu_times()[:2])
    time.sleep(seconds)
    used_s = sum(process.cpu_times()[:2]) - before
    channel.close_producer()
    ours.recv()
    child.join()
    channel.close()
    return 100 * used_s / seconds


def pass_random_layouts(num_messages: int) -> dict[str, float | str]:
    """Growth of both processes over many messages of one to five tensors of random shapes, once the first tenth has gone."""
    channel = HostChannel.create(1, NUM_SLOTS, 2**21, 1)
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(
        target=consume, args=([os.dup(fd) for fd in channel.describe()], theirs, False)
    )
    child.start()
    ours.recv()
    producer = channel.open_producer()
    generator = random.Random(0)
    sides = {"producer": psutil.Process(), "consumer": psutil.Process(child.pid)}
    before: dict[str, tuple[int, int]] = {}
    started = time.perf_counter()
    for seq in range(1, num_messages + 1):
        slot = claim(producer)
        layouts = tuple(
            TensorLayout(
                tuple(generator.randint(1, 30) for _ in range(generator.randint(0, 3))),
                generator.choice(("uint8", "bfloat16", "float32", "int64")),
                position * 262_144,
            )
            for position in range(generator.randint(1, 5))
        )
        header = FrameHeader("session", seq, seq // 4, 0, seq - 1, time.monotonic_ns())
        producer.publish(slot, ChannelMessage(wire.encode(header), layouts, seq % 3))
        if seq == num_messages // 10:
            before = {side: (process.memory_info().rss, process.num_fds()) for side, process in sides.items()}
    values: dict[str, float | str] = {"messages_per_s": round(num_messages / (time.perf_counter() - started))}
    for side, process in sides.items():
        values[f"{side}_memory_mib"] = round((process.memory_info().rss - before[side][0]) / 2**20, 2)
        values[f"{side}_descriptors"] = process.num_fds() - before[side][1]
    producer.close()
    num_taken, _ = ours.recv()
    assert num_taken == num_messages
    child.join()
    channel.close()
    return values


def rows(size: str, seconds: float, num_messages: int) -> Iterator[tuple[str, dict[str, float | str]]]:
    """Name and values of each row, as it is measured."""
    width, height = (int(side) for side in size.split("x"))
    shape = (height * 3 // 2, width)
    for name, writes, copies_out, hz in (
        ("handed over, bytes untouched", False, False, 0),
        ("written, then used in place", True, False, 0),
        ("written, then copied out", True, True, 0),
        (f"written, {PACED_HZ} a second", True, False, PACED_HZ),
    ):
        fps, latencies_us = run(shape, seconds, writes=writes, copies_out=copies_out, hz=hz)
        yield f"host {size} I420, {name}", {"frames_per_s": round(fps), "publish_to_take_us": percentiles(latencies_us)}
    yield "host, a consumer that waits", {"core_percent": round(idle_core_percent(seconds), 2)}
    yield f"host, {num_messages} messages of random layouts: growth", pass_random_layouts(num_messages)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="832x480", help="WIDTHxHEIGHT of the I420 frame")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each row")
    parser.add_argument("--messages", type=int, default=100_000, help="of random layouts")
    arguments = parser.parse_args()
    print(f"{NUM_SLOTS} slots, {os.cpu_count()} cores")
    for name, values in rows(arguments.size, arguments.seconds, arguments.messages):
        print(f"{name:50} " + "  ".join(f"{unit} {value}" for unit, value in values.items()))


if __name__ == "__main__":
    main()
