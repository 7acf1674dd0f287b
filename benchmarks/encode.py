"""The encode process on one core: CPU a frame, sessions a core, time from a frame's slot to its packet.

``python -m benchmarks.encode [--size 832x480] [--fps 16] [--sessions 8] [--pixels lossy] [--seconds 6]``
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import psutil

from benchmarks.percentiles import percentiles
from ithaka.comm_ext.channel.base import ChannelClosedError, ChannelMessage, TensorLayout
from ithaka.comm_ext.channel.host_shm import HostChannel, HostConsumer, HostProducer, clear_event
from ithaka.workers import contract, wire
from ithaka.workers.child_socket import ChildSocket

NUM_PICTURES = 32
WARM_UP_TICKS = 4

Picture = npt.NDArray[np.uint8]


@dataclass
class Received:
    """What the packet channel brought. Times in milliseconds."""

    num_packets: int = 0
    num_bytes: int = 0
    slot_to_packet_ms: list[float] = field(default_factory=list)
    slot_to_server_ms: list[float] = field(default_factory=list)


def pictures(width: int, height: int) -> list[Picture]:
    """A texture of blurred noise that pans two pixels a frame, with a little grain."""
    random = np.random.default_rng(0)
    rows = height * 3 // 2
    texture = random.normal(128, 60, (rows, width + 2 * NUM_PICTURES))
    for axis in (0, 1):
        for _ in range(3):
            texture = np.mean([np.roll(texture, shift, axis) for shift in range(-2, 3)], axis=0)
    texture = 128 + (texture - 128) * 6
    grain = [random.normal(0, 1, (rows, width)) for _ in range(NUM_PICTURES)]
    return [(texture[:, 2 * n : 2 * n + width] + grain[n]).clip(16, 235).astype(np.uint8) for n in range(NUM_PICTURES)]


def start_encode(preset: str, core: int) -> tuple[ChildSocket, subprocess.Popen[bytes]]:
    ours, theirs = ChildSocket.pair()
    fd = theirs.detach()
    arguments = ["--control-fd", str(fd), "--parent-pid", str(os.getpid())]
    process = subprocess.Popen([sys.executable, "-m", contract.ENCODE_ENTRY, *arguments], pass_fds=[fd])
    os.close(fd)
    os.sched_setaffinity(process.pid, {core})
    ours.send(contract.ConfigureEncode("encode-0", 20, preset, 2.0, 0.25, log_level="warning"))
    return ours, process


def hear(control: ChildSocket, kind: type[contract.Report]) -> None:
    while True:
        received = control.receive()
        if received is None or isinstance(received[0], contract.EncoderFailed):
            raise RuntimeError(f"encode failed: {received}")
        if isinstance(received[0], kind):
            return


def publish(producer: HostProducer, session_id: str, tick: int, picture: Picture) -> None:
    while (slot := producer.claim()) is None:
        select.select([producer.free_fd()], [], [])
        clear_event(producer.free_fd())
    np.copyto(np.frombuffer(slot.data, np.uint8, picture.size).reshape(picture.shape), picture)
    header = contract.FrameHeader(session_id, tick + 1, tick, 0, tick, time.monotonic_ns())
    producer.publish(slot, ChannelMessage(wire.encode(header), (TensorLayout(picture.shape, "uint8"),)))


def receive(consumer: HostConsumer, received: Received) -> None:
    with contextlib.suppress(ChannelClosedError):
        while True:
            delivery = consumer.take()
            if delivery is None:
                select.select([consumer.ready_fd()], [], [])
                clear_event(consumer.ready_fd())
                continue
            header = wire.decode_as(contract.PacketHeader, delivery.message.header)
            received.num_packets += 1
            received.num_bytes += delivery.message.tensors[0].shape[0]
            received.slot_to_packet_ms.append((header.encoded_ns - header.generated_ns) / 1e6)
            received.slot_to_server_ms.append((time.monotonic_ns() - header.generated_ns) / 1e6)
            consumer.release(delivery)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="832x480", help="WIDTHxHEIGHT")
    parser.add_argument("--fps", type=int, default=16)
    parser.add_argument("--sessions", type=int, default=8)
    parser.add_argument("--pixels", choices=("lossy", "exact"), default="lossy")
    parser.add_argument("--preset", default="veryfast")
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--core", type=int, default=0, help="where encode runs")
    arguments = parser.parse_args()
    width, height = (int(side) for side in arguments.size.split("x"))
    sources = pictures(width, height)

    frames = HostChannel.create(1, 2 * arguments.sessions, sources[0].size, 1)
    packets = HostChannel.create(2, 64, 2 * sources[0].size + 4096, 1)
    # Leader and server live on the other cores, where there are any.
    os.sched_setaffinity(0, os.sched_getaffinity(0) - {arguments.core} or {arguments.core})
    control, process = start_encode(arguments.preset, arguments.core)
    control.send(contract.AttachPackets(2), packets.describe())
    control.send(contract.AttachFrames(1), frames.describe())
    for number in range(arguments.sessions):
        control.send(contract.OpenEncoder(f"s{number}", width, height, arguments.fps, arguments.pixels))
        hear(control, contract.EncoderOpened)
    received = Received()
    receiver = threading.Thread(target=receive, args=(packets.open_consumer(0), received))
    receiver.start()
    reader = threading.Thread(target=lambda: [None for _ in iter(control.receive, None)], daemon=True)
    reader.start()

    producer = frames.open_producer()
    child = psutil.Process(process.pid)
    num_ticks = int(arguments.seconds * arguments.fps)
    started, cpu_before_s = time.perf_counter(), sum(child.cpu_times()[:2])
    for tick in range(num_ticks):
        for number in range(arguments.sessions):
            # The sessions' frames are spread over the tick, as clocks of their own would.
            due_s = (tick + number / arguments.sessions) / arguments.fps
            time.sleep(max(0.0, started + due_s - time.perf_counter()))
            publish(producer, f"s{number}", tick, sources[(tick + number) % NUM_PICTURES])
    late_s = time.perf_counter() - started - num_ticks / arguments.fps
    while producer.num_free < 2 * arguments.sessions:
        select.select([producer.free_fd()], [], [])
        clear_event(producer.free_fd())
    cpu_ms = 1000 * (sum(child.cpu_times()[:2]) - cpu_before_s) / (num_ticks * arguments.sessions)
    rss_mb = child.memory_info().rss / 1e6
    control.send(contract.Shutdown())
    process.wait()
    receiver.join()

    a = arguments
    kib = received.num_bytes / received.num_packets / 1024
    print(f"{a.size}, {a.fps} fps, {a.pixels}, {a.preset}, {a.sessions} sessions, encode on one core")
    print(f"packets {received.num_packets} of {num_ticks * a.sessions}, {kib:.1f} KiB each; late at the end {late_s:.3f} s")
    print(f"CPU {cpu_ms:.2f} ms a frame, so {1000 / (a.fps * cpu_ms):.1f} sessions a core; memory of encode {rss_mb:.0f} MB")
    print(f"slot → packet {percentiles(received.slot_to_packet_ms)} ms")
    print(f"slot → server {percentiles(received.slot_to_server_ms)} ms")


if __name__ == "__main__":
    main()
