"""The data path of one session: retention, delivery and pacer folded into one number, the grant.

``GrantFrames.through_seq`` is the smaller of what the window allows and what the pacer allows, in whole chunks, and grows
only. In ``live`` the window says nothing: no client holds the model up. Pure: every call that needs the time takes it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ithaka.server.pacer import Pacer
from ithaka.server.session.delivery import Delivery
from ithaka.server.session.key_frames import KeyFrameWish
from ithaka.server.session.losses import Losses
from ithaka.server.session.retention import EncodedFrame, Retention
from ithaka.server.session.vp8_flow import Vp8Flow


@dataclass(frozen=True, slots=True)
class Shape:
    """What the flow has to know of the model and the request. ``max_frames`` is met by whole chunks."""

    fps: int
    chunk_frames: int
    window_frames: int
    retained_bytes: int
    is_unpaced: bool = False
    max_frames: int | None = None
    is_live: bool = False


class FrameFlow:
    def __init__(self, stream: str, shape: Shape) -> None:
        self.retention = Retention(shape.retained_bytes)
        self.delivery = Delivery(stream, max(shape.window_frames, 2 * shape.chunk_frames))
        self._pacer = Pacer(shape.fps, shape.chunk_frames, is_unpaced=shape.is_unpaced)
        self._chunk_frames = shape.chunk_frames
        self._max_frames = shape.max_frames
        self.is_live = shape.is_live
        self.losses = Losses()
        self.max_lag_frames = max(shape.fps // 2, 2 * shape.chunk_frames)
        """How far a live carrier may lie behind; chunks come at once, so one of them is no lag."""
        key_interval_frames = max(1, shape.fps // 2)
        self._key_wish = KeyFrameWish(key_interval_frames)
        self.vp8 = Vp8Flow(self.max_lag_frames, key_interval_frames)

    @property
    def granted_through(self) -> int:
        return self._pacer.paced_through

    @property
    def stands_still(self) -> bool:
        """No frame comes until somebody plays, or until the controller makes room in the window."""
        return self._pacer.due_s is None or (not self.is_live and not self._has_room())

    @property
    def has_reached_limit(self) -> bool:
        """As many frames were generated as asked for."""
        return self._max_frames is not None and self.delivery.generated_through >= self._max_frames

    def play(self, now_s: float) -> None:
        self._pacer = self._pacer.play(now_s)

    def hold(self, now_s: float) -> None:
        self._pacer = self._pacer.pause(now_s)

    def controller_lost(self, now_s: float) -> None:
        """Nobody steers: a live model stands still. In ``lossless`` the window holds it soon enough."""
        if self.is_live:
            self.hold(now_s)

    def controller_resumed(self, now_s: float, *, is_paused: bool) -> None:
        if self.is_live and not is_paused:
            self.play(now_s)

    def add(self, frame: EncodedFrame) -> bool:
        """Take a generated frame, or the word that it was dropped; True when a key frame is to be asked for now."""
        header = frame.header
        wants_key = self.retention.add(frame)
        self.delivery.generated(header.seq)
        if header.dropped:
            self.losses.dropped(header.seq)
        if self.is_live:
            # Nobody asks for old frames again, so only those since the newest key frame are kept.
            self.retention.acknowledge(header.seq)
        return self._key_wish.arrived(header.seq, is_key=header.key) or wants_key

    def want_key(self) -> bool:
        """A receiver needs a key frame; True when it is to be asked for now."""
        return self._key_wish.want(self.delivery.generated_through)

    def acknowledge(self, received_through: int, decoded_through: int) -> bool:
        """Raises ProtocolViolation. True when something new is decoded."""
        grew = self.delivery.acknowledge(received_through, decoded_through)
        self.retention.acknowledge(self.delivery.decoded_through)
        return grew

    def resume(self, stream: str, next_seq: int) -> int:
        """The frame to send first; in ``live`` sending begins at the next key frame. Raises ProtocolViolation."""
        start = next_seq if self.is_live else self.retention.replay_start(next_seq)
        self.delivery.resume(stream, next_seq, is_kept=start is not None)
        self.retention.acknowledge(self.delivery.decoded_through)
        assert start is not None
        return start

    def grant(self, now_s: float) -> int | None:
        """Through which frame may be generated now; None when that has not grown."""
        before = self.granted_through
        while self._has_room() and self._pacer.allows(now_s):
            self._pacer = self._pacer.take(now_s)
        return self.granted_through if self.granted_through > before else None

    def next_moment_s(self) -> float | None:
        """When ``grant`` may grow by the clock alone; None while something else has to happen first."""
        return self._pacer.next_moment_s() if self._has_room() else None

    def _has_room(self) -> bool:
        is_wanted = self._max_frames is None or self.granted_through < self._max_frames
        # A live model that is slower than its rate must not save up grants and make up for lost time later.
        through = self.delivery.generated_through + 2 * self._chunk_frames if self.is_live else self.delivery.window_through
        fits = self.granted_through + self._chunk_frames <= through
        return is_wanted and fits and not self.retention.is_full

    def sendable(self, seq: int) -> EncodedFrame | None:
        """The frame, when it is there and the window lets it go."""
        return self.retention.get(seq) if seq <= self.delivery.window_through else None
