"""When the encoder is asked for a key frame that somebody wants: at once, but not twice within an interval of frames. Pure."""

from __future__ import annotations


class KeyFrameWish:
    def __init__(self, interval_frames: int) -> None:
        self._interval_frames = interval_frames
        self._is_open = False
        self._asked_at_seq: int | None = None

    def want(self, newest_seq: int) -> bool:
        """Somebody needs one; True when the encoder is to be asked now."""
        self._is_open = True
        return self._take(newest_seq)

    def arrived(self, seq: int, *, is_key: bool) -> bool:
        """A frame came; True when the encoder is to be asked now, for a wish that had to wait."""
        if is_key:
            self._is_open = False
        return self._take(seq)

    def _take(self, newest_seq: int) -> bool:
        is_due = self._asked_at_seq is None or newest_seq - self._asked_at_seq >= self._interval_frames
        if not (self._is_open and is_due):
            return False
        self._is_open = False
        self._asked_at_seq = newest_seq
        return True
