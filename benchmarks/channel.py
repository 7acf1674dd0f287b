"""The tensor channel: between two GPUs beside a raw peer copy and torch.multiprocessing's queue, and in host memory.

``python -m benchmarks.channel [--out RESULTS.json] [--seconds 3] [--messages 100000] [--device-only]``. Without a GPU only the
rows of host memory are measured; with one GPU producer and consumers share it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import queue
import random
import select
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from multiprocessing import reduction
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ithaka.comm_ext.channel import tensors
from ithaka.comm_ext.channel.base import ChannelClosedError, ChannelMessage, TensorLayout
from ithaka.comm_ext.channel.cuda_ipc import DeviceConsumer, DeviceProducer, clear_event, open_consumer, open_producer
from ithaka.comm_ext.channel.device import DeviceSlot
from ithaka.comm_ext.channel.host_shm import HostChannel

MB = 1_000_000
SMALL_BYTES, LARGE_BYTES = MB, 64 * MB
IN_FLIGHT = 3
LATENCY_HZ = 1000
NUM_KEPT = 10_000
"""Newest latencies and arrivals that a consumer keeps, so that the measure does not grow itself."""


@dataclass(frozen=True)
class Row:
    """One line of the table: what was measured, and the values by their names with units."""

    name: str
    values: dict[str, float | str] = field(default_factory=dict)


@dataclass(frozen=True)
class Seen:
    """What a consumer saw: publish → may read in µs and arrivals in ns of the newest messages, footprints by and by."""

    num_taken: int
    latencies_us: list[float]
    arrivals_ns: list[int]
    footprints: list[tuple[int, int, int]]


def wait(fd: int) -> None:
    select.select([fd], [], [])
    clear_event(fd)


def claim(producer: DeviceProducer) -> DeviceSlot:
    while (slot := producer.claim()) is None:
        wait(producer.free_fd())
    return slot


def footprint(device: int) -> tuple[int, int, int]:
    """This process's memory in bytes and its descriptors, and the free bytes of the device."""
    # First: torch's first question to the device opens descriptors.
    free_bytes = torch.cuda.mem_get_info(device)[0]
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir("/proc/self/fd")), free_bytes


def consume(fds: list[Any], device: int, results: Connection, spins: bool) -> None:
    """Take until the end, asleep or awake in between; sends what it saw."""
    torch.cuda.set_device(device)
    consumer = open_consumer([fd.detach() for fd in fds], 0, device)
    latencies_us: deque[float] = deque(maxlen=NUM_KEPT)
    arrivals_ns: deque[int] = deque(maxlen=NUM_KEPT)
    footprints: list[tuple[int, int, int]] = []
    num_taken = 0
    results.send("ready")
    try:
        while True:
            delivery = consumer.take()
            if delivery is None:
                if not spins:
                    wait(consumer.ready_fd())
                continue
            now_ns = time.monotonic_ns()
            latencies_us.append((now_ns - int.from_bytes(delivery.message.header[:8], "little")) / 1000)
            arrivals_ns.append(now_ns)
            consumer.release(delivery)
            num_taken += 1
            if num_taken % 5000 == 0:
                footprints.append(footprint(device))
    except ChannelClosedError:
        consumer.close()
        results.send(Seen(num_taken, list(latencies_us), list(arrivals_ns), footprints))


