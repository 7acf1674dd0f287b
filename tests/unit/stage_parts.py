"""A stage's loop on a thread, with a real channel and sockets, and a leader's outlet in front of it."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import torch

from ithaka.comm_ext.channel.base import Policy
from ithaka.workers.child_socket import ChildSocket
from ithaka.workers.contract import OpenOnRank
from ithaka.workers.families.base import FamilySession, FamilySpec
from ithaka.workers.families.stages import Chunk
from ithaka.workers.fault import FaultPoints
from ithaka.workers.group import GroupBrokenError
from ithaka.workers.pulse import Pulse
from ithaka.workers.stages.contract import LatentsHeader
from ithaka.workers.stages.loop import StageLoop
from ithaka.workers.stages.memory import HostMemory, LatentsMemory
from ithaka.workers.stages.outlet import LatentsOutlet

WAIT_S = 20
SPEC = FamilySpec("m", "f", width=4, height=2, fps=1, chunk_frames=2, session_memory_bytes=0)


class Events:
    """What happened, in order, for tests to wait on."""

    def __init__(self) -> None:
        self._seen: list[Any] = []
        self._changed = threading.Condition()

    def add(self, event: Any) -> None:
        with self._changed:
            self._seen.append(event)
            self._changed.notify_all()

    def all(self) -> list[Any]:
        with self._changed:
            return list(self._seen)

    def wait(self, holds: Callable[[list[Any]], bool]) -> list[Any]:
        with self._changed:
            assert self._changed.wait_for(lambda: holds(self._seen), WAIT_S), self._seen
            return list(self._seen)

    def count(self, count: int) -> list[Any]:
        return self.wait(lambda seen: len(seen) >= count)


@dataclass
class Memory:
    """A decoder's session; its chunks depend on those before."""

    session_id: str
    seed: int
    num_decoded: int = 0


@dataclass
class ScriptedDecoder:
    """Frames whose every byte is the latents' first value plus the number of chunks that the session has had."""

    spec: FamilySpec = SPEC
    gate: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(1_000_000))
    """One more chunk may be decoded."""
    events: Events = field(default_factory=Events)
    num_frames: int | None = None
    """Instead of the right number."""

    def open_session(self, session_id: str, *, seed: int, prompt: str, options: dict[str, Any]) -> Memory:
        self.events.add(("open", session_id))
        return Memory(session_id, seed)

    def decode(self, session: FamilySession, chunk: Chunk, progress: Callable[[], None]) -> torch.Tensor:
        assert isinstance(session, Memory)
        value = int(chunk.tensors[0].flatten()[0])
        self.events.add(("decode", session.session_id, value))
        assert self.gate.acquire(timeout=WAIT_S)
        progress()
        session.num_decoded += 1
        num_frames = self.num_frames or chunk.num_frames
        return torch.full((num_frames, 3, 4), value + session.num_decoded, dtype=torch.uint8)

    def close_session(self, session: FamilySession) -> None:
        assert isinstance(session, Memory)
        self.events.add(("close", session.session_id))


class ListSink:
    """Keeps what is published; ``room`` frames at most until more is made."""

    def __init__(self, room: int = 1_000_000) -> None:
        self.events = Events()
        self.is_closed = False
        self._room = room
        self._room_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def attach(self, fds: list[int]) -> None:
        raise AssertionError("not in these tests")

    def room_frames(self) -> int:
        return self._room - sum(int(header.num_frames) for header, _ in self.events.all())

    def make_room(self, frames: int) -> None:
        self._room += frames
        os.eventfd_write(self._room_fd, 1)

    def wake_fds(self) -> tuple[int, ...]:
        return (self._room_fd,)

    def publish(self, chunk: Chunk, header: LatentsHeader) -> None:
        self.events.add((header, int(chunk.tensors[0][0, 0, 0])))

    def close(self) -> None:
        self.is_closed = True
        os.close(self._room_fd)


class StageRig:
    """``with``: leader's outlet here, the stage on a thread; ``error`` is what ended it, if anything did."""

    def __init__(
        self,
        decoder: ScriptedDecoder | None = None,
        sink: ListSink | None = None,
        policies: Sequence[Policy] = ("fifo",),
        latents_bytes: int = 64,
        memories: tuple[LatentsMemory, LatentsMemory] | None = None,
        device: torch.device | None = None,
    ) -> None:
        """``memories``: the leader's and the stage's; latents are made on ``device``."""
        leaders_memory, stages_memory = memories or (HostMemory(), HostMemory())
        self._device = device or torch.device("cpu")
        self.decoder = decoder or ScriptedDecoder()
        self.sink = sink or ListSink()
        self.error: Exception | None = None
        self.checks: list[Exception] = []
        """What the next checks of a step raise."""
        self.server, control = ChildSocket.pair()
        taker, self.leader = ChildSocket.pair()
        self.outlet = LatentsOutlet.connect(
            leaders_memory,
            [taker],
            policies,
            latents_bytes=latents_bytes,
            first_taker=1,
            chunk_frames=SPEC.chunk_frames,
            check=self._check,
            faults=FaultPoints(),
        )
        self.loop = StageLoop(
            control=control,
            leader=self.leader,
            decoder=self.decoder,
            memory=stages_memory,
            sink=self.sink,
            pulse=Pulse(control, 60),
            faults=FaultPoints(),
        )
        self._control, self._taker = control, taker
        self._thread = threading.Thread(target=self._run, name="stage")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.decoder.gate.release(1000)
        # Where it is gone there is nobody to tell.
        with contextlib.suppress(GroupBrokenError, OSError):
            self.outlet.close()
        self.join()
        for end in (self.server, self._control, self.leader):
            end.close()

    def open(self, session_id: str, seed: int = 0) -> None:
        self.outlet.open_session(OpenOnRank(session_id, seed, ""))

    def publish(self, session_id: str, chunk: int, value: int = 0, num_frames: int = 2) -> None:
        header = LatentsHeader(session_id, chunk, 2 * chunk + 1, num_frames, control_id=chunk * 10)
        self.outlet.publish(Chunk((torch.tensor([value], dtype=torch.int64, device=self._device),), num_frames), header)

    def close_session(self, session_id: str, num_chunks: int, *, discard: bool = False) -> None:
        self.outlet.close_session(session_id, num_chunks, discard=discard)

    def join(self) -> None:
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self.loop.run()
        except Exception as error:
            self.error = error
        finally:
            self.loop.close()

    def _check(self) -> None:
        if self.checks:
            raise self.checks.pop()
