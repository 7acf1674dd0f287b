"""Decoding on a thread beside the step: the same order, credits and ends as in a process of its own."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from tests.unit.stage_parts import SPEC, WAIT_S, ScriptedDecoder

from ithaka.comm_ext.channel.host_shm import HostChannel, clear_event
from ithaka.workers import wire
from ithaka.workers.child_socket import ChildSocket
from ithaka.workers.contract import FrameHeader, OpenOnRank
from ithaka.workers.families.stages import Chunk
from ithaka.workers.fault import FaultPoints
from ithaka.workers.frame_publisher import BadResultError
from ithaka.workers.group import GroupBrokenError
from ithaka.workers.pulse import Pulse
from ithaka.workers.stages.contract import LatentsHeader
from ithaka.workers.stages.overlapped import OverlappedOutlet


class Bench:
    """The outlet with a channel of ten frames behind it."""

    def __init__(self, decoder: ScriptedDecoder) -> None:
        self.decoder = decoder
        self.broken: list[Exception] = []
        self._ours, theirs = ChildSocket.pair()
        self._theirs = theirs
        self.outlet = OverlappedOutlet(
            decoder, torch.device("cpu"), check=self._check, pulse=Pulse(theirs, 60), faults=FaultPoints()
        )
        self._channel = HostChannel.create(1, 10, 12, 1)
        self.frames = self._channel.open_consumer(0)
        self.outlet.attach([os.dup(fd) for fd in self._channel.describe()])

    def open(self, session_id: str) -> None:
        self.outlet.open_session(OpenOnRank(session_id, 0, ""))

    def publish(self, session_id: str, chunk: int, value: int = 0) -> None:
        header = LatentsHeader(session_id, chunk, 2 * chunk + 1, 2, 0)
        self.outlet.publish(Chunk((torch.tensor([value]),), 2), header)

    def taken(self, count: int) -> list[tuple[str, int, int]]:
        """Session, seq and first byte of so many frames; their slots are free again."""
        found: list[tuple[str, int, int]] = []
        while len(found) < count:
            delivery = self.frames.take()
            if delivery is None:
                assert select.select([self.frames.ready_fd()], [], [], WAIT_S)[0], found
                clear_event(self.frames.ready_fd())
                continue
            header = wire.decode_as(FrameHeader, delivery.message.header)
            found.append((header.session_id, header.seq, delivery.data[0]))
            self.frames.release(delivery)
        return found

    def wait_for_room(self, frames: int) -> None:
        while self.outlet.room_frames() < frames:
            ready = select.select(self.outlet.wake_fds(), [], [], WAIT_S)[0]
            assert ready
            for fd in ready:
                clear_event(fd)

    def end(self) -> None:
        self.decoder.gate.release(1000)
        try:
            self.outlet.close()
        finally:
            self.frames.close()
            self._channel.close()
            self._ours.close()
            self._theirs.close()

    def _check(self) -> None:
        if self.broken:
            raise self.broken[0]


@contextmanager
def bench(decoder: ScriptedDecoder | None = None) -> Iterator[Bench]:
    made = Bench(decoder or ScriptedDecoder())
    try:
        yield made
    finally:
        made.end()


def test_frames_come_in_order_and_the_last_ones_before_the_end() -> None:
    with bench() as made:
        made.open("a")
        made.open("b")
        for session_id, chunk, value in (("a", 0, 10), ("b", 0, 20), ("a", 1, 30)):
            made.wait_for_room(2)
            made.publish(session_id, chunk, value)
        made.outlet.close_session("a", 2, discard=False)
        assert made.taken(6) == [("a", 1, 11), ("a", 2, 11), ("b", 1, 21), ("b", 2, 21), ("a", 3, 32), ("a", 4, 32)]
        made.decoder.events.wait(lambda seen: ("close", "a") in seen)


def test_publish_returns_while_the_chunk_before_is_held_and_two_are_the_most() -> None:
    decoder = ScriptedDecoder(gate=threading.Semaphore(0))
    with bench(decoder) as made:
        made.open("a")
        assert made.outlet.room_frames() == 4
        made.publish("a", 0)
        decoder.events.wait(lambda seen: ("decode", "a", 0) in seen)
        made.publish("a", 1)
        assert made.outlet.room_frames() == 0
        decoder.gate.release()
        made.wait_for_room(2)
        decoder.gate.release()
        assert [seq for _, seq, _ in made.taken(4)] == [1, 2, 3, 4]


def test_slots_of_frames_that_nobody_took_are_no_room() -> None:
    with bench() as made:
        made.open("a")
        for chunk in range(5):
            made.wait_for_room(2)
            made.publish("a", chunk)
        assert made.outlet.room_frames() == 0
        made.taken(2)
        made.wait_for_room(2)


def test_a_discarded_session_s_waiting_chunk_is_not_decoded() -> None:
    decoder = ScriptedDecoder(gate=threading.Semaphore(0))
    with bench(decoder) as made:
        made.open("a")
        made.publish("a", 0, 1)
        decoder.events.wait(lambda seen: ("decode", "a", 1) in seen)
        made.publish("a", 1, 2)
        made.outlet.close_session("a", 2, discard=True)
        made.open("a")
        decoder.gate.release()
        decoder.events.wait(lambda seen: ("close", "a") in seen)
        made.wait_for_room(4)
        assert ("decode", "a", 2) not in decoder.events.all()


@pytest.mark.parametrize("error", [BadResultError("wrong"), GroupBrokenError(1)], ids=["frames", "step"])
def test_what_breaks_there_is_raised_here_and_nothing_is_published(error: Exception) -> None:
    decoder = ScriptedDecoder(num_frames=1 if isinstance(error, BadResultError) else None)
    made = Bench(decoder)
    if isinstance(error, GroupBrokenError):
        made.broken.append(error)
    made.open("a")
    made.publish("a", 0)
    with pytest.raises(type(error)):
        made.wait_for_room(SPEC.chunk_frames * 3)
    assert made.frames.take() is None
    with pytest.raises(type(error)):
        made.end()
