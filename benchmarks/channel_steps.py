"""Where the time goes between publish and the consumer's read, step by step: 1 MB messages between two GPUs.

``python -m benchmarks.channel_steps [--seconds 2] [--hz 1000]``: percentiles of the time since publish was called at which each
step was done; the data are complete at publish. With one GPU the consumer copies as if it had another, and the
producer writes nothing.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Iterable, Iterator
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch

from benchmarks.channel import SMALL_BYTES, claim, wait
from ithaka.comm_ext.channel import tensors
from ithaka.comm_ext.channel.base import ChannelClosedError, ChannelMessage, TensorLayout
from ithaka.comm_ext.channel.cuda_ipc import open_consumer, open_producer
from ithaka.comm_ext.channel.cuda_runtime import CudaRuntime
from ithaka.comm_ext.channel.host_shm import HostChannel

Stamps = dict[str, int]
_WRITING_S = 50e-6


class StampedRuntime(CudaRuntime):
    """Notes in ``stamps`` when the device was asked, in ns. ``is_elsewhere``: its devices seem to be none of the others'."""

    def __init__(self, *, is_elsewhere: bool = False) -> None:
        super().__init__()
        self.stamps: Stamps = {}
        self._is_elsewhere = is_elsewhere

    def identity(self, device: int) -> bytes:
        identity = super().identity(device)
        return identity[::-1] if self._is_elsewhere else identity

    def is_idle(self, device: int, stream: int, *, within_us: int = 0) -> bool:
        is_idle = super().is_idle(device, stream, within_us=within_us)
        self.stamps["stream was looked at"] = time.monotonic_ns()
        return is_idle

    def copy(self, *arguments: Any, **named: Any) -> None:
        self.stamps["message taken"] = time.monotonic_ns()
        super().copy(*arguments, **named)
        self.stamps["copy queued"] = time.monotonic_ns()

    def finish(self, device: int, stream: int) -> None:
        self.stamps["copy awaited"] = time.monotonic_ns()
        super().finish(device, stream)
        self.stamps["copy done"] = time.monotonic_ns()


def _consume(fds: list[Any], device: int, results: Connection) -> None:
    torch.cuda.set_device(device)
    runtime = StampedRuntime(is_elsewhere=True)
    consumer = open_consumer([fd.detach() for fd in fds], 0, device, runtime=runtime)
    seen: list[Stamps] = []
    results.send("ready")
    try:
        while True:
            wait(consumer.ready_fd())
            runtime.stamps = {"consumer awake": time.monotonic_ns()}
            while (delivery := consumer.take()) is not None:
                seen.append(runtime.stamps | {"consumer may read": time.monotonic_ns()})
                consumer.release(delivery)
    except ChannelClosedError:
        consumer.close()
        results.send(seen)


def measure(device: int, seconds: float, hz: int) -> list[tuple[str, float, float]]:
    """Step, p50 and p99 in µs since publish was called, in the order of time."""
    channel = HostChannel.create(1, 4, SMALL_BYTES, 1, on_device=True)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_consume, args=([reduction.DupFd(fd) for fd in channel.describe()], device, theirs))
    process.start()
    assert ours.recv() == "ready"
    runtime = StampedRuntime()
    producer = open_producer([os.dup(fd) for fd in channel.describe()], 0, runtime)
    stream = torch.cuda.Stream(0)  # type: ignore[no-untyped-call]
    message = ChannelMessage(b"", (TensorLayout((SMALL_BYTES,), "uint8"),))
    sent: list[Stamps] = []
    started = time.perf_counter()
    while (now := time.perf_counter() - started) < seconds:
        time.sleep(max(0.0, len(sent) / hz - now))
        slot = claim(producer)
        if device != 0:
            with torch.cuda.stream(stream):
                tensors.view(slot.data, message.tensors[0]).fill_(len(sent) % 256)
            stream.synchronize()
        else:
            # Two processes that both ask one device take turns by milliseconds.
            time.sleep(_WRITING_S)
        begun_ns = time.monotonic_ns()
        runtime.stamps = {"begun": begun_ns}
        producer.publish(slot, message, stream.cuda_stream)
        sent.append(runtime.stamps | {"publish returned": time.monotonic_ns()})
    producer.close()
    seen: list[Stamps] = ours.recv()
    process.join()
    channel.close()
    return sorted(_spread(zip(sent, seen, strict=True)), key=lambda step: step[1])


def _spread(messages: Iterable[tuple[Stamps, Stamps]]) -> Iterator[tuple[str, float, float]]:
    warm = [(ours, theirs) for ours, theirs in messages][100:]
    for name in dict.fromkeys([*warm[-1][0], *warm[-1][1]]):
        since_us = [((theirs | ours)[name] - ours["begun"]) / 1000 for ours, theirs in warm if name in theirs | ours]
        p50, p99 = np.percentile(since_us, (50, 99))
        yield name, float(p50), float(p99)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--hz", type=int, default=1000, help="messages a second")
    arguments = parser.parse_args()
    device = min(1, torch.cuda.device_count() - 1)
    print(f"1 MB, device 0 → {device}, {arguments.hz} a second: µs since publish was called")
    for name, p50_us, p99_us in measure(device, arguments.seconds, arguments.hz):
        print(f"{name:24} p50 {p50_us:7.1f}  p99 {p99_us:7.1f}")


if __name__ == "__main__":
    main()
