"""Every code that reaches a client, in one table, and the one error that carries it.

``ApiError`` is the fault of a request; ``ProtocolViolation`` that of a connected client. Engine codes that are not in the
table (a family's own) pass through as reasons of a session's end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Place = Literal["http", "websocket", "end"]
"""Where a code shows up: in an HTTP answer, in an ``error`` message, or as the reason of a session's end."""

CLOSE_GOING_AWAY = 1001
CLOSE_VIOLATION = 1008
CLOSE_TOO_LARGE = 1009
CLOSE_FAILED = 1011
CLOSE_VIEWERS_FULL = 1013
CLOSE_UNAUTHORIZED = 4401
CLOSE_FORBIDDEN = 4403
CLOSE_UNKNOWN = 4404
CLOSE_CONFLICT = 4409
CLOSE_GONE = 4410
CLOSE_TOO_MANY = 4429


@dataclass(frozen=True, slots=True)
class ErrorCode:
    """``status`` is the HTTP status, ``close_code`` the WebSocket's; None where the code can't appear there."""

    meaning: str
    retryable: bool = False
    status: int | None = None
    close_code: int | None = None
    is_reason: bool = False

    @property
    def places(self) -> tuple[Place, ...]:
        shown: list[Place] = []
        if self.status is not None:
            shown.append("http")
        if self.close_code is not None:
            shown.append("websocket")
        if self.is_reason:
            shown.append("end")
        return tuple(shown)


