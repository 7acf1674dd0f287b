"""One session's stream: a thread that turns its frames into packets, in order."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

import structlog

from ithaka.comm_ext.channel.base import ChannelError
from ithaka.workers.contract import Codec, EncoderFailed, EncoderOpened, FrameHeader, PacketHeader, Report
from ithaka.workers.encoding.encoder import H264Encoder, StreamSettings
from ithaka.workers.encoding.errors import EncodeError, FrameOrderError
from ithaka.workers.encoding.frame_channel import FrameTask
from ithaka.workers.encoding.frame_number import with_frame_number
from ithaka.workers.encoding.heartbeats import Heartbeats
from ithaka.workers.encoding.packet_channel import PacketChannel
from ithaka.workers.encoding.still import Still
from ithaka.workers.encoding.vp8 import Vp8Branch
from ithaka.workers.fault import FaultPoints

STANDS_STILL_S = 0.4
"""So long no frame came: the newest picture is one that stands, and who asks for a key frame gets it made from that one. Models
send whole chunks, so a shorter time is none.
"""

_log = structlog.get_logger(__name__)


class EncodeSession:
    """Open from ``start`` until ``close`` (what waits is discarded) or ``finish`` (what waits is encoded).

    The queue is bounded by the slots of the frames' channel: a task is a taken slot. ``max_waiting_frames`` other than 0
    lets the newest win: a frame with more than that many behind it is dropped, and its packet says so. After a failure,
    reported once, frames are released unread.
    """

    def __init__(
        self,
        session_id: str,
        settings: StreamSettings,
        packets: PacketChannel,
        report: Callable[[Report], None],
        heartbeats: Heartbeats,
        faults: FaultPoints,
        *,
        max_waiting_frames: int = 0,
    ) -> None:
        self._max_waiting_frames = max_waiting_frames
        self._bits_per_s = settings.bits_per_s
        self.vp8 = Vp8Branch(settings)
        self._session_id = session_id
        self._settings = settings
        self._packets = packets
        self._report = report
        self._heartbeats = heartbeats
        self._faults = faults
        self._tasks: deque[FrameTask] = deque()
        self._changed = threading.Condition()
        self._still = Still()
        self._is_still_requested = False
        self._is_key_requested = False
        self._is_finishing = False
        self._is_failed = False
        self._last_seq = 0
        self._num_discarded = 0
        self._thread = threading.Thread(target=self._run, name=f"encode {session_id}", daemon=True)

    def start(self) -> None:
        """Open the encoder on the session's own thread; reports EncoderOpened or EncoderFailed."""
        self._thread.start()

    def submit(self, task: FrameTask) -> None:
        """Encode this frame after those before it."""
        with self._changed:
            if not self._is_finishing:
                self._tasks.append(task)
                self._changed.notify()
                return
        self._discard(task)

    def request_key_frame(self, codec: Codec = "h264") -> None:
        """The next frame is a key frame; in VP8 the picture that stands, where none comes."""
        if codec == "vp8":
            self.vp8.request_key_frame()
            with self._changed:
                self._is_still_requested = True
                self._changed.notify()
        else:
            self._is_key_requested = True

    def set_bitrate(self, bits_per_s: int) -> None:
        """For the next frame on."""
        self._bits_per_s = bits_per_s

    def close(self) -> None:
        """Discard what waits; the thread ends with the frame in hand."""
        with self._changed:
            waiting = list(self._tasks)
            self._tasks.clear()
            self._is_finishing = True
            self._changed.notify()
        for task in waiting:
            self._discard(task)

    def finish(self) -> None:
        """Encode what waits, then end."""
        with self._changed:
            self._is_finishing = True
            self._changed.notify()

    def join(self) -> None:
        self._thread.join()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        encoder = self._open()
        while (task := self._next()) is not None:
            if isinstance(task, Still):
                self._encode_again(task)
            elif encoder is None or self._is_failed:
                self._discard(task)
            elif self._is_overtaken():
                self._drop(task)
            else:
                self._encode(encoder, task)
        _log.debug("encode.session_ended", session=self._session_id, last_seq=self._last_seq, discarded=self._num_discarded)

    def _open(self) -> H264Encoder | None:
        try:
            encoder = H264Encoder(self._settings)
        except EncodeError as error:
            self._fail(error.code, error)
            return None
        self._report(EncoderOpened(self._session_id, encoder.codec))
        return encoder

    def _next(self) -> FrameTask | Still | None:
        with self._changed:
            while not self._tasks:
                if self._is_finishing:
                    return None
                has_changed = self._changed.wait(STANDS_STILL_S if self._is_still_requested else None)
                if not has_changed:
                    self._is_still_requested = False
                    return self._still
            self._is_still_requested = False
            return self._tasks.popleft()

    def _is_overtaken(self) -> bool:
        with self._changed:
            return 0 < self._max_waiting_frames < len(self._tasks)

    def _drop(self, task: FrameTask) -> None:
        """Say that there is no access unit for this frame."""
        try:
            self._check_order(task.header)
            self._publish(task.header, memoryview(b""), is_key=False, is_dropped=True)
        except (EncodeError, ChannelError) as error:
            self._fail(error.code, error)
            self._discard(task)
        else:
            task.finish(is_published=True)

    def _encode(self, encoder: H264Encoder, task: FrameTask) -> None:
        try:
            with self._heartbeats.working():
                self._encode_and_publish(encoder, task)
        except (EncodeError, ChannelError) as error:
            self._fail(error.code, error)
        # Whatever it is, it ends this stream alone, as a report.
        except Exception:
            _log.exception("encode.frame_failed", session=self._session_id, seq=task.header.seq)
            self._fail(EncodeError.code, EncodeError(f"frame {task.header.seq} could not be encoded"))
        else:
            task.finish(is_published=True)
            return
        self._discard(task)

    def _encode_and_publish(self, encoder: H264Encoder, task: FrameTask) -> None:
        header = task.header
        self._check_order(header)
        if self._bits_per_s:
            encoder.set_bitrate(self._bits_per_s)
        is_key, self._is_key_requested = self._is_key_requested, False
        i420 = task.i420(self._settings.width, self._settings.height)
        unit = encoder.encode(i420, header.pts, is_key=is_key)
        self._faults.reach("encode.encoded")
        numbered = with_frame_number(unit.data, seq=header.seq, control_id=header.control_id, generated_ns=header.generated_ns)
        self._publish(header, numbered, is_key=unit.is_key, is_dropped=False)
        self._faults.reach("encode.published")
        other = self.vp8.encode(i420, header.pts)
        if other is not None:
            self._publish(header, other.data, is_key=other.is_key, is_dropped=False, codec="vp8")
        if not self._tasks:
            self._still.keep(header, i420)

    def _encode_again(self, still: Still) -> None:
        """In VP8, where it is on and there is a picture."""
        if still.header is None or self._is_failed:
            return
        try:
            with self._heartbeats.working():
                unit = self.vp8.encode_again(still.i420, still.header.pts)
            if unit is not None:
                self._publish(still.header, unit.data, is_key=unit.is_key, is_dropped=False, codec="vp8")
        except (EncodeError, ChannelError) as error:
            self._fail(error.code, error)

    def _check_order(self, header: FrameHeader) -> None:
        if header.seq <= self._last_seq:
            raise FrameOrderError(f"seq {header.seq} after {self._last_seq}")

    def _publish(self, header: FrameHeader, data: memoryview, *, is_key: bool, is_dropped: bool, codec: Codec = "h264") -> None:
        packet = PacketHeader(
            session_id=header.session_id,
            seq=header.seq,
            chunk=header.chunk,
            control_id=header.control_id,
            pts=header.pts,
            key=is_key,
            generated_ns=header.generated_ns,
            encoded_ns=time.monotonic_ns(),
            dropped=is_dropped,
            codec=codec,
        )
        self._packets.publish(packet, data)
        self._last_seq = header.seq

    def _discard(self, task: FrameTask) -> None:
        with self._changed:
            self._num_discarded += 1
        task.finish(is_published=False)

    def _fail(self, code: str, error: EncodeError | ChannelError) -> None:
        """The report is for the client's eyes too; what a library said is for the log."""
        self._is_failed = True
        if error.__cause__ is not None:
            _log.error("encode.failed", session=self._session_id, code=code, reason=repr(error.__cause__))
        self._report(EncoderFailed(self._session_id, code, str(error)))
