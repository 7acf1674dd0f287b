"""Decoding beside the step on one device: after the chunk's own kernels, and behind the next step's."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from ithaka.comm_ext.channel.host_shm import HostChannel, HostConsumer, clear_event
from ithaka.workers.child_socket import ChildSocket
from ithaka.workers.contract import OpenOnRank
from ithaka.workers.families.base import FamilySession, FamilySpec
from ithaka.workers.families.stages import Chunk
from ithaka.workers.fault import FaultPoints
from ithaka.workers.pulse import Pulse
from ithaka.workers.stages.contract import LatentsHeader
from ithaka.workers.stages.overlapped import STEP_PRIORITY, OverlappedOutlet

pytestmark = pytest.mark.gpu
WAIT_S = 20
DEVICE = torch.device("cuda", 0)
MILLISECOND_CYCLES = 2_000_000
SPEC = FamilySpec("m", "f", width=64, height=32, fps=16, chunk_frames=1, session_memory_bytes=0)


class SlowDecoder:
    """Grey pictures of the latents' value, after ``hold_ms`` on the device; ``launched`` has an event a chunk."""

    spec = SPEC

    def __init__(self, hold_ms: int) -> None:
        self.hold_ms = hold_ms
        self.streams: set[torch.cuda.Stream] = set()
        self.launched: list[torch.cuda.Event] = []
        self.changed = threading.Condition()

    def open_session(self, session_id: str, *, seed: int, prompt: str, options: dict[str, Any]) -> FamilySession:
        return object()

    def decode(self, session: FamilySession, chunk: Chunk, progress: Callable[[], None]) -> torch.Tensor:
        progress()
        torch.cuda._sleep(self.hold_ms * MILLISECOND_CYCLES)  # type: ignore[no-untyped-call]
        value = chunk.tensors[0].max().to(torch.uint8)
        frames = value.expand(1, SPEC.height * 3 // 2, SPEC.width).contiguous()
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record()
        with self.changed:
            self.streams.add(torch.cuda.current_stream())
            self.launched.append(done)
            self.changed.notify_all()
        return frames

    def close_session(self, session: FamilySession) -> None:
        pass

    def wait(self, count: int) -> torch.cuda.Event:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.launched) >= count, WAIT_S)
            return self.launched[count - 1]


@contextmanager
def outlet_of(decoder: SlowDecoder) -> Iterator[tuple[OverlappedOutlet, HostConsumer]]:
    ours, theirs = ChildSocket.pair()
    channel = HostChannel.create(1, 8, SPEC.width * SPEC.height * 3 // 2, 1)
    frames = channel.open_consumer(0)
    outlet = OverlappedOutlet(decoder, DEVICE, check=lambda: None, pulse=Pulse(theirs, 60), faults=FaultPoints())
    outlet.attach([os.dup(fd) for fd in channel.describe()])
    outlet.open_session(OpenOnRank("s", 0, ""))
    with torch.cuda.stream(torch.cuda.Stream(DEVICE, priority=STEP_PRIORITY)):  # type: ignore[no-untyped-call]
        try:
            yield outlet, frames
        finally:
            outlet.close()
            for end in (frames, channel, ours, theirs):
                end.close()


def make(value: int, hold_ms: int) -> Chunk:
    """A step on the current stream that ends after ``hold_ms``."""
    latents = torch.zeros(4096, device=DEVICE)
    torch.cuda._sleep(hold_ms * MILLISECOND_CYCLES)  # type: ignore[no-untyped-call]
    return Chunk((latents.fill_(value),), 1)


def first_byte(frames: HostConsumer) -> int:
    while (delivery := frames.take()) is None:
        assert select.select([frames.ready_fd()], [], [], WAIT_S)[0]
        clear_event(frames.ready_fd())
    value = delivery.data[0]
    frames.release(delivery)
    return value


def wait_for_room(outlet: OverlappedOutlet) -> None:
    while outlet.room_frames() < 1:
        ready = select.select(outlet.wake_fds(), [], [], WAIT_S)[0]
        assert ready
        for fd in ready:
            clear_event(fd)


def test_a_chunk_is_decoded_after_its_own_step_whatever_was_launched_since() -> None:
    with outlet_of(SlowDecoder(hold_ms=1)) as (outlet, frames):
        for chunk in range(40):
            wait_for_room(outlet)
            outlet.publish(make(chunk + 1, hold_ms=3), LatentsHeader("s", chunk, chunk + 1, 1, 0))
            if chunk >= 2:
                assert first_byte(frames) == chunk - 1
        assert [first_byte(frames) for _ in range(2)] == [39, 40]


def test_the_next_step_ends_while_a_chunk_is_held_in_decode() -> None:
    decoder = SlowDecoder(hold_ms=0)
    with outlet_of(decoder) as (outlet, frames):
        # Memory and kernels that a stream needs for the first time may wait for what runs.
        outlet.publish(make(6, hold_ms=1), LatentsHeader("s", 0, 1, 1, 0))
        assert first_byte(frames) == 6
        wait_for_room(outlet)
        decoder.hold_ms = 1000
        outlet.publish(make(7, hold_ms=0), LatentsHeader("s", 1, 2, 1, 0))
        decoded = decoder.wait(2)
        make(8, hold_ms=1)
        stepped = torch.cuda.Event()  # type: ignore[no-untyped-call]
        stepped.record()
        stepped.synchronize()
        assert not decoded.query()  # type: ignore[no-untyped-call]
        assert first_byte(frames) == 7
        (stream,) = decoder.streams
        assert stream.priority == 0 and torch.cuda.current_stream().priority == STEP_PRIORITY