ERROR_CODES: dict[str, ErrorCode] = {
    # requests
    "request_malformed": ErrorCode("That is no request of HTTP; the message says why.", status=400),
    "head_too_large": ErrorCode("Request line and headers, or trailers, are larger than the server takes.", status=431),
    "head_timeout": ErrorCode("Request line and headers did not come in time.", retryable=True, status=408),
    "invalid_json": ErrorCode("The body is not JSON in UTF-8, or has a key twice in one object.", status=400),
    "invalid_request": ErrorCode("A field is missing, unknown or out of range; `field` names it.", status=422),
    "control_not_taken": ErrorCode("The model takes no prompt or no pointer.", status=422, close_code=CLOSE_VIOLATION),
    "control_unknown_key": ErrorCode("The model has no such key; the message names those it has.", status=422),
    "body_too_large": ErrorCode("The body is larger than the server takes.", status=413),
    "body_timeout": ErrorCode("The body did not come in time.", retryable=True, status=408),
    "too_many_connections": ErrorCode("As many connections as the server takes are open.", retryable=True, status=503),
    "unsupported_media_type": ErrorCode("The body is of another type than the path takes; the message names it.", status=415),
    "path_unknown": ErrorCode("Nothing is served at this path.", status=404),
    "method_not_allowed": ErrorCode("The path does not know this method; see `Allow`.", status=405),
    "model_unknown": ErrorCode("No model has this name; see /v1/models.", status=404, is_reason=True),
    "model_unavailable": ErrorCode("The model failed at every start and was given up.", status=503, is_reason=True),
    "session_unknown": ErrorCode("No session has this id.", status=404, close_code=CLOSE_UNKNOWN),
    "session_ended": ErrorCode("The session is over.", status=409, close_code=CLOSE_UNKNOWN),
    "session_not_started": ErrorCode("The session has no model yet.", retryable=True, status=409),
    "invalid_session_options": ErrorCode(
        "The model does not take these `options`; the message says why.", status=422, is_reason=True
    ),
    "invalid_control": ErrorCode("A control is too large, or holds what is no text.", status=422, close_code=CLOSE_VIOLATION),
    "control_stale": ErrorCode("A control_id has to be larger than the last one.", status=409, close_code=CLOSE_VIOLATION),
    "queue_full": ErrorCode("Every place and the queue are taken; see `Retry-After`.", retryable=True, status=429),
    "listeners_full": ErrorCode("Too many event streams of this session are open.", retryable=True, status=429),
    "not_ready": ErrorCode("No group can take a session now; the message says why.", retryable=True, status=503),
    "internal": ErrorCode("A fault of the server; it is in its log.", status=500, close_code=CLOSE_FAILED, is_reason=True),
    # media
    "sdp_invalid": ErrorCode("The offer or fragment is not SDP that can be answered.", status=400),
    "codec_unsupported": ErrorCode("The offer has no codec that this server can send.", status=406),
    "track_unsupported": ErrorCode("A track can't carry this session's frames; the message says what can.", status=409),
    "ice_restart_unsupported": ErrorCode("A connection keeps its ICE session; open another one.", status=422),
    "candidates_full": ErrorCode("The connection was told as many candidates as it takes in its life.", status=409),
    "fragments_too_fast": ErrorCode("Too many fragments for one connection in a second.", retryable=True, status=429),
    "etag_mismatch": ErrorCode("`If-Match` names another ICE session than the connection's.", status=412),
    "connection_unknown": ErrorCode("The session has no such WebRTC connection.", status=404),
    "connections_full": ErrorCode("As many WebRTC connections as the server takes are open.", retryable=True, status=503),
    "recording_off": ErrorCode("The server records nothing; `recording.folder` has to name a folder.", status=409),
    "recording_unknown": ErrorCode("There is no such recording; it may have been deleted.", status=404),
    # access
    "key_missing": ErrorCode("An API key or a session token is needed.", status=401, close_code=CLOSE_UNAUTHORIZED),
    "key_invalid": ErrorCode("The API key or token is not known.", status=401, close_code=CLOSE_UNAUTHORIZED),
    "token_expired": ErrorCode("The token's time is over; ask for a fresh one.", status=401, close_code=CLOSE_UNAUTHORIZED),
    "role_not_allowed": ErrorCode("The token's role or session does not allow this.", status=403, close_code=CLOSE_FORBIDDEN),
    "host_not_allowed": ErrorCode("The Host header names another server.", status=403, close_code=CLOSE_FORBIDDEN),
    "origin_not_allowed": ErrorCode("The page's origin may not use this server.", status=403, close_code=CLOSE_FORBIDDEN),
    # connections
    "subprotocol_missing": ErrorCode("The client has to offer the subprotocol ithaka.v1.", close_code=CLOSE_VIOLATION),
    "controller_connected": ErrorCode("Another controller is connected.", retryable=True, close_code=CLOSE_CONFLICT),
    "viewers_full": ErrorCode("The session has as many viewers as it takes.", retryable=True, close_code=CLOSE_VIEWERS_FULL),
    "upgrade_invalid": ErrorCode("The request opens no WebSocket; the message says what it lacks.", status=400),
    "frame_invalid": ErrorCode("The client sent what is no frame of a WebSocket.", close_code=CLOSE_VIOLATION),
    "message_too_large": ErrorCode("A message has more bytes or fragments than the server takes.", close_code=CLOSE_TOO_LARGE),
    "message_invalid": ErrorCode(
        "A message is not JSON, has a key twice, or is of no known type and shape.", close_code=CLOSE_VIOLATION
    ),
    "binary_not_allowed": ErrorCode("A client sends text messages only.", close_code=CLOSE_VIOLATION),
    "resume_missing": ErrorCode("The first message of a connection is resume, and there is one.", close_code=CLOSE_VIOLATION),
    "resume_foreign": ErrorCode("The stream is not this session's.", close_code=CLOSE_GONE),
    "resume_stale": ErrorCode("The client acknowledged that frame already.", close_code=CLOSE_GONE),
    "resume_ahead": ErrorCode("That frame lies beyond what was sent.", close_code=CLOSE_GONE),
    "resume_gone": ErrorCode("The frames a decoder would need are no longer kept.", close_code=CLOSE_GONE),
    "ack_beyond_sent": ErrorCode("An acknowledgement lies beyond what was sent.", close_code=CLOSE_VIOLATION),
    "ack_shrunk": ErrorCode("An acknowledgement is smaller than an earlier one.", close_code=CLOSE_VIOLATION),
    "ack_invalid": ErrorCode("decoded_through is larger than received_through.", close_code=CLOSE_VIOLATION),
    "ack_timeout": ErrorCode("An acknowledgement is overdue.", retryable=True, close_code=CLOSE_VIOLATION),
    "pong_timeout": ErrorCode("The client does not answer pings.", retryable=True, close_code=CLOSE_VIOLATION),
    "rate_exceeded": ErrorCode("Too many messages or frames in a second.", close_code=CLOSE_TOO_MANY),
    # ends
    "server_stopping": ErrorCode("The server stops.", retryable=True, status=503, close_code=CLOSE_GOING_AWAY, is_reason=True),
    "fin_early": ErrorCode("The client said fin before eos; the session ends.", close_code=CLOSE_VIOLATION, is_reason=True),
    "ended": ErrorCode("The client asked for the end.", is_reason=True),
    "forced": ErrorCode("The end was forced; frames may be missing.", is_reason=True),
    "finished": ErrorCode("The model had no more frames.", is_reason=True),
    "max_frames": ErrorCode("As many frames as asked for were generated.", is_reason=True),
    "max_duration": ErrorCode("The session reached the longest time the server allows.", is_reason=True),
    "queue_timeout": ErrorCode("No place became free in time.", retryable=True, is_reason=True),
    "connect_timeout": ErrorCode("No controller connected in time.", retryable=True, is_reason=True),
    "detach_timeout": ErrorCode("The lost controller did not come back in time.", retryable=True, is_reason=True),
    "start_timeout": ErrorCode("The model did not open the session in time.", retryable=True, is_reason=True),
    "end_timeout": ErrorCode("The model did not end the session in time.", retryable=True, is_reason=True),
    "model_not_ready": ErrorCode("The model was lost just then; it comes back by itself.", retryable=True, is_reason=True),
    "session_limit": ErrorCode("The model's workers hold as many sessions as they can.", retryable=True, is_reason=True),
    "stream_broken": ErrorCode("A frame was lost between model and server.", retryable=True, is_reason=True),
    "encode_failed": ErrorCode("A frame could not be encoded.", is_reason=True),
    "encoder_size_unsupported": ErrorCode("The encoder can't carry the model's size or rate.", is_reason=True),
    "encoder_open_failed": ErrorCode("The encoder refused its settings.", is_reason=True),
    "encoder_exists": ErrorCode("The encoder was opened twice, a fault of the server.", is_reason=True),
    "frame_layout_mismatch": ErrorCode("The model made a frame that is not of its size.", is_reason=True),
    "frame_out_of_order": ErrorCode("The model's frames came in a wrong order.", is_reason=True),
    "packet_too_large": ErrorCode("An encoded frame is larger than any can be sent.", is_reason=True),
    "worker_lost": ErrorCode("The model's workers were lost; they come back by themselves.", retryable=True, is_reason=True),
    "encoder_lost": ErrorCode("The encoder was lost; it comes back by itself.", retryable=True, is_reason=True),
}


class ApiError(Exception):
    """A request that can't be served. ``field`` is the path of the one to blame, e.g. ``body.model``."""

    def __init__(self, code: str, message: str, *, field: str = "", headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.field = field
        self.headers = headers or {}

    @property
    def status(self) -> int:
        status = ERROR_CODES[self.code].status
        assert status is not None, f"{self.code} is no HTTP error"
        return status


class ProtocolViolation(Exception):
    """A connection that can't go on: the client gets ``error`` and the code's close code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code

    @property
    def close_code(self) -> int:
        close_code = ERROR_CODES[self.code].close_code
        assert close_code is not None, f"{self.code} is no WebSocket error"
        return close_code


def error_body(code: str, message: str, field: str = "") -> dict[str, dict[str, str | bool]]:
    """The one shape of an HTTP error."""
    error: dict[str, str | bool] = {"code": code, "message": message, "retryable": ERROR_CODES[code].retryable}
    if field:
        error["field"] = field
    return {"error": error}
