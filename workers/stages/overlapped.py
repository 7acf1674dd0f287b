"""Decoding beside the next step in one process: a thread, and on a device a stream that gives way to the step's."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from ithaka.workers.contract import OpenOnRank
from ithaka.workers.families.base import FamilySession
from ithaka.workers.families.stages import Chunk, Decoder
from ithaka.workers.fault import FaultPoints
from ithaka.workers.outlet import FrameOutlet
from ithaka.workers.pulse import Pulse
from ithaka.workers.stages.contract import LatentsHeader
from ithaka.workers.stages.decoding import decoded

STEP_PRIORITY = -1
"""Of the stream that steps run on; decoding has 0, the lowest there is."""
_DEPTH_CHUNKS = 2
"""One that is decoded, one that waits."""

Call = Callable[[], None]


@dataclass(slots=True)
class DecodingSession:
    """``memory`` is the decoder thread's; ``is_discarded`` is set by the loop's."""

    memory: FamilySession | None = None
    is_discarded: bool = False


class OverlappedOutlet:
    """See ``outlet.Outlet``. The loop's thread calls; the decoder's own thread does what was asked, in that order."""

    def __init__(self, decoder: Decoder, device: torch.device, *, check: Call, pulse: Pulse, faults: FaultPoints) -> None:
        """``check`` raises where the step that made a chunk was not clean; the decoder's thread calls it."""
        self._decoder = decoder
        self._stream = torch.cuda.Stream(device, priority=0) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._check = check
        self._pulse = pulse
        self._faults = faults
        self._frames = FrameOutlet(faults)
        self._sessions: dict[str, DecodingSession] = {}
        self._calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._pending_chunks = 0
        self._pending_frames = 0
        self._error: Exception | None = None
        self._done_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name="decode", daemon=True)
        self._thread.start()

    def attach(self, fds: list[int]) -> None:
        """See Sink."""
        self._frames.attach(fds)

    def room_frames(self) -> int:
        """See Sink. Raises what the decoder raised."""
        with self._lock:
            if self._error is not None:
                raise self._error
            room_chunks = _DEPTH_CHUNKS - self._pending_chunks
            return min(self._frames.room_frames() - self._pending_frames, room_chunks * self._decoder.spec.chunk_frames)

    def wake_fds(self) -> tuple[int, ...]:
        """See Sink."""
        return (self._done_fd, *self._frames.wake_fds())

    def open_session(self, order: OpenOnRank) -> None:
        """See Outlet."""
        session = self._sessions[order.session_id] = DecodingSession()
        self._calls.put(partial(self._open, session, order))

    def close_session(self, session_id: str, num_chunks: int, *, discard: bool) -> None:
        """See Outlet."""
        session = self._sessions.pop(session_id)
        session.is_discarded = discard
        self._calls.put(partial(self._close, session))

    def publish(self, chunk: Chunk, header: LatentsHeader) -> None:
        """See Sink."""
        made = None
        if self._stream is not None:
            made = torch.cuda.Event()  # type: ignore[no-untyped-call]
            made.record(torch.cuda.current_stream(self._stream.device))
        with self._lock:
            self._pending_chunks += 1
            self._pending_frames += chunk.num_frames
        self._calls.put(partial(self._decode, self._sessions[header.session_id], chunk, header, made))

    def close(self) -> None:
        """See Sink. Waits for what was published. Raises what the decoder raised."""
        if self._done_fd >= 0:
            self._calls.put(None)
            self._thread.join()
            self._frames.close()
            os.close(self._done_fd)
            self._done_fd = -1
        if self._error is not None:
            raise self._error

    # -- on the decoder's thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        if self._stream is not None:
            torch.cuda.set_device(self._stream.device)
        while (call := self._calls.get()) is not None:
            try:
                call()
            except Exception as error:
                # The loop's thread raises it, and the group falls.
                with self._lock:
                    self._error = error
                os.eventfd_write(self._done_fd, 1)
                return

    def _open(self, session: DecodingSession, order: OpenOnRank) -> None:
        with self._pulse.busy():
            session.memory = self._decoder.open_session(
                order.session_id, seed=order.seed, prompt=order.prompt, options=order.options
            )

    def _close(self, session: DecodingSession) -> None:
        assert session.memory is not None
        self._decoder.close_session(session.memory)

    def _decode(self, session: DecodingSession, chunk: Chunk, header: LatentsHeader, made: torch.cuda.Event | None) -> None:
        if not session.is_discarded:
            assert session.memory is not None
            with self._beside_steps(chunk, made):
                frames = decoded(self._decoder, session.memory, chunk, header, self._pulse, self._faults)
            self._check()
            self._frames.publish(frames, header)
        with self._lock:
            self._pending_chunks -= 1
            self._pending_frames -= header.num_frames
        os.eventfd_write(self._done_fd, 1)

    @contextlib.contextmanager
    def _beside_steps(self, chunk: Chunk, made: torch.cuda.Event | None) -> Iterator[None]:
        if self._stream is None or made is None:
            yield
            return
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(made)
            for tensor in chunk.tensors:
                tensor.record_stream(self._stream)
            yield
