"""Where one connection stands in a session's frames. A cursor holds an index, never frames."""

from __future__ import annotations

from typing import Protocol

from ithaka.server.session.flow import FrameFlow
from ithaka.server.session.retention import EncodedFrame


class Cursor(Protocol):
    def take(self, flow: FrameFlow) -> tuple[EncodedFrame, bool] | None:
        """The next frame to send and whether it is for decoding only; None while there is none."""
        ...


class ControllerCursor:
    """Every frame, once, in order, as far as the window lets it: from ``start_seq``, shown from ``show_from_seq`` on."""

    def __init__(self, start_seq: int, show_from_seq: int) -> None:
        self._next_seq = start_seq
        self._show_from_seq = show_from_seq

    def take(self, flow: FrameFlow) -> tuple[EncodedFrame, bool] | None:
        frame = flow.sendable(self._next_seq)
        if frame is None:
            return None
        self._next_seq += 1
        flow.delivery.sent(frame.header.seq)
        return frame, frame.header.seq < self._show_from_seq


class ViewerCursor:
    """Begins at the next key frame; one that falls behind what is kept skips to the oldest key frame there is.

    ``skipped``: frames between its first and its latest that it never got.
    """

    def __init__(self, newest_seq: int) -> None:
        self._after_seq = newest_seq
        self._is_decoding = False
        self.skipped = 0

    def take(self, flow: FrameFlow) -> tuple[EncodedFrame, bool] | None:
        retention = flow.retention
        seq: int | None = self._after_seq + 1
        if not self._is_decoding or self._after_seq + 1 < retention.first_seq:
            seq = retention.next_key(self._after_seq)
        frame = None if seq is None else retention.get(seq)
        if frame is None:
            return None
        if self._is_decoding:
            self.skipped += frame.header.seq - self._after_seq - 1
        self._is_decoding = True
        self._after_seq = frame.header.seq
        return frame, False
