"""What can go wrong, by whose fault it is. Every error carries the server's stable ``code`` and says whether to try again.

::

    IthakaError
     ├─ ApiError                  the server answered a call with an error
     │   ├─ RequestInvalidError     any other 4xx: ``field`` names what to change, where one part is to blame
     │   ├─ AccessError             401, 403: key or token missing, expired, or without the right
     │   ├─ NotFoundError           404: no such session or model
     │   ├─ ConflictError           409: not possible in the state that the session is in
     │   └─ CapacityError           429, 503: try again, after ``retry_after_s`` where it is known
     ├─ TransportError            the server can't be reached
     │   ├─ ConnectFailedError      nobody answered
     │   ├─ ConnectionLostError     a stream was cut and could not be resumed in time
     │   └─ DeadlineError           no answer within the time given
     ├─ StreamError               the server ended the stream
     │   ├─ StreamFailedError       the session failed; frames up to ``last_seq`` were delivered
     │   ├─ StreamRefusedError      the stream may not be opened: token, role, or another controller
     │   └─ ResumeRefusedError      the stream can't be continued from here
     ├─ ProtocolError             a peer broke the protocol
     ├─ DecodeError               a frame could not be decoded
     └─ UsageError                a call that this client can't take now
"""

from __future__ import annotations

import json
from typing import Any


class IthakaError(Exception):
    """Base of all. ``code`` is stable, the message is for humans, ``retryable`` means that the same call may succeed soon."""

    def __init__(self, code: str, message: str, *, retryable: bool = False) -> None:
        super().__init__(f"{message} [{code}]")
        self.code = code
        self.message = message
        self.retryable = retryable


class ApiError(IthakaError):
    """``status`` is the HTTP status, ``field`` the part of the request to blame, or None."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        retryable: bool = False,
        status: int,
        field: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(code, message, retryable=retryable)
        self.status = status
        self.field = field
        self.retry_after_s = retry_after_s


class RequestInvalidError(ApiError):
    """Something in the request is wrong; ``field`` names it."""


class AccessError(ApiError):
    """The API key or token is missing, wrong, expired, or lacks the right."""


class NotFoundError(ApiError):
    """No such session or model."""


class ConflictError(ApiError):
    """The session's state does not allow this."""


class CapacityError(ApiError):
    """No room now."""


class TransportError(IthakaError):
    """The server can't be reached."""


class ConnectFailedError(TransportError):
    """Nobody answered."""


class ConnectionLostError(TransportError):
    """The stream was cut and could not be resumed in time."""


class DeadlineError(TransportError):
    """No answer within the time given."""


class StreamError(IthakaError):
    """The server ended the stream."""


class StreamFailedError(StreamError):
    """The session failed. All frames up to ``last_seq`` were delivered before this was raised."""

    def __init__(self, code: str, message: str, *, retryable: bool = False, last_seq: int = 0) -> None:
        super().__init__(code, message, retryable=retryable)
        self.last_seq = last_seq


class StreamRefusedError(StreamError):
    """The stream may not be opened or kept: token, origin, role, or another controller. ``close_code`` is the WebSocket's."""

    def __init__(self, code: str, message: str, *, retryable: bool = False, close_code: int = 1006) -> None:
        super().__init__(code, message, retryable=retryable)
        self.close_code = close_code


class ResumeRefusedError(StreamError):
    """The stream can't be continued from here: the server no longer has it, or it is another one."""


class ProtocolError(IthakaError):
    """A peer broke the protocol."""

    def __init__(self, message: str, *, code: str = "protocol_violation") -> None:
        super().__init__(code, message)


class DecodeError(IthakaError):
    """The access unit of frame ``seq`` could not be decoded."""

    def __init__(self, seq: int, message: str) -> None:
        super().__init__("decode_failed", message)
        self.seq = seq


class UsageError(IthakaError):
    """A call that this client can't take now."""

    def __init__(self, message: str) -> None:
        super().__init__("usage", message)


def api_error(
    status: int, code: str, message: str, *, retryable: bool, field: str | None = None, retry_after_s: float | None = None
) -> ApiError:
    """The class that fits an HTTP status."""
    kinds: dict[int, type[ApiError]] = {
        401: AccessError,
        403: AccessError,
        404: NotFoundError,
        409: ConflictError,
        429: CapacityError,
        503: CapacityError,
    }
    kind = kinds.get(status, RequestInvalidError if 400 <= status < 500 else ApiError)
    return kind(code, message, retryable=retryable, status=status, field=field, retry_after_s=retry_after_s)


def read_error(body: bytes | str) -> dict[str, Any]:
    """The error in an answer's body; empty where it is none of the server's, as of a proxy between."""
    try:
        answer = json.loads(body)
    except ValueError:
        return {}
    error = answer.get("error") if isinstance(answer, dict) else None
    return error if isinstance(error, dict) else {}


TOKEN_INVALID = 4401
SESSION_UNKNOWN = 4404
CONTROLLER_CONFLICT = 4409

REFUSALS: dict[int, tuple[str, str]] = {
    1009: ("message_too_large", "A message was larger than the server takes."),
    TOKEN_INVALID: ("token_invalid", "The session's token is missing or has expired; ask for a fresh one."),
    4403: ("forbidden", "This origin or role may not open the stream."),
    SESSION_UNKNOWN: ("session_unknown", "The server has no such session; it may have ended."),
    CONTROLLER_CONFLICT: ("controller_conflict", "Another controller is connected to this session."),
    1013: ("viewers_full", "The session has as many viewers as it takes."),
    4429: ("too_many_messages", "This client sent more messages than the server takes."),
}
FAILURES: dict[int, tuple[str, str]] = {
    1001: ("server_stopping", "The server stops; create a new session once it is back."),
    1011: ("internal", "The server failed; its log says how."),
    1012: ("worker_lost", "The worker behind this session was lost; create a new session."),
}


def close_error(close_code: int, message: str = "", *, code: str = "", retryable: bool = False) -> IthakaError:
    """The error behind a WebSocket's close code, in the server's words where it gave some.

    An overdue answer, or a code that is not known, counts as a lost connection: it may be resumed.
    """
    if close_code in REFUSALS:
        default_code, words = REFUSALS[close_code]
        return StreamRefusedError(code or default_code, message or words, retryable=retryable, close_code=close_code)
    if close_code in FAILURES:
        default_code, words = FAILURES[close_code]
        return StreamFailedError(code or default_code, message or words, retryable=True)
    if close_code == 4410:
        return ResumeRefusedError(code or "resume_refused", message or "The stream can't be resumed from there.")
    if close_code == 1008 and not retryable:
        words = message or "The server closed the stream: this client broke the protocol."
        return ProtocolError(words, code=code or "protocol_violation")
    if close_code == 1008:
        return ConnectionLostError(code or "connection_lost", message or "The connection was lost.", retryable=True)
    if code:
        return StreamRefusedError(code, message or "The server refused the stream.", retryable=retryable, close_code=close_code)
    return ConnectionLostError("connection_lost", f"The connection was lost (close code {close_code}).", retryable=True)
