"""The frames in VP8, for carriers of peers without H.264: the newest only, since a track never goes back. Pure."""

from __future__ import annotations

from collections import deque

from ithaka.server.session.key_frames import KeyFrameWish
from ithaka.server.session.retention import EncodedFrame


class Vp8Flow:
    """``num_users`` carriers want it; while there is none, nobody encodes it."""

    def __init__(self, max_lag_frames: int, key_interval_frames: int) -> None:
        self.num_users = 0
        self._max_lag_frames = max_lag_frames
        self._key_interval_frames = key_interval_frames
        self._key_wish = KeyFrameWish(key_interval_frames)
        self._frames: deque[EncodedFrame] = deque(maxlen=max_lag_frames)

    def use(self) -> bool:
        """One more carrier; True when encoding has to begin."""
        self.num_users += 1
        if self.num_users > 1:
            return False
        # A packet may have come after the last carrier had left.
        self._frames.clear()
        return True

    def leave(self) -> bool:
        """One carrier less; True when encoding has to end."""
        self.num_users -= 1
        if self.num_users:
            return False
        self._frames.clear()
        self._key_wish = KeyFrameWish(self._key_interval_frames)
        return True

    def add(self, frame: EncodedFrame) -> bool:
        """True when a key frame is to be asked for now."""
        self._frames.append(frame)
        return self._key_wish.arrived(frame.header.seq, is_key=frame.header.key)

    def want_key(self) -> bool:
        """A receiver needs one; True when it is to be asked for now."""
        return self._key_wish.want(self._frames[-1].header.seq if self._frames else 0)

    def following(self, after_seq: int, *, needs_key: bool) -> EncodedFrame | None:
        """The first kept frame beyond ``after_seq``, or the newest key frame beyond it."""
        kept = [frame for frame in self._frames if frame.header.seq > after_seq]
        if needs_key:
            kept = [frame for frame in kept if frame.header.key][-1:]
        return kept[0] if kept else None

    def has_lost(self, after_seq: int) -> bool:
        """Frames between ``after_seq`` and the oldest one kept may be gone."""
        return len(self._frames) == self._max_lag_frames and self._frames[0].header.seq > after_seq + 1
