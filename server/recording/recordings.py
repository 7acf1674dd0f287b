"""Recordings as the routes use them: begun with a session, listed, downloaded, deleted, and swept by their bounds."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable

import structlog

from ithaka.configs.schema import RecordingSection
from ithaka.server.errors import ApiError
from ithaka.server.recording.library import Library, Note, Recording
from ithaka.server.recording.recorder import Recorder
from ithaka.server.session.retention import EncodedFrame
from ithaka.server.session.session import Session
from ithaka.server.session.timers import Timer, Timers

SWEEP_INTERVAL_S = 600.0

log = structlog.get_logger()


class Recordings:
    """All calls belong to the event loop; the disk is touched on other threads. ``wall_s``: seconds since 1970."""

    def __init__(self, section: RecordingSection, *, timers: Timers, wall_s: Callable[[], float]) -> None:
        self._section = section
        self._timers = timers
        self._wall_s = wall_s
        self._library = None if section.folder is None else Library(section, section.folder)
        self._running: dict[str, Recorder] = {}
        self._sweep_timer: Timer | None = None
        self._sweeps: set[asyncio.Task[None]] = set()

    def require(self) -> Library:
        """Raises ApiError ``recording_off``."""
        if self._library is None:
            raise ApiError("recording_off", "this server records nothing; recording.folder has to name a folder")
        return self._library

    def begin(self, session: Session) -> None:
        """Record the session from its first frame to its end. Raises ApiError ``recording_off``."""
        library = self.require()
        recorder: Recorder | None = None
        recording_id = secrets.token_hex(12)
        loop = asyncio.get_running_loop()

        def ended() -> None:
            loop.call_soon_threadsafe(self._ended, recording_id)

        def take(frame: EncodedFrame) -> None:
            nonlocal recorder
            if recorder is None:
                recorder = self._running[recording_id] = Recorder(
                    self._note(recording_id, session),
                    library,
                    max_bytes=self._section.max_bytes,
                    on_end=ended,
                )
                self._sweep_now()
            recorder.take(frame)

        def look() -> None:
            if session.is_over and recorder is not None:
                recorder.finish()

        session.taps.add(take)
        session.watchers.add(look)

    async def all(self) -> list[Recording]:
        """The newest first."""
        if self._library is None:
            return []
        await self._sweep()
        return await asyncio.to_thread(self._library.all)

    async def find(self, recording_id: str) -> Recording:
        """Raises ApiError ``recording_unknown``."""
        recording = None if self._library is None else await asyncio.to_thread(self._library.find, recording_id)
        if recording is None:
            raise ApiError("recording_unknown", f"there is no recording {recording_id!r}")
        return recording

    async def delete(self, recording_id: str) -> None:
        """One that runs is deleted too, with what follows. Raises ApiError ``recording_unknown``."""
        await self.find(recording_id)
        if (recorder := self._running.get(recording_id)) is not None:
            recorder.finish()
            await asyncio.to_thread(recorder.join)
        await asyncio.to_thread(self.require().delete, recording_id)

    def start(self) -> None:
        """Sweep now and then, beside each beginning and end of a recording.

        Raises OSError where the folder can't be written to.
        """
        if self._library is not None:
            self._library.check()
            self._sweep_soon()

    async def close(self) -> None:
        """End what runs; every file is whole when this returns."""
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        recorders = list(self._running.values())
        for recorder in recorders:
            recorder.finish()
        for recorder in recorders:
            await asyncio.to_thread(recorder.join)
        # Each recorder that ended has begun one.
        if self._sweeps:
            await asyncio.wait(self._sweeps)

    def _note(self, recording_id: str, session: Session) -> Note:
        known = session.description
        assert known is not None, "a session with frames is described"
        return Note(recording_id, session.session_id, known.model, known.width, known.height, known.fps, self._wall_s())

    def _ended(self, recording_id: str) -> None:
        self._running.pop(recording_id, None)
        self._sweep_now()

    def _sweep_now(self) -> None:
        sweep = asyncio.get_running_loop().create_task(self._sweep())
        self._sweeps.add(sweep)
        sweep.add_done_callback(self._sweeps.discard)

    def _sweep_soon(self) -> None:
        self._sweep_now()
        self._sweep_timer = self._timers.call_at(self._timers.now_s() + SWEEP_INTERVAL_S, self._sweep_soon)

    async def _sweep(self) -> None:
        assert self._library is not None
        try:
            deleted = await asyncio.to_thread(self._library.sweep, self._wall_s(), frozenset(self._running))
        except OSError as error:
            log.error("recordings.not_swept", reason=str(error))
        else:
            if deleted:
                log.info("recordings.swept", deleted=len(deleted))
