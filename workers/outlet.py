"""Where the leader's chunks go: into the frames' channel at once, or to a stage that decodes them."""

from __future__ import annotations

from typing import Protocol

from ithaka.comm_ext.channel.host_shm import open_producer
from ithaka.workers.contract import OpenOnRank
from ithaka.workers.families.stages import Chunk
from ithaka.workers.fault import FaultPoints
from ithaka.workers.frame_publisher import FramePublisher
from ithaka.workers.stages.contract import LatentsHeader


class Sink(Protocol):
    """Takes chunks. One is published only when there is room for all its frames, so nothing here waits."""

    def attach(self, fds: list[int]) -> None:
        """Frames go by this channel from now on; takes ``fds`` over, even when it fails."""
        ...

    def room_frames(self) -> int:
        """Frames that may be published now. Raises what broke behind this."""
        ...

    def wake_fds(self) -> tuple[int, ...]:
        """Eventfds; one is readable when there may be more room."""
        ...

    def publish(self, chunk: Chunk, header: LatentsHeader) -> None: ...

    def close(self) -> None:
        """What was published still goes out. Idempotent."""
        ...


class Outlet(Sink, Protocol):
    """The leader's sink, which hears of sessions too."""

    def open_session(self, order: OpenOnRank) -> None:
        """Before its first chunk."""
        ...

    def close_session(self, session_id: str, num_chunks: int, *, discard: bool) -> None:
        """After the last of ``num_chunks``. ``discard``: whatever is not a frame yet need not become one."""
        ...


class FrameOutlet:
    """Frames as they are."""

    def __init__(self, faults: FaultPoints) -> None:
        self._faults = faults
        self._frames: FramePublisher | None = None

    def attach(self, fds: list[int]) -> None:
        """The channel before it is closed."""
        before, self._frames = self._frames, FramePublisher(open_producer(fds), self._faults)
        if before is not None:
            before.close()

    def room_frames(self) -> int:
        """None without a channel."""
        return 0 if self._frames is None else self._frames.num_free

    def wake_fds(self) -> tuple[int, ...]:
        """See Sink."""
        return () if self._frames is None else (self._frames.free_fd(),)

    def open_session(self, order: OpenOnRank) -> None:
        """Frames name their session, nobody need know it."""

    def close_session(self, session_id: str, num_chunks: int, *, discard: bool) -> None:
        """What was published is a frame already."""

    def publish(self, chunk: Chunk, header: LatentsHeader) -> None:
        """``chunk`` is one tensor of frames, as ``FramePublisher.publish`` takes them."""
        assert self._frames is not None
        self._frames.publish(chunk.tensors[0], header)

    def close(self) -> None:
        """Idempotent."""
        if self._frames is not None:
            self._frames.close()
            self._frames = None
