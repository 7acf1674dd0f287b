"""One session's recording: frames are handed over on the event loop and written by a thread of their own."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace

import structlog
from av.error import FFmpegError

from ithaka.server.mp4_writer import Mp4Writer
from ithaka.server.recording.library import Library, Note
from ithaka.server.session.retention import EncodedFrame

MAX_WAITING_BYTES = 32 * 1024 * 1024

log = structlog.get_logger()


class Recorder:
    """Full policy: frames that a slow disk has no time for are left out through the next key frame, and counted.

    It ends at ``finish``, at ``max_bytes``, or when the disk refuses; the session goes on.
    """

    def __init__(self, note: Note, library: Library, *, max_bytes: int, on_end: Callable[[], None]) -> None:
        """``on_end`` is called once, on the recorder's thread."""
        self._note = note
        self._library = library
        self._max_bytes = max_bytes
        self._on_end = on_end
        self._frames: deque[EncodedFrame] = deque()
        self._changed = threading.Condition()
        self._waiting_bytes = 0
        self._skipped_frames = 0
        self._is_skipping = True
        self._is_finishing = False
        self._thread = threading.Thread(target=self._run, name=f"recorder {note.recording_id}", daemon=True)
        self._thread.start()

    def take(self, frame: EncodedFrame) -> None:
        """Never waits."""
        if frame.header.dropped:
            return
        with self._changed:
            if self._is_finishing:
                return
            is_full = self._waiting_bytes + len(frame.payload) > MAX_WAITING_BYTES
            self._is_skipping = is_full or (self._is_skipping and not frame.header.key)
            if self._is_skipping:
                self._skipped_frames += 1
                return
            self._frames.append(frame)
            self._waiting_bytes += len(frame.payload)
            self._changed.notify()

    def finish(self) -> None:
        """Write what waits, then end. Never waits itself."""
        with self._changed:
            self._is_finishing = True
            self._changed.notify()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        num_frames = 0
        try:
            self._library.write_note(self._note)
            num_frames = self._write_all()
            note = replace(self._note, num_frames=num_frames, skipped_frames=self._skipped_frames, is_complete=True)
            self._library.write_note(note)
        except (OSError, FFmpegError) as error:
            log.error("recording.failed", recording=self._note.recording_id, reason=str(error))
        finally:
            self.finish()
            self._on_end()

    def _write_all(self) -> int:
        """Returns how many frames were written."""
        num_frames, num_bytes = 0, 0
        path = self._library.video_path(self._note.recording_id)
        with Mp4Writer(path, fps=self._note.fps, is_fragmented=True) as writer:
            while (frame := self._next()) is not None:
                num_bytes += len(frame.payload)
                if num_bytes > self._max_bytes:
                    log.warning("recording.full", recording=self._note.recording_id, num_frames=num_frames)
                    break
                writer.write(frame.payload, pts=frame.header.pts, key=frame.header.key)
                num_frames += 1
        return num_frames

    def _next(self) -> EncodedFrame | None:
        with self._changed:
            while not self._frames:
                if self._is_finishing:
                    return None
                self._changed.wait()
            frame = self._frames.popleft()
            self._waiting_bytes -= len(frame.payload)
            return frame
