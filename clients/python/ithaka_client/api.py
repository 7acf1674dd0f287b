"""The HTTP calls, typed. Each has a deadline; each failure is one of ``errors``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import quote

import httpx

from ithaka_client.errors import ApiError, ConnectFailedError, DeadlineError, ProtocolError, UsageError, api_error, read_error

Pixels = Literal["lossy", "exact"]
Pacing = Literal["media", "unpaced"]
Delivery = Literal["lossless", "live"]
Role = Literal["controller", "viewer"]

TERMINAL_STATES = frozenset({"closed", "failed"})


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What can be served. ``raw`` is the server's whole answer."""

    name: str
    state: str
    width: int | None
    height: int | None
    fps: int | None
    controls: tuple[str, ...]
    takes_prompt: bool
    takes_pointer: bool
    raw: dict[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A session as the server described it at one moment.

    Size and rate are None until the model was ready once; ``delivered`` is None until the end.
    """

    id: str
    state: str
    model: str
    seed: int
    prompt: str
    pixels: str
    width: int | None
    height: int | None
    fps: int | None
    window_frames: int
    queue_position: int | None
    generated_seq: int
    sent_seq: int
    decoded_seq: int
    delivered: bool | None
    reason: str
    stream_path: str
    token: str | None = field(repr=False)
    raw: dict[str, Any] = field(repr=False)

    @property
    def is_over(self) -> bool:
        return self.state in TERMINAL_STATES


class Api:
    """``base_url`` like ``http://127.0.0.1:8765``; ``timeout_s`` and ``transport`` hold for each call."""

    def __init__(
        self, base_url: str, api_key: str | None, *, timeout_s: float, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        try:
            url = httpx.URL(base_url)
        except httpx.InvalidURL as error:
            raise UsageError(f"base_url {base_url!r} can't be read: {error}.") from None
        if url.scheme not in ("http", "https") or not url.host:
            raise UsageError(f"base_url must look like http://127.0.0.1:8765, not {base_url!r}.")
        self._url = url
        self._timeout_s = timeout_s
        self._api_key = api_key
        self._http = httpx.AsyncClient(base_url=url, headers=_bearer(api_key), timeout=timeout_s, transport=transport)

    @property
    def has_key(self) -> bool:
        return self._api_key is not None

    def stream_url(self, stream_path: str) -> str:
        scheme = "wss" if self._url.scheme == "https" else "ws"
        return str(self._url.join(stream_path).copy_with(scheme=scheme))

    async def models(self) -> list[ModelInfo]:
        answer = await self._call("GET", "/v1/models")
        models = answer.get("models")
        if not isinstance(models, list):
            raise ProtocolError("GET /v1/models: the answer has no list of models")
        return [_parse_model(model) for model in models]

    async def create_session(self, body: dict[str, Any]) -> SessionInfo:
        return _parse_session(await self._call("POST", "/v1/sessions", json=body))

    async def sessions(self) -> list[SessionInfo]:
        answer = await self._call("GET", "/v1/sessions")
        sessions = answer.get("sessions")
        if not isinstance(sessions, list):
            raise ProtocolError("GET /v1/sessions: the answer has no list of sessions")
        return [_parse_session(session) for session in sessions]

    async def session(self, session_id: str, *, token: str | None = None) -> SessionInfo:
        return _parse_session(await self._call("GET", _session_path(session_id), token=token))

    async def delete_session(self, session_id: str, *, force: bool, token: str | None = None) -> None:
        await self._call("DELETE", _session_path(session_id), params={"force": "true"} if force else {}, token=token)

    async def mint_token(self, session_id: str, role: Role) -> str:
        answer = await self._call("POST", f"{_session_path(session_id)}/token", json={"role": role})
        token = answer.get("token")
        if not isinstance(token, str):
            raise ProtocolError("POST token: the answer has no token")
        return token

    async def offer_webrtc(self, session_path: str, sdp: str, token: str) -> str:
        """The answer's SDP. Raises ConflictError where the session still waits for its place."""
        answer = await self._call("POST", f"{session_path}/webrtc", json={"type": "offer", "sdp": sdp}, token=token)
        if not isinstance(answer.get("sdp"), str):
            raise ProtocolError("POST webrtc: the answer has no SDP")
        return str(answer["sdp"])

    async def aclose(self) -> None:
        await self._http.aclose()

    async def _call(
        self,
        method: str,
        path: str,
        *,
        json: dict[str, Any] | None = None,
        params: dict[str, str] | None = None,
        token: str | None = None,
    ) -> dict[str, Any]:
        # A session's token opens that session also where no API key is known.
        headers = {} if self.has_key else _bearer(token)
        try:
            response = await self._http.request(method, path, json=json, params=params, headers=headers)
        except httpx.TimeoutException:
            raise DeadlineError(
                "request_timeout", f"{method} {path}: no answer within {self._timeout_s:g} s.", retryable=True
            ) from None
        except httpx.HTTPError as error:
            raise ConnectFailedError(
                "connect_failed", f"{method} {path}: {error or type(error).__name__}. Is the daemon running?", retryable=True
            ) from error
        if response.is_error:
            raise _parse_error(response)
        if not response.content:
            return {}
        answer = _json(response)
        if not isinstance(answer, dict):
            raise ProtocolError(f"{method} {path}: the answer is not a JSON object")
        return answer


def _bearer(secret: str | None) -> dict[str, str]:
    return {} if secret is None else {"Authorization": f"Bearer {secret}"}


def _session_path(session_id: str) -> str:
    return f"/v1/sessions/{quote(session_id, safe='')}"


def _json(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return None


def _parse_error(response: httpx.Response) -> ApiError:
    error = read_error(response.content)
    retry_after = response.headers.get("Retry-After", "")
    where = error.get("field")
    return api_error(
        response.status_code,
        str(error.get("code", f"http_{response.status_code}")),
        str(error.get("message", f"The server answered with HTTP status {response.status_code}.")),
        retryable=bool(error.get("retryable", False)),
        field=where if isinstance(where, str) else None,
        retry_after_s=float(retry_after) if retry_after.isdigit() else None,
    )


def _parse_model(answer: Any) -> ModelInfo:
    try:
        return ModelInfo(
            name=str(answer["name"]),
            state=str(answer["state"]),
            width=answer.get("width"),
            height=answer.get("height"),
            fps=answer.get("fps"),
            controls=tuple(answer.get("controls") or ()),
            takes_prompt=bool(answer.get("takes_prompt")),
            takes_pointer=bool(answer.get("takes_pointer")),
            raw=answer,
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ProtocolError(f"a model in the server's answer can't be read: {error!r}") from None


def _parse_session(answer: Any) -> SessionInfo:
    try:
        return SessionInfo(
            id=str(answer["id"]),
            state=str(answer["state"]),
            model=str(answer["model"]),
            seed=int(answer["seed"]),
            prompt=str(answer["prompt"]),
            pixels=str(answer["pixels"]),
            width=answer["width"],
            height=answer["height"],
            fps=answer["fps"],
            window_frames=int(answer["window_frames"]),
            queue_position=answer.get("queue_position"),
            generated_seq=int(answer["generated_seq"]),
            sent_seq=int(answer["sent_seq"]),
            decoded_seq=int(answer["decoded_seq"]),
            delivered=answer.get("delivered"),
            reason=str(answer.get("reason") or ""),
            stream_path=str(answer["stream_path"]),
            token=answer.get("token"),
            raw=answer,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProtocolError(f"a session in the server's answer can't be read: {error!r}") from None
