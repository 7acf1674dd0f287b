"""What a stage does all day: hear the leader, take a chunk, decode it, hand on what came of it."""

from __future__ import annotations

import select
from dataclasses import dataclass

from ithaka.comm_ext.channel.base import ChannelClosedError, Consumer, Delivery
from ithaka.comm_ext.channel.host_shm import clear_event
from ithaka.workers import contract, wire
from ithaka.workers.child_socket import ChildSocket, close_fds
from ithaka.workers.families.base import FamilySession
from ithaka.workers.families.stages import Chunk, Decoder
from ithaka.workers.fault import FaultPoints
from ithaka.workers.group import LEADER, GroupBrokenError
from ithaka.workers.outlet import Sink
from ithaka.workers.pulse import Pulse
from ithaka.workers.stages.contract import AttachLatents, CloseOnStage, LatentsHeader, OpenOnStage, StopStage
from ithaka.workers.stages.decoding import decoded
from ithaka.workers.stages.memory import LatentsMemory
from ithaka.workers.wire import WireError


@dataclass(slots=True)
class StageSession:
    """A session's decoder memory; ``num_chunks`` once the leader has closed it."""

    memory: FamilySession
    num_chunks: int | None = None


class StageLoop:
    """A stage that takes latents. It takes one only when its sink has room, so the channel's slots are the leader's credits."""

    def __init__(
        self,
        *,
        control: ChildSocket,
        leader: ChildSocket,
        decoder: Decoder,
        memory: LatentsMemory,
        sink: Sink,
        pulse: Pulse,
        faults: FaultPoints,
    ) -> None:
        self._control = control
        self._leader = leader
        self._decoder = decoder
        self._memory = memory
        self._sink = sink
        self._pulse = pulse
        self._faults = faults
        self._latents: Consumer | None = None
        self._sessions: dict[int, StageSession] = {}
        """By stream."""
        self._stopping = False
        self._exhausted = False

    def run(self) -> None:
        """Until StopStage, and everything in the channel is decoded. Raises what breaks the group."""
        while not (self._stopping and self._exhausted):
            delivery = self._take()
            self._receive(is_waiting=delivery is None)
            if delivery is not None:
                self._decode(delivery)

    def close(self) -> None:
        """After ``run``, when it returned: a leader that found the channel without its taker would be blamed."""
        if self._latents is not None:
            self._latents.close()
        self._sink.close()

    # -- take ----------------------------------------------------------------------------------------------------------

    def _take(self) -> Delivery | None:
        if self._latents is None or self._exhausted or self._sink.room_frames() < self._decoder.spec.chunk_frames:
            return None
        try:
            delivery = self._latents.take()
        except ChannelClosedError:
            self._exhausted = True
            delivery = None
        if delivery is None:
            # Closed by the leader after their last chunk, and that was taken, or left out.
            for stream in [stream for stream, session in self._sessions.items() if session.num_chunks is not None]:
                self._close(stream)
        return delivery

    # -- receive -------------------------------------------------------------------------------------------------------

    def _receive(self, *, is_waiting: bool) -> None:
        """Also before a chunk is decoded that was taken: its session's beginning was sent before it."""
        if is_waiting and self._stopping and self._exhausted:
            return
        poll = select.poll()
        wake_fds = (*self._sink.wake_fds(), *(() if self._latents is None else (self._latents.ready_fd(),)))
        leader_fds = () if self._stopping else (self._leader.fileno(),)
        for fd in (self._control.fileno(), *leader_fds, *wake_fds):
            poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll(None if is_waiting else 0):
            if fd == self._control.fileno():
                self._take_commands()
            elif fd in wake_fds:
                clear_event(fd)
            else:
                self._take_orders()

    def _take_commands(self) -> None:
        for command, fds in self._control.pending():
            self._faults.reach("stage.received")
            if not isinstance(command, contract.AttachFrames):
                close_fds(fds)
                raise WireError(f"a stage takes no {type(command).__name__}")
            self._sink.attach(fds)

    def _take_orders(self) -> None:
        try:
            for order, fds in self._leader.pending():
                self._faults.reach("stage.ordered")
                self._obey(order, fds)
                if self._stopping:
                    return
        except ConnectionError as error:
            raise GroupBrokenError(LEADER) from error

    def _obey(self, order: object, fds: list[int]) -> None:
        match order:
            case AttachLatents(consumer=consumer):
                self._latents = self._memory.open(fds, consumer)
            case OpenOnStage(stream=stream):
                with self._pulse.busy():
                    memory = self._decoder.open_session(
                        order.session_id, seed=order.seed, prompt=order.prompt, options=order.options
                    )
                self._sessions[stream] = StageSession(memory)
            case CloseOnStage(stream=stream, discard=True):
                self._close(stream)
            case CloseOnStage(stream=stream, num_chunks=num_chunks):
                if session := self._sessions.get(stream):
                    session.num_chunks = num_chunks
            case StopStage():
                self._stopping = True
            case _:
                close_fds(fds)
                raise WireError(f"the leader sent {type(order).__name__}, which is no order for a stage")

    # -- decode --------------------------------------------------------------------------------------------------------

    def _decode(self, delivery: Delivery) -> None:
        assert self._latents is not None
        try:
            session = self._sessions.get(delivery.message.stream)
            if session is not None:
                header = wire.decode_as(LatentsHeader, delivery.message.header)
                latents = Chunk(self._memory.read(delivery), header.num_frames)
                self._sink.publish(decoded(self._decoder, session.memory, latents, header, self._pulse, self._faults), header)
                if header.chunk + 1 == session.num_chunks:
                    self._close(delivery.message.stream)
        finally:
            self._latents.release(delivery)

    def _close(self, stream: int) -> None:
        session = self._sessions.pop(stream, None)
        if session is not None:
            self._decoder.close_session(session.memory)
