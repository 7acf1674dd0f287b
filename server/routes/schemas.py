"""The shapes of HTTP bodies. See clients/protocol/README.md."""

from __future__ import annotations

from dataclasses import asdict, fields
from datetime import UTC, datetime
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ithaka.server.engine_client import ModelState, ModelStatus
from ithaka.server.errors import ERROR_CODES
from ithaka.server.session.events import State
from ithaka.server.session.messages import MAX_PROMPT_CHARACTERS, MAX_SEQ, ControlBody, FrameSeq, Role
from ithaka.server.session.registry import SessionRegistry, SessionWish
from ithaka.server.session.session import Session
from ithaka.server.session.spec import Pacing
from ithaka.workers.contract import Delivery, ModelDescription, Pixels


class Schema(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class CreateBody(Schema):
    """Only ``model`` is needed. ``max_frames`` is met by whole chunks."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"model": "labyrinth", "seed": 7}]})

    model: Annotated[str, Field(min_length=1, max_length=64)]
    seed: Annotated[int, Field(strict=True, ge=0, le=MAX_SEQ)] = 0
    prompt: Annotated[str, Field(max_length=MAX_PROMPT_CHARACTERS)] = ""
    pixels: Pixels = "lossy"
    pacing: Pacing = "media"
    window_frames: Annotated[int, Field(strict=True, ge=2, le=256)] | None = None
    max_frames: Annotated[int, Field(strict=True, ge=1, le=MAX_SEQ)] | None = None
    delivery: Delivery = "lossless"
    record: bool = False
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="The model's own, judged by it when the session starts: where it does not take them, the session ends with "
        "the reason `invalid_session_options` after this request was answered.",
    )

    @model_validator(mode="after")
    def _live_is_paced(self) -> Self:
        if self.delivery == "live" and (self.pacing, self.pixels) != ("media", "lossy"):
            raise ValueError("delivery live goes with pacing media and pixels lossy")
        return self

    def wish(self) -> SessionWish:
        return SessionWish(**{name: value for name, value in dict(self).items() if name != "record"})


class ControlRequest(ControlBody):
    """A control; ``control_id`` is given by the server where it is left out."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"pressed": ["KeyW"]}]})

    control_id: FrameSeq | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.model_fields_set - {"control_id"}:
            raise ValueError(f"it says nothing; give at least one of {', '.join(ControlBody.model_fields)}")
        return self


class ControlTaken(Schema):
    control_id: int


class TokenBody(Schema):
    model_config = ConfigDict(json_schema_extra={"examples": [{"role": "viewer"}]})

    role: Role = "controller"


class TokenView(Schema):
    role: Role
    token: str
    token_expires_at: datetime


class SessionView(Schema):
    id: str
    state: State
    model: str
    seed: int
    prompt: str
    pixels: Pixels
    pacing: Pacing
    delivery: Delivery
    width: int | None
    height: int | None
    fps: int | None
    window_frames: int
    created_at: datetime
    queue_position: int | None
    stream_path: str
    generated_seq: int
    dropped_frames: int
    """In front of the encoder; only in live."""
    sent_seq: int
    decoded_seq: int
    delivered: bool | None
    reason: str
    message: str
    """Why it ended, for a human; empty while it lives."""
    retryable: bool
    """The same request may succeed soon."""


class CreatedView(SessionView):
    """The only answer that carries a token."""

    token: str
    token_expires_at: datetime


class SessionList(Schema):
    sessions: tuple[SessionView, ...]


class ModelView(Schema):
    """Sizes in pixels, ``fps`` in frames of media time; null until the model was ready once."""

    name: str
    state: ModelState
    message: str
    ranks: int
    max_sessions: int
    sessions: int
    restarts: int
    family: str | None
    width: int | None
    height: int | None
    fps: int | None
    chunk_frames: int | None
    controls: tuple[str, ...] | None
    takes_prompt: bool | None
    takes_pointer: bool | None
    weights: str | None


class ModelList(Schema):
    models: tuple[ModelView, ...]


class HealthView(Schema):
    status: str


class ErrorDetail(Schema):
    code: str
    message: str
    retryable: bool
    field: str | None = None


class ErrorView(Schema):
    error: ErrorDetail


def date_of(seconds: float) -> datetime:
    """Seconds since 1970 → UTC."""
    return datetime.fromtimestamp(seconds, UTC)


def session_view(session: Session, registry: SessionRegistry) -> SessionView:
    return SessionView(**_session_fields(session, registry))


def created_view(session: Session, registry: SessionRegistry, token: str, expires_s: float) -> CreatedView:
    return CreatedView(**_session_fields(session, registry), token=token, token_expires_at=date_of(expires_s))


def _session_fields(session: Session, registry: SessionRegistry) -> dict[str, Any]:
    spec, data, known, flow = session.spec, session.data, session.description, session.flow
    return {
        "id": spec.session_id,
        "state": data.state,
        "model": spec.model,
        "seed": spec.seed,
        "prompt": spec.prompt,
        "pixels": spec.pixels,
        "pacing": spec.pacing,
        "delivery": spec.delivery,
        "width": known and known.width,
        "height": known and known.height,
        "fps": known and known.fps,
        "window_frames": flow.delivery.window if flow else spec.window_frames,
        "created_at": date_of(session.created_at_s),
        "queue_position": registry.queue_position(spec.session_id),
        "stream_path": f"/v1/sessions/{spec.session_id}/stream",
        "generated_seq": flow.delivery.generated_through if flow else 0,
        "dropped_frames": flow.losses.num_dropped if flow else 0,
        "sent_seq": flow.delivery.sent_through if flow else 0,
        "decoded_seq": flow.delivery.decoded_through if flow else 0,
        "delivered": data.delivered,
        "reason": data.reason,
        "message": session.message,
        "retryable": data.retryable,
    }


def model_view(status: ModelStatus, registry: SessionRegistry) -> ModelView:
    known = {} if status.description is None else asdict(status.description)
    names = ModelView.model_fields.keys() & {field.name for field in fields(ModelDescription)}
    return ModelView(
        name=status.name,
        state=status.state,
        message=status.message,
        ranks=status.num_ranks,
        max_sessions=status.max_sessions,
        sessions=registry.num_inside(status.name),
        restarts=status.restarts,
        **{name: known.get(name) for name in names},
    )


def error_answers(*codes: str) -> dict[int | str, dict[str, Any]]:
    """OpenAPI answers for the codes, with an example each."""
    answers: dict[int | str, dict[str, Any]] = {}
    for code in codes:
        known = ERROR_CODES[code]
        assert known.status is not None
        answer = answers.setdefault(
            known.status, {"model": ErrorView, "description": "", "content": {"application/json": {"examples": {}}}}
        )
        detail = {"code": code, "message": known.meaning, "retryable": known.retryable}
        answer["content"]["application/json"]["examples"][code] = {"value": {"error": detail}}
        answer["description"] = f"{answer['description']} {code}: {known.meaning}".strip()
    return answers