class Consumer:
    """A consumer in a process of its own, of a channel that this process owns."""

    def __init__(self, device: int, num_slots: int, slot_bytes: int, *, spins: bool = False) -> None:
        self.channel = HostChannel.create(1, num_slots, slot_bytes, 1, on_device=True)
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        fds = [reduction.DupFd(fd) for fd in self.channel.describe()]
        self._process = context.Process(target=consume, args=(fds, device, theirs, spins))
        self._process.start()
        assert self._ours.recv() == "ready"
        self.producer = open_producer([os.dup(fd) for fd in self.channel.describe()], 0)

    def cpu_s(self) -> float:
        """What its process has used."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def finish(self) -> Seen:
        """End the channel; what the consumer saw."""
        self.producer.close()
        seen: Seen = self._ours.recv()
        self._process.join()
        self.channel.close()
        return seen


def publish(producer: DeviceProducer, slot: DeviceSlot, num_bytes: int, stream: int) -> None:
    header = time.monotonic_ns().to_bytes(8, "little")
    producer.publish(slot, ChannelMessage(header, (TensorLayout((num_bytes,), "uint8"),)), stream)


def spread_us(latencies_us: list[float]) -> dict[str, float | str]:
    """Percentiles but for the first tenth, in which memory is mapped and code is warmed."""
    warm = latencies_us[len(latencies_us) // 10 :]
    p50, p99 = np.percentile(warm, (50, 99))
    return {"p50_us": round(float(p50), 1), "p99_us": round(float(p99), 1), "messages": len(warm)}


def latency(device: int, seconds: float, *, is_complete: bool, spins: bool = False) -> Row:
    """Small messages one at a time; their data complete at publish, or still being written."""
    consumer = Consumer(device, 4, SMALL_BYTES, spins=spins)
    stream = torch.cuda.Stream(0)  # type: ignore[no-untyped-call]
    number = 0
    started = time.perf_counter()
    while (now := time.perf_counter() - started) < seconds:
        time.sleep(max(0.0, number / LATENCY_HZ - now))
        slot = claim(consumer.producer)
        with torch.cuda.stream(stream):
            tensors.view(slot.data, TensorLayout((SMALL_BYTES,), "uint8")).fill_(number % 256)
        if is_complete:
            stream.synchronize()
        publish(consumer.producer, slot, SMALL_BYTES, stream.cuda_stream)
        number += 1
    state = "complete at publish" if is_complete else "being written at publish"
    consumer_state = ", consumer awake" if spins else ""
    return Row(
        f"1 MB, device 0 → {device}, {state}{consumer_state}: publish → may read", spread_us(consumer.finish().latencies_us)
    )


def sustained(device: int, seconds: float, peer_copy_gbps: float) -> Row:
    """Large messages as fast as slots come free."""
    consumer = Consumer(device, IN_FLIGHT, LARGE_BYTES)
    stream = torch.cuda.Stream(0)  # type: ignore[no-untyped-call]
    started = time.perf_counter()
    while time.perf_counter() - started < seconds:
        publish(consumer.producer, claim(consumer.producer), LARGE_BYTES, stream.cuda_stream)
    rate = rate_gbps(consumer.finish().arrivals_ns, LARGE_BYTES)
    share = 100 * rate / peer_copy_gbps
    return Row(
        f"64 MB, device 0 → {device}, {IN_FLIGHT} in flight, sustained",
        {"gbps": round(rate, 1), "of_peer_copy_percent": round(share, 1)},
    )


def rate_gbps(arrivals_ns: list[int], num_bytes: int) -> float:
    """From the arrivals but for the first tenth."""
    warm = arrivals_ns[len(arrivals_ns) // 10 :]
    return num_bytes * (len(warm) - 1) / (warm[-1] - warm[0])


def peer_copy(device: int) -> float:
    """GB/s of torch's copy from device 0, back to back."""
    source = torch.empty(LARGE_BYTES, dtype=torch.uint8, device="cuda:0")
    target = torch.empty(LARGE_BYTES, dtype=torch.uint8, device=f"cuda:{device}")
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    rates: list[float] = []
    for _ in range(5):
        torch.cuda.synchronize()
        begin.record()
        for _ in range(40):
            target.copy_(source, non_blocking=True)
        end.record()
        end.synchronize()
        rates.append(40 * LARGE_BYTES / begin.elapsed_time(end) / 1e6)
    return sorted(rates)[len(rates) // 2]


def same_device(seconds: float) -> Row:
    """Producer and consumer in one process on one device."""
    channel = HostChannel.create(1, IN_FLIGHT, LARGE_BYTES, 1, on_device=True)
    producer = open_producer([os.dup(fd) for fd in channel.describe()], 0)
    consumer: DeviceConsumer = open_consumer([os.dup(fd) for fd in channel.describe()], 0, 0)
    stream = torch.cuda.Stream(0)  # type: ignore[no-untyped-call]
    latencies_us = []
    num_moved_bytes = 0
    started = time.perf_counter()
    while time.perf_counter() - started < seconds:
        slot = claim(producer)
        publish(producer, slot, LARGE_BYTES, stream.cuda_stream)
        delivery = consumer.take()
        while delivery is None:
            delivery = consumer.take()
        latencies_us.append((time.monotonic_ns() - int.from_bytes(delivery.message.header, "little")) / 1000)
        num_moved_bytes += LARGE_BYTES * (delivery.data.address != slot.data.address)
        consumer.release(delivery)
    for side in (producer, consumer, channel):
        side.close()
    return Row("64 MB, same device and process: publish → may read", spread_us(latencies_us) | {"moved_bytes": num_moved_bytes})


def idle_share(device: int, seconds: float) -> Row:
    """What a consumer that waits, after some messages, takes of a core."""
    consumer = Consumer(device, 4, SMALL_BYTES)
    for _ in range(20):
        publish(consumer.producer, claim(consumer.producer), SMALL_BYTES, 0)
    time.sleep(0.5)
    before_s, before_cpu_s = time.perf_counter(), consumer.cpu_s()
    time.sleep(seconds)
    share = (consumer.cpu_s() - before_cpu_s) / (time.perf_counter() - before_s)
    consumer.finish()
    return Row(f"a consumer on device {device} that waits", {"of_a_core_percent": round(100 * share, 2)})


def random_layouts(device: int, num_messages: int) -> Row:
    """Memory and descriptors of both processes and the device over many messages of random layouts."""
    consumer = Consumer(device, 8, 4 * MB)
    generator = random.Random(0)
    dtypes = ("uint8", "bfloat16", "float32", "int64")
    footprints = []
    started = time.perf_counter()
    for number in range(num_messages):
        slot = claim(consumer.producer)
        layouts = []
        at_bytes = 0
        for _ in range(generator.randint(1, 5)):
            shape = tuple(generator.randint(1, 30) for _ in range(generator.randint(0, 3)))
            layouts.append(TensorLayout(shape, generator.choice(dtypes), at_bytes))
            at_bytes += 262_144
        header = time.monotonic_ns().to_bytes(8, "little")
        consumer.producer.publish(slot, ChannelMessage(header + bytes(generator.randint(0, 60)), tuple(layouts), number % 3))
        if (number + 1) % 5000 == 0:
            footprints.append(footprint(0))
    elapsed_s = time.perf_counter() - started
    theirs = consumer.finish()
    assert theirs.num_taken == num_messages
    values: dict[str, float | str] = {"messages_per_s": round(num_messages / elapsed_s)}
    for side, seen in (("producer", footprints), ("consumer", theirs.footprints)):
        if len(seen) > 1:
            warm, last = seen[len(seen) // 4], seen[-1]
            values[f"{side}_memory_mib"] = round((last[0] - warm[0]) / 2**20, 2)
            values[f"{side}_descriptors"] = last[1] - warm[1]
            values[f"{side}_device_mib"] = round((warm[2] - last[2]) / 2**20, 2)
    return Row(f"{num_messages} messages of random layouts, device 0 → {device}: growth", values)


def queue_consume(target: str, items: Any, credits: Any, results: Connection) -> None:
    """torch.multiprocessing's queue, as a program would use it: take, copy to the own device, give back."""
    if target != "cpu":
        torch.cuda.set_device(target)
    latencies_us: list[float] = []
    arrivals_ns: list[int] = []
    results.send("ready")
    while (item := items.get()) is not None:
        sent_ns, tensor = item
        mine = tensor.to(target)
        if target != "cpu":
            torch.cuda.current_stream().synchronize()
        now_ns = time.monotonic_ns()
        latencies_us.append((now_ns - sent_ns) / 1000)
        arrivals_ns.append(now_ns)
        del tensor, item, mine
        credits.put(None)
    results.send((latencies_us, arrivals_ns))


def torch_queue(source: str, target: str, seconds: float, num_bytes: int, *, is_paced: bool) -> tuple[list[float], list[int]]:
    """Latencies in µs and arrivals in ns, with as many tensors under way as the channel has slots."""
    context = torch.multiprocessing.get_context("spawn")
    items, credits = context.Queue(), context.Queue()
    ours, theirs = context.Pipe()
    process = context.Process(target=queue_consume, args=(target, items, credits, theirs))
    process.start()
    ours.recv()
    slots = [torch.zeros(num_bytes, dtype=torch.uint8, device=source) for _ in range(IN_FLIGHT)]
    if source != "cpu":
        torch.cuda.synchronize()
    number = 0
    started = time.perf_counter()
    while (now := time.perf_counter() - started) < seconds:
        if is_paced:
            time.sleep(max(0.0, number / LATENCY_HZ - now))
        if number >= IN_FLIGHT:
            credits.get()
        items.put((time.monotonic_ns(), slots[number % IN_FLIGHT]))
        number += 1
    items.put(None)
    seen: tuple[list[float], list[int]] = ours.recv()
    process.join()
    while True:
        try:
            credits.get_nowait()
        except queue.Empty:
            break
    return seen


def torch_queue_rows(device: int, seconds: float) -> list[Row]:
    places = "cuda:0", f"cuda:{device}"
    latencies_us, _ = torch_queue(*places, seconds, SMALL_BYTES, is_paced=True)
    _, arrivals_ns = torch_queue(*places, seconds, LARGE_BYTES, is_paced=False)
    return [
        Row(f"torch.multiprocessing queue, 1 MB, device 0 → {device}: put → may read", spread_us(latencies_us)),
        Row(
            f"torch.multiprocessing queue, 64 MB, device 0 → {device}, {IN_FLIGHT} in flight",
            {"gbps": round(rate_gbps(arrivals_ns, LARGE_BYTES), 1)},
        ),
    ]


def device_rows(seconds: float, num_messages: int) -> list[Callable[[], list[Row]]]:
    """Each measures when called, so that a row is shown when it is there."""
    device = min(1, torch.cuda.device_count() - 1)
    peer_copy_gbps = peer_copy(device)
    return [
        lambda: [Row(f"peer copy of 64 MB by torch, device 0 → {device}", {"gbps": round(peer_copy_gbps, 1)})],
        lambda: [latency(device, seconds, is_complete=True)],
        lambda: [latency(device, seconds, is_complete=True, spins=True)],
        lambda: [latency(device, seconds, is_complete=False)],
        lambda: [sustained(device, seconds, peer_copy_gbps)],
        lambda: [same_device(seconds)],
        lambda: [idle_share(device, seconds)],
        lambda: torch_queue_rows(device, seconds),
        lambda: [random_layouts(device, num_messages)],
    ]


def host_rows(seconds: float, num_messages: int) -> list[Row]:
    """Of host memory; they need the packages of the encode process."""
    from benchmarks import channel_host

    rows = [Row(name, values) for name, values in channel_host.rows("832x480", seconds, num_messages)]
    frame_bytes = 832 * 480 * 3 // 2
    latencies_us, _ = torch_queue("cpu", "cpu", seconds, frame_bytes, is_paced=True)
    _, arrivals_ns = torch_queue("cpu", "cpu", seconds, frame_bytes, is_paced=False)
    frames_per_s = round(rate_gbps(arrivals_ns, frame_bytes) * 1e9 / frame_bytes)
    name = "torch.multiprocessing queue, host 832x480 I420, bytes untouched: put → may read"
    return [*rows, Row(name, spread_us(latencies_us) | {"frames_per_s": frames_per_s})]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="write the rows as JSON")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each row")
    parser.add_argument("--messages", type=int, default=100_000, help="of random layouts")
    parser.add_argument("--device-only", action="store_true", help="leave out host memory")
    arguments = parser.parse_args()
    machine = (
        f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}, torch {torch.__version__}"
    )
    if torch.cuda.is_available():
        machine += f", {torch.cuda.device_count()} × {torch.cuda.get_device_name(0)}"
    print(machine)
    measures: list[Callable[[], list[Row]]] = []
    if torch.cuda.is_available():
        measures += device_rows(arguments.seconds, arguments.messages)
    if not arguments.device_only:
        measures.append(lambda: host_rows(arguments.seconds, arguments.messages))
    rows: list[Row] = []
    for measure in measures:
        for row in measure():
            rows.append(row)
            print(f"{row.name:84} " + "  ".join(f"{name} {value}" for name, value in row.values.items()), flush=True)
    if arguments.out:
        arguments.out.write_text(json.dumps({"machine": machine, "rows": [asdict(row) for row in rows]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
