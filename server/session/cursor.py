"""Where one connection stands in a session's frames. A cursor holds an index, never frames."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ithaka.server.session.flow import FrameFlow
from ithaka.server.session.messages import Role
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
    """Begins at the next key frame after ``after_seq``; one that falls behind what is kept skips to the oldest key frame there
    is.

    ``show_from_seq``: what comes before it is for decoding only. ``skipped``: frames between its first and its latest that it
    never got.
    """

    def __init__(self, after_seq: int, show_from_seq: int) -> None:
        self._after_seq = after_seq
        self._show_from_seq = show_from_seq
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
        return frame, frame.header.seq < self._show_from_seq


class LiveCursor:
    """Begins at the next key frame and passes over what was dropped. One that lies more than ``flow.max_lag_frames`` behind
    skips to the newest key frame within them, and asks for one where there is none.

    ``acknowledges``: the other side says what it decoded, so what is in flight is bounded likewise: pictures that wait in a
    socket are late too. ``catch_up_through``: the picture that stands, for one that begins with it; what leads to it is no lag,
    and for decoding only.
    ``skipped``: frames that were encoded and that it never got, from its first one on.
    """

    def __init__(
        self,
        after_seq: int,
        role: Role,
        *,
        acknowledges: bool,
        key_frame_wanted: Callable[[], None],
        catch_up_through: int,
    ) -> None:
        self._after_seq = self._began_after_seq = after_seq
        self._catch_up_through = catch_up_through
        self._is_controller = role == "controller"
        self._acknowledges = acknowledges
        self._key_frame_wanted = key_frame_wanted
        self._is_decoding = self._has_begun = False
        self.skipped = 0

    def take(self, flow: FrameFlow) -> tuple[EncodedFrame, bool] | None:
        if self._acknowledges and self._in_flight(flow) >= flow.max_lag_frames:
            return None
        if self._is_decoding and self._lags(flow, self._after_seq):
            self._is_decoding = False
            self._key_frame_wanted()
        frame = self._following(flow) if self._is_decoding else self._beginning(flow)
        if frame is None:
            return None
        seq = frame.header.seq
        if self._has_begun:
            self.skipped += seq - self._after_seq - 1 - flow.losses.between(self._after_seq, seq)
        self._is_decoding = self._has_begun = True
        self._after_seq = seq
        if self._is_controller:
            flow.delivery.sent(seq)
        return frame, seq < self._catch_up_through

    def _in_flight(self, flow: FrameFlow) -> int:
        """Of this connection: what an earlier one sent is not on its way any more, and a track's is never acknowledged."""
        return self._after_seq - max(flow.delivery.decoded_through, self._began_after_seq)

    def _following(self, flow: FrameFlow) -> EncodedFrame | None:
        for seq in range(self._after_seq + 1, flow.retention.newest_seq + 1):
            frame = flow.retention.get(seq)
            if frame is None or not frame.header.dropped:
                return frame
        return None

    def _beginning(self, flow: FrameFlow) -> EncodedFrame | None:
        key_seq = flow.retention.newest_key()
        if key_seq is None or key_seq <= self._after_seq or self._lags(flow, key_seq):
            return None
        return flow.retention.get(key_seq)

    def _lags(self, flow: FrameFlow, seq: int) -> bool:
        """Whether too much lies beyond ``seq``."""
        is_catching_up = seq < self._catch_up_through and seq + 1 >= flow.retention.first_seq
        return not is_catching_up and flow.retention.newest_seq - seq > flow.max_lag_frames


class Vp8Cursor:
    """As ``LiveCursor``, over the frames in VP8."""

    def __init__(self, key_frame_wanted: Callable[[], None]) -> None:
        self._after_seq = 0
        self._key_frame_wanted = key_frame_wanted
        self._is_decoding = False
        self.skipped = 0

    def take(self, flow: FrameFlow) -> tuple[EncodedFrame, bool] | None:
        if self._is_decoding and flow.vp8.has_lost(self._after_seq):
            self._is_decoding = False
            self._key_frame_wanted()
        frame = flow.vp8.following(self._after_seq, needs_key=not self._is_decoding)
        if frame is None:
            return None
        seq = frame.header.seq
        if self._after_seq:
            self.skipped += seq - self._after_seq - 1 - flow.losses.between(self._after_seq, seq)
        self._is_decoding = True
        self._after_seq = seq
        return frame, False


def controller_cursor(
    flow: FrameFlow, start_seq: int, show_from_seq: int, key_frame_wanted: Callable[[], None], *, acknowledges: bool
) -> Cursor:
    """For a controller that has resumed; in ``live`` it begins as a viewer does."""
    if flow.is_live:
        return _live_cursor(flow, "controller", key_frame_wanted, acknowledges=acknowledges)
    return ControllerCursor(start_seq, show_from_seq)


def viewer_cursor(flow: FrameFlow, key_frame_wanted: Callable[[], None]) -> Cursor:
    if flow.is_live:
        return _live_cursor(flow, "viewer", key_frame_wanted, acknowledges=False)
    return ViewerCursor(_begin_after(flow, key_frame_wanted), flow.delivery.generated_through)


def _live_cursor(flow: FrameFlow, role: Role, key_frame_wanted: Callable[[], None], *, acknowledges: bool) -> LiveCursor:
    return LiveCursor(
        _begin_after(flow, key_frame_wanted),
        role,
        acknowledges=acknowledges,
        key_frame_wanted=key_frame_wanted,
        catch_up_through=flow.delivery.generated_through,
    )


def _begin_after(flow: FrameFlow, key_frame_wanted: Callable[[], None]) -> int:
    """The frame before the first one to send; asks for the key frame to begin with. Where the stream stands still none would
    come: there it begins with the newest group of pictures that is kept, so that the picture that stands is seen, by whoever
    comes and by whoever comes back.
    """
    key_seq = flow.retention.newest_key() if flow.stands_still else None
    if key_seq is not None:
        return key_seq - 1
    key_frame_wanted()
    return flow.delivery.generated_through
