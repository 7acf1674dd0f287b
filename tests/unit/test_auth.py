"""Keys, tokens, and the Host and Origin that a request may carry."""

from __future__ import annotations

import base64
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from ithaka.configs.schema import AccessSection, ServeConfig, ServerSection
from ithaka.server.auth import TOKEN_SUBPROTOCOL, Access, HostGuard, Principal, SessionTokens
from ithaka.server.errors import ApiError

KEY = "0123456789abcdef-key"


class Wall:
    def __init__(self) -> None:
        self.now_s = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now_s


def access(*keys: str, wall: Wall | None = None) -> Access:
    config = ServeConfig(access=AccessSection(api_keys=tuple(SecretStr(key) for key in keys)))
    return Access(config, SessionTokens(b"k" * 32, 3600, wall or Wall()))


def guard(host: str = "127.0.0.1", *, hosts: tuple[str, ...] = (), origins: tuple[str, ...] = ()) -> HostGuard:
    keys = AccessSection(api_keys=(SecretStr(KEY),))
    return HostGuard(ServeConfig(server=ServerSection(host=host, allowed_hosts=hosts, allowed_origins=origins), access=keys))


def test_keyless_needs_nothing() -> None:
    assert access().identify(None) == Principal()


def test_a_key_is_the_operator() -> None:
    access(KEY, KEY + "2").identify(f"Bearer {KEY}2").require_operator()


@pytest.mark.parametrize(
    ("authorization", "code"),
    [
        (None, "key_missing"),
        ("Bearer wrong", "key_invalid"),
        ("Bearer", "key_invalid"),
        ("Bearer  ", "key_invalid"),
        (f"Basic {KEY}", "key_invalid"),
        (f"Bearer {KEY} ", None),
        (f"bearer {KEY}", None),
        (f"Bearer {KEY[:-1]}", "key_invalid"),
        ("Bearer é.ü", "key_invalid"),
    ],
)
def test_credentials(authorization: str | None, code: str | None) -> None:
    if code is None:
        access(KEY).identify(authorization)
        return
    with pytest.raises(ApiError) as caught:
        access(KEY).identify(authorization)
    assert (caught.value.code, caught.value.status) == (code, 401)
    assert caught.value.headers["WWW-Authenticate"] == "Bearer"


def test_a_wrong_token_is_refused_on_a_keyless_server_too() -> None:
    with pytest.raises(ApiError) as caught:
        access().identify("Bearer something")
    assert caught.value.code == "key_invalid"


def test_a_token_is_bound_to_its_session_and_role() -> None:
    gate = access(KEY)
    token, expires_s = gate.tokens.mint("abc", "viewer")
    principal = gate.identify(f"Bearer {token}")
    assert (principal, expires_s) == (Principal("viewer", "abc", 1), 1_800_003_600.0)
    principal.require_session("abc", to_control=False)
    with pytest.raises(ApiError, match="viewer"):
        principal.require_session("abc", to_control=True)
    with pytest.raises(ApiError, match="another session"):
        principal.require_session("abd", to_control=False)
    with pytest.raises(ApiError, match="API key") as caught:
        principal.require_operator()
    assert (caught.value.code, caught.value.status) == ("role_not_allowed", 403)


def test_a_token_in_the_subprotocol() -> None:
    gate = access(KEY)
    token, _ = gate.tokens.mint("abc", "controller")
    assert re.fullmatch(r"[A-Za-z0-9._-]+", token), "has to be an HTTP token"
    assert gate.identify(None, ["ithaka.v1", TOKEN_SUBPROTOCOL + token]) == Principal("controller", "abc", 1)


def test_two_tokens_are_never_the_same() -> None:
    gate = access(KEY)
    first, second = (gate.tokens.mint("abc", "viewer")[0] for _ in range(2))
    assert gate.identify(f"Bearer {first}") != gate.identify(f"Bearer {second}")


def test_a_token_expires() -> None:
    wall = Wall()
    gate = access(KEY, wall=wall)
    token, _ = gate.tokens.mint("abc", "controller")
    wall.now_s += 3599
    gate.identify(f"Bearer {token}")
    wall.now_s += 1
    with pytest.raises(ApiError) as caught:
        gate.identify(f"Bearer {token}")
    assert caught.value.code == "token_expired"


def test_another_server_does_not_know_the_token() -> None:
    token, _ = SessionTokens(b"other" * 8, 60, Wall()).mint("abc", "controller")
    with pytest.raises(ApiError):
        access(KEY).identify(f"Bearer {token}")


@given(st.data())
def test_no_other_spelling_of_a_token_passes(data: st.DataObject) -> None:
    tokens = SessionTokens(b"k" * 32, 60, Wall())
    token, _ = tokens.mint("abc", "viewer")
    at = data.draw(st.integers(0, len(token) - 1))
    other = token[:at] + data.draw(st.characters(max_codepoint=0x17F)) + token[at + 1 :]
    if other != token:
        with pytest.raises(ApiError):
            tokens.read(other)


@given(st.text())
def test_any_text_as_a_token(text: str) -> None:
    with pytest.raises(ApiError):
        SessionTokens(b"k" * 32, 60, Wall()).read(text)


def test_a_role_cannot_be_changed() -> None:
    tokens = SessionTokens(b"k" * 32, 60, Wall())
    payload, signature = tokens.mint("abc", "viewer")[0].split(".")
    raw = bytearray(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    raw[0] = 0
    forged = base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
    with pytest.raises(ApiError):
        tokens.read(f"{forged}.{signature}")


@pytest.mark.parametrize("host", ["127.0.0.1:8765", "127.0.0.1", "localhost:9000", "LOCALHOST", "[::1]:8765"])
def test_local_names_on_loopback(host: str) -> None:
    guard().check([host], [])


@pytest.mark.parametrize(
    "host", ["", "evil.example", "evil.example:8765", "127.0.0.1.evil.example", "192.168.1.5", "[", "a b", "localhost@x"]
)
def test_foreign_hosts_on_loopback(host: str) -> None:
    with pytest.raises(ApiError) as caught:
        guard().check([host], [])
    assert (caught.value.code, caught.value.status) == ("host_not_allowed", 403)


def test_hosts_beyond_loopback() -> None:
    wide = guard("0.0.0.0", hosts=("play.example.org",))
    for host in ("192.168.1.5:8765", "[fe80::1]:8765", "play.example.org", "localhost"):
        wide.check([host], [])
    with pytest.raises(ApiError):
        wide.check(["evil.example"], [])


@pytest.mark.parametrize(
    "origin", ["http://localhost:8765", "https://localhost:8765", "HTTP://LOCALHOST:8765", "https://ok.example"]
)
def test_own_and_allowed_origins(origin: str) -> None:
    guard(origins=("https://ok.example/",)).check(["localhost:8765"], [origin])


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "http://localhost:3000",
        "http://localhost",
        "null",
        "",
        "file://localhost:8765",
        "https://ok.example.evil",
    ],
)
def test_foreign_origins(origin: str) -> None:
    with pytest.raises(ApiError) as caught:
        guard(origins=("https://ok.example",)).check(["localhost:8765"], [origin])
    assert (caught.value.code, caught.value.status) == ("origin_not_allowed", 403)


@pytest.mark.parametrize("hosts", [[], ["localhost", "localhost"], ["localhost", "evil.example"]])
def test_there_is_one_host(hosts: list[str]) -> None:
    with pytest.raises(ApiError):
        guard().check(hosts, [])


def test_every_origin_counts() -> None:
    with pytest.raises(ApiError):
        guard().check(["localhost:8765"], ["http://localhost:8765", "http://evil.example"])
