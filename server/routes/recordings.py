"""Recordings: listed, downloaded in ranges, deleted."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import FileResponse

from ithaka.server.recording.library import Recording
from ithaka.server.routes.schemas import Schema, date_of, error_answers
from ithaka.server.routes.services import Operator, principal_of, services_of
from ithaka.server.routes.sessions import ALWAYS

router = APIRouter(prefix="/v1/recordings", tags=["recordings"])


class RecordingView(Schema):
    """``complete`` is false while it runs, and where the server was killed meanwhile; what is there plays all the same."""

    id: str
    session: str
    model: str
    width: int
    height: int
    fps: int
    started_at: datetime
    bytes: int
    frames: int
    skipped_frames: int
    complete: bool
    video_path: str


class RecordingList(Schema):
    recordings: tuple[RecordingView, ...]


async def _recording(request: Request, recording_id: str) -> Recording:
    """For the operator, and for the controller of the session that was recorded."""
    principal = principal_of(request)
    recording = await services_of(request).recordings.find(recording_id)
    principal.require_session(recording.note.session_id, to_control=True)
    return recording


OwnRecording = Annotated[Recording, Depends(_recording)]


@router.get("", summary="List recordings", responses=error_answers(*ALWAYS))
async def list_all(request: Request, _: Operator) -> RecordingList:
    """The newest first."""
    recordings = await services_of(request).recordings.all()
    return RecordingList(recordings=tuple(_view(recording) for recording in recordings))


@router.get("/{recording_id}", summary="Look at a recording", responses=error_answers(*ALWAYS, "recording_unknown"))
async def look(recording: OwnRecording) -> RecordingView:
    return _view(recording)


@router.get(
    "/{recording_id}/video",
    summary="Download a recording",
    response_class=FileResponse,
    responses={
        200: {"content": {"video/mp4": {"schema": {"type": "string", "format": "binary"}}}},
        206: {"description": "The range that was asked for."},
        **error_answers(*ALWAYS, "recording_unknown"),
    },
)
async def download(recording: OwnRecording) -> FileResponse:
    """One that still runs ends where it stands now."""
    return FileResponse(recording.path, media_type="video/mp4", filename=f"{recording.note.recording_id}.mp4")


@router.delete(
    "/{recording_id}", status_code=204, summary="Delete a recording", responses=error_answers(*ALWAYS, "recording_unknown")
)
async def delete(recording: OwnRecording, request: Request) -> None:
    await services_of(request).recordings.delete(recording.note.recording_id)


def _view(recording: Recording) -> RecordingView:
    note = recording.note
    return RecordingView(
        id=note.recording_id,
        session=note.session_id,
        model=note.model,
        width=note.width,
        height=note.height,
        fps=note.fps,
        started_at=date_of(note.started_at_s),
        bytes=recording.num_bytes,
        frames=note.num_frames,
        skipped_frames=note.skipped_frames,
        complete=note.is_complete,
        video_path=f"/v1/recordings/{note.recording_id}/video",
    )
