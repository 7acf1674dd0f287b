"""Recordings on disk: a folder of MP4 files, each with a note beside it. Blocking calls; nothing is kept in memory."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ithaka.configs.schema import RecordingSection
from ithaka.server.recording.fragments import count_frames

_ID = re.compile(r"[0-9a-f]{24}")


@dataclass(frozen=True, slots=True)
class Note:
    """What is known of a recording. ``started_at_s`` in seconds since 1970; ``skipped_frames`` the disk was too slow for."""

    recording_id: str
    session_id: str
    model: str
    width: int
    height: int
    fps: int
    started_at_s: float
    num_frames: int = 0
    """As the recorder wrote it at the end; what lies in a file that is not complete is counted there."""
    skipped_frames: int = 0
    is_complete: bool = False
    """False while it runs, and for ever where the server was killed meanwhile: the file plays all the same."""


@dataclass(frozen=True, slots=True)
class Recording:
    note: Note
    path: Path
    num_bytes: int


class Library:
    """``folder`` is made where it is missing. Raises OSError."""

    def __init__(self, section: RecordingSection, folder: Path) -> None:
        self._section = section
        self._folder = folder

    def video_path(self, recording_id: str) -> Path:
        return self._folder / f"{recording_id}.mp4"

    def write_note(self, note: Note) -> None:
        """In one step, so that a reader never sees half of it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._note_path(note.recording_id)
        fresh = path.with_suffix(".part")
        fresh.write_text(json.dumps(asdict(note)))
        fresh.replace(path)

    def all(self) -> list[Recording]:
        """The newest first. What is no recording of ours is passed over."""
        found = [self.find(path.stem) for path in self._folder.glob("*.json")] if self._folder.is_dir() else []
        known = [recording for recording in found if recording is not None]
        return sorted(known, key=lambda recording: recording.note.started_at_s, reverse=True)

    def find(self, recording_id: str) -> Recording | None:
        """None for an id that is none of ours, whatever it looks like."""
        if not _ID.fullmatch(recording_id):
            return None
        try:
            note = Note(**json.loads(self._note_path(recording_id).read_text()))
            path = self.video_path(recording_id)
            num_bytes = path.stat().st_size
            if not note.is_complete:
                note = replace(note, num_frames=count_frames(path))
        except (FileNotFoundError, ValueError, TypeError):
            return None
        return Recording(note, path, num_bytes)

    def delete(self, recording_id: str) -> None:
        for path in (self.video_path(recording_id), self._note_path(recording_id)):
            path.unlink(missing_ok=True)

    def sweep(self, now_s: float, running: Collection[str]) -> list[str]:
        """Delete what is too old, too many or too much, the oldest first; never what is ``running``, which counts
        also where nothing of it is on the disk yet. Returns their ids.
        """
        recordings = self.all()
        kept = len({*running, *(recording.note.recording_id for recording in recordings)})
        total_bytes = sum(recording.num_bytes for recording in recordings)
        deleted = []
        for recording in reversed(recordings):
            is_old = now_s - recording.note.started_at_s > self._section.max_age_s
            is_too_much = kept > self._section.max_count or total_bytes > self._section.max_total_bytes
            if recording.note.recording_id in running or not (is_old or is_too_much):
                continue
            self.delete(recording.note.recording_id)
            deleted.append(recording.note.recording_id)
            kept -= 1
            total_bytes -= recording.num_bytes
        return deleted

    def check(self) -> None:
        """Raises OSError unless the folder can be written to."""
        self._folder.mkdir(parents=True, exist_ok=True)
        if not os.access(self._folder, os.W_OK | os.X_OK):
            raise PermissionError(f"{self._folder} can't be written to")

    def _note_path(self, recording_id: str) -> Path:
        return self._folder / f"{recording_id}.json"
