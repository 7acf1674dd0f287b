"""What two decodes of the same latents are compared by: a digest of each frame, told to the server."""

from __future__ import annotations

import hashlib

from ithaka.workers.child_socket import ChildSocket
from ithaka.workers.families.stages import Chunk
from ithaka.workers.fault import FaultPoints
from ithaka.workers.outlet import FrameOutlet
from ithaka.workers.stages.contract import FramesDigested, LatentsHeader

_ALWAYS_ROOM_FRAMES = 1 << 30


class DigestSink:
    """See ``outlet.Sink``. Frames end here."""

    def __init__(self, control: ChildSocket) -> None:
        self._control = control

    def attach(self, fds: list[int]) -> None:
        """Never: frames are another stage's."""
        raise AssertionError(f"a stage without frames was given {len(fds)} descriptors for them")

    def room_frames(self) -> int:
        """See Sink."""
        return _ALWAYS_ROOM_FRAMES

    def wake_fds(self) -> tuple[int, ...]:
        """See Sink."""
        return ()

    def publish(self, chunk: Chunk, header: LatentsHeader) -> None:
        """Tell the frames' digests. Raises ConnectionError."""
        self._control.send(_digested(chunk, header))

    def close(self) -> None:
        """See Sink."""


class DigestingOutlet(FrameOutlet):
    """Frames go on as they are, and their digests are told."""

    def __init__(self, control: ChildSocket, faults: FaultPoints) -> None:
        super().__init__(faults)
        self._control = control

    def publish(self, chunk: Chunk, header: LatentsHeader) -> None:
        """See FrameOutlet. Raises ConnectionError."""
        super().publish(chunk, header)
        self._control.send(_digested(chunk, header))


def _digested(chunk: Chunk, header: LatentsHeader) -> FramesDigested:
    frames = chunk.tensors[0].numpy()
    digests = tuple(hashlib.sha256(frame.reshape(-1).data).digest() for frame in frames)
    return FramesDigested(header.session_id, header.first_seq, digests)
