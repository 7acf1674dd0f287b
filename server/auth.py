"""Who may do what: API keys, session tokens, and which Host and Origin a request may carry. No I/O."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from ithaka.configs.schema import LOOPBACK_HOSTS, ServeConfig
from ithaka.server.errors import ApiError
from ithaka.server.session.messages import Role

TOKEN_SUBPROTOCOL = "ithaka.token."
_PAYLOAD = struct.Struct("!BQQ")
_ROLES: tuple[Role, ...] = ("controller", "viewer")


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks. Without ``session_id`` it is the operator: an API key, or anybody local on a keyless server.

    ``token_number`` tells the tokens of one session and role apart; 0 for none.
    """

    role: Role = "controller"
    session_id: str | None = None
    token_number: int = 0

    def require_operator(self) -> None:
        if self.session_id is not None:
            raise ApiError("role_not_allowed", "a session token does not allow this; use an API key")

    def require_session(self, session_id: str, *, to_control: bool) -> None:
        """Raises ApiError ``role_not_allowed``."""
        if self.session_id is not None and not hmac.compare_digest(self.session_id.encode(), session_id.encode()):
            raise ApiError("role_not_allowed", "the token belongs to another session")
        if to_control and self.role != "controller":
            raise ApiError("role_not_allowed", "a viewer's token does not allow this")


class SessionTokens:
    """Signed notes: which session, which role, until when. HMAC-SHA256 with a key that lives as long as the server.

    Form: ``<base64url of role, expiry, number, session id>.<base64url of the signature>``; fits a WebSocket subprotocol.
    """

    def __init__(self, secret: bytes, lifetime_s: float, wall_s: Callable[[], float]) -> None:
        self._secret = secret
        self._lifetime_s = lifetime_s
        self._wall_s = wall_s
        self._num_minted = 0

    def mint(self, session_id: str, role: Role) -> tuple[str, float]:
        """The token and when it expires, in seconds since 1970."""
        expires_s = int(self._wall_s() + self._lifetime_s)
        self._num_minted += 1
        payload = _PAYLOAD.pack(_ROLES.index(role), expires_s, self._num_minted) + session_id.encode()
        return f"{_encode(payload)}.{_encode(self._sign(payload))}", float(expires_s)

    def read(self, token: str) -> Principal:
        """Raises ApiError ``key_invalid`` or ``token_expired``."""
        unknown = ApiError("key_invalid", "the key or token is not known to this server")
        try:
            payload, signature = (_decode(part) for part in token.split("."))
        except (ValueError, binascii.Error):
            raise unknown from None
        if not hmac.compare_digest(signature, self._sign(payload)):
            raise unknown
        role_idx, expires_s, number = _PAYLOAD.unpack_from(payload)
        if self._wall_s() >= expires_s:
            raise ApiError("token_expired", "the token's time is over; POST …/token with the API key gives a fresh one")
        return Principal(_ROLES[role_idx], payload[_PAYLOAD.size :].decode(), number)

    def _sign(self, payload: bytes) -> bytes:
        return hmac.digest(self._secret, payload, "sha256")


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    """Only the one canonical spelling, so that a signature has no second form."""
    data = base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
    if _encode(data) != text:
        raise ValueError("not canonical")
    return data


class HostGuard:
    """Refuses a Host or Origin that is not ours. A web page elsewhere could reach a local server otherwise.

    Ports are not compared for Host: they differ behind a forwarding, and a foreign page can't choose the name.
    """

    def __init__(self, config: ServeConfig) -> None:
        server = config.server
        own = LOOPBACK_HOSTS if config.is_loopback else LOOPBACK_HOSTS | {server.host}
        self._names = {name.lower() for name in (*own, *server.allowed_hosts)}
        self._takes_addresses = not config.is_loopback
        self._origins = {origin.lower().rstrip("/") for origin in server.allowed_origins}

    def check(self, hosts: Sequence[str], origins: Sequence[str]) -> None:
        """The Host and Origin headers as sent: there is one Host, and every Origin counts.

        Raises ApiError ``host_not_allowed`` or ``origin_not_allowed``.
        """
        host = hosts[0] if len(hosts) == 1 else ""
        name = _host_name(host)
        if name not in self._names and not (self._takes_addresses and _is_address(name)):
            told = ", ".join(hosts)
            raise ApiError("host_not_allowed", f"Host {told!r} is not this server's; server.allowed_hosts can name it")
        if not all(self._takes_origin(origin.lower(), host.lower()) for origin in origins):
            told = ", ".join(origins)
            raise ApiError("origin_not_allowed", f"Origin {told!r} may not use this server; server.allowed_origins can name it")

    def _takes_origin(self, origin: str, host: str) -> bool:
        return origin in self._origins or origin in (f"http://{host}", f"https://{host}")


def _host_name(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Access:
    """Turns what a request carries into a Principal."""

    def __init__(self, config: ServeConfig, tokens: SessionTokens) -> None:
        self._key_digests = [_digest(key.get_secret_value()) for key in config.access.api_keys]
        self.tokens = tokens
        self.guard = HostGuard(config)

    def identify(self, authorization: str | None, subprotocols: Iterable[str] = ()) -> Principal:
        """Raises ApiError ``key_missing``, ``key_invalid`` or ``token_expired``."""
        credential = _bearer(authorization)
        for offered in subprotocols:
            if credential is None and offered.startswith(TOKEN_SUBPROTOCOL):
                credential = offered.removeprefix(TOKEN_SUBPROTOCOL)
        if credential is None:
            if self._key_digests:
                raise ApiError("key_missing", "send `Authorization: Bearer <API key or session token>`", headers=_CHALLENGE)
            return Principal()
        if self._is_key(credential):
            return Principal()
        try:
            return self.tokens.read(credential)
        except ApiError as error:
            error.headers.update(_CHALLENGE)
            raise

    def _is_key(self, credential: str) -> bool:
        """Looks at every key, in constant time each."""
        digest = _digest(credential)
        return any([hmac.compare_digest(digest, known) for known in self._key_digests])


_CHALLENGE = {"WWW-Authenticate": "Bearer"}


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _bearer(authorization: str | None) -> str | None:
    if authorization is None:
        return None
    scheme, _, credential = authorization.partition(" ")
    if scheme.lower() != "bearer" or not credential.strip():
        raise ApiError("key_invalid", "Authorization has to be `Bearer <API key or session token>`", headers=_CHALLENGE)
    return credential.strip()
