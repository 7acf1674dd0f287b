"""The leader's end of a split model: latents into the channel, orders to those who take them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ithaka.comm_ext.channel.base import ChannelMessage, LayoutError, Policy, Producer
from ithaka.workers import wire
from ithaka.workers.child_socket import ChildSocket, close_fds
from ithaka.workers.contract import OpenOnRank
from ithaka.workers.families.stages import Chunk
from ithaka.workers.fault import FaultPoints
from ithaka.workers.frame_publisher import BadResultError
from ithaka.workers.group import GroupBrokenError
from ithaka.workers.stages.contract import AttachLatents, CloseOnStage, LatentsHeader, OpenOnStage, StageOrder, StopStage
from ithaka.workers.stages.memory import LatentsMemory
from ithaka.workers.wire import WireError

_NUM_SLOTS = 3
"""One that is decoded, one that waits, one that is written."""
_NUM_SPARE_SLOTS = 4
"""More where a consumer keeps to the newest, so that it never makes the leader wait: one that it holds, and three."""


class LatentsOutlet:
    """See ``outlet.Outlet``. Made when every process of the group is ready to be."""

    def __init__(
        self,
        producer: Producer,
        memory: LatentsMemory,
        takers: Sequence[ChildSocket],
        *,
        first_taker: int,
        chunk_frames: int,
        check: Callable[[], None],
        faults: FaultPoints,
    ) -> None:
        """``first_taker``: its rank; ``check`` raises where the step that made a chunk was not clean."""
        self._producer = producer
        self._memory = memory
        self._takers = tuple(takers)
        self._first_taker = first_taker
        self._chunk_frames = chunk_frames
        self._check = check
        self._faults = faults
        self._streams: dict[str, int] = {}
        self._num_streams = 0

    @classmethod
    def connect(
        cls,
        memory: LatentsMemory,
        takers: Sequence[ChildSocket],
        policies: Sequence[Policy],
        *,
        latents_bytes: int,
        first_taker: int,
        chunk_frames: int,
        check: Callable[[], None],
        faults: FaultPoints,
    ) -> LatentsOutlet:
        """Make the channel and hand it to the takers, each with its policy. Raises ChannelError, OSError, GroupBrokenError."""
        num_slots = _NUM_SLOTS + (_NUM_SPARE_SLOTS if "newest" in policies else 0)
        producer, fds = memory.create(num_slots, latents_bytes, policies)
        outlet = cls(producer, memory, takers, first_taker=first_taker, chunk_frames=chunk_frames, check=check, faults=faults)
        try:
            for consumer, taker in enumerate(takers):
                outlet._send(taker, consumer, AttachLatents(consumer), fds)
        finally:
            close_fds(fds)
        return outlet

    def attach(self, fds: list[int]) -> None:
        """Frames are another stage's: raises WireError."""
        close_fds(fds)
        raise WireError("a leader that hands on latents takes no AttachFrames")

    def room_frames(self) -> int:
        """See Sink; a slot is one chunk."""
        return self._producer.num_free * self._chunk_frames

    def wake_fds(self) -> tuple[int, ...]:
        """See Sink."""
        return (self._producer.free_fd(),)

    def open_session(self, order: OpenOnRank) -> None:
        """See Outlet. Raises GroupBrokenError."""
        self._num_streams += 1
        self._streams[order.session_id] = self._num_streams
        self._tell(OpenOnStage(self._num_streams, order.session_id, order.seed, order.prompt, order.options))

    def close_session(self, session_id: str, num_chunks: int, *, discard: bool) -> None:
        """See Outlet. Raises GroupBrokenError."""
        stream = self._streams.pop(session_id)
        if discard:
            self._producer.discard(stream)
        self._tell(CloseOnStage(stream, num_chunks, discard))

    def publish(self, chunk: Chunk, header: LatentsHeader) -> None:
        """Raises ChannelError, BadResultError when the chunk is larger than the denoiser said, and what ``check`` raises."""
        slot = self._producer.claim()
        assert slot is not None
        self._faults.reach("latents.claimed")
        try:
            layouts = self._memory.write(slot, chunk.tensors)
        except LayoutError as error:
            raise BadResultError(f"the latents of chunk {header.chunk}: {error}") from error
        self._check()
        message = ChannelMessage(wire.encode(header), layouts, self._streams[header.session_id])
        self._producer.publish(slot, message)
        self._faults.reach("latents.published")

    def close(self) -> None:
        """Tell the takers to finish. Idempotent. Raises GroupBrokenError, with everything closed."""
        takers, self._takers = self._takers, ()
        try:
            for consumer, taker in enumerate(takers):
                self._send(taker, consumer, StopStage())
        finally:
            self._producer.close()
            for taker in takers:
                taker.close()

    def _tell(self, order: StageOrder) -> None:
        for consumer, taker in enumerate(self._takers):
            self._send(taker, consumer, order)

    def _send(self, taker: ChildSocket, consumer: int, order: StageOrder, fds: Sequence[int] = ()) -> None:
        try:
            taker.send(order, fds)
        except ConnectionError as error:
            raise GroupBrokenError(self._first_taker + consumer) from error
